/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/resp/resp_parse.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define PARSER_MAGIC     0x4e5bd07cu
#define ARENA_BYTES_KEPT 65536u /* a larger block goes after its pipeline */
#define ITEMS_FIRST      8u

/* An array that is not complete. Its items move when it grows; nothing points at them yet. */
struct level {
    struct tierce__resp_value *items;
    size_t count, size, wanted;
};

struct tierce__resp_parser {
    uint32_t magic;
    uint64_t bulk_bytes_max;
    struct tierce__arena arena; /* of all values since the last reset */
    struct level levels[TIERCE__RESP_DEPTH_MAX];
    unsigned depth;
    /* A bulk string that is not complete. */
    bool in_bulk;
    char *bulk;         /* the bytes kept of it */
    size_t bulk_kept;   /* how much that will be */
    size_t bulk_filled; /* how much of it came, kept or not */
    size_t bulk_bytes;
    /* For the next reply. */
    char *into;
    size_t into_capacity;
    bool has_into;
};

struct tierce__resp_parser *tierce__resp_parser_create(uint64_t bulk_bytes_max,
                                                       uint64_t answer_bytes_max)
{
    struct tierce__resp_parser *parser = tierce__calloc(1, sizeof(*parser));
    if (parser == NULL)
        return NULL;
    parser->magic = PARSER_MAGIC;
    parser->bulk_bytes_max = bulk_bytes_max;
    parser->arena.limit = (size_t)answer_bytes_max;
    return parser;
}

void tierce__resp_parser_destroy(struct tierce__resp_parser *parser)
{
    if (parser == NULL)
        return;
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    tierce__arena_clear(&parser->arena);
    parser->magic = 0;
    tierce__free(parser);
}

void tierce__resp_parser_reset(struct tierce__resp_parser *parser)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    if (parser->arena.capacity > ARENA_BYTES_KEPT)
        tierce__arena_clear(&parser->arena);
    else
        tierce__arena_reset(&parser->arena);
    parser->depth = 0;
    parser->in_bulk = false;
    parser->has_into = false;
}

void tierce__resp_parser_into(struct tierce__resp_parser *parser, void *memory, size_t capacity)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    TIERCE_ASSERT(parser->depth == 0 && !parser->in_bulk);
    parser->has_into = true;
    parser->into = memory;
    parser->into_capacity = capacity;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* A decimal number that is the whole of the text. */
static bool to_integer(int64_t *out, const char *text, size_t length)
{
    bool negative = length > 0 && (*text == '-' || *text == '+');
    uint64_t value = 0;
    size_t i = negative;
    negative = negative && *text == '-';
    if (i == length)
        return false;
    for (; i < length; i++) {
        unsigned digit = (unsigned char)text[i] - (unsigned)'0';
        if (digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return false;
    }
    if (value > (uint64_t)INT64_MAX + (negative ? 1 : 0))
        return false;
    *out = (int64_t)(negative ? -value : value);
    return true;
}

static int no_memory(const struct tierce__resp_parser *parser)
{
    return parser->arena.status;
}

/* Whether a line is a whole value or the head of one. */
enum step { WHOLE = 1, HEAD = 0 };

static int keep_line(struct tierce__resp_parser *parser, const char *text, size_t length,
                     struct tierce__resp_value *out)
{
    char *copy = tierce__arena_alloc(&parser->arena, length + 1);
    if (copy == NULL)
        return no_memory(parser);
    memcpy(copy, text, length);
    copy[length] = '\0';
    out->text = copy;
    out->bytes = length;
    return WHOLE;
}

static int begin_bulk(struct tierce__resp_parser *parser, int64_t length,
                      struct tierce__resp_value *out)
{
    TIERCE_DASSERT(!parser->in_bulk);
    out->type = TIERCE__RESP_NIL;
    if (length == -1)
        return WHOLE;
    if (length < 0)
        return TIERCE_E_FORMAT;
    if ((uint64_t)length > parser->bulk_bytes_max)
        return TIERCE_E_LIMIT;
    bool into = parser->has_into && parser->depth == 0;
    parser->bulk_bytes = (size_t)length;
    parser->bulk_filled = 0;
    parser->bulk_kept =
        into && parser->into_capacity < (size_t)length ? parser->into_capacity : (size_t)length;
    parser->bulk = into ? parser->into : tierce__arena_alloc(&parser->arena, (size_t)length + 1);
    if (parser->bulk == NULL && !into)
        return no_memory(parser);
    parser->in_bulk = true;
    TIERCE_DASSERT(parser->bulk_kept <= parser->bulk_bytes);
    return HEAD;
}

static int begin_array(struct tierce__resp_parser *parser, int64_t length,
                       struct tierce__resp_value *out)
{
    TIERCE_DASSERT(!parser->in_bulk);
    out->type = length == -1 ? TIERCE__RESP_NIL : TIERCE__RESP_ARRAY;
    if (length == -1 || length == 0)
        return WHOLE;
    if (length < 0)
        return TIERCE_E_FORMAT;
    if (parser->depth == TIERCE__RESP_DEPTH_MAX)
        return TIERCE_E_LIMIT;
    parser->levels[parser->depth++] = (struct level){.wanted = (size_t)length};
    return HEAD;
}

/* A line without its end. */
static int take_line(struct tierce__resp_parser *parser, const char *line, size_t length,
                     struct tierce__resp_value *out)
{
    int64_t number;
    *out = (struct tierce__resp_value){.type = TIERCE__RESP_STRING};
    if (length == 0)
        return TIERCE_E_FORMAT;
    char kind = *line++;
    length--;
    if (kind == '+')
        return keep_line(parser, line, length, out);
    if (kind == '-') {
        out->type = TIERCE__RESP_ERROR;
        return keep_line(parser, line, length, out);
    }
    if ((kind != ':' && kind != '$' && kind != '*') || !to_integer(&number, line, length))
        return TIERCE_E_FORMAT;
    if (kind == '$')
        return begin_bulk(parser, number, out);
    if (kind == '*')
        return begin_array(parser, number, out);
    out->type = TIERCE__RESP_INTEGER;
    out->integer = number;
    return WHOLE;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Memory grows with the items that came, not with those that were announced. */
static int add_item(struct tierce__resp_parser *parser, struct level *level,
                    const struct tierce__resp_value *value)
{
    if (level->count == level->size) {
        size_t size = level->size > 0 ? 2 * level->size : ITEMS_FIRST;
        if (size > level->wanted)
            size = level->wanted;
        struct tierce__resp_value *items =
            size < SIZE_MAX / sizeof(*items)
                ? tierce__arena_alloc(&parser->arena, size * sizeof(*items))
                : NULL;
        if (items == NULL)
            return parser->arena.status != 0 ? no_memory(parser) : TIERCE_E_LIMIT;
        if (level->count > 0)
            memcpy(items, level->items, level->count * sizeof(*items));
        level->items = items;
        level->size = size;
    }
    TIERCE_DASSERT(level->count < level->size);
    TIERCE_DASSERT(level->size <= level->wanted);
    level->items[level->count++] = *value;
    return 0;
}

/* Puts a whole value where it belongs. Returns 1 if that completes the reply. */
static int put_value(struct tierce__resp_parser *parser, struct tierce__resp_value *value)
{
    while (parser->depth > 0) {
        struct level *level = &parser->levels[parser->depth - 1];
        TIERCE_DASSERT(level->count < level->wanted);
        int rc = add_item(parser, level, value);
        if (rc != 0)
            return rc;
        if (level->count < level->wanted)
            return 0;
        *value = (struct tierce__resp_value){
            .type = TIERCE__RESP_ARRAY, .items = level->items, .count = level->count};
        parser->depth--;
    }
    parser->has_into = false;
    return 1;
}

/* Takes the bytes of a bulk string and the line end behind it, which must be there as a whole.
 * Returns 1 when it has it. */
static int take_bulk(struct tierce__resp_parser *parser, const char *bytes, size_t count,
                     size_t *used, struct tierce__resp_value *out)
{
    TIERCE_DASSERT(parser->in_bulk && parser->bulk_filled <= parser->bulk_bytes);
    size_t left = parser->bulk_bytes - parser->bulk_filled;
    size_t n = count < left ? count : left;
    size_t kept_left =
        parser->bulk_filled < parser->bulk_kept ? parser->bulk_kept - parser->bulk_filled : 0;
    size_t kept = n < kept_left ? n : kept_left;
    if (kept > 0)
        memcpy(parser->bulk + parser->bulk_filled, bytes, kept);
    parser->bulk_filled += n;
    *used = n;
    if (n < left || count - n < 2)
        return 0;
    if (bytes[n] != '\r' || bytes[n + 1] != '\n')
        return TIERCE_E_FORMAT;
    *used = n + 2;
    parser->in_bulk = false;
    TIERCE_DASSERT(parser->bulk_filled == parser->bulk_bytes);
    bool into = parser->has_into && parser->depth == 0;
    *out = (struct tierce__resp_value){.type = TIERCE__RESP_STRING,
                                       .text = into ? NULL : parser->bulk,
                                       .bytes = parser->bulk_bytes};
    if (!into)
        parser->bulk[parser->bulk_bytes] = '\0';
    return WHOLE;
}

/* One line or one bulk string. Returns 1 with a value, 0 without; *used 0: more is needed. */
static int take_step(struct tierce__resp_parser *parser, const char *bytes, size_t count,
                     size_t *used, struct tierce__resp_value *out)
{
    if (parser->in_bulk)
        return take_bulk(parser, bytes, count, used, out);
    *used = 0;
    size_t seen = count < TIERCE__RESP_LINE_BYTES_MAX ? count : TIERCE__RESP_LINE_BYTES_MAX;
    const char *end = count > 0 ? memchr(bytes, '\n', seen) : NULL;
    if (end == NULL)
        return count < TIERCE__RESP_LINE_BYTES_MAX ? 0 : TIERCE_E_LIMIT;
    if (end == bytes || end[-1] != '\r')
        return TIERCE_E_FORMAT;
    *used = (size_t)(end + 1 - bytes);
    return take_line(parser, bytes, *used - 2, out);
}

int tierce__resp_parser_feed(struct tierce__resp_parser *parser, const char *bytes, size_t count,
                             size_t *used, struct tierce__resp_value *out)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    *used = 0;
    TIERCE_DASSERT(parser->depth <= TIERCE__RESP_DEPTH_MAX);
    for (;;) {
        struct tierce__resp_value value;
        size_t step;
        int rc = take_step(parser, bytes + *used, count - *used, &step, &value);
        if (rc < 0)
            return rc;
        TIERCE_DASSERT(step <= count - *used);
        *used += step;
        if (rc == WHOLE) {
            rc = put_value(parser, &value);
            if (rc == 1)
                *out = value;
            if (rc != 0)
                return rc;
        } else if (step == 0) {
            return 0;
        }
    }
}

char *tierce__resp_parser_room(struct tierce__resp_parser *parser, size_t *bytes)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    if (!parser->in_bulk || parser->bulk_filled >= parser->bulk_kept)
        return NULL;
    *bytes = parser->bulk_kept - parser->bulk_filled;
    return parser->bulk + parser->bulk_filled;
}

void tierce__resp_parser_filled(struct tierce__resp_parser *parser, size_t bytes)
{
    TIERCE_ASSERT(parser->in_bulk && bytes <= parser->bulk_kept - parser->bulk_filled);
    parser->bulk_filled += bytes;
}
