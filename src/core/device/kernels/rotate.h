/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_ROTATE_H
#define TIERCE_KERNEL_ROTATE_H

#include <stddef.h>
#include <stdint.h>

/*
 * One launch of the kernel in rotate.cu: rotates pairs of elements in place, by one angle for each
 * pair of a row. Host, device and tests share this description; the driver copies it when the
 * kernel is launched. The address is valid on the device.
 */

enum {
    TIERCE__ROTATE_THREADS = 256,
    TIERCE__ROTATE_PAIRS = 256,          /* of a row */
    TIERCE__ROTATE_ITEMS_MAX = 1u << 22, /* numbers of pairs have 32 bits */
};

#define TIERCE__ROTATE_KERNEL "tierce__rotate_keys"

/* Item i is pair i % pairs of row i / pairs; row r is of head r % heads of token r / heads. */
struct tierce__rotate_launch {
    uint64_t at; /* the first rotated element of the first row; elements need not be aligned */
    uint64_t token_bytes, head_bytes;
    uint32_t items; /* at most TIERCE__ROTATE_ITEMS_MAX */
    uint32_t heads, pairs;
    uint32_t is_neox;
    uint32_t is_fp32;
    uint32_t element; /* an enum tierce__element, unless is_fp32 */
    float cosine[TIERCE__ROTATE_PAIRS], sine[TIERCE__ROTATE_PAIRS];
};

/* rotate.ptx, NUL-terminated: the driver compiles it for its device. */
extern const unsigned char tierce__rotate_ptx[];
extern const size_t tierce__rotate_ptx_size;

#endif
