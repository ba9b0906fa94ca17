/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "core/chunk/header.h"
#include "test_random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint32_t CELLS[3] = {640, 1000, 4096};
static uint8_t hashes[5 * 32];

static struct tierce__chunk_info example(void)
{
    struct tierce__chunk_info info = {
        .shard = {1, 2, 0, 1},
        .algo = TIERCE_CHAIN_SHA256,
        .token_start = 160,
        .created_s = 1234567,
        .geometry = {3, CELLS, 32, 5},
    };
    memset(info.ns_digest, 0xa1, 32);
    memset(info.hash, 0xb2, 32);
    memset(info.parent, 0xc3, 32);
    for (size_t i = 0; i < sizeof(hashes); i++)
        hashes[i] = (uint8_t)(i * 7);
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    return info;
}

/* A sealed object on the heap. */
static uint8_t *build(const struct tierce__chunk_info *info)
{
    uint8_t *object = aligned_alloc(4096, info->extent.object_bytes);
    memset(object, 0xee, info->extent.object_bytes);
    tierce__chunk_begin(object, info, hashes);
    const struct tierce__geometry *g = &info->geometry;
    for (uint32_t layer = 0; layer < g->layer_count; layer++) {
        uint8_t *cell = object + tierce__chunk_layer_offset(g, layer);
        uint64_t *sums = tierce__chunk_sums(object, g, layer);
        for (uint32_t b = 0; b < g->block_count; b++, cell += CELLS[layer]) {
            memset(cell, (int)(layer * 16 + b), CELLS[layer]);
            sums[b] = XXH3_64bits(cell, CELLS[layer]);
        }
    }
    tierce__chunk_seal(object, info->extent.header_bytes);
    return object;
}

START_TEST(a_geometry_has_the_lengths_of_its_chunks)
{
    struct tierce__chunk_info info = example();
    struct tierce__geometry full = info.geometry, part = full;
    uint64_t last = 0;
    for (part.block_count = 1; part.block_count <= full.block_count; part.block_count++) {
        struct tierce__extent extent;
        ck_assert_int_eq(tierce__chunk_extent(&extent, &part), 0);
        for (uint64_t bytes = last + 1; bytes < extent.object_bytes; bytes += 511)
            ck_assert(!tierce__chunk_has_length(&full, bytes));
        ck_assert(tierce__chunk_has_length(&full, extent.object_bytes));
        last = extent.object_bytes;
    }
    ck_assert(!tierce__chunk_has_length(&full, last + 4096));
    ck_assert(!tierce__chunk_has_length(&full, UINT64_MAX));
    ck_assert(!tierce__chunk_has_length(&full, 0));
    full.block_count = UINT32_MAX; /* longer than chunks may be */
    ck_assert(!tierce__chunk_has_length(&full, UINT64_MAX));
    ck_assert(tierce__chunk_has_length(&full, last));
}
END_TEST

START_TEST(a_sealed_chunk_says_what_went_in)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    ck_assert_uint_eq(info.extent.payload_bytes, 5 * (640 + 1000 + 4096));
    ck_assert_uint_eq(info.extent.header_bytes, 4096);
    ck_assert_uint_eq(tierce__chunk_layer_offset(&info.geometry, 3),
                      4096 + info.extent.payload_bytes);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    ck_assert_int_eq(tierce__chunk_match(object, &got, &info, hashes), 0);
    ck_assert_uint_eq(tierce__chunk_verify_cells(object, &got), 0);
    ck_assert_uint_eq(got.created_s, 1234567);
    ck_assert_uint_eq(got.extent.object_bytes, info.extent.object_bytes);
    uint64_t end = info.extent.header_bytes + info.extent.payload_bytes;
    for (uint64_t i = end; i < info.extent.object_bytes; i++)
        ck_assert_uint_eq(object[i], 0);
    free(object);
}
END_TEST

START_TEST(the_layout_is_the_documented_one)
{
    struct tierce__chunk_info info = example();
    uint8_t *object = build(&info);
    ck_assert_mem_eq(object, "TIERCECK\x01\0\0\0\0\x10\0\0", 16);
    ck_assert_uint_eq(tierce__load_le64(object + 16), info.extent.payload_bytes);
    ck_assert_uint_eq(object[32], 0xa1);
    ck_assert_uint_eq(object[64], 0xb2);
    ck_assert_uint_eq(object[96], 0xc3);
    ck_assert_uint_eq(tierce__load_le16(object + 130), 2);
    ck_assert_uint_eq(tierce__load_le64(object + 136), 160);
    ck_assert_uint_eq(tierce__load_le32(object + 152), 3);
    ck_assert_uint_eq(tierce__load_le32(object + 156), 5);
    ck_assert_uint_eq(tierce__load_le32(object + 160), 32);
    ck_assert_uint_eq(tierce__load_le32(object + 164), 1);
    ck_assert_uint_eq(tierce__load_le32(object + 256 + 8), 4096);
    ck_assert_mem_eq(object + 272, hashes, sizeof(hashes));
    ck_assert_uint_eq(tierce__load_le64(object + 272 + 160), XXH3_64bits(object + 4096, 640));
    free(object);
}
END_TEST

START_TEST(a_chunk_of_a_group_is_of_version_2)
{
    static const struct {
        enum tierce_group group;
        uint32_t window;
    } groups[] = {{TIERCE_GROUP_FULL, 0},
                  {TIERCE_GROUP_WINDOW, 1024},
                  {TIERCE_GROUP_CHUNKED, 8192},
                  {TIERCE_GROUP_STATE, 0}};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        struct tierce__chunk_info info = example(), got, other;
        info.group = groups[i].group;
        info.window = groups[i].window;
        uint8_t *object = build(&info);
        ck_assert_uint_eq(tierce__load_le32(object + 8), 2);
        ck_assert_uint_eq(tierce__load_le32(object + 176), (uint32_t)groups[i].group);
        ck_assert_uint_eq(tierce__load_le32(object + 180), groups[i].window);
        ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
        ck_assert_int_eq(got.group, groups[i].group);
        ck_assert_uint_eq(got.window, groups[i].window);
        ck_assert_int_eq(tierce__chunk_match(object, &got, &info, hashes), 0);
        other = info;
        other.window++;
        ck_assert_int_eq(tierce__chunk_match(object, &got, &other, hashes), TIERCE_E_IDENTITY);
        other = info;
        other.group = TIERCE_GROUP_ALL;
        ck_assert_int_eq(tierce__chunk_match(object, &got, &other, hashes), TIERCE_E_IDENTITY);
        free(object);
    }
}
END_TEST

/* The fields contradict each other, and the sum is right. */
START_TEST(a_group_that_cannot_be_is_refused)
{
    static const struct {
        uint32_t version, group, window;
    } bad[] = {{2, 0, 0}, {2, 1, 1}, {2, 2, 0}, {2, 3, 0},
               {2, 4, 1}, {2, 5, 0}, {1, 1, 0}, {2, UINT32_MAX, 1}};
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tierce__store_le32(object + 8, bad[i].version);
        tierce__store_le32(object + 176, bad[i].group);
        tierce__store_le32(object + 180, bad[i].window);
        tierce__chunk_seal(object, info.extent.header_bytes);
        ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes),
                         TIERCE_E_FORMAT);
    }
    free(object);
}
END_TEST

START_TEST(every_flipped_header_bit_is_noticed)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    uint64_t used = 272 + 5 * 32 + 3 * 5 * 8; /* fixed part, cell sizes, hashes, sums */
    for (uint64_t bit = 0; bit < used * 8; bit++) {
        object[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        ck_assert_int_lt(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
        object[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    free(object);
}
END_TEST

START_TEST(the_sum_counts_padding_as_zero_without_a_look_at_it)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    uint64_t field = tierce__load_le64(object + 24);
    tierce__store_le64(object + 24, 0);
    ck_assert_uint_eq(field, XXH3_64bits(object, info.extent.header_bytes));
    tierce__store_le64(object + 24, field);
    memset(object + 576, 0xee, info.extent.header_bytes - 576);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    ck_assert_int_eq(tierce__chunk_match(object, &got, &info, hashes), 0);
    tierce__chunk_seal(object, info.extent.header_bytes);
    ck_assert_uint_eq(tierce__load_le64(object + 24), field);
    free(object);
}
END_TEST

START_TEST(an_object_without_padding_is_the_same_but_for_that)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info), *bare = aligned_alloc(4096, info.extent.object_bytes);
    uint64_t end = info.extent.header_bytes + info.extent.payload_bytes;
    memset(bare, 0xee, info.extent.object_bytes);
    tierce__chunk_begin_unpadded(bare, &info, hashes);
    memcpy(bare + 272 + sizeof(hashes), object + 272 + sizeof(hashes), 3 * 5 * 8); /* the sums */
    memcpy(bare + 4096, object + 4096, info.extent.payload_bytes);
    tierce__chunk_seal(bare, info.extent.header_bytes);
    ck_assert_mem_eq(bare, object, 576);
    ck_assert_uint_eq(bare[576], 0xee);
    ck_assert_uint_eq(bare[end], 0xee);
    ck_assert_int_eq(tierce__chunk_parse(&got, bare, info.extent.object_bytes), 0);
    ck_assert_uint_eq(tierce__chunk_verify_cells(bare, &got), 0);
    ck_assert(tierce__chunk_same(object, bare, &info.geometry));
    free(bare);
    free(object);
}
END_TEST

START_TEST(every_flipped_payload_byte_is_a_bad_cell)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    uint64_t start = info.extent.header_bytes;
    for (uint64_t i = 0; i < info.extent.payload_bytes; i += 97) {
        object[start + i] ^= 0x10;
        ck_assert_uint_eq(tierce__chunk_verify_cells(object, &got), 1);
        object[start + i] ^= 0x10;
    }
    free(object);
}
END_TEST

/* The memory of a node's pool is written to by other processes too. */
START_TEST(cells_that_grow_after_they_were_parsed_are_bad_and_not_read)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    tierce__store_le32(object + TIERCE__CHUNK_FIXED + 4, 1u << 30);
    ck_assert_uint_eq(tierce__chunk_verify_cells(object, &got), 2 * got.geometry.block_count);
    tierce__store_le32(object + TIERCE__CHUNK_FIXED, UINT32_MAX);
    ck_assert_uint_eq(tierce__chunk_verify_cells(object, &got), 3 * got.geometry.block_count);
    free(object);
}
END_TEST

START_TEST(sealing_and_comparing_believe_no_length_in_the_header)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *a = build(&info), *b = build(&info);
    static const uint32_t lengths[] = {0, 31, 100, 4095, 1u << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        tierce__store_le32(a + 12, lengths[i]);
        tierce__store_le32(b + 12, lengths[i]);
        tierce__chunk_seal(a, info.extent.header_bytes);
        ck_assert_int_eq(tierce__chunk_parse(&got, a, info.extent.object_bytes), TIERCE_E_FORMAT);
        ck_assert(tierce__chunk_same(a, b, &info.geometry));
    }
    /* Tables of these counts end 16 bytes before 2^64. */
    tierce__store_le32(a + 152, 1005983907);
    tierce__store_le32(a + 156, 2292127124);
    tierce__chunk_seal(a, info.extent.header_bytes);
    ck_assert_int_lt(tierce__chunk_parse(&got, a, info.extent.object_bytes), 0);
    memcpy(a + 152, b + 152, 8);
    b[272 + sizeof(hashes) + 3 * 5 * 8 - 1] ^= 1; /* of the last sum */
    ck_assert(!tierce__chunk_same(a, b, &info.geometry));
    free(a);
    free(b);
}
END_TEST

START_TEST(a_header_that_is_cut_off_is_refused)
{
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    for (uint64_t n = 0; n < info.extent.header_bytes; n++) {
        uint8_t *cut = malloc(n > 0 ? n : 1); /* exact size: the sanitizer sees a read beyond */
        memcpy(cut, object, n);
        ck_assert_int_eq(tierce__chunk_parse(&got, cut, n), TIERCE_E_LIMIT);
        free(cut);
    }
    free(object);
}
END_TEST

static void reseal_and_expect(uint8_t *object, uint64_t bytes, int want)
{
    struct tierce__chunk_info got;
    uint8_t sum[8];
    memcpy(sum, object + 24, 8);
    tierce__chunk_seal(object, 4096);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, bytes), want);
    memcpy(object + 24, sum, 8);
}

START_TEST(hostile_lengths_with_a_good_sum_are_refused)
{
    struct tierce__chunk_info info = example();
    uint8_t *object = build(&info);
    uint64_t bytes = info.extent.object_bytes;
    static const struct {
        unsigned at;
        uint32_t value;
        int want;
    } cases[] = {
        {0, 0, TIERCE_E_FORMAT},
        {8, 2, TIERCE_E_FORMAT}, /* without a group */
        {8, 3, TIERCE_E_VERSION},
        {8, 0, TIERCE_E_VERSION},
        {12, 0, TIERCE_E_FORMAT},
        {12, 8192, TIERCE_E_FORMAT},
        {12, UINT32_MAX, TIERCE_E_FORMAT},
        {16, 1, TIERCE_E_FORMAT},
        {20, 1, TIERCE_E_FORMAT},
        {152, 0, TIERCE_E_FORMAT},
        {152, 4097, TIERCE_E_FORMAT},
        {152, UINT32_MAX, TIERCE_E_FORMAT},
        {156, 0, TIERCE_E_FORMAT},
        {156, 65537, TIERCE_E_FORMAT},
        {156, UINT32_MAX, TIERCE_E_FORMAT},
        {160, 0, TIERCE_E_FORMAT},
        {160, 65537, TIERCE_E_FORMAT},
        {168, 1, TIERCE_E_FORMAT},
        {172, 1, TIERCE_E_FORMAT},
        {176, 1, TIERCE_E_FORMAT}, /* a group in version 1 */
        {180, 1, TIERCE_E_FORMAT},
        {184, 1, TIERCE_E_FORMAT},
        {252, 1, TIERCE_E_FORMAT},
        {256, 0, TIERCE_E_FORMAT},
        {256, UINT32_MAX, TIERCE_E_FORMAT},
        {260, 641, TIERCE_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t old = tierce__load_le32(object + cases[i].at);
        tierce__store_le32(object + cases[i].at, cases[i].value);
        reseal_and_expect(object, bytes, cases[i].want);
        tierce__store_le32(object + cases[i].at, old);
    }
    free(object);
}
END_TEST

START_TEST(identity_is_compared_in_full)
{
    struct tierce__chunk_info info = example(), got, want;
    uint8_t *object = build(&info);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
#define EXPECT_OTHER(change)                                                                       \
    do {                                                                                           \
        want = info;                                                                               \
        change;                                                                                    \
        ck_assert_int_eq(tierce__chunk_match(object, &got, &want, hashes), TIERCE_E_IDENTITY);     \
    } while (0)
    for (int i = 0; i < 32; i++) {
        EXPECT_OTHER(want.ns_digest[i] ^= 1);
        EXPECT_OTHER(want.hash[i] ^= 1);
        EXPECT_OTHER(want.parent[i] ^= 1);
    }
    EXPECT_OTHER(want.shard.tp_rank = 0);
    EXPECT_OTHER(want.shard.tp_size = 4);
    EXPECT_OTHER(want.shard.pp_rank = 1);
    EXPECT_OTHER(want.shard.pp_size = 2);
    EXPECT_OTHER(want.algo = TIERCE_CHAIN_XXH3_128);
    EXPECT_OTHER(want.token_start = 0);
    EXPECT_OTHER(want.geometry.block_tokens = 16);
    EXPECT_OTHER(want.geometry.block_count = 4);
    EXPECT_OTHER(want.geometry.layer_count = 2);
    static const uint32_t other_cells[3] = {640, 1000, 4095};
    EXPECT_OTHER(want.geometry.cell_bytes = other_cells);
    want = info;
    for (size_t i = 0; i < sizeof(hashes); i++) {
        hashes[i] ^= 0x80;
        ck_assert_int_eq(tierce__chunk_match(object, &got, &want, hashes), TIERCE_E_IDENTITY);
        hashes[i] ^= 0x80;
    }
    free(object);
}
END_TEST

START_TEST(the_first_blocks_are_compared_alone)
{
    struct tierce__chunk_info info = example(), got, want = info;
    memcpy(info.hash, hashes + sizeof(hashes) - TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
    memcpy(want.hash, info.hash, TIERCE_HASH_BYTES);
    uint8_t *object = build(&info), wanted[sizeof(hashes) + TIERCE_HASH_BYTES];
    uint32_t count = info.geometry.block_count;
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    for (uint32_t same = 0; same <= count; same++) {
        memset(wanted, 0xdd, sizeof(wanted));
        memcpy(wanted, hashes, same * TIERCE_HASH_BYTES);
        ck_assert_uint_eq(tierce__chunk_common(object, &got, wanted, count + 1), same);
        ck_assert_uint_eq(tierce__chunk_common(object, &got, wanted, 2), same < 2 ? same : 2);
        for (uint32_t n = 0; n <= count + 1; n++)
            ck_assert_int_eq(tierce__chunk_match_first(object, &got, &want, wanted, n),
                             n <= same ? 0 : TIERCE_E_IDENTITY);
    }
    want.token_start ^= 1;
    ck_assert_int_eq(tierce__chunk_match_first(object, &got, &want, hashes, 1), TIERCE_E_IDENTITY);
    free(object);
    /* Named by another block than its last. */
    want = info;
    want.hash[3] = info.hash[3] ^= 1;
    object = build(&info);
    ck_assert_int_eq(tierce__chunk_parse(&got, object, info.extent.object_bytes), 0);
    ck_assert_int_eq(tierce__chunk_match_first(object, &got, &want, hashes, 1), TIERCE_E_IDENTITY);
    free(object);
}
END_TEST

START_TEST(geometry_out_of_bounds_is_refused)
{
    struct tierce__extent extent;
    uint32_t huge[4096];
    for (int i = 0; i < 4096; i++)
        huge[i] = 1u << 30;
    struct tierce__geometry g = {4096, huge, 16, 65536};
    ck_assert_int_eq(tierce__chunk_extent(&extent, &g), TIERCE_E_LIMIT);
    g = (struct tierce__geometry){0, CELLS, 16, 1};
    ck_assert_int_eq(tierce__chunk_extent(&extent, &g), TIERCE_E_LIMIT);
    g = (struct tierce__geometry){1, CELLS, 16, 0};
    ck_assert_int_eq(tierce__chunk_extent(&extent, &g), TIERCE_E_LIMIT);
    uint32_t zero = 0;
    g = (struct tierce__geometry){1, &zero, 16, 1};
    ck_assert_int_eq(tierce__chunk_extent(&extent, &g), TIERCE_E_LIMIT);
}
END_TEST

START_TEST(random_bytes_never_parse)
{
    struct test_random random = test_random_start("random_bytes_never_parse");
    struct tierce__chunk_info info = example(), got;
    uint8_t *object = build(&info);
    uint8_t *bytes = malloc(info.extent.object_bytes);
    for (int round = 0; round < 20000; round++) {
        memcpy(bytes, object, info.extent.object_bytes);
        int changes = 1 + (int)test_random_below(&random, 8);
        for (int i = 0; i < changes; i++) {
            unsigned at = test_random_below(&random, 448);
            bytes[at] = (uint8_t)(bytes[at] + 1 + test_random_below(&random, 255));
        }
        if (memcmp(bytes, object, 4096) != 0)
            ck_assert_int_lt(tierce__chunk_parse(&got, bytes, info.extent.object_bytes), 0);
    }
    free(bytes);
    free(object);
}
END_TEST

CHECK_MAIN("chunk_header", .seconds = 30,
           .tests = {a_sealed_chunk_says_what_went_in, a_geometry_has_the_lengths_of_its_chunks,
                     the_layout_is_the_documented_one, a_chunk_of_a_group_is_of_version_2,
                     a_group_that_cannot_be_is_refused, every_flipped_header_bit_is_noticed,
                     the_sum_counts_padding_as_zero_without_a_look_at_it,
                     an_object_without_padding_is_the_same_but_for_that,
                     every_flipped_payload_byte_is_a_bad_cell,
                     cells_that_grow_after_they_were_parsed_are_bad_and_not_read,
                     sealing_and_comparing_believe_no_length_in_the_header,
                     a_header_that_is_cut_off_is_refused,
                     hostile_lengths_with_a_good_sum_are_refused, identity_is_compared_in_full,
                     the_first_blocks_are_compared_alone, geometry_out_of_bounds_is_refused,
                     random_bytes_never_parse})
