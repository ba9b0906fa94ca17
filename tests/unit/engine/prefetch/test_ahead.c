/* SPDX-License-Identifier: Apache-2.0 */
/* Predictive prefetch: chunks that have left memory are back when a conversation returns. The times
 * are in test_returns.c; these tests use the engine's clock, a disk, and a real Redis. */
#include "base/alloc.h"
#include "check_main.h"
#include "delay_proxy.h"
#include "engine_fixture.h"
#include "redis_server.h"
#include "silent_log.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <pthread.h>

#define BLOCKS 40u
#define CHUNKS (BLOCKS / FX_CHUNK_BLOCKS)
#define SOON   800u /* ms */

static struct fixture fx;
static struct tierce_chain *chain;
static int32_t ids[FX_BLOCKS];
static const char *const on[] = {"prefetch.ahead", "256MiB", NULL};

/* The chunks leave memory, but not the slower tiers. */
static void empty_memory(void)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
}

static int64_t store_as(uint64_t session, const struct tierce_chain *of, size_t blocks)
{
    fx_fill(&fx, of, 0, blocks, ids);
    struct tierce_transfer_opts what = fx_what(&fx, of, 0, blocks, ids);
    what.session = session;
    return tierce_store(fx.view, &what);
}

static uint64_t memory_blocks(const struct tierce_chain *of, uint64_t session)
{
    uint64_t memory;
    (void)fx_found(&fx, of, BLOCKS, 0, session, &memory);
    return memory;
}

/* A conversation in the disk whose memory is empty. */
static void begin(const char *const *sets)
{
    silence_log();
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = i;
    fx_open(&fx, true, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store_as(1, chain, BLOCKS), BLOCKS);
    empty_memory();
}

static void end(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    fx = (struct fixture){0};
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(a_hint_brings_the_chunks_back_before_the_return)
{
    begin(on);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, SOON), 0);
    WAIT_FOR(fx_stats(&fx).ahead_chunks == CHUNKS);
    struct tierce_engine_stats before = fx_stats(&fx);
    ck_assert_int_eq(before.ahead_predictions, 1);
    ck_assert_int_gt(before.ahead_bytes, 0);
    ck_assert_uint_eq(memory_blocks(chain, 2), BLOCKS);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.ahead_used_chunks, CHUNKS);
    ck_assert_int_eq(s.ahead_unused_chunks, 0);
    ck_assert_int_eq(s.ahead_late_chunks, 0);
    ck_assert_int_eq(s.pinned_bytes_now, 0);
    uint8_t origins[BLOCKS];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    what.session = 2;
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_MEMORY && fx_right(&fx, chain, b, ids[b]));
    end();
}
END_TEST

START_TEST(it_is_off_by_default_and_closed_ends_it)
{
    begin(NULL);
    ck_assert_ptr_null(fx.engine->ahead);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, SOON), 0);
    ck_assert_int_eq(tierce_session_returns(fx.view, 0, SOON), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(fx_stats(&fx).ahead_bytes_per_second_now, 0);
    end();
    begin(on);
    ck_assert_int_eq(fx_stats(&fx).ahead_bytes_per_second_now, 256 << 20);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, SOON), 0);
    ck_assert_int_eq(tierce_session_hint(fx.view, 1, TIERCE_HINT_CLOSED), 0);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    ck_assert_int_eq(store_as(5, other, BLOCKS), BLOCKS);
    empty_memory();
    ck_assert_int_eq(tierce_session_returns(fx.view, 5, SOON), 0); /* is due later */
    WAIT_FOR(fx_stats(&fx).ahead_chunks == CHUNKS);
    ck_assert_uint_eq(memory_blocks(chain, 6), 0);
    tierce_chain_destroy(other);
    end();
}
END_TEST

/* Without a hint: three gaps are learned. */
START_TEST(regular_gaps_bring_them_back_too)
{
    begin(on);
    for (uint64_t turn = 2; fx_stats(&fx).ahead_predictions == 0; turn++) {
        ck_assert_uint_lt(turn, 20);
        (void)memory_blocks(chain, turn);
        ck_assert_int_ge(store_as(turn, chain, BLOCKS), 0);
        empty_memory();
        uint64_t until_ns = tierce__deadline_in_ms(400);
        WAIT_FOR(fx_stats(&fx).ahead_predictions > 0 || tierce__now_ns() > until_ns);
    }
    WAIT_FOR(fx_stats(&fx).ahead_chunks == CHUNKS);
    ck_assert_uint_eq(memory_blocks(chain, 99), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).ahead_used_chunks, CHUNKS);
    end();
}
END_TEST

START_TEST(a_return_that_comes_first_finds_late_chunks)
{
    begin(on);
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule slow = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 1500};
    tierce__fault_set(disk, TIERCE__STORE_GET, &slow);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, SOON), 0);
    WAIT_FOR(fx_stats(&fx).ahead_predictions == 1);
    ck_assert_uint_eq(memory_blocks(chain, 2), 0);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.ahead_late_chunks, CHUNKS);
    ck_assert_int_eq(s.ahead_used_chunks, 0);
    WAIT_FOR(fx_stats(&fx).prefetch_bytes_now == 0); /* the piece that was in progress */
    end();
}
END_TEST

static void *load_all(void *arg)
{
    uint8_t origins[BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, arg, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    return NULL;
}

START_TEST(nothing_is_read_while_a_load_waits)
{
    begin(on);
    struct tierce_chain *other = fx_chain(&fx, 2, BLOCKS, 0);
    ck_assert_int_eq(store_as(5, other, BLOCKS), BLOCKS);
    empty_memory();
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule slow = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 1200};
    tierce__fault_set(disk, TIERCE__STORE_GET, &slow);
    pthread_t loader;
    ck_assert_int_eq(pthread_create(&loader, NULL, load_all, other), 0);
    WAIT_FOR(tierce__fetches_awaited(&fx.engine->fetches) == 1);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, 100), 0);
    WAIT_FOR(fx_stats(&fx).ahead_predictions == 1); /* due, and it waits */
    bool overtook = false;
    while (tierce__fetches_awaited(&fx.engine->fetches) == 1)
        overtook |= fx_stats(&fx).prefetches > 0;
    pthread_join(loader, NULL);
    ck_assert(!overtook);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    WAIT_FOR(fx_stats(&fx).ahead_chunks > 0);
    tierce_chain_destroy(other);
    end();
}
END_TEST

/* A budget of one chunk a second, and chunks that stay below a quarter of memory. */
START_TEST(the_budget_and_the_share_of_memory_hold)
{
    static const char *const sets[] = {"prefetch.ahead", "64KiB", "memory.size", "1MiB", NULL};
    begin(sets);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, 60000), 0);
    uint64_t from_ns = tierce__now_ns();
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, 3000), 0);
    WAIT_FOR(fx_stats(&fx).ahead_chunks >= 4);
    struct tierce_engine_stats s = fx_stats(&fx);
    double passed_s = (double)(tierce__now_ns() - from_ns) / 1e9;
    double chunk = (double)s.ahead_bytes / (double)s.ahead_chunks;
    /* A second's budget may have been saved, and the last piece may have been a chunk too much. */
    ck_assert_double_le((double)s.ahead_bytes, (passed_s + 1) * 65536 + 2 * chunk);
    ck_assert_int_le(s.ahead_bytes, (1 << 20) / 4 + (int64_t)chunk);
    end();
}
END_TEST

START_TEST(a_view_is_closed_while_its_chunks_are_read)
{
    begin(on);
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule slow = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 300};
    tierce__fault_set(disk, TIERCE__STORE_GET, &slow);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, 100), 0);
    WAIT_FOR(fx_stats(&fx).prefetches == 1);
    end();
}
END_TEST

START_TEST(failed_reads_end_the_prediction)
{
    begin(on);
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule broken = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(disk, TIERCE__STORE_GET, &broken);
    ck_assert_int_eq(tierce_session_returns(fx.view, 1, 100), 0);
    WAIT_FOR(fx_stats(&fx).prefetches == 1 && fx_stats(&fx).prefetch_bytes_now == 0);
    ck_assert_int_eq(fx_stats(&fx).ahead_chunks, 0);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    WAIT_FOR(fx_stats(&fx).disk_in_service_now == 1);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 3, NULL), BLOCKS);
    end();
}
END_TEST

/* Each allocation after the hint fails once: nothing is lost but the prediction. */
START_TEST(each_allocation_fails_once)
{
    begin(on);
    for (uint64_t nth = 1, made = nth; made >= nth; nth++) {
        uint64_t session = 10 + nth;
        ck_assert_uint_lt(nth, 200);
        ck_assert_int_ge(store_as(session, chain, BLOCKS), 0);
        empty_memory();
        int64_t before = fx_stats(&fx).ahead_predictions;
        uint64_t until_ns = tierce__deadline_in_ms(130);
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce_session_returns(fx.view, session, 100), 0);
        WAIT_FOR((fx_stats(&fx).ahead_predictions > before || tierce__now_ns() > until_ns) &&
                 fx_stats(&fx).prefetch_bytes_now == 0);
        made = tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 1000 + nth, NULL), BLOCKS);
    }
    end();
}
END_TEST

/* A real store in another region: 5 ms away. */
START_TEST(chunks_of_a_remote_store_are_back_before_the_return)
{
    struct redis_server server;
    struct delay_proxy proxy;
    char url[64];
    uint8_t origins[BLOCKS];
    uint64_t took_ns[2];
    silence_log();
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = i;
    ck_assert(redis_start(&server, NULL));
    delay_proxy_start(&proxy, "test_ahead", server.port, 5000);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)proxy.port);
    const char *sets[] = {"remote.urls", url, "prefetch.ahead", "256MiB", NULL};
    fx_open(&fx, false, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (uint64_t foreseen = 0; foreseen < 2; foreseen++) {
        ck_assert_int_eq(store_as(1 + foreseen, chain, BLOCKS), foreseen ? 0 : BLOCKS);
        empty_memory();
        if (foreseen) {
            ck_assert_int_eq(tierce_session_returns(fx.view, 1 + foreseen, SOON), 0);
            WAIT_FOR(fx_stats(&fx).ahead_chunks == CHUNKS);
        }
        uint64_t from_ns = tierce__now_ns();
        WAIT_FOR(fx_found(&fx, chain, BLOCKS, 0, 7 + foreseen, NULL) == BLOCKS);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
        what.session = 7 + foreseen;
        ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
        took_ns[foreseen] = tierce__now_ns() - from_ns;
        for (size_t b = 0; b < BLOCKS; b++)
            ck_assert_int_eq(origins[b], foreseen ? TIERCE_ORIGIN_MEMORY : TIERCE_ORIGIN_REMOTE);
    }
    fprintf(stderr, "lookup and load: %.2f ms from the store, %.2f ms if the return is foreseen\n",
            (double)took_ns[0] / 1e6, (double)took_ns[1] / 1e6);
    ck_assert_uint_gt(took_ns[0], 5 * TIERCE__MS_NS);
    ck_assert_int_eq(fx_stats(&fx).ahead_used_chunks, CHUNKS);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    delay_proxy_stop(&proxy);
    redis_stop(&server);
}
END_TEST

CHECK_MAIN("ahead", .seconds = 120,
           .tests = {a_hint_brings_the_chunks_back_before_the_return,
                     it_is_off_by_default_and_closed_ends_it, regular_gaps_bring_them_back_too,
                     a_return_that_comes_first_finds_late_chunks,
                     nothing_is_read_while_a_load_waits, the_budget_and_the_share_of_memory_hold,
                     a_view_is_closed_while_its_chunks_are_read, failed_reads_end_the_prediction,
                     each_allocation_fails_once,
                     chunks_of_a_remote_store_are_back_before_the_return})
