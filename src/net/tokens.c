/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tokens.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/text/utf8.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

struct tierce__tokens {
    size_t count;
    struct tierce__token *entries;
};

/* A line, split into its words. */
struct token_line {
    char *rights, *name, *digest;
    char *more[TIERCE__TOKEN_WORDS_MAX];
    size_t more_count;
};

static bool complain(char fault[TIERCE__TOKEN_FAULT_BYTES], const char *text)
{
    TIERCE_ASSERT(strlen(text) < TIERCE__TOKEN_FAULT_BYTES);
    snprintf(fault, TIERCE__TOKEN_FAULT_BYTES, "%s", text);
    return false;
}

static bool split_line(struct token_line *out, char *line, char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    char *save = NULL, *word;
    out->rights = strtok_r(line, " \t\r", &save);
    out->name = strtok_r(NULL, " \t\r", &save);
    out->digest = strtok_r(NULL, " \t\r", &save);
    out->more_count = 0;
    if (out->digest == NULL)
        return complain(fault, "there are fewer than three words");
    while ((word = strtok_r(NULL, " \t\r", &save)) != NULL) {
        if (out->more_count == TIERCE__TOKEN_WORDS_MAX)
            return complain(fault, "there are too many words");
        out->more[out->more_count++] = word;
    }
    return true;
}

/* A tenant, or nothing. */
static bool read_tenant(struct tierce__token *out, const struct tierce__tokens_opts *opts,
                        const struct token_line *line, char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    TIERCE_DASSERT(opts->more == NULL);
    if (line->more_count > (opts->has_tenants ? 1 : 0))
        return complain(fault, "there are too many words");
    const char *tenant = line->more_count > 0 ? line->more[0] : "";
    if (strlen(tenant) >= sizeof(out->tenant))
        return complain(fault, "the tenant exceeds 63 bytes");
    snprintf(out->tenant, sizeof(out->tenant), "%s", tenant);
    return true;
}

static bool read_digest(uint8_t out[TIERCE__TOKEN_DIGEST_BYTES],
                        const struct tierce__tokens_opts *opts, const char *word)
{
    if (opts->key != NULL)
        return opts->key(out, word);
    return strlen(word) == 2 * (size_t)TIERCE__TOKEN_DIGEST_BYTES &&
           tierce__hex_decode(out, TIERCE__TOKEN_DIGEST_BYTES, word);
}

static bool read_token(struct tierce__token *out, size_t index,
                       const struct tierce__tokens_opts *opts, char *text,
                       char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    struct token_line line;
    if (!split_line(&line, text, fault))
        return false;
    if (!opts->rights(&out->rights, line.rights))
        return complain(fault, opts->rights_text);
    if (strlen(line.name) >= sizeof(out->name))
        return complain(fault, "the name exceeds 63 bytes");
    if (!tierce__text_is_plain(line.name, strlen(line.name)))
        return complain(fault, "the name is not UTF-8, or has control characters");
    snprintf(out->name, sizeof(out->name), "%s", line.name);
    out->is_account = opts->has_accounts && strcmp(line.digest, "account") == 0;
    if (!out->is_account && !read_digest(out->digest, opts, line.digest))
        return complain(fault, opts->key != NULL ? opts->key_text
                               : opts->has_accounts
                                   ? "the third word is neither 64 hex digits nor \"account\""
                                   : "the third word is not 64 hex digits");
    return opts->more == NULL
               ? read_tenant(out, opts, &line, fault)
               : opts->more(opts->more_arg, index, out, line.more, line.more_count, fault);
}

static int complain_line(char why[256], const struct tierce__tokens_opts *opts, size_t number,
                         const char *fault)
{
    const char *more = opts->more != NULL ? opts->more_text : opts->has_tenants ? "[TENANT]" : "";
    snprintf(why, 256, "%.60s, line %zu: %.100s; expected %s NAME %s%s%s", opts->path, number,
             fault, opts->has_tenants ? "SCOPES" : "ROLES",
             opts->key != NULL ? "PUBLIC-KEY" : "SHA256", more[0] != '\0' ? " " : "", more);
    return TIERCE_E_CONFIG;
}

static int read_tokens(struct tierce__tokens *tokens, const struct tierce__tokens_opts *opts,
                       char *text, char why[256])
{
    char fault[TIERCE__TOKEN_FAULT_BYTES];
    size_t lines = 1, number = 0;
    for (const char *p = text; *p != '\0'; p++)
        lines += *p == '\n';
    tokens->entries = tierce__calloc(lines, sizeof(*tokens->entries));
    if (tokens->entries == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0';
        number++;
        TIERCE_ASSERT(tokens->count < lines);
        line += strspn(line, " \t\r");
        if (*line != '\0' && *line != '#') {
            size_t index = tokens->count++;
            if (!read_token(&tokens->entries[index], index, opts, line, fault))
                return complain_line(why, opts, number, fault);
        }
        line = end != NULL ? end + 1 : NULL;
    }
    TIERCE_ASSERT(tokens->count <= number && number <= lines);
    return 0;
}

/* Lines after a NUL would be ignored, and with them the accounts that they restrict. */
static int check_text(const struct tierce__tokens_opts *opts, const char *text, size_t bytes,
                      char why[256])
{
    size_t length = strlen(text), number = 1;
    if (length == bytes)
        return 0;
    for (size_t i = 0; i < length; i++)
        number += text[i] == '\n';
    return complain_line(why, opts, number, "it contains a NUL");
}

int tierce__tokens_load(struct tierce__tokens **out, const struct tierce__tokens_opts *opts,
                        char why[256])
{
    enum { FILE_BYTES_MAX = 1024 * 1024 };
    char *text, fault[240];
    size_t bytes;
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    int rc = tierce__read_secret_file(&text, &bytes, NULL, opts->path, FILE_BYTES_MAX, fault,
                                      sizeof(fault));
    if (rc < 0) {
        snprintf(why, 256, "%.40s: %.200s", opts->param != NULL ? opts->param : "auth.token_file",
                 fault);
        return rc;
    }
    struct tierce__tokens *tokens = tierce__calloc(1, sizeof(*tokens));
    if (tokens == NULL) {
        snprintf(why, 256, "no memory");
        rc = -ENOMEM;
    } else {
        rc = check_text(opts, text, bytes, why);
        if (rc == 0)
            rc = read_tokens(tokens, opts, text, why);
    }
    tierce__free(text);
    if (rc < 0)
        tierce__tokens_destroy(tokens);
    else
        *out = tokens;
    return rc;
}

void tierce__tokens_destroy(struct tierce__tokens *tokens)
{
    if (tokens == NULL)
        return;
    tierce__free(tokens->entries);
    tierce__free(tokens);
}

size_t tierce__tokens_count(const struct tierce__tokens *tokens)
{
    return tokens != NULL ? tokens->count : 0;
}

const struct tierce__token *tierce__tokens_at(const struct tierce__tokens *tokens, size_t index)
{
    TIERCE_ASSERT(index < tierce__tokens_count(tokens));
    return &tokens->entries[index];
}

size_t tierce__tokens_index(const struct tierce__tokens *tokens, const struct tierce__token *token)
{
    size_t index = (size_t)(token - tokens->entries);
    TIERCE_ASSERT(index < tokens->count);
    return index;
}

const struct tierce__token *tierce__tokens_find(const struct tierce__tokens *tokens,
                                                const char *shown, size_t shown_bytes)
{
    uint8_t digest[TIERCE__TOKEN_DIGEST_BYTES];
    unsigned bytes = sizeof(digest);
    if (EVP_Digest(shown, shown_bytes, digest, &bytes, EVP_sha256(), NULL) != 1)
        return NULL;
    TIERCE_ASSERT(bytes == sizeof(digest));
    return tierce__tokens_find_digest(tokens, digest);
}

const struct tierce__token *
tierce__tokens_find_digest(const struct tierce__tokens *tokens,
                           const uint8_t digest[TIERCE__TOKEN_DIGEST_BYTES])
{
    const struct tierce__token *found = NULL;
    for (size_t i = 0; i < tierce__tokens_count(tokens); i++) {
        const struct tierce__token *token = &tokens->entries[i];
        if (tierce__secrets_equal(token->digest, digest, TIERCE__TOKEN_DIGEST_BYTES) &&
            !token->is_account)
            found = token;
    }
    return found;
}
