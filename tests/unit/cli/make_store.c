/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "core/chunk/header.h"
#include "core/chunk/pool.h"
#include "core/codec/codec_plugin.h"
#include "store/coded/coded_keys.h"
#include "store/coded/coded_tier.h"
#include "store/disk/disk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/*
 * make_store FOLDER CHUNKS SHARDS CAP_MIB [live|coded|encrypted KEY_FILE]
 *
 * Fills a store folder through the real disk tier with whole, sealed chunks of two namespaces, so
 * that the command line has something to look at. With "live" it goes on storing, and so evicting,
 * until SIGTERM; it prints "ready" once the first chunks are durable. With "coded" it stores coded
 * chunks of bfloat16, with "encrypted" it encrypts them with the newest key of the file.
 */

#define LAYERS       3u
#define BLOCKS       4u
#define BLOCK_TOKENS 32u

static const uint32_t cells[LAYERS] = {4096, 4096, 5000};
static volatile sig_atomic_t stop;

struct maker {
    struct tierce__pool *pool;
    struct tierce__namespaces *namespaces;
    struct tierce__tier *tier;
    struct tierce__coded_keys *keys; /* or NULL */
    const char *quantization;
    uint8_t digests[2][TIERCE_HASH_BYTES];
    uint32_t ids[2];
};

struct wait {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool done;
};

static void on_term(int signal_number)
{
    (void)signal_number;
    stop = 1;
}

static void finish(struct tierce__store_req *req)
{
    struct wait *wait = req->arg;
    pthread_mutex_lock(&wait->mutex);
    wait->done = true;
    pthread_cond_signal(&wait->cond);
    pthread_mutex_unlock(&wait->mutex);
}

static int run(struct maker *m, struct tierce__store_req *req)
{
    struct wait wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    req->done = finish;
    req->arg = &wait;
    req->deadline_ns = TIERCE__DEADLINE_NEVER;
    m->tier->ops->submit(m->tier, req);
    pthread_mutex_lock(&wait.mutex);
    while (!wait.done)
        pthread_cond_wait(&wait.cond, &wait.mutex);
    pthread_mutex_unlock(&wait.mutex);
    return req->status;
}

static int add_namespace(struct maker *m, int which, const char *dtype)
{
    char *text = NULL;
    const struct tierce_namespace ns = {
        .size = sizeof(ns),
        .weights = which == 0 ? "aabb" : "ccdd",
        .model = which == 0 ? "{\"config\":{\"architectures\":[\"SmallForTests\"]}}" : "{}",
        .kv_dtype = dtype,
        .quantization = m->quantization,
        .layout = "test",
        .layer_count = LAYERS,
        .cell_bytes = cells,
        .block_tokens = BLOCK_TOKENS,
        .chunk_blocks = BLOCKS,
        .algo = TIERCE_CHAIN_SHA256,
    };
    int rc = tierce_namespace_text(&text, &ns);
    if (rc != 0)
        return rc;
    tierce_namespace_digest(m->digests[which], text);
    int64_t id = tierce__namespaces_intern(m->namespaces, m->digests[which], text);
    tierce_free(text);
    m->ids[which] = (uint32_t)id;
    return id < 0 ? (int)id : 0;
}

static void fill_hash(uint8_t hash[TIERCE_HASH_BYTES], uint64_t chunk, uint64_t block)
{
    uint64_t words[2] = {chunk, block};
    XXH128_hash_t a = XXH3_128bits_withSeed(words, sizeof(words), 1);
    XXH128_hash_t b = XXH3_128bits_withSeed(words, sizeof(words), 2);
    memcpy(hash, &a, 16);
    memcpy(hash + 16, &b, 16);
}

/* Writes chunk `n` of a chain into a buffer. */
static void fill(struct tierce__buf *buf, const struct tierce__chunk_info *info,
                 const uint8_t *block_hashes, uint64_t n)
{
    const struct tierce__geometry *g = &info->geometry;
    tierce__chunk_begin(buf->data, info, block_hashes);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint8_t *cell = buf->data + tierce__chunk_layer_offset(g, layer);
        uint64_t *sums = tierce__chunk_sums(buf->data, g, layer);
        for (uint32_t block = 0; block < BLOCKS; block++, cell += cells[layer]) {
            memset(cell, (int)(n * 31 + layer * 7 + block), cells[layer]);
            sums[block] = XXH3_64bits(cell, cells[layer]);
        }
    }
    tierce__chunk_seal(buf->data, info->extent.header_bytes);
}

static int put(struct maker *m, uint64_t n, uint16_t shards)
{
    int which = n % 5 == 4;
    uint8_t block_hashes[BLOCKS * TIERCE_HASH_BYTES];
    struct tierce__chunk_info info = {
        .shard = {(uint16_t)(n % shards), shards, 0, 1},
        .algo = TIERCE_CHAIN_SHA256,
        .token_start = n * BLOCKS * BLOCK_TOKENS,
        .created_s = tierce__wall_s(),
        .geometry = {LAYERS, cells, BLOCK_TOKENS, BLOCKS},
    };
    struct tierce__buf *buf = NULL;
    for (uint64_t b = 0; b < BLOCKS; b++)
        fill_hash(block_hashes + b * TIERCE_HASH_BYTES, n, b);
    memcpy(info.ns_digest, m->digests[which], TIERCE_HASH_BYTES);
    memcpy(info.hash, block_hashes + (BLOCKS - 1) * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
    fill_hash(info.parent, n - 1, BLOCKS - 1);
    int rc = tierce__chunk_extent(&info.extent, &info.geometry);
    if (rc == 0)
        rc = tierce__pool_alloc(m->pool, &buf, info.extent.object_bytes);
    if (rc != 0)
        return rc;
    fill(buf, &info, block_hashes, n);
    struct tierce__key key = {.shard = info.shard, .ns = m->ids[which]}, parent = key;
    memcpy(key.hash, info.hash, TIERCE_HASH_BYTES);
    memcpy(parent.hash, info.parent, TIERCE_HASH_BYTES);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .parent = n > 0 ? &parent : NULL,
                                    .first_block = block_hashes,
                                    .object_bytes = info.extent.object_bytes,
                                    .token_start = info.token_start,
                                    .block_count = BLOCKS};
    rc = run(m, &req);
    tierce__buf_release(buf);
    return rc;
}

static int flush(struct maker *m)
{
    struct tierce__key key = {0};
    struct tierce__store_req req = {.op = TIERCE__STORE_FLUSH, .keys = &key, .key_count = 1};
    return run(m, &req);
}

static int make(struct maker *m, char **argv)
{
    uint64_t chunks = strtoull(argv[2], NULL, 10);
    uint16_t shards = (uint16_t)strtoul(argv[3], NULL, 10);
    int rc = 0;
    for (uint64_t n = 0; rc == 0 && n < chunks; n++)
        rc = put(m, n, shards);
    if (rc == 0)
        rc = flush(m);
    if (argv[5] == NULL || strcmp(argv[5], "live") != 0)
        return rc;
    printf("ready\n");
    fflush(stdout);
    for (uint64_t n = chunks; rc == 0 && !stop; n++)
        rc = put(m, n, shards);
    return rc;
}

static struct tierce__buf *alloc_coded(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

/* plugin: the URL of a plug-in, or NULL. */
static int encode_from_now_on(struct maker *m, const char *plugin)
{
    char why[TIERCE__URL_WHY_BYTES];
    const struct tierce__codec *codec = tierce__codec_find("lossless");
    int rc = plugin != NULL ? tierce__codec_open(&codec, plugin, why) : 0;
    if (rc < 0) {
        fprintf(stderr, "make_store: %s\n", why);
        return rc;
    }
    return tierce__coded_tier_open(
        &m->tier, &(struct tierce__coded_opts){.size = sizeof(struct tierce__coded_opts),
                                               .tier = m->tier,
                                               .codec = codec,
                                               .namespaces = m->namespaces,
                                               .keys = m->keys,
                                               .encrypts = m->keys != NULL,
                                               .alloc = alloc_coded,
                                               .alloc_arg = m->pool});
}

static int read_keys(struct maker *m, const char *file)
{
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = file};
    int rc = tierce__coded_keys_open(&m->keys, &opts, why);
    if (rc < 0)
        fprintf(stderr, "make_store: %s\n", why);
    return rc;
}

int main(int argc, char **argv)
{
    struct maker m = {0};
    if (argc < 5) {
        fprintf(stderr,
                "usage: make_store FOLDER CHUNKS SHARDS CAP_MIB [live|coded|lossy|plugin URL|"
                "encrypted KEY_FILE]\n");
        return 2;
    }
    bool encrypts = argc > 6 && strcmp(argv[5], "encrypted") == 0;
    bool is_lossy = argc > 5 && strcmp(argv[5], "lossy") == 0;
    const char *plugin = argc > 6 && strcmp(argv[5], "plugin") == 0 ? argv[6] : NULL;
    bool is_coded =
        encrypts || is_lossy || plugin != NULL || (argc > 5 && strcmp(argv[5], "coded") == 0);
    m.quantization = is_lossy ? "tierce-int8" : "";
    const char *dtype = is_coded ? "bfloat16" : "float32";
    signal(SIGTERM, on_term);
    int rc = tierce__pool_create(
        &m.pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                             .cap_bytes = 16u << 20,
                                             .no_touch = true});
    if (rc == 0)
        rc = tierce__namespaces_create(&m.namespaces);
    if (rc == 0)
        rc = add_namespace(&m, 0, dtype);
    if (rc == 0)
        rc = add_namespace(&m, 1, dtype);
    if (rc == 0)
        rc = tierce__disk_open(
            &m.tier, &(struct tierce__disk_opts){.size = sizeof(struct tierce__disk_opts),
                                                 .path = argv[1],
                                                 .cap_bytes = strtoull(argv[4], NULL, 10) << 20,
                                                 .policy = tierce__policy_find("lru"),
                                                 .namespaces = m.namespaces,
                                                 .pool = m.pool,
                                                 .flush_interval_ms = 20,
                                                 .seed = 1});
    if (rc == 0 && encrypts)
        rc = read_keys(&m, argv[6]);
    if (rc == 0 && is_coded)
        rc = encode_from_now_on(&m, plugin);
    if (rc == 0)
        rc = make(&m, argv);
    if (m.tier != NULL)
        m.tier->ops->close(m.tier, tierce__deadline_in_ms(10000));
    tierce__coded_keys_close(m.keys);
    tierce__namespaces_destroy(m.namespaces);
    tierce__pool_destroy(m.pool);
    if (rc != 0)
        fprintf(stderr, "make_store: %s\n", tierce_strerror(rc));
    return rc == 0 ? 0 : 1;
}
