/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_DISK_HARNESS_H
#define TIERCE_TESTS_DISK_HARNESS_H

#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "vfs_fault.h"
#include "core/chunk/pool.h"
#include "core/key/namespaces.h"
#include "core/policy/policy.h"
#include "store/disk/disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * A disk tier with all that it stands on, and blocking calls on it. A chunk is named by a number;
 * its key, its length and each of its bytes follow from the number (and a generation), so that a
 * test knows what it must read without remembering it.
 */

#define HARNESS_PAGE 4096u

struct store {
    char folder[160];
    struct tierce__pool *pool;
    struct tierce__namespaces *namespaces;
    struct tierce__tier *tier;
    uint32_t ns;
    uint64_t chunk_bytes; /* of most chunks; every fifth has a page more, every seventh two less */
    uint32_t timeout_ms;  /* of requests; 0: none */
};

static inline struct tierce__key store_key(const struct store *s, uint64_t n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = s->ns};
    uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ULL;
    memcpy(key.hash, &x, 8);
    x = x * 0xd6e8feb86659fd93ULL + n;
    memcpy(key.hash + 8, &x, 8);
    memcpy(key.hash + 16, &n, 8);
    return key;
}

static inline uint64_t store_bytes(const struct store *s, uint64_t n)
{
    uint64_t bytes = s->chunk_bytes;
    if (n % 5 == 4)
        bytes += HARNESS_PAGE;
    if (n % 7 == 6 && bytes > 2 * HARNESS_PAGE)
        bytes -= 2 * HARNESS_PAGE;
    return bytes;
}

static inline __attribute__((no_sanitize("address", "thread", "undefined"))) uint64_t
store_word(uint64_t n, uint64_t at)
{
    if (at == 0)
        return 0x4b43454352454954; /* "TIERCECK", as each object of a store begins */
    uint64_t x = (n << 32 | at) * 0x9e3779b97f4a7c15ULL + 1;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return x ^ (x >> 32);
}

/* The bytes that chunk n has from `at` on, at most a page of them; `at` and `bytes` are multiples
 * of 8. A sanitizer would check each word. It checks the page as a whole where the page is compared
 * or copied. */
static inline __attribute__((no_sanitize("address", "thread", "undefined"))) size_t
store_page(uint64_t *page, uint64_t n, uint64_t at, uint64_t bytes)
{
    size_t words = (size_t)(bytes < HARNESS_PAGE ? bytes : HARNESS_PAGE) / sizeof(*page);
    for (size_t i = 0; i < words; i++)
        page[i] = store_word(n, at + i * sizeof(*page));
    return words * sizeof(*page);
}

static inline void store_fill(uint8_t *data, uint64_t n, uint64_t bytes)
{
    uint64_t page[HARNESS_PAGE / sizeof(uint64_t)];
    for (uint64_t at = 0, step; at < bytes; at += step) {
        step = store_page(page, n, at, bytes - at);
        ck_assert_uint_gt(step, 0);
        memcpy(data + at, page, step);
    }
}

static inline bool store_is_right(const uint8_t *data, uint64_t n, uint64_t from, uint64_t bytes)
{
    uint64_t page[HARNESS_PAGE / sizeof(uint64_t)];
    for (uint64_t at = 0, step; at < bytes; at += step) {
        step = store_page(page, n, from + at, bytes - at);
        ck_assert_uint_gt(step, 0);
        if (memcmp(data + at, page, step) != 0)
            return false;
    }
    return true;
}

/* ---- blocking requests ---- */

struct store_wait {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int dones;
};

static inline void store_done(struct tierce__store_req *req)
{
    struct store_wait *w = req->arg;
    pthread_mutex_lock(&w->mutex);
    w->dones++;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

static inline int store_run(struct store *s, struct tierce__store_req *req)
{
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    req->done = store_done;
    req->arg = &w;
    req->deadline_ns =
        s->timeout_ms != 0 ? tierce__deadline_in_ms(s->timeout_ms) : TIERCE__DEADLINE_NEVER;
    s->tier->ops->submit(s->tier, req);
    pthread_mutex_lock(&w.mutex);
    while (w.dones == 0)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    return req->status;
}

static inline int store_put(struct store *s, uint64_t n)
{
    struct tierce__key key = store_key(s, n), parent = store_key(s, n - 1);
    struct tierce__buf *buf;
    uint64_t bytes = store_bytes(s, n);
    int rc = tierce__pool_alloc(s->pool, &buf, bytes);
    if (rc < 0)
        return rc;
    store_fill(buf->data, n, bytes);
    uint8_t first[TIERCE_HASH_BYTES];
    memset(first, (int)n, sizeof(first));
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .parent = n > 0 ? &parent : NULL,
                                    .first_block = first,
                                    .object_bytes = bytes,
                                    .token_start = n * 256,
                                    .block_count = 8};
    rc = store_run(s, &req);
    tierce__buf_release(buf);
    return rc;
}

/* 0 and right bytes, or a status; TIERCE_E_CHECKSUM for wrong bytes. */
static inline int store_get(struct store *s, uint64_t n, uint64_t from, uint64_t bytes)
{
    struct tierce__key key = store_key(s, n);
    struct tierce__buf *buf;
    uint64_t whole = store_bytes(s, n);
    if (bytes == 0)
        bytes = whole - from;
    int rc = tierce__pool_alloc(s->pool, &buf, whole);
    if (rc < 0)
        return rc;
    memset(buf->data, 0xee, whole);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .offset = from,
                                    .length = bytes};
    rc = store_run(s, &req);
    if (rc == 0 && !store_is_right(buf->data + from, n, from, bytes))
        rc = TIERCE_E_CHECKSUM;
    tierce__buf_release(buf);
    return rc;
}

static inline int store_simple(struct store *s, enum tierce__store_op op, uint64_t n)
{
    struct tierce__key key = store_key(s, n);
    struct tierce__store_req req = {.op = op, .keys = &key, .key_count = 1};
    return store_run(s, &req);
}

static inline int store_flush(struct store *s)
{
    return store_simple(s, TIERCE__STORE_FLUSH, 0);
}

/* A flush of removals alone. */
static inline int store_settle(struct store *s)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_FLUSH, .removals = true};
    return store_run(s, &req);
}

static inline int store_delete(struct store *s, uint64_t n)
{
    return store_simple(s, TIERCE__STORE_DELETE, n);
}

/* Of every namespace. */
static inline int store_clear(struct store *s)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_CLEAR};
    return store_run(s, &req);
}

static inline bool store_has(struct store *s, uint64_t n)
{
    struct tierce__key key = store_key(s, n);
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP, .keys = &key, .key_count = 1};
    return store_run(s, &req) == 0 && req.found == 1;
}

static inline struct tierce__tier_stats store_stats(struct store *s)
{
    struct tierce__tier_stats stats;
    s->tier->ops->stats(s->tier, &stats);
    return stats;
}

/* ---- life ---- */

static inline struct tierce__disk_opts store_opts(struct store *s, uint64_t cap)
{
    return (struct tierce__disk_opts){.size = sizeof(struct tierce__disk_opts),
                                      .path = s->folder,
                                      .cap_bytes = cap,
                                      .policy = tierce__policy_find("lru"),
                                      .namespaces = s->namespaces,
                                      .pool = s->pool,
                                      .seed = 1};
}

/* A pool, a table with one namespace, a fresh folder under the current one. */
static inline int store_parts(struct store *s, uint64_t pool_bytes)
{
    int rc = tierce__pool_create(
        &s->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = pool_bytes,
                                              .no_touch = true});
    if (rc == 0)
        rc = tierce__namespaces_create(&s->namespaces);
    if (rc == 0) {
        uint8_t digest[TIERCE_HASH_BYTES];
        tierce_namespace_digest(digest, "name=test\n");
        int64_t id = tierce__namespaces_intern(s->namespaces, digest, "name=test\n");
        rc = id < 0 ? (int)id : 0;
        s->ns = (uint32_t)id;
    }
    return rc;
}

static inline void store_parts_end(struct store *s)
{
    tierce__namespaces_destroy(s->namespaces);
    tierce__pool_destroy(s->pool);
    s->namespaces = NULL;
    s->pool = NULL;
}

static inline void store_folder(struct store *s)
{
    snprintf(s->folder, sizeof(s->folder), "test_disk.XXXXXX");
    temp_folder_make(s->folder);
}

static inline void store_remove(struct store *s)
{
    temp_folder_remove(s->folder);
}

static inline int store_open(struct store *s, const struct tierce__disk_opts *opts)
{
    return tierce__disk_open(&s->tier, opts);
}

static inline void store_close(struct store *s)
{
    if (s->tier != NULL)
        s->tier->ops->close(s->tier, tierce__deadline_in_ms(10000));
    s->tier = NULL;
}

static inline uint64_t store_file_bytes(const struct store *s, const char *name)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", s->folder, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Bytes that the stats count beside the journal and its mark: chunks and texts. */
static inline uint64_t store_data_bytes(struct store *s)
{
    return store_stats(s).used_bytes - store_file_bytes(s, "journal") - HARNESS_PAGE;
}

#endif
