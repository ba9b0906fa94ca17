/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/msgpack/msgpack.h"

#include <arpa/inet.h>
#include <string.h>

/* The bytes after the first byte of an item: a number of `width` bytes, then `extra` bytes and, if
 * the number is a length, that many bytes. */
struct head {
    enum tierce__msgpack_type type;
    uint8_t width;
    uint8_t extra;
};

/* From 0xc0 to 0xdf; a UINT of width 0 is none, as 0xc1. */
static const struct head heads[32] = {
    [0x00] = {TIERCE__MSGPACK_NIL, 0, 0},   [0x01] = {TIERCE__MSGPACK_UINT, 0, 0},
    [0x02] = {TIERCE__MSGPACK_BOOL, 0, 0},  [0x03] = {TIERCE__MSGPACK_BOOL, 0, 0},
    [0x04] = {TIERCE__MSGPACK_BYTES, 1, 0}, [0x05] = {TIERCE__MSGPACK_BYTES, 2, 0},
    [0x06] = {TIERCE__MSGPACK_BYTES, 4, 0}, [0x07] = {TIERCE__MSGPACK_BYTES, 1, 1},
    [0x08] = {TIERCE__MSGPACK_BYTES, 2, 1}, [0x09] = {TIERCE__MSGPACK_BYTES, 4, 1},
    [0x0a] = {TIERCE__MSGPACK_FLOAT, 4, 0}, [0x0b] = {TIERCE__MSGPACK_FLOAT, 8, 0},
    [0x0c] = {TIERCE__MSGPACK_UINT, 1, 0},  [0x0d] = {TIERCE__MSGPACK_UINT, 2, 0},
    [0x0e] = {TIERCE__MSGPACK_UINT, 4, 0},  [0x0f] = {TIERCE__MSGPACK_UINT, 8, 0},
    [0x10] = {TIERCE__MSGPACK_INT, 1, 0},   [0x11] = {TIERCE__MSGPACK_INT, 2, 0},
    [0x12] = {TIERCE__MSGPACK_INT, 4, 0},   [0x13] = {TIERCE__MSGPACK_INT, 8, 0},
    [0x19] = {TIERCE__MSGPACK_TEXT, 1, 0},  [0x1a] = {TIERCE__MSGPACK_TEXT, 2, 0},
    [0x1b] = {TIERCE__MSGPACK_TEXT, 4, 0},  [0x1c] = {TIERCE__MSGPACK_ARRAY, 2, 0},
    [0x1d] = {TIERCE__MSGPACK_ARRAY, 4, 0}, [0x1e] = {TIERCE__MSGPACK_MAP, 2, 0},
    [0x1f] = {TIERCE__MSGPACK_MAP, 4, 0},
};

static uint64_t load_be(const uint8_t *at, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value = value << 8 | at[i];
    return value;
}

static double load_real(uint64_t bits, unsigned width)
{
    double real;
    float narrow;
    uint32_t narrow_bits = (uint32_t)bits;
    if (width == 8) {
        memcpy(&real, &bits, sizeof(real));
        return real;
    }
    memcpy(&narrow, &narrow_bits, sizeof(narrow));
    return (double)narrow;
}

/* A signed number of `width` bytes, in 64. */
static uint64_t sign_extend(uint64_t value, unsigned width)
{
    unsigned shift = 64 - 8 * width;
    return (uint64_t)((int64_t)(value << shift) >> shift);
}

/* An item that is complete in its first byte, except the bytes of a text. */
static bool fixed_item(uint8_t first, struct tierce__msgpack_item *item)
{
    if (first < 0x80)
        *item = (struct tierce__msgpack_item){.type = TIERCE__MSGPACK_UINT, .number = first};
    else if (first < 0x90)
        *item = (struct tierce__msgpack_item){.type = TIERCE__MSGPACK_MAP, .count = first & 15};
    else if (first < 0xa0)
        *item = (struct tierce__msgpack_item){.type = TIERCE__MSGPACK_ARRAY, .count = first & 15};
    else if (first < 0xc0)
        *item = (struct tierce__msgpack_item){.type = TIERCE__MSGPACK_TEXT, .count = first & 31};
    else if (first >= 0xe0)
        *item = (struct tierce__msgpack_item){.type = TIERCE__MSGPACK_INT,
                                              .number = sign_extend(first, 1)};
    else
        return false;
    return true;
}

/* Extensions of 1, 2, 4, 8 and 16 bytes: a type, then the bytes. */
static bool fixed_extension(uint8_t first, struct tierce__msgpack_item *item)
{
    if (first < 0xd4 || first > 0xd8)
        return false;
    *item = (struct tierce__msgpack_item){
        .type = TIERCE__MSGPACK_BYTES, .count = 1u + (1u << (first - 0xd4)), .is_extension = true};
    return true;
}

/* An item whose number follows the first byte. */
static enum tierce__msgpack_result long_item(const uint8_t **at, const uint8_t *end, uint8_t first,
                                             struct tierce__msgpack_item *item)
{
    struct head head = heads[first - 0xc0];
    if (head.type == TIERCE__MSGPACK_UINT && head.width == 0)
        return TIERCE__MSGPACK_DAMAGED;
    if ((size_t)(end - *at) < head.width)
        return TIERCE__MSGPACK_SHORT;
    uint64_t number = load_be(*at, head.width);
    *at += head.width;
    *item = (struct tierce__msgpack_item){
        .type = head.type, .number = number, .is_extension = head.extra != 0};
    if (head.type == TIERCE__MSGPACK_BOOL)
        item->number = first & 1;
    else if (head.type == TIERCE__MSGPACK_FLOAT)
        item->real = load_real(number, head.width);
    else if (head.type == TIERCE__MSGPACK_INT)
        item->number = sign_extend(number, head.width);
    else if (head.type >= TIERCE__MSGPACK_TEXT)
        item->count = (uint32_t)number;
    /* The type of an extension is one more byte, counted as one of its bytes. */
    if (head.extra != 0 && item->count == UINT32_MAX)
        return TIERCE__MSGPACK_DAMAGED;
    item->count += head.extra;
    return TIERCE__MSGPACK_OK;
}

enum tierce__msgpack_result tierce__msgpack_next(struct tierce__msgpack *msgpack,
                                                 struct tierce__msgpack_item *item)
{
    const uint8_t *at = msgpack->at, *end = msgpack->end;
    if (at == end)
        return TIERCE__MSGPACK_SHORT;
    uint8_t first = *at++;
    if (!fixed_item(first, item) && !fixed_extension(first, item)) {
        enum tierce__msgpack_result result = long_item(&at, end, first, item);
        if (result != TIERCE__MSGPACK_OK)
            return result;
    }
    if (item->type == TIERCE__MSGPACK_INT && (int64_t)item->number >= 0)
        item->type = TIERCE__MSGPACK_UINT;
    if (item->type == TIERCE__MSGPACK_TEXT || item->type == TIERCE__MSGPACK_BYTES) {
        if ((size_t)(end - at) < item->count)
            return TIERCE__MSGPACK_SHORT;
        item->bytes = at;
        at += item->count;
    }
    msgpack->at = at;
    return TIERCE__MSGPACK_OK;
}

/* Bytes of an item without contents, by its first byte. 0: it has contents, or is invalid. */
static unsigned scalar_bytes(uint8_t first)
{
    if (first < 0x80 || first >= 0xe0)
        return 1;
    if (first < 0xc0 || (first >= 0xd4 && first <= 0xd8)) /* the latter: extensions */
        return 0;
    struct head head = heads[first - 0xc0];
    bool is_scalar =
        head.type < TIERCE__MSGPACK_TEXT && (head.type != TIERCE__MSGPACK_UINT || head.width > 0);
    return is_scalar ? 1u + head.width : 0;
}

/* Long arrays of numbers, such as tokens, are skipped here and not item by item. Most of their
 * items have the first byte of the one before. */
static uint64_t skip_scalars(struct tierce__msgpack *from, uint64_t left)
{
    const uint8_t *at = from->at, *end = from->end;
    while (left > 0 && at < end) {
        uint8_t first = *at;
        unsigned bytes = scalar_bytes(first);
        if (bytes == 0 || (size_t)(end - at) < bytes)
            break;
        do {
            at += bytes;
            left--;
        } while (left > 0 && (size_t)(end - at) >= bytes && *at == first);
    }
    from->at = at;
    return left;
}

enum tierce__msgpack_result tierce__msgpack_skip(struct tierce__msgpack *msgpack)
{
    struct tierce__msgpack from = *msgpack;
    /* The number of remaining items is a single counter at any nesting depth. */
    for (uint64_t left = skip_scalars(&from, 1); left > 0; left = skip_scalars(&from, left - 1)) {
        struct tierce__msgpack_item item;
        enum tierce__msgpack_result result = tierce__msgpack_next(&from, &item);
        if (result != TIERCE__MSGPACK_OK)
            return result;
        if (item.type == TIERCE__MSGPACK_ARRAY)
            left += item.count;
        else if (item.type == TIERCE__MSGPACK_MAP)
            left += 2ULL * item.count;
    }
    *msgpack = from;
    return TIERCE__MSGPACK_OK;
}

/* The numbers of the forms that encoders use, as far as each has 5 bytes before the end: a check
 * and a load, without branches on the rest of the item. */
static size_t short_u32s(struct tierce__msgpack *from, uint32_t *out, size_t count)
{
    const uint8_t *at = from->at, *end = from->end;
    size_t i = 0;
    for (; i < count && end - at >= 5; i++) {
        uint32_t number = at[0];
        if (number == 0xce) {
            memcpy(&number, at + 1, 4);
            number = ntohl(number);
            at += 5;
        } else if (number == 0xcd) {
            number = (uint32_t)at[1] << 8 | at[2];
            at += 3;
        } else if (number == 0xcc) {
            number = at[1];
            at += 2;
        } else if (number < 0x80) {
            at++;
        } else {
            break;
        }
        if (out != NULL)
            out[i] = number;
    }
    from->at = at;
    return i;
}

size_t tierce__msgpack_u32s(struct tierce__msgpack *msgpack, uint32_t *out, size_t count)
{
    size_t i = 0;
    for (;;) {
        struct tierce__msgpack_item item;
        i += short_u32s(msgpack, out != NULL ? out + i : NULL, count - i);
        struct tierce__msgpack from = *msgpack;
        if (i == count || tierce__msgpack_next(&from, &item) != TIERCE__MSGPACK_OK ||
            item.type != TIERCE__MSGPACK_UINT || item.number > UINT32_MAX)
            return i;
        if (out != NULL)
            out[i] = (uint32_t)item.number;
        *msgpack = from;
        i++;
    }
}
