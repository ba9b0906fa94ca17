/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_ROPE_H
#define TIERCE_BLEND_ROPE_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Rotary position embeddings (RoPE), and keys that are rotated from one position to another.
 *
 *     struct tierce__rope rope;
 *     char why[TIERCE__ROPE_WHY_BYTES];
 *     rc = tierce__rope_init(&rope, why, text, bytes, &(struct tierce__rope_layout){
 *             .style = TIERCE__ROPE_NEOX, .row_elements = 128, .width = 128});
 *     tierce__rotation_init(&rotation, &rope, new_position - old_position);
 *     rc = tierce__rotate(&rotation, &rows_of_the_engine, &rows_of_a_chunk, tokens, heads);
 *
 * A model rotates pair i of a key by the angle p * f[i] at position p. Rotations add up, so a key
 * of position p becomes that of position p + d if it is rotated by d * f[i]. This is exact for each
 * variant whose frequencies f do not depend on the length of the prompt. Other variants are
 * rejected. Factors of the length of keys, such as YaRN's, do not change.
 *
 * The error of a rotated element, for a pair of the length r: at most 2^-22 r in the arithmetic,
 * and half a unit in the last place of the element: 2^-9 of its magnitude for bfloat16, 2^-12 for
 * float16, 2^-25 for float32, or half of the smallest subnormal number. Arithmetic on numbers below
 * 2^-126 is exact to 2^-149 only. The error of the model's own rotation comes on top: engines
 * compute p * f[i] in binary32, which at position 32768 may differ by 0.002 from the exact angle.
 *
 * Thread: any. Nothing here blocks or allocates.
 */

/* Which two elements are a pair. */
enum tierce__rope_style {
    TIERCE__ROPE_NEOX, /* i and i + half of the rotated ones */
    TIERCE__ROPE_GPTJ, /* 2 i and 2 i + 1 */
};

#define TIERCE__ROPE_PAIRS_MAX 256u
#define TIERCE__ROPE_WHY_BYTES 192u

struct tierce__rope_layout {
    enum tierce__rope_style style;
    uint32_t row_elements; /* elements of one token and head in memory */
    uint32_t first;        /* the first element of the row that belongs to RoPE: the elements before
                              it have no position, as in the latent KV of DeepSeek's models */
    uint32_t width;        /* elements from there on that belong to RoPE; a model with
                              partial_rotary_factor rotates only the first of them */
};

struct tierce__rope {
    struct tierce__rope_layout layout;
    uint32_t pairs;                             /* 1 .. TIERCE__ROPE_PAIRS_MAX */
    double frequencies[TIERCE__ROPE_PAIRS_MAX]; /* radians a position; `pairs` are in use */
};

/*
 * Reads the parameters of a model, a JSON object: `rope_parameters` of its configuration, or
 * `rope_scaling` with `rope_theta` beside it. Supported values of rope_type: "default", "linear",
 * "ntk", "yarn", "deepseek_yarn", "llama3", and "dynamic" with `alpha`. Errors, *rope untouched:
 *   TIERCE_E_UNSUPPORTED  a variant that cannot be rotated exactly, or a parameter that this build
 *                         does not know and that might change the frequencies
 *   TIERCE_E_FORMAT       no JSON object, or a parameter that is missing or invalid
 *   TIERCE_E_ARGUMENT     the layout is invalid
 * why [out]: the reason, "" after success.
 */
TIERCE_MUSTUSE int tierce__rope_init(struct tierce__rope *rope, char why[TIERCE__ROPE_WHY_BYTES],
                                     const char *parameters, size_t bytes,
                                     const struct tierce__rope_layout *layout);

/* ---- rotating ---------------------------------------------------------------------------------
 */

enum tierce__blend_dtype {
    TIERCE__BLEND_BF16,
    TIERCE__BLEND_FP16,
    TIERCE__BLEND_FP32,
    TIERCE__BLEND_DTYPES
};

/* The type of a namespace's kv_dtype; TIERCE__BLEND_DTYPES for others: the scale of an fp8 key
 * would have to be known, and its rounding is too coarse to be repeated. */
enum tierce__blend_dtype tierce__blend_dtype_of(const char *kv_dtype);
unsigned tierce__blend_dtype_bytes(enum tierce__blend_dtype dtype);

struct tierce__rotation {
    struct tierce__rope_layout layout;
    uint32_t pairs;
    int64_t delta;
    float cosine[TIERCE__ROPE_PAIRS_MAX], sine[TIERCE__ROPE_PAIRS_MAX];
};

/* |delta| < 2^31 positions. */
void tierce__rotation_init(struct tierce__rotation *rotation, const struct tierce__rope *rope,
                           int64_t delta);

/* Rows of keys: the row of a token and a head is at + token * token_bytes + head * head_bytes.
 * Nothing has to be aligned. */
struct tierce__key_rows {
    uint8_t *at;
    size_t token_bytes, head_bytes;
};

/*
 * Rotates keys from src to dst, and copies elements that have no position. dst may be the same rows
 * as src; otherwise they do not overlap. With delta 0 every bit is kept. All kernels have the same
 * results. Infinities and NaN are allowed; every NaN of a rotated element becomes the same one.
 */
void tierce__rotate(const struct tierce__rotation *rotation, enum tierce__blend_dtype dtype,
                    const struct tierce__key_rows *dst, const struct tierce__key_rows *src,
                    size_t tokens, uint32_t heads);

#endif
