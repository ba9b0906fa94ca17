/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_SNAPSHOT_TOKENS_H
#define TIERCE_ROUTER_SNAPSHOT_TOKENS_H

#include "base/threads/lock.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * The tokens that a router index sends to publishers when it reads their snapshots: a file with one
 * line for each tenant, "TOKEN [TENANT]". A publisher of a tenant gets the token of that tenant
 * only, so that nobody who registers publishers for one tenant receives the token of another one.
 * The secret keys of curve.key_file are such a file too.
 *
 * Thread: any, after init.
 */

struct tierce__snapshot_tokens {
    struct tierce__lock lock; /* ROUTER_ACCESS: below */
    char *text;               /* the lines, checked; NULL: none */
};

void tierce__snapshot_tokens_init(struct tierce__snapshot_tokens *tokens);
void tierce__snapshot_tokens_fini(struct tierce__snapshot_tokens *tokens);

/* Reads a file, "": none, and checks it. *out: its text, or NULL. Errors, `why` in words, beginning
 * with the parameter: TIERCE_E_CONFIG, -ENOMEM. [in] word: the name of a line's first word there.
 */
TIERCE_MUSTUSE int tierce__snapshot_tokens_read(char **out, const char *param, const char *word,
                                                const char *path, char why[256]);
/* The number of the first line whose first word is invalid; 0: there is none. */
typedef bool tierce__snapshot_word_fn(const char *word, size_t bytes);
unsigned tierce__snapshot_tokens_invalid(const char *text, tierce__snapshot_word_fn *is_valid);
/* These count from now on. [transfer] text: of tierce__snapshot_tokens_read. */
void tierce__snapshot_tokens_replace(struct tierce__snapshot_tokens *tokens, char *text);

/* The token of a tenant, to be freed with tierce__free_secret, or NULL: there is none. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__snapshot_tokens_word(char **out, struct tierce__snapshot_tokens *tokens,
                                                const char *tenant);
/* "Bearer TOKEN" for the publishers of a tenant, to be freed with tierce__free_secret, or NULL:
 * there is none. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__snapshot_tokens_find(char **out, struct tierce__snapshot_tokens *tokens,
                                                const char *tenant);

#endif
