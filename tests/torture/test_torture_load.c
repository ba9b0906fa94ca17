/* SPDX-License-Identifier: Apache-2.0 */
#define FX_CHUNK_BLOCKS 6u /* long enough to become shorter */
#define FX_KV_DTYPE     "bfloat16"
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "store/coded/coded_tier.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>

/*
 * Every allocation of two loads of one prompt fails once, one after the other. Whatever fails: no
 * crash, no leak, no hang, never a wrong byte, and the next load has everything. The same for a
 * lookup and a load of a prompt that diverges from the stored one inside a chunk, and for a
 * prefetch. These three run with raw chunks on the disk and with coded ones (_i).
 *
 * The disk's codec keeps heads of coded chunks, so allocations are counted after a complete load.
 */

#define BLOCKS 42u
#define CHUNKS (BLOCKS / FX_CHUNK_BLOCKS)
#define SHARED 38u /* with the prompt that parts */
#define LONG   396u

static struct fixture fx;
static struct tierce_chain *chain;

static const char *const codecs[] = {"none", "lossless"};
enum { CODECS = 2 };

/* An engine whose disk has a prompt. */
static void begin(int codec)
{
    const char *const sets[] = {"disk.codec", codecs[codec], NULL};
    silence_log();
    fx_open(&fx, true, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    ck_assert_uint_eq(stats.encoded_chunks, codec == 0 ? 0 : CHUNKS);
    fx_wipe(&fx);
}

static void teardown(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Only the disk remembers. */
static void empty_memory(void)
{
    while (fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, 1) > 0)
        ;
    WAIT_FOR(fx_stats(&fx).memory_bytes_now == 0);
}

/* Whoever has given its bytes back may still have to free what it kept them in. */
static void check_live(uint64_t live)
{
    WAIT_FOR(tierce__alloc_live() == live);
}

static void *load(void *arg)
{
    int32_t ids[BLOCKS];
    uint8_t origins[BLOCKS];
    const int32_t *first = arg;
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        ids[b] = *first + b;
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    ck_assert(loaded >= 0 || loaded == -ENOMEM);
    for (size_t b = 0; loaded >= 0 && b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, ids[b]));
    return NULL;
}

static void load_twice_at_once(void)
{
    static int32_t firsts[2] = {0, 100};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, load, &firsts[0]), 0);
    load(&firsts[1]);
    pthread_join(thread, NULL);
}

static void load_all(void)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), BLOCKS);
    empty_memory();
}

START_TEST(each_allocation_of_a_load_fails_once)
{
    begin(_i);
    empty_memory();
    load_all();
    uint64_t live = tierce__alloc_live(), count = 0;
    for (uint64_t nth = 1; nth <= count + 5;
         nth++) { /* thread timing decides which thread begins which operation */
        tierce__alloc_fail_nth(nth);
        load_twice_at_once();
        count = tierce__alloc_fail_nth(0);
        empty_memory();
        load_all();
        check_live(live);
    }
    ck_assert_uint_gt(count, 10);
}
END_TEST

static void prefetch(void)
{
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    struct tierce_prefetch_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_PREFETCH_PIN, .session = 7};
    int rc = tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts);
    ck_assert(rc == 0 || rc == -ENOMEM);
    if (rc < 0)
        return;
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 60000), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_le(result.memory_blocks, BLOCKS);
    tierce_prefetch_end(prefetch);
}

START_TEST(each_allocation_of_a_prefetch_fails_once)
{
    begin(_i);
    empty_memory();
    load_all();
    uint64_t live = tierce__alloc_live(), count = 0;
    for (uint64_t nth = 1; nth <= count + 5; nth++) {
        tierce__alloc_fail_nth(nth);
        prefetch();
        count = tierce__alloc_fail_nth(0);
        tierce_unpin(fx.view, 7);
        empty_memory();
        WAIT_FOR(fx_stats(&fx).prefetch_bytes_now == 0);
        load_all();
        check_live(live);
    }
    ck_assert_uint_gt(count, 10);
}
END_TEST

/* A lookup with pins and a load of the diverging prompt; true: all shared blocks were loaded. */
static bool look_up_and_load(struct tierce_chain *parting)
{
    uint8_t origins[BLOCKS];
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 5};
    int rc = tierce_lookup(fx.view, parting, BLOCKS, &opts, &found);
    ck_assert(rc == 0 || rc == -ENOMEM);
    ck_assert_uint_le(found.blocks, SHARED);
    struct tierce_transfer_opts what = fx_what(&fx, parting, 0, BLOCKS, fx_ids);
    what.session = 5;
    fx_wipe(&fx);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    ck_assert(loaded >= 0 || loaded == -ENOMEM);
    for (size_t b = 0; loaded >= 0 && b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED ||
                  (b < SHARED && fx_right(&fx, parting, b, fx_ids[b])));
    tierce_unpin(fx.view, 5);
    return found.blocks == SHARED && loaded == SHARED;
}

START_TEST(each_allocation_of_a_hit_inside_a_chunk_fails_once)
{
    begin(_i);
    struct tierce_chain *whole = fx_chain(&fx, 7, BLOCKS, SHARED);
    struct tierce_chain *parting = fx_chain(&fx, 1007, BLOCKS, SHARED);
    ck_assert_int_eq(fx_store(&fx, whole, BLOCKS, fx_ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    empty_memory();
    ck_assert(look_up_and_load(parting));
    empty_memory();
    uint64_t live = tierce__alloc_live(), count = 0;
    for (uint64_t nth = 1; nth <= count + 5; nth++) {
        /* From the disk, and again from the promoted chunks. */
        for (int round = 0; round < 2; round++) {
            tierce__alloc_fail_nth(nth);
            look_up_and_load(parting);
            uint64_t made = tierce__alloc_fail_nth(0);
            count = made > count ? made : count;
        }
        empty_memory();
        ck_assert(look_up_and_load(parting));
        empty_memory();
        check_live(live);
    }
    ck_assert_uint_gt(count, 10);
    tierce_chain_destroy(whole);
    tierce_chain_destroy(parting);
}
END_TEST

/* One whose keys need memory of their own. */
START_TEST(each_allocation_for_a_long_prompt_fails_once)
{
    begin(0);
    static int32_t ids[LONG];
    static uint8_t origins[LONG];
    for (int32_t b = 0; b < (int32_t)LONG; b++)
        ids[b] = b;
    struct tierce_chain *whole = fx_chain(&fx, 9, LONG, 0);
    ck_assert_int_eq(fx_store(&fx, whole, LONG, ids, false), LONG);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    uint64_t live = tierce__alloc_live(), nth = 1;
    struct tierce_transfer_opts what = fx_what(&fx, whole, 0, LONG, ids);
    for (bool failed = true; failed; nth++) {
        struct tierce_found found;
        fx_wipe(&fx);
        tierce__alloc_fail_nth(nth);
        int rc = tierce_lookup(
            fx.view, whole, LONG,
            &(struct tierce_lookup_opts){.size = sizeof(struct tierce_lookup_opts)}, &found);
        int64_t loaded = tierce_load(fx.view, &what, origins);
        int64_t stored = tierce_store(fx.view, &what);
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert(stored == 0 || stored == -ENOMEM);
        ck_assert(loaded >= 0 || loaded == -ENOMEM);
        for (size_t b = 0; loaded >= 0 && b < LONG; b++)
            ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, whole, b, ids[b]));
        check_live(live);
    }
    ck_assert_uint_gt(nth, 10);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), LONG);
    tierce_chain_destroy(whole);
}
END_TEST

CHECK_MAIN("torture_load", .seconds = 300, .at_once = true, .teardown = teardown,
           .tests = {each_allocation_for_a_long_prompt_fails_once},
           .loops = {{each_allocation_of_a_load_fails_once, 0, CODECS},
                     {each_allocation_of_a_hit_inside_a_chunk_fails_once, 0, CODECS},
                     {each_allocation_of_a_prefetch_fails_once, 0, CODECS}})
