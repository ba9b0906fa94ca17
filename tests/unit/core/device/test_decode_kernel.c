/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/codec/lossless_blocks.h"
#include "kv_values.h"
#include "test_random.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/kernels/decode.cu"

/* The source of the kernel, compiled as C: bytes and verdicts equal those of the codec's decoder
 * for all elements, lengths, symbols and parts, and for coded bytes that are damaged. Bodies and
 * decoded bytes lie in memory of exactly their size, so that the address sanitizer sees what is
 * beyond. */

enum { RUN_MAX = 200000, GUARD = 0xA5 };

static const struct tierce__codec *lossless;
static const enum tierce__element floats[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_FP16,
                                              TIERCE__ELEMENT_E4M3, TIERCE__ELEMENT_E5M2};
#define FLOATS (sizeof(floats) / sizeof(floats[0]))

static uint8_t *run, *coded;
static struct test_random random_;

/* Blocks that the tests have decoded, by kind. */
static unsigned coded_blocks, stored_blocks, double_sets, escaping, rejected;

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    random_ = test_random_start("decode_kernel");
    run = malloc(RUN_MAX);
    coded = malloc(tierce__codec_bound(RUN_MAX));
    ck_assert(lossless != NULL && run != NULL && coded != NULL);
}

static void teardown(void)
{
    free(run);
    free(coded);
}

/* ---- a run by the kernel ---- */

struct kernel_run {
    struct tierce__decode_launch launch;
    uint8_t *bodies[TIERCE__DECODE_BLOCKS], *outs[TIERCE__DECODE_BLOCKS];
    uint32_t *good;
    uint64_t starts[TIERCE__DECODE_BLOCKS]; /* in the decoded run */
};

static void count_block(const struct tierce__lossless_block *block, const uint8_t *body)
{
    coded_blocks += block->is_coded;
    stored_blocks += !block->is_coded;
    double_sets += block->period > 0;
    escaping += block->is_coded && (body[0] & 0x80) != 0;
}

/* Adds a block; `shift` bytes lie before its output, which makes it unaligned. */
static void add(struct kernel_run *k, const struct tierce__lossless_block *block,
                const uint8_t *body, size_t shift)
{
    uint32_t i = k->launch.count++;
    ck_assert_uint_lt(i, TIERCE__DECODE_BLOCKS);
    k->bodies[i] = malloc(block->body_bytes > 0 ? block->body_bytes : 1);
    k->outs[i] = malloc(shift + block->raw_bytes);
    ck_assert(k->bodies[i] != NULL && k->outs[i] != NULL);
    memcpy(k->bodies[i], body, block->body_bytes);
    memset(k->outs[i], GUARD, shift + block->raw_bytes);
    k->launch.blocks[i] = (struct tierce__decode_block){.to = (uintptr_t)k->outs[i] + shift,
                                                        .body_bytes = block->body_bytes,
                                                        .raw_bytes = block->raw_bytes,
                                                        .period = (uint16_t)block->period,
                                                        .element = (uint8_t)block->element,
                                                        .is_coded = block->is_coded};
}

/* A launch for each block, because their bodies lie in memory of their own; `blocks` thread blocks,
 * of which one has work. */
static void launch_each(struct kernel_run *k, uint32_t blocks)
{
    static struct tierce__decode_launch one;
    for (uint32_t i = 0; i < k->launch.count; i++) {
        one = k->launch;
        one.count = 1;
        one.coded = (uintptr_t)k->bodies[i];
        one.good = (uintptr_t)&k->good[i];
        one.blocks[0] = k->launch.blocks[i];
        for (uint32_t b = 0; b < blocks; b++)
            tierce__decode(one, b, blocks);
    }
}

/* Decodes a run of `bytes` as a device does. Returns 0 or TIERCE_E_FORMAT; *out [transfer]. */
static int decode_by_kernel(uint8_t **out, size_t bytes, const uint8_t *src, size_t length,
                            size_t shift)
{
    static struct kernel_run k;
    uint64_t at = 0, from = 0;
    int rc = 0;
    k = (struct kernel_run){.good = calloc(TIERCE__DECODE_BLOCKS, sizeof(uint32_t))};
    *out = malloc(bytes > 0 ? bytes : 1);
    ck_assert(k.good != NULL && *out != NULL);
    memcpy(k.launch.splits, tierce__splits, sizeof(k.launch.splits));
    while (rc == 0 && at < bytes) {
        struct tierce__lossless_block block;
        rc = tierce__lossless_block(&block, src + from, length - from, bytes - at);
        if (rc < 0)
            break;
        const uint8_t *body = src + from + TIERCE__BLOCK_HEADER_BYTES;
        k.starts[k.launch.count] = at;
        count_block(&block, body);
        add(&k, &block, body, shift);
        at += block.raw_bytes;
        from += TIERCE__BLOCK_HEADER_BYTES + block.body_bytes;
    }
    if (rc == 0 && from != length)
        rc = TIERCE_E_FORMAT;
    launch_each(&k, 1 + (uint32_t)test_random_below(&random_, 2));
    for (uint32_t i = 0; i < k.launch.count; i++) {
        ck_assert_uint_le(k.good[i], 1);
        rc = k.good[i] == 1 ? rc : TIERCE_E_FORMAT;
        memcpy(*out + k.starts[i], k.outs[i] + shift, k.launch.blocks[i].raw_bytes);
        for (size_t g = 0; g < shift; g++)
            ck_assert_uint_eq(k.outs[i][g], GUARD);
        free(k.bodies[i]);
        free(k.outs[i]);
    }
    free(k.good);
    return rc;
}

/* Both decoders say the same. */
static int check_coded(size_t bytes, const uint8_t *src, size_t length, size_t shift)
{
    uint8_t *by_kernel, *by_host = malloc(bytes > 0 ? bytes : 1);
    ck_assert_ptr_nonnull(by_host);
    int rc = decode_by_kernel(&by_kernel, bytes, src, length, shift);
    int expected = lossless->decode(by_host, bytes, src, length);
    ck_assert_msg(rc == expected, "%zu bytes of %zu: %d, not %d", bytes, length, rc, expected);
    ck_assert(rc < 0 || memcmp(by_kernel, by_host, bytes) == 0);
    rejected += rc < 0;
    free(by_kernel);
    free(by_host);
    return rc;
}

static size_t encode(size_t bytes, enum tierce__element element, uint64_t part_bytes)
{
    struct tierce__codec_shape shape = {.element = element, .part_bytes = part_bytes};
    int64_t length = lossless->encode(coded, tierce__codec_bound(RUN_MAX), run, bytes, &shape);
    ck_assert_int_ge(length, 0);
    return (size_t)length;
}

/* run[0 .. bytes) comes back. */
static void check(size_t bytes, enum tierce__element element, uint64_t part_bytes, size_t shift)
{
    size_t length = encode(bytes, element, part_bytes);
    ck_assert_int_eq(check_coded(bytes, coded, length, shift), 0);
}

/* ---- tests ---- */

START_TEST(every_length)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        kv_fill(run, 1600, floats[f], 11, 9, 128);
        for (size_t bytes = 0; bytes <= 1600; bytes++)
            check(bytes, floats[f], 0, bytes % 4);
    }
    ck_assert_uint_gt(coded_blocks, 1000);
    ck_assert_uint_gt(stored_blocks, 1000);
}
END_TEST

START_TEST(raw_bytes)
{
    static const size_t lengths[] = {1, 3, 4, 5, 65535, 65536, 65537, RUN_MAX};
    for (size_t i = 0; i < RUN_MAX; i++)
        run[i] = (uint8_t)test_random_u64(&random_);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (size_t shift = 0; shift < 5; shift++)
            check(lengths[i], TIERCE__ELEMENT_RAW, 0, shift);
}
END_TEST

START_TEST(all_bit_patterns)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        for (size_t i = 0; i < 131072; i++)
            run[i] = (uint8_t)(i % 2 == 0 ? i / 2 : i / 512);
        check(131072, floats[f], 0, f % 2);
        /* Most exponents are few, and all others occur. */
        kv_fill(run, 120000, floats[f], 12, 14, 120);
        for (size_t i = 0; i + 3000 < 120000; i += 3001)
            run[i] = (uint8_t)i;
        check(120000, floats[f], 0, 0);
    }
    ck_assert_uint_gt(escaping, 0);
}
END_TEST

/* Two kinds of values alternate: blocks with two sets of symbols. */
START_TEST(parts)
{
    for (unsigned round = 0; round < TEST_ROUNDS(60) * test_scale(); round++) {
        enum tierce__element element = floats[round % FLOATS];
        size_t part = 128U << test_random_below(&random_, 8);
        size_t bytes = 1 + test_random_below(&random_, RUN_MAX);
        for (size_t at = 0, i = 0; at < bytes; at += part, i++)
            kv_fill(run + at, part < RUN_MAX - at ? part : RUN_MAX - at, element,
                    test_random_u64(&random_), i % 2 == 0 ? 12 : 5, 128);
        check(bytes, element, part, test_random_below(&random_, 3));
    }
    ck_assert_uint_gt(double_sets, 10);
}
END_TEST

/* Changes of any bytes: of headers, symbols, states, planes and streams. */
START_TEST(damaged_bytes)
{
    for (unsigned round = 0; round < TEST_ROUNDS(3000) * test_scale(); round++) {
        enum tierce__element element = floats[round % FLOATS];
        size_t bytes = 512 + test_random_below(&random_, 4000);
        kv_fill(run, bytes, element, test_random_u64(&random_), 9, 128);
        size_t length = encode(bytes, element, round % 3 == 0 ? 256 : 0);
        /* Most of a block are planes, of which any bytes are valid. */
        size_t below = round % 2 == 0 ? length : length < 200 ? length : 200;
        for (unsigned flips = 1 + round % 3; flips > 0; flips--)
            coded[test_random_below(&random_, below)] ^=
                (uint8_t)(1U << test_random_below(&random_, 8));
        (void)check_coded(bytes, coded, length, round % 2);
    }
    ck_assert_uint_gt(rejected, TEST_ROUNDS(3000) / 2);
}
END_TEST

/* Streams that end too early, and bytes that are left. */
START_TEST(cut_bytes)
{
    for (unsigned f = 0; f < FLOATS; f++) {
        size_t bytes = 3000;
        kv_fill(run, bytes, floats[f], 77, 9, 128);
        size_t length = encode(bytes, floats[f], 0);
        uint32_t body = tierce__load_le32(coded + 8);
        for (uint32_t cut = 1; cut <= body && cut < 600; cut++) {
            tierce__store_le32(coded + 8, body - cut);
            ck_assert_int_eq(check_coded(bytes, coded, length - cut, 0), TIERCE_E_FORMAT);
        }
        memset(coded + length, 0, 300);
        for (uint32_t more = 1; more < 300 && body + more < bytes; more++) {
            tierce__store_le32(coded + 8, body + more);
            ck_assert_int_eq(check_coded(bytes, coded, length + more, 0), TIERCE_E_FORMAT);
        }
    }
}
END_TEST

/* Any bytes as the body of a coded block. */
START_TEST(any_bodies)
{
    for (unsigned round = 0; round < TEST_ROUNDS(3000) * test_scale(); round++) {
        size_t bytes = 2 + 2 * test_random_below(&random_, 3000);
        uint32_t body = (uint32_t)test_random_below(&random_, bytes);
        for (size_t i = 0; i < 12 + (size_t)body; i++)
            coded[i] = (uint8_t)test_random_u64(&random_);
        coded[0] = 1;
        coded[1] = (uint8_t)floats[round % FLOATS];
        tierce__store_le16(coded + 2, (uint16_t)test_random_below(&random_, 3));
        tierce__store_le32(coded + 4, (uint32_t)bytes);
        tierce__store_le32(coded + 8, body);
        if (body > 40 && round % 4 != 0) { /* symbols that are valid, and then anything */
            unsigned count = 2 + (unsigned)test_random_below(&random_, 15), left = 256;
            coded[12] = (uint8_t)(count | (round % 8 < 4 ? 0x80 : 0));
            for (unsigned i = 0; i < count; i++) {
                unsigned f = i == count - 1 ? left : 1 + (unsigned)test_random_below(&random_, 16);
                coded[13 + i] = (uint8_t)(i == count - 1 ? 0 : i);
                coded[13 + count + i] = (uint8_t)f;
                left -= f;
            }
            if (coded[14] & 1)
                tierce__store_le16(coded + 2, 0);
        }
        (void)check_coded(bytes, coded, 12 + (size_t)body, 0);
    }
    ck_assert_uint_gt(rejected, 0);
}
END_TEST

/* One launch with many blocks in several thread blocks. */
START_TEST(many_blocks)
{
    static struct tierce__decode_launch launch;
    static uint32_t good[TIERCE__DECODE_BLOCKS + 1];
    enum { BYTES = 1100, ROOM = 2048 };
    uint8_t *bodies = malloc((size_t)TIERCE__DECODE_BLOCKS * ROOM);
    uint8_t *outs = malloc((size_t)TIERCE__DECODE_BLOCKS * ROOM);
    ck_assert(bodies != NULL && outs != NULL);
    for (uint32_t blocks = 1; blocks <= 9; blocks += 4) {
        launch = (struct tierce__decode_launch){
            .coded = (uintptr_t)bodies, .good = (uintptr_t)good, .count = TIERCE__DECODE_BLOCKS};
        memcpy(launch.splits, tierce__splits, sizeof(launch.splits));
        memset(good, GUARD, sizeof(good));
        for (uint32_t i = 0; i < TIERCE__DECODE_BLOCKS; i++) {
            struct tierce__lossless_block block;
            enum tierce__element element = floats[i % FLOATS];
            kv_fill(run + (size_t)i * BYTES, BYTES, element, i, 9, 128);
            struct tierce__codec_shape shape = {.element = element};
            int64_t length = lossless->encode(coded, tierce__codec_bound(BYTES),
                                              run + (size_t)i * BYTES, BYTES, &shape);
            ck_assert_int_eq(tierce__lossless_block(&block, coded, (uint64_t)length, BYTES), 0);
            memcpy(bodies + (size_t)i * ROOM, coded + TIERCE__BLOCK_HEADER_BYTES, block.body_bytes);
            if (i == 76) /* its stream ends too early */
                block.body_bytes--;
            launch.blocks[i] =
                (struct tierce__decode_block){.to = (uintptr_t)outs + (uintptr_t)i * ROOM,
                                              .from = i * ROOM,
                                              .body_bytes = block.body_bytes,
                                              .raw_bytes = block.raw_bytes,
                                              .element = (uint8_t)block.element,
                                              .is_coded = block.is_coded};
        }
        for (uint32_t b = 0; b < blocks; b++)
            tierce__decode(launch, b, blocks);
        for (uint32_t i = 0; i < TIERCE__DECODE_BLOCKS; i++) {
            ck_assert_uint_eq(good[i], i != 76);
            ck_assert(i == 76 ||
                      memcmp(outs + (size_t)i * ROOM, run + (size_t)i * BYTES, BYTES) == 0);
        }
        ck_assert_uint_eq(good[TIERCE__DECODE_BLOCKS], 0xA5A5A5A5);
    }
    free(bodies);
    free(outs);
}
END_TEST

CHECK_MAIN("decode_kernel", .seconds = 120, .setup = setup, .teardown = teardown,
           .tests = {every_length, raw_bytes, all_bit_patterns, parts, damaged_bytes, cut_bytes,
                     any_bodies, many_blocks})
