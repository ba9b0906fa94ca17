/* SPDX-License-Identifier: Apache-2.0 */
/* An operator's description of a prompt. */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/why/why_chunk.h"
#include "engine/why/why_prompt.h"

#include <stdio.h>
#include <string.h>

static char why[TIERCE__PROMPT_WHY_BYTES];

static int64_t parse(int32_t **tokens, const char *text)
{
    size_t count = 0;
    int rc = tierce__prompt_tokens(tokens, &count, text, strlen(text), why);
    return rc < 0 ? rc : (int64_t)count;
}

START_TEST(token_ids_in_every_dress)
{
    static const char *const texts[] = {"1 22 -3 4294967295", "[1,22,-3,4294967295]",
                                        "[1, 22 ,\n-3,\t4294967295]\n", "1,22,-3,4294967295",
                                        " 1\n22\n-3\n4294967295\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int32_t *tokens;
        ck_assert_int_eq(parse(&tokens, texts[i]), 4);
        ck_assert_int_eq(tokens[0], 1);
        ck_assert_int_eq(tokens[1], 22);
        ck_assert_int_eq(tokens[2], -3);
        ck_assert_int_eq(tokens[3], -1); /* the 32-bit pattern counts */
        tierce__free(tokens);
    }
    static const char *const none[] = {"", " \n", "[]", "[ ]"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        int32_t *tokens;
        ck_assert_int_eq(parse(&tokens, none[i]), 0);
        tierce__free(tokens);
    }
}
END_TEST

START_TEST(what_is_no_token_id)
{
    static const struct {
        const char *text, *where;
    } rows[] = {
        {"1 x", "byte 3"},        {"1.5", "byte 1"},         {"[1,2", "byte 5"},
        {"1]", "byte 2"},         {"[1]]", "byte 4"},        {"[[1]]", "byte 2"},
        {"1,,2", "byte 3"},       {",1", "byte 1"},          {"[1,]", "byte 4"},
        {"4294967296", "byte 1"}, {"-2147483649", "byte 1"}, {"-", "byte 1"},
        {"--1", "byte 1"},        {"{\"a\":1}", "byte 1"},   {"99999999999999999999", "byte 1"},
        {"1 [2]", "byte 3"},      {"0x10", "byte 1"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int32_t *tokens = NULL;
        ck_assert_msg(parse(&tokens, rows[i].text) == TIERCE_E_FORMAT, "%s", rows[i].text);
        ck_assert_msg(strstr(why, rows[i].where) != NULL, "%s: %s", rows[i].text, why);
        ck_assert_ptr_null(tokens);
    }
    int32_t *tokens = NULL;
    size_t count;
    ck_assert_int_eq(tierce__prompt_tokens(&tokens, &count, "1\0", 2, why), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(shards)
{
    struct tierce_shard shard;
    ck_assert(tierce__prompt_shard(&shard, "1/4"));
    ck_assert_uint_eq(shard.tp_rank, 1);
    ck_assert_uint_eq(shard.tp_size, 4);
    ck_assert_uint_eq(shard.pp_rank, 0);
    ck_assert_uint_eq(shard.pp_size, 1);
    ck_assert(tierce__prompt_shard(&shard, "0/1,1/2"));
    ck_assert_uint_eq(shard.pp_rank, 1);
    ck_assert_uint_eq(shard.pp_size, 2);
    static const char *const bad[] = {"",    "1",   "4/4",  "1/2,",    "1/2,2/2",     "1/2x",
                                      "a/b", "0/0", "-1/2", "0/99999", "1/2,0/1,0/1", "1/2 "};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(!tierce__prompt_shard(&shard, bad[i]), "%s", bad[i]);
}
END_TEST

static char *text_of(const char *dtype)
{
    static const uint32_t cells[] = {64};
    char *text;
    ck_assert_int_eq(tierce_namespace_text(
                         &text, &(struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                                           .weights = "aa",
                                                           .kv_dtype = dtype,
                                                           .layer_count = 1,
                                                           .cell_bytes = cells,
                                                           .block_tokens = 16,
                                                           .chunk_blocks = 4,
                                                           .algo = TIERCE_CHAIN_XXH3_128}),
                     0);
    return text;
}

START_TEST(which_namespace)
{
    struct tierce__namespaces *table;
    struct tierce__naming naming;
    char prefix[2][9];
    ck_assert_int_eq(tierce__namespaces_create(&table), 0);
    ck_assert_int_eq(tierce__prompt_namespace(NULL, table, NULL, 0, why), TIERCE_E_MISS);
    for (int i = 0; i < 2; i++) {
        uint8_t digest[TIERCE_HASH_BYTES];
        char *text = text_of(i == 0 ? "bf16" : "fp8");
        tierce_namespace_digest(digest, text);
        ck_assert_int_eq(tierce__namespaces_intern(table, digest, text), i);
        snprintf(prefix[i], sizeof(prefix[i]), "%02x%02X%02x", digest[0], digest[1], digest[2]);
        ck_assert_int_eq(tierce__naming_of(&naming, text), 0);
        ck_assert_int_eq(naming.algo, TIERCE_CHAIN_XXH3_128);
        ck_assert_uint_eq(naming.group.block_tokens, 16);
        ck_assert_uint_eq(naming.group.chunk_blocks, 4);
        tierce_free(text);
        ck_assert_int_eq(tierce__prompt_namespace(NULL, table, NULL, 0, why),
                         i == 0 ? 0 : TIERCE_E_LIMIT);
    }
    ck_assert_ptr_nonnull(strstr(why, "kv_dtype=bf16"));
    ck_assert_ptr_nonnull(strstr(why, "kv_dtype=fp8"));
    ck_assert_int_eq(tierce__prompt_namespace(prefix[0], table, NULL, 0, why), 0);
    ck_assert_int_eq(tierce__prompt_namespace(prefix[1], table, NULL, 0, why), 1);
    ck_assert_int_eq(tierce__prompt_namespace("zz", table, NULL, 0, why), TIERCE_E_MISS);
    ck_assert_ptr_nonnull(strstr(why, "begins with zz"));
    uint64_t counts[2] = {0, 7};
    ck_assert_int_eq(tierce__prompt_namespace(NULL, table, counts, 2, why), 1);
    ck_assert_int_eq(tierce__prompt_namespace(prefix[0], table, counts, 2, why), TIERCE_E_MISS);
    /* Many namespaces do not overflow the list. */
    for (int i = 0; i < 3000; i++) {
        uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(i >> 8), (uint8_t)i, 9};
        ck_assert_int_ge(tierce__namespaces_intern(table, digest, NULL), 2);
    }
    ck_assert_int_eq(tierce__prompt_namespace(NULL, table, NULL, 0, why), TIERCE_E_LIMIT);
    ck_assert_uint_lt(strlen(why), sizeof(why));
    ck_assert_int_eq(tierce__naming_of(&naming, NULL), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__naming_of(&naming, "tierce-namespace=1\nblock_tokens=0\n"),
                     TIERCE_E_FORMAT);
    tierce__namespaces_destroy(table);
}
END_TEST

/* Counts every chunk whose hash has the prefix, keeps the first of them, and skips others. */
START_TEST(chunks_by_the_beginning_of_their_hash)
{
    static struct tierce__sightings found;
    struct tierce__hash_prefix prefix;
    struct tierce__key key = {.hash = {0xab, 0xcd}};
    struct tierce__tier_event seen = {.key = &key};
    ck_assert(!tierce__hash_prefix(&prefix, ""));
    ck_assert(!tierce__hash_prefix(&prefix, "abx"));
    ck_assert(tierce__hash_prefix(&prefix, "abc"));
    found.prefix = &prefix;
    found.tier = "disk";
    for (uint32_t i = 0; i < TIERCE__SIGHTINGS_MAX + 5; i++) {
        seen.block_count = i;
        tierce__sightings_add(&found, &seen);
    }
    key.hash[1] = 0xdd; /* the third digit differs */
    tierce__sightings_add(&found, &seen);
    key.hash[0] = 0xaa;
    tierce__sightings_add(&found, &seen);
    ck_assert_uint_eq(found.count, TIERCE__SIGHTINGS_MAX + 5);
    for (uint32_t i = 0; i < TIERCE__SIGHTINGS_MAX; i++)
        ck_assert_uint_eq(found.items[i].block_count, i);
    ck_assert_str_eq(found.items[0].tier, "disk");
}
END_TEST

CHECK_MAIN("why_prompt", .tests = {token_ids_in_every_dress, what_is_no_token_id, shards,
                                   which_namespace, chunks_by_the_beginning_of_their_hash})
