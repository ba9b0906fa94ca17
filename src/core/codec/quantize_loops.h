/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of quantizers, once for all kernels. Each kernel file defines KERNEL_ATTRIBUTE (its
 * instructions) and QUANTIZE_KERNEL (the name of its table) and includes this file; the compiler
 * turns the loops into vectors. The results are the same everywhere, because every operation is
 * one of binary32 that is rounded once: CMakeLists.txt forbids the compiler to fuse two of them.
 * Both sides of a choice are computed, so that no loop has a branch, and subnormal numbers are
 * never operands, so that none is slow.
 */
#include "core/codec/element_loops.h"
#include "core/codec/quantize_private.h"

LOOP uint8_t float_to_e4m3(float value)
{
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
    uint32_t subnormal =
        bits_of_float(float_of_bits(magnitude) + 0x1p14f) - 0x46800000u; /* in units of 2^-9 */
    return (uint8_t)(choose(magnitude, 121u << 23, subnormal, normal) | (bits >> 24 & 0x80u));
}

LOOP float e4m3_to_float(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    float subnormal = float_of_bits((magnitude << 20) | 121u << 23) - 0x1p-6f;
    return float_of_bits(choose(magnitude, 8, bits_of_float(subnormal), normal) | (code & 0x80u)
                                                                                      << 24);
}

/* ---- a group ----------------------------------------------------------------------------------
 */

/* Magnitudes are ordered as their bits are. */
LOOP uint16_t greatest_magnitude(const uint8_t *src, size_t length)
{
    uint16_t greatest = 0;
    for (size_t i = 0; i < length; i++) {
        uint16_t magnitude = load16(src + 2 * i) & 0x7fffu;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

/* 2^-100, below which L / m would overflow, and the first number that is not finite. */
LOOP uint16_t least_scale(enum tierce__element element)
{
    return element == TIERCE__ELEMENT_BF16 ? (127 - 100) << 7 : 1;
}

LOOP uint16_t not_finite(enum tierce__element element)
{
    return element == TIERCE__ELEMENT_BF16 ? 0x7f80 : 0x7c00;
}

LOOP uint8_t code_of(enum tierce__element element, unsigned levels, float factor, uint16_t value)
{
    float scaled = element_to_float(element, value) * factor;
    if (levels == TIERCE__QUANTIZE_E4M3)
        return float_to_e4m3(scaled);
    /* The sum with 2^23 rounds to a whole number, which its lowest bits are. */
    return (uint8_t)bits_of_float(scaled + (float)levels + 0x1p23f);
}

LOOP uint16_t value_of(enum tierce__element element, unsigned levels, float factor, uint8_t code)
{
    float scaled = levels == TIERCE__QUANTIZE_E4M3
                       ? e4m3_to_float(code) * factor
                       : (float)((int)code - (int)levels) / (float)levels * factor;
    return float_to_element(element, scaled);
}

LOOP bool quantize_group(enum tierce__element element, unsigned levels, size_t length,
                         bool is_packed, uint8_t *codes, uint8_t *scale, const uint8_t *src)
{
    uint16_t greatest = greatest_magnitude(src, length);
    bool is_zero = greatest < least_scale(element);
    store16(scale, is_zero ? 0 : greatest);
    float span = levels == TIERCE__QUANTIZE_E4M3 ? 448.0f : (float)levels;
    float factor = is_zero ? 0 : span / element_to_float(element, greatest);
    if (greatest >= not_finite(element))
        return false;
    for (size_t i = 0; i < (is_packed ? length / 2 : length); i++) {
        uint8_t code = code_of(element, levels, factor, load16(src + 2 * i));
        if (is_packed)
            code |= (uint8_t)(code_of(element, levels, factor, load16(src + length + 2 * i)) << 4);
        codes[i] = code;
    }
    return true;
}

LOOP bool dequantize_group(enum tierce__element element, unsigned levels, size_t length,
                           bool is_packed, uint8_t *dst, const uint8_t *codes, const uint8_t *scale)
{
    uint16_t greatest = load16(scale);
    if (greatest >= not_finite(element) || (greatest > 0 && greatest < least_scale(element)))
        return false;
    float factor = element_to_float(element, greatest);
    uint8_t most = 0; /* the greatest code, of e4m3 the greatest magnitude */
    if (levels == TIERCE__QUANTIZE_E4M3)
        factor /= 448.0f;
    for (size_t i = 0; i < (is_packed ? length / 2 : length); i++) {
        uint8_t code = is_packed ? codes[i] & 15 : codes[i], upper = (uint8_t)(codes[i] >> 4);
        uint8_t magnitude = levels == TIERCE__QUANTIZE_E4M3 ? code & 0x7f : code;
        most = magnitude > most ? magnitude : most;
        store16(dst + 2 * i, value_of(element, levels, factor, code));
        if (is_packed) {
            most = upper > most ? upper : most;
            store16(dst + length + 2 * i, value_of(element, levels, factor, upper));
        }
    }
    return most <= (levels == TIERCE__QUANTIZE_E4M3 ? 0x7e : 2 * levels);
}

/* ---- loops of their own for each kind of group, in which all but the pointers is constant ------
 */
LOOP bool quantize_groups(enum tierce__element element, unsigned levels, size_t length,
                          bool is_packed, uint8_t *codes, uint8_t *scales, const uint8_t *src,
                          size_t groups)
{
    size_t code_bytes = is_packed ? length / 2 : length;
    for (size_t g = 0; g < groups; g++) {
        if (!quantize_group(element, levels, length, is_packed, codes + g * code_bytes,
                            scales + 2 * g, src + 2 * g * length))
            return false;
    }
    return true;
}

LOOP bool dequantize_groups(enum tierce__element element, unsigned levels, size_t length,
                            bool is_packed, uint8_t *dst, const uint8_t *codes,
                            const uint8_t *scales, size_t groups)
{
    size_t code_bytes = is_packed ? length / 2 : length;
    for (size_t g = 0; g < groups; g++) {
        if (!dequantize_group(element, levels, length, is_packed, dst + 2 * g * length,
                              codes + g * code_bytes, scales + 2 * g))
            return false;
    }
    return true;
}

/* Calls `groups_of` with constants for the groups of the codecs int8, int4 and fp8; the groups of
 * CacheGen have any length. */
#define EACH_KIND(groups_of, element, ...)                                                         \
    if (q->is_packed)                                                                              \
        return groups_of(element, TIERCE__QUANTIZE_NIBBLES_MAX, TIERCE__PACKED_GROUP, true,        \
                         __VA_ARGS__);                                                             \
    if (q->levels == TIERCE__QUANTIZE_E4M3)                                                        \
        return groups_of(element, TIERCE__QUANTIZE_E4M3, q->length, false, __VA_ARGS__);           \
    return groups_of(element, q->levels, q->length, false, __VA_ARGS__)

KERNEL_ATTRIBUTE static bool quantize(const struct tierce__quantizer *q, uint8_t *codes,
                                      uint8_t *scales, const uint8_t *src, size_t groups)
{
    if (q->element == TIERCE__ELEMENT_BF16) {
        EACH_KIND(quantize_groups, TIERCE__ELEMENT_BF16, codes, scales, src, groups);
    }
    EACH_KIND(quantize_groups, TIERCE__ELEMENT_FP16, codes, scales, src, groups);
}

KERNEL_ATTRIBUTE static bool dequantize(const struct tierce__quantizer *q, uint8_t *dst,
                                        const uint8_t *codes, const uint8_t *scales, size_t groups)
{
    if (q->element == TIERCE__ELEMENT_BF16) {
        EACH_KIND(dequantize_groups, TIERCE__ELEMENT_BF16, dst, codes, scales, groups);
    }
    EACH_KIND(dequantize_groups, TIERCE__ELEMENT_FP16, dst, codes, scales, groups);
}

const struct tierce__quantize_kernel QUANTIZE_KERNEL = {.quantize = quantize,
                                                        .dequantize = dequantize};
