/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/chunk/coded.h"
#include "core/paged/paged.h"
#include "kv_values.h"
#include "test_random.h"

#include <string.h>

/* A chunk comes back from its coded object bit by bit, header included, and no damage gives other
 * bytes. With a lossy codec it is the chunk of the restored values. */

enum { LAYERS = 3, BLOCKS = 4, OBJECT_MAX = 1 << 20 };

static uint8_t *raw, *coded, *back;
static struct tierce__chunk_info info;
static uint32_t blocks; /* of the chunk; with BLOCKS, the cells end at a page */
static const uint32_t cells[LAYERS] = {6144, 2048, 6144};
static const struct tierce__codec *codec;
/* Of cachegen: cells of six heads and of two. */
static struct tierce__codec_choice choice;

static void make_raw(enum tierce_group group, enum tierce__element element, unsigned spread)
{
    uint8_t hashes[BLOCKS * TIERCE_HASH_BYTES];
    info = (struct tierce__chunk_info){
        .shard = {1, 2, 0, 1},
        .algo = TIERCE_CHAIN_SHA256,
        .group = group,
        .window = group == TIERCE_GROUP_WINDOW ? 128 : 0,
        .token_start = 64,
        .created_s = 1795900000,
        .geometry = {
            .layer_count = LAYERS, .cell_bytes = cells, .block_tokens = 16, .block_count = blocks}};
    memset(info.ns_digest, 7, sizeof(info.ns_digest));
    memset(hashes, 9, sizeof(hashes));
    memcpy(info.hash, hashes, TIERCE_HASH_BYTES);
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    ck_assert_uint_le(info.extent.object_bytes, OBJECT_MAX);
    tierce__chunk_begin(raw, &info, hashes);
    kv_fill(raw + info.extent.header_bytes, info.extent.payload_bytes, element, 1, 14, spread);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
}

static void setup(void)
{
    codec = tierce__codec_find("lossless");
    blocks = BLOCKS;
    ck_assert_ptr_nonnull(tierce__codec_of_quantization("tierce-cachegen-12-thkc16", &choice));
    raw = aligned_alloc(64, OBJECT_MAX);
    coded = aligned_alloc(64, OBJECT_MAX);
    back = aligned_alloc(64, OBJECT_MAX);
    ck_assert(raw != NULL && coded != NULL && back != NULL);
    make_raw(TIERCE_GROUP_ALL, TIERCE__ELEMENT_BF16, 128);
}

static void teardown(void)
{
    free(raw);
    free(coded);
    free(back);
}

static uint64_t encode(enum tierce__element element)
{
    uint64_t room = tierce__coded_room(raw, &info);
    ck_assert_uint_le(room, OBJECT_MAX);
    const struct tierce__coded_form form = {.codec = codec, .element = element, .choice = &choice};
    int64_t length = tierce__coded_encode_as(coded, room, raw, &info, &form);
    ck_assert_int_ge(length, 0);
    return (uint64_t)length;
}

START_TEST(test_there_and_back)
{
    static const enum tierce_group groups[] = {TIERCE_GROUP_ALL, TIERCE_GROUP_FULL,
                                               TIERCE_GROUP_WINDOW};
    for (unsigned g = 0; g < 3; g++) {
        for (unsigned e = TIERCE__ELEMENT_BF16; e < TIERCE__ELEMENTS; e++) {
            make_raw(groups[g], (enum tierce__element)e, 100);
            uint64_t length = encode((enum tierce__element)e);
            ck_assert(length > 0 && length < info.extent.object_bytes && length % 4096 == 0);
            struct tierce__coded_info got;
            ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
            ck_assert_uint_eq(got.object_bytes, length);
            ck_assert_ptr_eq(got.codec, codec);
            ck_assert_int_eq(got.element, e);
            ck_assert_int_eq(tierce__coded_decode(back, &got, coded), 0);
            ck_assert_mem_eq(back, raw, info.extent.object_bytes);
            struct tierce__chunk_info plain;
            ck_assert_int_eq(tierce__chunk_parse(&plain, back, info.extent.object_bytes), 0);
            ck_assert_uint_eq(tierce__chunk_verify_cells(back, &plain), 0);
        }
    }
}
END_TEST

/* The memory may have held another chunk. */
START_TEST(test_padding_is_zero)
{
    struct tierce__coded_info got;
    blocks = BLOCKS - 1;
    make_raw(TIERCE_GROUP_ALL, TIERCE__ELEMENT_BF16, 100);
    uint64_t end = info.extent.header_bytes + info.extent.payload_bytes;
    ck_assert_uint_lt(end, info.extent.object_bytes);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, encode(TIERCE__ELEMENT_BF16)), 0);
    memset(back, 0xff, OBJECT_MAX);
    ck_assert_int_eq(tierce__coded_decode(back, &got, coded), 0);
    ck_assert_mem_eq(back, raw, end);
    for (uint64_t i = end; i < info.extent.object_bytes; i++)
        ck_assert_uint_eq(back[i], 0);
}
END_TEST

START_TEST(test_layers_alone)
{
    struct tierce__coded_info got;
    ck_assert_int_eq(tierce__coded_parse(&got, coded, encode(TIERCE__ELEMENT_BF16)), 0);
    memset(back, 0, OBJECT_MAX);
    tierce__coded_restore_header(back, &got, coded);
    ck_assert_mem_eq(back, raw, info.extent.header_bytes);
    for (uint32_t i = LAYERS; i-- > 0;) {
        struct tierce__coded_layer layer = tierce__coded_layer(&got, coded, i);
        ck_assert_uint_eq(layer.offset % 64, 0);
        ck_assert_int_eq(tierce__coded_decode_layer(back, &got, &layer, i, coded + layer.offset),
                         0);
        uint64_t at = tierce__chunk_layer_offset(&info.geometry, i);
        ck_assert_mem_eq(back + at, raw + at, (size_t)cells[i] * BLOCKS);
    }
}
END_TEST

START_TEST(test_incompressible_chunks_stay_raw)
{
    uint64_t seed = 3;
    for (uint64_t i = 0; i < info.extent.payload_bytes; i++)
        raw[info.extent.header_bytes + i] = (uint8_t)tierce__random_next(&seed);
    ck_assert_uint_eq(encode(TIERCE__ELEMENT_BF16), 0);
    ck_assert_int_eq(tierce__coded_encode(coded, tierce__coded_room(raw, &info) - 1, raw, &info,
                                          codec, TIERCE__ELEMENT_BF16),
                     TIERCE_E_LIMIT);
}
END_TEST

START_TEST(test_other_readers)
{
    struct tierce__coded_info got;
    struct tierce__chunk_info plain;
    uint64_t length = encode(TIERCE__ELEMENT_BF16);
    /* A reader of raw chunks leaves a coded object alone. */
    ck_assert_int_eq(tierce__chunk_parse(&plain, coded, length), TIERCE_E_VERSION);
    ck_assert_int_eq(tierce__coded_parse(&got, raw, info.extent.object_bytes), TIERCE_E_VERSION);
    uint64_t head = tierce__coded_head_bytes(&info);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, head - 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, 255), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, head), 0);
    /* A codec that this build does not have: the table is bound to the header, so both are made
     * anew. */
    tierce__chunk_set_codec(coded, &info, 99);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), TIERCE_E_VERSION);
    /* The table of another object. */
    length = encode(TIERCE__ELEMENT_BF16);
    memcpy(back, coded, length);
    info.created_s++;
    raw[144]++;
    tierce__chunk_seal(raw, info.extent.header_bytes);
    length = encode(TIERCE__ELEMENT_BF16);
    memcpy(coded + info.extent.header_bytes, back + info.extent.header_bytes, 4096);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), TIERCE_E_FORMAT);
}
END_TEST

/* Any bit that flips is noticed by a sum, or was padding: never other bytes. */
START_TEST(test_flipped_bits)
{
    struct test_random random = test_random_start("test_flipped_bits");
    uint64_t length = encode(TIERCE__ELEMENT_BF16), head = tierce__coded_head_bytes(&info);
    struct tierce__coded_info got;
    for (uint64_t i = 0; i < length; i += i < head ? 29 : 1 + test_random_below(&random, 400)) {
        uint8_t bit = (uint8_t)(1u << test_random_below(&random, 8));
        coded[i] ^= bit;
        int rc = tierce__coded_parse(&got, coded, length);
        if (rc == 0)
            rc = tierce__coded_decode(back, &got, coded);
        coded[i] ^= bit;
        if (rc == 0)
            ck_assert_msg(memcmp(back + 4096, raw + 4096, info.extent.object_bytes - 4096) == 0,
                          "byte %llu: a flipped bit gave other bytes", (unsigned long long)i);
    }
}
END_TEST

/* Lengths in the table that have their sums and lie. */
START_TEST(test_lengths_that_lie)
{
    static const struct {
        size_t at;
        uint64_t add;
    } lies[] = {{16, 4096},       {16, (uint64_t)-4096},    {32, 5},         {36, 1}, {63, 1},
                {64, 1ULL << 40}, {80, (uint64_t)-1 << 32}, {96, 1ULL << 63}};
    for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct tierce__coded_info got;
        uint64_t length = encode(TIERCE__ELEMENT_BF16);
        uint8_t *table = coded + info.extent.header_bytes, *field = table + lies[i].at;
        if (lies[i].at == 63)
            *field = 1;
        else if (lies[i].at < 64 && lies[i].at > 16)
            tierce__store_le32(field, (uint32_t)lies[i].add);
        else
            tierce__store_le64(field, tierce__load_le64(field) + lies[i].add);
        ck_assert_int_eq(tierce__coded_parse(&got, coded, length), TIERCE_E_CHECKSUM);
        tierce__store_le64(table + 8, tierce__sum(table + 16, 4096 - 16));
        int rc = tierce__coded_parse(&got, coded, length);
        ck_assert_msg(rc == TIERCE_E_FORMAT, "lie %u: %d", i, rc);
    }
}
END_TEST

/* A length that no layer can have, in an object that says it is empty. */
START_TEST(test_a_length_in_an_empty_object)
{
    struct tierce__coded_info got;
    uint64_t length = encode(TIERCE__ELEMENT_BF16);
    uint8_t *table = coded + info.extent.header_bytes;
    tierce__store_le64(table + 16, 0);
    tierce__store_le64(table + 64, 1ULL << 40);
    tierce__store_le64(table + 8, tierce__sum(table + 16, 4096 - 16));
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), TIERCE_E_FORMAT);
}
END_TEST

/* The length of the last layer's cells, as a process that shares the pool may overwrite it. */
static void overwrite_length(void)
{
    tierce__store_le32(raw + TIERCE__CHUNK_FIXED + 4 * (LAYERS - 1), 1u << 30);
}

static unsigned encoded_layers;

/* A codec that makes nothing shorter, while another process writes to the chunk. */
static int64_t encode_beside_a_writer(uint8_t *dst, uint64_t room, const uint8_t *src,
                                      uint64_t bytes, const struct tierce__codec_shape *shape)
{
    uint32_t cell = cells[encoded_layers++];
    overwrite_length();
    ck_assert_uint_eq(bytes, (uint64_t)cell * BLOCKS);
    ck_assert_uint_eq(shape->part_bytes, cell / 2);
    ck_assert_uint_ge(room, bytes);
    memcpy(dst, src, bytes);
    return (int64_t)bytes;
}

/* With a key the chunk is then encrypted without the codec. */
START_TEST(test_a_header_that_changes_while_it_is_encoded)
{
    static const struct tierce__seal_key key = {.number = 7, .bytes = {1, 2, 3}};
    const struct tierce__codec meddled = {.name = "meddled",
                                          .number = codec->number,
                                          .is_exact = true,
                                          .encode = encode_beside_a_writer};
    uint64_t room = tierce__coded_room(raw, &info), bytes = info.extent.object_bytes;
    uint8_t *before = malloc(bytes);
    struct tierce__coded_info got;
    ck_assert_ptr_nonnull(before);
    memcpy(before, raw, bytes);
    int64_t length = tierce__coded_encode_as(
        coded, room, raw, &info, &(struct tierce__coded_form){.codec = &meddled, .key = &key});
    ck_assert_int_gt(length, 0);
    ck_assert_uint_eq(encoded_layers, LAYERS);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, (uint64_t)length), 0);
    ck_assert_ptr_null(got.codec);
    ck_assert_int_eq(tierce__coded_open(&got, coded, &key), 0);
    ck_assert_int_eq(tierce__coded_decode(back, &got, coded), 0);
    ck_assert_mem_eq(back, before, bytes);
    free(before);
}
END_TEST

START_TEST(test_a_header_that_has_changed_since_it_was_parsed)
{
    uint64_t room = tierce__coded_room(raw, &info);
    overwrite_length();
    ck_assert_uint_le(tierce__coded_room(raw, &info), 2 * room);
    ck_assert_int_eq(tierce__coded_encode(coded, room, raw, &info, codec, TIERCE__ELEMENT_BF16),
                     TIERCE_E_FORMAT);
    /* The same with a valid sum. */
    tierce__store_le32(raw + TIERCE__CHUNK_FIXED + 4 * (LAYERS - 1), cells[LAYERS - 1] / 2);
    tierce__store_le64(raw + 16, info.extent.payload_bytes - cells[LAYERS - 1] / 2 * BLOCKS);
    tierce__chunk_seal(raw, info.extent.header_bytes);
    ck_assert_int_eq(tierce__coded_encode(coded, room, raw, &info, codec, TIERCE__ELEMENT_BF16),
                     TIERCE_E_FORMAT);
}
END_TEST

/* ---- lossy codecs -----------------------------------------------------------------------------
 */

static const char *const lossy_names[] = {"int8", "int4", "fp8", "cachegen"};
#define LOSSY (sizeof(lossy_names) / sizeof(lossy_names[0]))

/* A chunk of values that are not too small for the codecs, with this codec. */
static void make_lossy(unsigned n, enum tierce__element element)
{
    codec = tierce__codec_find(lossy_names[n]);
    make_raw(TIERCE_GROUP_ALL, element, 100);
    kv_fill(raw + info.extent.header_bytes, info.extent.payload_bytes, element, n + 5,
            element == TIERCE__ELEMENT_BF16 ? 124 : 14, 128);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
}

/* The decoded chunk is a valid one with other sums, and its cells are those that the codec restores
 * of each layer. */
static void expect_decoded(void)
{
    uint8_t *layer = malloc(tierce__codec_bound(OBJECT_MAX)), *want = malloc(OBJECT_MAX);
    struct tierce__chunk_info got;
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16,
                                        .order = &choice.order,
                                        .cell_tokens = 16,
                                        .layers = choice.layers};
    ck_assert(layer != NULL && want != NULL);
    ck_assert_int_eq(tierce__chunk_parse(&got, back, info.extent.object_bytes), 0);
    ck_assert_uint_eq(tierce__chunk_verify_cells(back, &got), 0);
    ck_assert_uint_eq(tierce__chunk_verify_cells(raw, &info), 0);
    ck_assert(!tierce__chunk_same(back, raw, &info.geometry));
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint64_t at = tierce__chunk_layer_offset(&info.geometry, i);
        uint64_t bytes = (uint64_t)cells[i] * BLOCKS, room = tierce__codec_bound(bytes);
        shape.cell_bytes = cells[i];
        shape.layer = i % choice.layers;
        int64_t length = codec->encode(layer, room, raw + at, bytes, &shape);
        ck_assert_int_gt(length, 0);
        ck_assert_int_eq(codec->decode(want, bytes, layer, (uint64_t)length), 0);
        ck_assert_mem_eq(back + at, want, bytes);
    }
    free(want);
    free(layer);
}

START_TEST(test_lossy_codecs)
{
    for (unsigned n = 0; n < LOSSY; n++) {
        struct tierce__coded_info got;
        make_lossy(n, TIERCE__ELEMENT_BF16);
        uint64_t length = encode(TIERCE__ELEMENT_BF16);
        ck_assert(length > 0 && length < info.extent.object_bytes);
        ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
        ck_assert_ptr_eq(got.codec, codec);
        ck_assert_int_eq(tierce__coded_decode(back, &got, coded), 0);
        expect_decoded();
    }
}
END_TEST

/* A chunk that was read may be stored again, in another tier: no loss is added. */
START_TEST(test_a_second_loss_changes_nothing)
{
    static const enum tierce__element elements[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_FP16};
    for (unsigned n = 0; n < LOSSY * 2; n++) {
        struct tierce__coded_info got;
        make_lossy(n / 2, elements[n % 2]);
        uint64_t length = encode(elements[n % 2]);
        uint8_t *first = malloc(length);
        ck_assert_ptr_nonnull(first);
        memcpy(first, coded, length);
        ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
        ck_assert_int_eq(tierce__coded_decode(raw, &got, coded), 0);
        ck_assert_uint_eq(encode(elements[n % 2]), length);
        ck_assert_mem_eq(coded, first, length);
        free(first);
    }
}
END_TEST

/* The layers of one rank follow those of the other one, and a model's later layers have fewer
 * levels: with equal cells, layers have equal bytes if they are the same layer of the model, or
 * have the same levels. */
START_TEST(test_layers_of_ranks)
{
    enum { MODEL = 12, BYTES = 2048 };
    static uint32_t sizes[2 * MODEL];
    struct tierce__coded_info got;
    make_lossy(3, TIERCE__ELEMENT_BF16);
    for (unsigned i = 0; i < 2 * MODEL; i++)
        sizes[i] = BYTES;
    info.geometry.layer_count = 2 * MODEL;
    info.geometry.cell_bytes = sizes;
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    uint8_t hashes[BLOCKS * TIERCE_HASH_BYTES], *cell = raw + info.extent.header_bytes;
    memset(hashes, 9, sizeof(hashes));
    tierce__chunk_begin(raw, &info, hashes);
    for (unsigned i = 0; i < 2 * MODEL * BLOCKS; i++)
        kv_fill(cell + (size_t)i * BYTES, BYTES, TIERCE__ELEMENT_BF16, i % BLOCKS, 124, 128);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
    uint64_t length = encode(TIERCE__ELEMENT_BF16);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
    for (uint32_t i = 0; i < 2 * MODEL; i++) {
        static const uint32_t like[MODEL] = {0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 10, 10};
        struct tierce__coded_layer layer = tierce__coded_layer(&got, coded, i),
                                   other = tierce__coded_layer(&got, coded, like[i % MODEL]);
        ck_assert_uint_eq(layer.sum, other.sum);
    }
    ck_assert(tierce__coded_layer(&got, coded, 0).sum != tierce__coded_layer(&got, coded, 2).sum);
    ck_assert(tierce__coded_layer(&got, coded, 2).sum != tierce__coded_layer(&got, coded, 10).sum);
}
END_TEST

/* The sums of a lossy object are new, so a cell that has rotted in memory must not get one. */
START_TEST(test_a_damaged_cell_gets_no_right_sum)
{
    make_lossy(0, TIERCE__ELEMENT_BF16);
    raw[info.extent.object_bytes - 4096 - 100] ^= 1;
    ck_assert_uint_eq(tierce__chunk_verify_cells(raw, &info), 1);
    ck_assert_uint_eq(encode(TIERCE__ELEMENT_BF16), 0);
}
END_TEST

/* A layer with a NaN is restored bit by bit, and others are not. */
START_TEST(test_a_layer_with_a_nan)
{
    struct tierce__coded_info got;
    make_lossy(0, TIERCE__ELEMENT_BF16);
    uint64_t at = tierce__chunk_layer_offset(&info.geometry, 1);
    tierce__store_le16(raw + at + 20, 0x7fc1);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
    uint64_t length = encode(TIERCE__ELEMENT_BF16);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
    ck_assert_int_eq(tierce__coded_decode(back, &got, coded), 0);
    ck_assert_mem_eq(back + at, raw + at, (size_t)cells[1] * BLOCKS);
    expect_decoded();
}
END_TEST

START_TEST(test_flipped_bits_of_a_lossy_object)
{
    struct test_random random = test_random_start("test_flipped_bits_of_a_lossy_object");
    struct tierce__coded_info got;
    make_lossy(1, TIERCE__ELEMENT_BF16);
    uint64_t length = encode(TIERCE__ELEMENT_BF16), head = tierce__coded_head_bytes(&info);
    ck_assert_int_eq(tierce__coded_parse(&got, coded, length), 0);
    ck_assert_int_eq(tierce__coded_decode(raw, &got, coded), 0);
    for (uint64_t i = 0; i < length; i += i < head ? 29 : 1 + test_random_below(&random, 200)) {
        uint8_t bit = (uint8_t)(1u << test_random_below(&random, 8));
        coded[i] ^= bit;
        int rc = tierce__coded_parse(&got, coded, length);
        if (rc == 0)
            rc = tierce__coded_decode(back, &got, coded);
        coded[i] ^= bit;
        if (rc == 0)
            ck_assert_msg(memcmp(back + 4096, raw + 4096, info.extent.object_bytes - 4096) == 0,
                          "byte %llu: a flipped bit gave other bytes", (unsigned long long)i);
    }
}
END_TEST

static Suite *coded_suite(void)
{
    Suite *suite = suite_create("coded");
    TCase *tcase = tcase_create("coded");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_there_and_back);
    tcase_add_test(tcase, test_padding_is_zero);
    tcase_add_test(tcase, test_layers_alone);
    tcase_add_test(tcase, test_incompressible_chunks_stay_raw);
    tcase_add_test(tcase, test_other_readers);
    tcase_add_test(tcase, test_flipped_bits);
    tcase_add_test(tcase, test_lengths_that_lie);
    tcase_add_test(tcase, test_a_length_in_an_empty_object);
    tcase_add_test(tcase, test_a_header_that_changes_while_it_is_encoded);
    tcase_add_test(tcase, test_a_header_that_has_changed_since_it_was_parsed);
    tcase_add_test(tcase, test_lossy_codecs);
    tcase_add_test(tcase, test_a_second_loss_changes_nothing);
    tcase_add_test(tcase, test_layers_of_ranks);
    tcase_add_test(tcase, test_a_damaged_cell_gets_no_right_sum);
    tcase_add_test(tcase, test_a_layer_with_a_nan);
    tcase_add_test(tcase, test_flipped_bits_of_a_lossy_object);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(coded_suite());
}
