/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/codec/codec.h"
#include "kv_values.h"
#include "test_random.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* The lossy codecs keep the error below the bounds of docs/inside/format/codec.md, all kernels
 * write and restore equal bytes, and no bytes make a decoder leave its buffers. */

enum { RUN_MAX = 70000, GUARD = 0xA5, GUARD_BYTES = 64 };

static const char *const names[] = {"int8", "int4", "fp8"};
#define NAMES (sizeof(names) / sizeof(names[0]))
static const enum tierce__element elements[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_FP16};
static const size_t group_lengths[NAMES] = {64, 32, 64};

static uint8_t *run, *back, *first_back, *coded, *first;

static void setup(void)
{
    run = malloc(RUN_MAX);
    back = malloc(RUN_MAX);
    first_back = malloc(RUN_MAX);
    coded = malloc(tierce__codec_bound(RUN_MAX) + GUARD_BYTES);
    first = malloc(tierce__codec_bound(RUN_MAX));
    ck_assert(run != NULL && back != NULL && first_back != NULL && coded != NULL && first != NULL);
}

static void teardown(void)
{
    tierce__kernel_force(&tierce__codec_kernels, UINT_MAX);
    free(run);
    free(back);
    free(first_back);
    free(coded);
    free(first);
}

static double value_of(enum tierce__element element, const uint8_t *at)
{
    unsigned word = tierce__load_le16(at), sign = word >> 15;
    unsigned bits = element == TIERCE__ELEMENT_BF16 ? 7 : 10;
    int bias = element == TIERCE__ELEMENT_BF16 ? 127 : 15;
    int exponent = (int)((word & 0x7fff) >> bits);
    unsigned mantissa = word & ((1u << bits) - 1);
    if (exponent == 2 * bias + 1)
        return mantissa != 0 ? NAN : sign ? -INFINITY : INFINITY;
    double value = ldexp(exponent == 0 ? mantissa : mantissa + (1u << bits),
                         (exponent == 0 ? 1 : exponent) - bias - (int)bits);
    return sign ? -value : value;
}

/* The stated bound of |x - x'|; m is the greatest magnitude of the group. */
static double bound_of(unsigned codec, enum tierce__element element, double x, double m)
{
    double rounding = element == TIERCE__ELEMENT_BF16 ? 0x1p-100 : 0x1p-24;
    switch (codec) {
    case 0:
        return m / 254 + m / 256 + rounding;
    case 1:
        return m / 14 + m / 256 + rounding;
    default:
        return fabs(x) / 16 + fabs(x) / 200 + m / (448 * 1024.0) + rounding;
    }
}

static void expect_bounds(unsigned codec, enum tierce__element element, size_t bytes)
{
    size_t length = group_lengths[codec], n = bytes / 2;
    for (size_t g = 0; g < n; g += length) {
        double m = 0;
        for (size_t i = g; i < n && i < g + length; i++)
            m = fmax(m, fabs(value_of(element, run + 2 * i)));
        for (size_t i = g; i < n && i < g + length; i++) {
            double x = value_of(element, run + 2 * i), y = value_of(element, back + 2 * i);
            ck_assert_msg(fabs(x - y) <= bound_of(codec, element, x, m),
                          "%s of %s: element %zu is %g and becomes %g; m = %g", names[codec],
                          tierce__element_name(element), i, x, y, m);
        }
    }
}

/* From memory of exactly its size, so that the address sanitizer sees a read beyond it. */
static int decode_exact(unsigned codec, uint8_t *dst, size_t bytes, const uint8_t *src,
                        size_t length)
{
    uint8_t *exact = malloc(length > 0 ? length : 1), *out = malloc(bytes > 0 ? bytes : 1);
    ck_assert(exact != NULL && out != NULL);
    memcpy(exact, src, length);
    int rc = tierce__codec_find(names[codec])->decode(out, bytes, exact, length);
    if (rc == 0)
        memcpy(dst, out, bytes);
    free(exact);
    free(out);
    return rc;
}

/* Encodes and decodes run[0 .. bytes) with every kernel, to back; returns the coded length. */
static size_t there_and_back(unsigned codec, enum tierce__element element, size_t bytes)
{
    struct tierce__codec_shape shape = {.element = element};
    uint64_t room = tierce__codec_bound(bytes);
    int64_t length = -1;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        memset(coded + room, GUARD, GUARD_BYTES);
        int64_t now = tierce__codec_find(names[codec])->encode(coded, room, run, bytes, &shape);
        ck_assert(now >= 0 && (uint64_t)now <= room);
        for (unsigned i = 0; i < GUARD_BYTES; i++)
            ck_assert_uint_eq(coded[room + i], GUARD);
        ck_assert_int_eq(decode_exact(codec, back, bytes, coded, (size_t)now), 0);
        ck_assert_msg(length < 0 || (now == length && memcmp(first, coded, (size_t)now) == 0 &&
                                     memcmp(first_back, back, bytes) == 0),
                      "%s: %zu bytes of %s by %s: other bytes than with the first kernel",
                      tierce__kernel_name(&tierce__codec_kernels, k), bytes,
                      tierce__element_name(element), names[codec]);
        memcpy(first, coded, (size_t)now);
        memcpy(first_back, back, bytes);
        length = now;
    }
    return (size_t)length;
}

/* Random finite values whose exponents end at `top`. */
static void fill(enum tierce__element element, size_t bytes, uint64_t seed, unsigned top)
{
    unsigned most = element == TIERCE__ELEMENT_BF16 ? 254 : 30;
    kv_fill(run, bytes, element, seed, top < most ? top : most, 150);
}

START_TEST(test_names)
{
    static const uint32_t numbers[NAMES] = {2, 3, 4};
    ck_assert(tierce__codec_find("lossless")->is_exact);
    for (unsigned c = 0; c < NAMES; c++) {
        const struct tierce__codec *codec = tierce__codec_find(names[c]);
        ck_assert_ptr_nonnull(codec);
        ck_assert(!codec->is_exact);
        ck_assert_ptr_eq(tierce__codec_numbered(numbers[c]), codec);
    }
}
END_TEST

START_TEST(test_arguments)
{
    for (unsigned c = 0; c < NAMES; c++) {
        const struct tierce__codec *codec = tierce__codec_find(names[c]);
        struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_E4M3};
        uint64_t room = tierce__codec_bound(64);
        ck_assert_int_eq(codec->encode(coded, room, run, 64, &shape), TIERCE_E_ARGUMENT);
        shape.element = TIERCE__ELEMENT_BF16;
        ck_assert_int_eq(codec->encode(coded, room - 1, run, 64, &shape), TIERCE_E_LIMIT);
        ck_assert_int_eq(codec->encode(coded, room, run, 0, &shape), 0);
        ck_assert_int_eq(codec->decode(back, 0, coded, 0), 0);
        ck_assert_int_eq(codec->decode(back, 0, coded, 1), TIERCE_E_FORMAT);
        ck_assert_int_eq(codec->decode(back, 2, coded, 0), TIERCE_E_FORMAT);
    }
}
END_TEST

START_TEST(test_every_length)
{
    for (unsigned e = 0; e < 2; e++) {
        fill(elements[e], 1000, 7, 130);
        for (size_t bytes = 0; bytes <= 600; bytes++) {
            size_t length = there_and_back((unsigned)_i, elements[e], bytes);
            if (bytes % 2 == 0)
                expect_bounds((unsigned)_i, elements[e], bytes);
            if (bytes % 2 == 1 || length == bytes + 4) /* stored */
                ck_assert_mem_eq(back, run, bytes);
        }
    }
}
END_TEST

START_TEST(test_lengths_are_as_stated)
{
    static const size_t lengths[NAMES] = {4 + 512 * 66, 4 + 1024 * 18, 4 + 512 * 66};
    fill(TIERCE__ELEMENT_BF16, 65536, 3, 130);
    ck_assert_uint_eq(there_and_back((unsigned)_i, TIERCE__ELEMENT_BF16, 65536), lengths[_i]);
}
END_TEST

/* Every finite number of the element, beside others of like and of any magnitude. */
START_TEST(test_every_number)
{
    unsigned codec = (unsigned)_i / 2;
    enum tierce__element element = elements[_i % 2];
    unsigned end = element == TIERCE__ELEMENT_BF16 ? 0x7f80 : 0x7c00;
    for (unsigned step = 1; step < end; step = step * 37 + 2) {
        for (unsigned i = 0; i < end; i++) {
            unsigned magnitude = (unsigned)((uint64_t)i * step % end);
            tierce__store_le16(run + 2 * i, (uint16_t)(magnitude | (i & 1) << 15));
        }
        (void)there_and_back(codec, element, 2 * (size_t)end);
        expect_bounds(codec, element, 2 * (size_t)end);
    }
}
END_TEST

START_TEST(test_random_runs)
{
    struct test_random random = test_random_start("test_random_runs");
    for (unsigned i = 0; i < 40 * test_scale(); i++) {
        enum tierce__element element = elements[i % 2];
        size_t bytes = 2 * test_random_below(&random, 8000);
        fill(element, bytes, test_random_u64(&random), test_random_below(&random, 255));
        (void)there_and_back((unsigned)_i, element, bytes);
        expect_bounds((unsigned)_i, element, bytes);
    }
}
END_TEST

/* A run with a NaN or an infinity anywhere comes back bit by bit. */
START_TEST(test_not_finite)
{
    struct test_random random = test_random_start("test_not_finite");
    for (unsigned i = 0; i < 60; i++) {
        enum tierce__element element = elements[i % 2];
        size_t bytes = 512 + 2 * test_random_below(&random, 200);
        size_t at = i < 2 ? bytes - 2 : 2 * test_random_below(&random, (uint32_t)(bytes / 2));
        fill(element, bytes, i, 130);
        unsigned least = element == TIERCE__ELEMENT_BF16 ? 0x7f80 : 0x7c00;
        unsigned value = least + (i % 3 == 0 ? 0 : test_random_below(&random, 0x8000 - least));
        tierce__store_le16(run + at, (uint16_t)(value | (i & 4) << 13));
        (void)there_and_back((unsigned)_i, element, bytes);
        ck_assert_mem_eq(back, run, bytes);
    }
}
END_TEST

START_TEST(test_zeroes)
{
    for (unsigned e = 0; e < 2; e++) {
        memset(run, 0, 4096);
        (void)there_and_back((unsigned)_i, elements[e], 4096);
        for (size_t i = 0; i < 2048; i++)
            ck_assert(value_of(elements[e], back + 2 * i) == 0);
    }
}
END_TEST

/* All kernels agree on any bytes: accepted with the same result, or rejected. */
static int agreed(unsigned codec, size_t bytes, size_t length)
{
    int rc = INT_MAX;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        int now = decode_exact(codec, back, bytes, coded, length);
        ck_assert(now == 0 || now == TIERCE_E_FORMAT);
        ck_assert(rc == INT_MAX || now == rc);
        ck_assert(rc != 0 || memcmp(first_back, back, bytes) == 0);
        if (now == 0)
            memcpy(first_back, back, bytes);
        rc = now;
    }
    return rc;
}

START_TEST(test_damaged_bytes)
{
    struct test_random random = test_random_start("test_damaged_bytes");
    unsigned codec = (unsigned)_i / 2;
    fill(elements[_i % 2], 2000, test_random_u64(&random), 130);
    size_t length = there_and_back(codec, elements[_i % 2], 2000);
    ck_assert_uint_lt(length, 2000);
    for (size_t i = 0; i < length; i++) {
        uint8_t was = coded[i];
        coded[i] ^= (uint8_t)(1u << test_random_below(&random, 8));
        (void)agreed(codec, 2000, length);
        coded[i] = 0xff;
        (void)agreed(codec, 2000, length);
        coded[i] = was;
    }
    for (size_t cut = 0; cut < length; cut++)
        ck_assert_int_eq(decode_exact(codec, back, 2000, coded, cut), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(codec, 1998 - 64, length), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(codec, 2000 + 64, length), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(codec, 2000, length), 0);
}
END_TEST

/* One test per field: kind, element, length of the last group, the zero, a scale, a code. */
START_TEST(test_fields)
{
    fill(TIERCE__ELEMENT_BF16, 4096, 3, 130);
    size_t length = there_and_back((unsigned)_i, TIERCE__ELEMENT_BF16, 4096);
    size_t groups = 2048 / group_lengths[_i];
    const struct {
        size_t at;
        uint8_t value;
    } invalid[] = {
        {0, 0},    {0, 2}, {1, 0}, {1, 3},    {1, 5},
        {2, 0},    {2, 1}, {3, 1}, {5, 0x7f}, /* the upper half of a scale: below, that of NaN once
                                         the lower is 0x80 */
        {5, 0x80},                            /* negative */
        {5, 0x01},                            /* below 2^-100 */
    };
    coded[4] |= 0x80;
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
        uint8_t was = coded[invalid[i].at];
        coded[invalid[i].at] = invalid[i].value;
        ck_assert_msg(agreed((unsigned)_i, 4096, length) == TIERCE_E_FORMAT, "byte %zu may be %u",
                      invalid[i].at, invalid[i].value);
        coded[invalid[i].at] = was;
    }
    coded[4 + 2 * groups] = 0xff; /* no level, or NaN */
    ck_assert_int_eq(agreed((unsigned)_i, 4096, length), TIERCE_E_FORMAT);
}
END_TEST

static Suite *lossy_suite(void)
{
    Suite *suite = suite_create("lossy");
    TCase *tcase = tcase_create("lossy");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_names);
    tcase_add_test(tcase, test_arguments);
    tcase_add_loop_test(tcase, test_every_length, 0, NAMES);
    tcase_add_loop_test(tcase, test_lengths_are_as_stated, 0, NAMES);
    tcase_add_loop_test(tcase, test_every_number, 0, 2 * NAMES);
    tcase_add_loop_test(tcase, test_random_runs, 0, NAMES);
    tcase_add_loop_test(tcase, test_not_finite, 0, NAMES);
    tcase_add_loop_test(tcase, test_zeroes, 0, NAMES);
    tcase_add_loop_test(tcase, test_damaged_bytes, 0, 2 * NAMES);
    tcase_add_loop_test(tcase, test_fields, 0, NAMES);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(lossy_suite());
}
