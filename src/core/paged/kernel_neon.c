/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged_private.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* Two lanes, 16 bytes: a quarter of a stripe. */
enum { QUARTERS = 4, QUARTER_BYTES = 16 };

/* Every aarch64 machine has NEON. */
static bool neon_usable(void)
{
    return true;
}

static inline uint64x2_t load_quarter(const uint8_t *p)
{
    return vreinterpretq_u64_u8(vld1q_u8(p));
}

static inline uint64x2_t take_quarter(uint64x2_t acc, uint64x2_t words, const uint8_t *key)
{
    uint64x2_t keyed = veorq_u64(words, load_quarter(key));
    uint64x2_t crossed = vextq_u64(words, words, 1);
    return vmlal_u32(vaddq_u64(acc, crossed), vmovn_u64(keyed), vshrn_n_u64(keyed, 32));
}

static inline uint64x2_t scramble_quarter(uint64x2_t acc, const uint8_t *key)
{
    uint32x2_t prime = vdup_n_u32(TIERCE__PRIME32_1);
    acc = veorq_u64(acc, vshrq_n_u64(acc, 47));
    acc = veorq_u64(acc, load_quarter(key));
    uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(acc, 32), prime), 32);
    return vmlal_u32(high, vmovn_u64(acc), prime);
}

static void neon_run(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src, size_t begin,
                     size_t end)
{
    const uint8_t *mix = tierce__secret + TIERCE__SCRAMBLE_KEY;
    uint64x2_t lanes[QUARTERS];
    for (size_t q = 0; q < QUARTERS; q++)
        lanes[q] = vld1q_u64(acc + 2 * q);
    size_t i = begin;
    while (i < end) {
        size_t stop = tierce__block_end(i, end);
        for (; i < stop; i++) {
            const uint8_t *key = tierce__secret + i % TIERCE__BLOCK_STRIPES * TIERCE__KEY_STEP;
            for (size_t q = 0; q < QUARTERS; q++) {
                size_t at = i * TIERCE__STRIPE_BYTES + q * QUARTER_BYTES;
                uint64x2_t words = load_quarter(src + at);
                if (dst != NULL)
                    vst1q_u8(dst + at, vreinterpretq_u8_u64(words));
                lanes[q] = take_quarter(lanes[q], words, key + q * QUARTER_BYTES);
            }
        }
        if (i % TIERCE__BLOCK_STRIPES == 0)
            for (size_t q = 0; q < QUARTERS; q++)
                lanes[q] = scramble_quarter(lanes[q], mix + q * QUARTER_BYTES);
    }
    for (size_t q = 0; q < QUARTERS; q++)
        vst1q_u64(acc + 2 * q, lanes[q]);
}

const struct tierce__copy_kernel tierce__copy_neon = {.head = {"neon", neon_usable},
                                                      .run = neon_run};
#endif
