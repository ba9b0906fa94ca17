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

/* ---- other orders of the values of a cell ---------------------------------------------------- */

enum { CELL_TOKENS = 16, CELL_HEADS = 3, CELL_CHANNELS = 32, CELLS = 5 };
enum { ROW = CELL_HEADS * CELL_CHANNELS, PART = CELL_TOKENS * ROW };

/* The place of a value in a cell, as an order says it. */
typedef size_t place_fn(unsigned kind, size_t token, size_t head, size_t channel);

static size_t plain(unsigned kind, size_t token, size_t head, size_t channel)
{
    return kind * PART + token * ROW + head * CELL_CHANNELS + channel;
}

/* FlashAttention of vLLM: the key of a head, then its value. */
static size_t pairs(unsigned kind, size_t token, size_t head, size_t channel)
{
    return ((token * CELL_HEADS + head) * 2 + kind) * CELL_CHANNELS + channel;
}

/* vLLM on CPUs without AMX: keys are transposed. */
static size_t transposed(unsigned kind, size_t token, size_t head, size_t channel)
{
    size_t half = CELL_TOKENS * CELL_CHANNELS;
    return (head * 2 + kind) * half +
           (kind == 0 ? channel * CELL_TOKENS + token : token * CELL_CHANNELS + channel);
}

/* And with it: tiles of 4 tokens, pairs of channels of the keys, pairs of tokens of the values. */
static size_t tiles(unsigned kind, size_t token, size_t head, size_t channel)
{
    size_t half = CELL_TOKENS * CELL_CHANNELS;
    return (head * 2 + kind) * half +
           (kind == 0
                ? (token / 4 * (CELL_CHANNELS / 2) + channel / 2) * 8 + token % 4 * 2 + channel % 2
                : ((channel / 8 * (CELL_TOKENS / 2) + token / 2) * 8 + channel % 8) * 2 +
                      token % 2);
}

static size_t keys_only(unsigned kind, size_t token, size_t head, size_t channel)
{
    return kind * PART + head * CELL_TOKENS * CELL_CHANNELS + token * CELL_CHANNELS + channel;
}

static const struct {
    const char *text;
    place_fn *place;
    unsigned kinds;
} orders[] = {{"kthc32", plain, 2},
              {"thkc32", pairs, 2},
              {"hk.c32t.tc32", transposed, 2},
              {"hk.tc16t4c2.c4tc8t2", tiles, 2},
              {"htc32", keys_only, 1}};
#define ORDERS (sizeof(orders) / sizeof(orders[0]))

static struct tierce__cell_order order_of(const char *text)
{
    struct tierce__cell_order order;
    ck_assert_msg(tierce__cell_order_read(&order, text, strlen(text)), "%s", text);
    return order;
}

/* Moves a run between the order of a row and another one. */
static void move_cells(uint8_t *dst, const uint8_t *src, unsigned n, bool to_order)
{
    size_t cell = 2 * (size_t)orders[n].kinds * PART;
    for (size_t i = 0; i < CELLS * (size_t)orders[n].kinds * PART; i++) {
        size_t in_cell = i % (cell / 2);
        unsigned kind = (unsigned)(in_cell / PART);
        size_t value = in_cell % PART;
        size_t at = i / (cell / 2) * cell + 2 * orders[n].place(kind, value / ROW,
                                                                value % ROW / CELL_CHANNELS,
                                                                value % CELL_CHANNELS);
        memcpy(dst + (to_order ? at : 2 * i), src + (to_order ? 2 * i : at), 2);
    }
}

static struct tierce__codec_shape shape_of(const struct tierce__cell_order *order, unsigned n)
{
    return (struct tierce__codec_shape){.element = TIERCE__ELEMENT_BF16,
                                        .order = order,
                                        .cell_bytes = 2 * (uint64_t)orders[n].kinds * PART,
                                        .cell_tokens = CELL_TOKENS,
                                        .layer = 4,
                                        .layers = 30};
}

/* The same values are restored whatever their order is, and in as many bytes but for the header. */
START_TEST(test_orders)
{
    for (unsigned n = 0; n < ORDERS; n++) {
        size_t bytes = CELLS * 2 * (size_t)orders[n].kinds * PART;
        uint8_t *rows = malloc(bytes), *want = malloc(bytes);
        ck_assert(rows != NULL && want != NULL);
        fill(TIERCE__ELEMENT_BF16, bytes, 2 * PART, n);
        memcpy(rows, run, bytes);
        struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16,
                                            .row_bytes = 2 * ROW,
                                            .part_bytes = orders[n].kinds > 1 ? 2 * PART : 0,
                                            .layer = 4,
                                            .layers = 30};
        size_t length = there_and_back(rows, bytes, &shape);
        ck_assert_uint_lt(length, bytes / 2);
        memcpy(want, back, bytes);
        move_cells(run, rows, n, true);
        struct tierce__cell_order order = order_of(orders[n].text);
        shape = shape_of(&order, n);
        ck_assert_uint_eq(there_and_back(run, bytes, &shape), length + 1 + strlen(orders[n].text));
        move_cells(rows, back, n, false);
        ck_assert_msg(memcmp(rows, want, bytes) == 0, "%s: other values", orders[n].text);
        free(rows);
        free(want);
    }
}
END_TEST

START_TEST(test_texts_of_orders)
{
    static const char *const invalid[] = {"",
                                          "k",
                                          "kthc",
                                          "ktc64c",
                                          "kt16hc64",
                                          "khc64",
                                          "tth",
                                          "kthh",
                                          "kthhc64",
                                          "kkthc64",
                                          "kth2c64",
                                          "kthc1",
                                          "kthc064",
                                          "kthc65537",
                                          "kthc64.",
                                          "kthc64..",
                                          "t.hc64.hc64",
                                          "tk.hc64",
                                          "tk.hc64.k",
                                          "hk.tc64.hc64",
                                          "hk.tc64.c64",
                                          "kthc64x",
                                          "k thc64",
                                          "hk.tc64.tc64.tc64",
                                          "th2k.c64.c64",
                                          "kthc2c2c2c2c2c2c2c2c2c2c2c2c2c2c2c2",
                                          "kthc00000000000000000000000000000000000000000000064"};
    static const char *const valid[] = {"kthc64", "tc576", "thkc128", "tht16c64", "hk.c64t.tc64"};
    struct tierce__cell_order order;
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
        ck_assert_msg(!tierce__cell_order_read(&order, invalid[i], strlen(invalid[i])), "%s",
                      invalid[i]);
    for (unsigned i = 0; i < sizeof(valid) / sizeof(valid[0]); i++)
        (void)order_of(valid[i]);
}
END_TEST

/* Cells that do not have the order are an error, and no memory beside them is accessed. */
START_TEST(test_cells_that_do_not_fit)
{
    static const struct {
        const char *text;
        uint64_t cell_bytes;
        uint32_t tokens;
    } invalid[] = {{"kthc32", 0, 16},
                   {"kthc32", 1024, 0},
                   {"kthc32", 1023, 16},
                   {"kthc32", 4096 + 2, 16},
                   {"ktc32", 4096, 16},
                   {"tk.t3hc32.hc32", 4096, 16},
                   {"kthc2048", 2 << 17, 16},
                   {"kthc32", 1 << 20, 16},
                   {"tkt32hc32", 4096, 16},
                   {"hk.tc32.tc64", 4096, 16},
                   {"kthc32", UINT64_MAX - 1, 16},
                   {"tk.t16hc32.hc32", 4096, 32}, /* they would overlap */
                   {"tk.hc32.t16hc32", 4096, 32}};
    uint64_t room = tierce__codec_bound(4096);
    for (unsigned i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
        struct tierce__cell_order order = order_of(invalid[i].text);
        struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16,
                                            .order = &order,
                                            .cell_bytes = invalid[i].cell_bytes,
                                            .cell_tokens = invalid[i].tokens};
        ck_assert_msg(codec->encode(coded, room, run, 4096, &shape) == TIERCE_E_ARGUMENT, "%u: %s",
                      i, invalid[i].text);
    }
    struct tierce__cell_order order = order_of("kthc32");
    struct tierce__codec_shape shape = {
        .element = TIERCE__ELEMENT_BF16, .order = &order, .cell_bytes = 2048, .cell_tokens = 16};
    fill(TIERCE__ELEMENT_BF16, 4096, 1024, 3);
    ck_assert_int_gt(codec->encode(coded, room, run, 4096, &shape), 0);
    ck_assert_int_eq(codec->encode(coded, room, run, 3072, &shape), TIERCE_E_ARGUMENT);
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
    ck_assert_int_eq(agreed(LAYER, length + 1), TIERCE_E_FORMAT); /* bytes after the last block */
    ck_assert_int_eq(agreed(LAYER, length), 0);
}
END_TEST

START_TEST(test_damaged_orders)
{
    struct test_random random = test_random_start("test_damaged_orders");
    unsigned n = (unsigned)_i;
    size_t bytes = CELLS * 2 * (size_t)orders[n].kinds * PART;
    struct tierce__cell_order order = order_of(orders[n].text);
    struct tierce__codec_shape shape = shape_of(&order, n);
    fill(TIERCE__ELEMENT_BF16, bytes, 2 * PART, test_random_u64(&random));
    size_t length = there_and_back(run, bytes, &shape), head = 13 + order.length;
    for (size_t i = 0; i < length; i += i < head ? 1 : 97) {
        uint8_t was = coded[i];
        for (unsigned k = 0; k < (i < head ? 16 : 1); k++) {
            coded[i] = (uint8_t)test_random_below(&random, 256);
            (void)agreed(bytes, length);
        }
        coded[i] = was;
    }
    for (size_t cut = 0; cut < length; cut += cut < head + 4 ? 1 : 997)
        ck_assert_int_eq(decode_exact(back, bytes, coded, cut), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(bytes - bytes / CELLS, length), TIERCE_E_FORMAT);
    ck_assert_int_eq(agreed(bytes, length), 0);
    coded[3] = orders[n].kinds > 1 ? 0 : coded[2]; /* the levels of values, or none without them */
    ck_assert_int_eq(agreed(bytes, length), TIERCE_E_FORMAT);
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
    coded[12] ^= 32; /* a centre that is equal modulo 32 */
    ck_assert_int_eq(agreed(LAYER, length), TIERCE_E_FORMAT);
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
    tcase_add_test(tcase, test_orders);
    tcase_add_test(tcase, test_texts_of_orders);
    tcase_add_test(tcase, test_cells_that_do_not_fit);
    tcase_add_loop_test(tcase, test_damaged_orders, 0, ORDERS);
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
