/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores and loads through the public API over the memory tier, against plain copies of the same
 * bytes between the same scattered blocks and contiguous memory. Every cell is summed on its way
 * in and verified on its way out; a store also evicts, since the tier is full.
 *
 * The last case copies with two threads, in the engine (copy.threads) and in the plain copies.
 *
 * Data is cold on both sides: four windows, each several times as large as the last-level cache,
 * are used in turn.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads/threads.h"
#include "bench/bench_kv.h"

#define WINDOWS      4u
#define WINDOW_BYTES (128ULL << 20)

struct memory_case {
    struct tierce__kv kv;
    uint8_t *flat; /* source and destination of plain copies */
    tierce__plain_copy_fn *stream;
    struct tierce_chain *chain;           /* of the next store */
    struct tierce_chain *stored[WINDOWS]; /* the stored chains, which loads find */
    uint32_t window;                      /* the next one */
    bool load;                            /* which way plain copies go */
    uint32_t threads;                     /* that copy, in both */
    struct tierce__workers *workers;      /* of plain copies; NULL for one thread */
};

static uint32_t next_window(struct memory_case *c)
{
    uint32_t window = c->window;
    c->window = (c->window + 1) % WINDOWS;
    return window;
}

/* ---- plain copies --------------------------------------------------------------------------- */

struct plain_layer {
    const struct memory_case *c;
    tierce__plain_copy_fn *copy;
    uint32_t window, layer;
};

/* The token blocks of some chunks in one layer. */
static void copy_chunks(void *arg, size_t from, size_t to)
{
    const struct plain_layer *l = arg;
    const struct tierce__kv *kv = &l->c->kv;
    const int32_t *ids = tierce__kv_ids(kv, l->window);
    uint8_t *flat = l->c->flat + l->window * kv->window_bytes;
    uint64_t chunk_bytes = (uint64_t)TIERCE__KV_CHUNK_CELLS * kv->cell_bytes;
    for (size_t b = from * TIERCE__KV_CHUNK_BLOCKS; b < to * TIERCE__KV_CHUNK_BLOCKS; b++) {
        uint64_t in_chunk = l->layer * TIERCE__KV_CHUNK_BLOCKS + b % TIERCE__KV_CHUNK_BLOCKS;
        uint8_t *cell =
            flat + b / TIERCE__KV_CHUNK_BLOCKS * chunk_bytes + in_chunk * kv->cell_bytes;
        uint8_t *block = tierce__kv_block(kv, l->layer, ids[b]);
        l->copy(l->c->load ? block : cell, l->c->load ? cell : block, kv->cell_bytes);
    }
    tierce__plain_fence();
}

/* In the order of the engine: layer by layer, in it chunk by chunk. */
static void copy_plain(const struct memory_case *c, uint32_t window, tierce__plain_copy_fn *copy)
{
    struct plain_layer l = {.c = c, .copy = copy, .window = window};
    for (; l.layer < TIERCE__KV_LAYERS; l.layer++)
        tierce__workers_share(c->workers, c->kv.window_blocks / TIERCE__KV_CHUNK_BLOCKS,
                              copy_chunks, &l);
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

static int64_t run_store(void *arg)
{
    struct memory_case *c = arg;
    int rc = tierce__kv_renew(&c->kv, c->chain);
    if (rc < 0)
        return rc;
    return tierce__kv_store(&c->kv, c->chain, tierce__kv_ids(&c->kv, next_window(c)),
                            c->kv.window_blocks, c->kv.window_blocks);
}

static int64_t load_window(struct memory_case *c, uint32_t window)
{
    return tierce__kv_load(&c->kv, c->stored[window], tierce__kv_ids(&c->kv, window),
                           TIERCE_ORIGIN_MEMORY);
}

static int64_t run_load(void *arg)
{
    struct memory_case *c = arg;
    return load_window(c, next_window(c));
}

/* Stores every window, wipes the engine's memory and loads it back, to check that the measured
 * calls work. */
static int store_and_check(struct memory_case *c)
{
    struct tierce__kv *kv = &c->kv;
    int64_t rc = tierce_view_chain(&c->chain, kv->view, NULL);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++) {
        rc = tierce_view_chain(&c->stored[w], kv->view, NULL);
        if (rc == 0)
            rc = tierce__kv_renew(kv, c->stored[w]);
        if (rc == 0)
            rc = tierce__kv_store(kv, c->stored[w], tierce__kv_ids(kv, w), kv->window_blocks,
                                  kv->window_blocks);
    }
    memset(kv->memory, 0x5a, (size_t)kv->bytes);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++)
        rc = load_window(c, w);
    if (rc < 0)
        return (int)rc;
    if (!tierce__bench_filled(kv->memory, kv->bytes, kv->cell_bytes))
        return tierce__bench_fail(kv->bench, "the loaded bytes differ from the stored ones");
    return 0;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int measure(struct memory_case *c, bool load)
{
    struct tierce__bench_side sides[] = {{.run = load ? run_load : run_store, .arg = c},
                                         {.run = run_memcpy, .arg = c},
                                         {.run = run_stream, .arg = c}};
    const struct tierce__bench *bench = c->kv.bench;
    c->load = load;
    int rc = tierce__bench_alternate(sides, c->stream != NULL ? 3 : 2, bench->seconds);
    if (rc < 0)
        return rc;
    double bytes = (double)c->kv.window_bytes, best_ns = sides[1].median_ns;
    if (c->stream != NULL && sides[2].median_ns < best_ns)
        best_ns = sides[2].median_ns;
    char name[64];
    snprintf(name, sizeof(name), "%s chunks of %u MiB%s", load ? "load" : "store",
             TIERCE__KV_CHUNK_CELLS * c->kv.cell_bytes >> 20,
             c->threads > 1 ? " by 2 threads" : "");
    tierce__bench_emit(bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "GB/s",
                                                   .value = bytes / sides[0].median_ns,
                                                   .limit = bytes / best_ns,
                                                   .goal = 0.85,
                                                   .peer = "memcpy",
                                                   .peer_value = bytes / sides[1].median_ns});
    return 0;
}

static int run_case(const struct tierce__bench *bench, uint32_t cell_bytes, uint32_t threads)
{
    struct memory_case c = {.kv = {.bench = bench, .cell_bytes = cell_bytes, .windows = WINDOWS},
                            .threads = threads,
                            .stream = tierce__plain_stream()};
    /* Paged memory, the plain copies' memory and the pool. */
    uint64_t chunk_bytes = (uint64_t)TIERCE__KV_CHUNK_CELLS * cell_bytes;
    uint64_t window = bench->memory_bytes / (WINDOWS * 3 + 1);
    uint64_t chunks = (window < WINDOW_BYTES ? window : WINDOW_BYTES) / chunk_bytes;
    if (chunks == 0)
        return tierce__bench_fail(bench, "--memory is too small for chunks of %llu MiB",
                                  (unsigned long long)chunk_bytes >> 20);
    c.kv.window_blocks = (uint32_t)chunks * TIERCE__KV_CHUNK_BLOCKS;
    /* The tier holds the windows exactly: a header of 4 KiB for each chunk. */
    char size[32];
    snprintf(size, sizeof(size), "%llu",
             (unsigned long long)(WINDOWS * chunks * (chunk_bytes + 4096)));
    const struct tierce__bench_param params[] = {{"memory.size", size},
                                                 {"copy.threads", threads > 1 ? "2" : "1"}};
    uint64_t flat_bytes = WINDOWS * chunks * chunk_bytes;
    c.flat = tierce__bench_map(flat_bytes);
    int rc = c.flat != NULL ? tierce__kv_open(&c.kv, params, 2) : -ENOMEM;
    if (rc == 0 && threads > 1)
        rc = tierce__workers_create(&c.workers, threads - 1, 1);
    if (rc == 0)
        rc = store_and_check(&c);
    /* Loads first: stores evict what they find. */
    if (rc == 0)
        rc = measure(&c, true);
    if (rc == 0)
        rc = measure(&c, false);
    tierce_chain_destroy(c.chain);
    for (uint32_t w = 0; w < WINDOWS; w++)
        tierce_chain_destroy(c.stored[w]);
    tierce__kv_close(&c.kv);
    tierce__workers_destroy(c.workers);
    tierce__bench_unmap(c.flat, flat_bytes);
    return rc;
}

int tierce__bench_memory(const struct tierce__bench *bench)
{
    /* Chunks of 1, 4 and 16 MiB. */
    static const uint32_t cell_bytes[] = {16u << 10, 64u << 10, 256u << 10};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(cell_bytes) / sizeof(cell_bytes[0]); i++)
        rc = run_case(bench, cell_bytes[i], 1);
    if (rc == 0)
        rc = run_case(bench, cell_bytes[1], 2);
    return rc;
}
