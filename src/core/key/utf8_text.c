/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/utf8_text.h"

#include <stdint.h>

/* The length of the sequence that `lead` begins and the smallest code point that it may encode; 0
 * if no sequence begins so. */
static size_t sequence_length(uint8_t lead, uint32_t *smallest)
{
    if (lead >= 0xc2 && lead <= 0xdf) {
        *smallest = 0x80;
        return 2;
    }
    if (lead >= 0xe0 && lead <= 0xef) {
        *smallest = 0x800;
        return 3;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        *smallest = 0x10000;
        return 4;
    }
    return 0;
}

/* The length of the well-formed sequence at `p` that is not a control character, or 0. */
static size_t plain_sequence(const uint8_t *p, size_t left)
{
    if (p[0] < 0x80)
        return p[0] >= 0x20 && p[0] != 0x7f ? 1 : 0;
    uint32_t smallest = 0;
    size_t length = sequence_length(p[0], &smallest);
    if (length == 0 || length > left)
        return 0;
    uint32_t point = p[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (p[i] & 0x3f);
    }
    bool surrogate = point >= 0xd800 && point <= 0xdfff;
    bool control = point < 0xa0;
    return point < smallest || point > 0x10ffff || surrogate || control ? 0 : length;
}

bool tierce__text_is_plain(const char *text, size_t size)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = 0; i < size;) {
        size_t length = plain_sequence(p + i, size - i);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}
