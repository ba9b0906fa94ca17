/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_CBOR_H
#define TIERCE_KEY_CBOR_H

#include <stdint.h>

/*
 * The few canonical CBOR items (RFC 8949, shortest heads) that engines hash. Each writer puts
 * its item at `p` and returns the byte after it; the caller has room for the largest form, which
 * is 9 bytes for a head.
 */

enum tierce__cbor_major {
    TIERCE__CBOR_UNSIGNED = 0x00,
    TIERCE__CBOR_NEGATIVE = 0x20,
    TIERCE__CBOR_BYTES = 0x40,
    TIERCE__CBOR_TEXT = 0x60,
    TIERCE__CBOR_ARRAY = 0x80,
};

#define TIERCE__CBOR_NULL     0xf6
#define TIERCE__CBOR_HEAD_MAX 9
#define TIERCE__CBOR_U32_MAX  5

static inline uint8_t *tierce__cbor_put_head(uint8_t *p, enum tierce__cbor_major major,
                                             uint64_t value)
{
    unsigned bytes = value <= 0xff ? 1 : value <= 0xffff ? 2 : value <= 0xffffffff ? 4 : 8;
    if (value < 24) {
        *p++ = (uint8_t)((unsigned)major | (unsigned)value);
        return p;
    }
    unsigned code = bytes == 1 ? 24 : bytes == 2 ? 25 : bytes == 4 ? 26 : 27;
    *p++ = (uint8_t)((unsigned)major | code);
    for (unsigned i = bytes; i-- > 0;)
        *p++ = (uint8_t)(value >> (8 * i));
    return p;
}

/* An unsigned number of 32 bits: up to 5 bytes. Tokens are most of the hashed bytes, so this
 * function is specialised. */
static inline uint8_t *tierce__cbor_put_u32(uint8_t *p, uint32_t value)
{
    if (value >= 0x10000) {
        p[0] = 0x1a;
        p[1] = (uint8_t)(value >> 24);
        p[2] = (uint8_t)(value >> 16);
        p[3] = (uint8_t)(value >> 8);
        p[4] = (uint8_t)value;
        return p + 5;
    }
    if (value >= 0x100) {
        p[0] = 0x19;
        p[1] = (uint8_t)(value >> 8);
        p[2] = (uint8_t)value;
        return p + 3;
    }
    if (value >= 24) {
        p[0] = 0x18;
        p[1] = (uint8_t)value;
        return p + 2;
    }
    p[0] = (uint8_t)value;
    return p + 1;
}

#endif
