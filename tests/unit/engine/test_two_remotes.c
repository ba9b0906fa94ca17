/* SPDX-License-Identifier: Apache-2.0 */
/* Two remote stores, each behind its own slow network, at the default timeouts: faults of one store
 * do not delay the other. */
#include "base/clock.h"
#include "check_main.h"
#include "delay_proxy.h"
#include "engine_fixture.h"
#include "redis_server.h"

#define BLOCKS  64u /* 16 chunks */
#define PROMPTS 20u

static struct fixture fx;
static int32_t ids[BLOCKS];
static struct store {
    struct redis_server server;
    struct delay_proxy proxy;
} stores[2];

/* Opens an engine with the stores of a mask. */
static void open_engine(unsigned which)
{
    char urls[128] = "";
    for (size_t i = 0; i < 2; i++) {
        size_t used = strlen(urls);
        if ((which & 1u << i) != 0)
            snprintf(urls + used, sizeof(urls) - used, "redis://127.0.0.1:%u ",
                     (unsigned)stores[i].proxy.port);
    }
    const char *sets[] = {"remote.urls",  urls,  "timeout.lookup", "100ms", /* the defaults */
                          "timeout.load", "10s", "memory.size",    "64MiB", NULL};
    fx_open(&fx, false, sets);
}

static void start(void)
{
    for (size_t i = 0; i < 2; i++) {
        ck_assert(redis_start(&stores[i].server, NULL));
        delay_proxy_start(&stores[i].proxy, "test_two_remotes", stores[i].server.port, 200);
    }
    for (int32_t i = 0; i < (int32_t)BLOCKS; i++)
        ids[i] = i;
}

static void stop(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    for (size_t i = 0; i < 2; i++) {
        delay_proxy_stop(&stores[i].proxy);
        redis_stop(&stores[i].server);
    }
}

/* Stores the first `blocks` of some prompts, in an engine of its own. */
static void store_prompts(unsigned which, size_t blocks)
{
    open_engine(which);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = fx_chain(&fx, p, blocks, 0);
        ck_assert_int_eq(fx_store(&fx, chain, blocks, ids, false), blocks);
        tierce_chain_destroy(chain);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
}

/* A lookup of what is nowhere, so that both have connected. */
static void connect_both(void)
{
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    struct tierce_chain *chain = fx_chain(&fx, 1000, BLOCKS, 0);
    struct tierce_found found = {.pending = true};
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    while (found.pending && tierce__now_ns() < give_up_ns)
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    ck_assert(!found.pending && found.blocks == 0);
    tierce_chain_destroy(chain);
}

/* Looks up prompts that were not asked for before, until one is found at once; a busy machine may
 * be late for some. Returns how long that took. */
static uint64_t find_one(void)
{
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    for (uint32_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = fx_chain(&fx, p, BLOCKS, 0);
        struct tierce_found found;
        uint64_t from_ns = tierce__now_ns();
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
        uint64_t took_ns = tierce__now_ns() - from_ns;
        tierce_chain_destroy(chain);
        if (found.blocks == BLOCKS)
            return took_ns;
    }
    ck_abort_msg("no prompt was found by the first lookup that asked for it");
    return 0;
}

/* The first store has nothing, or says nothing; the second one has all. */
START_TEST(a_slow_store_costs_another_no_time)
{
    start();
    store_prompts(2, BLOCKS);
    open_engine(3);
    connect_both();
    /* One answer fits into timeout.lookup, two do not. */
    delay_proxy_set(&stores[0].proxy, 60000);
    delay_proxy_set(&stores[1].proxy, 60000);
    find_one();
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    stop();
}
END_TEST

START_TEST(a_silent_store_costs_another_no_time)
{
    start();
    store_prompts(2, BLOCKS);
    open_engine(3);
    connect_both();
    delay_proxy_set(&stores[1].proxy, 5000);
    delay_proxy_freeze(&stores[0].proxy, true);
    ck_assert_uint_lt(find_one(), 100 * TIERCE__MS_NS); /* nor is it waited for */
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);   /* while it is still asked */
    stop();
}
END_TEST

START_TEST(a_store_that_is_gone_costs_another_no_time)
{
    start();
    store_prompts(2, BLOCKS);
    open_engine(3);
    connect_both();
    delay_proxy_set(&stores[1].proxy, 5000);
    redis_stop(&stores[0].server);
    find_one();
    stop();
}
END_TEST

/* One store has the beginnings of the prompts, the other everything: a lookup combines both, and a
 * load returns all found chunks. */
START_TEST(what_both_have_is_put_together)
{
    uint8_t origins[BLOCKS];
    start();
    store_prompts((unsigned)_i, BLOCKS / 2);
    store_prompts(3u - (unsigned)_i, BLOCKS);
    open_engine(3);
    connect_both();
    delay_proxy_set(&stores[0].proxy, 5000);
    delay_proxy_set(&stores[1].proxy, 5000);
    struct tierce_chain *chain = fx_chain(&fx, 7, BLOCKS, 0);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    struct tierce_found found = {.pending = true};
    while (found.pending)
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b]));
    tierce_chain_destroy(chain);
    stop();
}
END_TEST

/* It asks the silent store for all of timeout.load, but not before it has asked the other one. */
START_TEST(a_prefetch_does_not_wait_for_a_silent_store)
{
    start();
    store_prompts(2, BLOCKS);
    open_engine(3);
    connect_both();
    delay_proxy_freeze(&stores[0].proxy, true);
    struct tierce_chain *chain = fx_chain(&fx, 3, BLOCKS, 0);
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts)};
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts), 0);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 60000), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0); /* timeout.load has not passed */
    ck_assert_int_eq(fx_stats(&fx).deadline_failures, 0);
    tierce_prefetch_end(prefetch);
    tierce_chain_destroy(chain);
    stop();
}
END_TEST

CHECK_MAIN("two remotes", .seconds = 60,
           .tests = {a_slow_store_costs_another_no_time, a_silent_store_costs_another_no_time,
                     a_store_that_is_gone_costs_another_no_time,
                     a_prefetch_does_not_wait_for_a_silent_store},
           .loops = {{what_both_have_is_put_together, 1, 3}})
