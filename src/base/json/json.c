/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json.h"
#include "base/assert.h"

#include <string.h>

void tierce__json_start(struct tierce__json *json, const char *text, size_t length)
{
    json->at = json->start = text;
    json->end = text + length;
    json->why = NULL;
    json->column = 0;
    json->depth = 0;
    json->takes_nan = false;
}

bool tierce__json_fail(struct tierce__json *json, const char *why)
{
    if (json->why == NULL) {
        json->why = why;
        json->column = (size_t)(json->at - json->start) + 1;
    }
    /* Nothing more is found. */
    json->at = json->end;
    return false;
}

static inline void skip_space(struct tierce__json *json)
{
    while (json->at < json->end &&
           (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
}

/* Takes one character after white space. */
static inline bool take(struct tierce__json *json, char wanted)
{
    skip_space(json);
    if (json->at == json->end || *json->at != wanted)
        return false;
    json->at++;
    return true;
}

static bool open_nested(struct tierce__json *json, char bracket, const char *why)
{
    if (!take(json, bracket))
        return tierce__json_fail(json, why);
    if (++json->depth > TIERCE__JSON_DEPTH_MAX)
        return tierce__json_fail(json, "is nested more than 64 deep");
    return true;
}

bool tierce__json_object(struct tierce__json *json)
{
    return open_nested(json, '{', "is not an object");
}

bool tierce__json_array(struct tierce__json *json)
{
    return open_nested(json, '[', "is not an array");
}

/* Whether another item comes before the closing bracket. No value ends with an opening bracket, so
 * an opening bracket before the cursor means that there was no value yet. */
static inline bool next_item(struct tierce__json *json, char open, char close)
{
    if (json->why != NULL)
        return false;
    TIERCE_DASSERT(json->depth > 0 && json->at > json->start);
    bool first = json->at[-1] == open;
    if (take(json, close)) {
        json->depth--;
        return false;
    }
    if (!first && !take(json, ','))
        return tierce__json_fail(json, json->at == json->end ? "the line ends too early"
                                                             : "a comma is missing");
    return true;
}

bool tierce__json_element(struct tierce__json *json)
{
    return next_item(json, '[', ']');
}

/* How many bytes from `at` on are neither a quote, a backslash nor a control character, looked at
 * eight at a time; the first eight behind the text hold a line end. */
static inline size_t plain_length(const char *at)
{
    const uint64_t ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
    const char *start = at;
    for (;; at += 8) {
        uint64_t word, quote, slash, found;
        memcpy(&word, at, 8);
        quote = word ^ ones * '"';
        slash = word ^ ones * '\\';
        /* The lowest byte that is found is one; those above it may be none. */
        found = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) |
                 ((word - ones * 0x20) & ~word)) &
                tops;
        if (found != 0)
            return (size_t)(at - start) + (unsigned)__builtin_ctzll(found) / 8;
    }
}

bool tierce__json_quoted(struct tierce__json *json, struct tierce__text *out, bool *escaped)
{
    *escaped = false;
    *out = (struct tierce__text){"", 0};
    if (!take(json, '"'))
        return tierce__json_fail(json, "is not a string");
    const char *at = json->at;
    for (;;) {
        at += plain_length(at);
        if (at >= json->end)
            return tierce__json_fail(json, "a string is not terminated");
        if (*at == '"')
            break;
        if (*at != '\\') {
            json->at = at;
            return tierce__json_fail(json, "a string holds a control character");
        }
        *escaped = true;
        /* All further characters, except the line end, are part of the text. */
        at += at + 1 < json->end ? 2 : 1;
    }
    TIERCE_DASSERT(json->at <= at && at < json->end);
    *out = (struct tierce__text){json->at, (size_t)(at - json->at)};
    json->at = at + 1;
    return true;
}

/* ---- escapes -------------------------------------------------------------------------------- */

/* Four hex digits, or -1. */
static int32_t hex4(const char *at, const char *end)
{
    int32_t value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t put_utf8(char out[4], uint32_t code)
{
    TIERCE_DASSERT(code <= 0x10ffff);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* The character of \uXXXX at *at behind the u, of a pair of them if need be; -1 if it is none. */
static int32_t take_unicode(const char **at, const char *end)
{
    int32_t code = hex4(*at, end);
    if (code < 0 || (code >= 0xdc00 && code < 0xe000))
        return -1;
    *at += 4;
    if (code < 0xd800 || code >= 0xe000)
        return code;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
        return -1;
    int32_t low = hex4(*at + 2, end);
    if (low < 0xdc00 || low >= 0xe000)
        return -1;
    *at += 6;
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

/* The bytes of an escape at *at behind the backslash; 0 if it is none. */
static size_t take_escape(const char **at, const char *end, char out[4])
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (*at == end)
        return 0;
    char c = *(*at)++;
    if (c == 'u') {
        int32_t code = take_unicode(at, end);
        return code < 0 ? 0 : put_utf8(out, (uint32_t)code);
    }
    const char *found = memchr(names, c, sizeof(names) - 1);
    if (found == NULL)
        return 0;
    out[0] = values[found - names];
    return 1;
}

enum { TOO_LONG = -1, NO_ESCAPE = -2 };

/* Writes `text` without its escapes; the bytes it has, TOO_LONG or NO_ESCAPE. With `size` 0 it
 * only looks whether the escapes are such. */
static ptrdiff_t unescape(char *out, size_t size, struct tierce__text text)
{
    const char *at = text.at, *end = text.at + text.length;
    size_t used = 0;
    while (at < end) {
        char bytes[4];
        size_t n = 1;
        bytes[0] = *at++;
        if (bytes[0] == '\\')
            n = take_escape(&at, end, bytes);
        if (n == 0)
            return NO_ESCAPE;
        if (size == 0)
            continue;
        if (n > size - used)
            return TOO_LONG;
        memcpy(out + used, bytes, n);
        used += n;
    }
    TIERCE_DASSERT(size == 0 || used <= size);
    return (ptrdiff_t)used;
}

/* ---- values --------------------------------------------------------------------------------- */

bool tierce__json_member(struct tierce__json *json, struct tierce__text *name)
{
    bool escaped = false;
    if (!next_item(json, '{', '}') || !tierce__json_quoted(json, name, &escaped))
        return false;
    if (escaped) {
        ptrdiff_t length = unescape(json->name, sizeof(json->name), *name);
        if (length == TOO_LONG)
            length = unescape(NULL, 0, *name);
        else if (length >= 0)
            *name = (struct tierce__text){json->name, (size_t)length};
        if (length < 0)
            return tierce__json_fail(json, "a string has an invalid escape");
    }
    if (!take(json, ':'))
        return tierce__json_fail(json, "a colon is missing");
    return true;
}

bool tierce__json_plain(struct tierce__json *json, struct tierce__text *out)
{
    bool escaped;
    if (!tierce__json_quoted(json, out, &escaped))
        return false;
    return escaped ? tierce__json_fail(json, "has an escape") : true;
}

bool tierce__json_unescape(struct tierce__json *json, char *out, size_t *length,
                           struct tierce__text raw)
{
    if (raw.length == 0) {
        *length = 0;
        return true;
    }
    ptrdiff_t used = unescape(out, raw.length, raw);
    if (used < 0)
        return tierce__json_fail(json, "a string has an invalid escape");
    *length = (size_t)used;
    return true;
}

bool tierce__json_text(struct tierce__json *json, char *out, size_t size, size_t *length)
{
    struct tierce__text raw;
    bool escaped;
    TIERCE_DASSERT(size > 0);
    if (!tierce__json_quoted(json, &raw, &escaped))
        return false;
    ptrdiff_t used = unescape(out, size - 1, raw);
    if (used == NO_ESCAPE)
        return tierce__json_fail(json, "a string has an invalid escape");
    if (used == TOO_LONG)
        return tierce__json_fail(json, "is too long a string");
    if (memchr(out, '\0', (size_t)used) != NULL)
        return tierce__json_fail(json, "a string holds a NUL byte");
    out[used] = '\0';
    *length = (size_t)used;
    return true;
}

static inline bool is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* The digits of an integer, with its sign in *negative. */
static inline bool take_integer(struct tierce__json *json, uint64_t *out, bool *negative)
{
    skip_space(json);
    const char *at = json->at;
    *negative = *at == '-';
    at += *negative;
    if (!is_digit(*at))
        return tierce__json_fail(json, "is not a number");
    if (*at == '0' && is_digit(at[1]))
        return tierce__json_fail(json, "a number begins with 0");
    if (!tierce__digits(&at, out))
        return tierce__json_fail(json, "does not fit 64 bits");
    if (*at == '.' || *at == 'e' || *at == 'E')
        return tierce__json_fail(json, "is not an integer");
    json->at = at;
    return true;
}

bool tierce__json_id(struct tierce__json *json, uint64_t *out)
{
    bool negative;
    if (!take_integer(json, out, &negative))
        return false;
    if (negative && *out > 1ULL << 63)
        return tierce__json_fail(json, "does not fit 64 bits");
    if (negative)
        *out = -*out;
    return true;
}

/* Takes further numbers of an array, in a loop without calls: those of up to seven digits, with at
 * most one space before each. Returns how many. */
static size_t take_short_numbers(struct tierce__json *json, uint64_t *out, size_t room)
{
    const char *at = json->at;
    unsigned guess = 0;
    size_t count = 0;
    while (count < room && *at == ',') {
        const char *first = at[1] == ' ' ? at + 2 : at + 1;
        unsigned digits = tierce__digits8(first, &out[count]);
        /* Neighbours mostly have as many digits. A guess that the processor sees as a branch lets
         * it begin the next number before this one is counted: 1.17x on bench/optimize, 2026-11. */
        if (digits != guess) {
            guess = digits;
            __asm__ volatile("" : "+r"(guess));
        }
        if (guess - 1 > 6 || (guess > 1 && *first == '0') ||
            (first[guess] != ',' && first[guess] != ']'))
            break;
        at = first + guess;
        count++;
    }
    json->at = at;
    TIERCE_DASSERT(count <= room);
    return count;
}

size_t tierce__json_ids(struct tierce__json *json, uint64_t *out, size_t room)
{
    if (room == 0 || !tierce__json_id(json, &out[0]))
        return 0;
    return 1 + take_short_numbers(json, out + 1, room - 1); /* other forms: the next call */
}

bool tierce__json_u64(struct tierce__json *json, uint64_t *out)
{
    bool negative;
    if (!take_integer(json, out, &negative))
        return false;
    return negative && *out != 0 ? tierce__json_fail(json, "is negative") : true;
}

bool tierce__json_i64(struct tierce__json *json, int64_t *out)
{
    uint64_t value;
    bool negative;
    if (!take_integer(json, &value, &negative))
        return false;
    if (value > (uint64_t)INT64_MAX + (negative ? 1 : 0))
        return tierce__json_fail(json, "does not fit 64 bits");
    *out = (int64_t)(negative ? -value : value);
    return true;
}

/* A number as mantissa * 10^exponent, of which the digits beyond the 19th are dropped. */
struct json_decimal {
    bool negative;
    uint64_t mantissa;
    int64_t exponent;
};

#define MANTISSA_FULL 1000000000000000000ULL /* ten times this still fits */

/* Digits from `at` on; in a fraction each is worth a tenth of the one before. */
static const char *take_digits(const char *at, struct json_decimal *number, bool fraction)
{
    for (; is_digit(*at); at++) {
        bool kept = number->mantissa < MANTISSA_FULL;
        if (kept)
            number->mantissa = number->mantissa * 10 + (uint64_t)(*at - '0');
        number->exponent += kept ? -(int64_t)fraction : !fraction;
    }
    return at;
}

/* An exponent behind its e; beyond 10,000 all are the same. */
static const char *take_exponent(const char *at, int64_t *out)
{
    bool negative = *at == '-';
    if (*at == '-' || *at == '+')
        at++;
    if (!is_digit(*at))
        return NULL;
    int64_t value = 0;
    for (; is_digit(*at); at++)
        value = value < 10000 ? value * 10 + (*at - '0') : value;
    *out += negative ? -value : value;
    return at;
}

static bool take_decimal(struct tierce__json *json, struct json_decimal *number)
{
    skip_space(json);
    const char *at = json->at;
    *number = (struct json_decimal){.negative = *at == '-'};
    at += number->negative;
    if (!is_digit(*at))
        return tierce__json_fail(json, "is not a number");
    if (*at == '0' && is_digit(at[1]))
        return tierce__json_fail(json, "a number begins with 0");
    at = take_digits(at, number, false);
    if (*at == '.') {
        if (!is_digit(*++at))
            return tierce__json_fail(json, "a number ends with its decimal point");
        at = take_digits(at, number, true);
    }
    if (*at == 'e' || *at == 'E') {
        at = take_exponent(at + 1, &number->exponent);
        if (at == NULL)
            return tierce__json_fail(json, "a number has no digits after its e");
    }
    json->at = at;
    return true;
}

bool tierce__json_number(struct tierce__json *json, struct tierce__text *out)
{
    struct json_decimal number;
    *out = (struct tierce__text){"", 0};
    skip_space(json);
    out->at = json->at;
    if (!take_decimal(json, &number))
        return false;
    out->length = (size_t)(json->at - out->at);
    return true;
}

/* A non-negative integer, as most times are; false, and nothing consumed, for anything else. */
static bool take_plain_integer(struct tierce__json *json, uint64_t *out)
{
    skip_space(json);
    const char *at = json->at;
    if (!is_digit(*at) || (*at == '0' && is_digit(at[1])) || !tierce__digits(&at, out) ||
        *at == '.' || (*at | 0x20) == 'e')
        return false;
    json->at = at;
    return true;
}

bool tierce__json_scaled(struct tierce__json *json, int64_t *out, int scale)
{
    static const uint32_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000};
    struct json_decimal number;
    uint64_t plain;
    TIERCE_DASSERT(scale >= 0 && (size_t)scale < sizeof(powers) / sizeof(*powers));
    if (take_plain_integer(json, &plain)) {
        if (__builtin_mul_overflow(plain, powers[scale], &plain) || plain > INT64_MAX)
            return tierce__json_fail(json, "is too large a number");
        *out = (int64_t)plain;
        return true;
    }
    if (!take_decimal(json, &number))
        return false;
    uint64_t value = number.mantissa;
    int64_t exponent = number.exponent + scale;
    for (; exponent > 0 && value != 0; exponent--) {
        if (__builtin_mul_overflow(value, 10, &value))
            return tierce__json_fail(json, "is too large a number");
    }
    uint64_t last = 0; /* the digit that was dropped last rounds */
    for (; exponent < 0 && (value != 0 || last != 0); exponent++) {
        last = value % 10;
        value /= 10;
    }
    value += last >= 5;
    if (value > INT64_MAX)
        return tierce__json_fail(json, "is too large a number");
    *out = number.negative ? -(int64_t)value : (int64_t)value;
    return true;
}

static bool take_word(struct tierce__json *json, const char *word)
{
    size_t length = strlen(word);
    skip_space(json);
    if ((size_t)(json->end - json->at) < length || memcmp(json->at, word, length) != 0)
        return false;
    json->at += length;
    return true;
}

bool tierce__json_bool(struct tierce__json *json, bool *out)
{
    *out = take_word(json, "true");
    return *out || take_word(json, "false") || tierce__json_fail(json, "is not true or false");
}

char tierce__json_kind(struct tierce__json *json)
{
    skip_space(json);
    if (json->at == json->end)
        return 0;
    char c = *json->at;
    if (c == '-' || is_digit(c))
        return '0';
    return memchr("{[\"tfn", c, 6) != NULL ? c : 0;
}

/* Nested at most TIERCE__JSON_DEPTH_MAX deep. */
static bool skip_nested(struct tierce__json *json, char kind)
{
    struct tierce__text name;
    if (kind == '{') {
        if (!tierce__json_object(json))
            return false;
        while (tierce__json_member(json, &name) && tierce__json_skip(json))
            continue;
    } else {
        if (!tierce__json_array(json))
            return false;
        uint64_t few[16];
        while (tierce__json_element(json) && tierce__json_skip(json))
            while (is_digit(json->at[-1]) && take_short_numbers(json, few, 16) == 16)
                continue;
    }
    return json->why == NULL;
}

static bool take_nan(struct tierce__json *json)
{
    return json->takes_nan &&
           (take_word(json, "NaN") || take_word(json, "Infinity") || take_word(json, "-Infinity"));
}

bool tierce__json_skip(struct tierce__json *json)
{
    struct tierce__text text;
    struct json_decimal number;
    bool ignored;
    char kind = tierce__json_kind(json);
    switch (kind) {
    case '{':
    case '[':
        return skip_nested(json, kind);
    case '"':
        if (!tierce__json_quoted(json, &text, &ignored))
            return false;
        return !ignored || unescape(NULL, 0, text) >= 0 ||
               tierce__json_fail(json, "a string has an invalid escape");
    case '0':
        return take_nan(json) || take_decimal(json, &number);
    case 'n':
        return take_word(json, "null") || tierce__json_fail(json, "is not a JSON value");
    case 't':
    case 'f':
        return tierce__json_bool(json, &ignored);
    default:
        return take_nan(json) ||
               tierce__json_fail(json, json->at == json->end ? "the line ends too early"
                                                             : "is not a JSON value");
    }
}

bool tierce__json_end(struct tierce__json *json)
{
    if (json->why != NULL)
        return false;
    skip_space(json);
    return json->at == json->end || tierce__json_fail(json, "there is text after the end");
}
