/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that rotates keys in place. tools/build_kernels compiles it to rotate.ptx; tests
 * compile it as C (kernel_source.h).
 *
 * Each thread takes one pair of elements after another. Its bytes are those of core/blend on the
 * host (key_elements.h).
 */
#include "core/device/kernels/kernel_source.h"
#include "core/device/kernels/rotate.h"

#include "core/device/kernels/key_elements.h"

TIERCE__DEVICE void write_element(uint64_t at, uint32_t bytes, uint32_t bits)
{
    uint8_t *to = (uint8_t *)(uintptr_t)at;
    if (at % bytes == 0) {
        if (bytes == 4)
            *(uint32_t *)(uintptr_t)at = bits;
        else
            *(uint16_t *)(uintptr_t)at = (uint16_t)bits;
        return;
    }
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(bits >> (8 * i));
}

TIERCE__DEVICE uint32_t bits_of(const struct tierce__rotate_launch *in, float value)
{
    return in->is_fp32 ? float_to_fp32(value)
                       : float_to_any((enum tierce__element)in->element, value);
}

TIERCE__DEVICE void rotate_pair(const struct tierce__rotate_launch *in, uint32_t item,
                                const float *cosine, const float *sine)
{
    uint32_t row = item / in->pairs, pair = item % in->pairs, bytes = in->is_fp32 ? 4 : 2;
    uint64_t at = in->at + row / in->heads * in->token_bytes + row % in->heads * in->head_bytes;
    uint64_t first = at + (in->is_neox ? pair : 2 * pair) * bytes;
    uint64_t second = first + (in->is_neox ? in->pairs : 1) * bytes;
    float x = number_of(in->is_fp32, in->element, read_element(first, bytes));
    float y = number_of(in->is_fp32, in->element, read_element(second, bytes));
    float c = cosine[pair], s = sine[pair];
    write_element(first, bytes, bits_of(in, DIFFERENCE(PRODUCT(x, c), PRODUCT(y, s))));
    write_element(second, bytes, bits_of(in, SUM(PRODUCT(y, c), PRODUCT(x, s))));
}

TIERCE__KERNEL(tierce__rotate_keys, struct tierce__rotate_launch, TIERCE__ROTATE_THREADS)
{
    /* Threads that read different arguments would wait for one another. */
    TIERCE__SHARED float cosine[TIERCE__ROTATE_PAIRS], sine[TIERCE__ROTATE_PAIRS];
    TIERCE__THREADS (t, TIERCE__ROTATE_THREADS) {
        for (uint32_t i = t; i < in.pairs; i += TIERCE__ROTATE_THREADS) {
            cosine[i] = in.cosine[i];
            sine[i] = in.sine[i];
        }
    }
    TIERCE__BARRIER();
    TIERCE__THREADS (t, TIERCE__ROTATE_THREADS) {
        for (uint32_t i = TIERCE__BLOCK * TIERCE__ROTATE_THREADS + t; i < in.items;
             i += TIERCE__BLOCKS * TIERCE__ROTATE_THREADS)
            rotate_pair(&in, i, cosine, sine);
    }
}
