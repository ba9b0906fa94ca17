/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_TOKEN_FILE_H
#define TIERCE_NET_TOKEN_FILE_H

#include <stddef.h>
#include <time.h>

#include <tierce/status.h>

/*
 * A file with the token that this client shows to a server: the token alone, up to the first white
 * space. No other user may read the file.
 *
 * Thread: any.
 */

struct tierce__token_file {
    char *token;              /* not empty */
    struct timespec modified; /* of the file */
};

/* `name`: the parameter that names the file, for `why`. Errors, *out untouched: TIERCE_E_CONFIG,
 * -ENOMEM; `why` in words, never with the token. */
TIERCE_MUSTUSE int tierce__token_file_read(struct tierce__token_file *out, const char *name,
                                           const char *path, char *why, size_t why_room);

/* Wipes and frees the token. A zeroed one is accepted. */
void tierce__token_file_clear(struct tierce__token_file *file);

/* "Bearer " and the first `length` bytes of a token, for an Authorization header; the caller frees
 * it with tierce__free_secret. NULL if there is no memory. */
char *tierce__token_bearer(const char *token, size_t length);

#endif
