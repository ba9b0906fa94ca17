/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/memcached/memcached.h"

#include "base/assert.h"

#include <stdbool.h>
#include <string.h>

struct word {
    const char *text;
    size_t bytes;
};

/* Consumes the text before the next space, and the space. Returns false where nothing stands. */
static bool take_word(struct word *rest, struct word *out)
{
    const char *space = memchr(rest->text, ' ', rest->bytes);
    size_t bytes = space != NULL ? (size_t)(space - rest->text) : rest->bytes;
    *out = (struct word){rest->text, bytes};
    rest->text += bytes + (space != NULL);
    rest->bytes -= bytes + (space != NULL);
    return bytes > 0;
}

static bool take_number(struct word *rest, uint64_t *out)
{
    struct word word;
    uint64_t number = 0;
    if (!take_word(rest, &word))
        return false;
    for (size_t i = 0; i < word.bytes; i++) {
        char c = word.text[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(c - '0'), &number))
            return false;
    }
    *out = number;
    return true;
}

/* VALUE key flags bytes [unique] */
static bool parse_value(struct tierce__memcached_line *line, struct word rest)
{
    struct word key;
    uint64_t flags;
    if (!take_word(&rest, &key) || key.bytes > TIERCE__MEMCACHED_KEY_BYTES ||
        !take_number(&rest, &flags) || !take_number(&rest, &line->bytes))
        return false;
    line->name = key.text;
    line->name_bytes = key.bytes;
    return rest.bytes == 0 || (take_number(&rest, &line->unique) && rest.bytes == 0);
}

static bool is_word(const struct word *word, const char *text)
{
    return word->bytes == strlen(text) && memcmp(word->text, text, word->bytes) == 0;
}

static bool contains(const struct word *rest, const char *text)
{
    return memmem(rest->text, rest->bytes, text, strlen(text)) != NULL;
}

/* The kinds that are one word. */
static bool parse_word(struct tierce__memcached_line *line, const struct word *first)
{
    static const struct {
        const char *text;
        enum tierce__memcached_kind kind;
    } words[] = {
        {"END", TIERCE__MEMCACHED_END},
        {"STORED", TIERCE__MEMCACHED_STORED},
        {"NOT_STORED", TIERCE__MEMCACHED_NOT_STORED},
        {"EXISTS", TIERCE__MEMCACHED_EXISTS},
        {"NOT_FOUND", TIERCE__MEMCACHED_NOT_FOUND},
        {"DELETED", TIERCE__MEMCACHED_DELETED},
        {"TOUCHED", TIERCE__MEMCACHED_TOUCHED},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (is_word(first, words[i].text)) {
            line->kind = words[i].kind;
            return true;
        }
    }
    return false;
}

int tierce__memcached_parse(struct tierce__memcached_line *out, const char *text, size_t count)
{
    struct tierce__memcached_line line = {.name = text, .name_bytes = count};
    struct word rest = {text, count}, first, name;
    if (!take_word(&rest, &first))
        return TIERCE_E_FORMAT;
    bool ok = true;
    if (first.bytes == count && parse_word(&line, &first)) {
        line.name_bytes = 0;
    } else if (is_word(&first, "VALUE")) {
        line.kind = TIERCE__MEMCACHED_VALUE;
        ok = parse_value(&line, rest);
    } else if (is_word(&first, "STAT")) {
        line.kind = TIERCE__MEMCACHED_STAT;
        ok = take_word(&rest, &name);
        line.name = name.text;
        line.name_bytes = name.bytes;
        line.text = rest.text;
        line.text_bytes = rest.bytes;
    } else if (is_word(&first, "VERSION")) {
        line.kind = TIERCE__MEMCACHED_VERSION;
    } else if (is_word(&first, "SERVER_ERROR") && (contains(&rest, "out of memory storing") ||
                                                   contains(&rest, "Out of memory during read"))) {
        line.kind = TIERCE__MEMCACHED_FULL;
    } else if (is_word(&first, "SERVER_ERROR") && contains(&rest, "too large for cache")) {
        line.kind = TIERCE__MEMCACHED_TOO_LARGE;
    } else if (is_word(&first, "ERROR") || is_word(&first, "CLIENT_ERROR") ||
               is_word(&first, "SERVER_ERROR")) {
        line.kind = TIERCE__MEMCACHED_ERROR;
    } else {
        ok = false;
    }
    if (!ok)
        return TIERCE_E_FORMAT;
    TIERCE_DASSERT(line.name >= text && line.name + line.name_bytes <= text + count);
    *out = line;
    return 0;
}
