/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_LMCACHE_FIXTURE_H
#define TIERCE_TESTS_LMCACHE_FIXTURE_H

/*
 * A small "inference engine" whose KV LMCache can read: blocks of [2, tokens, hidden] in each
 * layer, whose elements follow from (seed, K or V, layer, token, place).
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tierce/tierce.h>

enum {
    LF_LAYERS = 3,
    LF_HIDDEN = 8,
    LF_BLOCK_TOKENS = 4,
    LF_CHUNK_BLOCKS = 4,
    LF_CHUNK_TOKENS = LF_BLOCK_TOKENS * LF_CHUNK_BLOCKS,
    LF_BLOCKS = 64,
    LF_CELL = 2 * LF_BLOCK_TOKENS * LF_HIDDEN * 2,
    LF_CHUNK_BYTES = LF_LAYERS * LF_CHUNK_BLOCKS * LF_CELL,
};

#define LF_LAYOUT "lmcache:KV_2LTD:bfloat16:8"
#define LF_MODEL  "org/small"

struct lmcache_fixture {
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_paged_layer layers[LF_LAYERS];
    struct tierce_paged paged;
    uint8_t memory[LF_LAYERS][LF_BLOCKS * LF_CELL];
};

/* Errors: of config, engine or view; printed. */
static inline int lf_open(struct lmcache_fixture *fx, const char *url, const char *layout,
                          const char *weights)
{
    static const uint32_t cells[LF_LAYERS] = {LF_CELL, LF_CELL, LF_CELL};
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = weights,
                                        .model = "{\"model_type\":\"test\"}",
                                        .kv_dtype = "bfloat16",
                                        .layout = layout,
                                        .layer_count = LF_LAYERS,
                                        .cell_bytes = cells,
                                        .block_tokens = LF_BLOCK_TOKENS,
                                        .chunk_blocks = LF_CHUNK_BLOCKS,
                                        .algo = TIERCE_CHAIN_SHA256};
    const char *const sets[][2] = {{"memory.size", "4MiB"},   {"disk.path", ""},
                                   {"cost.check", "false"},   {"breaker.errors", "1000"},
                                   {"timeout.lookup", "10s"}, {"control.socket", ""},
                                   {"remote.urls", url}};
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    struct tierce_config *config = NULL;
    int rc = tierce_config_create(&config);
    for (size_t i = 0; rc == 0 && i < sizeof(sets) / sizeof(sets[0]); i++)
        rc = tierce_config_set(config, sets[i][0], sets[i][1], why);
    if (rc == 0)
        rc = tierce_engine_open(&fx->engine, config, why);
    tierce_config_destroy(config);
    if (rc == 0)
        rc = tierce_view_open(&fx->view, fx->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    if (rc != 0) {
        fprintf(stderr, "%s: %s\n", tierce_strerror(rc), why);
        return rc;
    }
    for (int i = 0; i < LF_LAYERS; i++)
        fx->layers[i] = (struct tierce_paged_layer){fx->memory[i], LF_CELL, LF_CELL};
    fx->paged = (struct tierce_paged){sizeof(fx->paged), fx->layers, LF_LAYERS, LF_BLOCKS,
                                      TIERCE_DEVICE_HOST};
    return 0;
}

static inline void lf_close(struct lmcache_fixture *fx)
{
    tierce_view_close(fx->view);
    tierce_engine_close(fx->engine);
}

static inline uint16_t lf_element(unsigned seed, unsigned kv, unsigned layer, unsigned token,
                                  unsigned place)
{
    return (uint16_t)(seed * 7919u + kv * 31337u + layer * 1009u + token * 17u + place * 3u);
}

static inline int32_t lf_token(unsigned seed, unsigned token)
{
    return (int32_t)(seed * 1000u + token * 3u + 5u);
}

/* Where block `block` lies: anywhere. */
static inline int32_t lf_id(unsigned block)
{
    return (int32_t)(block * 37u % LF_BLOCKS);
}

/* Writes the elements of all blocks, or says whether they are these. */
static inline bool lf_elements(struct lmcache_fixture *fx, unsigned seed, unsigned blocks,
                               bool writes)
{
    for (unsigned layer = 0; layer < LF_LAYERS; layer++)
        for (unsigned token = 0; token < blocks * LF_BLOCK_TOKENS; token++)
            for (unsigned kv = 0; kv < 2; kv++)
                for (unsigned place = 0; place < LF_HIDDEN; place++) {
                    uint8_t *block = fx->memory[layer] + lf_id(token / LF_BLOCK_TOKENS) * LF_CELL;
                    size_t at =
                        ((size_t)kv * LF_BLOCK_TOKENS + token % LF_BLOCK_TOKENS) * LF_HIDDEN +
                        place;
                    uint16_t element = lf_element(seed, kv, layer, token, place);
                    if (writes)
                        memcpy(block + 2 * at, &element, 2);
                    else if (memcmp(block + 2 * at, &element, 2) != 0)
                        return false;
                }
    return true;
}

/* `salt` NULL: none. */
static inline struct tierce_chain *lf_chain(struct lmcache_fixture *fx, unsigned seed,
                                            unsigned blocks, const char *salt)
{
    struct tierce_chain *chain = NULL;
    struct tierce_chain_root root = {.size = sizeof(root),
                                     .salt = (const uint8_t *)salt,
                                     .salt_bytes = salt != NULL ? strlen(salt) : 0};
    if (tierce_view_chain(&chain, fx->view, salt != NULL ? &root : NULL) != 0)
        return NULL;
    for (unsigned i = 0; i < blocks * LF_BLOCK_TOKENS; i++) {
        int32_t token = lf_token(seed, i);
        if (tierce_chain_append(chain, &token, 1, NULL) < 0)
            abort();
    }
    return chain;
}

static inline struct tierce_transfer_opts lf_what(struct lmcache_fixture *fx,
                                                  const struct tierce_chain *chain, unsigned blocks,
                                                  const int32_t *ids)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = chain,
                                         .to_block = blocks,
                                         .paged = &fx->paged,
                                         .block_ids = ids};
}

/* Stores the blocks and waits until the store below has them. Returns the blocks stored. */
static inline int64_t lf_store(struct lmcache_fixture *fx, unsigned seed, unsigned blocks,
                               const char *salt)
{
    int32_t ids[LF_BLOCKS];
    for (unsigned i = 0; i < blocks; i++)
        ids[i] = lf_id(i);
    struct tierce_chain *chain = lf_chain(fx, seed, blocks, salt);
    lf_elements(fx, seed, blocks, true);
    struct tierce_transfer_opts what = lf_what(fx, chain, blocks, ids);
    int64_t stored = tierce_store(fx->view, &what);
    tierce_chain_destroy(chain);
    int rc = tierce_engine_flush(fx->engine, 20000);
    return rc < 0 ? rc : stored;
}

/* How many leading blocks are found and loaded with the right elements; -1: a wrong one. */
static inline int64_t lf_load(struct lmcache_fixture *fx, unsigned seed, unsigned blocks,
                              const char *salt)
{
    int32_t ids[LF_BLOCKS];
    uint8_t origins[LF_BLOCKS];
    for (unsigned i = 0; i < blocks; i++)
        ids[i] = lf_id(i);
    struct tierce_chain *chain = lf_chain(fx, seed, blocks, salt);
    struct tierce_found found;
    struct tierce_lookup_opts lookup = {.size = sizeof(lookup)};
    memset(fx->memory, 0x5a, sizeof(fx->memory));
    int64_t rc = tierce_lookup(fx->view, chain, blocks, &lookup, &found);
    int64_t loaded = 0;
    if (rc == 0 && found.blocks > 0) {
        struct tierce_transfer_opts what = lf_what(fx, chain, (unsigned)found.blocks, ids);
        rc = tierce_load(fx->view, &what, origins);
        while (rc >= 0 && loaded < (int64_t)found.blocks && origins[loaded] != TIERCE_ORIGIN_FAILED)
            loaded++;
    }
    tierce_chain_destroy(chain);
    if (rc < 0)
        return rc;
    return lf_elements(fx, seed, (unsigned)loaded, false) ? loaded : -1;
}

#endif
