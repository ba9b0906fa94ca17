/* SPDX-License-Identifier: Apache-2.0 */
#include "router/snapshot_tokens.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/token_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (256u << 10)
#define BLANKS         " \t\r"

/* A line of the file: a token and a tenant, which is empty for publishers without one. */
struct token_line {
    const char *token, *tenant;
    size_t token_bytes, tenant_bytes;
    bool has_more; /* words after the tenant */
};

/* The line at *at, which moves to the next one. False: there are no more. */
static bool next_line(struct token_line *out, const char **at)
{
    const char *line = *at;
    if (*line == '\0')
        return false;
    *at = line + strcspn(line, "\n");
    *at += **at == '\n';
    out->token = line + strspn(line, BLANKS);
    out->token_bytes = strcspn(out->token, BLANKS "\n");
    out->tenant = out->token + out->token_bytes;
    out->tenant += strspn(out->tenant, BLANKS);
    out->tenant_bytes = strcspn(out->tenant, BLANKS "\n");
    const char *rest = out->tenant + out->tenant_bytes;
    rest += strspn(rest, BLANKS);
    out->has_more = *rest != '\n' && *rest != '\0';
    if (out->tenant_bytes == 7 && memcmp(out->tenant, "default", 7) == 0)
        out->tenant_bytes = 0; /* as in registrations */
    return true;
}

static bool is_used(const struct token_line *line)
{
    return line->token_bytes > 0 && line->token[0] != '#';
}

static bool is_of(const struct token_line *line, const char *tenant, size_t bytes)
{
    return is_used(line) && line->tenant_bytes == bytes && memcmp(line->tenant, tenant, bytes) == 0;
}

/* Whether a line before `end` is for the same tenant. */
static bool is_repeated(const char *text, const struct token_line *line)
{
    struct token_line other;
    const char *at = text;
    while (next_line(&other, &at) && other.token < line->token)
        if (is_of(&other, line->tenant, line->tenant_bytes))
            return true;
    return false;
}

/* NULL, or what is wrong with the text, without words of it: they may be tokens. */
static const char *fault_of(const char *text, size_t bytes, unsigned *number)
{
    struct token_line line;
    const char *at = text;
    bool has_one = false;
    for (*number = 1; next_line(&line, &at); ++*number) {
        if (!is_used(&line))
            continue;
        has_one = true;
        if (line.has_more)
            return "has more than two words";
        if (is_repeated(text, &line))
            return "is the second one for its tenant";
    }
    if (strlen(text) < bytes)
        return "contains a NUL";
    return has_one ? NULL : "ends the file, which has no such line";
}

int tierce__snapshot_tokens_read(char **out, const char *param, const char *word, const char *path,
                                 char why[256])
{
    char *text = NULL, fault[220];
    size_t bytes = 0;
    unsigned number = 0;
    *out = NULL;
    if (path[0] == '\0')
        return 0;
    int rc =
        tierce__read_secret_file(&text, &bytes, NULL, path, FILE_BYTES_MAX, fault, sizeof(fault));
    if (rc < 0) {
        snprintf(why, 256, "%.30s: %s", param, fault);
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    const char *wrong = fault_of(text, bytes, &number);
    if (wrong != NULL) {
        snprintf(why, 256, "%.30s %.110s: line %u %s; a line is %s [TENANT]", param, path, number,
                 wrong, word);
        explicit_bzero(text, bytes);
        tierce__free(text);
        return TIERCE_E_CONFIG;
    }
    *out = text;
    return 0;
}

void tierce__snapshot_tokens_replace(struct tierce__snapshot_tokens *tokens, char *text)
{
    tierce__lock_take(&tokens->lock);
    char *before = tokens->text;
    tokens->text = text;
    tierce__lock_drop(&tokens->lock);
    tierce__free_secret(before);
}

/* make: what becomes of the tenant's token. */
static int find(char **out, struct tierce__snapshot_tokens *tokens, const char *tenant,
                char *(*make)(const char *token, size_t bytes))
{
    struct token_line line;
    size_t bytes = strlen(tenant);
    bool is_found = false;
    *out = NULL;
    tierce__lock_take(&tokens->lock);
    const char *at = tokens->text != NULL ? tokens->text : "";
    while (!is_found && next_line(&line, &at))
        is_found = is_of(&line, tenant, bytes);
    if (is_found)
        *out = make(line.token, line.token_bytes);
    tierce__lock_drop(&tokens->lock);
    return is_found && *out == NULL ? -ENOMEM : 0;
}

static char *copy(const char *token, size_t bytes)
{
    char *out = tierce__alloc(bytes + 1);
    if (out == NULL)
        return NULL;
    memcpy(out, token, bytes);
    out[bytes] = '\0';
    return out;
}

int tierce__snapshot_tokens_word(char **out, struct tierce__snapshot_tokens *tokens,
                                 const char *tenant)
{
    return find(out, tokens, tenant, copy);
}

int tierce__snapshot_tokens_find(char **out, struct tierce__snapshot_tokens *tokens,
                                 const char *tenant)
{
    return find(out, tokens, tenant, tierce__token_bearer);
}

void tierce__snapshot_tokens_init(struct tierce__snapshot_tokens *tokens)
{
    *tokens = (struct tierce__snapshot_tokens){0};
    tierce__lock_init(&tokens->lock, TIERCE__LOCK_ROUTER_ACCESS);
}

void tierce__snapshot_tokens_fini(struct tierce__snapshot_tokens *tokens)
{
    tierce__free_secret(tokens->text);
    tierce__lock_fini(&tokens->lock);
}
