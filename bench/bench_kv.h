/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_KV_H
#define TIERCE_CLI_BENCH_KV_H

#include "bench/bench.h"
#include "core/key/key_text.h"
#include <tierce/plugin.h>

/*
 * Shared by benchmarks of stores and loads: scattered paged memory of an inference engine, and a
 * view of our engine. Chunks have 8 layers of 8 token blocks; the cell size determines the chunk
 * size. The token blocks are used in windows, so that data can be kept cold.
 */

#define TIERCE__KV_LAYERS       8u
#define TIERCE__KV_CHUNK_BLOCKS 8u
#define TIERCE__KV_BLOCK_TOKENS 32u
#define TIERCE__KV_CHUNK_CELLS  (TIERCE__KV_LAYERS * TIERCE__KV_CHUNK_BLOCKS)

struct tierce__kv {
    const struct tierce__bench *bench;
    uint32_t cell_bytes;
    uint32_t windows;
    uint32_t window_blocks; /* whole chunks */

    uint64_t window_bytes;
    uint64_t bytes; /* all windows */
    uint8_t *memory;
    int32_t *ids; /* [windows * window_blocks] shuffled over all of memory */
    struct tierce_paged_layer layers[TIERCE__KV_LAYERS];
    struct tierce_paged paged;
    uint8_t *hashes;  /* [window_blocks * 32] */
    uint64_t prompts; /* made so far: none is stored twice */

    struct tierce_engine *engine;
    struct tierce_view *view;
};

/* Allocates and fills memory and opens engine and view; bench, cell_bytes, windows and
 * window_blocks are set. Close it in any case. */
TIERCE_MUSTUSE int tierce__kv_open(struct tierce__kv *kv, const struct tierce__bench_param *params,
                                   size_t count);
void tierce__kv_close(struct tierce__kv *kv);

/* The place of a token block in a layer. */
uint8_t *tierce__kv_block(const struct tierce__kv *kv, uint32_t layer, int32_t id);

/* Makes a chain of a window's blocks for which nothing is stored. */
TIERCE_MUSTUSE int tierce__kv_renew(struct tierce__kv *kv, struct tierce_chain *chain);

/* Stores the last `blocks` blocks of chain[0, to_block); the blocks before them must be stored.
 * Returns the nanoseconds it took or a negative error; storing fewer blocks is an error. */
int64_t tierce__kv_store(struct tierce__kv *kv, const struct tierce_chain *chain,
                         const int32_t *ids, uint64_t to_block, uint64_t blocks);

/* Loads a whole chain, all of it from `origin`, to the blocks `ids`. Returns the same. */
int64_t tierce__kv_load(struct tierce__kv *kv, const struct tierce_chain *chain, const int32_t *ids,
                        enum tierce_origin origin);

/* The names of a chain's first chunks in stores of others. Errors: as tierce__key_text_format. */
TIERCE_MUSTUSE int tierce__kv_names(const struct tierce__kv *kv, const struct tierce_chain *chain,
                                    char (*texts)[TIERCE__KEY_TEXT_BYTES],
                                    struct tierce_plugin_name *names, size_t count);

static inline const int32_t *tierce__kv_ids(const struct tierce__kv *kv, uint32_t window)
{
    return kv->ids + (size_t)window * kv->window_blocks;
}

#endif
