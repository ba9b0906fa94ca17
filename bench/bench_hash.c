/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chain of vLLM's sha256_cbor hashes over 32k tokens, against OpenSSL hashing the same CBOR
 * messages, ready-made. The limit builds no message and waits for no parent; its hashes are
 * compared with ours once.
 */
#include "bench/bench.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

#define TOKENS     32768u
#define BLOCKS_MAX (TOKENS / 16)
#define VOCABULARY 128256u
/* 83 5820 parent; 90 or 9820 and five bytes a token at most; f6 */
#define MESSAGE_BYTES_MAX (3 + TIERCE_HASH_BYTES + 2 + 5 * 32 + 1)

struct hash_case {
    const struct tierce__bench *bench;
    uint32_t block_tokens;
    uint32_t blocks;
    int32_t tokens[TOKENS];
    uint8_t messages[BLOCKS_MAX * MESSAGE_BYTES_MAX];
    uint32_t starts[BLOCKS_MAX + 1]; /* of the messages, which lie end to end */
    uint8_t digests[BLOCKS_MAX][TIERCE_HASH_BYTES];
    struct tierce_chain *chain;
    EVP_MD *sha256;
    EVP_MD_CTX *context;
};

static uint8_t *put_unsigned(uint8_t *out, uint8_t major, uint32_t value)
{
    unsigned bytes = value < 24 ? 0 : value < 256 ? 1 : value < 65536 ? 2 : 4;
    static const uint8_t info[] = {0, 24, 25, 0, 26};
    *out++ = (uint8_t)((uint32_t)major << 5 | (bytes == 0 ? value : (uint32_t)info[bytes]));
    for (unsigned i = bytes; i-- > 0;)
        *out++ = (uint8_t)(value >> (8 * i));
    return out;
}

/* The message of each block: [parent, [token ...], null]. */
static void write_messages(struct hash_case *c)
{
    uint8_t *out = c->messages;
    const uint8_t *parent = tierce_chain_root_hash(c->chain);
    for (uint32_t b = 0; b < c->blocks; b++) {
        c->starts[b] = (uint32_t)(out - c->messages);
        out = put_unsigned(out, 4, 3);
        out = put_unsigned(out, 2, TIERCE_HASH_BYTES);
        memcpy(out, parent, TIERCE_HASH_BYTES);
        out = put_unsigned(out + TIERCE_HASH_BYTES, 4, c->block_tokens);
        for (uint32_t i = 0; i < c->block_tokens; i++)
            out = put_unsigned(out, 0, (uint32_t)c->tokens[b * c->block_tokens + i]);
        *out++ = 0xf6;
        parent = tierce_chain_hash(c->chain, b);
    }
    c->starts[c->blocks] = (uint32_t)(out - c->messages);
}

static int64_t run_chain(void *arg)
{
    struct hash_case *c = arg;
    tierce_chain_reset(c->chain);
    uint64_t start = tierce__now_ns();
    int64_t blocks = tierce_chain_append(c->chain, c->tokens, TOKENS, NULL);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return blocks < 0 ? blocks : ns;
}

static int64_t run_openssl(void *arg)
{
    struct hash_case *c = arg;
    int ok = 1;
    uint64_t start = tierce__now_ns();
    for (uint32_t b = 0; b < c->blocks; b++) {
        const uint8_t *message = c->messages + c->starts[b];
        ok &= EVP_DigestInit_ex2(c->context, c->sha256, NULL);
        ok &= EVP_DigestUpdate(c->context, message, c->starts[b + 1] - c->starts[b]);
        ok &= EVP_DigestFinal_ex(c->context, c->digests[b], NULL);
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return ok == 1 ? ns : tierce__bench_fail(c->bench, "OpenSSL cannot compute SHA-256");
}

static int prepare(struct hash_case *c)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        c->tokens[i] = (int32_t)(tierce__bench_random(1, i) % VOCABULARY);
    int rc = tierce_chain_create(
        &c->chain, &(struct tierce_chain_opts){.size = sizeof(struct tierce_chain_opts),
                                               .algo = TIERCE_CHAIN_VLLM_SHA256_CBOR,
                                               .block_tokens = c->block_tokens});
    if (rc < 0)
        return rc;
    c->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    c->context = EVP_MD_CTX_new();
    if (c->sha256 == NULL || c->context == NULL)
        return -ENOMEM;
    int64_t ns = run_chain(c);
    if (ns < 0)
        return (int)ns;
    write_messages(c);
    ns = run_openssl(c);
    if (ns < 0)
        return (int)ns;
    if (memcmp(c->digests, tierce_chain_hash(c->chain, 0), c->blocks * TIERCE_HASH_BYTES) != 0)
        return tierce__bench_fail(c->bench, "the chain's hashes differ from OpenSSL's");
    return 0;
}

static int measure(struct hash_case *c)
{
    struct tierce__bench_side sides[] = {{.run = run_chain, .arg = c},
                                         {.run = run_openssl, .arg = c}};
    int rc = tierce__bench_alternate(sides, 2, c->bench->seconds);
    if (rc < 0)
        return rc;
    char name[64];
    snprintf(name, sizeof(name), "sha256_cbor; blocks of %u", c->block_tokens);
    tierce__bench_emit(c->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "Mtokens/s",
                                                   .value = TOKENS / sides[0].median_ns * 1e3,
                                                   .limit = TOKENS / sides[1].median_ns * 1e3,
                                                   .goal = 0.6});
    return 0;
}

int tierce__bench_hash(const struct tierce__bench *bench)
{
    static const uint32_t block_tokens[] = {16, 32};
    struct hash_case *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(block_tokens) / sizeof(block_tokens[0]); i++) {
        *c = (struct hash_case){
            .bench = bench, .block_tokens = block_tokens[i], .blocks = TOKENS / block_tokens[i]};
        rc = prepare(c);
        if (rc == 0)
            rc = measure(c);
        tierce_chain_destroy(c->chain);
        EVP_MD_CTX_free(c->context);
        EVP_MD_free(c->sha256);
    }
    tierce__free(c);
    return rc;
}
