/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_KEY_SHAPES_H
#define TIERCE_TESTS_KEY_SHAPES_H

#include <math.h>
#include <string.h>

#include "core/blend/rope.h"
#include "test_random.h"

/* Random rows of keys: every type, both kinds of pairs, and rows that begin anywhere. */

enum { SHAPE_HEADS_MAX = 3, SHAPE_TOKENS_MAX = 5, SHAPE_GUARD = 0xA5, SHAPE_ROW_MAX = 640 };
#define SHAPE_BYTES_MAX                                                                            \
    (2u * SHAPE_TOKENS_MAX * (SHAPE_HEADS_MAX * (SHAPE_ROW_MAX + 3) + 5) * sizeof(float))

/* `kind` 0: KV as it is; 1: subnormal and small ones; 2: any bits, also infinities and NaN. */
static inline void fill(uint8_t *at, enum tierce__blend_dtype dtype, struct test_random *random,
                        unsigned kind)
{
    static const unsigned fraction[] = {7, 10, 23}, exponents[] = {8, 5, 8};
    unsigned bytes = tierce__blend_dtype_bytes(dtype), most = (1u << exponents[dtype]) - 1;
    uint64_t r = test_random_u64(random);
    uint32_t exponent = most / 2 + 2 - test_random_below(random, 10);
    if (kind == 1)
        exponent = test_random_below(random, 3);
    if (kind == 2)
        exponent = test_random_below(random, most + 1);
    uint32_t bits = exponent << fraction[dtype] | ((uint32_t)r & ((1u << fraction[dtype]) - 1));
    bits |= (uint32_t)(r >> 63) << (8 * bytes - 1);
    memcpy(at, &bits, bytes);
}

struct shape {
    struct tierce__rope rope;
    enum tierce__blend_dtype dtype;
    size_t tokens, token_bytes, head_bytes, bytes;
    uint32_t heads;
};

static inline struct shape random_shape(struct test_random *random)
{
    struct shape s = {.dtype = (enum tierce__blend_dtype)test_random_below(random, 3),
                      .tokens = test_random_below(random, SHAPE_TOKENS_MAX + 1),
                      .heads = 1 + test_random_below(random, SHAPE_HEADS_MAX)};
    s.rope.pairs = 1 + test_random_below(
                           random, test_random_below(random, 3) == 0 ? TIERCE__ROPE_PAIRS_MAX : 40);
    s.rope.layout.style = (enum tierce__rope_style)test_random_below(random, 2);
    s.rope.layout.first = test_random_below(random, 2) * test_random_below(random, 60);
    s.rope.layout.width = 2 * s.rope.pairs + test_random_below(random, 2) * 5;
    s.rope.layout.row_elements =
        s.rope.layout.first + s.rope.layout.width + test_random_below(random, 2) * 7;
    for (unsigned i = 0; i < s.rope.pairs; i++)
        s.rope.frequencies[i] = pow(10000, -(double)i / s.rope.pairs);
    size_t element = tierce__blend_dtype_bytes(s.dtype);
    s.head_bytes = s.rope.layout.row_elements * element + test_random_below(random, 3);
    s.token_bytes = s.heads * s.head_bytes + test_random_below(random, 5);
    s.bytes = s.tokens * s.token_bytes;
    return s;
}

static inline size_t row_at(const struct shape *s, size_t token, uint32_t head)
{
    return token * s->token_bytes + head * s->head_bytes;
}

static inline void fill_rows(uint8_t *at, const struct shape *s, struct test_random *random,
                             unsigned kind)
{
    size_t element = tierce__blend_dtype_bytes(s->dtype);
    memset(at, SHAPE_GUARD, s->bytes);
    for (size_t t = 0; t < s->tokens; t++) {
        for (uint32_t h = 0; h < s->heads; h++) {
            for (uint32_t i = 0; i < s->rope.layout.row_elements; i++)
                fill(at + row_at(s, t, h) + i * element, s->dtype, random, kind);
        }
    }
}

#endif
