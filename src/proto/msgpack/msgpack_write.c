/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/msgpack/msgpack_write.h"

#include "base/assert.h"

static void put_head(struct tierce__line *line, uint8_t type, uint64_t value, unsigned width)
{
    char bytes[9];
    bytes[0] = (char)type;
    for (unsigned i = 0; i < width; i++)
        bytes[1 + i] = (char)(value >> 8 * (width - 1 - i));
    tierce__line_put_bytes(line, bytes, 1 + width);
}

void tierce__msgpack_put_nil(struct tierce__line *line)
{
    put_head(line, 0xc0, 0, 0);
}

void tierce__msgpack_put_uint(struct tierce__line *line, uint64_t value)
{
    if (value < 128)
        put_head(line, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_head(line, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_head(line, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_head(line, 0xce, value, 4);
    else
        put_head(line, 0xcf, value, 8);
}

void tierce__msgpack_put_int(struct tierce__line *line, int64_t value)
{
    if (value >= 0)
        tierce__msgpack_put_uint(line, (uint64_t)value);
    else
        put_head(line, 0xd3, (uint64_t)value, 8);
}

void tierce__msgpack_put_bool(struct tierce__line *line, bool value)
{
    put_head(line, value ? 0xc3 : 0xc2, 0, 0);
}

void tierce__msgpack_put_float(struct tierce__line *line, double value)
{
    uint64_t bits;
    _Static_assert(sizeof(bits) == sizeof(value), "a double has 64 bits");
    memcpy(&bits, &value, sizeof(bits));
    put_head(line, 0xcb, bits, 8);
}

void tierce__msgpack_put_text(struct tierce__line *line, const char *text)
{
    size_t bytes = strlen(text);
    TIERCE_ASSERT(bytes <= UINT32_MAX);
    if (bytes < 32)
        put_head(line, (uint8_t)(0xa0 | bytes), 0, 0);
    else if (bytes <= UINT8_MAX)
        put_head(line, 0xd9, bytes, 1);
    else
        put_head(line, 0xdb, bytes, 4);
    tierce__line_put_bytes(line, text, bytes);
}

void tierce__msgpack_put_pair(struct tierce__line *line, const char *name, const char *text)
{
    tierce__msgpack_put_text(line, name);
    tierce__msgpack_put_text(line, text);
}

void tierce__msgpack_put_map(struct tierce__line *line, unsigned count)
{
    TIERCE_ASSERT(count < 16);
    put_head(line, (uint8_t)(0x80 | count), 0, 0);
}

void tierce__msgpack_put_array(struct tierce__line *line, unsigned count)
{
    TIERCE_ASSERT(count < 16);
    put_head(line, (uint8_t)(0x90 | count), 0, 0);
}

/* A head with a length of 32 bits, which is not known yet. */
static size_t begin(struct tierce__line *line, uint8_t type)
{
    size_t place = line->bytes;
    put_head(line, type, 0, 4);
    return place;
}

static void end(struct tierce__line *line, size_t place, uint64_t count)
{
    if (line->failed)
        return;
    TIERCE_ASSERT(place + 5 <= line->bytes && count <= UINT32_MAX);
    for (unsigned i = 0; i < 4; i++)
        line->text[place + 1 + i] = (char)(count >> 8 * (3 - i));
}

size_t tierce__msgpack_begin_array(struct tierce__line *line)
{
    return begin(line, 0xdd);
}

void tierce__msgpack_end_array(struct tierce__line *line, size_t place, uint32_t count)
{
    end(line, place, count);
}

size_t tierce__msgpack_begin_map(struct tierce__line *line)
{
    return begin(line, 0xdf);
}

void tierce__msgpack_end_map(struct tierce__line *line, size_t place, uint32_t count)
{
    end(line, place, count);
}

size_t tierce__msgpack_begin_text(struct tierce__line *line)
{
    return begin(line, 0xdb);
}

void tierce__msgpack_end_text(struct tierce__line *line, size_t place)
{
    end(line, place, line->bytes - place - 5);
}
