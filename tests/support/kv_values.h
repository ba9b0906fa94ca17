/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_KV_VALUES_H
#define TIERCE_TESTS_KV_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/mix.h"
#include "core/codec/codec.h"

/*
 * Made-up KV of an element type: exponents as frequent as in KV (each half as frequent as the one
 * above), random signs and mantissas. Depends on the seed only.
 */

/* The exponent field's lowest bit, and its greatest value. */
static inline void kv_exponent_field(enum tierce__element element, unsigned *shift, unsigned *max)
{
    *shift = element == TIERCE__ELEMENT_BF16   ? 7
             : element == TIERCE__ELEMENT_FP16 ? 10
             : element == TIERCE__ELEMENT_E4M3 ? 3
                                               : 2;
    *max = element == TIERCE__ELEMENT_BF16 ? 255 : element == TIERCE__ELEMENT_E4M3 ? 15 : 31;
}

/* `spread`: how often a coin decides for the next lower exponent, of 256. */
static inline void kv_fill(uint8_t *dst, size_t bytes, enum tierce__element element, uint64_t seed,
                           unsigned top, unsigned spread)
{
    unsigned shift, max, width = tierce__element_bytes(element);
    kv_exponent_field(element, &shift, &max);
    for (size_t at = 0; at + width <= bytes; at += width) {
        uint64_t random = tierce__random_next(&seed), coins = tierce__random_next(&seed);
        unsigned exponent = top;
        for (; exponent > 0 && (coins & 0xff) < spread; coins >>= 8)
            exponent--;
        uint16_t value =
            (uint16_t)(random & ~(max << shift)) | (uint16_t)((exponent & max) << shift);
        if (width == 1)
            dst[at] = (uint8_t)value;
        else
            tierce__store_le16(dst + at, value);
    }
    if (bytes % width != 0)
        dst[bytes - 1] = (uint8_t)tierce__random_next(&seed);
}

#endif
