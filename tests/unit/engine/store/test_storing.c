/* SPDX-License-Identifier: Apache-2.0 */
/* Stores beside stores: a chunk is stored once, and nothing is published without its prefix. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "test_random.h"
#include "wait_for.h"

#include <pthread.h>

#include <tierce/operate.h>

static struct fixture fx;
static int64_t baseline;
static int32_t ids[FX_BLOCKS];

static void open_engine(const char *const *sets)
{
    fx_open(&fx, false, sets);
    baseline = fx_stats(&fx).memory_bytes_now;
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce_store *begin(struct tierce_view *view, const struct tierce_chain *chain,
                                  size_t blocks)
{
    fx_fill(&fx, chain, 0, blocks, ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, view, &what), 0);
    for (uint32_t l = 0; store != NULL && l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    return store;
}

static uint64_t found(const struct tierce_chain *chain)
{
    return fx_found(&fx, chain, tierce_chain_blocks(chain), 0, 0, NULL);
}

/* All of the chain is there, and right. */
static void check_whole(const struct tierce_chain *chain)
{
    size_t blocks = tierce_chain_blocks(chain);
    ck_assert_uint_eq(found(chain), blocks);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), (int64_t)blocks);
    for (size_t b = 0; b < blocks; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
}

START_TEST(what_is_being_stored_is_left_to_who_does_it)
{
    open_engine(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 12, 0);
    struct tierce_store *first = begin(fx.view, chain, 12);
    int64_t used = fx_stats(&fx).memory_bytes_now;
    ck_assert_ptr_null(begin(fx.view, chain, 12));
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, used);
    ck_assert_int_eq(fx_stats(&fx).stores_shared, 3);
    ck_assert_int_eq(tierce_store_end(first), 12);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, 3);
    check_whole(chain);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* Two prompts that share two chunks of five. */
static struct tierce_chain *chains[3];

static void make_chains(void)
{
    for (uint32_t i = 0; i < 3; i++)
        chains[i] = fx_chain(&fx, 1000 * i, 20, 8);
}

static void end_chains(void)
{
    for (size_t i = 0; i < 3; i++)
        tierce_chain_destroy(chains[i]);
    end();
}

START_TEST(the_suffix_is_published_behind_a_prefix_that_is_there)
{
    open_engine(NULL);
    make_chains();
    struct tierce_store *first = begin(fx.view, chains[0], 20);
    struct tierce_store *second = begin(fx.view, chains[1], 20);
    ck_assert_int_eq(tierce_store_end(first), 20);
    ck_assert_int_eq(tierce_store_end(second), 12);
    check_whole(chains[0]);
    check_whole(chains[1]);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, 8);
    ck_assert_int_eq(fx_stats(&fx).stores_shared, 2);
    end_chains();
}
END_TEST

START_TEST(the_suffix_waits_for_its_prefix)
{
    open_engine(NULL);
    make_chains();
    struct tierce_view *other;
    struct tierce_namespace ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&other, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    struct tierce_store *first = begin(fx.view, chains[0], 20);
    struct tierce_store *second = begin(other, chains[1], 20);
    struct tierce_store *third = begin(other, chains[2], 20);
    ck_assert_int_eq(tierce_store_end(second), 0);
    ck_assert_int_eq(tierce_store_end(third), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    tierce_view_close(other);
    ck_assert_int_eq(tierce_store_end(first), 20);
    for (size_t i = 0; i < 3; i++)
        check_whole(chains[i]);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, 11);
    end_chains();
}
END_TEST

START_TEST(without_its_prefix_the_suffix_is_dropped)
{
    open_engine(NULL);
    make_chains();
    struct tierce_store *first = begin(fx.view, chains[0], 20);
    struct tierce_store *second = begin(fx.view, chains[1], 20);
    struct tierce_store *third = begin(fx.view, chains[2], 20);
    ck_assert_int_eq(tierce_store_end(second), 0);
    tierce_store_abort(first);
    ck_assert_int_eq(tierce_store_end(third), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 6);
    /* Nothing is left behind that would be in the way. */
    ck_assert_int_eq(tierce_store_end(begin(fx.view, chains[1], 20)), 20);
    check_whole(chains[1]);
    end_chains();
}
END_TEST

START_TEST(one_that_does_not_end_is_not_waited_for_for_ever)
{
    open_engine((const char *const[]){"timeout.pin", "20ms", NULL});
    make_chains();
    struct tierce_store *first = begin(fx.view, chains[0], 20);
    int64_t used = fx_stats(&fx).memory_bytes_now;
    struct tierce_store *second = begin(fx.view, chains[1], 20);
    ck_assert_int_eq(tierce_store_end(second), 0);
    WAIT_WITHIN(20000, fx_stats(&fx).memory_bytes_now == used);
    ck_assert_int_eq(tierce_store_end(first), 20);
    ck_assert_uint_eq(found(chains[1]), 8);
    end_chains();
}
END_TEST

/* Of prompts that alternate in who was first, both end. */
START_TEST(two_that_wait_for_each_other)
{
    open_engine(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    struct tierce_chain *part = fx_chain(&fx, 1, 4, 0), *half = fx_chain(&fx, 1, 8, 0);
    struct tierce_store *a = begin(fx.view, part, 4);   /* chunk 0 */
    struct tierce_store *b = begin(fx.view, half, 8);   /* chunk 1 */
    struct tierce_store *c = begin(fx.view, chain, 16); /* chunks 2 and 3 */
    ck_assert_int_eq(tierce_store_end(c), 0);
    ck_assert_int_eq(tierce_store_end(b), 0);
    ck_assert_uint_eq(found(chain), 0);
    ck_assert_int_eq(tierce_store_end(a), 4);
    check_whole(chain);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(part);
    tierce_chain_destroy(half);
    end();
}
END_TEST

START_TEST(a_clear_takes_what_waits_too)
{
    open_engine(NULL);
    make_chains();
    struct tierce_store *first = begin(fx.view, chains[0], 20);
    struct tierce_store *second = begin(fx.view, chains[1], 20);
    ck_assert_int_eq(tierce_store_end(second), 0);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), 0);
    ck_assert_int_eq(tierce_store_end(first), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    end_chains();
}
END_TEST

/* ---- random stores against a model ---- */

#define PROMPTS 12u
#define OPEN    5u

/* The chunks of a prompt, by the key of the last chunk: in a tree, a stored chunk's parent is
 * stored too. */
static size_t there(const struct tierce_chain *chain)
{
    struct tierce__keys keys;
    size_t blocks = tierce_chain_blocks(chain), count = 0;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, blocks, blocks, false), 0);
    for (size_t i = 0; i < keys.count; i++) {
        bool has = tierce__storage_has(fx.engine, &keys.keys[i]);
        ck_assert_msg(!has || count == i, "chunk %zu is there without its prefix", i);
        count += has;
    }
    tierce__keys_fini(&keys);
    return count;
}

START_TEST(random_stores)
{
    struct tierce_chain *prompts[PROMPTS];
    size_t ended[PROMPTS] = {0};
    struct test_random rng = test_random_start("storing");
    open_engine(NULL);
    for (uint32_t p = 0; p < PROMPTS; p++)
        prompts[p] = fx_chain(&fx, p % 3 + 1000 * (p / 3), 4 * (3 + p % 4), 4 * (p / 3 % 3));
    struct tierce_store *open[OPEN] = {NULL};
    uint32_t prompt_of[OPEN] = {0};
    for (int round = 0; round < 3000; round++) {
        bool aborts = round % 300 > 200;
        uint32_t i = test_random_below(&rng, OPEN);
        if (open[i] == NULL) {
            prompt_of[i] = test_random_below(&rng, PROMPTS);
            open[i] =
                begin(fx.view, prompts[prompt_of[i]], tierce_chain_blocks(prompts[prompt_of[i]]));
        } else {
            if (aborts && test_random_below(&rng, 2) == 0)
                tierce_store_abort(open[i]);
            else
                ck_assert_int_ge(tierce_store_end(open[i]), 0);
            open[i] = NULL;
            ended[prompt_of[i]]++;
        }
        for (uint32_t p = 0; p < PROMPTS; p++)
            (void)there(prompts[p]);
        if (round % 300 < 299)
            continue;
        /* All stores end: only stored chunks use memory, and a repeated store finds all of them. */
        for (uint32_t s = 0; s < OPEN; s++) {
            tierce_store_abort(open[s]);
            open[s] = NULL;
        }
        int64_t chunks = fx_stats(&fx).memory_chunks_now;
        ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), chunks);
        ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
        for (uint32_t p = 0; p < PROMPTS; p++) {
            struct tierce_store *store =
                begin(fx.view, prompts[p], tierce_chain_blocks(prompts[p]));
            if (store != NULL)
                (void)tierce_store_end(store);
            check_whole(prompts[p]);
        }
        ck_assert_int_gt(tierce_engine_clear(fx.engine, 0, NULL), 0);
    }
    for (uint32_t p = 0; p < PROMPTS; p++) {
        ck_assert_uint_gt(ended[p], 0);
        tierce_chain_destroy(prompts[p]);
    }
    ck_assert_int_gt(fx_stats(&fx).stores_shared, 0);
    end();
}
END_TEST

/* ---- threads ---- */

#define THREADS 4u

static struct tierce_chain *shared[6];

static void *store_some(void *arg)
{
    struct test_random rng = *(const struct test_random *)arg;
    for (int i = 0; i < 400; i++) {
        const struct tierce_chain *chain = shared[test_random_below(&rng, 6)];
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, tierce_chain_blocks(chain), ids);
        struct tierce_store *store;
        ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
        for (uint32_t l = 0; store != NULL && l < FX_LAYERS; l++)
            ck_assert_int_eq(tierce_store_layer(store, l), 0);
        if (test_random_below(&rng, 4) == 0)
            tierce_store_abort(store);
        else if (store != NULL)
            ck_assert_int_ge(tierce_store_end(store), 0);
        if (test_random_below(&rng, 16) == 0)
            ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    }
    return NULL;
}

START_TEST(threads_that_store_the_same)
{
    pthread_t threads[THREADS];
    struct test_random seeds[THREADS], rng = test_random_start("storing threads");
    open_engine(NULL);
    for (uint32_t i = 0; i < 6; i++)
        shared[i] = fx_chain(&fx, 1000 * i, 24, 4 * i);
    for (size_t i = 0; i < THREADS; i++) {
        seeds[i].state = test_random_u64(&rng);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, store_some, &seeds[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 6; i++)
        (void)there(shared[i]);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    for (uint32_t i = 0; i < 6; i++)
        tierce_chain_destroy(shared[i]);
    end();
}
END_TEST

CHECK_MAIN("storing", .seconds = 100,
           .tests = {what_is_being_stored_is_left_to_who_does_it,
                     the_suffix_is_published_behind_a_prefix_that_is_there,
                     the_suffix_waits_for_its_prefix, without_its_prefix_the_suffix_is_dropped,
                     one_that_does_not_end_is_not_waited_for_for_ever, two_that_wait_for_each_other,
                     a_clear_takes_what_waits_too, random_stores, threads_that_store_the_same})
