/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's loads from a peer, whole and verified: each is a lookup in the directory, a read into
 * the engine's memory, a copy to the blocks, and all sums. The limit is the same bytes through bare
 * sockets. Then ranges of chunks from a peer behind a network with a delay. Both engines are in
 * this process, the manager is in another.
 */
#include "bench/fleet/bench_peers_load.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/remote/slow_link.h"
#include "bench/remote/bench_calls.h"
#include "core/key/chunk_number.h"
#include "engine/engine.h"
#include "engine/peer/peers.h"
#include "engine/view.h"
#include "store/remote/connector.h"
#include "store/remote/peers/peers_self.h"
#include "store/remote/peers/peers_table.h"

#include <tierce/operate.h>

enum {
    CHUNKS = 16,
    PARTS = 4, /* ranges of a chunk */
    RANGES = CHUNKS * PARTS,
    CALL_MS = 60000,
    CELL_KIB = 32,
    ROUND_TRIP_MS = 30,
};

struct load_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_manager_process manager;
    struct tierce__kv holder, reader;
    struct tierce_chain *stored, *same;
    struct tierce__connector *connector; /* [borrow] the reader's */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[CHUNKS];
    uint8_t *into[CHUNKS];
    uint64_t object_bytes;
    char texts[CHUNKS][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[CHUNKS];
    struct tierce__bench_sockets sockets;
    struct tierce__slow_link *slow;
};

/* ---- whole loads ----------------------------------------------------------------------------- */

/* Until the lookup has found all chunks: it may be answered before the directory has replied. */
static int look_up(struct load_bench *b)
{
    const struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS), blocks = tierce_chain_blocks(b->same);
    struct tierce_found found = {0};
    int rc = 0;
    while (rc == 0 && found.blocks < blocks && tierce__now_ns() < until_ns)
        rc = tierce_lookup(b->reader.view, b->same, blocks, &opts, &found);
    return rc < 0                  ? rc
           : found.blocks < blocks ? tierce__bench_fail(b->bench, "the directory has no chunks")
                                   : 0;
}

/* The reader has none of the chunks, and remembers no holder. */
static int64_t load_all(void *arg)
{
    struct load_bench *b = arg;
    int64_t rc = tierce_engine_clear(b->reader.engine, 0, NULL);
    if (rc < 0)
        return rc;
    uint64_t start_ns = tierce__now_ns();
    rc = look_up(b);
    if (rc == 0)
        rc = tierce__kv_load(&b->reader, b->same, tierce__kv_ids(&b->reader, 0),
                             TIERCE_ORIGIN_REMOTE);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* ---- ranges behind a delay ------------------------------------------------------------------- */

static int64_t get_ranges(void *arg)
{
    struct load_bench *b = arg;
    struct tierce__store_req reqs[RANGES];
    uint64_t part = b->object_bytes / PARTS;
    for (size_t i = 0; i < RANGES; i++) {
        reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = TIERCE__CONNECTOR_FETCH,
                                             .names = &b->names[i / PARTS],
                                             .name_count = 1,
                                             .buf = b->bufs[i / PARTS],
                                             .offset = i % PARTS * part,
                                             .length = part};
    }
    return tierce__bench_calls_run(b->bench, b->connector, reqs, RANGES);
}

/* The holder of each chunk has another address for the reader: that of the slow network. */
static int slow_down(struct load_bench *b)
{
    struct tierce__peers_table *table = tierce__peers_self_of(b->reader.engine->peers)->table;
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX], far = {0};
    char host[TIERCE__PEERS_ADDRESS_BYTES], address[64];
    for (size_t i = 0; i < CHUNKS; i++) {
        struct tierce__slow_link_opts opts = {.size = sizeof(opts),
                                              .round_trip_ns = ROUND_TRIP_MS * TIERCE__MS_NS};
        struct tierce__key key = b->holder.view->key;
        memcpy(key.hash, tierce_chain_hash(b->stored, (i + 1) * TIERCE__KV_CHUNK_BLOCKS - 1),
               sizeof(key.hash));
        struct tierce__chunk_number number =
            tierce__chunk_number(b->holder.view->ns_digest, &key.shard, key.hash);
        if (tierce__peers_table_get(table, number, holders) == 0 ||
            !tierce__peers_table_address(table, holders[0], 0, host, &opts.port))
            return tierce__bench_fail(b->bench, "the reader knows no holder");
        int rc = b->slow == NULL ? tierce__slow_link_start(&b->slow, &opts) : 0;
        if (rc < 0)
            return rc;
        snprintf(address, sizeof(address), "127.0.0.1:%u", tierce__slow_link_port(b->slow));
        far = tierce__peers_table_name(table, address);
        tierce__peers_table_put(table, number, &far, 1);
    }
    return 0;
}

/* ---- the engines ----------------------------------------------------------------------------- */

static int open_kv(struct load_bench *b, struct tierce__kv *kv, struct tierce_chain **chain,
                   const char *memory, const char *url)
{
    const struct tierce__bench_param params[] = {
        {"memory.size", memory}, {"remote.urls", url}, {"timeout.lookup", "2s"}};
    *kv = (struct tierce__kv){.bench = b->bench,
                              .cell_bytes = CELL_KIB << 10,
                              .windows = 1,
                              .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = tierce__kv_open(kv, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = tierce_view_chain(chain, kv->view, NULL);
    return rc == 0 ? tierce__kv_renew(kv, *chain) : rc;
}

static int open_all(struct load_bench *b)
{
    char url[96], folder[PATH_MAX], spec[PATH_MAX + 32];
    if (realpath(b->bench->dir, folder) == NULL)
        return -errno;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/pool/\"}", folder);
    int64_t rc = tierce__bench_manager_process_start(&b->manager, b->bench, "file", spec, NULL);
    snprintf(url, sizeof(url), "peers://127.0.0.1:%u", (unsigned)b->manager.port);
    if (rc == 0)
        rc = open_kv(b, &b->holder, &b->stored, "128MiB", url);
    if (rc == 0)
        rc = tierce__kv_store(&b->holder, b->stored, tierce__kv_ids(&b->holder, 0),
                              b->holder.window_blocks, b->holder.window_blocks);
    if (rc >= 0)
        rc = open_kv(b, &b->reader, &b->same, "96MiB", url);
    if (rc == 0)
        rc = tierce__pool_create(
            &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                  .cap_bytes = 64u << 20});
    if (rc == 0)
        rc = tierce__kv_names(&b->holder, b->stored, b->texts, b->names, CHUNKS);
    if (rc != 0)
        return (int)rc;
    b->object_bytes = b->holder.view->full.extent.object_bytes;
    for (size_t i = 0; rc == 0 && i < CHUNKS; i++) {
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], b->object_bytes);
        if (rc == 0)
            b->into[i] = b->bufs[i]->data;
    }
    if (rc != 0)
        return (int)rc;
    b->connector = b->reader.engine->levels[b->reader.engine->level_count - 1].connector;
    b->sockets = (struct tierce__bench_sockets){.into = b->into,
                                                .from = b->holder.memory,
                                                .count = CHUNKS,
                                                .bytes = b->holder.window_bytes / CHUNKS};
    return tierce__bench_sockets_open(&b->sockets, b->bench);
}

static void close_all(struct load_bench *b)
{
    if (b->sockets.into != NULL)
        tierce__bench_sockets_close(&b->sockets);
    tierce_chain_destroy(b->same);
    tierce__kv_close(&b->reader);
    tierce__slow_link_stop(b->slow);
    tierce_chain_destroy(b->stored);
    tierce__kv_close(&b->holder);
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__buf_release(b->bufs[i]);
    tierce__pool_destroy(b->pool);
    tierce__bench_manager_process_stop(&b->manager);
    static const char *const left[] = {"pool", "startup.json", "manager.log"};
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s/%s", b->bench->dir, left[i]) < (int)sizeof(path))
            tierce__bench_remove(path);
    }
}

/* ---- the rows -------------------------------------------------------------------------------- */

static int measure(struct load_bench *b, tierce__bench_run_fn *run, const char *name, double goal)
{
    struct tierce__bench_side sides[] = {{.run = run, .arg = b},
                                         {.run = tierce__bench_sockets_copy, .arg = &b->sockets}};
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    double bytes = (double)b->sockets.bytes * (double)b->sockets.count;
    if (rc < 0)
        return rc;
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = bytes / sides[0].median_ns,
                                                             .limit = bytes / sides[1].median_ns,
                                                             .goal = goal,
                                                             .value_min = bytes / sides[0].max_ns,
                                                             .value_max = bytes / sides[0].min_ns,
                                                             .limit_min = bytes / sides[1].max_ns,
                                                             .limit_max = bytes / sides[1].min_ns});
    return 0;
}

static int run(struct load_bench *b)
{
    int rc = open_all(b);
    if (rc == 0)
        rc = measure(b, load_all, "lookup and verified load of 32 MiB from a peer's memory", 0.95);
    if (rc == 0)
        rc = look_up(b);
    if (rc == 0)
        rc = slow_down(b);
    if (rc == 0) /* the limit has no delay, so there is no goal */
        rc = measure(b, get_ranges, "GET ranges of 513 KiB from a peer's memory; 30 ms round trip",
                     0.01);
    return rc;
}

int tierce__bench_peers_load(const struct tierce__bench *bench)
{
    struct load_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    b->bench = bench;
    int rc = run(b);
    close_all(b);
    free(b);
    return rc;
}
