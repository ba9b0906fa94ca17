/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

bool tierce__secrets_equal(const void *a, const void *b, size_t bytes)
{
    const volatile uint8_t *left = (const volatile uint8_t *)a,
                           *right = (const volatile uint8_t *)b; /* no early end */
    uint8_t differs = 0;
    for (size_t i = 0; i < bytes; i++)
        differs |= left[i] ^ right[i];
    return differs == 0;
}

void tierce__hex_encode(char *text, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * n] = '\0';
}

/* The value of a digit and 1; 0: no digit. A table, because the texts of keys are read for each
 * chunk: 4 times as fast as comparisons. */
static const uint8_t values[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16};

bool tierce__hex_decode(uint8_t *bytes, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        unsigned high = values[(uint8_t)text[2 * i]];
        unsigned low = high == 0 ? 0 : values[(uint8_t)text[2 * i + 1]];
        if (low == 0)
            return false;
        bytes[i] = (uint8_t)((high - 1) << 4 | (low - 1));
    }
    return true;
}
