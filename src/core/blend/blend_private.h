/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_PRIVATE_H
#define TIERCE_BLEND_PRIVATE_H

#include <stdbool.h>

#include "base/kernel_choice.h"
#include "core/blend/rope.h"

enum { TIERCE__DISTANCE_LANES = 16 };

struct tierce__blend_kernel {
    struct tierce__kernel_head head;
    void (*rotate)(const struct tierce__rotation *rotation, enum tierce__blend_dtype dtype,
                   const struct tierce__key_rows *dst, const struct tierce__key_rows *src,
                   size_t tokens, uint32_t heads);
    void (*distances)(float *distances, enum tierce__blend_dtype dtype,
                      const struct tierce__key_rows *a, const struct tierce__key_rows *b,
                      size_t tokens, uint32_t heads, uint32_t row_elements);
};

extern const struct tierce__blend_kernel tierce__blend_portable;
#if defined(__x86_64__)
extern const struct tierce__blend_kernel tierce__blend_avx512;
extern const struct tierce__blend_kernel tierce__blend_avx2;
#endif

#endif
