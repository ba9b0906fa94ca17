/* SPDX-License-Identifier: Apache-2.0 */
/* Stores that wait for memory: their wake-up, and that none waits for ever or holds a part. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "wait_for.h"

#include <pthread.h>

#include <tierce/operate.h>

#define BLOCKS 160u /* of a prompt: 40 chunks, more than half of 1 MiB */

static struct fixture fx;
static int32_t ids[FX_BLOCKS];

static void open_engine(const char *timeout)
{
    fx_open(&fx, false,
            (const char *const[]){"memory.size", "1MiB", "memory.pins", "100%", "timeout.store",
                                  timeout, NULL});
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* One prompt, stored by a thread of its own. */
struct job {
    struct tierce_chain *chain;
    struct tierce_view *view;
    pthread_t thread;
    int64_t stored;
};

static void *run_job(void *arg)
{
    struct job *job = arg;
    struct tierce_transfer_opts what = fx_what(&fx, job->chain, 0, BLOCKS, ids);
    job->stored = tierce_store(job->view, &what);
    return NULL;
}

static void start(struct job *job, uint32_t seed)
{
    *job = (struct job){.chain = fx_chain(&fx, seed, BLOCKS, 0), .view = fx.view};
    ck_assert_int_eq(pthread_create(&job->thread, NULL, run_job, job), 0);
}

static int64_t finish(struct job *job)
{
    pthread_join(job->thread, NULL);
    tierce_chain_destroy(job->chain);
    return job->stored;
}

static void await_waiting(int64_t count)
{
    WAIT_WITHIN(20000, fx_stats(&fx).stores_waited == count);
}

static struct tierce_store *begin(const struct tierce_chain *chain)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    ck_assert_ptr_nonnull(store);
    return store;
}

static int64_t end_store(struct tierce_store *store)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    return tierce_store_end(store);
}

START_TEST(two_that_do_not_fit_together_both_end)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *store = begin(chain);
    int64_t used = fx_stats(&fx).memory_bytes_now;
    start(&job, 2);
    await_waiting(1);
    /* It holds nothing while it waits; perhaps it has just tried. */
    WAIT_WITHIN(20000, fx_stats(&fx).memory_bytes_now == used);
    ck_assert_int_eq(end_store(store), BLOCKS);
    ck_assert_int_eq(finish(&job), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(an_abort_wakes)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *store = begin(chain);
    start(&job, 2);
    await_waiting(1);
    tierce_store_abort(store);
    ck_assert_int_eq(finish(&job), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static struct tierce_chain *store_one(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), BLOCKS);
    return chain;
}

START_TEST(an_unpin_wakes)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = store_one(1);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, 5, NULL), BLOCKS);
    start(&job, 2);
    await_waiting(1);
    tierce_unpin(fx.view, 5);
    ck_assert_int_eq(finish(&job), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(the_end_of_a_load_wakes)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = store_one(1);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids + 200);
    struct tierce_load *load;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    start(&job, 2);
    await_waiting(1);
    tierce_load_abort(load);
    ck_assert_int_eq(finish(&job), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(a_clear_and_a_closed_view_wake)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = store_one(1);
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *other;
    ck_assert_int_eq(tierce_view_open(&other, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 5};
    ck_assert_int_eq(tierce_lookup(other, chain, BLOCKS, &opts, &found), 0);
    start(&job, 2);
    await_waiting(1);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), BLOCKS / FX_CHUNK_BLOCKS);
    tierce_view_close(other);
    /* It looked again after the clear and stored all, or was just taking room when the clear came,
     * and then nothing that began before may come back. That it ends at all is the point. */
    int64_t stored = finish(&job);
    ck_assert(stored == BLOCKS || stored == 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(the_deadline_is_kept_and_what_fits_is_stored)
{
    struct job job;
    open_engine("50ms");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *store = begin(chain);
    uint64_t began = tierce__now_ns();
    start(&job, 2);
    int64_t stored = finish(&job);
    ck_assert_uint_ge(tierce__now_ns() - began, 50 * TIERCE__MS_NS);
    ck_assert_int_gt(stored, 0);
    ck_assert_int_lt(stored, BLOCKS);
    ck_assert_int_gt(fx_stats(&fx).stores_skipped, 0);
    ck_assert_int_eq(end_store(store), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(nothing_waits_by_default)
{
    open_engine("0");
    struct tierce_chain *one = fx_chain(&fx, 1, BLOCKS, 0), *two = fx_chain(&fx, 2, BLOCKS, 0);
    struct tierce_store *first = begin(one), *second = begin(two);
    ck_assert_int_eq(fx_stats(&fx).stores_waited, 0);
    ck_assert_int_gt(fx_stats(&fx).stores_skipped, 0);
    ck_assert_int_eq(end_store(first), BLOCKS);
    ck_assert_int_gt(end_store(second), 0);
    tierce_chain_destroy(one);
    tierce_chain_destroy(two);
    end();
}
END_TEST

START_TEST(what_never_fits_is_not_waited_for)
{
    open_engine("1h");
    struct tierce_chain *chain = fx_chain(&fx, 1, 2 * BLOCKS, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 2 * BLOCKS, ids);
    int64_t stored = tierce_store(fx.view, &what);
    ck_assert_int_gt(stored, 0);
    ck_assert_int_lt(stored, 2 * BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).stores_waited, 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* Bytes for it are there, but not slots. */
START_TEST(more_chunks_than_slots_are_not_waited_for)
{
    fx_open(&fx, false,
            (const char *const[]){"memory.size", "1MiB", "memory.chunks", "8", "timeout.store",
                                  "1h", NULL});
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), 8 * FX_CHUNK_BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).stores_waited, 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* Those that wait take their turns: each in the end has what it wanted, none a part of it. */
START_TEST(many_wait_in_turns)
{
    struct job jobs[6];
    open_engine("1h");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *store = begin(chain);
    for (uint32_t i = 0; i < 6; i++)
        start(&jobs[i], 2 + i);
    await_waiting(6);
    tierce_store_abort(store);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_int_eq(finish(&jobs[i]), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* The handle of the engine is closed while a store waits; its view keeps the engine. */
START_TEST(close_while_one_waits)
{
    struct job job;
    open_engine("1h");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_store *store = begin(chain);
    start(&job, 2);
    await_waiting(1);
    tierce_engine_close(fx.engine);
    tierce_store_abort(store);
    ck_assert_int_eq(finish(&job), BLOCKS);
    tierce_view_close(fx.view);
    tierce_chain_destroy(chain);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("room", .seconds = 60,
           .tests = {two_that_do_not_fit_together_both_end, an_abort_wakes, an_unpin_wakes,
                     the_end_of_a_load_wakes, a_clear_and_a_closed_view_wake,
                     the_deadline_is_kept_and_what_fits_is_stored, nothing_waits_by_default,
                     what_never_fits_is_not_waited_for, more_chunks_than_slots_are_not_waited_for,
                     many_wait_in_turns, FX_EMBEDDED(close_while_one_waits)})
