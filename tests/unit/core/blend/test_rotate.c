/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/blend_kernels.h"
#include "core/blend/select.h"
#include "key_shapes.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* Rotations and distances stay within the bounds of rope.h and select.h of a reference in double
 * precision, and all kernels have equal results. */

/* ---- numbers ----------------------------------------------------------------------------------
 */

static double number_at(enum tierce__blend_dtype dtype, const uint8_t *at)
{
    uint32_t bits = 0;
    memcpy(&bits, at, tierce__blend_dtype_bytes(dtype));
    if (dtype != TIERCE__BLEND_FP16) {
        bits <<= dtype == TIERCE__BLEND_BF16 ? 16 : 0;
        float value;
        memcpy(&value, &bits, sizeof(value));
        return (double)value;
    }
    int exponent = bits >> 10 & 31;
    unsigned mantissa = bits & 0x3ff;
    double value = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(mantissa + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* Half a unit in the last place of the result, and the greatest finite number. */
static double half_unit(enum tierce__blend_dtype dtype, double value)
{
    static const int bits[] = {9, 12, 25}, least[] = {-134, -25, -150};
    double unit = value == 0 ? 0 : ldexp(1, ilogb(value) + 1 - bits[dtype]);
    return fmax(unit, ldexp(1, least[dtype]));
}

static const double greatest[] = {0x1.fep127, 65504, 0x1.fffffep127};

/* ---- checks -----------------------------------------------------------------------------------
 */

static void check_element(enum tierce__blend_dtype dtype, const uint8_t *at, double exact, double r)
{
    double value = number_at(dtype, at);
    if (isnan(exact)) {
        ck_assert(isnan(value));
        return;
    }
    double error = 0x1p-22 * r + 0x1p-149, unit = half_unit(dtype, fabs(exact) + error);
    if (isinf(value)) /* too great for the element */
        ck_assert_msg(fabs(exact) + error + unit > greatest[dtype], "%g became infinite", exact);
    else
        ck_assert_msg(fabs(value - exact) <= error + unit, "%g in place of %g, dtype %d", value,
                      exact, (int)dtype);
}

/* Whether the reference is a sum without a meaning: inf - inf, or inf * 0. */
static double exact_or_nan(double x, double y)
{
    return isfinite(x) && isfinite(y) ? x + y : NAN;
}

static void check_row(const struct shape *s, int64_t delta, const uint8_t *now, const uint8_t *was)
{
    size_t element = tierce__blend_dtype_bytes(s->dtype);
    const struct tierce__rope_layout *l = &s->rope.layout;
    uint32_t rotated = 2 * s->rope.pairs;
    ck_assert_mem_eq(now, was, l->first * element);
    ck_assert_mem_eq(now + (l->first + rotated) * element, was + (l->first + rotated) * element,
                     (l->row_elements - l->first - rotated) * element);
    for (uint32_t i = 0; i < s->rope.pairs; i++) {
        bool is_neox = l->style == TIERCE__ROPE_NEOX;
        size_t first = (l->first + (is_neox ? i : 2 * i)) * element;
        size_t second = first + (is_neox ? s->rope.pairs : 1) * element;
        double x = number_at(s->dtype, was + first), y = number_at(s->dtype, was + second);
        if (!isfinite(x) || !isfinite(y))
            continue; /* test_every_number has them */
        double angle = (double)delta * s->rope.frequencies[i], r = hypot(x, y);
        check_element(s->dtype, now + first, exact_or_nan(x * cos(angle), -y * sin(angle)), r);
        check_element(s->dtype, now + second, exact_or_nan(y * cos(angle), x * sin(angle)), r);
    }
}

/* With every kernel, to other rows and in place. `out` is the result. */
static void rotate(const struct shape *s, int64_t delta, uint8_t *out, uint8_t *in)
{
    static uint8_t other[SHAPE_BYTES_MAX], expected[SHAPE_BYTES_MAX];
    struct tierce__rotation rotation;
    tierce__rotation_init(&rotation, &s->rope, delta);
    bool is_first = true;
    for (unsigned k = 0; tierce__kernel_name(&tierce__blend_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__blend_kernels, k))
            continue;
        struct tierce__key_rows src = {in, s->token_bytes, s->head_bytes};
        struct tierce__key_rows dst = {out, s->token_bytes, s->head_bytes};
        memset(out, SHAPE_GUARD, s->bytes);
        tierce__rotate(&rotation, s->dtype, &dst, &src, s->tokens, s->heads);
        memcpy(other, in, s->bytes);
        src.at = dst.at = other;
        tierce__rotate(&rotation, s->dtype, &dst, &src, s->tokens, s->heads);
        ck_assert_mem_eq(out, other, s->bytes);
        ck_assert_msg(is_first || memcmp(out, expected, s->bytes) == 0,
                      "%s: other bytes than with the first kernel",
                      tierce__kernel_name(&tierce__blend_kernels, k));
        memcpy(expected, out, s->bytes);
        is_first = false;
    }
    tierce__kernel_force(&tierce__blend_kernels, UINT_MAX);
}

static uint8_t before[SHAPE_BYTES_MAX], after[SHAPE_BYTES_MAX], again[SHAPE_BYTES_MAX];

START_TEST(test_random_rotations)
{
    struct test_random random = test_random_start("test_random_rotations");
    for (unsigned round = 0; round < TEST_ROUNDS(800) * test_scale(); round++) {
        struct shape s = random_shape(&random);
        ck_assert_uint_le(s.bytes, SHAPE_BYTES_MAX);
        int64_t delta =
            (int64_t)(test_random_u64(&random) >> (32 + test_random_below(&random, 30)));
        delta = test_random_below(&random, 2) ? delta / 2 : -delta / 2;
        fill_rows(before, &s, &random, round % 3);
        rotate(&s, delta, after, before);
        for (size_t t = 0; t < s.tokens; t++) {
            for (uint32_t h = 0; h < s.heads; h++) {
                if (delta == 0)
                    ck_assert_mem_eq(after + row_at(&s, t, h), before + row_at(&s, t, h),
                                     s.head_bytes - s.head_bytes % 2);
                else
                    check_row(&s, delta, after + row_at(&s, t, h), before + row_at(&s, t, h));
            }
        }
    }
}
END_TEST

/* There and back: each rotation adds its error. */
START_TEST(test_round_trip)
{
    struct test_random random = test_random_start("test_round_trip");
    for (unsigned round = 0; round < TEST_ROUNDS(400) * test_scale(); round++) {
        struct shape s = random_shape(&random);
        int64_t delta = 1 + test_random_below(&random, 100000);
        fill_rows(before, &s, &random, 0);
        rotate(&s, delta, after, before);
        rotate(&s, -delta, again, after);
        size_t element = tierce__blend_dtype_bytes(s.dtype), step = s.rope.pairs * element;
        bool is_neox = s.rope.layout.style == TIERCE__ROPE_NEOX;
        for (size_t t = 0; t < s.tokens; t++) {
            for (uint32_t i = 0; i < s.rope.pairs; i++) {
                size_t at = row_at(&s, t, 0) + s.rope.layout.first * element;
                size_t first = at + i * (is_neox ? element : 2 * element);
                size_t second = first + (is_neox ? step : element);
                double x = number_at(s.dtype, before + first),
                       y = number_at(s.dtype, before + second);
                double r = hypot(x, y), bound = 3 * (half_unit(s.dtype, r) + 0x1p-22 * r);
                ck_assert(fabs(number_at(s.dtype, again + first) - x) <= bound);
                ck_assert(fabs(number_at(s.dtype, again + second) - y) <= bound);
            }
        }
    }
}
END_TEST

/* Keys that a model has rotated to one position become those of another position. */
START_TEST(test_positions_add_up)
{
    struct test_random random = test_random_start("test_positions_add_up");
    for (unsigned round = 0; round < TEST_ROUNDS(300); round++) {
        struct shape s = random_shape(&random);
        s.dtype = TIERCE__BLEND_FP32;
        s.head_bytes = s.rope.layout.row_elements * sizeof(float);
        s.token_bytes = s.heads * s.head_bytes;
        s.bytes = s.tokens * s.token_bytes;
        int64_t old = test_random_below(&random, 32768), new = test_random_below(&random, 32768);
        fill_rows(before, &s, &random, 0);
        rotate(&s, old, after, before);
        rotate(&s, new - old, again, after);
        rotate(&s, new, after, before);
        for (size_t at = 0; at < s.bytes; at += sizeof(float)) {
            double x = number_at(s.dtype, after + at), y = number_at(s.dtype, again + at);
            ck_assert_msg(fabs(x - y) <= 8 * 4 * 0x1p-22, "%g and %g", x, y);
        }
    }
}
END_TEST

/* Every number of 16 bits, as either half of a pair: with a rotation by nearly nothing it remains,
 * and NaN and infinity do not become numbers. */
START_TEST(test_every_number)
{
    static uint8_t every[4 * 65536], turned[4 * 65536];
    for (int dtype = TIERCE__BLEND_BF16; dtype <= TIERCE__BLEND_FP16; dtype++) {
        for (unsigned half = 0; half < 2; half++) {
            memset(every, 0, sizeof(every));
            for (unsigned i = 0; i < 65536; i++) {
                uint16_t word = (uint16_t)i;
                memcpy(every + 4 * (size_t)i + 2 * half, &word, 2);
            }
            struct shape s = {.rope = {.layout = {TIERCE__ROPE_GPTJ, 2, 0, 2}, .pairs = 1},
                              .dtype = (enum tierce__blend_dtype)dtype,
                              .tokens = 65536,
                              .heads = 1,
                              .token_bytes = 4,
                              .bytes = sizeof(every)};
            struct tierce__rotation rotation;
            s.rope.frequencies[0] = 1e-30;
            tierce__rotation_init(&rotation, &s.rope, 1);
            struct tierce__key_rows src = {every, 4, 4}, dst = {turned, 4, 4};
            for (unsigned k = 0; tierce__kernel_name(&tierce__blend_kernels, k) != NULL; k++) {
                if (!tierce__kernel_force(&tierce__blend_kernels, k))
                    continue;
                tierce__rotate(&rotation, s.dtype, &dst, &src, s.tokens, 1);
                for (size_t i = 0; i < 65536; i++) {
                    double x = number_at(s.dtype, every + 4 * i + 2 * half);
                    double y = number_at(s.dtype, turned + 4 * i + 2 * half);
                    ck_assert_msg(isnan(x) ? isnan(y) : x == y, "%zx: %g became %g", i, x, y);
                }
            }
        }
    }
    tierce__kernel_force(&tierce__blend_kernels, UINT_MAX);
}
END_TEST

/* ---- distances --------------------------------------------------------------------------------
 */

START_TEST(test_distances)
{
    struct test_random random = test_random_start("test_distances");
    for (unsigned round = 0; round < TEST_ROUNDS(800) * test_scale(); round++) {
        struct shape s = random_shape(&random);
        size_t element = tierce__blend_dtype_bytes(s.dtype), row = s.rope.layout.row_elements;
        float found[SHAPE_TOKENS_MAX], first[SHAPE_TOKENS_MAX];
        bool is_first = true;
        fill_rows(before, &s, &random, round % 2);
        fill_rows(after, &s, &random, round % 2);
        struct tierce__key_rows a = {before, s.token_bytes, s.head_bytes}, b = a;
        b.at = after;
        for (unsigned k = 0; tierce__kernel_name(&tierce__blend_kernels, k) != NULL; k++) {
            if (!tierce__kernel_force(&tierce__blend_kernels, k))
                continue;
            tierce__key_distances(found, s.dtype, &a, &b, s.tokens, s.heads, (uint32_t)row);
            ck_assert(is_first || memcmp(found, first, s.tokens * sizeof(*found)) == 0);
            memcpy(first, found, s.tokens * sizeof(*found));
            is_first = false;
        }
        for (size_t t = 0; t < s.tokens; t++) {
            double sum = 0, elements = (double)row * s.heads;
            for (size_t i = 0; i < row * s.heads; i++) {
                size_t at = row_at(&s, t, (uint32_t)(i / row)) + i % row * element;
                double d = number_at(s.dtype, before + at) - number_at(s.dtype, after + at);
                sum += d * d;
            }
            double bound = sum * (elements / 16 + 8) * 0x1p-24 + elements * 0x1p-149;
            ck_assert_msg(fabs((double)found[t] - sum) <= bound, "%g in place of %g",
                          (double)found[t], sum);
        }
    }
    tierce__kernel_force(&tierce__blend_kernels, UINT_MAX);
}
END_TEST

/* A key that is not a number is farther away than any other. */
START_TEST(test_distance_of_a_nan)
{
    float a[4] = {1, 2, NAN, 4}, b[4] = {1, 2, 3, 4}, distances[4];
    uint32_t tokens[4] = {0, 1, 2, 3};
    struct tierce__key_rows x = {(uint8_t *)a, 4, 4}, y = {(uint8_t *)b, 4, 4};
    tierce__key_distances(distances, TIERCE__BLEND_FP32, &x, &y, 4, 1, 1);
    ck_assert(distances[0] == 0 && isnan(distances[2]));
    ck_assert_uint_eq(tierce__blend_select(tokens, distances, 4, 1), 1);
    ck_assert_uint_eq(tokens[0], 2);
}
END_TEST

START_TEST(test_dtypes)
{
    ck_assert_int_eq(tierce__blend_dtype_of("bfloat16"), TIERCE__BLEND_BF16);
    ck_assert_int_eq(tierce__blend_dtype_of("float16"), TIERCE__BLEND_FP16);
    ck_assert_int_eq(tierce__blend_dtype_of("float32"), TIERCE__BLEND_FP32);
    ck_assert_int_eq(tierce__blend_dtype_of("fp8_e4m3"), TIERCE__BLEND_DTYPES);
    ck_assert_int_eq(tierce__blend_dtype_of("int8"), TIERCE__BLEND_DTYPES);
    ck_assert_int_eq(tierce__blend_dtype_of(""), TIERCE__BLEND_DTYPES);
}
END_TEST

static Suite *rotate_suite(void)
{
    Suite *suite = suite_create("rotate");
    TCase *tcase = tcase_create("rotate");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, test_random_rotations);
    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_positions_add_up);
    tcase_add_test(tcase, test_every_number);
    tcase_add_test(tcase, test_distances);
    tcase_add_test(tcase, test_distance_of_a_nan);
    tcase_add_test(tcase, test_dtypes);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(rotate_suite());
}
