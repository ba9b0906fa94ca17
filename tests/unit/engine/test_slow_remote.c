/* SPDX-License-Identifier: Apache-2.0 */
/* A remote store that answers after 0.2, 5 and 30 ms, at the default timeouts: a real redis-server
 * behind a slow network. */
#include "base/clock.h"
#include "check_main.h"
#include "delay_proxy.h"
#include "engine/health/cost.h"
#include "engine_fixture.h"
#include "redis_server.h"

#define BLOCKS 256u /* 64 chunks */
#define TRIES  2

static struct fixture fx;
static struct redis_server server;
static struct delay_proxy proxy;
static int32_t ids[BLOCKS];
static const char *breaker_errors = "5", *lookup_timeout = "100ms"; /* the defaults */

/* Opens an engine; `remote`: with the store behind the slow network. */
static void open_engine(bool remote)
{
    char url[64] = "";
    if (remote)
        snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)proxy.port);
    const char *sets[] = {
        "remote.urls", url,     "timeout.lookup", lookup_timeout, "timeout.load",   "10s",
        "memory.size", "64MiB", "remote.queue",   "32MiB",        "breaker.errors", breaker_errors,
        NULL};
    fx_open(&fx, false, sets);
}

static void start(int round_trip)
{
    ck_assert(redis_start(&server, NULL));
    delay_proxy_start(&proxy, "test_slow_remote", server.port,
                      delay_proxy_round_trips_us[round_trip]);
    for (int32_t i = 0; i < (int32_t)BLOCKS; i++)
        ids[i] = i;
}

static void stop(void)
{
    fx_remove(&fx);
    delay_proxy_stop(&proxy);
    redis_stop(&server);
}

/* The shortest time that beginning a store of a new prompt takes, of some tries; more of them where
 * all were late, see store_all. */
static uint64_t begin_ns(uint32_t first_seed, int64_t *stored)
{
    uint64_t least = UINT64_MAX, give_up_ns = tierce__deadline_in_ms(20000);
    *stored = 0;
    for (uint32_t i = 0; i < TRIES || (*stored == 0 && tierce__now_ns() < give_up_ns); i++) {
        if (i >= TRIES)
            server_pause_ms(10);
        struct tierce_chain *chain = fx_chain(&fx, first_seed + i, BLOCKS, 0);
        fx_fill(&fx, chain, 0, BLOCKS, ids);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
        struct tierce_store *store;
        uint64_t from_ns = tierce__now_ns();
        ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
        uint64_t took_ns = tierce__now_ns() - from_ns;
        tierce_chain_destroy(chain);
        if (store == NULL)
            continue;
        for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
            ck_assert_int_eq(tierce_store_layer(store, layer), 0);
        *stored += tierce_store_end(store);
        least = took_ns < least ? took_ns : least;
    }
    return least;
}

START_TEST(a_store_does_not_wait_for_it)
{
    int64_t stored;
    start(_i);
    open_engine(false);
    uint64_t alone_ns = begin_ns(1000, &stored);
    fx_close(&fx);
    open_engine(true);
    uint64_t beside_ns = begin_ns(100000, &stored);
    fprintf(stderr, "store_begin: %.3f ms without a remote store, %.3f ms with one of %u us\n",
            (double)alone_ns / 1e6, (double)beside_ns / 1e6, delay_proxy_round_trips_us[_i]);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_ge(stored, BLOCKS);
    ck_assert_int_ge(fx_stats(&fx).remote_stored_chunks, stored / FX_CHUNK_BLOCKS);
    fx_close(&fx);
    stop();
}
END_TEST

/* A lookup that queried it would wait for timeout.lookup, long enough to be noticed on a busy
 * machine.
 */
START_TEST(a_store_does_not_wait_for_one_that_hangs)
{
    int64_t stored;
    lookup_timeout = "5s";
    start(0);
    open_engine(true);
    begin_ns(1000, &stored);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    delay_proxy_freeze(&proxy, true);
    uint64_t least_ns = begin_ns(100000, &stored);
    delay_proxy_freeze(&proxy, false);
    ck_assert_uint_lt(least_ns, 4000 * TIERCE__MS_NS);
    ck_assert_int_ge(stored, BLOCKS);
    fx_close(&fx);
    stop();
}
END_TEST

/* The calls of a client of a node may be late on a busy machine, which is a miss; after some of
 * these it asks nothing for a second. */
static void store_blocks(const struct tierce_chain *chain, size_t blocks)
{
    int64_t stored = fx_store(&fx, chain, blocks, ids, false);
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    while (stored == 0 && tierce__now_ns() < give_up_ns) {
        server_pause_ms(10);
        stored = fx_store(&fx, chain, blocks, ids, false);
    }
    ck_assert_int_eq(stored, blocks);
}

static void store_all(const struct tierce_chain *chain)
{
    store_blocks(chain, BLOCKS);
}

/* The first lookup may be late too: it connects, which takes some round trips. */
static void find_all(const struct tierce_chain *chain)
{
    uint64_t found = fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    while (found < BLOCKS && tierce__now_ns() < give_up_ns) {
        server_pause_ms(10);
        found = fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
    }
    ck_assert_uint_eq(found, BLOCKS);
}

/* Stores `chain` for others, in an engine of its own. */
static void store_for_others(const struct tierce_chain *chain)
{
    store_all(chain);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
}

/* Only the store knows its chunks; it is asked before anything is sent. */
START_TEST(what_it_has_is_not_sent_again)
{
    start(_i);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_for_others(chain);
    uint64_t sent = delay_proxy_stats(&proxy).bytes_up;
    open_engine(true);
    store_all(chain); /* in memory */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_lt(delay_proxy_stats(&proxy).bytes_up - sent, sent / 10);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

/* Changes a byte of every object of the store, in the payload. */
static void spoil_all(void)
{
    char command[400];
    snprintf(command, sizeof(command),
             "test \"$(redis-cli -s %s EVAL \"local n = 0 "
             "for _, k in ipairs(redis.call('KEYS', '*')) do "
             "local b = string.byte(redis.call('GETRANGE', k, 5000, 5000)) "
             "redis.call('SETRANGE', k, 5000, string.char((b + 1) %% 256)) n = n + 1 end "
             "return n\" 0)\" = %u",
             server.socket, BLOCKS / FX_CHUNK_BLOCKS);
    ck_assert_int_eq(system(command), 0);
}

/* Chunks that are computed instead of spoiled objects are stored while the deletion is under way.
 */
START_TEST(what_was_spoiled_is_replaced)
{
    uint8_t origins[BLOCKS];
    start(_i);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_for_others(chain);
    spoil_all();
    open_engine(true);
    find_all(chain);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_lt(tierce_load(fx.view, &what, origins), BLOCKS);
    store_for_others(chain);
    open_engine(true);
    find_all(chain);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b]));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

/* Repeats a lookup until `blocks` are found; returns the number of lookups. */
static unsigned ask_until_known(const struct tierce_chain *chain, size_t blocks,
                                struct tierce_found *found)
{
    unsigned asked = 0;
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN};
    do {
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, found), 0);
        asked++;
    } while ((found->pending || found->blocks < blocks) && tierce__now_ns() < give_up_ns);
    return asked;
}

START_TEST(a_lookup_finds_all_and_a_load_brings_it)
{
    uint8_t origins[BLOCKS];
    start(_i);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_for_others(chain);
    open_engine(true);
    find_all(chain);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    struct tierce_load *load;
    /* The lookup knows already what is there: nothing is asked. */
    delay_proxy_freeze(&proxy, true);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    delay_proxy_freeze(&proxy, false);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_load_layer(load, layer), 0);
    ck_assert_int_eq(tierce_load_end(load, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b]));
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

/* The scheduler of an inference engine must not wait: it asks again. */
START_TEST(one_who_does_not_wait_asks_again)
{
    struct tierce_found found;
    start(_i);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    store_for_others(chain);
    open_engine(true);
    unsigned asked = ask_until_known(chain, BLOCKS, &found);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    ck_assert_uint_gt(asked, 1);
    /* The last answer counts. Another one may, where the store's own answer was late. */
    ck_assert_int_le(fx_stats(&fx).lookups, 2);
    asked = ask_until_known(other, 0, &found);
    ck_assert(!found.pending && found.blocks == 0);
    ck_assert_uint_gt(asked, 1);
    ck_assert_int_le(fx_stats(&fx).lookups, 3);
    /* It is remembered: the store is not asked. */
    delay_proxy_freeze(&proxy, true);
    find_all(chain);
    delay_proxy_freeze(&proxy, false);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

#ifndef TIERCE_TEST_NODE /* a node does not know how fast its clients compute */
/* Looks up until the answer counts; returns the blocks. */
static unsigned repeats; /* of the last ask */

static uint64_t ask(const struct tierce_chain *chain, size_t to, uint64_t *ns)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN};
    uint64_t start_ns = tierce__now_ns(), give_up_ns = tierce__deadline_in_ms(20000);
    repeats = 0;
    do {
        repeats++;
        ck_assert_int_eq(tierce_lookup(fx.view, chain, to, &opts, &found), 0);
    } while (found.pending && tierce__now_ns() < give_up_ns);
    *ns = tierce__now_ns() - start_ns;
    ck_assert(!found.pending);
    return found.blocks;
}

/* cost.wait: a prompt that is computed sooner than a distant store answers does not wait for it, as
 * long as nothing of it is known to be stored. */
START_TEST(a_short_prompt_does_not_wait_for_a_distant_store)
{
    enum { FEW = 8 }; /* blocks: two chunks */
    const uint64_t slow_tokens = 1, fast_tokens = 1000000, tokens = BLOCKS * FX_BLOCK_TOKENS;
    uint64_t ns;
    start(0);
    lookup_timeout = "5s";
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_chain *unknown = fx_chain(&fx, 5, BLOCKS, 0);
    store_for_others(chain);
    open_engine(true);
    ck_assert_uint_eq(ask(unknown, BLOCKS, &ns), 0); /* it is connected */
    int64_t late = fx_stats(&fx).misses_deadline;
    tierce_view_computed(fx.view, fast_tokens, 1000000000);
    ck_assert_uint_eq(tierce__cost_wait_ns(fx.view, fast_tokens), 50 * TIERCE__MS_NS);
    ck_assert_uint_eq(tierce__cost_wait_ns(fx.view, tokens), 5 * TIERCE__MS_NS);
    delay_proxy_freeze(&proxy, true); /* no answer comes before timeout.lookup */
    ck_assert_uint_eq(ask(chain, BLOCKS, &ns), 0);
    ck_assert_uint_ge(ns, 5 * TIERCE__MS_NS);
    ck_assert_uint_lt(ns, 5000 * TIERCE__MS_NS);
    ck_assert_int_eq(fx_stats(&fx).misses_deadline, late + 1);
    delay_proxy_set(&proxy, 300000);
    delay_proxy_freeze(&proxy, false);
    /* Computing takes so long now that its answer is waited for. */
    for (int i = 0; i < 40; i++)
        tierce_view_computed(fx.view, slow_tokens, 20000000000u);
    ck_assert_uint_gt(tierce__cost_wait_ns(fx.view, tokens), 20000 * TIERCE__MS_NS);
    ck_assert_uint_eq(ask(chain, BLOCKS, &ns), BLOCKS);
    /* The answer is remembered by one that would not wait. */
    for (int i = 0; i < 10; i++)
        tierce_view_computed(fx.view, fast_tokens, 1000000000);
    delay_proxy_freeze(&proxy, true);
    ck_assert_uint_eq(ask(chain, BLOCKS, &ns), BLOCKS);
    delay_proxy_freeze(&proxy, false);
    /* Once it is known how long an answer takes, a prompt of few chunks does not wait at all. The
     * first of them may know it already: from the rest of a query that was answered in part. */
    for (uint32_t i = 0; i < 2; i++) {
        struct tierce_chain *few = fx_chain(&fx, 2 + i, BLOCKS, 0);
        struct tierce_found found;
        struct tierce_lookup_opts opts = {.size = sizeof(opts)};
        ck_assert_uint_eq(ask(few, FEW, &ns), 0);
        ck_assert_uint_le(repeats, i == 0 ? UINT32_MAX : 1);
        ck_assert_int_eq(tierce_lookup(fx.view, few, FEW, &opts, &found), 0); /* its answer */
        tierce_chain_destroy(few);
    }
    struct tierce_chain *many = fx_chain(&fx, 6, BLOCKS, 0); /* nor one of many */
    ck_assert_uint_eq(ask(many, BLOCKS, &ns), 0);
    ck_assert_uint_eq(repeats, 1);
    tierce_chain_destroy(many);
    tierce_chain_destroy(unknown);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST
#endif

/* It takes longer than timeout.lookup, so that the first lookups find nothing, and is not a
 * failure: it answers. */
START_TEST(a_distant_store_is_no_failure)
{
    start(0);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_for_others(chain);
    delay_proxy_set(&proxy, 300000);
    open_engine(true);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    struct tierce_found found = {0};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    ck_assert(found.blocks == 0 && found.pending);
    for (unsigned i = 0; i < 50 && found.blocks < BLOCKS; i++)
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    ck_assert(!found.pending);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    ck_assert_int_eq(fx_stats(&fx).deadline_failures, 0);
    ck_assert_int_gt(fx_stats(&fx).lookups_unanswered, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

/* No answer at all within timeout.load, or of a connection within its own time, is a failure. */
START_TEST(a_store_that_says_nothing_is_left_alone)
{
    breaker_errors = "1";
    start(0);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    struct tierce_found found;
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    delay_proxy_freeze(&proxy, true);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    ck_assert_int_eq(tierce_lookup(fx.view, other, BLOCKS, &opts, &found), 0);
    ck_assert(found.blocks == 0 && found.pending);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    uint64_t from_ns = tierce__now_ns(), give_up_ns = from_ns + 30000 * TIERCE__MS_NS;
    while (fx_stats(&fx).remotes_in_service_now == 1 && tierce__now_ns() < give_up_ns)
        usleep(5000);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 1);
    ck_assert_uint_ge(tierce__now_ns() - from_ns, 500 * TIERCE__MS_NS); /* not timeout.lookup */
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    delay_proxy_freeze(&proxy, false);
    fx_close(&fx);
    stop();
}
END_TEST

static struct tierce_prefetch_result prefetch_once(const struct tierce_chain *chain)
{
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts)};
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts), 0);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 60000), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    tierce_prefetch_end(prefetch);
    return result;
}

/* The call of a client of a node may be late, as in store_blocks. */
static struct tierce_prefetch_result prefetch_all(const struct tierce_chain *chain)
{
    struct tierce_prefetch_result result = prefetch_once(chain);
#ifdef TIERCE_TEST_NODE
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    while (result.blocks == 0 && tierce__now_ns() < give_up_ns) {
        server_pause_ms(10);
        result = prefetch_once(chain);
    }
#endif
    return result;
}

/* Of which the search has not the time of a lookup only. */
START_TEST(a_prefetch_waits_for_a_distant_store)
{
    start(0);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_for_others(chain);
    delay_proxy_set(&proxy, 300000);
    open_engine(true);
    struct tierce_prefetch_result result = prefetch_all(chain);
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert(!result.late);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

/* A late store is asked once more, not until timeout.prefetch. */
START_TEST(a_prefetch_ends_when_a_distant_store_has_a_part_only)
{
    start(0);
    open_engine(true);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    store_blocks(chain, BLOCKS / 2);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    delay_proxy_set(&proxy, 300000);
    open_engine(true);
    struct tierce_prefetch_result result = prefetch_all(chain);
    ck_assert_uint_eq(result.blocks, BLOCKS / 2);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS / 2);
    ck_assert(!result.late);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    stop();
}
END_TEST

#define STATES 64u

/* Only the first of many possible states is stored. One after the other, the queries for all of
 * them would take as many round trips. */
START_TEST(states_are_queried_several_at_once)
{
    static const uint32_t layers[FX_LAYERS] = {0, 1, 2, 3};
    int slowest = 2;
    lookup_timeout = "20s";
    start(slowest);
    struct tierce_namespace ns = fx_namespace();
    ns.group = TIERCE_GROUP_STATE;
    ns.layers = layers;
    ns.chunk_blocks = 1;
    uint64_t round_trip_ns = delay_proxy_round_trips_us[slowest] * UINT64_C(1000), took_ns = 0;
    for (int stores = 1; stores >= 0; stores--) {
        open_engine(true);
        struct tierce_view *whole = fx.view;
        ck_assert_int_eq(
            tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
        struct tierce_chain *chain = fx_chain(&fx, 1, STATES, 0);
        if (stores == 1) {
            ck_assert_int_eq(fx_store(&fx, chain, 1, ids, false), 1);
            ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        } else {
            uint64_t from_ns = tierce__now_ns();
            ck_assert_uint_eq(fx_found(&fx, chain, STATES, 0, 0, NULL), 1);
            took_ns = tierce__now_ns() - from_ns;
        }
        tierce_chain_destroy(chain);
        tierce_view_close(fx.view);
        fx.view = whole;
        fx_close(&fx);
    }
    fprintf(stderr, "a state of %u, queried in %.1f round trips\n", STATES,
            (double)took_ns / (double)round_trip_ns);
    ck_assert_uint_lt(took_ns, STATES / 2 * round_trip_ns);
    stop();
}
END_TEST

int main(void)
{
    int speeds = (int)(sizeof(delay_proxy_round_trips_us) / sizeof(delay_proxy_round_trips_us[0]));
    return CHECK_RUN(
        "slow remote", .seconds = 60,
        .tests = {a_store_does_not_wait_for_one_that_hangs, a_distant_store_is_no_failure,
#ifndef TIERCE_TEST_NODE
                  a_short_prompt_does_not_wait_for_a_distant_store,
#endif
                  a_store_that_says_nothing_is_left_alone, a_prefetch_waits_for_a_distant_store,
                  a_prefetch_ends_when_a_distant_store_has_a_part_only,
                  states_are_queried_several_at_once},
        .loops = {{a_store_does_not_wait_for_it, 0, speeds},
                  {what_it_has_is_not_sent_again, 0, speeds},
                  {what_was_spoiled_is_replaced, 0, speeds},
                  {a_lookup_finds_all_and_a_load_brings_it, 0, speeds},
                  {one_who_does_not_wait_asks_again, 0, speeds}});
}
