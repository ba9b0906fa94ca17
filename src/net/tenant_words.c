/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tenant_words.h"

#include "base/alloc.h"
#include "base/file.h"
#include "net/token_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (256u << 10)
#define BLANKS         " \t\r"

/* A line of the file: a token and a tenant, which is empty on the line without one. */
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

struct tenant_line {
    const char *tenant;
    size_t bytes;
    unsigned number;
};

/* By tenant, and the lines of a tenant in their order. */
static int compare(const void *a, const void *b)
{
    const struct tenant_line *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    int by_name = memcmp(x->tenant, y->tenant, x->bytes);
    return by_name != 0 ? by_name : x->number < y->number ? -1 : 1;
}

/* *number: of the first line whose tenant an earlier one has; 0: there is none. Errors: -ENOMEM. */
static int find_repeated(unsigned *number, const char *text)
{
    struct tenant_line *all = NULL;
    struct token_line line;
    size_t count = 0, room = 0;
    unsigned at_line = 1;
    int rc = 0;
    *number = 0;
    for (const char *at = text; rc == 0 && next_line(&line, &at); at_line++) {
        if (!is_used(&line))
            continue;
        rc = TIERCE__GROW(all, room, count + 1, 16);
        if (rc == 0)
            all[count++] = (struct tenant_line){line.tenant, line.tenant_bytes, at_line};
    }
    if (rc == 0 && count > 1)
        qsort(all, count, sizeof(*all), compare);
    for (size_t i = 1; rc == 0 && i < count; i++)
        if (all[i].bytes == all[i - 1].bytes &&
            memcmp(all[i].tenant, all[i - 1].tenant, all[i].bytes) == 0 &&
            (*number == 0 || all[i].number < *number))
            *number = all[i].number;
    tierce__free(all);
    return rc;
}

unsigned tierce__tenant_words_invalid(const char *text, tierce__tenant_word_fn *is_valid)
{
    struct token_line line;
    unsigned number = 1;
    for (const char *at = text; next_line(&line, &at); number++)
        if (is_used(&line) && !is_valid(line.token, line.token_bytes))
            return number;
    return 0;
}

/* *wrong: NULL, or what is wrong with the text, without words of it: they may be tokens. Errors:
 * -ENOMEM. */
static int find_fault(const char **wrong, unsigned *number, const char *text, size_t bytes)
{
    struct token_line line;
    const char *at = text;
    bool has_one = false;
    *wrong = NULL;
    for (*number = 1; next_line(&line, &at); ++*number) {
        has_one = has_one || is_used(&line);
        if (is_used(&line) && line.has_more)
            *wrong = "has more than two words";
        if (*wrong != NULL)
            return 0;
    }
    if (strlen(text) < bytes)
        *wrong = "contains a NUL";
    else if (!has_one)
        *wrong = "ends the file, which has no such line";
    if (*wrong != NULL)
        return 0;
    int rc = find_repeated(number, text);
    if (rc == 0 && *number > 0)
        *wrong = "is the second one for its tenant";
    return rc;
}

int tierce__tenant_words_read(char **out, const char *param, const char *word, const char *path,
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
    const char *wrong;
    rc = find_fault(&wrong, &number, text, bytes);
    if (rc == 0 && wrong == NULL) {
        *out = text;
        return 0;
    }
    if (rc == 0) {
        snprintf(why, 256, "%.30s %.110s: line %u %s; a line is %s [TENANT]", param, path, number,
                 wrong, word);
        rc = TIERCE_E_CONFIG;
    } else {
        snprintf(why, 256, "%.30s: no memory", param);
    }
    explicit_bzero(text, bytes);
    tierce__free(text);
    return rc;
}

void tierce__tenant_words_replace(struct tierce__tenant_words *tokens, char *text)
{
    tierce__lock_take(&tokens->lock);
    char *before = tokens->text;
    tokens->text = text;
    tierce__lock_drop(&tokens->lock);
    tierce__free_secret(before);
}

/* make: what becomes of the tenant's token. */
static int find(char **out, struct tierce__tenant_words *tokens, const char *tenant,
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

int tierce__tenant_words_word(char **out, struct tierce__tenant_words *tokens, const char *tenant)
{
    return find(out, tokens, tenant, copy);
}

int tierce__tenant_words_find(char **out, struct tierce__tenant_words *tokens, const char *tenant)
{
    return find(out, tokens, tenant, tierce__token_bearer);
}

void tierce__tenant_words_init(struct tierce__tenant_words *tokens)
{
    *tokens = (struct tierce__tenant_words){0};
    tierce__lock_init(&tokens->lock, TIERCE__LOCK_TENANT_WORDS);
}

void tierce__tenant_words_fini(struct tierce__tenant_words *tokens)
{
    tierce__free_secret(tokens->text);
    tierce__lock_fini(&tokens->lock);
}
