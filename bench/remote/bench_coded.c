/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the time to the first token that a hit in a remote store costs: the chunks of a
 * prompt are loaded from a node over TCP on loopback, raw and coded. The limit of both is as many
 * raw bytes through bare sockets, so that the ratio of a coded load may exceed 1. The node is in
 * this process.
 *
 * The same over a simulated link of 1 Gbit/s and a round trip of 0.2 ms (slow_link.h). The limit is
 * the time that the raw bytes take at this rate. To measure over another network, run it in a
 * network namespace whose loopback device has a rate (docs/inside/benchmarks.md).
 *
 * The same prompt is loaded from memory, from coded memory (memory.coded_size) and from a disk; the
 * limit is memcpy of its bytes.
 */
#include "bench/remote/bench_coded.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/remote/bench_local_node.h"
#include "bench/remote/slow_link.h"
#include "engine/engine.h"
#include "engine/view.h"

#include <tierce/operate.h>

enum {
    CHUNKS = 16,
    CELL_BYTES = 12288, /* keys and values of 16 tokens, as in files of tools/kv_samples.py */
    CALL_MS = 60000,
    NODE_MIB = 192,
    LINK_BYTES_PER_S = 125000000,
    LINK_ROUND_TRIP_NS = 200000
};

/* An engine, and the tier from which it loads. */
struct coded_side {
    const char *name;  /* as in the row */
    const char *codec; /* of its remote store, the node; NULL: it has none */
    bool is_behind_link;
    const char *coded_size;
    bool has_disk;
    bool stays; /* in memory, before each load */
    double goal;
    struct tierce__kv kv;
    struct tierce_chain *chain;
};

enum { REMOTE_RAW, REMOTE_CODED, LINK_RAW, LINK_CODED, MEMORY, CODED_MEMORY, DISK, SIDES };

struct coded_bench {
    const struct tierce__bench *bench;
    const uint8_t *values;
    uint64_t bytes;
    const char *source;
    struct tierce__bench_local_node node;
    struct tierce__slow_link *link; /* to the node */
    struct coded_side sides[SIDES];
    struct tierce__bench_sockets sockets;
    uint8_t *copy;    /* as large as the prompt */
    char folder[512]; /* of the disk, or "" */
    uint8_t *into[CHUNKS];
};

/* Calls `fn` with each part of `memory` and the values that belong there, repeated from their
 * beginning. Returns whether all calls returned true. */
static bool for_each_part(const struct coded_bench *b, uint8_t *memory, uint64_t bytes,
                          bool (*fn)(uint8_t *to, const uint8_t *from, uint64_t bytes))
{
    for (uint64_t at = 0; at < bytes; at += b->bytes) {
        if (!fn(memory + at, b->values, bytes - at < b->bytes ? bytes - at : b->bytes))
            return false;
    }
    return true;
}

static bool fill(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
    return true;
}

static bool is_equal(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    return memcmp(to, from, bytes) == 0;
}

static int64_t load(void *arg)
{
    struct coded_side *side = arg;
    struct tierce__tier *memory = side->kv.engine->levels[0].tier;
    if (!side->stays) /* not a clear, which would be one of coded memory too */
        (void)memory->ops->evict(memory, UINT64_MAX);
    return tierce__kv_load(&side->kv, side->chain, tierce__kv_ids(&side->kv, 0),
                           side->codec != NULL ? TIERCE_ORIGIN_REMOTE
                           : side->has_disk    ? TIERCE_ORIGIN_DISK
                                               : TIERCE_ORIGIN_MEMORY);
}

static int64_t copy_bytes(void *arg)
{
    struct coded_bench *b = arg;
    const struct tierce__kv *kv = &b->sides[MEMORY].kv;
    uint64_t begun = tierce__now_ns();
    tierce__plain_memcpy(b->copy, kv->memory, kv->bytes);
    return (int64_t)(tierce__now_ns() - begun);
}

/* Until the slowest tier has all chunks: a flush does not wait for remote stores. */
static int await_stored(const struct coded_bench *b, struct tierce_engine *engine)
{
    struct tierce__tier *tier = engine->levels[engine->level_count - 1].tier;
    struct tierce__tier_stats stats = {0};
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS);
    while (stats.put_chunks < CHUNKS && tierce__now_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        tier->ops->stats(tier, &stats);
    }
    return stats.put_chunks == CHUNKS
               ? tierce_engine_flush(engine, CALL_MS) /* no write holds a chunk in memory */
               : tierce__bench_fail(b->bench, "the tier %s has not stored all chunks in 60 s",
                                    tier->ops->name);
}

/* Stores the prompt, and checks that a load returns the values. */
static int open_side(struct coded_bench *b, struct coded_side *side)
{
    char url[96] = "";
    if (side->codec != NULL)
        snprintf(url, sizeof(url), "tierce://127.0.0.1:%u?tls=false&prefix=%s%d&codec=%s",
                 (unsigned)(side->is_behind_link ? tierce__slow_link_port(b->link) : b->node.port),
                 side->codec, side->is_behind_link, side->codec);
    if (side->has_disk)
        snprintf(b->folder, sizeof(b->folder), "%s/coded", b->bench->dir);
    const struct tierce__bench_param params[] = {{"memory.size", "64MiB"},
                                                 {"memory.coded_size", side->coded_size},
                                                 {"disk.path", side->has_disk ? b->folder : ""},
                                                 {"disk.size", "128MiB"},
                                                 {"remote.urls", url},
                                                 {"remote.queue", "64MiB"},
                                                 {"disk.queue", "64MiB"},
                                                 {"timeout.lookup", "60s"},
                                                 {"timeout.load", "60s"}};
    struct tierce__kv *kv = &side->kv;
    *kv = (struct tierce__kv){.bench = b->bench,
                              .cell_bytes = CELL_BYTES,
                              .windows = 1,
                              .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = tierce__kv_open(kv, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = tierce_view_chain(&side->chain, kv->view, NULL);
    if (rc == 0)
        rc = tierce__kv_renew(kv, side->chain);
    if (rc < 0)
        return rc;
    (void)for_each_part(b, kv->memory, kv->bytes, fill);
    int64_t ns = tierce__kv_store(kv, side->chain, tierce__kv_ids(kv, 0), kv->window_blocks,
                                  kv->window_blocks);
    rc = ns < 0 ? (int)ns : await_stored(b, kv->engine);
    if (rc < 0)
        return rc;
    memset(kv->memory, 0, kv->bytes);
    ns = load(side);
    if (ns >= 0 && !for_each_part(b, kv->memory, kv->bytes, is_equal))
        return tierce__bench_fail(b->bench, "a load %s has other values than stored", side->name);
    return ns < 0 ? (int)ns : 0;
}

static void emit(const struct coded_bench *b, const struct coded_side *side,
                 const struct tierce__bench_side *measured, const struct tierce__bench_side *bare)
{
    char name[96];
    snprintf(name, sizeof(name), "load of %d chunks of %llu KiB %s; %s", CHUNKS,
             (unsigned long long)(side->kv.view->full.extent.object_bytes >> 10), side->name,
             b->source);
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "ms",
                                                             .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                             .value = measured->median_ns / 1e6,
                                                             .value_min = measured->min_ns / 1e6,
                                                             .value_max = measured->max_ns / 1e6,
                                                             .limit = bare->median_ns / 1e6,
                                                             .limit_min = bare->min_ns / 1e6,
                                                             .limit_max = bare->max_ns / 1e6,
                                                             .goal = side->goal});
}

/* Measures sides [from, to) beside their limit; without `run`, that is as it is. */
static int measure(struct coded_bench *b, size_t from, size_t to, struct tierce__bench_side limit)
{
    struct tierce__bench_side measured[SIDES + 1];
    size_t count = to - from;
    for (size_t i = 0; i < count; i++)
        measured[i] = (struct tierce__bench_side){.run = load, .arg = &b->sides[from + i]};
    measured[count] = limit;
    int rc =
        tierce__bench_alternate(measured, limit.run != NULL ? count + 1 : count, b->bench->seconds);
    for (size_t i = 0; rc == 0 && i < count; i++)
        emit(b, &b->sides[from + i], &measured[i], &measured[count]);
    return rc;
}

/* The time that the raw bytes take at the link's rate. */
static struct tierce__bench_side link_limit(const struct coded_bench *b)
{
    double ns = (double)b->sides[LINK_RAW].kv.bytes / LINK_BYTES_PER_S * 1e9;
    return (struct tierce__bench_side){.median_ns = ns, .min_ns = ns, .max_ns = ns};
}

static int open_sockets(struct coded_bench *b)
{
    const struct tierce__kv *kv = &b->sides[0].kv;
    uint64_t bytes = kv->bytes / CHUNKS;
    for (size_t i = 0; i < CHUNKS; i++) {
        b->into[i] = tierce__bench_map(bytes);
        if (b->into[i] == NULL)
            return -ENOMEM;
    }
    b->sockets = (struct tierce__bench_sockets){
        .into = b->into, .from = kv->memory, .count = CHUNKS, .bytes = bytes};
    return tierce__bench_sockets_open(&b->sockets, b->bench);
}

static void close_all(struct coded_bench *b)
{
    tierce__bench_sockets_close(&b->sockets);
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__bench_unmap(b->into[i], b->sides[0].kv.bytes / CHUNKS);
    tierce__bench_unmap(b->copy, b->sides[MEMORY].kv.bytes);
    for (size_t i = 0; i < SIDES; i++) {
        tierce_chain_destroy(b->sides[i].chain);
        tierce__kv_close(&b->sides[i].kv);
    }
    tierce__slow_link_stop(b->link);
    tierce__bench_local_node_stop(&b->node);
    if (b->folder[0] != '\0')
        tierce__bench_remove(b->folder);
}

int tierce__bench_coded(const struct tierce__bench *bench, const uint8_t *values, uint64_t bytes,
                        const char *source)
{
    struct coded_bench *b = tierce__calloc(1, sizeof(*b));
    if (b == NULL)
        return tierce__bench_fail(bench, "no memory");
    b->bench = bench;
    b->values = values;
    b->bytes = bytes;
    b->source = source;
    /* At rates of a network a coded load takes less time than its raw bytes; on loopback more. */
    b->sides[REMOTE_RAW] = (struct coded_side){
        .name = "from a node; codec=none", .codec = "none", .coded_size = "0", .goal = 0.9};
    b->sides[REMOTE_CODED] = (struct coded_side){.name = "from a node; codec=lossless",
                                                 .codec = "lossless",
                                                 .coded_size = "0",
                                                 .goal = 1.35};
    b->sides[LINK_RAW] = b->sides[REMOTE_RAW];
    b->sides[LINK_RAW].name = "from a node at 1 Gbit/s; codec=none";
    b->sides[LINK_CODED] = b->sides[REMOTE_CODED];
    b->sides[LINK_CODED].name = "from a node at 1 Gbit/s; codec=lossless";
    b->sides[LINK_RAW].is_behind_link = b->sides[LINK_CODED].is_behind_link = true;
    b->sides[MEMORY] =
        (struct coded_side){.name = "from memory", .coded_size = "0", .stays = true, .goal = 0.5};
    b->sides[CODED_MEMORY] =
        (struct coded_side){.name = "from coded memory", .coded_size = "64MiB", .goal = 0.2};
    b->sides[DISK] = (struct coded_side){
        .name = "from a disk", .coded_size = "0", .has_disk = true, .goal = 0.05};
    int rc = tierce__bench_local_node_start(&b->node, bench, (uint64_t)NODE_MIB << 20, NULL);
    if (rc == 0)
        rc = tierce__slow_link_start(&b->link, &(struct tierce__slow_link_opts){
                                                   .size = sizeof(struct tierce__slow_link_opts),
                                                   .port = b->node.port,
                                                   .round_trip_ns = LINK_ROUND_TRIP_NS,
                                                   .bytes_per_s = LINK_BYTES_PER_S});
    for (size_t i = 0; rc == 0 && i < SIDES; i++)
        rc = open_side(b, &b->sides[i]);
    if (rc == 0)
        rc = open_sockets(b);
    b->copy = rc == 0 ? tierce__bench_map(b->sides[MEMORY].kv.bytes) : NULL;
    if (rc == 0 && b->copy == NULL)
        rc = -ENOMEM;
    if (rc == 0)
        rc = measure(
            b, REMOTE_RAW, LINK_RAW,
            (struct tierce__bench_side){.run = tierce__bench_sockets_copy, .arg = &b->sockets});
    if (rc == 0)
        rc = measure(b, LINK_RAW, MEMORY, link_limit(b));
    if (rc == 0)
        rc = measure(b, MEMORY, SIDES, (struct tierce__bench_side){.run = copy_bytes, .arg = b});
    close_all(b);
    tierce__free(b);
    return rc;
}
