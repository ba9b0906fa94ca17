/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/resp/resp_request.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define PARSER_MAGIC     0x52e9a5f3u
#define HEAD_BYTES_MAX   32u /* "*1024\r\n" */
#define INLINE_BYTES_MAX 65536u
#define TEXT_BYTES_FIRST 256u
#define ARGS_FIRST       8u
#define TEXT_BYTES_KEPT  16384u /* a larger buffer goes after its request */
#define ARGS_KEPT        256u   /* and so do more arguments */

enum state {
    BEGIN,       /* the first byte of a request */
    COUNT,       /* "*3" */
    LENGTH,      /* "$5" */
    BULK,        /* the bytes of an argument, kept */
    LARGE,       /* the bytes of the large one */
    BULK_END,    /* the line end behind either */
    INLINE_LINE, /* a line without '*' */
    BROKEN,
};

struct resp_request_span {
    size_t at, bytes;
    bool is_large;
};

struct tierce__resp_request_parser {
    uint32_t magic;
    enum state state;
    struct tierce__resp_request_limits limits;
    const char *error;

    char head[HEAD_BYTES_MAX]; /* a line that has begun */
    size_t head_bytes;

    char *text; /* of all arguments, a NUL behind each; or the inline line */
    size_t text_bytes, text_room;
    struct resp_request_span *spans;
    struct tierce__resp_arg *args; /* made of spans when all are there */
    size_t count, room, wanted;
    bool has_ended; /* the request was returned: the next feed discards it */

    size_t end_bytes; /* of BULK_END that have come */
    uint64_t left;    /* of BULK and LARGE */
    bool has_large, awaits_into;
    char *into;
    uint64_t large_bytes;
};

struct tierce__resp_request_parser *
tierce__resp_request_create(const struct tierce__resp_request_limits *limits)
{
    struct tierce__resp_request_parser *parser = tierce__calloc(1, sizeof(*parser));
    if (parser == NULL)
        return NULL;
    parser->magic = PARSER_MAGIC;
    parser->limits = *limits;
    return parser;
}

void tierce__resp_request_destroy(struct tierce__resp_request_parser *parser)
{
    if (parser == NULL)
        return;
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    tierce__free(parser->text);
    tierce__free(parser->spans);
    tierce__free(parser->args);
    parser->magic = 0;
    tierce__free(parser);
}

void tierce__resp_request_limit(struct tierce__resp_request_parser *parser,
                                const struct tierce__resp_request_limits *limits)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    parser->limits = *limits;
}

const char *tierce__resp_request_error(const struct tierce__resp_request_parser *parser)
{
    return parser->error != NULL ? parser->error : "Protocol error";
}

static int broken(struct tierce__resp_request_parser *parser, int rc, const char *error)
{
    TIERCE_DASSERT(rc < 0);
    parser->state = BROKEN;
    parser->error = error;
    return rc;
}

static int no_memory(struct tierce__resp_request_parser *parser)
{
    return broken(parser, -ENOMEM, "no memory");
}

static void forget_request(struct tierce__resp_request_parser *parser)
{
    TIERCE_DASSERT(!parser->awaits_into);
    if (parser->text_room > TEXT_BYTES_KEPT) {
        tierce__free(parser->text);
        parser->text = NULL;
        parser->text_room = 0;
    }
    if (parser->room > ARGS_KEPT) {
        tierce__free(parser->spans);
        tierce__free(parser->args);
        parser->spans = NULL;
        parser->args = NULL;
        parser->room = 0;
    }
    parser->state = BEGIN;
    parser->text_bytes = parser->count = parser->wanted = 0;
    parser->has_ended = parser->has_large = false;
}

/* ---- kept requests --------------------------------------------------------------------------- */

static bool make_text_room(struct tierce__resp_request_parser *parser, size_t bytes)
{
    TIERCE_DASSERT(parser->text_bytes <= parser->text_room);
    return TIERCE__GROW(parser->text, parser->text_room, parser->text_bytes + bytes,
                        TEXT_BYTES_FIRST) == 0;
}

static int keep(struct tierce__resp_request_parser *parser, const char *bytes, size_t count)
{
    if (!make_text_room(parser, count))
        return no_memory(parser);
    TIERCE_DASSERT(count <= parser->text_room - parser->text_bytes);
    if (count > 0)
        memcpy(parser->text + parser->text_bytes, bytes, count);
    parser->text_bytes += count;
    return 0;
}

/* One more argument, which begins where the text ends. */
static int add_span(struct tierce__resp_request_parser *parser, size_t bytes, bool is_large)
{
    size_t room = parser->room; /* of both arrays, once both have grown */
    if (TIERCE__GROW(parser->spans, room, parser->count + 1, ARGS_FIRST) < 0 ||
        TIERCE__GROW(parser->args, parser->room, parser->count + 1, ARGS_FIRST) < 0)
        return no_memory(parser);
    TIERCE_DASSERT(parser->count < parser->room);
    parser->spans[parser->count++] =
        (struct resp_request_span){.at = parser->text_bytes, .bytes = bytes, .is_large = is_large};
    return 0;
}

static void tell(struct tierce__resp_request_parser *parser, struct tierce__resp_request *out)
{
    TIERCE_DASSERT(parser->count <= parser->room);
    for (size_t i = 0; i < parser->count; i++) {
        const struct resp_request_span *span = &parser->spans[i];
        parser->args[i] = (struct tierce__resp_arg){
            .text = span->is_large ? NULL : parser->text + span->at, .bytes = span->bytes};
    }
    *out = (struct tierce__resp_request){.args = parser->args, .count = parser->count};
}

static int end_request(struct tierce__resp_request_parser *parser, struct tierce__resp_request *out)
{
    TIERCE_DASSERT(parser->count > 0 && !parser->has_ended);
    TIERCE_DASSERT(parser->wanted == 0 || parser->count == parser->wanted);
    tell(parser, out);
    parser->has_ended = true;
    parser->state = BEGIN;
    return TIERCE__RESP_REQUEST_WHOLE;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* "-1", "42": the whole of the text. */
static bool to_integer(int64_t *out, const char *text, size_t bytes)
{
    bool is_negative = bytes > 0 && text[0] == '-';
    int64_t value = 0;
    if (bytes == (is_negative ? 1 : 0) || bytes > 19)
        return false;
    for (size_t i = is_negative; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, text[i] - '0', &value))
            return false;
    }
    *out = is_negative ? -value : value;
    return true;
}

/* The rest of a line, up to and without its end, gathered in `head`. Returns 1 when it is whole. */
static int take_line(struct tierce__resp_request_parser *parser, const char *bytes, size_t count,
                     size_t *used)
{
    TIERCE_DASSERT(parser->head_bytes <= HEAD_BYTES_MAX);
    const char *end = memchr(bytes, '\n', count);
    size_t n = end != NULL ? (size_t)(end - bytes) : count;
    if (n > HEAD_BYTES_MAX - parser->head_bytes)
        return broken(parser, TIERCE_E_FORMAT,
                      parser->state == COUNT ? "Protocol error: invalid multibulk length"
                                             : "Protocol error: invalid bulk length");
    memcpy(parser->head + parser->head_bytes, bytes, n);
    parser->head_bytes += n;
    *used = n;
    if (end == NULL)
        return 0;
    *used = n + 1;
    if (parser->head_bytes > 0 && parser->head[parser->head_bytes - 1] == '\r')
        parser->head_bytes--;
    return 1;
}

static int take_count(struct tierce__resp_request_parser *parser)
{
    TIERCE_DASSERT(parser->head_bytes > 0 && parser->head[0] == '*');
    TIERCE_DASSERT(parser->state == COUNT);
    int64_t count;
    if (!to_integer(&count, parser->head + 1, parser->head_bytes - 1))
        return broken(parser, TIERCE_E_FORMAT, "Protocol error: invalid multibulk length");
    if (count > 0 && (uint64_t)count > parser->limits.args_max)
        return broken(parser, TIERCE_E_LIMIT, "Protocol error: invalid multibulk length");
    parser->wanted = count > 0 ? (size_t)count : 0; /* a count of 0 is not a request, as in Redis */
    parser->state = count > 0 ? LENGTH : BEGIN;
    return TIERCE__RESP_REQUEST_MORE;
}

static int begin_large(struct tierce__resp_request_parser *parser, uint64_t bytes,
                       struct tierce__resp_request *out)
{
    TIERCE_DASSERT(!parser->has_large);
    TIERCE_DASSERT(parser->state == LENGTH);
    if (bytes > parser->limits.large_bytes_max)
        return broken(parser, TIERCE_E_LIMIT, "Protocol error: invalid bulk length");
    tell(parser, out);
    out->large = parser->count;
    out->large_bytes = bytes;
    parser->has_large = parser->awaits_into = true;
    parser->into = NULL;
    parser->large_bytes = parser->left = bytes;
    parser->state = LARGE;
    int rc = add_span(parser, (size_t)bytes, true);
    out->args = parser->args; /* which may have moved */
    return rc < 0 ? rc : TIERCE__RESP_REQUEST_LARGE;
}

static int take_length(struct tierce__resp_request_parser *parser, struct tierce__resp_request *out)
{
    TIERCE_DASSERT(parser->state == LENGTH && parser->count < parser->wanted);
    int64_t length;
    if (parser->head_bytes == 0 || parser->head[0] != '$')
        return broken(parser, TIERCE_E_FORMAT, "Protocol error: expected '$'");
    if (!to_integer(&length, parser->head + 1, parser->head_bytes - 1) || length < 0)
        return broken(parser, TIERCE_E_FORMAT, "Protocol error: invalid bulk length");
    if ((uint64_t)length >= parser->limits.large_bytes && !parser->has_large)
        return begin_large(parser, (uint64_t)length, out);
    if ((uint64_t)length > parser->limits.bytes_max ||
        parser->text_bytes > parser->limits.bytes_max - (size_t)length)
        return broken(parser, TIERCE_E_LIMIT, "Protocol error: too big request");
    parser->left = (uint64_t)length;
    parser->state = BULK;
    return add_span(parser, (size_t)length, false);
}

/* ---- bulk strings ---------------------------------------------------------------------------- */

static int take_bulk(struct tierce__resp_request_parser *parser, const char *bytes, size_t count,
                     size_t *used)
{
    TIERCE_DASSERT(parser->state == BULK || parser->state == LARGE);
    size_t n = count < parser->left ? count : (size_t)parser->left;
    *used = n;
    if (parser->state == LARGE && parser->into != NULL) {
        memcpy(parser->into, bytes, n);
        parser->into += n;
    }
    int rc = parser->state == BULK ? keep(parser, bytes, n) : 0;
    parser->left -= n;
    if (rc == 0 && parser->left == 0) {
        rc = parser->state == BULK ? keep(parser, "", 1) : 0;
        if (rc == 0)
            parser->state = BULK_END;
        parser->end_bytes = 0;
    }
    return rc;
}

static int take_bulk_end(struct tierce__resp_request_parser *parser, char byte,
                         struct tierce__resp_request *out)
{
    TIERCE_DASSERT(parser->end_bytes < 2);
    TIERCE_DASSERT(parser->state == BULK_END && parser->left == 0);
    if (byte != "\r\n"[parser->end_bytes])
        return broken(parser, TIERCE_E_FORMAT, "Protocol error: expected a line end");
    if (++parser->end_bytes < 2)
        return TIERCE__RESP_REQUEST_MORE;
    parser->head_bytes = 0;
    parser->state = LENGTH;
    return parser->count == parser->wanted ? end_request(parser, out) : TIERCE__RESP_REQUEST_MORE;
}

/* ---- inline commands ------------------------------------------------------------------------- */

static int from_escape(const char **at, const char *end)
{
    const char *p = *at + 1; /* behind the backslash */
    static const char from[] = "nrtba", to[] = "\n\r\t\b\a";
    if (end - p >= 3 && p[0] == 'x' && isxdigit((unsigned char)p[1]) &&
        isxdigit((unsigned char)p[2])) {
        int value = 0;
        for (int i = 1; i <= 2; i++) {
            int c = tolower((unsigned char)p[i]);
            value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
        }
        *at = p + 3;
        return value;
    }
    const char *found = strchr(from, *p);
    *at = p + 1;
    return (unsigned char)(*p != '\0' && found != NULL ? to[found - from] : *p);
}

/* One word at *at, quoted or not, written over the line at `to`, which is never ahead of it.
 * Returns its bytes, or -1: quotes that do not end, or no space behind them. */
static ptrdiff_t take_word(const char **at, const char *end, char *to)
{
    const char *p = *at;
    const char *begin = to;
    char quote = '\0';
    while (p < end && (quote != '\0' || !isspace((unsigned char)*p))) {
        if (quote == '"' && *p == '\\' && p + 1 < end) {
            *to++ = (char)from_escape(&p, end);
        } else if (quote == '\'' && *p == '\\' && p + 1 < end && p[1] == '\'') {
            *to++ = '\'';
            p += 2;
        } else if (quote != '\0' && *p == quote) {
            if (++p < end && !isspace((unsigned char)*p))
                return -1;
            quote = '\0';
            break;
        } else if (quote == '\0' && (*p == '"' || *p == '\'')) {
            quote = *p++;
        } else {
            *to++ = *p++;
        }
    }
    TIERCE_DASSERT(to <= p);
    *at = p;
    return quote == '\0' ? to - begin : -1;
}

/* The line lies in the text; its words are put over it, each with a NUL, which has room because a
 * word but the last has a space behind it, and the line its end. */
static int split_inline(struct tierce__resp_request_parser *parser,
                        struct tierce__resp_request *out)
{
    const char *at = parser->text, *end = parser->text + parser->text_bytes;
    size_t line_bytes = parser->text_bytes;
    parser->text_bytes = 0;
    TIERCE_DASSERT(parser->state == INLINE_LINE && parser->count == 0);
    for (;;) {
        while (at < end && isspace((unsigned char)*at))
            at++;
        if (at == end)
            break;
        char *to = parser->text + parser->text_bytes;
        ptrdiff_t bytes = take_word(&at, end, to);
        if (bytes < 0)
            return broken(parser, TIERCE_E_FORMAT, "Protocol error: unbalanced quotes in request");
        if (parser->count == parser->limits.args_max)
            return broken(parser, TIERCE_E_LIMIT, "Protocol error: too many arguments");
        int rc = add_span(parser, (size_t)bytes, false);
        if (rc < 0)
            return rc;
        to[bytes] = '\0';
        parser->text_bytes += (size_t)bytes + 1;
        TIERCE_ASSERT(parser->text_bytes <= line_bytes + 1);
        if (at < end)
            at++;
    }
    if (parser->count > 0)
        return end_request(parser, out);
    parser->state = BEGIN;
    return TIERCE__RESP_REQUEST_MORE;
}

static int take_inline(struct tierce__resp_request_parser *parser, const char *bytes, size_t count,
                       size_t *used, struct tierce__resp_request *out)
{
    size_t limit =
        parser->limits.bytes_max < INLINE_BYTES_MAX ? parser->limits.bytes_max : INLINE_BYTES_MAX;
    const char *end = memchr(bytes, '\n', count);
    size_t n = end != NULL ? (size_t)(end - bytes) : count;
    if (n > limit || parser->text_bytes > limit - n)
        return broken(parser, TIERCE_E_LIMIT, "Protocol error: too big inline request");
    int rc = keep(parser, bytes, n);
    if (rc == 0 && !make_text_room(parser, 1)) /* for the last word's NUL */
        rc = no_memory(parser);
    *used = end != NULL ? n + 1 : n;
    return rc == 0 && end != NULL ? split_inline(parser, out) : rc;
}

/* ---- feeding --------------------------------------------------------------------------------- */

static int begin_request(struct tierce__resp_request_parser *parser, char first)
{
    TIERCE_DASSERT(parser->state == BEGIN);
    forget_request(parser);
    parser->state = first == '*' ? COUNT : INLINE_LINE;
    parser->head_bytes = 0;
    return TIERCE__RESP_REQUEST_MORE;
}

static int take_head(struct tierce__resp_request_parser *parser, const char *bytes, size_t count,
                     size_t *used, struct tierce__resp_request *out)
{
    int rc = take_line(parser, bytes, count, used);
    if (rc <= 0)
        return rc;
    rc = parser->state == COUNT ? take_count(parser) : take_length(parser, out);
    parser->head_bytes = 0;
    return rc;
}

/* At least one byte, unless the state needs none. */
static int take_step(struct tierce__resp_request_parser *parser, const char *bytes, size_t count,
                     size_t *used, struct tierce__resp_request *out)
{
    *used = 0;
    switch (parser->state) {
    case BEGIN:
        return begin_request(parser, *bytes);
    case COUNT:
    case LENGTH:
        return take_head(parser, bytes, count, used, out);
    case BULK:
    case LARGE:
        return take_bulk(parser, bytes, count, used);
    case BULK_END:
        *used = 1;
        return take_bulk_end(parser, *bytes, out);
    case INLINE_LINE:
        return take_inline(parser, bytes, count, used, out);
    case BROKEN:
        break;
    }
    return TIERCE_E_FORMAT;
}

int tierce__resp_request_feed(struct tierce__resp_request_parser *parser, const char *bytes,
                              size_t count, size_t *used, struct tierce__resp_request *out)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    TIERCE_ASSERT(!parser->awaits_into);
    int rc = TIERCE__RESP_REQUEST_MORE;
    *used = 0;
    while (*used < count && rc == TIERCE__RESP_REQUEST_MORE) {
        size_t step;
        rc = take_step(parser, bytes + *used, count - *used, &step, out);
        TIERCE_DASSERT(step <= count - *used);
        *used += step;
    }
    return rc;
}

void tierce__resp_request_done(struct tierce__resp_request_parser *parser)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    if (parser->has_ended)
        forget_request(parser);
}

void tierce__resp_request_into(struct tierce__resp_request_parser *parser, void *memory)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    TIERCE_ASSERT(parser->awaits_into);
    TIERCE_DASSERT(parser->state == LARGE);
    parser->awaits_into = false;
    parser->into = memory;
    if (parser->left == 0)
        parser->state = BULK_END;
    parser->end_bytes = 0;
}

void tierce__resp_request_drop(struct tierce__resp_request_parser *parser)
{
    TIERCE_ASSERT(!parser->awaits_into);
    parser->into = NULL;
}

void *tierce__resp_request_room(struct tierce__resp_request_parser *parser, size_t *bytes)
{
    TIERCE_CHECK_MAGIC(parser, PARSER_MAGIC);
    if (parser->state != LARGE || parser->into == NULL)
        return NULL;
    *bytes = (size_t)parser->left;
    return parser->into;
}

void tierce__resp_request_filled(struct tierce__resp_request_parser *parser, size_t bytes)
{
    TIERCE_ASSERT(parser->state == LARGE && parser->into != NULL && bytes <= parser->left);
    parser->into += bytes;
    parser->left -= bytes;
    if (parser->left == 0) {
        parser->state = BULK_END;
        parser->end_bytes = 0;
    }
}

uint64_t tierce__resp_request_large_filled(const struct tierce__resp_request_parser *parser)
{
    TIERCE_DASSERT(parser->state != LARGE || parser->left <= parser->large_bytes);
    return parser->state == LARGE ? parser->large_bytes - parser->left : parser->large_bytes;
}

bool tierce__resp_request_is_within(const struct tierce__resp_request_parser *parser)
{
    return parser->state != BEGIN;
}
