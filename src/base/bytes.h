/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_BYTES_H
#define TIERCE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Little-endian loads and stores at any alignment, checked arithmetic, and hex. Formats on disk
 * and wire are read and written with these only, never by casting a struct onto bytes. */

static inline uint16_t tierce__load_le16(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint16_t)(b[0] | (uint16_t)(b[1] << 8));
}

static inline uint32_t tierce__load_le32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static inline uint64_t tierce__load_le64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline void tierce__store_le16(void *p, uint16_t v)
{
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static inline void tierce__store_le32(void *p, uint32_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    memcpy(p, &v, sizeof(v));
}

static inline void tierce__store_le64(void *p, uint64_t v)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    memcpy(p, &v, sizeof(v));
}

/* `value` rounded up to a multiple of `align` (a power of two). The caller rules out overflow. */
static inline uint64_t tierce__round_up(uint64_t value, uint64_t align)
{
    return (value + align - 1) & ~(align - 1);
}

/* *out = a * b; false if it does not fit. */
static inline bool tierce__mul_ok(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* *out = a + b; false if it does not fit. */
static inline bool tierce__add_ok(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Whether two secrets are equal. The time depends on `bytes` alone, not on how many are equal. */
bool tierce__secrets_equal(const void *a, const void *b, size_t bytes);

/* Writes 2 * n lower-case hex digits and a NUL to `text`. */
void tierce__hex_encode(char *text, const uint8_t *bytes, size_t n);

/* Reads exactly 2 * n hex digits of either case; false if one of them is not a digit. */
bool tierce__hex_decode(uint8_t *bytes, size_t n, const char *text);

#endif
