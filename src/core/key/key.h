/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_MODULE_H
#define TIERCE_KEY_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include <tierce/key.h>

#include "base/mix.h"

/*
 * The name of one shard of one chunk inside a process. The namespace is interned
 * (core/key/namespaces.h); outside the process its digest is used instead.
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

/* A 64-bit spread of a key for tables. Chunk hashes are uniform unless an attacker chose them; that
 * costs time in tables, but never identity. */
static inline uint64_t tierce__key_spread(const struct tierce__key *key)
{
    uint64_t a, b, s;
    memcpy(&a, key->hash, 8);
    memcpy(&b, key->hash + 8, 8);
    memcpy(&s, &key->shard, 8);
    uint64_t x = a ^ tierce__spread(b) ^ (s + key->ns) * TIERCE__MIX_SECOND;
    return x ^ (x >> 32);
}

/*
 * The blocks of a chain that a client of a node has already sent: the client's number of the chain,
 * the last peer that received blocks, and their number. Stored in the chain because it lives as
 * long as the chain; it is not part of the chain's value, and changes while the chain is const.
 */
struct tierce__chain_told {
    uint64_t number; /* no other chain of the process has it */
    _Atomic uint64_t peer;
    _Atomic uint64_t blocks;
    /* The same for blocks whose tokens were sent. */
    _Atomic uint64_t tokens_peer, tokens_blocks;
};

struct tierce__chain_told *tierce__chain_told(const struct tierce_chain *chain);

/* Creates an empty chain that accepts only block hashes, unchanged, with a known root hash. *out
 * untouched on failure: TIERCE_E_ARGUMENT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__chain_create_hashed(struct tierce_chain **out,
                                               enum tierce_chain_algo algo, uint32_t block_tokens,
                                               const uint8_t root_hash[TIERCE_HASH_BYTES]);

/* Forgets the blocks from `blocks` on of a chain that was created hashed. */
void tierce__chain_cut(struct tierce_chain *chain, size_t blocks);

/* Whether a chain was made for this algorithm and block size. */
bool tierce__chain_fits(const struct tierce_chain *chain, enum tierce_chain_algo algo,
                        uint32_t block_tokens);

/* Makes an empty chain keep its tokens from now on. */
void tierce__chain_keep_tokens(struct tierce_chain *chain);

/* The tokens of all its blocks; NULL if they are not kept, or if its hashes have other input: a
 * root, extras, or given hashes. [borrow until the chain changes] */
const int32_t *tierce__chain_tokens(const struct tierce_chain *chain);

/* Checks that these tokens, and nothing else, give the hashes of `blocks` blocks of a chain from
 * `from_block` on. The tokens before them are not checked. Errors: TIERCE_E_ARGUMENT: they do not;
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__chain_verify(const struct tierce_chain *chain, size_t from_block,
                                        const int32_t *tokens, size_t blocks);

#endif
