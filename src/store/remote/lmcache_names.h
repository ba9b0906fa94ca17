/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_LMCACHE_NAMES_H
#define TIERCE_TIER_LMCACHE_NAMES_H

#include "core/chunk/header.h"
#include "core/key/lmcache.h"

/*
 * The names of chunks in LMCache, and the contents of their headers.
 *
 * LMCache names a chunk by its tokens, which a key does not contain, and objects written by LMCache
 * lack our header. The engine, which turns tokens into keys, fills this table; the connector that
 * stores and reads objects (lmcache_store.h) queries it. The table remembers the most recently used
 * chunks. A forgotten chunk is a miss.
 *
 * Thread: any.
 */

/*
 * A namespace whose KV LMCache can read, as its layout text says:
 *
 *     lmcache:KV_2LTD:DTYPE:HIDDEN
 *
 * A cell is then K and V of its tokens, one after the other, each as block_tokens times HIDDEN
 * elements of LMCache's DTYPE ("bfloat16", "half", "float", ...); KV heads times head size is
 * HIDDEN, in that order.
 */
struct tierce__lmcache_form {
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    enum tierce_chain_algo algo;
    const char *dtype;    /* LMCache's name, a constant */
    int32_t dtype_number; /* in its metadata */
    uint32_t hidden;
    uint32_t layer_count, block_tokens, chunk_blocks;
    uint32_t cell_bytes; /* of every layer */
};

#define TIERCE__LMCACHE_WHY_BYTES 256u

/* Errors: TIERCE_E_UNSUPPORTED, `why` in words. */
TIERCE_MUSTUSE int tierce__lmcache_form_of(struct tierce__lmcache_form *out,
                                           const struct tierce_namespace *ns,
                                           char why[TIERCE__LMCACHE_WHY_BYTES]);

struct tierce__lmcache_names;

struct tierce__lmcache_names_opts {
    enum tierce__lmcache_algo algo;
    struct tierce__lmcache_int none_hash;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__lmcache_names_create(struct tierce__lmcache_names **out,
                                                const struct tierce__lmcache_names_opts *opts);
/* NULL is accepted. */
void tierce__lmcache_names_destroy(struct tierce__lmcache_names *names);

/* The first `count` chunks of a chain, all full, have these keys. Does nothing for a chain whose
 * hashes include more than tokens, because LMCache would not distinguish it. Chunks without memory
 * are not remembered. */
void tierce__lmcache_names_learn(struct tierce__lmcache_names *names,
                                 const struct tierce__lmcache_form *form,
                                 const struct tierce_chain *chain, const struct tierce__key *keys,
                                 size_t count);

struct tierce__lmcache_chunk {
    struct tierce__lmcache_form form;
    struct tierce__lmcache_int hash;
    struct tierce_shard shard;
    uint8_t chunk_hash[TIERCE_HASH_BYTES];
    uint8_t parent[TIERCE_HASH_BYTES];
    uint64_t token_start;
};

/* The chunk of a key's text. `block_hashes`, or NULL, has room for TIERCE__LMCACHE_BLOCKS_MAX
 * hashes. False: it is not known. */
#define TIERCE__LMCACHE_BLOCKS_MAX 256u
bool tierce__lmcache_names_find(struct tierce__lmcache_names *names,
                                struct tierce__lmcache_chunk *out, uint8_t *block_hashes,
                                const char *key_text, size_t key_bytes);

#endif
