/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a kernel, and the calls that use it. */
#include "base/assert.h"
#include "core/blend/blend_kernels.h"
#include "core/blend/blend_private.h"
#include "core/blend/select.h"

#include <string.h>

static const struct tierce__kernel_head *const kernels[] = {
#if defined(__x86_64__)
    &tierce__blend_avx512.head,
    &tierce__blend_avx2.head,
#endif
    &tierce__blend_portable.head,
};

struct tierce__kernel_choice tierce__blend_kernels = TIERCE__KERNEL_CHOICE(kernels);

static const struct tierce__blend_kernel *kernel_in_use(void)
{
    return (const struct tierce__blend_kernel *)tierce__kernel_in_use(&tierce__blend_kernels);
}

static uint8_t *row_at(const struct tierce__key_rows *rows, size_t token, uint32_t head)
{
    return rows->at + token * rows->token_bytes + head * rows->head_bytes;
}

static void copy_rows(const struct tierce__key_rows *dst, const struct tierce__key_rows *src,
                      size_t tokens, uint32_t heads, size_t bytes)
{
    for (size_t t = 0; t < tokens; t++) {
        for (uint32_t h = 0; h < heads; h++)
            memmove(row_at(dst, t, h), row_at(src, t, h), bytes);
    }
}

void tierce__rotate(const struct tierce__rotation *rotation, enum tierce__blend_dtype dtype,
                    const struct tierce__key_rows *dst, const struct tierce__key_rows *src,
                    size_t tokens, uint32_t heads)
{
    TIERCE_ASSERT(dtype < TIERCE__BLEND_DTYPES);
    if (rotation->delta != 0)
        kernel_in_use()->rotate(rotation, dtype, dst, src, tokens, heads);
    else if (dst->at != src->at)
        copy_rows(dst, src, tokens, heads,
                  rotation->layout.row_elements * (size_t)tierce__blend_dtype_bytes(dtype));
}

void tierce__key_distances(float *distances, enum tierce__blend_dtype dtype,
                           const struct tierce__key_rows *a, const struct tierce__key_rows *b,
                           size_t tokens, uint32_t heads, uint32_t row_elements)
{
    TIERCE_ASSERT(dtype < TIERCE__BLEND_DTYPES);
    kernel_in_use()->distances(distances, dtype, a, b, tokens, heads, row_elements);
}
