/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "check_main.h"
#include "core/key/lmcache.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <tierce/key.h>

#include "vectors.h"

#define TOKENS 1500

static int32_t tokens[TOKENS];

/* The tokens of make_vectors.py. */
static void make_tokens(void)
{
    static const uint32_t edges[] = {0,     1,     23,         24,         255,       256,
                                     65535, 65536, 2147483647, 2147483648, 4294967295};
    for (size_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(i < 11 ? edges[i] : (uint32_t)(i * 7919 % 151936));
}

static struct tierce_chain *make_chain(enum tierce_chain_algo algo, uint32_t block,
                                       const struct tierce_chain_root *root)
{
    struct tierce_chain *chain = NULL;
    struct tierce_chain_opts opts = {
        .size = sizeof(opts), .algo = algo, .block_tokens = block, .root = root};
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), 0);
    return chain;
}

static const struct tierce_chain_root some_root = {.size = sizeof(some_root),
                                                   .lora = "adapter",
                                                   .lora_bytes = 7,
                                                   .salt = "tenant",
                                                   .salt_bytes = 6};

static void check_hash(const uint8_t *hash, const char *expected)
{
    char text[65];
    tierce__hex_encode(text, hash, 32);
    ck_assert_str_eq(text, expected);
}

static void check_hashes(const struct tierce_chain *chain, const char *const *expected, size_t n)
{
    ck_assert_uint_eq(tierce_chain_blocks(chain), n);
    for (size_t i = 0; i < n; i++)
        check_hash(tierce_chain_hash(chain, i), expected[i]);
}

static const struct {
    enum tierce_chain_algo algo;
    uint32_t block;
    const char *const *expected;
} golden[] = {
    {TIERCE_CHAIN_SHA256, 1, sha256_block_1},
    {TIERCE_CHAIN_SHA256, 16, sha256_block_16},
    {TIERCE_CHAIN_SHA256, 32, sha256_block_32},
    {TIERCE_CHAIN_SHA256, 300, sha256_block_300},
    {TIERCE_CHAIN_XXH3_128, 1, xxh3_block_1},
    {TIERCE_CHAIN_XXH3_128, 16, xxh3_block_16},
    {TIERCE_CHAIN_XXH3_128, 32, xxh3_block_32},
    {TIERCE_CHAIN_XXH3_128, 300, xxh3_block_300},
    {TIERCE_CHAIN_VLLM_SHA256_CBOR, 1, vllm_block_1},
    {TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, vllm_block_16},
    {TIERCE_CHAIN_VLLM_SHA256_CBOR, 32, vllm_block_32},
    {TIERCE_CHAIN_VLLM_SHA256_CBOR, 300, vllm_block_300},
};

#define GOLDEN_COUNT (sizeof(golden) / sizeof(golden[0]))

/* Every implementation of SHA-256, and the tokens in steps of every kind. */
START_TEST(hashes_are_as_written_down)
{
    static const size_t steps[] = {1, 3, 16, 17, 100, TOKENS};
    const struct tierce__sha256_impl *impl;
    for (size_t k = 0; (impl = tierce__sha256_impl_at(k)) != NULL; k++) {
        tierce__sha256_impl_set(impl);
        for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
            struct tierce_chain *chain = make_chain(golden[_i].algo, golden[_i].block, NULL);
            size_t total = 5 * golden[_i].block;
            for (size_t at = 0; at < total;) {
                size_t part = steps[s] < total - at ? steps[s] : total - at;
                int64_t blocks = tierce_chain_append(chain, tokens + at, part, NULL);
                at += part;
                ck_assert_int_eq(blocks, (int64_t)(at / golden[_i].block));
            }
            check_hashes(chain, golden[_i].expected, 5);
            tierce_chain_destroy(chain);
        }
    }
}
END_TEST

START_TEST(the_root_of_vllm_is_its_none_hash)
{
    struct tierce_chain *chain = make_chain(TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, NULL);
    check_hash(tierce_chain_root_hash(chain), vllm_none_hash[0]);
    tierce_chain_destroy(chain);
}
END_TEST

START_TEST(root_and_extras_enter_our_chains)
{
    struct tierce_chain_extra items[] = {{1, "picture", 7}, {3, NULL, 100}, {9, "later", 5}};
    char x[100];
    memset(x, 'x', sizeof(x));
    items[1].bytes = x;
    struct tierce_chain_extras extras = {items, 3};
    const char *const *expected[] = {sha256_rooted_extras, xxh3_rooted_extras};
    for (int i = 0; i < 2; i++) {
        enum tierce_chain_algo algo = i == 0 ? TIERCE_CHAIN_SHA256 : TIERCE_CHAIN_XXH3_128;
        for (size_t first = 0; first <= 80; first++) {
            struct tierce_chain *chain = make_chain(algo, 16, &some_root);
            check_hash(tierce_chain_root_hash(chain), expected[i][0]);
            int64_t whole = tierce_chain_append(chain, tokens, first, &extras);
            ck_assert_int_eq(whole, (int64_t)(first / 16));
            ck_assert_int_eq(tierce_chain_append(chain, tokens + first, 80 - first, &extras), 5);
            check_hashes(chain, expected[i] + 1, 5);
            tierce_chain_destroy(chain);
        }
    }
}
END_TEST

START_TEST(extras_of_vllm_are_cbor_items)
{
    struct tierce_chain_extra items[] = {{1, vllm_extra_1, sizeof(vllm_extra_1)},
                                         {3, vllm_extra_3, sizeof(vllm_extra_3)}};
    struct tierce_chain_extras extras = {items, 2};
    struct tierce_chain *chain = make_chain(TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, NULL);
    ck_assert_int_eq(tierce_chain_append(chain, tokens, 80, &extras), 5);
    check_hashes(chain, vllm_extras, 5);
    tierce_chain_destroy(chain);
}
END_TEST

START_TEST(both_ways_to_feed_a_rooted_vllm_chain_agree)
{
    struct tierce_chain *by_tokens = make_chain(TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, &some_root);
    struct tierce_chain *by_hashes = make_chain(TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, &some_root);
    struct tierce_chain *engine = make_chain(TIERCE_CHAIN_VLLM_SHA256_CBOR, 16, NULL);
    ck_assert_int_eq(tierce_chain_append(by_tokens, tokens, 40, NULL), 2);
    ck_assert_int_eq(tierce_chain_append(by_tokens, tokens + 40, 40, NULL), 5);
    ck_assert_int_eq(tierce_chain_append(engine, tokens, 80, NULL), 5);
    ck_assert_int_eq(tierce_chain_append_hashes(by_hashes, tierce_chain_hash(engine, 0), 2), 2);
    ck_assert_int_eq(tierce_chain_append_hashes(by_hashes, tierce_chain_hash(engine, 2), 3), 5);
    check_hash(tierce_chain_root_hash(by_tokens), vllm_rooted_16[0]);
    check_hashes(by_tokens, vllm_rooted_16 + 1, 5);
    check_hashes(by_hashes, vllm_rooted_16 + 1, 5);
    tierce_chain_destroy(by_tokens);
    tierce_chain_destroy(by_hashes);
    tierce_chain_destroy(engine);
}
END_TEST

START_TEST(engine_hashes_without_a_root_are_kept_as_they_are)
{
    struct tierce_chain *chain = make_chain(TIERCE_CHAIN_SHA256, 16, NULL);
    uint8_t hashes[64];
    for (size_t i = 0; i < 64; i++)
        hashes[i] = (uint8_t)i;
    ck_assert_int_eq(tierce_chain_append_hashes(chain, hashes, 2), 2);
    ck_assert_mem_eq(tierce_chain_hash(chain, 0), hashes, 64);
    ck_assert_int_eq(tierce_chain_append(chain, tokens, 16, NULL), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(tierce_chain_blocks(chain), 2);
    tierce_chain_reset(chain);
    ck_assert_int_eq(tierce_chain_append(chain, tokens, 16, NULL), 1);
    ck_assert_int_eq(tierce_chain_append_hashes(chain, hashes, 1), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(tierce_chain_blocks(chain), 1);
    tierce_chain_destroy(chain);
}
END_TEST

/* A part's bytes moved to another part, or split otherwise, are another root. */
START_TEST(different_roots_differ)
{
    const struct tierce_chain_root roots[] = {
        {.size = sizeof(roots[0])},
        {.size = sizeof(roots[0]), .lora = "ab", .lora_bytes = 2},
        {.size = sizeof(roots[0]), .salt = "ab", .salt_bytes = 2},
        {.size = sizeof(roots[0]), .other = "ab", .other_bytes = 2},
        {.size = sizeof(roots[0]), .lora = "a", .lora_bytes = 1, .salt = "b", .salt_bytes = 1},
        {.size = sizeof(roots[0]), .lora = "a\0", .lora_bytes = 2},
        {.size = sizeof(roots[0]), .lora = "a", .lora_bytes = 1},
    };
    static const enum tierce_chain_algo algos[] = {TIERCE_CHAIN_SHA256, TIERCE_CHAIN_XXH3_128,
                                                   TIERCE_CHAIN_VLLM_SHA256_CBOR};
    uint8_t seen[21][2][32];
    size_t n = 0;
    for (size_t a = 0; a < 3; a++) {
        for (size_t r = 0; r < 7; r++, n++) {
            struct tierce_chain *chain = make_chain(algos[a], 4, &roots[r]);
            ck_assert_int_eq(tierce_chain_append(chain, tokens, 4, NULL), 1);
            memcpy(seen[n][0], tierce_chain_root_hash(chain), 32);
            memcpy(seen[n][1], tierce_chain_hash(chain, 0), 32);
            for (size_t i = 0; i < n; i++) {
                ck_assert_mem_ne(seen[i][0], seen[n][0], 32);
                ck_assert_mem_ne(seen[i][1], seen[n][1], 32);
            }
            tierce_chain_destroy(chain);
        }
        /* Nothing but empty parts is not a root. */
        struct tierce_chain *plain = make_chain(algos[a], 4, NULL);
        ck_assert_mem_eq(tierce_chain_root_hash(plain), seen[7 * a][0], 32);
        tierce_chain_destroy(plain);
    }
}
END_TEST

START_TEST(arguments_out_of_bounds_are_refused)
{
    struct tierce_chain *chain = NULL;
    struct tierce_chain_root root = {.size = sizeof(root)};
    struct tierce_chain_opts good = {
        .size = sizeof(good), .algo = TIERCE_CHAIN_SHA256, .block_tokens = 16, .root = &root};
    struct tierce_chain_opts opts = good;
    opts.size--;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    opts = good;
    opts.algo = 0;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    opts.algo = 4;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    opts = good;
    opts.block_tokens = 0;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    opts.block_tokens = 65537;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    opts = good;
    root.salt_bytes = 1;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    root = (struct tierce_chain_root){.size = 1};
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_chain_create(&chain, NULL), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(chain);

    chain = make_chain(TIERCE_CHAIN_SHA256, 65536, NULL);
    ck_assert_int_eq(tierce_chain_append(chain, NULL, 1, NULL), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_chain_append(chain, NULL, 0, NULL), 0);
    ck_assert_int_eq(tierce_chain_append_hashes(chain, NULL, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_chain_append_hashes(chain, NULL, 0), 0);
    struct tierce_chain_extra bad[][2] = {{{2, "a", 1}, {2, "b", 1}},
                                          {{2, "a", 1}, {1, "b", 1}},
                                          {{1, "a", 1}, {2, "b", 0}},
                                          {{1, "a", 1}, {2, NULL, 1}}};
    for (size_t i = 0; i < 4; i++) {
        struct tierce_chain_extras extras = {bad[i], 2};
        ck_assert_int_eq(tierce_chain_append(chain, tokens, 1, &extras), TIERCE_E_ARGUMENT);
    }
    struct tierce_chain_extras none = {NULL, 1};
    ck_assert_int_eq(tierce_chain_append(chain, tokens, 1, &none), TIERCE_E_ARGUMENT);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(NULL);
}
END_TEST

START_TEST(algorithms_have_names)
{
    static const char *const names[] = {"sha256", "xxh3-128", "vllm-sha256-cbor"};
    for (int i = 0; i < 3; i++) {
        enum tierce_chain_algo algo = 0;
        ck_assert_str_eq(tierce_chain_algo_name((enum tierce_chain_algo)(i + 1)), names[i]);
        ck_assert_int_eq(tierce_chain_algo_parse(&algo, names[i]), 0);
        ck_assert_int_eq(algo, i + 1);
    }
    enum tierce_chain_algo algo = TIERCE_CHAIN_XXH3_128;
    ck_assert_int_eq(tierce_chain_algo_parse(&algo, "sha-256"), TIERCE_E_CONFIG);
    ck_assert_int_eq(tierce_chain_algo_parse(&algo, ""), TIERCE_E_CONFIG);
    ck_assert_int_eq(tierce_chain_algo_parse(&algo, NULL), TIERCE_E_CONFIG);
    ck_assert_int_eq(algo, TIERCE_CHAIN_XXH3_128);
    ck_assert_ptr_null(tierce_chain_algo_name(0));
}
END_TEST

/* Each allocation fails once: an append then changes nothing, and works when it is repeated. */
START_TEST(every_failed_allocation_leaves_the_chain_as_it_was)
{
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1;; nth++) {
        ck_assert_uint_lt(nth, 100);
        struct tierce_chain *chain = NULL;
        struct tierce_chain_opts opts = {.size = sizeof(opts),
                                         .algo = TIERCE_CHAIN_VLLM_SHA256_CBOR,
                                         .block_tokens = 16,
                                         .root = &some_root};
        tierce__alloc_fail_nth(nth);
        int rc = tierce_chain_create(&chain, &opts);
        if (rc < 0) {
            ck_assert_int_eq(rc, -ENOMEM);
            ck_assert_ptr_null(chain);
            ck_assert_uint_eq(tierce__alloc_live(), live);
            continue;
        }
        int failed = 0;
        for (size_t at = 0; at < 800;) {
            size_t before = tierce_chain_blocks(chain);
            int64_t blocks = tierce_chain_append(chain, tokens + at, 40, NULL);
            if (blocks < 0) {
                ck_assert_int_eq(blocks, -ENOMEM);
                ck_assert_uint_eq(tierce_chain_blocks(chain), before);
                failed++;
                continue;
            }
            at += 40;
        }
        tierce__alloc_fail_nth(0);
        ck_assert_int_le(failed, 1);
        for (size_t i = 0; i < 5; i++)
            check_hash(tierce_chain_hash(chain, i), vllm_rooted_16[1 + i]);
        tierce_chain_destroy(chain);
        ck_assert_uint_eq(tierce__alloc_live(), live);
        if (failed == 0)
            break;
    }
}
END_TEST

START_TEST(a_hash_beyond_the_last_panics)
{
    struct tierce_chain *chain = make_chain(TIERCE_CHAIN_SHA256, 16, NULL);
    tierce_chain_hash(chain, 0);
}
END_TEST

START_TEST(a_destroyed_chain_panics)
{
    struct tierce_chain *chain = make_chain(TIERCE_CHAIN_SHA256, 16, NULL);
    memset(chain, 0, sizeof(uint32_t));
    tierce_chain_blocks(chain);
}
END_TEST

int main(void)
{
    make_tokens();
    return CHECK_RUN(
        "chain",
        .tests = {the_root_of_vllm_is_its_none_hash, root_and_extras_enter_our_chains,
                  extras_of_vllm_are_cbor_items, both_ways_to_feed_a_rooted_vllm_chain_agree,
                  engine_hashes_without_a_root_are_kept_as_they_are, different_roots_differ,
                  arguments_out_of_bounds_are_refused, algorithms_have_names,
                  every_failed_allocation_leaves_the_chain_as_it_was},
        .panics = {a_hash_beyond_the_last_panics, a_destroyed_chain_panics},
        .loops = {{hashes_are_as_written_down, 0, GOLDEN_COUNT}});
}
