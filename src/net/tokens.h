/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_TOKENS_H
#define TIERCE_NET_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A token file: one "RIGHTS NAME SHA256-OF-TOKEN" per line, and further words if the caller allows
 * them; '#' begins a comment. Mode 0600, read once. The tokens themselves are never stored. A fault
 * is reported with its line, but without the words of the line: one of them may be a token.
 *
 * Thread: any, once loaded.
 */

#define TIERCE__TOKEN_NAME_BYTES   64u
#define TIERCE__TOKEN_DIGEST_BYTES 32u
#define TIERCE__TOKEN_WORDS_MAX    8u /* after the digest */
#define TIERCE__TOKEN_FAULT_BYTES  160u

struct tierce__token {
    uint32_t rights; /* as `rights` below gave them */
    char name[TIERCE__TOKEN_NAME_BYTES];
    char tenant[TIERCE__TOKEN_NAME_BYTES];      /* the fourth word, or "" */
    uint8_t digest[TIERCE__TOKEN_DIGEST_BYTES]; /* SHA-256 of the token */
    bool is_account; /* the third word is "account": the line has no token, and is never found */
};

struct tierce__tokens_opts {
    size_t size;
    const char *path;
    const char *param; /* the parameter that names the file, for messages; NULL: auth.token_file */
    bool (*rights)(uint32_t *out, const char *word); /* false: unknown word */
    const char *rights_text;                         /* "a role must be user or admin" */
    /* Reads the third word, which is a public key of 32 bytes; NULL: it is the SHA-256 of a token,
     * as 64 hex digits. Such an entry is found with tierce__tokens_find_digest. */
    bool (*key)(uint8_t out[TIERCE__TOKEN_DIGEST_BYTES], const char *word);
    const char *key_text; /* with `key`: "the third word is not ..." */
    bool has_tenants;     /* a fourth word is allowed */
    bool has_accounts;    /* "account" may replace the digest */
    /* Reads the words after the digest of a line, which becomes the entry `index`; NULL: there may
     * be none but the tenant. False: `fault` says in words what is wrong. */
    bool (*more)(void *arg, size_t index, const struct tierce__token *token, char *const *words,
                 size_t count, char fault[TIERCE__TOKEN_FAULT_BYTES]);
    void *more_arg;
    const char *more_text; /* "[SCOPE]": these words in the message of a fault */
};

struct tierce__tokens;

/* Errors, `why` in words: TIERCE_E_CONFIG (a line; a NUL; others may read the file), negative
 * errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__tokens_load(struct tierce__tokens **out,
                                       const struct tierce__tokens_opts *opts, char why[256]);
/* NULL is accepted here and below, and holds no tokens. */
void tierce__tokens_destroy(struct tierce__tokens *tokens);

size_t tierce__tokens_count(const struct tierce__tokens *tokens);
const struct tierce__token *tierce__tokens_at(const struct tierce__tokens *tokens, size_t index);
/* The index of an entry. */
size_t tierce__tokens_index(const struct tierce__tokens *tokens, const struct tierce__token *token);

/* Finds the presented token, or returns NULL, in constant time. [borrow until destroy] */
const struct tierce__token *tierce__tokens_find(const struct tierce__tokens *tokens,
                                                const char *shown, size_t shown_bytes);
/* Finds a token that was presented before. */
const struct tierce__token *
tierce__tokens_find_digest(const struct tierce__tokens *tokens,
                           const uint8_t digest[TIERCE__TOKEN_DIGEST_BYTES]);

#endif
