/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROTO_MSGPACK_H
#define TIERCE_PROTO_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * MessagePack pulled from bytes item by item: nothing is allocated and nothing copied. An array or
 * a map is an item with the number of the items that follow it (for a map twice as many).
 */

enum tierce__msgpack_type {
    TIERCE__MSGPACK_NIL,
    TIERCE__MSGPACK_BOOL,  /* number: 0 or 1 */
    TIERCE__MSGPACK_UINT,  /* number */
    TIERCE__MSGPACK_INT,   /* number in two's complement; non-negative numbers are UINT */
    TIERCE__MSGPACK_FLOAT, /* real */
    TIERCE__MSGPACK_TEXT,  /* bytes, count */
    TIERCE__MSGPACK_BYTES, /* bytes, count; of an extension: its type, then its bytes */
    TIERCE__MSGPACK_ARRAY, /* count */
    TIERCE__MSGPACK_MAP,   /* count */
};

struct tierce__msgpack_item {
    enum tierce__msgpack_type type;
    uint32_t count;
    uint64_t number;
    double real;
    const uint8_t *bytes;
    bool is_extension;
};

struct tierce__msgpack {
    const uint8_t *at, *end;
};

enum tierce__msgpack_result {
    TIERCE__MSGPACK_OK,
    TIERCE__MSGPACK_SHORT,   /* the bytes end within the item */
    TIERCE__MSGPACK_DAMAGED, /* invalid first byte */
};

/* Takes the next item; nothing is taken unless it is OK. */
enum tierce__msgpack_result tierce__msgpack_next(struct tierce__msgpack *msgpack,
                                                 struct tierce__msgpack_item *item);

/* Takes the next item and everything in it. */
enum tierce__msgpack_result tierce__msgpack_skip(struct tierce__msgpack *msgpack);

/* Takes items as long as they are unsigned numbers of 32 bits, up to `count`. `out` may be NULL.
 * Returns how many. */
size_t tierce__msgpack_u32s(struct tierce__msgpack *msgpack, uint32_t *out, size_t count);

#endif
