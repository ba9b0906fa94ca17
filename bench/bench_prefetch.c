/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt of 32k tokens whose first half lies in memory and whose second half only on disk is
 * brought to memory whole and held; against a bare io_uring loop that reads the bytes of the second
 * half from a file on the same file system, with the same depth and size of transfers.
 *
 * The prompts on disk are used in turn and memory holds little more than one, so that the second
 * half comes from disk each time; the first half is loaded before, which does not count.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include <tierce/prefetch.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/bench_uring.h"

#define PROMPTS       8u
#define TOKENS        32768u
#define BLOCKS        (TOKENS / TIERCE__KV_BLOCK_TOKENS)
#define CELL_MAX      (32u << 10) /* chunks of 2 MiB, prompts of 256 MiB */
#define DEPTH         16u
#define SESSION       1u
#define WAIT_MS       60000u
#define REQUEST_PARTS 8u /* a prompt is stored in so many steps */

struct prefetch_case {
    struct tierce__kv kv;
    char store[PATH_MAX];
    char bare_path[PATH_MAX];
    struct tierce__bare_disk *bare;
    struct tierce_chain *chains[PROMPTS];
    uint32_t prompt; /* the next one */
    uint32_t bare_prompt;
};

static int64_t store_prompt(struct prefetch_case *c, struct tierce_chain *chain)
{
    uint64_t step = BLOCKS / REQUEST_PARTS;
    int64_t rc = tierce__kv_renew(&c->kv, chain);
    for (uint64_t i = 1; rc >= 0 && i <= REQUEST_PARTS; i++) {
        rc = tierce__kv_store(&c->kv, chain, c->kv.ids, i * step, step);
        if (rc >= 0)
            rc = tierce_engine_flush(c->kv.engine, WAIT_MS);
    }
    return rc;
}

/* Brings the first half to memory. */
static int load_half(struct prefetch_case *c, const struct tierce_chain *chain)
{
    struct tierce_transfer_opts what = {.size = sizeof(what),
                                        .chain = chain,
                                        .to_block = BLOCKS / 2,
                                        .paged = &c->kv.paged,
                                        .block_ids = c->kv.ids};
    int64_t loaded = tierce_load(c->kv.view, &what, NULL);
    return loaded == BLOCKS / 2 ? 0 : tierce__bench_fail(c->kv.bench, "a half was not loaded");
}

static int check_result(const struct prefetch_case *c, const struct tierce_prefetch_result *r)
{
    if (r->memory_blocks == BLOCKS && r->tiers[0].loaded == BLOCKS / 2 &&
        r->tiers[1].loaded == BLOCKS / 2)
        return 0;
    return tierce__bench_fail(c->kv.bench,
                              "a prefetch brought %" PRIu64 " of %u blocks, %" PRIu64 " from disk",
                              r->memory_blocks, BLOCKS, r->tiers[1].loaded);
}

static int64_t run_prefetch(void *arg)
{
    struct prefetch_case *c = arg;
    const struct tierce_chain *chain = c->chains[c->prompt];
    c->prompt = (c->prompt + 1) % PROMPTS;
    int rc = load_half(c, chain);
    if (rc < 0)
        return rc;
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    struct tierce_prefetch_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_PREFETCH_PIN, .session = SESSION};
    uint64_t start = tierce__now_ns();
    rc = tierce_prefetch_begin(&prefetch, c->kv.view, chain, BLOCKS, &opts);
    if (rc < 0)
        return rc;
    rc = tierce_prefetch_wait(prefetch, WAIT_MS);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    (void)tierce_prefetch_poll(prefetch, &result);
    tierce_prefetch_end(prefetch);
    tierce_unpin(c->kv.view, SESSION);
    if (rc == 0)
        rc = check_result(c, &result);
    return rc < 0 ? rc : ns;
}

static int64_t run_bare(void *arg)
{
    struct prefetch_case *c = arg;
    uint64_t offset = c->bare_prompt * c->kv.window_bytes / 2;
    c->bare_prompt = (c->bare_prompt + 1) % PROMPTS;
    uint64_t start = tierce__now_ns();
    int rc = tierce__bare_disk_move(c->bare, false, offset, c->kv.window_bytes / 2);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

static int open_case(struct prefetch_case *c)
{
    char memory[32], disk[32], depth[8];
    uint64_t window = (uint64_t)TIERCE__KV_LAYERS * BLOCKS * c->kv.cell_bytes;
    snprintf(memory, sizeof(memory), "%" PRIu64, window + window / 2);
    snprintf(disk, sizeof(disk), "%" PRIu64, PROMPTS * (window + window / 32) + (64u << 20));
    snprintf(depth, sizeof(depth), "%u", DEPTH);
    snprintf(c->store, sizeof(c->store), "%s/store", c->kv.bench->dir);
    snprintf(c->bare_path, sizeof(c->bare_path), "%s/bare", c->kv.bench->dir);
    const struct tierce__bench_param params[] = {{"memory.size", memory}, {"memory.pins", "80%"},
                                                 {"disk.path", c->store}, {"disk.size", disk},
                                                 {"disk.queue", memory},  {"disk.depth", depth}};
    int rc = tierce__kv_open(&c->kv, params, sizeof(params) / sizeof(params[0]));
    if (rc < 0)
        return rc;
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(c->kv.engine, &stats);
    if (stats.disk_cap_bytes == 0)
        return tierce__bench_fail(c->kv.bench, "the store folder cannot be used");
    rc = tierce__bare_disk_open(&c->bare, c->bare_path, PROMPTS * window / 2, c->kv.memory,
                                window / 2, DEPTH);
    return rc == 0 ? 0 : tierce__bench_fail(c->kv.bench, "no bare loop: %s", tierce_strerror(rc));
}

/* Writes both files, so that all that is read was written before. */
static int fill_case(struct prefetch_case *c)
{
    int64_t rc = 0;
    for (uint32_t i = 0; rc >= 0 && i < PROMPTS; i++) {
        rc = tierce_view_chain(&c->chains[i], c->kv.view, NULL);
        if (rc >= 0)
            rc = store_prompt(c, c->chains[i]);
        if (rc >= 0)
            rc = tierce__bare_disk_move(c->bare, true, i * c->kv.window_bytes / 2,
                                        c->kv.window_bytes / 2);
    }
    return rc < 0 ? (int)rc : 0;
}

static int measure(struct prefetch_case *c)
{
    struct tierce__bench_side sides[] = {{.run = run_prefetch, .arg = c},
                                         {.run = run_bare, .arg = c}};
    int rc = tierce__bench_alternate(sides, 2, c->kv.bench->seconds);
    if (rc < 0)
        return rc;
    char name[64];
    double bytes = (double)c->kv.window_bytes / 2;
    snprintf(name, sizeof(name), "32k tokens; half on disk; chunks of %u KiB",
             TIERCE__KV_CHUNK_CELLS * c->kv.cell_bytes >> 10);
    tierce__bench_emit(c->kv.bench, &(struct tierce__bench_row){.case_name = name,
                                                                .unit = "GB/s of the disk",
                                                                .value = bytes / sides[0].median_ns,
                                                                .limit = bytes / sides[1].median_ns,
                                                                .goal = 0.9});
    return 0;
}

int tierce__bench_prefetch(const struct tierce__bench *bench)
{
    struct prefetch_case c = {
        .kv = {.bench = bench, .cell_bytes = CELL_MAX, .windows = 1, .window_blocks = BLOCKS}};
    /* The engine's memory, and the store's, of one and a half times as much. */
    while (c.kv.cell_bytes > 4096 &&
           (uint64_t)TIERCE__KV_LAYERS * BLOCKS * c.kv.cell_bytes * 5 / 2 > bench->memory_bytes)
        c.kv.cell_bytes /= 2;
    int rc = open_case(&c);
    if (rc == 0)
        rc = fill_case(&c);
    if (rc == 0)
        rc = measure(&c);
    for (uint32_t i = 0; i < PROMPTS; i++)
        tierce_chain_destroy(c.chains[i]);
    tierce__bare_disk_close(c.bare);
    tierce__kv_close(&c.kv);
    tierce__bench_remove(c.store);
    return rc;
}
