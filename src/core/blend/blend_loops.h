/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of rotations and distances, once for all kernels. Each kernel file defines
 * KERNEL_ATTRIBUTE (its instructions), KERNEL_NAME, KERNEL_USABLE (whether the machine has them)
 * and BLEND_KERNEL (the name of its table) and includes this file; the compiler turns the loops
 * into vectors. The results are the same everywhere, because every operation is one of binary32
 * that is rounded once: CMakeLists.txt forbids the compiler to fuse two of them.
 *
 * A row is unpacked to numbers of binary32 on the stack, computed there and packed again. The
 * arrays on the stack overlap with nothing, so the compiler needs no check whether dst and src do.
 */
#include "base/assert.h"
#include "core/blend/blend_private.h"
#include "core/codec/element_loops.h"

LOOP uint32_t load32(const uint8_t *src)
{
    uint32_t value;
    memcpy(&value, src, sizeof(value));
    return value;
}

LOOP void store32(uint8_t *dst, uint32_t value)
{
    memcpy(dst, &value, sizeof(value));
}

/* Constants of the loops: whether an element has four bytes, otherwise which two it has. */
struct blend_type {
    bool is_fp32;
    enum tierce__element element;
};

LOOP size_t bytes_of(struct blend_type type)
{
    return type.is_fp32 ? 4 : 2;
}

LOOP float number_at(struct blend_type type, const uint8_t *at)
{
    return type.is_fp32 ? float_of_bits(load32(at)) : any_to_float(type.element, load16(at));
}

LOOP void store_number(struct blend_type type, uint8_t *at, float value)
{
    if (type.is_fp32)
        store32(at, float_to_fp32(value));
    else
        store16(at, float_to_any(type.element, value));
}

/* ---- rotations --------------------------------------------------------------------------------
 */

struct pairs {
    float x[TIERCE__ROPE_PAIRS_MAX], y[TIERCE__ROPE_PAIRS_MAX];
};

LOOP void unpack(struct blend_type type, bool is_neox, struct pairs *p, const uint8_t *src,
                 uint32_t pairs)
{
    size_t bytes = bytes_of(type);
    for (uint32_t i = 0; i < pairs; i++) {
        size_t first = is_neox ? i : 2 * (size_t)i, second = is_neox ? i + pairs : first + 1;
        p->x[i] = number_at(type, src + first * bytes);
        p->y[i] = number_at(type, src + second * bytes);
    }
}

LOOP void pack(struct blend_type type, bool is_neox, uint8_t *dst, const struct pairs *p,
               uint32_t pairs)
{
    size_t bytes = bytes_of(type);
    for (uint32_t i = 0; is_neox && i < pairs; i++)
        store_number(type, dst + i * bytes, p->x[i]);
    for (uint32_t i = 0; is_neox && i < pairs; i++)
        store_number(type, dst + (i + pairs) * bytes, p->y[i]);
    for (uint32_t i = 0; !is_neox && i < pairs; i++) {
        store_number(type, dst + 2 * i * bytes, p->x[i]);
        store_number(type, dst + (2 * i + 1) * bytes, p->y[i]);
    }
}

LOOP void turn(struct pairs *restrict to, const struct pairs *restrict from,
               const struct tierce__rotation *restrict r, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        to->x[i] = from->x[i] * r->cosine[i] - from->y[i] * r->sine[i];
        to->y[i] = from->y[i] * r->cosine[i] + from->x[i] * r->sine[i];
    }
}

LOOP void rotate_rows(struct blend_type type, bool is_neox, const struct tierce__rotation *rotation,
                      const struct tierce__key_rows *dst, const struct tierce__key_rows *src,
                      size_t tokens, uint32_t heads)
{
    size_t bytes = bytes_of(type), before = rotation->layout.first * bytes;
    size_t after = before + 2 * rotation->pairs * bytes;
    size_t row = rotation->layout.row_elements * bytes;
    bool is_copied = dst->at != src->at;
    struct pairs from, to;
    for (size_t t = 0; t < tokens; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            const uint8_t *in = src->at + t * src->token_bytes + h * src->head_bytes;
            uint8_t *out = dst->at + t * dst->token_bytes + h * dst->head_bytes;
            unpack(type, is_neox, &from, in + before, rotation->pairs);
            turn(&to, &from, rotation, rotation->pairs);
            pack(type, is_neox, out + before, &to, rotation->pairs);
            if (is_copied && before > 0)
                memcpy(out, in, before);
            if (is_copied && after < row)
                memcpy(out + after, in + after, row - after);
        }
    }
}

/* Calls `rows_of` with constants for the type. */
#define EACH_TYPE(rows_of, dtype, ...)                                                             \
    do {                                                                                           \
        if ((dtype) == TIERCE__BLEND_FP32)                                                         \
            rows_of(((struct blend_type){true, TIERCE__ELEMENT_RAW}), __VA_ARGS__);                \
        else if ((dtype) == TIERCE__BLEND_BF16)                                                    \
            rows_of(((struct blend_type){false, TIERCE__ELEMENT_BF16}), __VA_ARGS__);              \
        else                                                                                       \
            rows_of(((struct blend_type){false, TIERCE__ELEMENT_FP16}), __VA_ARGS__);              \
    } while (0)

KERNEL_ATTRIBUTE static void rotate(const struct tierce__rotation *rotation,
                                    enum tierce__blend_dtype dtype,
                                    const struct tierce__key_rows *dst,
                                    const struct tierce__key_rows *src, size_t tokens,
                                    uint32_t heads)
{
    TIERCE_DASSERT(rotation->pairs >= 1 && rotation->pairs <= TIERCE__ROPE_PAIRS_MAX);
    if (rotation->layout.style == TIERCE__ROPE_NEOX)
        EACH_TYPE(rotate_rows, dtype, true, rotation, dst, src, tokens, heads);
    else
        EACH_TYPE(rotate_rows, dtype, false, rotation, dst, src, tokens, heads);
}

/* ---- distances --------------------------------------------------------------------------------
 */

struct lanes {
    float sum[TIERCE__DISTANCE_LANES];
};

LOOP void add_difference(struct blend_type type, struct lanes *lanes, const uint8_t *a,
                         const uint8_t *b, unsigned lane)
{
    float difference = number_at(type, a) - number_at(type, b);
    lanes->sum[lane] += difference * difference;
}

LOOP float total(struct lanes lanes)
{
    for (unsigned half = TIERCE__DISTANCE_LANES / 2; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++)
            lanes.sum[i] += lanes.sum[i + half];
    }
    return lanes.sum[0];
}

LOOP void compare_rows(struct blend_type type, float *distances, const struct tierce__key_rows *a,
                       const struct tierce__key_rows *b, size_t tokens, uint32_t heads,
                       uint32_t row_elements)
{
    size_t bytes = bytes_of(type);
    for (size_t t = 0; t < tokens; t++) {
        struct lanes lanes = {{0}};
        for (uint32_t h = 0; h < heads; h++) {
            const uint8_t *x = a->at + t * a->token_bytes + h * a->head_bytes;
            const uint8_t *y = b->at + t * b->token_bytes + h * b->head_bytes;
            uint32_t i = 0;
            for (; i + TIERCE__DISTANCE_LANES <= row_elements; i += TIERCE__DISTANCE_LANES) {
                for (unsigned lane = 0; lane < TIERCE__DISTANCE_LANES; lane++)
                    add_difference(type, &lanes, x + (i + lane) * bytes, y + (i + lane) * bytes,
                                   lane);
            }
            for (unsigned lane = 0; i < row_elements; i++, lane++)
                add_difference(type, &lanes, x + i * bytes, y + i * bytes, lane);
        }
        distances[t] = total(lanes);
    }
}

KERNEL_ATTRIBUTE static void distances_of(float *distances, enum tierce__blend_dtype dtype,
                                          const struct tierce__key_rows *a,
                                          const struct tierce__key_rows *b, size_t tokens,
                                          uint32_t heads, uint32_t row_elements)
{
    EACH_TYPE(compare_rows, dtype, distances, a, b, tokens, heads, row_elements);
}

static bool is_usable(void)
{
    return KERNEL_USABLE;
}

const struct tierce__blend_kernel BLEND_KERNEL = {
    .head = {KERNEL_NAME, is_usable}, .rotate = rotate, .distances = distances_of};
