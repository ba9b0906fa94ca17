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

/* Returns whether the password matches the hash, in constant time. NULL or a malformed hash: false,
 * after the same time. */
bool tierce__password_is(const char *hash, const char *password);

/* Wipes and frees a password; NULL is accepted. */
void tierce__password_free(char *password);

#endif
