/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged_private.h"

#include <string.h>

#include "base/bytes.h"

static bool portable_usable(void)
{
    return true;
}

/* Each word is loaded once for the copy and the sum, so the sum is that of the stored bytes. */
static void take_stripe(uint64_t *acc, uint8_t *dst, const uint8_t *src, const uint8_t *key)
{
    uint64_t words[TIERCE__LANES];
    memcpy(words, src, TIERCE__STRIPE_BYTES);
    if (dst != NULL)
        memcpy(dst, words, TIERCE__STRIPE_BYTES);
    for (unsigned i = 0; i < TIERCE__LANES; i++) {
        uint64_t word = tierce__load_le64(&words[i]);
        uint64_t keyed = word ^ tierce__load_le64(key + 8 * i);
        acc[i ^ 1] += word;
        acc[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static void portable_run(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src,
                         size_t begin, size_t end)
{
    size_t i = begin;
    while (i < end) {
        size_t stop = tierce__block_end(i, end);
        for (; i < stop; i++) {
            size_t at = i * TIERCE__STRIPE_BYTES;
            const uint8_t *key = tierce__secret + i % TIERCE__BLOCK_STRIPES * TIERCE__KEY_STEP;
            take_stripe(acc, dst != NULL ? dst + at : NULL, src + at, key);
        }
        if (i % TIERCE__BLOCK_STRIPES == 0)
            tierce__scramble(acc);
    }
}

const struct tierce__copy_kernel tierce__copy_portable = {.head = {"portable", portable_usable},
                                                          .run = portable_run};
