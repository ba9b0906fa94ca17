/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_JSON_H
#define TIERCE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * JSON pulled from a text value by value: nothing is allocated, nothing is copied, and 64-bit
 * integers keep their exact value or are rejected.
 *
 *     tierce__json_start(&json, line, length);
 *     if (tierce__json_object(&json))
 *         while (tierce__json_member(&json, &name))
 *             ... one call that takes the value ...
 *     ok = tierce__json_end(&json);
 *
 * The first error is kept in `why`, and every later call returns false.
 *
 * TIERCE__JSON_SLACK bytes after the text must be readable, and the first of them is '\n' or NUL.
 */

#define TIERCE__JSON_SLACK     8u
#define TIERCE__JSON_DEPTH_MAX 64u
#define TIERCE__JSON_NAME_MAX  64u

/* A piece of the text; borrowed from it. */
struct tierce__text {
    const char *at;
    size_t length;
};

struct tierce__json {
    const char *at;
    const char *start, *end;
    const char *why; /* NULL: no error yet */
    size_t column;   /* of the error, from 1 */
    unsigned depth;
    bool takes_nan; /* tierce__json_skip accepts NaN, Infinity and -Infinity, as Python writes them
                     */
    char name[TIERCE__JSON_NAME_MAX]; /* of a member that is written with escapes */
};

void tierce__json_start(struct tierce__json *json, const char *text, size_t length);

/* Takes the opening brace of an object, or the bracket of an array. */
bool tierce__json_object(struct tierce__json *json);
bool tierce__json_array(struct tierce__json *json);

/* The name of the next member, borrowed until the next call; false after the last. The caller must
 * then take the member's value. A name with escapes that is longer than 64 bytes is returned
 * undecoded; such names do not occur. */
bool tierce__json_member(struct tierce__json *json, struct tierce__text *name);

/* Returns whether there is another element, which the caller must then read. */
bool tierce__json_element(struct tierce__json *json);

/* The first character of the next value: { [ " t f n, '0' for a number, 0 for anything else. */
char tierce__json_kind(struct tierce__json *json);

/* An integer. -2^63 .. 2^64 - 1; negative numbers are returned in two's complement. */
bool tierce__json_id(struct tierce__json *json, uint64_t *out);

/* Reads integers of an array, each as tierce__json_id does: the next one, and further ones up to
 * `room`. It may stop earlier. Returns their number; 0 if the next value is not an integer. */
size_t tierce__json_ids(struct tierce__json *json, uint64_t *out, size_t room);

/* An integer. 0 .. 2^64 - 1. */
bool tierce__json_u64(struct tierce__json *json, uint64_t *out);

/* An integer. -2^63 .. 2^63 - 1. */
bool tierce__json_i64(struct tierce__json *json, int64_t *out);

/* Any number times 10^scale (0 to 6), rounded to the nearest; rejected if it exceeds 64 bits. */
bool tierce__json_scaled(struct tierce__json *json, int64_t *out, int scale);

/* A text without its escapes and with a NUL; rejected if it is longer than size - 1 bytes or holds
 * a NUL itself. */
bool tierce__json_text(struct tierce__json *json, char *out, size_t size, size_t *length);

/* A number as it is written. */
bool tierce__json_number(struct tierce__json *json, struct tierce__text *out);

/* A text as it is written between the quotes, and whether it has escapes. */
bool tierce__json_quoted(struct tierce__json *json, struct tierce__text *out, bool *escaped);

/* Such a text with its escapes decoded, which never makes it longer; out may be raw.at. */
bool tierce__json_unescape(struct tierce__json *json, char *out, size_t *length,
                           struct tierce__text raw);

/* A text as it is written between the quotes; rejected if it has an escape. */
bool tierce__json_plain(struct tierce__json *json, struct tierce__text *out);

bool tierce__json_bool(struct tierce__json *json, bool *out);

/* Takes whatever comes. */
bool tierce__json_skip(struct tierce__json *json);

/* Whether there was no error and only white space is left. */
bool tierce__json_end(struct tierce__json *json);

/* Reports an error in the value that was just consumed, or comes next. Returns false. */
bool tierce__json_fail(struct tierce__json *json, const char *why);

/* Reads up to eight digits at `at` and returns how many there were; *out = their value, if there
 * was a digit. Eight bytes from `at` on must be readable. */
static inline unsigned tierce__digits8(const char *at, uint64_t *out)
{
    uint64_t word, over;
    __builtin_memcpy(&word, at, 8);
    /* Digits become 0 .. 9; for every other byte, the sum has the first bit of that byte set. */
    word ^= 0x3030303030303030ULL;
    over = ((word + 0x7676767676767676ULL) | word) & 0x8080808080808080ULL;
    unsigned digits = over == 0 ? 8 : (unsigned)__builtin_ctzll(over) / 8;
    /* Zeros before the digits, then pairs, fours and eights at once. */
    word <<= (64 - 8 * digits) & 63;
    word = (word * 10 + (word >> 8)) & 0x00ff00ff00ff00ffULL;
    word = (word * 100 + (word >> 16)) & 0x0000ffff0000ffffULL;
    *out = (word * 10000 + (word >> 32)) & 0x00000000ffffffffULL;
    return digits;
}

/*
 * Reads digits at *at, at least one, and moves *at past them; false if they do
 * not fit 64 bits. As above, repeated for each further eight digits.
 */
static inline bool tierce__digits(const char **at, uint64_t *out)
{
    static const uint32_t power[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    uint64_t value, part;
    unsigned digits = tierce__digits8(*at, &value);
    *at += digits;
    while (digits == 8) {
        digits = tierce__digits8(*at, &part);
        if (digits == 0)
            break;
        if (__builtin_mul_overflow(value, power[digits], &value) ||
            __builtin_add_overflow(value, part, &value))
            return false;
        *at += digits;
    }
    *out = value;
    return true;
}

#endif
