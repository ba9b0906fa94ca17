/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"

#include <errno.h>

#include <tierce/operate.h>

/*
 * Every allocation of stores that wait for each other, of a copy and of a move fails once, one
 * after the other. Whatever fails: no crash, no leak, no suffix without its prefix, and a repeated
 * store stores everything.
 */

#define BLOCKS 20u

static struct fixture fx;
static struct tierce_chain *chains[2];

static void setup(void)
{
    silence_log();
    fx_open(&fx, true, NULL);
    for (uint32_t i = 0; i < 2; i++)
        chains[i] = fx_chain(&fx, 1000 * i, BLOCKS, 8);
}

static void teardown(void)
{
    for (size_t i = 0; i < 2; i++)
        tierce_chain_destroy(chains[i]);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void check_prefixes(const struct tierce_chain *chain)
{
    struct tierce__keys keys;
    size_t leading = 0;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, BLOCKS, BLOCKS, false), 0);
    for (size_t i = 0; i < keys.count; i++) {
        bool has = tierce__storage_has(fx.engine, &keys.keys[i]);
        ck_assert_msg(!has || leading == i, "chunk %zu is there without its prefix", i);
        leading += has;
    }
    tierce__keys_fini(&keys);
}

static struct tierce_store *begin(const struct tierce_chain *chain)
{
    struct tierce_store *store;
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    int rc = tierce_store_begin(&store, fx.view, &what);
    ck_assert(rc == 0 || (rc == -ENOMEM && store == NULL));
    for (uint32_t l = 0; store != NULL && l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    return store;
}

static void end(struct tierce_store *store)
{
    if (store != NULL)
        ck_assert_int_ge(tierce_store_end(store), 0);
}

static void store_two(bool in_order)
{
    struct tierce_store *first = begin(chains[0]), *second = begin(chains[1]);
    end(in_order ? first : second);
    end(in_order ? second : first);
    check_prefixes(chains[0]);
    check_prefixes(chains[1]);
}

static void flush(void)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0); /* a PUT takes no memory */
}

static void check_baseline(uint64_t live)
{
    flush();
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    flush();
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

START_TEST(stores_that_wait_for_each_other)
{
    uint64_t count = 0;
    store_two(true);
    flush();
    check_baseline(tierce__alloc_live());
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= count + 3; nth++) {
        tierce__alloc_fail_nth(nth);
        store_two(_i == 0);
        count = tierce__alloc_fail_nth(0);
        check_baseline(live);
        store_two(_i == 0);
        for (size_t i = 0; i < 2; i++)
            ck_assert_uint_eq(fx_found(&fx, chains[i], BLOCKS, 0, 0, NULL), BLOCKS);
        check_baseline(live);
    }
    ck_assert_uint_gt(count, 10);
}
END_TEST

static void copy(enum tierce_origin from, enum tierce_origin to)
{
    int64_t blocks = tierce_copy(
        fx.view, chains[0], BLOCKS,
        &(struct tierce_copy_opts){
            .size = sizeof(struct tierce_copy_opts), .from = from, .to = to, .move = true});
    ck_assert(blocks >= 0 || blocks == -ENOMEM);
    ck_assert_uint_eq(fx_found(&fx, chains[0], BLOCKS, 0, 0, NULL), BLOCKS);
}

START_TEST(moves)
{
    uint64_t count = 0;
    end(begin(chains[0]));
    flush();
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= count + 3; nth++) {
        tierce__alloc_fail_nth(nth);
        int64_t moved = tierce_copy(
            fx.view, chains[0], BLOCKS,
            &(struct tierce_copy_opts){.size = sizeof(struct tierce_copy_opts),
                                       .from = nth % 2 ? TIERCE_ORIGIN_MEMORY : TIERCE_ORIGIN_DISK,
                                       .to = nth % 2 ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY,
                                       .move = true});
        uint64_t now = tierce__alloc_fail_nth(0);
        count = now > count ? now : count;
        ck_assert(moved >= 0 || moved == -ENOMEM);
        /* Nothing is lost, whichever part has moved. */
        copy(TIERCE_ORIGIN_DISK, TIERCE_ORIGIN_MEMORY);
        copy(TIERCE_ORIGIN_MEMORY, TIERCE_ORIGIN_DISK);
        flush();
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_gt(count, 3);
}
END_TEST

CHECK_MAIN("torture_store", .seconds = 300, .setup = setup, .teardown = teardown, .tests = {moves},
           .loops = {{stores_that_wait_for_each_other, 0, 2}})
