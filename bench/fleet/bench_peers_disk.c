/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads of an engine from its disk, while a peer reads other chunks from the same disk without a
 * pause, against the same loads while no peer reads. Both engines are in this process, the manager
 * is in another. If the folder's file system has no direct reads, bytes come from the page cache.
 */
#include "bench/fleet/bench_peers_disk.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_manager_process.h"
#include "engine/engine.h"
#include "engine/view.h"
#include "store/remote/connector.h"

#include <tierce/operate.h>

enum { CHUNKS = 8, CELL_KIB = 32, CALL_MS = 60000, REST_NS = 2000000, ROUNDS = 8 };

struct disk_bench {
    const struct tierce__bench *bench;
    char store[PATH_MAX];
    struct tierce__bench_manager_process manager;
    struct tierce__kv holder;
    struct tierce_chain *own, *of_peer; /* both are on the holder's disk */
    struct tierce_engine *reader;
    struct tierce__connector *connector; /* [borrow] the reader's */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[CHUNKS];
    uint64_t object_bytes;
    char texts[CHUNKS][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[CHUNKS];
    sem_t done;
    pthread_t thread;
    bool has_thread;
    _Atomic bool reads, is_reading, ends;
    _Atomic uint64_t read_bytes, read_ns; /* by the peer, while it was to read */
};

static int forget_memory(struct disk_bench *b)
{
    int64_t rc = tierce_engine_clear(b->holder.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL);
    return rc < 0 ? (int)rc : 0;
}

/* ---- the peer -------------------------------------------------------------------------------- */

static void on_done(struct tierce__store_req *req)
{
    struct disk_bench *b = req->arg;
    sem_post(&b->done);
}

/* Reads all chunks once, and returns how many it got: the engine that has them may be busy. */
static size_t read_once(struct disk_bench *b)
{
    struct tierce__store_req reqs[CHUNKS];
    size_t got = 0;
    for (size_t i = 0; i < CHUNKS; i++) {
        reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = TIERCE__CONNECTOR_FETCH,
                                             .names = &b->names[i],
                                             .name_count = 1,
                                             .buf = b->bufs[i],
                                             .length = b->object_bytes,
                                             .deadline_ns = tierce__deadline_in_ms(CALL_MS),
                                             .done = on_done,
                                             .arg = b};
        b->connector->ops->submit(b->connector, &reqs[i]);
    }
    for (size_t i = 0; i < CHUNKS; i++) {
        while (sem_wait(&b->done) != 0)
            ;
    }
    for (size_t i = 0; i < CHUNKS; i++)
        got += reqs[i].status == 0;
    return got;
}

static void rest(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

static void *read_all(void *arg)
{
    struct disk_bench *b = arg;
    while (!atomic_load(&b->ends)) {
        atomic_store(&b->is_reading, atomic_load(&b->reads));
        if (!atomic_load(&b->is_reading)) {
            rest();
            continue;
        }
        uint64_t start_ns = tierce__now_ns();
        size_t got = read_once(b);
        if (got == 0) /* an engine computes then */
            rest();
        atomic_fetch_add(&b->read_bytes, got * b->object_bytes);
        atomic_fetch_add(&b->read_ns, tierce__now_ns() - start_ns);
    }
    return NULL;
}

/* Until the peer gets a chunk. */
static int await_peer(struct disk_bench *b)
{
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS);
    size_t got = 0;
    while (got == 0 && tierce__now_ns() < until_ns)
        got = read_once(b);
    return got > 0 ? 0 : tierce__bench_fail(b->bench, "the peer has read nothing");
}

static int open_reader(struct disk_bench *b, const char *url)
{
    const struct tierce__bench_param params[] = {{"memory.size", "64MiB"}, {"remote.urls", url}};
    int rc = tierce__bench_engine(&b->reader, b->bench, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = tierce__pool_create(
            &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                  .cap_bytes = 64u << 20});
    if (rc == 0)
        rc = tierce__kv_names(&b->holder, b->of_peer, b->texts, b->names, CHUNKS);
    if (rc != 0)
        return rc;
    b->connector = b->reader->levels[b->reader->level_count - 1].connector;
    b->object_bytes = b->holder.view->full.extent.object_bytes;
    for (size_t i = 0; rc == 0 && i < CHUNKS; i++)
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], b->object_bytes);
    return rc == 0 ? await_peer(b) : rc;
}

/* ---- the holder ------------------------------------------------------------------------------ */

static int64_t load_once(struct disk_bench *b)
{
    int rc = forget_memory(b);
    return rc == 0 ? tierce__kv_load(&b->holder, b->own, tierce__kv_ids(&b->holder, 0),
                                     TIERCE_ORIGIN_DISK)
                   : rc;
}

/* The mean time of a load, of those in an eighth of the benchmark's time, so that a peer has used
 * up what it may read at once. */
static int64_t load(struct disk_bench *b, bool with_peer)
{
    int64_t sum_ns = 0, count = 0, ns = 0;
    atomic_store(&b->reads, with_peer);
    while (atomic_load(&b->is_reading) != with_peer)
        rest();
    uint64_t until_ns = tierce__now_ns() + (uint64_t)(b->bench->seconds * 1e9 / ROUNDS);
    do {
        ns = load_once(b);
        sum_ns += ns;
        count++;
    } while (ns > 0 && tierce__now_ns() < until_ns);
    atomic_store(&b->reads, false);
    return ns > 0 ? sum_ns / count : ns;
}

static int64_t load_with_peer(void *arg)
{
    return load(arg, true);
}

static int64_t load_alone(void *arg)
{
    return load(arg, false);
}

static int store(struct disk_bench *b, struct tierce_chain **chain, uint32_t window)
{
    struct tierce__kv *kv = &b->holder;
    int rc = tierce_view_chain(chain, kv->view, NULL);
    if (rc == 0)
        rc = tierce__kv_renew(kv, *chain);
    int64_t ns = rc;
    if (rc == 0)
        ns = tierce__kv_store(kv, *chain, tierce__kv_ids(kv, window), kv->window_blocks,
                              kv->window_blocks);
    return ns < 0 ? (int)ns : tierce_engine_flush(kv->engine, CALL_MS);
}

static int open_holder(struct disk_bench *b, const char *url, const char *rate)
{
    const struct tierce__bench_param params[] = {
        {"memory.size", "64MiB"}, {"disk.path", b->store}, {"disk.size", "256MiB"},
        {"disk.queue", "64MiB"},  {"remote.urls", url},    {"peers.disk_rate", rate}};
    b->holder = (struct tierce__kv){.bench = b->bench,
                                    .cell_bytes = CELL_KIB << 10,
                                    .windows = 2,
                                    .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = tierce__kv_open(&b->holder, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = store(b, &b->own, 0);
    if (rc == 0)
        rc = store(b, &b->of_peer, 1);
    return rc == 0 ? forget_memory(b) : rc;
}

static int open_all(struct disk_bench *b, const char *rate)
{
    char url[TIERCE__BENCH_PEERS_URL_BYTES], folder[PATH_MAX];
    if (realpath(b->bench->dir, folder) == NULL)
        return -errno;
    if (snprintf(b->store, sizeof(b->store), "%.4000s/store", folder) <= 0)
        return -EINVAL;
    int rc = tierce__bench_manager_process_of_peers(&b->manager, b->bench, url);
    if (rc == 0)
        rc = open_holder(b, url, rate);
    if (rc == 0)
        rc = open_reader(b, url);
    if (rc == 0)
        rc = -pthread_create(&b->thread, NULL, read_all, b);
    b->has_thread = rc == 0;
    return rc;
}

static void close_all(struct disk_bench *b)
{
    atomic_store(&b->ends, true);
    if (b->has_thread)
        (void)pthread_join(b->thread, NULL);
    tierce_chain_destroy(b->own);
    tierce_chain_destroy(b->of_peer);
    tierce_engine_close(b->reader);
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__buf_release(b->bufs[i]);
    tierce__pool_destroy(b->pool);
    tierce__kv_close(&b->holder);
    tierce__bench_manager_process_stop(&b->manager);
    static const char *const left[] = {"pool", "startup.json", "manager.log", "store"};
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s/%s", b->bench->dir, left[i]) < (int)sizeof(path))
            tierce__bench_remove(path);
    }
}

static void emit(const struct disk_bench *b, const struct tierce__bench_side sides[2],
                 const char *what)
{
    char name[96];
    double bytes = (double)b->holder.window_bytes, read_ns = (double)atomic_load(&b->read_ns);
    snprintf(name, sizeof(name), "load of %llu MiB from disk while a peer reads from it; %s",
             (unsigned long long)(b->holder.window_bytes >> 20), what);
    tierce__bench_emit(b->bench,
                       &(struct tierce__bench_row){
                           .case_name = name,
                           .unit = "GB/s",
                           .value = bytes / sides[0].median_ns,
                           .limit = bytes / sides[1].median_ns,
                           .goal = 0.75,
                           .value_min = bytes / sides[0].max_ns,
                           .value_max = bytes / sides[0].min_ns,
                           .limit_min = bytes / sides[1].max_ns,
                           .limit_max = bytes / sides[1].min_ns,
                           .peer = "reads of the peer",
                           .peer_value = read_ns > 0 ? (double)b->read_bytes / read_ns : 0});
}

static int run(const struct tierce__bench *bench, const char *rate, const char *what)
{
    struct disk_bench b = {.bench = bench};
    sem_init(&b.done, 0, 0);
    struct tierce__bench_side sides[] = {{.run = load_with_peer, .arg = &b},
                                         {.run = load_alone, .arg = &b}};
    int rc = open_all(&b, rate);
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 2, bench->seconds);
    if (rc == 0)
        emit(&b, sides, what);
    close_all(&b);
    sem_destroy(&b.done);
    return rc;
}

int tierce__bench_peers_disk(const struct tierce__bench *bench)
{
    int rc = run(bench, "0", "peers.disk_rate 0");
    return rc == 0 ? run(bench, "64MiB", "64 MiB/s") : rc;
}
