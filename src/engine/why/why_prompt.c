/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why_prompt.h"
#include "base/assert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "core/key/namespace.h"
#include "engine/objects/object_form.h"

#define TOKENS_MAX  (16u << 20)
#define LISTED_MAX  12u
#define DIGEST_TEXT (2 * TIERCE_HASH_BYTES + 1)

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Parses one number of 32 bits from *at on, with or without a sign. */
static bool take_number(int32_t *out, const char *text, size_t bytes, size_t *at)
{
    TIERCE_DASSERT(*at < bytes);
    bool negative = text[*at] == '-';
    uint64_t value = 0;
    size_t i = *at + negative, first = i;
    for (; i < bytes && is_digit(text[i]) && i - first < 11; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    bool ends = i == bytes || is_space(text[i]) || text[i] == ',' || text[i] == ']';
    if (i == first || !ends || value > (negative ? (uint64_t)INT32_MAX + 1 : UINT32_MAX))
        return false;
    *at = i;
    *out = (int32_t)(uint32_t)(negative ? 0 - value : value);
    return true;
}

/* Counts the numbers, and writes them unless the buffer is NULL. */
static int64_t scan_tokens(int32_t *out, const char *text, size_t bytes, size_t *at)
{
    uint64_t count = 0;
    bool opened = false, closed = false, comma = true; /* NONE may come first */
    for (*at = 0; *at < bytes;) {
        char c = text[*at];
        int32_t token;
        if (is_space(c)) {
            (*at)++;
        } else if (closed) {
            return TIERCE_E_FORMAT;
        } else if (c == ',' && !comma) {
            comma = true;
            (*at)++;
        } else if (c == '[' && !opened && count == 0) {
            opened = true;
            (*at)++;
        } else if (c == ']' && opened && (!comma || count == 0)) {
            closed = true;
            (*at)++;
        } else if (take_number(&token, text, bytes, at)) {
            if (out != NULL)
                out[count] = token;
            count++;
            comma = false;
        } else {
            return TIERCE_E_FORMAT;
        }
    }
    if (opened != closed)
        return TIERCE_E_FORMAT;
    TIERCE_DASSERT(*at == bytes);
    return count <= TOKENS_MAX ? (int64_t)count : TIERCE_E_LIMIT;
}

int tierce__prompt_tokens(int32_t **out, size_t *count, const char *text, size_t bytes,
                          char why[TIERCE__PROMPT_WHY_BYTES])
{
    size_t at;
    int64_t n = scan_tokens(NULL, text, bytes, &at);
    if (n < 0) {
        snprintf(
            why, TIERCE__PROMPT_WHY_BYTES,
            n == TIERCE_E_LIMIT
                ? "more than 16 million tokens"
                : "not token ids at byte %zu: expected numbers separated by white space or commas",
            at + 1);
        return (int)n;
    }
    int32_t *tokens = tierce__calloc((size_t)n, sizeof(*tokens));
    if (tokens == NULL)
        return -ENOMEM;
    (void)scan_tokens(tokens, text, bytes, &at);
    *out = tokens;
    *count = (size_t)n;
    return 0;
}

bool tierce__prompt_shard(struct tierce_shard *out, const char *text)
{
    unsigned ranks[4] = {0, 1, 0, 1};
    char end = '\0';
    int n = sscanf(text, "%5u/%5u,%5u/%5u%c", &ranks[0], &ranks[1], &ranks[2], &ranks[3], &end);
    if (n == 2) {
        char again[16];
        snprintf(again, sizeof(again), "%u/%u", ranks[0], ranks[1]);
        n = strcmp(again, text) == 0 ? 4 : 0;
    }
    if (n != 4 || ranks[0] >= ranks[1] || ranks[2] >= ranks[3] || ranks[1] > UINT16_MAX ||
        ranks[3] > UINT16_MAX)
        return false;
    *out = (struct tierce_shard){(uint16_t)ranks[0], (uint16_t)ranks[1], (uint16_t)ranks[2],
                                 (uint16_t)ranks[3]};
    return true;
}

/* ---- namespaces ------------------------------------------------------------------------------ */

struct naming_reader {
    struct tierce__naming *out;
    unsigned seen;
};

static void take_field(void *arg, const char *field, const char *a, const char *b)
{
    struct naming_reader *r = arg;
    uint64_t number;
    (void)b;
    if (a == NULL)
        return;
    bool counts = tierce__parse_count(&number, a) && number >= 1 && number <= 65536;
    if (strcmp(field, "block_tokens") == 0 && counts) {
        r->out->group.block_tokens = (uint32_t)number;
        r->seen |= 1;
    } else if (strcmp(field, "chunk_blocks") == 0 && counts) {
        r->out->group.chunk_blocks = (uint32_t)number;
        r->seen |= 2;
    } else if (strcmp(field, "window") == 0) {
        if (tierce__parse_count(&number, a) && number <= UINT32_MAX)
            r->out->group.window = (uint32_t)number;
    } else if (strcmp(field, "group") == 0) {
        r->seen |= tierce__group_parse(&r->out->group.kind, a) ? 0 : 8;
    } else if (strcmp(field, "algo") == 0 && tierce_chain_algo_parse(&r->out->algo, a) == 0) {
        r->seen |= 4;
    }
}

int tierce__naming_of(struct tierce__naming *out, const char *ns_text)
{
    struct naming_reader r = {.out = out};
    *out = (struct tierce__naming){0};
    int rc = tierce_namespace_diff(ns_text, "tierce-namespace=1\n", take_field, &r);
    if (rc < 0)
        return rc;
    enum tierce_group kind = out->group.kind;
    bool has_window = kind == TIERCE_GROUP_WINDOW || kind == TIERCE_GROUP_CHUNKED;
    return r.seen == 7 && has_window == (out->group.window > 0) ? 0 : TIERCE_E_FORMAT;
}

struct lister {
    char *text;
    size_t room;
};

static void list_field(void *arg, const char *field, const char *a, const char *b)
{
    static const char *const shown[] = {"weights", "kv_dtype", "block_tokens", "chunk_blocks"};
    struct lister *l = arg;
    char value[20];
    TIERCE_DASSERT(l->room > 0);
    (void)b;
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]) && a != NULL; i++) {
        if (strcmp(field, shown[i]) != 0)
            continue;
        tierce__text_for_message(value, sizeof(value), a);
        int n = snprintf(l->text, l->room, " %s=%s", field, value);
        size_t used = n < (int)l->room ? (size_t)n : l->room - 1;
        TIERCE_DASSERT(used < l->room);
        l->text += used;
        l->room -= used;
    }
}

static void list_namespace(struct lister *l, struct tierce__namespaces *table, uint32_t id)
{
    char digest[DIGEST_TEXT];
    const char *text = tierce__namespaces_text(table, id);
    TIERCE_DASSERT(l->room > 0);
    tierce__hex_encode(digest, tierce__namespaces_digest(table, id), TIERCE_HASH_BYTES);
    int n = snprintf(l->text, l->room, "\n  %.16s", digest);
    size_t used = n < (int)l->room ? (size_t)n : l->room - 1;
    TIERCE_DASSERT(used < l->room);
    l->text += used;
    l->room -= used;
    if (text == NULL)
        snprintf(l->text, l->room, " (its text is missing)");
    else if (tierce_namespace_diff(text, "tierce-namespace=1\n", list_field, l) < 0)
        return;
    l->room -= strlen(l->text);
    l->text += strlen(l->text);
}

static bool begins_with(struct tierce__namespaces *table, uint32_t id, const char *ns)
{
    char digest[DIGEST_TEXT];
    tierce__hex_encode(digest, tierce__namespaces_digest(table, id), TIERCE_HASH_BYTES);
    return ns == NULL || strncasecmp(digest, ns, strlen(ns)) == 0;
}

/* A namespace that has chunks, and whose chunks have tokens. */
static bool in_question(struct tierce__namespaces *table, uint32_t id, const uint64_t *counts,
                        size_t count)
{
    const char *text = tierce__namespaces_text(table, id);
    return (counts == NULL || (id < count && counts[id] > 0)) &&
           (text == NULL || !tierce__object_is_space(text));
}

int64_t tierce__prompt_namespace(const char *ns, struct tierce__namespaces *table,
                                 const uint64_t *counts, size_t count,
                                 char why[TIERCE__PROMPT_WHY_BYTES])
{
    uint32_t total = tierce__namespaces_count(table), fit = 0, meant = 0, listed = 0;
    for (uint32_t id = 0; id < total; id++) {
        if (!in_question(table, id, counts, count) || !begins_with(table, id, ns))
            continue;
        fit++;
        meant = id;
    }
    if (fit == 1)
        return meant;
    int n = fit > 1 ? snprintf(why, TIERCE__PROMPT_WHY_BYTES,
                               "%u namespaces match; select one by its digest:", fit)
                    : snprintf(why, TIERCE__PROMPT_WHY_BYTES,
                               ns != NULL ? "no namespace's digest begins with %.64s; there are:"
                                          : "there is no namespace yet",
                               ns);
    TIERCE_DASSERT(n > 0 && n < TIERCE__PROMPT_WHY_BYTES);
    struct lister l = {.text = why + n, .room = (size_t)(TIERCE__PROMPT_WHY_BYTES - n)};
    for (uint32_t id = 0; id < total && listed < LISTED_MAX; id++) {
        if (!in_question(table, id, counts, count) || (fit > 1 && !begins_with(table, id, ns)))
            continue;
        list_namespace(&l, table, id);
        listed++;
    }
    return fit > 1 ? TIERCE_E_LIMIT : TIERCE_E_MISS;
}

/* The namespaces that match if they are groups of one model, else 0. */
static int list_groups(uint32_t ids[TIERCE__GROUPS_MAX], const char *ns,
                       struct tierce__namespaces *table, const uint64_t *counts, size_t count)
{
    int found = 0;
    for (uint32_t id = 0; id < tierce__namespaces_count(table); id++) {
        if (!in_question(table, id, counts, count) || !begins_with(table, id, ns))
            continue;
        if (found == TIERCE__GROUPS_MAX ||
            (found > 0 && !tierce__namespace_other_group(tierce__namespaces_text(table, ids[0]),
                                                         tierce__namespaces_text(table, id))))
            return 0;
        ids[found++] = id;
    }
    return found;
}

int tierce__prompt_groups(uint32_t ids[TIERCE__GROUPS_MAX], const char *ns,
                          struct tierce__namespaces *table, const uint64_t *counts, size_t count,
                          char why[TIERCE__PROMPT_WHY_BYTES])
{
    int64_t id = tierce__prompt_namespace(ns, table, counts, count, why);
    if (id >= 0) {
        ids[0] = (uint32_t)id;
        return 1;
    }
    int found = id == TIERCE_E_LIMIT ? list_groups(ids, ns, table, counts, count) : 0;
    return found > 0 ? found : (int)id;
}

int tierce__prompt_chain(struct tierce_chain **out, const struct tierce__prompt *prompt,
                         const struct tierce__naming *naming)
{
    struct tierce_chain *chain;
    struct tierce_chain_opts opts = {.size = sizeof(opts),
                                     .algo = naming->algo,
                                     .block_tokens = naming->group.block_tokens,
                                     .root = prompt->root.size > 0 ? &prompt->root : NULL};
    int rc = tierce_chain_create(&chain, &opts);
    if (rc < 0)
        return rc;
    int64_t blocks = tierce_chain_append(chain, prompt->tokens, prompt->count, NULL);
    if (blocks < 0) {
        tierce_chain_destroy(chain);
        return (int)blocks;
    }
    *out = chain;
    return 0;
}
