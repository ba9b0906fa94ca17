/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/utf8.h"
#include "base/assert.h"

#include <string.h>

/* As tierce__utf8_length, and the code point unless it returns 0. */
static inline size_t decode(uint32_t *out_code, const uint8_t *p, size_t left)
{
    size_t n;
    uint32_t low, code;

    if (p[0] < 0x80) {
        *out_code = p[0];
        return 1;
    }
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        n = 2, low = 0x80, code = p[0] & 0x1fu;
    else if (p[0] >= 0xe0 && p[0] <= 0xef)
        n = 3, low = 0x800, code = p[0] & 0x0fu;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        n = 4, low = 0x10000, code = p[0] & 0x07u;
    else
        return 0;
    if (n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    *out_code = code;
    return code < low || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : n;
}

size_t tierce__utf8_length(const uint8_t *p, size_t left)
{
    TIERCE_DASSERT(left > 0);
    uint32_t code;
    return decode(&code, p, left);
}

size_t tierce__utf8_letter(uint32_t *letter, const unsigned char *text)
{
    uint32_t code = 0;
    size_t n = decode(&code, text, 4); /* a NUL ends a sequence, so none is read beyond it */
    *letter = n > 0 ? code : TIERCE__UTF8_NO_LETTER;
    return n > 0 ? n : 1;
}

void tierce__utf8_mend(char *text)
{
    for (char *p = text; *p != '\0';) {
        uint32_t code;
        size_t n = decode(&code, (const uint8_t *)p, 4); /* a NUL ends a sequence */
        if (n == 0)
            *p = '?';
        p += n > 0 ? n : 1;
    }
}

bool tierce__is_utf8(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    while (i < bytes) {
        uint64_t word;
        if (bytes >= sizeof(word)) { /* the last word begins before i */
            size_t at = bytes - i >= sizeof(word) ? i : bytes - sizeof(word);
            memcpy(&word, p + at, sizeof(word));
            if ((word & 0x8080808080808080ULL) == 0) {
                i = at + sizeof(word);
                continue;
            }
        }
        size_t n = tierce__utf8_length(p + i, bytes - i);
        if (n == 0)
            return false;
        i += n;
    }
    TIERCE_DASSERT(i == bytes);
    return true;
}

bool tierce__is_control(const uint8_t *p, size_t n)
{
    TIERCE_DASSERT(n > 0);
    if (n == 1)
        return p[0] < 0x20 || p[0] == 0x7f;
    if (n == 2)
        return p[0] == 0xc2 && p[1] < 0xa0;
    return n == 3 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9);
}

bool tierce__text_is_plain(const char *text, size_t size)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = 0, n; i < size; i += n) {
        n = tierce__utf8_length(p + i, size - i);
        if (n == 0 ||
            (n < 3 && tierce__is_control(p + i, n))) /* the Unicode line ends have three */
            return false;
    }
    return true;
}
