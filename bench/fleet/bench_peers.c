/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of another engine's memory by peers://, over TCP on loopback, against as many bytes
 * through bare sockets, and out of the memory of another process by the transfer engines of others,
 * if Python has them. The holder has one address, then TLS, and then two addresses. Both engines
 * are in this process, and their manager in one of its own. To measure over a slower network, or
 * over two links, run it in a network namespace whose loopback device has a rate, or one for each
 * address (docs/inside/benchmarks.md).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/fleet/bench_certificate.h"
#include "bench/fleet/bench_engines.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/fleet/bench_peers_disk.h"
#include "bench/fleet/bench_peers_load.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/remote/bench_calls.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "engine/engine.h"
#include "engine/peer/peers.h"
#include "engine/view.h"
#include "store/remote/connector.h"
#include "store/remote/peers/peers_self.h"

enum { CHUNKS = 16, CALL_MS = 60000, CELL_KIB = 32 };

enum variant { ONE_ADDRESS, ONE_TLS, TWO_ADDRESSES };

struct peers_bench {
    const struct tierce__bench *bench;
    enum variant variant;
    char certificate[PATH_MAX]; /* "": none */
    struct tierce__bench_manager_process manager;
    struct tierce__kv holder;
    struct tierce_chain *chain;
    struct tierce_engine *reader;
    struct tierce__connector *connector; /* [borrow] the reader's */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[CHUNKS];
    uint8_t *into[CHUNKS];
    uint64_t object_bytes;
    char texts[CHUNKS][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[CHUNKS];
    struct tierce__bench_sockets sockets;
};

/* All chunks at once. */
static int64_t get_all(void *arg)
{
    struct peers_bench *b = arg;
    struct tierce__store_req reqs[CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++) {
        reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = TIERCE__CONNECTOR_FETCH,
                                             .names = &b->names[i],
                                             .name_count = 1,
                                             .buf = b->bufs[i],
                                             .length = b->object_bytes};
    }
    return tierce__bench_calls_run(b->bench, b->connector, reqs, CHUNKS);
}

/* Whether the reader has the secret that peers require. */
static bool has_joined(const struct peers_bench *b)
{
    int64_t session;
    int32_t slot;
    char secret[TIERCE__PEERS_SECRET_BYTES];
    return tierce__peers_self_get(tierce__peers_self_of(b->reader->peers), &session, &slot, secret);
}

/* Until the directory has all chunks and the reader. */
static int await_directory(struct peers_bench *b)
{
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS);
    size_t found = 0;
    while ((found < CHUNKS || !has_joined(b)) && tierce__now_ns() < until_ns) {
        struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                        .urgency = TIERCE__CONNECTOR_PEEK,
                                        .names = b->names,
                                        .name_count = CHUNKS};
        found = tierce__bench_calls_try(b->connector, &req, 1) < 0 ? 0 : req.found;
    }
    return found == CHUNKS ? 0 : tierce__bench_fail(b->bench, "the directory has no chunks");
}

static int open_holder(struct peers_bench *b, const char *url)
{
    const struct tierce__bench_param params[] = {
        {"memory.size", "128MiB"},
        {"remote.urls", url},
        {"peers.listen", b->variant == TWO_ADDRESSES ? "127.0.0.1,127.0.0.2" : ""},
        {"peers.certificate", b->certificate},
        {"peers.key", b->certificate},
        {"peers.ca", b->certificate}};
    struct tierce__kv *kv = &b->holder;
    *kv = (struct tierce__kv){.bench = b->bench,
                              .cell_bytes = CELL_KIB << 10,
                              .windows = 1,
                              .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    int rc = tierce__kv_open(kv, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = tierce_view_chain(&b->chain, kv->view, NULL);
    if (rc == 0)
        rc = tierce__kv_renew(kv, b->chain);
    int64_t ns = rc;
    if (rc == 0)
        ns = tierce__kv_store(kv, b->chain, tierce__kv_ids(kv, 0), kv->window_blocks,
                              kv->window_blocks);
    return ns < 0 ? (int)ns : 0;
}

static int name_chunks(struct peers_bench *b)
{
    b->object_bytes = b->holder.view->full.extent.object_bytes;
    int rc = tierce__kv_names(&b->holder, b->chain, b->texts, b->names, CHUNKS);
    for (size_t i = 0; rc == 0 && i < CHUNKS; i++) {
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], b->object_bytes);
        if (rc == 0)
            b->into[i] = b->bufs[i]->data;
    }
    return rc;
}

/* The first round fills the buffers with the chunks, which are compared. */
static int check(struct peers_bench *b)
{
    int64_t ns = get_all(b);
    if (ns < 0)
        return (int)ns;
    struct tierce__key key = b->holder.view->key;
    for (size_t i = 0; i < CHUNKS; i++) {
        memcpy(key.hash, tierce_chain_hash(b->chain, (i + 1) * TIERCE__KV_CHUNK_BLOCKS - 1),
               sizeof(key.hash));
        struct tierce__buf *own = tierce__storage_lease(b->holder.engine, &key);
        bool is_equal = own != NULL && own->bytes == b->object_bytes &&
                        memcmp(own->data, b->into[i], b->object_bytes) == 0;
        tierce__buf_release(own);
        if (!is_equal)
            return tierce__bench_fail(b->bench, "the bytes read differ from those stored");
    }
    return 0;
}

static int open_all(struct peers_bench *b)
{
    char url[TIERCE__BENCH_PEERS_URL_BYTES], folder[PATH_MAX];
    if (realpath(b->bench->dir, folder) == NULL)
        return -errno;
    int rc = tierce__bench_manager_process_of_peers(&b->manager, b->bench, url);
    if (b->variant == ONE_TLS &&
        snprintf(b->certificate, sizeof(b->certificate), "%.4000s/own.pem", folder) > 0 && rc == 0)
        rc = tierce__bench_certificate(b->bench, b->certificate);
    const struct tierce__bench_param params[] = {{"memory.size", "64MiB"},
                                                 {"remote.urls", url},
                                                 {"peers.certificate", b->certificate},
                                                 {"peers.key", b->certificate},
                                                 {"peers.ca", b->certificate}};
    if (rc == 0)
        rc = tierce__pool_create(
            &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                  .cap_bytes = 64u << 20});
    if (rc == 0)
        rc = open_holder(b, url);
    if (rc == 0)
        rc = tierce__bench_engine(&b->reader, b->bench, params, sizeof(params) / sizeof(*params));
    if (rc == 0)
        rc = name_chunks(b);
    if (rc != 0)
        return rc;
    b->connector = b->reader->levels[b->reader->level_count - 1].connector;
    b->sockets = (struct tierce__bench_sockets){.into = b->into,
                                                .from = b->holder.memory,
                                                .count = CHUNKS,
                                                .bytes = b->holder.window_bytes / CHUNKS,
                                                .is_spread = b->variant == TWO_ADDRESSES};
    rc = tierce__bench_sockets_open(&b->sockets, b->bench);
    return rc == 0 ? await_directory(b) : rc;
}

static void close_all(struct peers_bench *b)
{
    if (b->sockets.into != NULL)
        tierce__bench_sockets_close(&b->sockets);
    tierce_engine_close(b->reader);
    tierce_chain_destroy(b->chain);
    tierce__kv_close(&b->holder);
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__buf_release(b->bufs[i]);
    tierce__pool_destroy(b->pool);
    tierce__bench_manager_process_stop(&b->manager);
    static const char *const left[] = {"pool", "startup.json", "manager.log", "own.pem"};
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s/%s", b->bench->dir, left[i]) < (int)sizeof(path))
            tierce__bench_remove(path);
    }
}

static void emit(const struct peers_bench *b, const struct tierce__bench_side *sides,
                 const struct tierce__bench_side *peer)
{
    double ours = (double)b->object_bytes * CHUNKS,
           bare = (double)b->sockets.bytes * (double)b->sockets.count;
    char name[64];
    static const struct {
        const char *text;
        double goal;
    } variants[] = {[ONE_ADDRESS] = {"", 0.95},
                    [ONE_TLS] = {"; TLS", 0.3}, /* bare sockets do not encrypt */
                    [TWO_ADDRESSES] = {"; two addresses", 0.9}};
    snprintf(name, sizeof(name), "GET %llu KiB from a peer's memory%s",
             (unsigned long long)(b->object_bytes >> 10), variants[b->variant].text);
    struct tierce__bench_row row = {.case_name = name,
                                    .unit = "GB/s",
                                    .value = ours / sides[0].median_ns,
                                    .limit = bare / sides[1].median_ns,
                                    .goal = variants[b->variant].goal,
                                    .value_min = ours / sides[0].max_ns,
                                    .value_max = ours / sides[0].min_ns,
                                    .limit_min = bare / sides[1].max_ns,
                                    .limit_max = bare / sides[1].min_ns};
    if (peer != NULL) {
        row.peer = ((const struct tierce__bench_engine *)peer->arg)->name;
        row.peer_value = bare / peer->median_ns;
    }
    tierce__bench_emit(b->bench, &row);
}

/* A row for each engine of others that there is, and one without any if there is none. They have
 * one address. */
static int measure(struct peers_bench *b)
{
    struct tierce__bench_engine engines[TIERCE__BENCH_ENGINES];
    struct tierce__bench_side sides[2 + TIERCE__BENCH_ENGINES] = {
        {.run = get_all, .arg = b}, {.run = tierce__bench_sockets_copy, .arg = &b->sockets}};
    size_t started = 0, count = 2;
    int rc = 0;
    while (rc == 0 && b->variant == ONE_ADDRESS && started < TIERCE__BENCH_ENGINES) {
        struct tierce__bench_engine *engine = &engines[started];
        rc = tierce__bench_engine_start(engine, b->bench, started++, CHUNKS, b->sockets.bytes);
        if (rc == 0)
            sides[count++] =
                (struct tierce__bench_side){.run = tierce__bench_engine_read, .arg = engine};
        else if (rc == -ENOTSUP)
            rc = 0;
    }
    if (rc == 0)
        rc = tierce__bench_alternate(sides, count, b->bench->seconds);
    for (size_t i = 2; rc == 0 && (i == 2 || i < count); i++)
        emit(b, sides, i < count ? &sides[i] : NULL);
    for (size_t i = 0; i < started; i++)
        tierce__bench_engine_end(&engines[i]);
    return rc;
}

static int run(const struct tierce__bench *bench, enum variant variant)
{
    struct peers_bench b = {.bench = bench, .variant = variant};
    int rc = open_all(&b);
    if (rc == 0)
        rc = check(&b);
    if (rc == 0)
        rc = measure(&b);
    close_all(&b);
    return rc;
}

int tierce__bench_peers(const struct tierce__bench *bench)
{
    int rc = run(bench, ONE_ADDRESS);
    if (rc == 0)
        rc = run(bench, ONE_TLS);
    if (rc == 0)
        rc = run(bench, TWO_ADDRESSES);
    if (rc == 0)
        rc = tierce__bench_peers_load(bench);
    return rc == 0 ? tierce__bench_peers_disk(bench) : rc;
}
