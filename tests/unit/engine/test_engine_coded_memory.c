/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with memory.coded_size: chunks outlast their eviction from memory. */
#define FX_CHUNK_BLOCKS 16u /* long enough to become shorter */
#define FX_KV_DTYPE     "bfloat16"
#include "base/alloc.h"
#include "check_main.h"
#include "engine/observe/chunk_orders.h"
#include "engine/observe/engine_metrics.h"
#include "engine/own_tiers.h"
#include "engine_fixture.h"
#include "store/coded/coded_tier.h"
#include "wait_for.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <tierce/operate.h>

enum { CHUNK = FX_CHUNK_BLOCKS, CHUNKS = 8, BLOCKS = CHUNKS * CHUNK };

static struct fixture fx;
static int32_t ids[FX_BLOCKS];
static const char *const sets[] = {"memory.coded_size", "4MiB", NULL};

/* Not in order, and each once. */
static void name_blocks(void)
{
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = (i * 45 + 7) % (int32_t)FX_BLOCKS;
}

static struct tierce__tier_stats tier_stats(size_t level)
{
    struct tierce__tier_stats stats;
    fx.engine->levels[level].tier->ops->stats(fx.engine->levels[level].tier, &stats);
    return stats;
}

static struct tierce__coded_stats codec_stats(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    return stats;
}

static struct tierce_chain *store_chain(void)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0); /* waits for the copies */
    return chain;
}

static bool memory_is_empty(void)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    (void)memory->ops->evict(memory, UINT64_MAX);
    return tier_stats(0).chunks == 0;
}

static void empty_memory(void)
{
    WAIT_FOR(memory_is_empty()); /* a chunk is held a little longer than the put of its copy */
}

static void expect_loaded(const struct tierce_chain *chain, uint8_t origin)
{
    uint8_t origins[FX_BLOCKS];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++) {
        ck_assert_uint_eq(origins[b], origin);
        ck_assert(fx_right(&fx, chain, b, ids[b]));
    }
}

START_TEST(chunks_outlast_their_eviction)
{
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = store_chain();
    ck_assert_str_eq(fx.engine->levels[1].tier->ops->name, "coded_memory");
    ck_assert_uint_eq(codec_stats().encoded_chunks, CHUNKS);
    ck_assert_uint_lt(codec_stats().encoded_bytes, codec_stats().encoded_raw_bytes);
    empty_memory();
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), BLOCKS);
    expect_loaded(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_uint_gt(codec_stats().decoded_raw_bytes, 0);
    ck_assert_uint_eq(tier_stats(0).chunks, CHUNKS); /* they are in memory again */
    size_t bytes;
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_codec_encoded_chunks_total{tier=\"coded_memory\"} 8"));
    tierce__free(page);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Threads of this process that may use a single processor. */
static unsigned bound_threads(void)
{
    unsigned bound = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (const struct dirent *it = readdir(tasks); it != NULL; it = readdir(tasks)) {
        cpu_set_t on;
        pid_t thread = (pid_t)strtol(it->d_name, NULL, 10);
        if (thread > 0 && sched_getaffinity(thread, sizeof(on), &on) == 0)
            bound += CPU_COUNT(&on) == 1;
    }
    closedir(tasks);
    return bound;
}

/* An inference engine binds the thread that stores and loads. Those that encode and decode start
 * then, and use the processors of the thread that has opened the engine. */
START_TEST(codec_threads_are_not_bound_with_their_starter)
{
    cpu_set_t all, one;
    size_t first = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) == 1)
        return;
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    fx_open(&fx, false, sets);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    struct tierce_chain *chain = store_chain();
    empty_memory();
    expect_loaded(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_uint_gt(codec_stats().decoded_raw_bytes, 0);
    ck_assert_uint_eq(bound_threads(), 1); /* this one */
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A clear of memory leaves nothing that a later load could find. */
START_TEST(a_clear_of_memory_is_one_of_both)
{
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = store_chain();
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 2 * CHUNKS);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), 0);
    ck_assert_uint_eq(tier_stats(0).chunks + tier_stats(1).chunks, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The waterfall: memory, coded memory, disk. The directory's numbers of memory and disk stay. */
START_TEST(a_disk_comes_after_it)
{
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = store_chain();
    ck_assert_str_eq(fx.engine->levels[2].tier->ops->name, "disk");
    ck_assert_uint_eq(tier_stats(1).chunks, CHUNKS);
    ck_assert_uint_eq(tier_stats(2).chunks, CHUNKS);
    empty_memory();
    expect_loaded(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 2 * CHUNKS);
    expect_loaded(chain, TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(tier_stats(1).chunks, CHUNKS); /* copied again */
    empty_memory();
    expect_loaded(chain, TIERCE_ORIGIN_MEMORY);
    static const size_t numbers[] = {0, 2, 1};
    for (size_t level = 0; level < 3; level++) {
        ck_assert_uint_eq(tierce__level_number(fx.engine, level), numbers[level]);
        ck_assert_uint_eq(tierce__level_number(fx.engine, numbers[level]), level);
    }
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

struct told {
    _Atomic uint64_t admitted[2]; /* in memory, in coded memory */
};

static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    struct told *told = arg;
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->events[i].kind == TIERCE_EVENT_ADMIT)
            atomic_fetch_add(&told->admitted[strcmp(batch->events[i].tier, "coded_memory") == 0],
                             1);
    }
}

/* Changes of the copies are published, unless there is a disk, which has the same chunks. */
START_TEST(events_name_the_tier)
{
    struct tierce_subscription *subscription;
    struct told told = {0}, contents = {0};
    bool has_disk = _i == 1;
    uint64_t covered, copies = has_disk ? 0 : CHUNKS;
    fx_open(&fx, has_disk, sets);
    ck_assert_int_eq(tierce_events_subscribe(
                         &subscription, fx.engine,
                         &(struct tierce_events_opts){.size = sizeof(struct tierce_events_opts),
                                                      .fn = on_events,
                                                      .arg = &told,
                                                      .interval_ms = 1}),
                     0);
    struct tierce_chain *chain = store_chain();
    WAIT_FOR(atomic_load(&told.admitted[0]) >= CHUNKS && atomic_load(&told.admitted[1]) >= copies);
    ck_assert_uint_eq(atomic_load(&told.admitted[1]), copies);
    ck_assert_int_eq(tierce_events_snapshot(subscription, &covered, on_events, &contents), 0);
    ck_assert_uint_eq(atomic_load(&contents.admitted[1]), copies);
    tierce_events_unsubscribe(subscription);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* As many for each byte, so that the number that fits memory also fits the copies. */
START_TEST(memory_chunks_is_also_that_of_the_copies)
{
    fx_open(&fx, false,
            (const char *const[]){"memory.coded_size", "6MiB", "memory.size", "4MiB",
                                  "memory.chunks", "101", NULL});
    ck_assert_uint_eq(tier_stats(0).slots, 101);
    ck_assert_uint_eq(tier_stats(1).slots, 152);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The message names the parameter. */
START_TEST(too_little_memory_is_an_error)
{
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_config *config =
        fx_config("", (const char *const[]){"memory.coded_size", "64KiB", NULL});
    ck_assert_int_lt(tierce_engine_open(&engine, config, why), 0);
    ck_assert_str_eq(why, "memory.coded_size is 64KiB; set it to 0, or to 1MiB or more");
    tierce_config_destroy(config);
}
END_TEST

CHECK_MAIN("engine_coded_memory", .seconds = 60, .at_once = true, .setup = name_blocks,
           .tests = {chunks_outlast_their_eviction, memory_chunks_is_also_that_of_the_copies,
                     codec_threads_are_not_bound_with_their_starter,
                     a_clear_of_memory_is_one_of_both, a_disk_comes_after_it,
                     too_little_memory_is_an_error},
           .loops = {{events_name_the_tier, 0, 2}})
