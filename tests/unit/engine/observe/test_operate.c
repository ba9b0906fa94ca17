/* SPDX-License-Identifier: Apache-2.0 */
/* Modes and clears, of what is there and of what is under way. */
#include "base/clock.h"
#include "check_main.h"
#include "engine/observe/operate.h"
#include "engine_fixture.h"
#include "tier_fault.h"

#include <errno.h>
#include <pthread.h>

#include <tierce/operate.h>
#include <tierce/prefetch.h>
#include <tierce/why.h>

#define BLOCKS 12u
#define CHUNKS 3

static struct fixture fx;
static struct tierce_chain *chain;

static void open_engine(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
}

static void end(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}

static void set_mode(enum tierce_mode mode)
{
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, mode), 0);
    ck_assert_int_eq(tierce_engine_mode(fx.engine), mode);
    ck_assert_int_eq(fx_stats(&fx).mode_now, mode);
}

static int64_t load(uint8_t *origins)
{
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    int64_t blocks = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; origins != NULL && b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    return blocks;
}

static uint64_t found(void)
{
    return fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
}

static void flush(void)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

static void clear(uint32_t tiers, int64_t chunks)
{
    ck_assert_int_eq(tierce_engine_clear(fx.engine, tiers, NULL), chunks);
}

/* ---- modes ---- */

START_TEST(frozen_answers_and_stores_nothing)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    flush();
    set_mode(TIERCE_MODE_FREEZE);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), 0);
    ck_assert_int_eq(fx_stats(&fx).stores_refused, 1);
    ck_assert_uint_eq(found(), 8);
    /* From disk it loads and promotes nothing. */
    clear(1u << TIERCE_ORIGIN_MEMORY, 2);
    uint8_t origins[BLOCKS];
    ck_assert_int_eq(load(origins), 8);
    ck_assert_int_eq(origins[0], TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(fx_stats(&fx).promotions, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    set_mode(TIERCE_MODE_NORMAL);
    ck_assert_int_eq(load(origins), 8);
    ck_assert_int_eq(fx_stats(&fx).promotions, 2);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), 4);
    end();
}
END_TEST

START_TEST(bypassed_finds_and_stores_nothing)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    set_mode(TIERCE_MODE_BYPASS);
    ck_assert_uint_eq(found(), 0);
    ck_assert_int_eq(fx_stats(&fx).misses_bypassed, 1);
    ck_assert_int_eq(load(NULL), 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), 0);
    struct tierce_miss miss = {.size = sizeof(miss)};
    ck_assert_int_eq(tierce_why(fx.inner, chain, 4, BLOCKS, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_BYPASSED);
    ck_assert_uint_eq(miss.block, 4);
    set_mode(TIERCE_MODE_NORMAL);
    ck_assert_uint_eq(found(), 8);
    end();
}
END_TEST

START_TEST(what_the_engine_holds_counts_as_found_in_bypass_too)
{
    open_engine(false, NULL);
    set_mode(TIERCE_MODE_BYPASS);
    struct tierce_found got;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .from_block = 4};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &got), 0);
    ck_assert_uint_eq(got.blocks, 4);
    end();
}
END_TEST

START_TEST(what_is_under_way_ends_as_it_began)
{
    open_engine(true, NULL);
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    set_mode(TIERCE_MODE_BYPASS);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    ck_assert_int_eq(tierce_store_end(store), BLOCKS);
    /* Promised and pinned blocks are loaded. */
    set_mode(TIERCE_MODE_NORMAL);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, 5, NULL), BLOCKS);
    struct tierce_load *begun;
    ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
    set_mode(TIERCE_MODE_BYPASS);
    fx_wipe(&fx);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(begun, l), 0);
    ck_assert_int_eq(tierce_load_end(begun, NULL), BLOCKS);
    what.session = 5;
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), BLOCKS);
    ck_assert(fx_right(&fx, chain, 11, fx_ids[11]));
    what.session = 0;
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 0);
    end();
}
END_TEST

START_TEST(a_prefetch_brings_nothing_when_frozen)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    flush();
    clear(1u << TIERCE_ORIGIN_MEMORY, CHUNKS);
    for (int mode = TIERCE_MODE_BYPASS; mode >= 0; mode--) {
        set_mode((enum tierce_mode)mode);
        struct tierce_prefetch *prefetch;
        struct tierce_prefetch_opts opts = {.size = sizeof(opts)};
        struct tierce_prefetch_result result = {.size = sizeof(result)};
        ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts), 0);
        ck_assert_int_eq(tierce_prefetch_wait(prefetch, 10000), 0);
        ck_assert(tierce_prefetch_poll(prefetch, &result));
        ck_assert_uint_eq(result.memory_blocks, mode == TIERCE_MODE_NORMAL ? BLOCKS : 0);
        tierce_prefetch_end(prefetch);
    }
    end();
}
END_TEST

START_TEST(modes_have_names)
{
    open_engine(false, (const char *const[]){"engine.mode", "freeze", NULL});
    ck_assert_int_eq(tierce_engine_mode(fx.engine), TIERCE_MODE_FREEZE);
    ck_assert_str_eq(tierce_mode_name(TIERCE_MODE_BYPASS), "bypass");
    ck_assert_ptr_null(tierce_mode_name((enum tierce_mode)3));
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, (enum tierce_mode)3), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_engine_mode(fx.engine), TIERCE_MODE_FREEZE);
    end();
}
END_TEST

/* ---- clear ---- */

START_TEST(tiers_are_cleared_one_by_one_or_all)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    flush();
    clear(1u << TIERCE_ORIGIN_DISK, CHUNKS);
    ck_assert_uint_eq(found(), BLOCKS);
    clear(0, CHUNKS);
    ck_assert_uint_eq(found(), 0);
    ck_assert_int_eq(fx_stats(&fx).misses_cleared, 1);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << 7, NULL), TIERCE_E_ARGUMENT);
    /* For good. */
    flush();
    fx_close(&fx);
    fx_open(&fx, true, NULL);
    ck_assert_uint_eq(found(), 0);
    end();
}
END_TEST

START_TEST(a_namespace_is_cleared)
{
    open_engine(false, NULL);
    struct tierce_namespace ns = fx_namespace();
    ns.weights = "44556677";
    struct tierce_view *other;
    ck_assert_int_eq(tierce_view_open(&other, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_store(other, &what), BLOCKS);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, other), CHUNKS);
    ck_assert_uint_eq(found(), BLOCKS);
    struct tierce_found got;
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    ck_assert_int_eq(tierce_lookup(other, chain, BLOCKS, &opts, &got), 0);
    ck_assert_uint_eq(got.blocks, 0);
    tierce_view_close(other);
    end();
}
END_TEST

START_TEST(what_is_pinned_stays_with_its_holder)
{
    open_engine(false, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, 5, NULL), BLOCKS);
    clear(0, CHUNKS);
    ck_assert_int_gt(fx_stats(&fx).memory_bytes_now, 0);
    tierce_unpin(fx.view, 5);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    end();
}
END_TEST

START_TEST(a_store_that_began_before_publishes_nothing)
{
    open_engine(true, NULL);
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    clear(0, 0);
    ck_assert_int_eq(tierce_store_end(store), 0);
    ck_assert_uint_eq(found(), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_int_eq(tierce_store(fx.view, &what), BLOCKS);
    end();
}
END_TEST

START_TEST(a_read_that_began_before_is_not_promoted)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    flush();
    clear(1u << TIERCE_ORIGIN_MEMORY, CHUNKS);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_load *begun;
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(begun, l), 0);
    clear(0, CHUNKS);
    ck_assert_int_eq(tierce_load_end(begun, NULL), BLOCKS);
    ck_assert(fx_right(&fx, chain, 0, fx_ids[0]));
    ck_assert_int_eq(fx_stats(&fx).promotions, 0);
    ck_assert_uint_eq(found(), 0);
    end();
}
END_TEST

/* The disk, when it is its turn to be cleared: before it is, a load begins, whose reads bring what
 * it has. Their answers come only after the clear. */
static const struct tierce__tier_ops *disk_ops;
static struct tierce__tier_ops late;
static struct tierce__store_req *reads[32];
static tierce__store_done_fn *answers[32];
static _Atomic size_t asked, answered;
static struct tierce_load *begun;

static void keep_answer(struct tierce__store_req *req)
{
    (void)req;
    atomic_fetch_add(&answered, 1);
}

static void submit_late(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_GET) {
        size_t at = atomic_fetch_add(&asked, 1);
        ck_assert_uint_lt(at, 32);
        reads[at] = req;
        answers[at] = req->done;
        req->done = keep_answer;
    } else if (req->op == TIERCE__STORE_CLEAR) {
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
        ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
        while (atomic_load(&answered) < atomic_load(&asked))
            usleep(1000);
    }
    disk_ops->submit(tier, req);
}

START_TEST(a_read_that_begins_during_a_clear_is_not_promoted)
{
    open_engine(true, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    flush();
    clear(1u << TIERCE_ORIGIN_MEMORY, CHUNKS);
    struct tierce__tier *disk = fx.engine->levels[1].tier;
    disk_ops = disk->ops;
    late = *disk_ops;
    late.submit = submit_late;
    disk->ops = &late;
    fx_wipe(&fx);
    clear(0, CHUNKS);
    ck_assert_uint_gt(atomic_load(&asked), 0);
    for (size_t i = 0; i < atomic_load(&asked); i++) {
        reads[i]->done = answers[i];
        reads[i]->done(reads[i]);
    }
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(begun, l), 0);
    ck_assert_int_eq(tierce_load_end(begun, NULL), BLOCKS);
    disk->ops = disk_ops;
    ck_assert_int_eq(fx_stats(&fx).promotions, 0);
    ck_assert_uint_eq(found(), 0);
    end();
}
END_TEST

START_TEST(a_tier_that_is_left_alone_is_cleared_too)
{
    open_engine(true, (const char *const[]){"breaker.errors", "1", "breaker.retry", "1h", NULL});
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    flush();
    clear(1u << TIERCE_ORIGIN_MEMORY, CHUNKS);
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    tierce__fault_set(disk, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    ck_assert_int_eq(load(NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
    clear(0, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
    end();
}
END_TEST

/* ---- both at once ---- */

static _Atomic bool is_over;

static void *store_and_load(void *arg)
{
    uint32_t base = *(const uint32_t *)arg;
    int32_t ids[BLOCKS];
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        ids[b] = (int32_t)base + b;
    while (!atomic_load(&is_over)) {
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
        ck_assert_int_ge(tierce_store(fx.view, &what), 0);
        ck_assert_int_ge(tierce_load(fx.view, &what, NULL), 0);
    }
    return NULL;
}

/* No clear hangs, whatever is stored, loaded and promoted meanwhile; afterwards nothing is left. */
START_TEST(clears_beside_stores_and_loads)
{
    static uint32_t bases[2] = {0, 100};
    pthread_t threads[2];
    open_engine(true, NULL);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, store_and_load, &bases[i]), 0);
    for (int i = 0; i < 200; i++) {
        uint32_t tiers = i % 3 == 0 ? 0 : 1u << (i % 3);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, tiers, i % 2 == 0 ? fx.inner : NULL), 0);
    }
    atomic_store(&is_over, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    ck_assert_uint_eq(found(), 0);
    flush();
    ck_assert_uint_eq(found(), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 0);
    end();
}
END_TEST

CHECK_MAIN("operate", .seconds = 60,
           .tests = {frozen_answers_and_stores_nothing, bypassed_finds_and_stores_nothing,
                     what_the_engine_holds_counts_as_found_in_bypass_too,
                     what_is_under_way_ends_as_it_began, a_prefetch_brings_nothing_when_frozen,
                     modes_have_names, tiers_are_cleared_one_by_one_or_all, a_namespace_is_cleared,
                     what_is_pinned_stays_with_its_holder,
                     a_store_that_began_before_publishes_nothing,
                     a_read_that_began_before_is_not_promoted,
                     a_read_that_begins_during_a_clear_is_not_promoted,
                     a_tier_that_is_left_alone_is_cleared_too, clears_beside_stores_and_loads})
