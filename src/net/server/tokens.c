/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/tokens.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct tierce__tokens {
    size_t count;
    struct tierce__token *entries;
};

static bool read_token(struct tierce__token *out, const struct tierce__tokens_opts *opts,
                       char *line)
{
    char *save = NULL;
    const char *rights = strtok_r(line, " \t\r", &save);
    const char *name = strtok_r(NULL, " \t\r", &save);
    const char *digest = strtok_r(NULL, " \t\r", &save);
    const char *tenant = strtok_r(NULL, " \t\r", &save);
    if (rights == NULL || name == NULL || digest == NULL || strtok_r(NULL, " \t\r", &save) != NULL)
        return false;
    if (tenant != NULL && (!opts->has_tenants || strlen(tenant) >= sizeof(out->tenant)))
        return false;
    if (!opts->rights(&out->rights, rights) || strlen(name) >= sizeof(out->name))
        return false;
    snprintf(out->name, sizeof(out->name), "%s", name);
    snprintf(out->tenant, sizeof(out->tenant), "%s", tenant != NULL ? tenant : "");
    return tierce__hex_decode(out->digest, sizeof(out->digest), digest);
}

static int read_tokens(struct tierce__tokens *tokens, const struct tierce__tokens_opts *opts,
                       char *text, char why[256])
{
    size_t lines = 1, number = 0;
    for (const char *p = text; *p != '\0'; p++)
        lines += *p == '\n';
    tokens->entries = tierce__calloc(lines, sizeof(*tokens->entries));
    if (tokens->entries == NULL)
        return -ENOMEM;
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0';
        number++;
        TIERCE_ASSERT(tokens->count < lines);
        line += strspn(line, " \t\r");
        if (*line != '\0' && *line != '#' &&
            !read_token(&tokens->entries[tokens->count++], opts, line)) {
            snprintf(why, 256, "%.100s, line %zu: expected %s NAME SHA256%s; %s", opts->path,
                     number, opts->has_tenants ? "SCOPES" : "ROLE",
                     opts->has_tenants ? " [TENANT]" : "", opts->rights_text);
            return TIERCE_E_CONFIG;
        }
        line = end != NULL ? end + 1 : NULL;
    }
    TIERCE_ASSERT(tokens->count <= number && number <= lines);
    return 0;
}

int tierce__tokens_load(struct tierce__tokens **out, const struct tierce__tokens_opts *opts,
                        char why[256])
{
    enum { FILE_BYTES_MAX = 1024 * 1024 };
    struct stat info;
    char *text;
    size_t bytes;
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    int rc = tierce__read_file(&text, &bytes, opts->path, FILE_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, 256, "the token file %.120s cannot be read: %s", opts->path,
                 tierce_strerror(rc));
        return rc;
    }
    struct tierce__tokens *tokens = tierce__calloc(1, sizeof(*tokens));
    if (tokens == NULL) {
        snprintf(why, 256, "no memory");
        rc = -ENOMEM;
    } else if (stat(opts->path, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        snprintf(why, 256, "other users can read the token file %.120s; chmod 600 it", opts->path);
        rc = TIERCE_E_CONFIG;
    } else {
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
        if (CRYPTO_memcmp(tokens->entries[i].digest, digest, TIERCE__TOKEN_DIGEST_BYTES) == 0)
            found = &tokens->entries[i];
    }
    return found;
}
