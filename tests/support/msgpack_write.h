/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MSGPACK_WRITE_H
#define TIERCE_TESTS_MSGPACK_WRITE_H

#include <stdint.h>
#include <string.h>

#include "base/text/line.h"

/* MessagePack for tests, item by item, in the form that msgspec chooses or a longer one. */

static inline void pack_be(struct tierce__line *out, uint8_t first, uint64_t value, unsigned width)
{
    char bytes[9] = {(char)first};
    for (unsigned i = 0; i < width; i++)
        bytes[1 + i] = (char)(value >> (8 * (width - 1 - i)));
    tierce__line_put_bytes(out, bytes, 1 + width);
}

static inline void pack_nil(struct tierce__line *out)
{
    pack_be(out, 0xc0, 0, 0);
}

static inline void pack_uint(struct tierce__line *out, uint64_t value)
{
    if (value < 128)
        pack_be(out, (uint8_t)value, 0, 0);
    else
        pack_be(out, 0xcf, value, 8);
}

static inline void pack_real(struct tierce__line *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    pack_be(out, 0xcb, bits, 8);
}

static inline void pack_array(struct tierce__line *out, uint32_t count)
{
    pack_be(out, 0xdd, count, 4);
}

static inline void pack_map(struct tierce__line *out, uint32_t count)
{
    pack_be(out, 0xdf, count, 4);
}

static inline void pack_text(struct tierce__line *out, const char *text)
{
    pack_be(out, 0xd9, strlen(text), 1);
    tierce__line_put(out, text);
}

static inline void pack_bytes(struct tierce__line *out, const void *bytes, uint8_t count)
{
    pack_be(out, 0xc4, count, 1);
    tierce__line_put_bytes(out, bytes, count);
}

#endif
