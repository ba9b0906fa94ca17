/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FETCH_FIXTURE_H
#define TIERCE_TESTS_FETCH_FIXTURE_H

/* An engine with chunks of several segments on a disk whose reads fail as a test wants, and readers
 * of them. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/load/load_lease.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>

#define SEGMENTS  4u
#define CELL      (128u << 10) /* of FX_CHUNK_BLOCKS a layer: one layer is one segment */
#define THREADS   6u
#define LONG_MS   20000u
#define WANTED_BY 40u /* blocks of the prompt that many load: 6 times, below FX_BLOCKS */

static struct fixture fx;
static struct tierce_view *wide; /* with cells so large that a chunk has several segments */
static struct tierce__tier *disk;

static const char *const sets[] = {
    "memory.size",    "64MiB",   "disk.size",      "256MiB", "disk.queue", "64MiB",
    "breaker.errors", "1000000", "breaker.window", "0",      NULL};

static inline void open_wide(uint32_t cell)
{
    const uint32_t cells[SEGMENTS] = {cell, cell, cell, cell};
    struct tierce_namespace ns = fx_namespace();
    ns.cell_bytes = cells;
    ns.layout = "test/wide";
    ck_assert_int_eq(tierce_view_open(&wide, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    ck_assert_uint_eq(wide->full.segment_count, SEGMENTS);
}

static inline void wrap_disk(void)
{
    ck_assert_uint_eq(fx.engine->level_count, 2);
    disk = fx_wrap(&fx, 1);
}

static inline void setup_with(const char *const *settings)
{
    silence_log();
    fx_open(&fx, true, settings);
    open_wide(CELL);
    wrap_disk();
}

static inline void setup(void)
{
    setup_with(sets);
}

static inline void close_all(void)
{
    tierce_view_close(wide);
    fx_close(&fx);
}

static inline void teardown(void)
{
    close_all();
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline void restart(void)
{
    close_all();
    setup();
}

static inline void fault(enum tierce__fault_kind kind, uint32_t skip, uint32_t times)
{
    tierce__fault_set(
        disk, TIERCE__STORE_GET,
        &(struct tierce__fault_rule){
            .kind = kind, .status = -EIO, .delay_ms = 100, .skip = skip, .times = times});
}

static inline struct tierce__key key_of(uint32_t n)
{
    struct tierce__key key = wide->key;
    memcpy(key.hash, &n, sizeof(n));
    key.hash[31] = 1;
    return key;
}

static inline struct tierce__storage_chunk record_of(uint32_t n)
{
    return (struct tierce__storage_chunk){.key = key_of(n),
                                          .object_bytes = wide->full.extent.object_bytes,
                                          .block_count = FX_CHUNK_BLOCKS};
}

/* A fetch does not look into the bytes, so that any will do. */
static inline uint8_t byte_of(uint32_t n, uint32_t segment)
{
    return (uint8_t)(n * 7 + segment * 31 + 1);
}

static inline uint64_t start_of(uint32_t segment)
{
    return segment > 0 ? wide->full.segment_end[segment - 1] : 0;
}

/* Puts the bytes of chunk n on disk under a record, and not in memory. */
static inline void put_as(struct tierce__storage_chunk record, uint32_t n)
{
    struct tierce__buf *buf = tierce__storage_reserve(fx.engine, &record, NULL);
    ck_assert_ptr_nonnull(buf);
    for (uint32_t s = 0; s < SEGMENTS; s++)
        memset(buf->data + start_of(s), byte_of(n, s), wide->full.segment_end[s] - start_of(s));
    tierce__storage_write_one(fx.engine, UINT32_MAX, &record, buf, false);
    tierce__buf_release(buf);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

static inline void put(uint32_t n)
{
    put_as(record_of(n), n);
}

static inline bool segment_right(const struct tierce__fetch_waiter *waiter, uint32_t n,
                                 uint32_t segment)
{
    uint8_t want = byte_of(n, segment);
    for (uint64_t at = start_of(segment); at < wide->full.segment_end[segment]; at++) {
        if (waiter->buf->data[at] != want)
            return false;
    }
    return true;
}

static inline uint64_t gets(void)
{
    struct tierce__tier_stats stats;
    disk->ops->stats(disk, &stats);
    return stats.get_chunks;
}

static inline bool add_waiter(struct tierce__fetch_waiter *waiter, uint32_t n, uint32_t timeout_ms)
{
    struct tierce__storage_chunk record = record_of(n);
    struct tierce__buf *leased;
    *waiter = (struct tierce__fetch_waiter){.deadline_ns = tierce__deadline_in_ms(timeout_ms)};
    bool seated = tierce__fetch_join(fx.engine, waiter, 1, &record, &wide->full, &leased);
    tierce__buf_release(leased);
    return seated;
}

static inline void promote(struct tierce__fetch_waiter *waiter, uint32_t n)
{
    struct tierce__storage_chunk record = record_of(n);
    tierce__fetch_promote(waiter, &record);
}

static inline bool in_memory(uint32_t n)
{
    struct tierce__key key = key_of(n);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &key);
    tierce__buf_release(buf);
    return buf != NULL;
}

static inline bool on_disk(uint32_t n)
{
    struct tierce__key key = key_of(n);
    uint8_t place = 0;
    return tierce__storage_find(fx.engine, &key, 1, 2, &place) == 1 && place == 1;
}

static inline void await_no_memory_used(void)
{
    WAIT_WITHIN(LONG_MS, fx_stats(&fx).memory_bytes_now == 0);
}

static inline void await_late(int64_t count)
{
    WAIT_WITHIN(LONG_MS, fx_stats(&fx).deadline_failures >= count);
}

/* ---- a prompt that many load ---- */

static struct tierce_chain *prompt;

/* Each thread has blocks of its own to load the same prompt to. */
static inline void *load_prompt(void *arg)
{
    int32_t ids[WANTED_BY];
    uint8_t origins[WANTED_BY];
    for (int32_t b = 0; b < (int32_t)WANTED_BY; b++)
        ids[b] = b + *(int32_t *)arg * (int32_t)WANTED_BY;
    struct tierce_transfer_opts what = fx_what(&fx, prompt, 0, WANTED_BY, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; b < WANTED_BY; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, prompt, b, ids[b]));
    *(int32_t *)arg = (int32_t)loaded;
    return NULL;
}

/* Stores a prompt, lets only the disk remember it, and has many load it at once. */
static inline void load_by_many(enum tierce__fault_kind kind, uint64_t bit, int32_t loaded[THREADS])
{
    pthread_t threads[THREADS];
    prompt = fx_chain(&fx, 1, WANTED_BY, 0);
    ck_assert_int_eq(fx_store(&fx, prompt, WANTED_BY, fx_ids, false), WANTED_BY);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart();
    fx_wipe(&fx);
    struct tierce__fault_rule rule = {.kind = kind, .delay_ms = 100, .bit = bit};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    for (int32_t i = 0; i < (int32_t)THREADS; i++) {
        loaded[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_prompt, &loaded[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tierce_chain_destroy(prompt);
}

#endif
