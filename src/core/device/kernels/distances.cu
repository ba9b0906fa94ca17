/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that computes distances of keys. tools/build_kernels compiles it to distances.ptx;
 * tests compile it as C (kernel_source.h).
 *
 * A token has 16 threads, one for each sum of tierce__key_distances (core/blend/blend_loops.h).
 * Each adds up its elements in the order of the host, and the 16 sums are added up by halves, so
 * the result is that of the host. Neighbouring threads read neighbouring elements.
 */
#include "core/device/kernels/distances.h"
#include "core/device/kernels/kernel_source.h"

#include "core/device/kernels/key_elements.h"

TIERCE__DEVICE float sum_of_lane(const struct tierce__distances_launch *in, uint32_t token,
                                 uint32_t lane)
{
    uint32_t bytes = in->is_fp32 ? 4 : 2;
    float sum = 0;
    for (uint32_t h = 0; h < in->heads; h++) {
        uint64_t a = in->a + token * in->a_token_bytes + h * in->a_head_bytes;
        uint64_t b = in->b + token * in->b_token_bytes + h * in->b_head_bytes;
        for (uint32_t i = lane; i < in->elements; i += TIERCE__DISTANCES_LANES) {
            float x = number_of(in->is_fp32, in->element, read_element(a + i * bytes, bytes));
            float y = number_of(in->is_fp32, in->element, read_element(b + i * bytes, bytes));
            float difference = DIFFERENCE(x, y);
            sum = SUM(sum, PRODUCT(difference, difference));
        }
    }
    return sum;
}

TIERCE__KERNEL(tierce__key_distances_of, struct tierce__distances_launch, TIERCE__DISTANCES_THREADS)
{
    TIERCE__SHARED float sums[TIERCE__DISTANCES_THREADS];
    for (uint32_t first = TIERCE__BLOCK * TIERCE__DISTANCES_TOKENS; first < in.tokens;
         first += TIERCE__BLOCKS * TIERCE__DISTANCES_TOKENS) {
        TIERCE__THREADS (t, TIERCE__DISTANCES_THREADS) {
            uint32_t token = first + t / TIERCE__DISTANCES_LANES;
            sums[t] = token < in.tokens ? sum_of_lane(&in, token, t % TIERCE__DISTANCES_LANES) : 0;
        }
        TIERCE__BARRIER();
        for (uint32_t half = TIERCE__DISTANCES_LANES / 2; half > 0; half /= 2) {
            TIERCE__THREADS (t, TIERCE__DISTANCES_THREADS) {
                if (t % TIERCE__DISTANCES_LANES < half)
                    sums[t] = SUM(sums[t], sums[t + half]);
            }
            TIERCE__BARRIER();
        }
        TIERCE__THREADS (t, TIERCE__DISTANCES_THREADS) {
            uint32_t token = first + t / TIERCE__DISTANCES_LANES;
            if (t % TIERCE__DISTANCES_LANES == 0 && token < in.tokens)
                ((uint32_t *)(uintptr_t)in.to)[token] = float_to_fp32(sums[t]);
        }
    }
}
