/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_DISTANCES_H
#define TIERCE_KERNEL_DISTANCES_H

#include <stddef.h>
#include <stdint.h>

/*
 * One launch of the kernel in distances.cu: the squared L2 distance of the keys of each token.
 * Host, device and tests share this description; the driver copies it when the kernel is launched.
 * All addresses are valid on the device.
 */

enum {
    TIERCE__DISTANCES_THREADS = 256,
    TIERCE__DISTANCES_LANES = 16, /* threads, and sums, of a token */
    TIERCE__DISTANCES_TOKENS = TIERCE__DISTANCES_THREADS / TIERCE__DISTANCES_LANES, /* of a block */
    TIERCE__DISTANCES_TOKENS_MAX = 1 << 16, /* of a launch: numbers of tokens have 32 bits */
};

#define TIERCE__DISTANCES_KERNEL "tierce__key_distances_of"

/* The rows of token t and head h begin at a + t * a_token_bytes + h * a_head_bytes, and b alike;
 * elements need not be aligned. */
struct tierce__distances_launch {
    uint64_t to; /* address of float[tokens], aligned to 4 */
    uint64_t a, b;
    uint64_t a_token_bytes, a_head_bytes, b_token_bytes, b_head_bytes;
    uint32_t tokens; /* at most TIERCE__DISTANCES_TOKENS_MAX */
    uint32_t heads, elements;
    uint32_t is_fp32;
    uint32_t element; /* an enum tierce__element, unless is_fp32 */
};

/* distances.ptx, NUL-terminated: the driver compiles it for its device. */
extern const unsigned char tierce__distances_ptx[];
extern const size_t tierce__distances_ptx_size;

#endif
