/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ACCOUNT_H
#define TIERCE_MANAGER_ACCOUNT_H

#include <stdbool.h>

#include <tierce/status.h>

/*
 * Passwords as salted hashes: "scrypt$<log2 N>$<r>$<p>$<salt, hex>$<hash, hex>". Threads: any; a
 * hash takes some tens of milliseconds and 16 MiB, on purpose.
 */

/* Heap, tierce__free. Errors: -ENOMEM, -EIO (no randomness), TIERCE_E_UNSUPPORTED (no scrypt in
 * this OpenSSL). */
TIERCE_MUSTUSE int tierce__password_hash(char **out, const char *password);

/* Whether it is the password of a hash; the time does not tell where they differ. NULL or a hash
 * that cannot be read: false, after as long a time. */
bool tierce__password_is(const char *hash, const char *password);

/* Wipes and frees a password; NULL is accepted. */
void tierce__password_free(char *password);

#endif
