/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "test_random.h"

#include <openssl/evp.h>
#include <string.h>
#include <tierce/key.h>
#include <xxhash.h>

/*
 * Chains against a model: whatever the steps in which tokens and extras arrive, the hashes are
 * those of a plain loop over whole blocks that uses other people's hash functions.
 */

#define TOKENS_MAX 4000
#define EXTRAS_MAX 40

static struct test_random rnd;

static size_t below(uint32_t n)
{
    return test_random_below(&rnd, n);
}

static int32_t tokens[TOKENS_MAX];
static uint8_t extra_bytes[EXTRAS_MAX][300];
static struct tierce_chain_extra extras[EXTRAS_MAX];

static void make_tokens(void)
{
    for (size_t i = 0; i < TOKENS_MAX; i++) {
        unsigned bits = 1 + (unsigned)below(32);
        tokens[i] = (int32_t)(uint32_t)(test_random_u64(&rnd) >> (64 - bits));
    }
}

static size_t make_extras(void)
{
    uint64_t block = below(10);
    size_t count = below(EXTRAS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t size = 1 + below(sizeof(extra_bytes[0]));
        for (size_t k = 0; k < size; k++)
            extra_bytes[i][k] = (uint8_t)test_random_u64(&rnd);
        extras[i] = (struct tierce_chain_extra){block, extra_bytes[i], size};
        block += 1 + below(5);
    }
    return count;
}

static const struct tierce_chain_extra *find_extra(size_t count, uint64_t block)
{
    for (size_t i = 0; i < count; i++)
        if (extras[i].block == block)
            return &extras[i];
    return NULL;
}

static size_t put_number(uint8_t *out, unsigned major, uint32_t value)
{
    size_t bytes = value < 24 ? 0 : value < 256 ? 1 : value < 65536 ? 2 : 4;
    static const unsigned codes[] = {0, 24, 25, 0, 26};
    out[0] = (uint8_t)(major | (bytes == 0 ? value : codes[bytes]));
    for (size_t i = 0; i < bytes; i++)
        out[1 + i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
    return 1 + bytes;
}

/* The message of one block, as docs/inside/format/key.md has it. */
static size_t model_message(uint8_t *out, enum tierce_chain_algo algo, const uint8_t *parent,
                            const int32_t *block, uint32_t n,
                            const struct tierce_chain_extra *extra)
{
    size_t size = 0, extra_size = extra != NULL ? extra->bytes_len : 0;
    if (algo == TIERCE_CHAIN_VLLM_SHA256_CBOR) {
        out[size++] = 0x83;
        out[size++] = 0x58;
        out[size++] = 32;
        memcpy(out + size, parent, 32);
        size += 32;
        size += put_number(out + size, 0x80, n);
        for (uint32_t i = 0; i < n; i++)
            size += put_number(out + size, 0, (uint32_t)block[i]);
        if (extra == NULL)
            out[size++] = 0xf6;
    }
    for (uint32_t i = 0; algo != TIERCE_CHAIN_VLLM_SHA256_CBOR && i < n; i++, size += 4)
        tierce__store_le32(out + size, (uint32_t)block[i]);
    if (extra != NULL)
        memcpy(out + size, extra->bytes, extra_size);
    size += extra_size;
    if (algo != TIERCE_CHAIN_VLLM_SHA256_CBOR) {
        memcpy(out + size, parent, 32);
        tierce__store_le32(out + size + 32, n);
        tierce__store_le32(out + size + 36, (uint32_t)extra_size);
        size += 40;
    }
    return size;
}

static void model_hash(uint8_t hash[32], enum tierce_chain_algo algo, const uint8_t *message,
                       size_t size)
{
    memset(hash, 0, 32);
    if (algo == TIERCE_CHAIN_XXH3_128) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(message, size));
        memcpy(hash, canonical.digest, 16);
    } else {
        ck_assert_int_eq(EVP_Digest(message, size, hash, NULL, EVP_sha256(), NULL), 1);
    }
}

static void check_against_model(const struct tierce_chain *chain, enum tierce_chain_algo algo,
                                uint32_t n, size_t extra_count)
{
    static uint8_t message[5 * TOKENS_MAX + 1000];
    uint8_t hash[32];
    memcpy(hash, tierce_chain_root_hash(chain), 32);
    for (size_t b = 0; b < tierce_chain_blocks(chain); b++) {
        const struct tierce_chain_extra *extra = find_extra(extra_count, b);
        size_t size = model_message(message, algo, hash, tokens + b * n, n, extra);
        model_hash(hash, algo, message, size);
        ck_assert_mem_eq(tierce_chain_hash(chain, b), hash, 32);
    }
}

static void one_round(void)
{
    enum tierce_chain_algo algo = (enum tierce_chain_algo)(1 + below(3));
    uint32_t n = 1 + (uint32_t)below(below(4) == 0 ? 700 : 70);
    struct tierce_chain_opts opts = {.size = sizeof(opts), .algo = algo, .block_tokens = n};
    struct tierce_chain *chain = NULL;
    ck_assert_int_eq(tierce_chain_create(&chain, &opts), 0);
    for (int use = 0; use < 2; use++) {
        make_tokens();
        size_t extra_count = make_extras(), total = below(TOKENS_MAX + 1), at = 0;
        struct tierce_chain_extras given = {extras, extra_count};
        while (at < total) {
            size_t step = below(3) == 0 ? 1 : below(below(2) == 0 ? 40 : 2000);
            if (step > total - at)
                step = total - at;
            int64_t blocks = tierce_chain_append(chain, tokens + at, step, &given);
            at += step;
            ck_assert_int_eq(blocks, (int64_t)(at / n));
        }
        check_against_model(chain, algo, n, extra_count);
        tierce_chain_reset(chain);
    }
    tierce_chain_destroy(chain);
}

START_TEST(chains_are_as_the_model)
{
    rnd = test_random_start("key");
    unsigned rounds = 400 * test_scale();
    for (unsigned i = 0; i < rounds; i++)
        one_round();
}
END_TEST

CHECK_MAIN("prop_key", .seconds = 50, .tests = {chains_are_as_the_model})
