/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/codec/codec.h"
#include "core/paged/paged.h"
#include "kv_values.h"
#include "test_random.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* The codec cachegen restores the values that LMCache's CacheGen does; all kernels write and
 * restore equal bytes, and no bytes make a decoder leave its buffers. */

enum { RUN_MAX = 300000, GUARD = 0xA5, GUARD_BYTES = 64, LAYER = 8192, LAYERS = 12 };

static const struct tierce__codec *codec;
static uint8_t *run, *back, *first_back, *coded, *first;

static void setup(void)
{
    codec = tierce__codec_find("cachegen");
    ck_assert_ptr_nonnull(codec);
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

/* From memory of exactly its size, so that the address sanitizer sees a read beyond it. */
static int decode_exact(uint8_t *dst, size_t bytes, const uint8_t *src, size_t length)
{
    uint8_t *exact = malloc(length > 0 ? length : 1), *out = malloc(bytes > 0 ? bytes : 1);
    ck_assert(exact != NULL && out != NULL);
    memcpy(exact, src, length);
    int rc = codec->decode(out, bytes, exact, length);
    if (rc == 0)
        memcpy(dst, out, bytes);
    free(exact);
    free(out);
    return rc;
}

/* Encodes and decodes from[0 .. bytes) with every kernel, to back; returns the coded length. */
static size_t there_and_back(const uint8_t *from, size_t bytes,
                             const struct tierce__codec_shape *shape)
{
    uint64_t room = tierce__codec_bound(bytes);
    int64_t length = -1;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        memset(coded + room, GUARD, GUARD_BYTES);
        int64_t now = codec->encode(coded, room, from, bytes, shape);
        ck_assert(now >= 0 && (uint64_t)now <= room);
        for (unsigned i = 0; i < GUARD_BYTES; i++)
            ck_assert_uint_eq(coded[room + i], GUARD);
        ck_assert_int_eq(decode_exact(back, bytes, coded, (size_t)now), 0);
        ck_assert_msg(length < 0 || (now == length && memcmp(first, coded, (size_t)now) == 0 &&
                                     memcmp(first_back, back, bytes) == 0),
                      "%s: %zu bytes: other bytes than with the first kernel",
                      tierce__kernel_name(&tierce__codec_kernels, k), bytes);
        memcpy(first, coded, (size_t)now);
        memcpy(first_back, back, bytes);
        length = now;
    }
    return (size_t)length;
}

/* Rows of keys and values by turns; the exponents of values are lower. */
static void fill(enum tierce__element element, size_t bytes, uint64_t part_bytes, uint64_t seed)
{
    size_t part = part_bytes > 0 ? (size_t)part_bytes : bytes, i = 0;
    for (size_t at = 0; at < bytes; at += part, i++)
        kv_fill(run + at, part < bytes - at ? part : bytes - at, element, seed + i,
                (element == TIERCE__ELEMENT_BF16 ? 129 : 17) - (i % 2 ? 3 : 0), 150);
}

/* The sums of the bytes that LMCache 0.5.6 (CacheGenSerializer's encode_function, and
 * decode_function_gpu with do_dequantize) restores of the same layers. */
static const uint64_t lmcache_sums[2][LAYERS] = {
    {0x89137558b505122eULL, 0x158941ab967b5e96ULL, 0x9f2aba2a74fad2feULL, 0x1dd6046eaa0098d1ULL,
     0x7d9dba54fc017b8cULL, 0xf43fdc15ac2d33caULL, 0x63430e1144e02b8eULL, 0xd44dab0e83bddadeULL,
     0xcc8c9f8f41887eb7ULL, 0x03892e8387d5b74cULL, 0xde5886e42ce76eebULL, 0xc70e57ed5f661ff6ULL},
    {0x40735fde88783908ULL, 0x523e1049cb057c75ULL, 0x522e28947663cee5ULL, 0x184aea3a3c320b9cULL,
     0xed28604853ddbf14ULL, 0x136305c83e72fb40ULL, 0x83ea369143a98196ULL, 0xa3f7ee89b3a5ec4aULL,
     0xc59e75c6e223265dULL, 0x416a802194578a6fULL, 0x7464507229807dd3ULL, 0x9bfc3370ab7072bbULL},
};

START_TEST(test_values_of_lmcache)
{
    enum tierce__element element = _i == 0 ? TIERCE__ELEMENT_BF16 : TIERCE__ELEMENT_FP16;
    fill(element, LAYERS * LAYER, 1024, 100);
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        struct tierce__codec_shape shape = {.element = element,
                                            .part_bytes = 1024,
                                            .row_bytes = 64,
                                            .layer = layer,
                                            .layers = LAYERS};
        size_t length = there_and_back(run + layer * LAYER, LAYER, &shape);
        ck_assert_uint_lt(length, LAYER / 2);
        ck_assert_msg(tierce__sum(back, LAYER) == lmcache_sums[_i][layer],
                      "layer %u: other values than LMCache's", layer);
    }
}
END_TEST

START_TEST(test_arguments)
{
    static const struct tierce__codec_shape invalid[] = {
        {.element = TIERCE__ELEMENT_E4M3, .row_bytes = 64},
        {.element = TIERCE__ELEMENT_RAW, .row_bytes = 64},
        {.element = TIERCE__ELEMENT_BF16},
        {.element = TIERCE__ELEMENT_BF16, .row_bytes = 65},
        {.element = TIERCE__ELEMENT_BF16, .row_bytes = 16386},
        {.element = TIERCE__ELEMENT_BF16, .row_bytes = 96},
        {.element = TIERCE__ELEMENT_BF16, .row_bytes = 64, .part_bytes = 96},
        {.element = TIERCE__ELEMENT_BF16, .row_bytes = 64, .part_bytes = 768},
    };
    uint64_t room = tierce__codec_bound(1024);
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
        ck_assert_msg(codec->encode(coded, room, run, 1024, &invalid[i]) == TIERCE_E_ARGUMENT,
                      "shape %u is accepted", i);
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16, .row_bytes = 64};
    ck_assert_int_eq(codec->encode(coded, room - 1, run, 1024, &shape), TIERCE_E_LIMIT);
    ck_assert_int_eq(codec->encode(coded, room, run, 0, &shape), 0);
    ck_assert_int_eq(codec->decode(back, 0, coded, 0), 0);
    ck_assert_int_eq(codec->decode(back, 0, coded, 1), TIERCE_E_FORMAT);
    ck_assert_int_eq(codec->decode(back, 2, coded, 0), TIERCE_E_FORMAT);
    ck_assert(!codec->is_exact);
    ck_assert_ptr_eq(tierce__codec_numbered(5), codec);
}
END_TEST

static double bf16_at(const uint8_t *at)
{
    uint32_t bits = (uint32_t)tierce__load_le16(at) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* Half a step of the levels, and the rounding of the result. */
static void expect_bounds(size_t bytes, const struct tierce__codec_shape *shape)
{
    for (size_t row = 0; row < bytes; row += shape->row_bytes) {
        bool is_value = shape->part_bytes > 0 && row / shape->part_bytes % 2 == 1;
        bool is_fine = shape->layers < 10 || shape->layer < (is_value ? 2 : 10);
        double m = 0;
        for (size_t i = 0; i < shape->row_bytes; i += 2)
            m = fmax(m, fabs(bf16_at(run + row + i)));
        for (size_t i = 0; i < shape->row_bytes; i += 2)
            ck_assert(fabs(bf16_at(run + row + i) - bf16_at(back + row + i)) <=
                      m / (is_fine ? 30 : 14) + m / 256);
    }
}

/* Any shape: rows of any length, parts of any number of rows, also a last part without values. */
START_TEST(test_random_runs)
{
    struct test_random random = test_random_start("test_random_runs");
    for (unsigned i = 0; i < 60 * test_scale(); i++) {
        struct tierce__codec_shape shape = {
            .element = TIERCE__ELEMENT_BF16,
            .row_bytes = 2 * (1 + test_random_below(&random, i % 5 == 0 ? 8192 : 300)),
            .layer = (uint32_t)test_random_below(&random, 20),
            .layers = i % 3 == 0 ? 0 : 20};
        size_t rows = RUN_MAX / shape.row_bytes, part = 1 + test_random_below(&random, 20);
        rows = 1 + test_random_below(&random, rows < 400 ? (uint32_t)rows : 400);
        if (rows >= part) {
            rows = rows / part * part;
            shape.part_bytes = part * shape.row_bytes;
        }
        size_t bytes = rows * shape.row_bytes;
        fill(TIERCE__ELEMENT_BF16, bytes, shape.part_bytes, test_random_u64(&random));
        if (there_and_back(run, bytes, &shape) == bytes + 4)
            ck_assert_mem_eq(back, run, bytes);
        else
            expect_bounds(bytes, &shape);
    }
}
END_TEST

/* The usual level of a channel costs nothing: channels of different means, little noise. */
START_TEST(test_centres)
{
    struct tierce__codec_shape shape = {
        .element = TIERCE__ELEMENT_BF16, .part_bytes = 4096, .row_bytes = 256};
    size_t bytes = 131072;
    uint64_t seed = 1;
    for (size_t i = 0; i < bytes / 2; i++) {
        unsigned noise = tierce__random_next(&seed) % 8;
        tierce__store_le16(run + 2 * i, (uint16_t)((i % 128 * 37 % 128 + 0x3f00) | noise));
    }
    ck_assert_uint_lt(there_and_back(run, bytes, &shape), bytes / 9);
}
END_TEST

START_TEST(test_not_finite)
{
    struct test_random random = test_random_start("test_not_finite");
    struct tierce__codec_shape shape = {
        .element = TIERCE__ELEMENT_BF16, .part_bytes = 1024, .row_bytes = 64};
    for (unsigned i = 0; i < 40; i++) {
        fill(TIERCE__ELEMENT_BF16, LAYER, 1024, i);
        size_t at = 2 * test_random_below(&random, LAYER / 2);
        tierce__store_le16(run + at, (uint16_t)((0x7f80 + i) | (i & 1) << 15));
        ck_assert_uint_eq(there_and_back(run, LAYER, &shape), LAYER + 4);
        ck_assert_mem_eq(back, run, LAYER);
    }
}
END_TEST

/* All kernels agree on any bytes: accepted with the same result, or rejected. */
static int agreed(size_t bytes, size_t length)
{
    int rc = INT_MAX;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        int now = decode_exact(back, bytes, coded, length);
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
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16,
                                        .part_bytes = 1024,
                                        .row_bytes = 64,
                                        .layer = _i == 0 ? 0 : 11,
                                        .layers = LAYERS};
    fill(TIERCE__ELEMENT_BF16, LAYER, 1024, test_random_u64(&random));
    size_t length = there_and_back(run, LAYER, &shape);
    ck_assert_uint_lt(length, LAYER / 2);
    for (size_t i = 0; i < length; i += i < 400 ? 1 : 7) {
        uint8_t was = coded[i];
        coded[i] ^= (uint8_t)(1u << test_random_below(&random, 8));
        (void)agreed(LAYER, length);
        coded[i] = 0xff;
        (void)agreed(LAYER, length);
        coded[i] = was;
    }
    for (size_t cut = 0; cut < length; cut += cut < 200 ? 1 : 11)
        ck_assert_int_eq(decode_exact(back, LAYER, coded, cut), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(LAYER - 1024, length), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(LAYER + 1024, length), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(LAYER, length), 0);
}
END_TEST

/* One test per field: kind, element, levels, length of a row, rows of a part, centre, scale. */
START_TEST(test_fields)
{
    static const struct {
        size_t at;
        uint8_t value;
    } invalid[] = {
        {0, 0},        {0, 2},  {1, 0},  {1, 3},   {2, 0},         {2, 14},
        {3, 0},        {3, 16}, {4, 31}, {5, 1},   {6, 1},         {7, 0x80},
        {8, 15},       {9, 1},  {11, 1}, {12, 31}, {76 + 1, 0x80}, /* the scale of the first row:
                                                                      negative */
        {76 + 1, 1},                                               /* below 2^-100 */
        {76 + 128, 0}, /* the kind of the first block of 64 rows: stored */
        {76 + 129, 1}, /* its element */
    };
    struct tierce__codec_shape shape = {
        .element = TIERCE__ELEMENT_BF16, .part_bytes = 1024, .row_bytes = 64};
    fill(TIERCE__ELEMENT_BF16, LAYER, 1024, 5);
    size_t length = there_and_back(run, LAYER, &shape);
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
        uint8_t was = coded[invalid[i].at];
        ck_assert_uint_ne(was, invalid[i].value);
        coded[invalid[i].at] = invalid[i].value;
        ck_assert_msg(agreed(LAYER, length) == TIERCE_E_FORMAT, "byte %zu may be %u", invalid[i].at,
                      invalid[i].value);
        coded[invalid[i].at] = was;
    }
}
END_TEST

static Suite *cachegen_suite(void)
{
    Suite *suite = suite_create("cachegen");
    TCase *tcase = tcase_create("cachegen");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, test_values_of_lmcache, 0, 2);
    tcase_add_test(tcase, test_arguments);
    tcase_add_test(tcase, test_random_runs);
    tcase_add_test(tcase, test_centres);
    tcase_add_test(tcase, test_not_finite);
    tcase_add_loop_test(tcase, test_damaged_bytes, 0, 2);
    tcase_add_test(tcase, test_fields);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(cachegen_suite());
}
