/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_MODULE_H
#define TIERCE_KEY_MODULE_H

#include <stdbool.h>
#include <string.h>

#include <tierce/key.h>

/*
 * The name of one shard of one chunk inside a process. The namespace is interned
 * (key/namespaces.h); what leaves the process carries its digest instead.
 */
struct tierce__key {
    uint8_t hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    uint32_t ns;   /* id in the table of namespaces */
    uint32_t zero; /* keeps the struct free of padding, so that memcmp compares identities */
};

_Static_assert(sizeof(struct tierce__key) == 48, "a key has no padding");

static inline bool tierce__key_equal(const struct tierce__key *a, const struct tierce__key *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* A 64-bit spread of a key for tables. Chunk hashes are uniform except where somebody chose
 * them, which costs table time and never identity. */
static inline uint64_t tierce__key_spread(const struct tierce__key *key)
{
    uint64_t a, b, s;
    memcpy(&a, key->hash, 8);
    memcpy(&b, key->hash + 8, 8);
    memcpy(&s, &key->shard, 8);
    uint64_t x = a ^ (b * 0x9e3779b97f4a7c15ULL) ^ (s + key->ns) * 0xd6e8feb86659fd93ULL;
    return x ^ (x >> 32);
}

/* Whether a chain was made for this algorithm and block size. */
bool tierce__chain_fits(const struct tierce_chain *chain, enum tierce_chain_algo algo,
                        uint32_t block_tokens);

#endif
