/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/codec/codec.h"
#include "kv_values.h"
#include "test_random.h"

#include <limits.h>
#include <string.h>

/* Every bit comes back, all kernels write equal bytes, and no bytes make a decoder leave its
 * buffers. */

enum { RUN_MAX = 300000, GUARD = 0xA5, GUARD_BYTES = 64 };

static const struct tierce__codec *lossless;
static const enum tierce__element floats[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_FP16,
                                              TIERCE__ELEMENT_E4M3, TIERCE__ELEMENT_E5M2};
#define FLOATS (sizeof(floats) / sizeof(floats[0]))

static uint8_t *run, *back, *coded, *first;

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    ck_assert_ptr_nonnull(lossless);
    run = malloc(RUN_MAX);
    back = malloc(RUN_MAX + 2 * GUARD_BYTES);
    coded = malloc(tierce__codec_bound(RUN_MAX) + GUARD_BYTES);
    first = malloc(tierce__codec_bound(RUN_MAX));
    ck_assert(run != NULL && back != NULL && coded != NULL && first != NULL);
}

static void teardown(void)
{
    tierce__kernel_force(&tierce__codec_kernels, UINT_MAX);
    free(run);
    free(back);
    free(coded);
    free(first);
}

static void expect_guard(const uint8_t *bytes)
{
    for (unsigned i = 0; i < GUARD_BYTES; i++)
        ck_assert_msg(bytes[i] == GUARD, "byte %u behind the buffer was written", i);
}

/* From memory of exactly its size, so that the address sanitizer sees a read beyond it. */
static int decode_exact(uint8_t *dst, size_t bytes, const uint8_t *src, size_t length)
{
    uint8_t *exact = malloc(length > 0 ? length : 1), *out = malloc(bytes > 0 ? bytes : 1);
    ck_assert(exact != NULL && out != NULL);
    memcpy(exact, src, length);
    int rc = lossless->decode(out, bytes, exact, length);
    memcpy(dst, out, bytes);
    free(exact);
    free(out);
    return rc;
}

/* Encodes and decodes run[0 .. bytes) with every kernel; returns the coded length. */
static size_t there_and_back(size_t bytes, enum tierce__element element, uint64_t part_bytes)
{
    struct tierce__codec_shape shape = {.element = element, .part_bytes = part_bytes};
    uint64_t room = tierce__codec_bound(bytes);
    int64_t length = -1;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        memset(coded + room, GUARD, GUARD_BYTES);
        int64_t now = lossless->encode(coded, room, run, bytes, &shape);
        ck_assert_msg(now >= 0 && (uint64_t)now <= room, "%s: %zu bytes of %s: %lld",
                      tierce__kernel_name(&tierce__codec_kernels, k), bytes,
                      tierce__element_name(element), (long long)now);
        expect_guard(coded + room);
        if (length < 0)
            memcpy(first, coded, (size_t)now);
        ck_assert_msg(length < 0 || (now == length && memcmp(first, coded, (size_t)now) == 0),
                      "%s: %zu bytes of %s: other coded bytes than with the first kernel",
                      tierce__kernel_name(&tierce__codec_kernels, k), bytes,
                      tierce__element_name(element));
        length = now;
        memset(back, 0, bytes);
        ck_assert_int_eq(decode_exact(back, bytes, coded, (size_t)length), 0);
        ck_assert_msg(memcmp(back, run, bytes) == 0, "%s: %zu bytes of %s differ",
                      tierce__kernel_name(&tierce__codec_kernels, k), bytes,
                      tierce__element_name(element));
    }
    ck_assert_int_ge(length, 0);
    return (size_t)length;
}

START_TEST(test_names)
{
    ck_assert_ptr_eq(tierce__codec_numbered(1), lossless);
    ck_assert_ptr_null(tierce__codec_numbered(0));
    ck_assert_ptr_null(tierce__codec_numbered(100));
    ck_assert_ptr_null(tierce__codec_find("zstd"));
    for (unsigned i = 0; i < TIERCE__ELEMENTS; i++)
        ck_assert_int_eq(tierce__element_find(tierce__element_name((enum tierce__element)i)), i);
    ck_assert_int_eq(tierce__element_find("fp32"), TIERCE__ELEMENTS);
    unsigned last = 0;
    while (tierce__kernel_name(&tierce__codec_kernels, last + 1) != NULL)
        last++;
    ck_assert_str_eq(tierce__kernel_name(&tierce__codec_kernels, last), "portable");
    ck_assert(tierce__kernel_usable(&tierce__codec_kernels, last));
    ck_assert(!tierce__kernel_force(&tierce__codec_kernels, last + 1));
}
END_TEST

START_TEST(test_arguments)
{
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENTS};
    ck_assert_int_eq(lossless->encode(coded, tierce__codec_bound(64), run, 64, &shape),
                     TIERCE_E_ARGUMENT);
    shape.element = TIERCE__ELEMENT_BF16;
    ck_assert_int_eq(lossless->encode(coded, tierce__codec_bound(64) - 1, run, 64, &shape),
                     TIERCE_E_LIMIT);
    ck_assert_int_eq(lossless->encode(coded, tierce__codec_bound(0), run, 0, &shape), 0);
    ck_assert_int_eq(lossless->decode(back, 0, coded, 0), 0);
    ck_assert_int_eq(lossless->decode(back, 0, coded, 1), TIERCE_E_FORMAT);
    ck_assert_int_eq(lossless->decode(back, 1, coded, 0), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(test_every_length)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        kv_fill(run, 2500, floats[f], 11, 9, 128);
        for (size_t bytes = 0; bytes <= 2500; bytes += bytes < 520 || bytes > 1150 ? 1 : 7)
            (void)there_and_back(bytes, floats[f], 0);
    }
}
END_TEST

START_TEST(test_all_bit_patterns)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        for (size_t i = 0; i < 131072; i++)
            run[i] = (uint8_t)(i % 2 == 0 ? i / 2 : i / 512);
        (void)there_and_back(131072, floats[f], 0);
        /* each beside values that are often the same, so that it is coded and not stored */
        kv_fill(run, 131072, floats[f], 12, 9, 120);
        for (size_t i = 0; i < 65536; i += 32)
            tierce__store_le16(run + 2 * i, (uint16_t)(i + i / 2048));
        (void)there_and_back(131072, floats[f], 0);
    }
}
END_TEST

START_TEST(test_one_value)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        for (unsigned value = 0; value < 256; value += 51) {
            memset(run, (int)value, 65536);
            (void)there_and_back(65536, floats[f], 0);
        }
    }
    memset(run, 0, 65536);
    ck_assert_uint_lt(there_and_back(65536, TIERCE__ELEMENT_BF16, 0), 65536 * 51 / 100);
}
END_TEST

START_TEST(test_incompressible_bytes_cost_little)
{
    uint64_t seed = 5;
    for (size_t i = 0; i < RUN_MAX; i++)
        run[i] = (uint8_t)tierce__random_next(&seed);
    for (unsigned e = 0; e < TIERCE__ELEMENTS; e++)
        ck_assert_uint_le(there_and_back(RUN_MAX, (enum tierce__element)e, 0),
                          RUN_MAX + RUN_MAX / 1000);
}
END_TEST

START_TEST(test_parts_have_symbols_of_their_own)
{
    static const size_t parts[] = {128, 256, 1024, 6144, 24576, 49152};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t part = parts[i];
        uint64_t bytes = 262144 / (2 * part) * (2 * part);
        for (size_t at = 0; at < bytes; at += part)
            kv_fill(run + at, part, TIERCE__ELEMENT_BF16, at + 1, at / part % 2 == 0 ? 130 : 120,
                    150);
        size_t with = there_and_back(bytes, TIERCE__ELEMENT_BF16, part);
        size_t without = there_and_back(bytes, TIERCE__ELEMENT_BF16, 0);
        ck_assert_msg(with < without, "parts of %zu: %zu bytes, without parts %zu", part, with,
                      without);
    }
}
END_TEST

/* Any length, element, part and distribution, also such that change in the middle. */
START_TEST(test_random_runs)
{
    struct test_random random = test_random_start("test_random_runs");
    unsigned rounds = 150 * test_scale();
    for (unsigned i = 0; i < rounds; i++) {
        enum tierce__element element =
            (enum tierce__element)test_random_below(&random, TIERCE__ELEMENTS);
        size_t bytes = test_random_below(&random, i % 4 == 0 ? RUN_MAX : 5000);
        size_t parts = 1 + test_random_below(&random, 4);
        for (size_t k = 0; k < parts; k++) {
            size_t from = bytes * k / parts, to = bytes * (k + 1) / parts;
            kv_fill(run + from, to - from,
                    element == TIERCE__ELEMENT_RAW ? TIERCE__ELEMENT_FP16 : element,
                    test_random_u64(&random), test_random_below(&random, 256),
                    test_random_below(&random, 257));
        }
        uint64_t part =
            test_random_below(&random, 3) == 0 ? 0 : 64 * test_random_below(&random, 2000);
        (void)there_and_back(bytes, element, part);
    }
}
END_TEST

/* All kernels agree on any bytes: accepted with the same result, or rejected. */
static void expect_agreement(size_t bytes, size_t length)
{
    int rc = INT_MAX;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        int now = decode_exact(back, bytes, coded, length);
        ck_assert(now == 0 || now == TIERCE_E_FORMAT);
        if (rc == INT_MAX)
            memcpy(first, back, bytes);
        ck_assert_msg(rc == INT_MAX || (now == rc && (rc < 0 || memcmp(first, back, bytes) == 0)),
                      "%s decodes damaged bytes otherwise than the first kernel",
                      tierce__kernel_name(&tierce__codec_kernels, k));
        rc = now;
    }
}

START_TEST(test_damaged_bytes)
{
    struct test_random random = test_random_start("test_damaged_bytes");
    enum tierce__element element = floats[_i];
    size_t bytes = 4000 + test_random_below(&random, 200);
    kv_fill(run, bytes, element, test_random_u64(&random), 9, 140);
    struct tierce__codec_shape shape = {.element = element, .part_bytes = 256};
    int64_t length = lossless->encode(coded, tierce__codec_bound(bytes), run, bytes, &shape);
    ck_assert(length > 0 && (size_t)length < bytes);
    size_t coded_bytes = (size_t)length;
    for (size_t i = 0; i < coded_bytes; i += i < 200 ? 1 : 13) {
        uint8_t was = coded[i];
        coded[i] ^= (uint8_t)(1u << test_random_below(&random, 8));
        expect_agreement(bytes, coded_bytes);
        coded[i] = (uint8_t)test_random_u64(&random);
        expect_agreement(bytes, coded_bytes);
        coded[i] = was;
    }
    for (size_t cut = 0; cut < coded_bytes; cut += cut < 64 ? 1 : 17)
        ck_assert_int_eq(decode_exact(back, bytes, coded, cut), TIERCE_E_FORMAT);
    ck_assert_int_eq(decode_exact(back, bytes - 2, coded, coded_bytes), TIERCE_E_FORMAT);
    ck_assert_int_eq(decode_exact(back, bytes + 2, coded, coded_bytes), TIERCE_E_FORMAT);
    ck_assert_int_eq(decode_exact(back, bytes, coded, coded_bytes + 1), TIERCE_E_FORMAT);
    ck_assert_int_eq(decode_exact(back, bytes, coded, coded_bytes), 0);
}
END_TEST

/* One test per field of a block and of its symbols. */
START_TEST(test_fields)
{
    static const struct {
        size_t at;
        uint8_t value;
    } invalid[] = {
        {0, 2}, {0, 0},    {1, 0},  {1, 5},  {2, 1},  {4, 0xff}, {5, 0},   {6, 2},
        {7, 1}, {9, 0xff}, {10, 1}, {11, 1}, {12, 0}, {12, 1},   {12, 17}, {12, 0x81},
    };
    kv_fill(run, 4096, TIERCE__ELEMENT_BF16, 3, 130, 128);
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16};
    int64_t length = lossless->encode(coded, tierce__codec_bound(4096), run, 4096, &shape);
    ck_assert(length > 0 && length < 4096 && coded[0] == 1);
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
        uint8_t was = coded[invalid[i].at];
        coded[invalid[i].at] = invalid[i].value;
        ck_assert_msg(decode_exact(back, 4096, coded, (size_t)length) == TIERCE_E_FORMAT,
                      "byte %zu may be %u", invalid[i].at, invalid[i].value);
        coded[invalid[i].at] = was;
    }
    size_t count = coded[12] & 0x7f;
    coded[13 + count]++; /* a frequency: the sum is no longer 256 */
    ck_assert_int_eq(decode_exact(back, 4096, coded, (size_t)length), TIERCE_E_FORMAT);
    coded[13 + count]--;
    ck_assert_int_eq(decode_exact(back, 4096, coded, (size_t)length), 0);
}
END_TEST

/* A stream that returns a coder to another state than the encoder began with, which is 256. All
 * exponents are the same, with a frequency of 255: decoding one of them lowers a state below 512 by
 * 1, and one from 512 to 766 by 2. */
START_TEST(test_final_state)
{
    enum { GROUPS = 32, BYTES = GROUPS * 64 * 2, LOW = 12 + 5, HIGH = LOW + 64 };
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16};
    for (size_t i = 0; i < BYTES; i += 2)
        tierce__store_le16(run + i, 0x3f80);
    int64_t length = lossless->encode(coded, tierce__codec_bound(BYTES), run, BYTES, &shape);
    ck_assert(length > HIGH && length < BYTES);
    ck_assert_uint_eq(coded[LOW - 2], 255);
    ck_assert_uint_eq(coded[LOW], GROUPS);
    ck_assert_uint_eq(coded[HIGH], 1);
    ck_assert_int_eq(decode_exact(back, BYTES, coded, (size_t)length), 0);
    coded[LOW] = 2 * GROUPS;
    coded[HIGH] = 2; /* ends at 512 */
    ck_assert_int_eq(decode_exact(back, BYTES, coded, (size_t)length), TIERCE_E_FORMAT);
}
END_TEST

static Suite *codec_suite(void)
{
    Suite *suite = suite_create("codec");
    TCase *tcase = tcase_create("codec");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_names);
    tcase_add_test(tcase, test_arguments);
    tcase_add_test(tcase, test_every_length);
    tcase_add_test(tcase, test_all_bit_patterns);
    tcase_add_test(tcase, test_one_value);
    tcase_add_test(tcase, test_incompressible_bytes_cost_little);
    tcase_add_test(tcase, test_parts_have_symbols_of_their_own);
    tcase_add_test(tcase, test_random_runs);
    tcase_add_loop_test(tcase, test_damaged_bytes, 0, FLOATS);
    tcase_add_test(tcase, test_fields);
    tcase_add_test(tcase, test_final_state);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(codec_suite());
}
