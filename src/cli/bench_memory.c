/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores and loads through the public API over the memory tier, against plain copies of the same
 * bytes between the same scattered blocks and contiguous memory. Every cell is summed on its way
 * in and verified on its way out; a store also evicts, since the tier is full.
 *
 * Data is cold on both sides: three windows, each several times as large as the last-level cache,
 * are used in turn.
 */
#include "cli/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#define LAYERS       8u
#define CHUNK_BLOCKS 8u
#define BLOCK_TOKENS 32u
#define WINDOWS      3u
#define WINDOW_BYTES (128ULL << 20)

struct memory_case {
    const struct tierce__bench *bench;
    uint32_t cell_bytes;
    uint32_t window_blocks; /* token blocks of a window */
    uint32_t block_count;   /* of the paged memory: all windows */
    uint64_t window_bytes;
    uint64_t bytes; /* all windows */

    uint8_t *paged_memory;
    uint8_t *plain_memory;
    int32_t *ids; /* [block_count] shuffled: every window is scattered over all blocks */
    struct tierce_paged_layer layers[LAYERS];
    struct tierce_paged paged;

    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce_chain *chain;           /* of the next store */
    struct tierce_chain *stored[WINDOWS]; /* what loads find */
    uint8_t *hashes;                      /* [window_blocks * 32] */
    uint64_t prompts;                     /* made so far: none is stored twice */
    uint32_t window;                      /* the next one */
    bool load;                            /* which way plain copies go */
    tierce__plain_copy_fn *stream;
};

/* ---- plain copies --------------------------------------------------------------------------- */

static uint8_t *block_at(const struct memory_case *c, uint32_t layer, int32_t id)
{
    return (uint8_t *)c->layers[layer].base + (uint64_t)(uint32_t)id * c->cell_bytes;
}

static uint32_t next_window(struct memory_case *c)
{
    uint32_t window = c->window;
    c->window = (c->window + 1) % WINDOWS;
    return window;
}

/* In the order of the engine: layer by layer, in it chunk by chunk. */
static void copy_plain(const struct memory_case *c, uint32_t window, tierce__plain_copy_fn *copy)
{
    const int32_t *ids = c->ids + (size_t)window * c->window_blocks;
    uint8_t *flat = c->plain_memory + window * c->window_bytes;
    uint64_t chunk_bytes = (uint64_t)LAYERS * CHUNK_BLOCKS * c->cell_bytes;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t b = 0; b < c->window_blocks; b++) {
            uint8_t *cell = flat + b / CHUNK_BLOCKS * chunk_bytes +
                            ((uint64_t)layer * CHUNK_BLOCKS + b % CHUNK_BLOCKS) * c->cell_bytes;
            if (c->load)
                copy(block_at(c, layer, ids[b]), cell, c->cell_bytes);
            else
                copy(cell, block_at(c, layer, ids[b]), c->cell_bytes);
        }
    }
    tierce__plain_fence();
}

static int64_t run_plain(struct memory_case *c, tierce__plain_copy_fn *copy)
{
    uint32_t window = next_window(c);
    uint64_t start = tierce__now_ns();
    copy_plain(c, window, copy);
    return (int64_t)(tierce__now_ns() - start);
}

static int64_t run_memcpy(void *arg)
{
    return run_plain(arg, tierce__plain_memcpy);
}

static int64_t run_stream(void *arg)
{
    struct memory_case *c = arg;
    return run_plain(c, c->stream);
}

/* ---- store and load ------------------------------------------------------------------------- */

static struct tierce_transfer_opts transfer_of(const struct memory_case *c,
                                               const struct tierce_chain *chain, uint32_t window)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = chain,
                                         .to_block = c->window_blocks,
                                         .paged = &c->paged,
                                         .block_ids = c->ids + (size_t)window * c->window_blocks};
}

/* A prompt that was never stored. */
static int renew_chain(struct memory_case *c, struct tierce_chain *chain)
{
    tierce__bench_fill(c->hashes, (uint64_t)c->window_blocks * TIERCE_HASH_BYTES, ++c->prompts);
    tierce_chain_reset(chain);
    int64_t blocks = tierce_chain_append_hashes(chain, c->hashes, c->window_blocks);
    return blocks < 0 ? (int)blocks : 0;
}

static int64_t store_window(struct memory_case *c, const struct tierce_chain *chain,
                            uint32_t window)
{
    struct tierce_transfer_opts what = transfer_of(c, chain, window);
    uint64_t start = tierce__now_ns();
    int64_t blocks = tierce_store(c->view, &what);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (blocks != (int64_t)c->window_blocks)
        return tierce__bench_fail(c->bench, "a store took %lld of %u blocks", (long long)blocks,
                                  c->window_blocks);
    return ns;
}

static int64_t load_window(struct memory_case *c, const struct tierce_chain *chain, uint32_t window)
{
    struct tierce_transfer_opts what = transfer_of(c, chain, window);
    uint64_t start = tierce__now_ns();
    int64_t blocks = tierce_load(c->view, &what, NULL);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (blocks != (int64_t)c->window_blocks)
        return tierce__bench_fail(c->bench, "a load gave %lld of %u blocks", (long long)blocks,
                                  c->window_blocks);
    return ns;
}

static int64_t run_store(void *arg)
{
    struct memory_case *c = arg;
    int rc = renew_chain(c, c->chain);
    return rc < 0 ? rc : store_window(c, c->chain, next_window(c));
}

static int64_t run_load(void *arg)
{
    struct memory_case *c = arg;
    uint32_t window = next_window(c);
    return load_window(c, c->stored[window], window);
}

/* Stores every window, wipes the engine's memory and loads it back: what is measured works. */
static int store_and_check(struct memory_case *c)
{
    int64_t rc = 0;
    tierce__bench_fill(c->paged_memory, c->bytes, c->cell_bytes);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++) {
        rc = renew_chain(c, c->stored[w]);
        if (rc == 0)
            rc = store_window(c, c->stored[w], w);
    }
    memset(c->paged_memory, 0x5a, (size_t)c->bytes);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++)
        rc = load_window(c, c->stored[w], w);
    if (rc < 0)
        return (int)rc;
    if (!tierce__bench_filled(c->paged_memory, c->bytes, c->cell_bytes))
        return tierce__bench_fail(c->bench, "what was loaded is not what was stored");
    return 0;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void shuffle_ids(struct memory_case *c)
{
    for (uint32_t i = 0; i < c->block_count; i++)
        c->ids[i] = (int32_t)i;
    for (uint32_t i = c->block_count - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(tierce__bench_random(1, i) % (i + 1));
        int32_t id = c->ids[i];
        c->ids[i] = c->ids[j];
        c->ids[j] = id;
    }
}

static int alloc_case(struct memory_case *c)
{
    c->paged_memory = tierce__bench_map(c->bytes);
    c->plain_memory = tierce__bench_map(c->bytes);
    c->ids = tierce__calloc(c->block_count, sizeof(*c->ids));
    c->hashes = tierce__calloc(c->window_blocks, TIERCE_HASH_BYTES);
    if (c->paged_memory == NULL || c->plain_memory == NULL || c->ids == NULL || c->hashes == NULL)
        return -ENOMEM;
    shuffle_ids(c);
    for (uint32_t i = 0; i < LAYERS; i++)
        c->layers[i] = (struct tierce_paged_layer){
            .base = c->paged_memory + (uint64_t)i * c->block_count * c->cell_bytes,
            .block_stride = c->cell_bytes,
            .block_bytes = c->cell_bytes};
    c->paged = (struct tierce_paged){.size = sizeof(c->paged),
                                     .layers = c->layers,
                                     .layer_count = LAYERS,
                                     .block_count = c->block_count};
    return 0;
}

static int open_engine(struct memory_case *c)
{
    uint32_t cells[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++)
        cells[i] = c->cell_bytes;
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = "00",
                                  .kv_dtype = "bfloat16",
                                  .layout = "bench",
                                  .layer_count = LAYERS,
                                  .cell_bytes = cells,
                                  .block_tokens = BLOCK_TOKENS,
                                  .chunk_blocks = CHUNK_BLOCKS,
                                  .algo = TIERCE_CHAIN_XXH3_128};
    /* All windows, and a header of 4 or 8 KiB for each chunk. */
    uint64_t chunks = c->block_count / CHUNK_BLOCKS;
    char size[32];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)(c->bytes + chunks * 8192));
    const struct tierce__bench_param params[] = {{"memory.size", size}};
    int rc = tierce__bench_engine(&c->engine, c->bench, params, 1);
    if (rc == 0)
        rc = tierce_view_open(&c->view, c->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    if (rc == 0)
        rc = tierce_view_chain(&c->chain, c->view, NULL);
    for (uint32_t w = 0; rc == 0 && w < WINDOWS; w++)
        rc = tierce_view_chain(&c->stored[w], c->view, NULL);
    return rc;
}

static void close_case(struct memory_case *c)
{
    tierce_chain_destroy(c->chain);
    for (uint32_t w = 0; w < WINDOWS; w++)
        tierce_chain_destroy(c->stored[w]);
    tierce_view_close(c->view);
    tierce_engine_close(c->engine);
    tierce__bench_unmap(c->paged_memory, c->bytes);
    tierce__bench_unmap(c->plain_memory, c->bytes);
    tierce__free(c->ids);
    tierce__free(c->hashes);
}

static int measure(struct memory_case *c, bool load)
{
    struct tierce__bench_side sides[] = {{.run = load ? run_load : run_store, .arg = c},
                                         {.run = run_memcpy, .arg = c},
                                         {.run = run_stream, .arg = c}};
    c->load = load;
    int rc = tierce__bench_alternate(sides, c->stream != NULL ? 3 : 2, c->bench->seconds);
    if (rc < 0)
        return rc;
    double bytes = (double)c->window_bytes, best_ns = sides[1].median_ns;
    if (c->stream != NULL && sides[2].median_ns < best_ns)
        best_ns = sides[2].median_ns;
    char name[64];
    uint32_t chunk_bytes = LAYERS * CHUNK_BLOCKS * c->cell_bytes;
    snprintf(name, sizeof(name), "%s %u MiB chunks of %u KiB cells", load ? "load" : "store",
             chunk_bytes >> 20, c->cell_bytes >> 10);
    tierce__bench_emit(c->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "GB/s",
                                                   .value = bytes / sides[0].median_ns,
                                                   .limit = bytes / best_ns,
                                                   .goal = 0.85,
                                                   .peer = "memcpy",
                                                   .peer_value = bytes / sides[1].median_ns});
    return 0;
}

static int run_case(const struct tierce__bench *bench, uint32_t cell_bytes)
{
    struct memory_case c = {.bench = bench, .cell_bytes = cell_bytes};
    /* Paged memory, the plain copies' memory and the pool. */
    uint64_t window = bench->memory_bytes / (WINDOWS * 3 + 1);
    if (window > WINDOW_BYTES)
        window = WINDOW_BYTES;
    uint64_t chunk_bytes = (uint64_t)LAYERS * CHUNK_BLOCKS * cell_bytes;
    c.window_bytes = window / chunk_bytes * chunk_bytes;
    if (c.window_bytes == 0)
        return tierce__bench_fail(bench, "--memory is too small for chunks of %llu MiB",
                                  (unsigned long long)chunk_bytes >> 20);
    c.bytes = WINDOWS * c.window_bytes;
    c.window_blocks = (uint32_t)(c.window_bytes / LAYERS / cell_bytes);
    c.block_count = WINDOWS * c.window_blocks;
    c.stream = tierce__plain_stream();
    int rc = alloc_case(&c);
    if (rc == 0)
        rc = open_engine(&c);
    if (rc == 0)
        rc = store_and_check(&c);
    /* Loads first: stores evict what they find. */
    if (rc == 0)
        rc = measure(&c, true);
    if (rc == 0)
        rc = measure(&c, false);
    close_case(&c);
    return rc;
}

int tierce__bench_memory(const struct tierce__bench *bench)
{
    /* Chunks of 1, 4 and 16 MiB. */
    static const uint32_t cell_bytes[] = {16u << 10, 64u << 10, 256u << 10};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(cell_bytes) / sizeof(cell_bytes[0]); i++)
        rc = run_case(bench, cell_bytes[i]);
    return rc;
}
