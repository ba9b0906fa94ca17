/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypted objects come back bit by bit with their key, and with no other; and the text of keys.
 */
#include "check_main.h"
#include "core/chunk/coded.h"
#include "core/chunk/seal_keys.h"
#include "core/paged/paged.h"
#include "kv_values.h"
#include "test_random.h"

#include <string.h>

enum { LAYERS = 3, BLOCKS = 4, OBJECT_MAX = 1 << 20 };

/* Sums of an object that another implementation of AES-GCM and HKDF has decrypted as well. */
#define FROZEN_LAYERS 0xb48d98f0e7ca3e46ULL
#define FROZEN_TABLE  0x5546ba9aa3c60860ULL

static uint8_t *raw, *sealed, *back;
static struct tierce__chunk_info info;
static const uint32_t cells[LAYERS] = {6144, 6144, 2048};
static const struct tierce__codec *codec;
static const struct tierce__seal_key key = {.number = 7, .bytes = {1, 2, 3}};
static const uint8_t salt[TIERCE__SEAL_SALT_BYTES] = {9, 8, 7};

static void make_raw(enum tierce_group group, enum tierce__element element)
{
    uint8_t hashes[BLOCKS * TIERCE_HASH_BYTES];
    info = (struct tierce__chunk_info){
        .shard = {1, 2, 0, 1},
        .algo = TIERCE_CHAIN_SHA256,
        .group = group,
        .token_start = 64,
        .created_s = 1795900000,
        .geometry = {
            .layer_count = LAYERS, .cell_bytes = cells, .block_tokens = 16, .block_count = BLOCKS}};
    memset(info.ns_digest, 7, sizeof(info.ns_digest));
    memset(hashes, 9, sizeof(hashes));
    memcpy(info.hash, hashes, TIERCE_HASH_BYTES);
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    tierce__chunk_begin(raw, &info, hashes);
    kv_fill(raw + info.extent.header_bytes, info.extent.payload_bytes, element, 1, 14, 128);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
}

static void setup(void)
{
    codec = tierce__codec_find("lossless");
    raw = aligned_alloc(64, OBJECT_MAX);
    sealed = aligned_alloc(64, OBJECT_MAX);
    back = aligned_alloc(64, OBJECT_MAX);
    ck_assert(raw != NULL && sealed != NULL && back != NULL);
    memset(sealed, 0xa5, OBJECT_MAX); /* no byte of this may stay in an object */
    make_raw(TIERCE_GROUP_ALL, TIERCE__ELEMENT_BF16);
}

static void teardown(void)
{
    free(raw);
    free(sealed);
    free(back);
}

static uint64_t seal(const struct tierce__codec *with, enum tierce__element element,
                     const uint8_t *fixed_salt)
{
    uint64_t room = tierce__coded_room(raw, &info);
    ck_assert_uint_le(room, OBJECT_MAX);
    int64_t length = tierce__coded_encode_as(
        sealed, room, raw, &info,
        &(struct tierce__coded_form){
            .codec = with, .element = element, .key = &key, .salt = fixed_salt});
    ck_assert_int_gt(length, 0);
    return (uint64_t)length;
}

static int open_with(const struct tierce__seal_key *with, uint64_t length)
{
    struct tierce__coded_info got;
    int rc = tierce__coded_parse(&got, sealed, length);
    if (rc < 0)
        return rc;
    ck_assert_uint_eq(got.key_number, key.number);
    ck_assert_uint_eq(got.object_bytes, length);
    ck_assert_int_eq(tierce__coded_open(&got, sealed, with), 0);
    return tierce__coded_decode(back, &got, sealed);
}

/* Whether 32 bytes in a row of the chunk's cells are in the sealed object. */
static bool is_readable(uint64_t length)
{
    for (uint64_t at = 0; at + 32 <= info.extent.payload_bytes; at += 32) {
        if (memmem(sealed, length, raw + info.extent.header_bytes + at, 32) != NULL)
            return true;
    }
    return false;
}

START_TEST(objects_come_back)
{
    static const enum tierce_group groups[] = {TIERCE_GROUP_ALL, TIERCE_GROUP_FULL};
    for (unsigned i = 0; i < 2 * 2 * TIERCE__ELEMENTS; i++) {
        enum tierce__element element = (enum tierce__element)(i / 4);
        bool has_codec = i % 2 > 0 && element != TIERCE__ELEMENT_RAW;
        make_raw(groups[i / 2 % 2], has_codec ? element : TIERCE__ELEMENT_BF16);
        uint64_t length = seal(has_codec ? codec : NULL, element, NULL);
        ck_assert(has_codec ? length < info.extent.object_bytes
                            : length > info.extent.object_bytes);
        ck_assert(!is_readable(length));
        ck_assert_int_eq(open_with(&key, length), 0);
        ck_assert_mem_eq(back, raw, info.extent.object_bytes);
        struct tierce__chunk_info plain;
        ck_assert_int_eq(tierce__chunk_parse(&plain, back, info.extent.object_bytes), 0);
        ck_assert_int_eq(tierce__chunk_parse(&plain, sealed, length), TIERCE_E_VERSION);
    }
}
END_TEST

/* Without a codec's gain the object is encrypted all the same. */
START_TEST(incompressible_chunks_are_encrypted)
{
    uint64_t seed = 3;
    struct tierce__coded_info got;
    for (uint64_t i = 0; i < info.extent.payload_bytes; i++)
        raw[info.extent.header_bytes + i] = (uint8_t)tierce__random_next(&seed);
    uint64_t length = seal(codec, TIERCE__ELEMENT_BF16, NULL);
    ck_assert_uint_gt(length, info.extent.object_bytes);
    ck_assert_int_eq(tierce__coded_parse(&got, sealed, length), 0);
    ck_assert_ptr_null(got.codec);
    ck_assert_int_eq(open_with(&key, length), 0);
    ck_assert_mem_eq(back, raw, info.extent.object_bytes);
}
END_TEST

START_TEST(only_the_key_opens)
{
    struct tierce__coded_info got;
    struct tierce__seal_key other = key;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t length = seal(i == 0 ? codec : NULL, TIERCE__ELEMENT_BF16, NULL);
        other.bytes[31] ^= 1;
        ck_assert_int_eq(open_with(&other, length), TIERCE_E_VERSION);
        other.bytes[31] ^= 1;
        ck_assert_int_eq(tierce__coded_parse(&got, sealed, length), 0);
        ck_assert_int_eq(tierce__coded_decode(back, &got, sealed), TIERCE_E_VERSION);
    }
}
END_TEST

/* Objects of one chunk and one key have no layer in common. */
START_TEST(equal_chunks_differ)
{
    uint64_t length = seal(NULL, TIERCE__ELEMENT_RAW, NULL), head = tierce__coded_head_bytes(&info);
    memcpy(back, sealed, length);
    ck_assert_uint_eq(seal(NULL, TIERCE__ELEMENT_RAW, NULL), length);
    for (uint64_t at = head; at + 64 <= head + info.extent.payload_bytes; at += 64)
        ck_assert(memcmp(back + at, sealed + at, 64) != 0);
}
END_TEST

/* The sum of a header leaves the padding out, and the key is derived from it: damage there must not
 * be taken for another key, with which the object would stay for ever. */
START_TEST(damage_in_the_padding)
{
    for (int i = 0; i < 2; i++) {
        struct tierce__coded_info got;
        uint64_t length = seal(i == 0 ? codec : NULL, TIERCE__ELEMENT_BF16, NULL), tried = 0;
        for (uint64_t at = TIERCE__CHUNK_FIXED; at < info.extent.header_bytes; at++) {
            if (sealed[at] != 0)
                continue;
            sealed[at] ^= 1;
            ck_assert_int_eq(tierce__coded_parse(&got, sealed, length), TIERCE_E_CHECKSUM);
            sealed[at] ^= 1;
            tried++;
        }
        ck_assert_uint_gt(tried, 1000);
        ck_assert_int_eq(tierce__coded_parse(&got, sealed, length), 0);
    }
}
END_TEST

static void fix_sums(void)
{
    uint8_t *table = sealed + info.extent.header_bytes;
    struct tierce__coded_info got = {.chunk = info, .head_bytes = tierce__coded_head_bytes(&info)};
    for (uint32_t i = 0; i < LAYERS; i++) {
        struct tierce__coded_layer layer = tierce__coded_layer(&got, sealed, i);
        tierce__store_le64(table + 64 + 16 * i + 8,
                           tierce__sum(sealed + layer.offset, layer.bytes));
    }
    tierce__store_le64(table + 24, tierce__chunk_header_sum(sealed));
    tierce__store_le64(table + 8, tierce__sum(table + 16, 4096 - 16));
}

/* Changes with right sums, by somebody without the key: in each part of the object. */
START_TEST(changes_are_noticed)
{
    uint64_t length = seal(NULL, TIERCE__ELEMENT_RAW, NULL), header = info.extent.header_bytes;
    uint64_t head = tierce__coded_head_bytes(&info), layer = 6144u * BLOCKS;
    const uint64_t at[] = {144,         64 + 32,      header - 4096 + 256 + 16 + 32 * BLOCKS,
                           header + 44, header + 63,  head,
                           head + 5000, head + layer, head + layer + 15};
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        memcpy(back, sealed, length);
        sealed[at[i]] ^= 4;
        tierce__chunk_seal(sealed, header);
        fix_sums();
        uint8_t *kept = malloc(length);
        memcpy(kept, back, length);
        int rc = open_with(&key, length);
        memcpy(sealed, kept, length);
        free(kept);
        ck_assert_msg(rc == TIERCE_E_VERSION, "byte %llu: %d", (unsigned long long)at[i], rc);
    }
    /* Two layers of equal length in each other's place. */
    uint64_t stride = (layer + TIERCE__SEAL_TAG_BYTES + 63) / 64 * 64;
    memcpy(back, sealed + head, layer + TIERCE__SEAL_TAG_BYTES);
    memcpy(sealed + head, sealed + head + stride, layer + TIERCE__SEAL_TAG_BYTES);
    memcpy(sealed + head + stride, back, layer + TIERCE__SEAL_TAG_BYTES);
    fix_sums();
    ck_assert_int_eq(open_with(&key, length), TIERCE_E_VERSION);
}
END_TEST

/* Any bit that flips is noticed by a sum, or was padding: never other bytes. */
START_TEST(flipped_bits_are_noticed)
{
    struct test_random random = test_random_start("flipped_bits_are_noticed");
    uint64_t length = seal(codec, TIERCE__ELEMENT_BF16, NULL);
    uint64_t head = tierce__coded_head_bytes(&info);
    for (uint64_t i = 0; i < length; i += i < head ? 61 : 1 + test_random_below(&random, 900)) {
        struct tierce__coded_info got;
        uint8_t bit = (uint8_t)(1u << test_random_below(&random, 8));
        sealed[i] ^= bit;
        int rc = tierce__coded_parse(&got, sealed, length);
        if (rc == 0)
            rc = open_with(&key, length);
        sealed[i] ^= bit;
        if (rc == 0)
            ck_assert_mem_eq(back + 4096, raw + 4096, info.extent.object_bytes - 4096);
    }
}
END_TEST

/* Fields of the table that have their sums and lie. */
START_TEST(fields_that_lie)
{
    static const struct {
        size_t at;
        uint64_t add;
        int status;
    } lies[] = {{36, 1, TIERCE_E_VERSION},           {36, (uint64_t)-1, TIERCE_E_VERSION},
                {40, (uint64_t)-7, TIERCE_E_FORMAT}, {32, 5, TIERCE_E_FORMAT},
                {16, 4096, TIERCE_E_FORMAT},         {64, 1, TIERCE_E_FORMAT},
                {64, (uint64_t)-17, TIERCE_E_FORMAT}};
    for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct tierce__coded_info got;
        uint64_t length = seal(NULL, TIERCE__ELEMENT_RAW, NULL);
        uint8_t *table = sealed + info.extent.header_bytes, *field = table + lies[i].at;
        tierce__store_le32(field, tierce__load_le32(field) + (uint32_t)lies[i].add);
        tierce__store_le64(table + 8, tierce__sum(table + 16, 4096 - 16));
        int rc = tierce__coded_parse(&got, sealed, length);
        ck_assert_msg(rc == lies[i].status, "lie %u: %d", i, rc);
    }
}
END_TEST

/* The bytes of this version: a later one must read them. */
START_TEST(the_format_is_frozen)
{
    struct tierce__coded_info got;
    uint64_t length = seal(NULL, TIERCE__ELEMENT_RAW, salt), head = tierce__coded_head_bytes(&info);
    ck_assert_uint_eq(tierce__sum(sealed + head, length - head), FROZEN_LAYERS);
    ck_assert_uint_eq(tierce__sum(sealed + info.extent.header_bytes, 4096), FROZEN_TABLE);
    ck_assert_int_eq(tierce__coded_parse(&got, sealed, length), 0);
    ck_assert_int_eq(open_with(&key, length), 0);
}
END_TEST

/* ---- the text of keys ------------------------------------------------------------------------ */

#define ONES "1111111111111111111111111111111111111111111111111111111111111111"
#define TWOS "2222222222222222222222222222222222222222222222222222222222222222"

static int parse_text(struct tierce__seal_keys **out, const char *text,
                      char why[TIERCE__SEAL_KEYS_WHY_BYTES])
{
    char copy[1024];
    size_t length = strlen(text);
    ck_assert_uint_lt(length, sizeof(copy));
    memcpy(copy, text, length + 1);
    return tierce__seal_keys_parse(out, copy, length, why);
}

START_TEST(keys_of_namespaces)
{
    struct tierce__seal_keys *keys;
    char why[TIERCE__SEAL_KEYS_WHY_BYTES];
    uint8_t own[TIERCE_HASH_BYTES], other[TIERCE_HASH_BYTES];
    memset(own, 0xab, sizeof(own));
    memset(other, 0xcd, sizeof(other));
    ck_assert_int_eq(parse_text(&keys,
                                "# comment\n\n 3 " ONES "\t# the old one\n4 " TWOS "\r\n"
                                "2 " TWOS " abababab\n5 " ONES " cdcdcdcdcd\n"
                                "1 " ONES " abababab\n6 " TWOS " cdcdcdcd\n",
                                why),
                     0);
    ck_assert_uint_eq(tierce__seal_keys_newest(keys, own)->number, 2);
    ck_assert_uint_eq(tierce__seal_keys_newest(keys, other)->number, 6);
    memset(other, 0xee, sizeof(other));
    ck_assert_uint_eq(tierce__seal_keys_newest(keys, other)->number, 4);
    ck_assert_uint_eq(tierce__seal_keys_newest(keys, other)->bytes[0], 0x22);
    ck_assert_uint_eq(tierce__seal_keys_numbered(keys, 3, own)->bytes[31], 0x11);
    ck_assert_ptr_null(tierce__seal_keys_numbered(keys, 2, other));
    ck_assert_ptr_null(tierce__seal_keys_numbered(keys, 6, own));
    tierce__seal_keys_destroy(keys);
    ck_assert_int_eq(parse_text(&keys, "1 " ONES " abababab", why), 0);
    ck_assert_ptr_null(tierce__seal_keys_newest(keys, other));
    tierce__seal_keys_destroy(keys);
    tierce__seal_keys_destroy(NULL);
}
END_TEST

START_TEST(invalid_keys_are_rejected)
{
    static const struct {
        const char *text, *why;
    } cases[] = {{"", "there is no key"},
                 {"# only this\n", "there is no key"},
                 {"1", "two or three words"},
                 {"1 " ONES " abababab more", "two or three words"},
                 {"0 " ONES, "the number is not"},
                 {"-1 " ONES, "the number is not"},
                 {"4294967296 " ONES, "the number is not"},
                 {"18446744073709551617 " ONES, "the number is not"}, /* 1 modulo 2^64 */
                 {"1 " ONES "\n1 " TWOS, "line 2: another line has the same number"},
                 {"1 " ONES "1", "64 hex digits"},
                 {"1 g" ONES, "64 hex digits"},
                 {"1 " ONES " ababab", "the namespace is not"},
                 {"1 " ONES " ABABABAB", "the namespace is not"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__seal_keys *keys;
        char why[TIERCE__SEAL_KEYS_WHY_BYTES];
        ck_assert_int_eq(parse_text(&keys, cases[i].text, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, cases[i].why) != NULL, "%s: %s", cases[i].text, why);
        ck_assert_ptr_null(strstr(why, "1111"));
    }
    char nul[] = "1 " ONES "\n\0 2";
    struct tierce__seal_keys *keys;
    char why[TIERCE__SEAL_KEYS_WHY_BYTES];
    ck_assert_int_eq(tierce__seal_keys_parse(&keys, nul, sizeof(nul) - 1, why), TIERCE_E_CONFIG);
}
END_TEST

static Suite *seal_suite(void)
{
    Suite *suite = suite_create("seal");
    TCase *tcase = tcase_create("seal");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, objects_come_back);
    tcase_add_test(tcase, incompressible_chunks_are_encrypted);
    tcase_add_test(tcase, only_the_key_opens);
    tcase_add_test(tcase, equal_chunks_differ);
    tcase_add_test(tcase, damage_in_the_padding);
    tcase_add_test(tcase, changes_are_noticed);
    tcase_add_test(tcase, flipped_bits_are_noticed);
    tcase_add_test(tcase, fields_that_lie);
    tcase_add_test(tcase, the_format_is_frozen);
    tcase_add_test(tcase, keys_of_namespaces);
    tcase_add_test(tcase, invalid_keys_are_rejected);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(seal_suite());
}
