/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PAGED_PRIVATE_H
#define TIERCE_PAGED_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "paged/paged.h"

/*
 * The long path of XXH3-64 (inputs above 240 bytes), as its kernels see it. The input is a row of
 * stripes of 64 bytes; eight 64-bit lanes take a stripe each step, keyed by 64 bytes of the secret
 * that move on by 8 each stripe. After 16 stripes (a block) the secret is used up: the lanes are
 * scrambled and the key starts again. The last 64 bytes are one more stripe with a key of its own,
 * which overlaps the one before; then the lanes are folded to 64 bits.
 */
enum {
    TIERCE__STRIPE_BYTES = 64,
    TIERCE__BLOCK_STRIPES = 16,
    TIERCE__BLOCK_BYTES = TIERCE__STRIPE_BYTES * TIERCE__BLOCK_STRIPES,
    TIERCE__LANES = 8,
    TIERCE__KEY_STEP = 8,
    TIERCE__SECRET_BYTES = 192,
    TIERCE__SCRAMBLE_KEY = TIERCE__SECRET_BYTES - TIERCE__STRIPE_BYTES,
};

#define TIERCE__PRIME32_1 0x9E3779B1U

/* The default secret of XXH3; aligned so that the key of every 8th stripe is one cache line. */
extern const uint8_t tierce__secret[TIERCE__SECRET_BYTES];

/*
 * One way to do the work. Each function starts at the beginning of a block, takes the lanes from
 * `acc` and leaves them there; after whole blocks another call may go on.
 */
struct tierce__kernel {
    const char *name;

    /* Whether this machine has the instructions. Cheap, any thread. */
    bool (*usable)(void);

    /* Takes `stripes` stripes of src; dst NULL: only that, else they are copied there. */
    void (*run)(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src, size_t stripes);

    /*
     * Takes `blocks` blocks of src and copies src + shift to dst + shift past the caches, as many
     * bytes. dst + shift is a multiple of 64 and shift < 64; up to shift bytes behind the blocks
     * are read and written. The stores are ordered by fence() only. NULL: the machine has no such
     * stores.
     */
    void (*stream)(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src, size_t blocks,
                   size_t shift);

    /* Makes the stores of stream() visible before what the caller stores next. */
    void (*fence)(void);
};

extern const struct tierce__kernel tierce__kernel_portable;
#if defined(__x86_64__)
extern const struct tierce__kernel tierce__kernel_avx512;
extern const struct tierce__kernel tierce__kernel_avx2;
#endif
#if defined(__aarch64__)
extern const struct tierce__kernel tierce__kernel_neon;
#endif

/* The kernel in use, chosen at the first call. Never NULL. Thread: any. */
const struct tierce__kernel *tierce__kernel(void);

/* tierce__copy_sum without the fence at its end: for a row of copies with one fence. */
uint64_t tierce__copy_sum_unfenced(const struct tierce__kernel *kernel, void *dst, const void *src,
                                   size_t n, enum tierce__store_hint hint);

/* The fence that a row of unfenced copies with this hint ends with. */
void tierce__copy_fence(const struct tierce__kernel *kernel, enum tierce__store_hint hint);

#endif
