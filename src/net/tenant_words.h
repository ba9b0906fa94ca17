/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_TENANT_WORDS_H
#define TIERCE_NET_TENANT_WORDS_H

#include "base/threads/lock.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Secrets that a program sends, one for each tenant: a file with lines "WORD [TENANT]". The line
 * without a tenant is for what belongs to no tenant. The secret of a tenant is used for this tenant
 * only. Such files are:
 *
 * - snapshot.token_file: the tokens that a router index sends to publishers,
 * - curve.key_file: its secret keys for their streams,
 * - router.token_file, engine.token_file: the tokens that a proxy sends to a router index, and to
 *   engines.
 *
 * Thread: any, after init.
 */

struct tierce__tenant_words {
    struct tierce__lock lock; /* TENANT_WORDS: below */
    char *text;               /* the lines, checked; NULL: none */
};

void tierce__tenant_words_init(struct tierce__tenant_words *tokens);
void tierce__tenant_words_fini(struct tierce__tenant_words *tokens);

/* Reads and checks a file. *out: its text, or NULL if the path is "". Errors, with a `why` that
 * begins with the parameter: TIERCE_E_CONFIG, -ENOMEM. [in] word: how `why` calls the first word of
 * a line. */
TIERCE_MUSTUSE int tierce__tenant_words_read(char **out, const char *param, const char *word,
                                             const char *path, char why[256]);
/* Returns the number of the first line whose first word is invalid, or 0. */
typedef bool tierce__tenant_word_fn(const char *word, size_t bytes);
unsigned tierce__tenant_words_invalid(const char *text, tierce__tenant_word_fn *is_valid);
/* Replaces the tokens in use. [transfer] text: from tierce__tenant_words_read. */
void tierce__tenant_words_replace(struct tierce__tenant_words *tokens, char *text);

/* *out: the token of a tenant, to be freed with tierce__free_secret, or NULL if it has none.
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__tenant_words_word(char **out, struct tierce__tenant_words *tokens,
                                             const char *tenant);
/* *out: "Bearer TOKEN" of a tenant, to be freed with tierce__free_secret, or NULL if it has none.
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__tenant_words_find(char **out, struct tierce__tenant_words *tokens,
                                             const char *tenant);

#endif
