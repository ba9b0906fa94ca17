/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hits of 128 chunks in a pool: lookups and gets through a manager, which is a process of its own
 * that is called by gRPC on loopback, beside the same chunks in the same store by the store's own
 * connector. The stores: a redis-server, a folder, a server that answers like S3, and the memory of
 * a node of a pool, which serves in this process by transfer://.
 *
 * - `hit`: a lookup of all 128 chunks, then a get of each, all at once. The limit is the same
 * without a manager.
 * - `manager's share`: the lookup alone, which is one call of the manager. The gets use the places
 * that it returned. The limit is the goal, a millisecond; the peer is the store's own lookup.
 *
 * The peer of a node's hits are the same bytes through bare sockets.
 *
 * Chunks are those of two models, with 256 tokens each. If memory is short, the chunks of the first
 * are smaller; if they are then smaller than those of the second, it is left out.
 * Those of the node are smaller: about 100 KiB, where calls count, and 1.5 MiB, where bytes do.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/bench.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/fleet/bench_node.h"
#include "bench/fleet/bench_nodes.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/manager/bench_startup.h"
#include "bench/remote/bench_chunks.h"
#include "bench/remote/bench_redis_server.h"
#include "bench/remote/bench_s3_server.h"
#include "core/chunk/header.h"
#include "core/key/namespaces.h"

#define CHUNKS          TIERCE__BENCH_CHUNKS
#define SHARE_OF_MEMORY (3u * CHUNKS) /* buffers, and two copies in the store */
#define LAYERS_MAX      28u
#define BLOCK_TOKENS    16u
#define CHUNK_BLOCKS    16u
#define READY_MS        20000u
#define READY_PAUSE_NS  5000000

/* bfloat16: 2 bytes for each of 128 or 64 numbers of 4 or 2 heads, twice. */
static const struct model {
    const char *name;
    uint32_t layers, cell_bytes;
} models[] = {{"Qwen2.5-7B", 28, BLOCK_TOKENS * 2 * 4 * 128 * 2},
              {"Qwen2.5-0.5B", 24, BLOCK_TOKENS * 2 * 2 * 64 * 2}};

struct fleet_bench {
    const struct tierce__bench *bench;
    const struct model *model;
    struct tierce__namespaces *namespaces;
    uint8_t digest[TIERCE_HASH_BYTES];
    uint64_t chunk_bytes;
    struct tierce__bench_chunks chunks;

    struct tierce__bench_manager_process manager;
    struct tierce__bench_redis_server redis;
    struct tierce__bench_s3 *s3;
    uint8_t *s3_object;
    struct tierce__bench_node node; /* zeroed: the store is another one */
    struct tierce__bench_sockets sockets;
    uint8_t *datas[CHUNKS]; /* of the chunks' buffers */
    struct tierce__connector *fleet, *plain;
};

/* ---- rounds ---------------------------------------------------------------------------------- */

static int64_t hit(struct fleet_bench *b, struct tierce__connector *connector)
{
    int64_t lookup = tierce__bench_chunks_lookup(&b->chunks, connector);
    int64_t get = lookup >= 0 ? tierce__bench_chunks_get(&b->chunks, connector, 0) : lookup;
    return get >= 0 ? lookup + get : get;
}

static int64_t hit_fleet(void *arg)
{
    struct fleet_bench *b = arg;
    return hit(b, b->fleet);
}

static int64_t hit_plain(void *arg)
{
    struct fleet_bench *b = arg;
    return hit(b, b->plain);
}

static int64_t look_up_fleet(void *arg)
{
    struct fleet_bench *b = arg;
    return tierce__bench_chunks_lookup(&b->chunks, b->fleet);
}

static int64_t look_up_plain(void *arg)
{
    struct fleet_bench *b = arg;
    return tierce__bench_chunks_lookup(&b->chunks, b->plain);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int measure_hit(struct fleet_bench *b, const char *store)
{
    char name[64];
    size_t count = b->node.server != NULL ? 3 : 2;
    struct tierce__bench_side sides[] = {{.run = hit_fleet, .arg = b},
                                         {.run = hit_plain, .arg = b},
                                         {.run = tierce__bench_sockets_copy, .arg = &b->sockets}};
    int rc = tierce__bench_alternate(sides, count, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s: hit of 128 chunks of %u KiB", store,
             (unsigned)(b->chunk_bytes >> 10));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "ms",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = sides[0].median_ns / 1e6,
                                     .value_min = sides[0].min_ns / 1e6,
                                     .value_max = sides[0].max_ns / 1e6,
                                     .limit = sides[1].median_ns / 1e6,
                                     .limit_min = sides[1].min_ns / 1e6,
                                     .limit_max = sides[1].max_ns / 1e6,
                                     .goal = 1 / 1.15,
                                     .peer = count == 3 ? "bare sockets" : NULL,
                                     .peer_value = count == 3 ? sides[2].median_ns / 1e6 : 0});
    return 0;
}

static int measure_share(struct fleet_bench *b, const char *store)
{
    enum { GOAL_US = 1000 };
    char name[64];
    struct tierce__bench_side sides[] = {{.run = look_up_fleet, .arg = b},
                                         {.run = look_up_plain, .arg = b}};
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s: manager's share; chunks of %u KiB", store,
             (unsigned)(b->chunk_bytes >> 10));
    tierce__bench_emit(b->bench,
                       &(struct tierce__bench_row){.case_name = name,
                                                   .unit = "us",
                                                   .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                   .value = sides[0].median_ns / 1e3,
                                                   .value_min = sides[0].min_ns / 1e3,
                                                   .value_max = sides[0].max_ns / 1e3,
                                                   .limit = GOAL_US,
                                                   .goal = 1,
                                                   .peer = "the store's own lookup",
                                                   .peer_value = sides[1].median_ns / 1e3});
    return 0;
}

/* Until the manager leads: it listens before. */
static int await_leader(struct fleet_bench *b)
{
    uint64_t end_ns = tierce__deadline_in_ms(READY_MS);
    while (!tierce__bench_chunks_is_served(&b->chunks, b->fleet)) {
        if (tierce__now_ns() > end_ns)
            return tierce__bench_fail(b->bench, "the manager stores nothing within 20 s");
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_NS}, NULL);
    }
    return 0;
}

static int store_all(struct fleet_bench *b)
{
    struct tierce__connector *const connectors[] = {b->fleet, b->plain};
    tierce__bench_chunks_fill(&b->chunks);
    int rc = await_leader(b);
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        int64_t ns = tierce__bench_chunks_put(&b->chunks, connectors[i]);
        rc = ns < 0 ? (int)ns : 0;
    }
    if (rc == 0)
        rc = tierce__bench_chunks_check(&b->chunks, b->fleet, 0);
    return rc < 0 ? rc : tierce__bench_chunks_check(&b->chunks, b->plain, 0);
}

static void close_store(struct fleet_bench *b)
{
    struct tierce__connector *const connectors[] = {b->fleet, b->plain};
    for (size_t i = 0; i < 2; i++) {
        if (connectors[i] != NULL)
            (void)connectors[i]->ops->close(connectors[i], TIERCE__DEADLINE_NEVER);
    }
    b->fleet = b->plain = NULL;
    tierce__bench_node_leave(&b->node);
    tierce__bench_manager_process_stop(&b->manager);
}

/* One store: as a storage of the manager, of this type and storage_spec, and by its own URL. */
static int measure_store(struct fleet_bench *b, const char *type, const char *spec, const char *url)
{
    char fleet_url[64];
    bool is_node = b->node.server != NULL;
    int rc = tierce__bench_manager_process_start(&b->manager, b->bench, type, spec,
                                                 is_node ? TIERCE__BENCH_POOL : NULL);
    if (rc == 0 && is_node)
        rc = tierce__bench_node_join(&b->node, b->bench, b->manager.port);
    snprintf(fleet_url, sizeof(fleet_url), "fleet://127.0.0.1:%u/" TIERCE__BENCH_GROUP,
             (unsigned)b->manager.port);
    if (rc == 0)
        rc = tierce__bench_connector(b->bench, &b->fleet, fleet_url, b->chunks.pool, b->namespaces);
    if (rc == 0)
        rc = tierce__bench_connector(b->bench, &b->plain, url, b->chunks.pool, NULL);
    if (rc == 0)
        rc = store_all(b);
    if (rc == 0)
        rc = measure_hit(b, is_node ? "node" : type);
    if (rc == 0)
        rc = measure_share(b, is_node ? "node" : type);
    close_store(b);
    return rc;
}

/* ---- the stores ------------------------------------------------------------------------------ */

static int measure_redis(struct fleet_bench *b)
{
    char spec[128], url[64];
    int rc = tierce__bench_redis_start(&b->redis, b->bench);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)b->redis.port);
    snprintf(spec, sizeof(spec), "{\"uri\": \"%s?key_prefix=pool:\"}", url);
    if (rc == 0)
        rc = measure_store(b, "redis", spec, url);
    tierce__bench_redis_stop(&b->redis);
    return rc;
}

static int measure_files(struct fleet_bench *b)
{
    char spec[4300], url[4200], pool[4160];
    char *whole = realpath(b->bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    snprintf(pool, sizeof(pool), "%s/pool", whole);
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/\", \"key_count_per_file\": 1}", pool);
    snprintf(url, sizeof(url), "file://%s/plain", whole);
    /* A connector takes a missing folder for one that is not mounted. */
    int rc = mkdir(pool, 0700) == 0 ? measure_store(b, "file", spec, url) : -errno;
    tierce__bench_remove(pool);
    tierce__bench_remove(url + sizeof("file://") - 1);
    free(whole);
    return rc;
}

static int measure_s3(struct fleet_bench *b)
{
    char spec[4300], url[128], path[4160];
    uint16_t port = 0;
    char *whole = realpath(b->bench->dir, NULL);
    int rc = whole != NULL ? 0 : -errno;
    snprintf(path, sizeof(path), "%s/credentials", rc == 0 ? whole : "");
    free(whole);
    if (rc == 0)
        rc = tierce__bench_s3_credentials(path);
    b->s3_object = rc == 0 ? tierce__bench_map(b->chunk_bytes) : NULL;
    if (rc == 0)
        rc = b->s3_object != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        tierce__bench_fill(b->s3_object, b->chunk_bytes, 1);
        rc = tierce__bench_s3_start(&b->s3, b->s3_object, b->chunk_bytes, &port);
    }
    snprintf(url, sizeof(url), "s3://key:secret@bucket?endpoint=http://127.0.0.1:%u",
             (unsigned)port);
    snprintf(spec, sizeof(spec),
             "{\"uri\": \"s3://bucket/pool?endpoint=http://127.0.0.1:%u&credentials_file=%s\"}",
             (unsigned)port, path);
    if (rc == 0)
        rc = measure_store(b, "s3", spec, url);
    tierce__bench_s3_stop(b->s3);
    b->s3 = NULL;
    tierce__bench_unmap(b->s3_object, b->chunk_bytes);
    b->s3_object = NULL;
    return rc;
}

static int measure_node(struct fleet_bench *b)
{
    char url[64], spec[4300];
    char *whole = realpath(b->bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/\"}", whole);
    free(whole);
    b->sockets = (struct tierce__bench_sockets){.into = b->datas,
                                                .from = tierce__bench_map(b->chunk_bytes),
                                                .count = CHUNKS,
                                                .bytes = b->chunk_bytes};
    if (b->sockets.from == NULL)
        return -ENOMEM;
    int rc = tierce__bench_node_start(&b->node, b->bench, 3 * CHUNKS * b->chunk_bytes);
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory", (unsigned)b->node.port);
    if (rc == 0)
        rc = tierce__bench_sockets_open(&b->sockets, b->bench);
    if (rc == 0)
        rc = measure_store(b, "file", spec, url);
    tierce__bench_sockets_close(&b->sockets);
    tierce__bench_unmap((uint8_t *)(uintptr_t)b->sockets.from, b->chunk_bytes);
    tierce__bench_node_stop(&b->node);
    return rc;
}

/* ---- the models ------------------------------------------------------------------------------ */

/* A whole chunk of up to so many bytes: with fewer blocks, then with smaller cells. */
static int shape_chunk(struct fleet_bench *b, uint64_t bytes_max)
{
    uint32_t blocks = CHUNK_BLOCKS, cell = b->model->cell_bytes, cells[LAYERS_MAX];
    struct tierce__geometry geometry = {
        .layer_count = b->model->layers, .cell_bytes = cells, .block_tokens = BLOCK_TOKENS};
    struct tierce__extent extent = {.object_bytes = UINT64_MAX};
    for (; extent.object_bytes > bytes_max && cell >= 64;) {
        for (uint32_t i = 0; i < b->model->layers; i++)
            cells[i] = cell;
        geometry.block_count = blocks;
        int rc = tierce__chunk_extent(&extent, &geometry);
        if (rc < 0)
            return rc;
        uint32_t *smaller = blocks > 1 ? &blocks : &cell;
        *smaller /= extent.object_bytes > bytes_max ? 2 : 1;
    }
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = "00",
                                        .model = b->model->name,
                                        .kv_dtype = "bfloat16",
                                        .quantization = "",
                                        .layout = "",
                                        .layer_count = b->model->layers,
                                        .cell_bytes = cells,
                                        .block_tokens = BLOCK_TOKENS,
                                        .chunk_blocks = geometry.block_count,
                                        .algo = TIERCE_CHAIN_SHA256};
    char *text = NULL;
    int rc = tierce_namespace_text(&text, &ns);
    if (rc < 0)
        return rc;
    tierce_namespace_digest(b->digest, text);
    int64_t id = tierce__namespaces_intern(b->namespaces, b->digest, text);
    tierce_free(text);
    b->chunk_bytes = extent.object_bytes;
    return id < 0 ? (int)id : 0;
}

static int measure_model(struct fleet_bench *b, uint64_t bytes_max,
                         int (*const stores[])(struct fleet_bench *), size_t count)
{
    int rc = shape_chunk(b, bytes_max);
    if (rc == 0)
        rc = tierce__bench_chunks_open(&b->chunks, b->bench, b->chunk_bytes, b->digest, 1);
    for (size_t i = 0; i < CHUNKS && rc == 0; i++)
        b->datas[i] = b->chunks.bufs[i]->data;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = stores[i](b);
    tierce__bench_chunks_close(&b->chunks);
    return rc;
}

static int measure_models(struct fleet_bench *b)
{
    static int (*const stores[])(struct fleet_bench *) = {measure_redis, measure_files, measure_s3};
    int rc = 0;
    for (size_t i = 0; i < sizeof(models) / sizeof(*models) && rc == 0; i++) {
        b->model = &models[i];
        if (i > 0 &&
            b->chunk_bytes < (uint64_t)b->model->layers * b->model->cell_bytes * CHUNK_BLOCKS)
            break;
        rc = measure_model(b, b->bench->memory_bytes / SHARE_OF_MEMORY, stores,
                           sizeof(stores) / sizeof(*stores));
    }
    return rc;
}

/* With header and trailer. */
static int measure_nodes(struct fleet_bench *b)
{
    static int (*const stores[])(struct fleet_bench *) = {measure_node};
    static const uint64_t sizes[] = {112u << 10, 1664u << 10};
    int rc = 0;
    b->model = &models[1];
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes) && rc == 0; i++) {
        uint64_t most = b->bench->memory_bytes / (4 * CHUNKS);
        if (i > 0 && sizes[i] > most)
            break;
        rc = measure_model(b, sizes[i] < most ? sizes[i] : most, stores, 1);
    }
    return rc;
}

static void remove_files(const struct tierce__bench *bench)
{
    static const char *const names[] = {"startup.json", "manager.log", "credentials"};
    char path[4160];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "%s/%s", bench->dir, names[i]);
        (void)remove(path);
    }
}

int tierce__bench_fleet(const struct tierce__bench *bench)
{
    struct fleet_bench *b = tierce__calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    b->bench = bench;
    int rc = tierce__namespaces_create(&b->namespaces);
    if (rc == 0)
        rc = measure_models(b);
    if (rc == 0)
        rc = measure_nodes(b);
    if (rc == 0)
        rc = tierce__bench_nodes(bench);
    remove_files(bench);
    tierce__namespaces_destroy(b->namespaces);
    tierce__free(b);
    return rc;
}
