/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores that end durable, and loads from disk, through the public API; against a bare io_uring
 * loop over a file on the same file system with the same depth and size of transfers.
 *
 * Both sides write into space that was written before, and flush once a window. Ours also gathers
 * and sums the cells on the way to disk, reads headers, verifies and scatters every cell on the way
 * back, keeps its journal, and evicts, since the store is full. The windows on disk are used in
 * turn and memory holds little more than one, so that every load comes from disk.
 *
 * Both files together take 8 GiB for a while.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/bench_uring.h"

#define WINDOWS       16u /* on disk: 4 GiB for each side */
#define WINDOW_BYTES  (256ULL << 20)
#define REQUEST_BYTES (32ULL << 20) /* of a store: roughly one engine step */
#define DEPTH         16u
#define FLUSH_MS      60000u

struct disk_case {
    struct tierce__kv kv;
    char store[PATH_MAX];
    char bare_path[PATH_MAX];
    struct tierce__bare_disk *bare;
    uint32_t requests; /* of a window */
    uint32_t request_blocks;
    struct tierce_chain *chains[WINDOWS];
    uint32_t store_window;
    uint32_t load_window;
    uint32_t bare_window;
    bool write;
};

static uint32_t next_of(uint32_t *window)
{
    uint32_t now = *window;
    *window = (now + 1) % WINDOWS;
    return now;
}

/* ---- sides ---------------------------------------------------------------------------------- */

static int64_t run_store(void *arg)
{
    struct disk_case *c = arg;
    struct tierce_chain *chain = c->chains[next_of(&c->store_window)];
    int64_t rc = tierce__kv_renew(&c->kv, chain);
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 1; rc >= 0 && i <= c->requests; i++)
        rc = tierce__kv_store(&c->kv, chain, c->kv.ids, (uint64_t)i * c->request_blocks,
                              c->request_blocks);
    if (rc >= 0)
        rc = tierce_engine_flush(c->kv.engine, FLUSH_MS);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

static int64_t run_load(void *arg)
{
    struct disk_case *c = arg;
    return tierce__kv_load(&c->kv, c->chains[next_of(&c->load_window)], c->kv.ids,
                           TIERCE_ORIGIN_DISK);
}

static int64_t run_bare(void *arg)
{
    struct disk_case *c = arg;
    uint64_t offset = next_of(&c->bare_window) * c->kv.window_bytes;
    uint64_t start = tierce__now_ns();
    int rc = tierce__bare_disk_move(c->bare, c->write, offset, c->kv.window_bytes);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int measure(struct disk_case *c, bool write)
{
    struct tierce__bench_side sides[] = {{.run = write ? run_store : run_load, .arg = c},
                                         {.run = run_bare, .arg = c}};
    c->write = write;
    int rc = tierce__bench_alternate(sides, 2, c->kv.bench->seconds);
    if (rc < 0)
        return rc;
    char name[64];
    double bytes = (double)c->kv.window_bytes;
    snprintf(name, sizeof(name), "%s chunks of %u MiB", write ? "write" : "read",
             TIERCE__KV_CHUNK_CELLS * c->kv.cell_bytes >> 20);
    tierce__bench_emit(c->kv.bench, &(struct tierce__bench_row){
                                        .case_name = name,
                                        .unit = "GB/s",
                                        .value = bytes / sides[0].median_ns,
                                        .limit = bytes / sides[1].median_ns,
                                        .goal = 0.9,
                                    });
    return 0;
}

/* Writes everything once, so that all space was written before, and checks the bytes read back. */
static int store_and_check(struct disk_case *c)
{
    struct tierce__kv *kv = &c->kv;
    int64_t rc = 0;
    for (uint32_t i = 0; rc >= 0 && i < WINDOWS; i++)
        rc = tierce_view_chain(&c->chains[i], kv->view, NULL);
    c->write = true;
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++)
        rc = run_bare(c);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++)
        rc = run_store(c);
    if (rc < 0)
        return (int)rc;
    memset(kv->memory, 0x5a, (size_t)kv->bytes);
    for (uint32_t w = 0; rc >= 0 && w < WINDOWS; w++) {
        rc = run_load(c);
        if (rc >= 0 && !tierce__bench_filled(kv->memory, kv->bytes, kv->cell_bytes))
            rc = tierce__bench_fail(kv->bench, "the loaded bytes differ from the stored ones");
    }
    return rc < 0 ? (int)rc : 0;
}

static int open_case(struct disk_case *c)
{
    const struct tierce__bench *bench = c->kv.bench;
    char memory[32], disk[32], queue[32], depth[8];
    uint64_t window = (uint64_t)TIERCE__KV_LAYERS * c->kv.window_blocks * c->kv.cell_bytes;
    /* Headers and journal beside the cells. */
    uint64_t with_rest = window + window / 4;
    snprintf(memory, sizeof(memory), "%" PRIu64, with_rest);
    snprintf(disk, sizeof(disk), "%llu",
             (unsigned long long)(WINDOWS * (window + window / 64) + (64u << 20)));
    snprintf(queue, sizeof(queue), "%" PRIu64, with_rest);
    snprintf(depth, sizeof(depth), "%u", DEPTH);
    snprintf(c->store, sizeof(c->store), "%s/store", bench->dir);
    snprintf(c->bare_path, sizeof(c->bare_path), "%s/bare", bench->dir);
    const struct tierce__bench_param params[] = {{"memory.size", memory},
                                                 {"disk.path", c->store},
                                                 {"disk.size", disk},
                                                 {"disk.queue", queue},
                                                 {"disk.depth", depth}};
    int rc = tierce__kv_open(&c->kv, params, sizeof(params) / sizeof(params[0]));
    if (rc < 0)
        return rc;
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(c->kv.engine, &stats);
    if (stats.disk_cap_bytes == 0)
        return tierce__bench_fail(bench, "the store folder cannot be used");
    /* The contents of the bare file do not matter, so the engine's memory serves as its buffer. */
    rc = tierce__bare_disk_open(&c->bare, c->bare_path, WINDOWS * window, c->kv.memory, window,
                                DEPTH);
    return rc == 0 ? 0 : tierce__bench_fail(bench, "no bare loop: %s", tierce_strerror(rc));
}

static int run_case(const struct tierce__bench *bench, uint32_t cell_bytes)
{
    struct disk_case c = {.kv = {.bench = bench, .cell_bytes = cell_bytes, .windows = 1}};
    uint64_t chunk_bytes = (uint64_t)TIERCE__KV_CHUNK_CELLS * cell_bytes;
    uint64_t window = bench->memory_bytes / 3;
    if (window > WINDOW_BYTES)
        window = WINDOW_BYTES;
    uint64_t request_chunks = (window < REQUEST_BYTES ? window : REQUEST_BYTES) / chunk_bytes;
    if (request_chunks == 0)
        return tierce__bench_fail(bench, "--memory is too small for chunks of %llu MiB",
                                  (unsigned long long)chunk_bytes >> 20);
    c.requests = (uint32_t)(window / (request_chunks * chunk_bytes));
    c.request_blocks = (uint32_t)request_chunks * TIERCE__KV_CHUNK_BLOCKS;
    c.kv.window_blocks = c.requests * c.request_blocks;
    int rc = open_case(&c);
    if (rc == 0)
        rc = store_and_check(&c);
    if (rc == 0)
        rc = measure(&c, false);
    if (rc == 0)
        rc = measure(&c, true);
    for (uint32_t i = 0; i < WINDOWS; i++)
        tierce_chain_destroy(c.chains[i]);
    tierce__bare_disk_close(c.bare);
    tierce__kv_close(&c.kv);
    tierce__bench_remove(c.store);
    return rc;
}

int tierce__bench_disk(const struct tierce__bench *bench)
{
    /* Chunks of 1, 4 and 16 MiB. */
    static const uint32_t cell_bytes[] = {16u << 10, 64u << 10, 256u << 10};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(cell_bytes) / sizeof(cell_bytes[0]); i++)
        rc = run_case(bench, cell_bytes[i]);
    return rc;
}
