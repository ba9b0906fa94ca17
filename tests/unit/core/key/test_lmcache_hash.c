/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/key/lmcache.h"

#include <stdio.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-const-variable"
#include "vectors.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int32_t tokens[1000];

static void make_tokens(void)
{
    static const uint32_t edges[] = {0,     1,     23,         24,         255,       256,
                                     65535, 65536, 2147483647, 2147483648, 4294967295};
    for (size_t i = 0; i < 1000; i++)
        tokens[i] = (int32_t)(i < 11 ? edges[i] : (uint32_t)(i * 7919 % 151936));
}

static void check_int(struct tierce__lmcache_int value, struct tierce__lmcache_int expected)
{
    ck_assert_uint_eq(value.magnitude, expected.magnitude);
    ck_assert_int_eq(value.negative, expected.negative);
}

START_TEST(ints_hash_as_in_python)
{
    for (size_t i = 0; i < COUNT(python_ints); i++)
        ck_assert_int_eq(tierce__python_hash_int(python_ints[i]), python_int_hashes[i]);
}
END_TEST

START_TEST(tuples_hash_as_in_python)
{
    int64_t items[4] = {0, 1, 2, 3};
    for (size_t i = 0; i < COUNT(python_tuple_hashes); i++)
        ck_assert_int_eq(tierce__python_hash_tuple(items, i), python_tuple_hashes[i]);
}
END_TEST

START_TEST(chunks_hash_as_in_lmcache)
{
    static const struct {
        enum tierce__lmcache_algo algo;
        struct tierce__lmcache_int none;
        const struct tierce__lmcache_int *expected;
    } cases[] = {
        {TIERCE__LMCACHE_BUILTIN, {0, false}, lmcache_builtin_zero},
        {TIERCE__LMCACHE_BUILTIN, {0x9bd96a485ad84efdULL, false}, lmcache_builtin_none},
        {TIERCE__LMCACHE_BUILTIN, {1ULL << 63, true}, lmcache_builtin_negative},
        {TIERCE__LMCACHE_SHA256_CBOR, {0, false}, lmcache_cbor_zero},
        {TIERCE__LMCACHE_SHA256_CBOR, {0x9bd96a485ad84efdULL, false}, lmcache_cbor_none},
        {TIERCE__LMCACHE_SHA256_CBOR, {1ULL << 63, true}, lmcache_cbor_negative},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tierce__lmcache_opts opts = {.algo = cases[i].algo,
                                            .chunk_tokens = 256,
                                            .unfull_tail = true,
                                            .none_hash = cases[i].none};
        struct tierce__lmcache_int hashes[5];
        memset(hashes, 0xee, sizeof(hashes));
        ck_assert_uint_eq(tierce__lmcache_chunk_count(&opts, 1000), 4);
        tierce__lmcache_hash_chunks(hashes, &opts, tokens, 1000);
        for (size_t k = 0; k < 4; k++)
            check_int(hashes[k], cases[i].expected[k]);

        opts.unfull_tail = false;
        ck_assert_uint_eq(tierce__lmcache_chunk_count(&opts, 1000), 3);
        ck_assert_uint_eq(tierce__lmcache_chunk_count(&opts, 255), 0);
        memset(&hashes[3], 0xee, sizeof(hashes[3]));
        tierce__lmcache_hash_chunks(hashes, &opts, tokens, 1000);
        check_int(hashes[2], cases[i].expected[2]);
        ck_assert_uint_eq(hashes[3].magnitude, 0xeeeeeeeeeeeeeeeeULL);
    }
}
END_TEST

/* Numbers that LMCache 0.5.6 itself gave: ten tokens 0 to 9 in chunks of four. */
START_TEST(short_chunks_hash_as_lmcache_did)
{
    static const uint64_t expected[] = {0xfab066be0f2448b4ULL, 0x196dfef27086f7fcULL,
                                        0x55025f59e8c9a133ULL};
    int32_t ten[10];
    struct tierce__lmcache_int hashes[3];
    for (int i = 0; i < 10; i++)
        ten[i] = i;
    struct tierce__lmcache_opts opts = {
        .algo = TIERCE__LMCACHE_SHA256_CBOR, .chunk_tokens = 4, .unfull_tail = true};
    ck_assert_uint_eq(tierce__lmcache_chunk_count(&opts, 10), 3);
    tierce__lmcache_hash_chunks(hashes, &opts, ten, 10);
    for (int i = 0; i < 3; i++)
        check_int(hashes[i], (struct tierce__lmcache_int){expected[i], false});
}
END_TEST

START_TEST(the_none_hash_of_vllm_is_folded)
{
    check_int(tierce__lmcache_vllm_none_hash(), lmcache_none_hash[0]);
}
END_TEST

int main(void)
{
    make_tokens();
    return CHECK_RUN("lmcache_hash",
                     .tests = {ints_hash_as_in_python, tuples_hash_as_in_python,
                               chunks_hash_as_in_lmcache, short_chunks_hash_as_lmcache_did,
                               the_none_hash_of_vllm_is_folded});
}
