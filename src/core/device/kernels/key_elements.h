/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of keys in kernels: numbers of bf16, fp16 or binary32 at addresses that need not be
 * aligned, and operations that are rounded once. A kernel includes this header after
 * kernel_source.h. Its results are those of core/blend on the host: the same conversions
 * (element_loops.h) and the same operations. Compilers must not fuse a product with a sum: nvcc
 * never fuses the functions below, and tests compile the kernels with -ffp-contract=off.
 */
#if defined(__CUDACC__)
#define KERNEL_ATTRIBUTE __device__
#define PRODUCT(a, b)    __fmul_rn(a, b)
#define SUM(a, b)        __fadd_rn(a, b)
#define DIFFERENCE(a, b) __fsub_rn(a, b)
#else
#define KERNEL_ATTRIBUTE
#define PRODUCT(a, b)    ((a) * (b))
#define SUM(a, b)        ((a) + (b))
#define DIFFERENCE(a, b) ((a) - (b))
#endif
#include "core/codec/element_loops.h"

TIERCE__DEVICE uint32_t read_element(uint64_t at, uint32_t bytes)
{
    const uint8_t *from = (const uint8_t *)(uintptr_t)at;
    uint32_t bits = 0;
    if (at % bytes == 0)
        return bytes == 4 ? *(const uint32_t *)(uintptr_t)at : *(const uint16_t *)(uintptr_t)at;
    for (uint32_t i = 0; i < bytes; i++)
        bits |= (uint32_t)from[i] << (8 * i);
    return bits;
}

/* `element`: an enum tierce__element, unless is_fp32. */
TIERCE__DEVICE float number_of(uint32_t is_fp32, uint32_t element, uint32_t bits)
{
    return is_fp32 ? float_of_bits(bits)
                   : any_to_float((enum tierce__element)element, (uint16_t)bits);
}
