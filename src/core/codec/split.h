/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SPLIT_H
#define TIERCE_SPLIT_H

#include <stdint.h>

/* How a symbol is cut out of an element: its top byte is the only byte, or the upper one, or for
 * bf16 the whole exponent. The symbol is (top >> shift) & mask; the other bits of top are planes. A
 * kernel of a GPU includes this header. */
struct tierce__split {
    uint8_t bytes;
    uint8_t shift;
    uint8_t mask;
    uint8_t bit_count;
    uint8_t bits[4];
};

#endif
