/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_QUANTIZE_PRIVATE_H
#define TIERCE_CODEC_QUANTIZE_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/codec/codec.h"

/*
 * Quantizers of bf16 and fp16: each group of elements has a scale, which is its greatest magnitude,
 * as a number of the same element. Two ways of coding an element x of a group with the scale m:
 *
 *     levels L: code = round(x * (L / m) + L), 0 .. 2 L; decoded: (code - L) / L * m
 *     e4m3:     code = e4m3(x * (448 / m));              decoded: code * (m / 448)
 *
 * in the arithmetic of binary32, each operation rounded to the nearest, ties to even; the decoded
 * value is rounded to the element. With levels this is the reconstruction of LMCache's CacheGen. A
 * group whose greatest magnitude is below 2^-100 has the scale 0 and decodes to zeroes.
 */
enum {
    TIERCE__QUANTIZE_E4M3 = 0,       /* in place of levels */
    TIERCE__QUANTIZE_NIBBLES_MAX = 7 /* a code of so few levels can be packed */
};

struct tierce__quantizer {
    enum tierce__element element; /* bf16 or fp16 */
    unsigned levels;              /* 1 .. 127, or TIERCE__QUANTIZE_E4M3 */
    size_t length;                /* elements of a group */
    /* Groups of 32 with codes of 4 bits: byte i has element i in its lower half, and element
     * i + 16 in its upper one. Otherwise a code is a byte. */
    bool is_packed;
};

enum { TIERCE__PACKED_GROUP = 32 };

struct tierce__quantize_kernel {
    /* Codes `groups` whole groups; `scales` has two bytes for each. False: a value is not finite,
     * and the contents of codes and scales are undefined. */
    bool (*quantize)(const struct tierce__quantizer *quantizer, uint8_t *codes, uint8_t *scales,
                     const uint8_t *src, size_t groups);
    /* False: a code or a scale is one that no encoder writes, and the contents of dst are
     * undefined. */
    bool (*dequantize)(const struct tierce__quantizer *quantizer, uint8_t *dst,
                       const uint8_t *codes, const uint8_t *scales, size_t groups);
};

extern const struct tierce__quantize_kernel tierce__quantize_portable;
#if defined(__x86_64__)
extern const struct tierce__quantize_kernel tierce__quantize_avx512;
extern const struct tierce__quantize_kernel tierce__quantize_avx2;
#endif

#endif
