/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote stores over a simulated network (bench/remote/slow_link.h) with a round trip of 5 ms and 1
 * GB/s each way: a redis-server, a node, and a server that answers like S3.
 *
 * - `lookup` of 128 stored chunks, in round trips. The limit is the minimum of the protocol.
 * - `load` of 128 chunks, in the pieces that the engine requests. The limit is the rate of the
 * link, or half the rate without it if that is lower: the link uses the same processors as the
 * store and the client.
 * - `store_begin` of a prompt without stored chunks, with the store and without one.
 *
 * The engines of the last case use default parameters, except for the store's address.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench.h"
#include "bench/bench_kv.h"
#include "bench/remote/bench_chunks.h"
#include "bench/remote/bench_local_node.h"
#include "bench/remote/bench_redis_server.h"
#include "bench/remote/bench_s3_server.h"
#include "bench/remote/slow_link.h"

#define CHUNKS          TIERCE__BENCH_CHUNKS
#define ROUND_TRIP_NS   5000000ull
#define BYTES_PER_S     1000000000ull
#define PIECE_BYTES     (1ull << 20)
#define CHUNK_BYTES_MAX (4ull << 20)
#define SHARE_OF_MEMORY (3u * CHUNKS)
#define S3_CONNECTIONS  16u
#define BEGIN_BLOCKS    128u /* 16 chunks */
#define BEGINS          20u  /* of a round */

struct remote_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_chunks chunks;

    struct tierce__bench_redis_server redis;
    struct tierce__bench_local_node node;
    struct tierce__bench_s3 *s3;
    struct tierce__slow_link *link;
    struct tierce__connector *near, *far; /* without the link and with it */
};

/* ---- rounds ---------------------------------------------------------------------------------- */

static int64_t look_up(void *arg)
{
    struct remote_bench *b = arg;
    return tierce__bench_chunks_lookup(&b->chunks, b->far);
}

static int64_t load_far(void *arg)
{
    struct remote_bench *b = arg;
    return tierce__bench_chunks_get(&b->chunks, b->far, PIECE_BYTES);
}

static int64_t load_near(void *arg)
{
    struct remote_bench *b = arg;
    return tierce__bench_chunks_get(&b->chunks, b->near, PIECE_BYTES);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int measure_lookup(struct remote_bench *b, const char *store, double trips, double goal)
{
    char name[64];
    struct tierce__bench_side side = {.run = look_up, .arg = b};
    int rc = tierce__bench_alternate(&side, 1, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s: lookup of 128 chunks; 5 ms", store);
    tierce__bench_emit(b->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "round trips",
                                                   .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                   .value = side.median_ns / (double)ROUND_TRIP_NS,
                                                   .limit = trips,
                                                   .goal = goal});
    return 0;
}

static int measure_load(struct remote_bench *b, const char *store)
{
    char name[64];
    struct tierce__bench_side sides[] = {{.run = load_far, .arg = b}, {.run = load_near, .arg = b}};
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    if (rc < 0)
        return rc;
    double bytes = (double)(CHUNKS * b->chunks.bytes), link = (double)BYTES_PER_S / 1e9;
    double half = bytes / sides[1].median_ns / 2;
    snprintf(name, sizeof(name), "%s: load of 128 chunks of %u KiB; 5 ms and 1 GB/s", store,
             (unsigned)(b->chunks.bytes >> 10));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = bytes / sides[0].median_ns,
                                                             .limit = half < link ? half : link,
                                                             .goal = 0.85});
    return 0;
}

static int start_link(struct remote_bench *b, uint16_t port)
{
    return tierce__slow_link_start(
        &b->link, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                   .port = port,
                                                   .round_trip_ns = ROUND_TRIP_NS,
                                                   .bytes_per_s = BYTES_PER_S});
}

static void close_store(struct remote_bench *b)
{
    struct tierce__connector *const connectors[] = {b->near, b->far};
    for (size_t i = 0; i < 2; i++) {
        if (connectors[i] != NULL)
            (void)connectors[i]->ops->close(connectors[i], TIERCE__DEADLINE_NEVER);
    }
    b->near = b->far = NULL;
    tierce__slow_link_stop(b->link);
    b->link = NULL;
}

/* A store at a port: its URL is `before`, host and port. */
static int measure_store(struct remote_bench *b, const char *store, const char *before,
                         uint16_t port, double trips, double goal)
{
    char url[128];
    int rc = start_link(b, port);
    snprintf(url, sizeof(url), "%s127.0.0.1:%u", before, (unsigned)port);
    if (rc == 0)
        rc = tierce__bench_connector(b->bench, &b->near, url, b->chunks.pool, NULL);
    if (rc == 0) {
        snprintf(url, sizeof(url), "%s127.0.0.1:%u", before,
                 (unsigned)tierce__slow_link_port(b->link));
        rc = tierce__bench_connector(b->bench, &b->far, url, b->chunks.pool, NULL);
    }
    tierce__bench_chunks_fill(&b->chunks);
    int64_t ns = rc == 0 ? tierce__bench_chunks_put(&b->chunks, b->near) : rc;
    rc = ns < 0 ? (int)ns : tierce__bench_chunks_check(&b->chunks, b->far, PIECE_BYTES);
    if (rc == 0)
        rc = measure_lookup(b, store, trips, goal);
    if (rc == 0)
        rc = measure_load(b, store);
    close_store(b);
    return rc;
}

/* ---- store_begin ----------------------------------------------------------------------------- */

struct begin_side {
    struct tierce__kv kv;
    struct tierce_chain *chain;
};

/* No chunk of a new prompt is stored in any tier. */
static int64_t run_begins(void *arg)
{
    struct begin_side *side = arg;
    uint64_t ns = 0;
    for (unsigned i = 0; i < BEGINS; i++) {
        struct tierce_store *store = NULL;
        int rc = tierce__kv_renew(&side->kv, side->chain);
        struct tierce_transfer_opts what = {.size = sizeof(what),
                                            .chain = side->chain,
                                            .to_block = BEGIN_BLOCKS,
                                            .paged = &side->kv.paged,
                                            .block_ids = side->kv.ids};
        uint64_t start = tierce__now_ns();
        if (rc == 0)
            rc = tierce_store_begin(&store, side->kv.view, &what);
        ns += tierce__now_ns() - start;
        tierce_store_abort(store);
        if (rc < 0)
            return rc;
    }
    return (int64_t)ns;
}

static int open_side(struct begin_side *side, const struct tierce__bench *bench, const char *url)
{
    side->kv = (struct tierce__kv){
        .bench = bench, .cell_bytes = 4096, .windows = 1, .window_blocks = BEGIN_BLOCKS};
    const struct tierce__bench_param params[] = {
        {"memory.size", "48MiB"}, {"disk.path", ""}, {"remote.urls", url}};
    int rc = tierce__kv_open(&side->kv, params, url != NULL ? 3 : 2);
    return rc == 0 ? tierce_view_chain(&side->chain, side->kv.view, NULL) : rc;
}

static void close_side(struct begin_side *side)
{
    tierce_chain_destroy(side->chain);
    tierce__kv_close(&side->kv);
}

static int measure_begin(struct remote_bench *b)
{
    struct begin_side sides[2] = {0};
    char url[64];
    int rc = start_link(b, b->redis.port);
    if (rc < 0)
        return rc;
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)tierce__slow_link_port(b->link));
    rc = open_side(&sides[0], b->bench, url);
    if (rc == 0)
        rc = open_side(&sides[1], b->bench, NULL);
    struct tierce__bench_side measured[] = {{.run = run_begins, .arg = &sides[0]},
                                            {.run = run_begins, .arg = &sides[1]}};
    if (rc == 0)
        rc = tierce__bench_alternate(measured, 2, b->bench->seconds);
    if (rc == 0)
        tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                         .case_name = "redis: store_begin of 16 chunks; 5 ms",
                                         .unit = "us",
                                         .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                         .value = measured[0].median_ns / 1e3 / BEGINS,
                                         .limit = measured[1].median_ns / 1e3 / BEGINS,
                                         .goal = 1 / 1.2});
    close_side(&sides[0]);
    close_side(&sides[1]);
    close_store(b);
    return rc;
}

/* ---- the stores ------------------------------------------------------------------------------ */

static int prepare(struct remote_bench *b)
{
    static const uint8_t no_namespace[TIERCE_HASH_BYTES];
    uint64_t share = b->bench->memory_bytes / SHARE_OF_MEMORY / 4096 * 4096;
    uint64_t bytes = share < CHUNK_BYTES_MAX ? share : CHUNK_BYTES_MAX;
    if (bytes > PIECE_BYTES)
        bytes -= bytes % PIECE_BYTES;
    return tierce__bench_chunks_open(&b->chunks, b->bench, bytes, no_namespace, 0);
}

static int measure_redis(struct remote_bench *b)
{
    int rc = tierce__bench_redis_start(&b->redis, b->bench);
    if (rc == 0)
        rc = measure_store(b, "redis", "redis://", b->redis.port, 1, 0.5);
    if (rc == 0)
        rc = measure_begin(b);
    tierce__bench_redis_stop(&b->redis);
    return rc;
}

static int measure_node(struct remote_bench *b)
{
    int rc = tierce__bench_local_node_start(&b->node, b->bench,
                                            2 * CHUNKS * b->chunks.bytes + (64u << 20), NULL);
    if (rc == 0)
        rc = measure_store(b, "node", "tierce://", b->node.port, 1, 0.5);
    tierce__bench_local_node_stop(&b->node);
    return rc;
}

static int measure_s3(struct remote_bench *b)
{
    uint16_t port = 0;
    double trips = CHUNKS / S3_CONNECTIONS;
    uint8_t *object = tierce__bench_map(b->chunks.bytes);
    int rc = object != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        tierce__bench_fill(object, b->chunks.bytes, 1);
        rc = tierce__bench_s3_start(&b->s3, object, b->chunks.bytes, &port);
    }
    if (rc == 0)
        rc = measure_store(b, "s3", "s3://key:secret@bucket?endpoint=http://", port, trips,
                           trips / (1 + trips));
    tierce__bench_s3_stop(b->s3);
    if (object != NULL)
        tierce__bench_unmap(object, b->chunks.bytes);
    return rc;
}

int tierce__bench_remote(const struct tierce__bench *bench)
{
    struct remote_bench *b = tierce__calloc(1, sizeof(*b));
    if (b == NULL)
        return tierce__bench_fail(bench, "no memory");
    b->bench = bench;
    int rc = prepare(b);
    if (rc < 0)
        rc = tierce__bench_fail(bench, "the benchmark cannot be set up: %s", tierce_strerror(rc));
    if (rc == 0)
        rc = measure_redis(b);
    if (rc == 0)
        rc = measure_node(b);
    if (rc == 0)
        rc = measure_s3(b);
    tierce__bench_chunks_close(&b->chunks);
    tierce__free(b);
    return rc;
}
