/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of bf16 and fp16 to binary32 and back, in loops that compilers turn into vectors. A file
 * that is compiled for several instruction sets, or for a GPU, includes this header and defines
 * KERNEL_ATTRIBUTE (its instructions) before: so it has no include guard. Both sides of a choice
 * are computed, so that no loop has a branch.
 */
#include <stdint.h>
#include <string.h>

#include "core/codec/element.h"

#define LOOP KERNEL_ATTRIBUTE __attribute__((always_inline)) static inline

/* Machines are little-endian (base/bytes.h); a copy of two bytes is what compilers make vectors of.
 */
LOOP uint16_t load16(const uint8_t *src)
{
    uint16_t value;
    memcpy(&value, src, sizeof(value));
    return value;
}

LOOP void store16(uint8_t *dst, uint16_t value)
{
    memcpy(dst, &value, sizeof(value));
}

LOOP float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

LOOP uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* `smaller` where magnitude < limit, else `other`; both magnitudes are below 2^31. By a mask, as
 * compilers make a vector of it (with AVX2 3 to 5 times as fast as a comparison). */
LOOP uint32_t choose(uint32_t magnitude, uint32_t limit, uint32_t smaller, uint32_t other)
{
    uint32_t mask = 0 - ((magnitude - limit) >> 31);
    return other ^ ((smaller ^ other) & mask);
}

LOOP float element_to_float(enum tierce__element element, uint16_t value)
{
    if (element == TIERCE__ELEMENT_BF16)
        return float_of_bits((uint32_t)value << 16);
    uint32_t magnitude = value & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    float subnormal = float_of_bits((magnitude << 13) | 113u << 23) - 0x1p-14f;
    return float_of_bits(choose(magnitude, 0x400, bits_of_float(subnormal), normal) |
                         (value & 0x8000u) << 16);
}

/* Of a magnitude that the element has as a finite number. */
LOOP uint16_t float_to_element(enum tierce__element element, float value)
{
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
    if (element == TIERCE__ELEMENT_BF16)
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t subnormal =
        bits_of_float(float_of_bits(magnitude) + 0x1p-1f) - 0x3f000000u; /* in units of 2^-24 */
    return (uint16_t)(choose(magnitude, 113u << 23, subnormal, normal) | (bits >> 16 & 0x8000u));
}

/* ---- the same for every number, infinities and NaN included ------------------------------------
 */

LOOP float any_to_float(enum tierce__element element, uint16_t value)
{
    if (element == TIERCE__ELEMENT_BF16)
        return float_of_bits((uint32_t)value << 16);
    uint32_t magnitude = value & 0x7fffu, special = (magnitude << 13) | 0x7f800000u;
    uint32_t finite = bits_of_float(element_to_float(element, (uint16_t)magnitude));
    return float_of_bits(choose(magnitude, 0x7c00, finite, special) | (value & 0x8000u) << 16);
}

/* Rounded to the nearest, ties to even; a magnitude that is too great becomes infinite. Every NaN
 * becomes the same one, because compilers may swap operands, on which its payload depends. */
LOOP uint16_t float_to_any(enum tierce__element element, float value)
{
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
    uint32_t sign = bits >> 16 & 0x8000u, first_nan = 0x7f800001u;
    uint32_t number = float_to_element(element, float_of_bits(magnitude));
    if (element == TIERCE__ELEMENT_BF16)
        return (uint16_t)choose(magnitude, first_nan, number | sign, 0x7fc0u);
    /* 65520 is the middle between the greatest number and the next one. */
    uint32_t rounded = choose(magnitude, 0x477ff000u, number, 0x7c00u);
    return (uint16_t)choose(magnitude, first_nan, rounded | sign, 0x7e00u);
}

/* The bits of a number that remains binary32; every NaN becomes the same one. */
LOOP uint32_t float_to_fp32(float value)
{
    uint32_t bits = bits_of_float(value);
    return choose(bits & 0x7fffffffu, 0x7f800001u, bits, 0x7fc00000u);
}
