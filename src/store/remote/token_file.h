/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TOKEN_FILE_H
#define TIERCE_TOKEN_FILE_H

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

/* Errors, *out untouched: TIERCE_E_CONFIG, -ENOMEM; `why` in words, never with the token. */
TIERCE_MUSTUSE int tierce__token_file_read(struct tierce__token_file *out, const char *path,
                                           char *why, size_t why_room);

/* Wipes and frees the token. A zeroed one is accepted. */
void tierce__token_file_clear(struct tierce__token_file *file);

#endif
