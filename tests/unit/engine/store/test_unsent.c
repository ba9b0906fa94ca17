/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that a remote store does not get are counted, logged, and sent when the store is back. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "delay_proxy.h"
#include "engine/observe/engine_metrics.h"
#include "engine/store/unsent.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "redis_server.h"
#include "wait_for.h"

#include <errno.h>

enum { BLOCKS = 40, CHUNKS = BLOCKS / FX_CHUNK_BLOCKS };

static struct fixture fx;
static char remote[48];
static struct tierce__tier *fault;
static size_t level; /* of the remote store */

static const char *errors_max = "1";

static void open_engine(bool disk, const char *parameters)
{
    char url[96];
    snprintf(url, sizeof(url), "file://%s%s", remote, parameters);
    fx_open(&fx, disk,
            (const char *const[]){"remote.urls", url, "breaker.errors", errors_max, "breaker.retry",
                                  "20ms", "memory.size", "16MiB", NULL});
    level = fx.engine->level_count - 1;
    fault = fx_wrap(&fx, level);
    record_log(TIERCE_LOG_INFO);
}

static void start(bool disk, const char *parameters)
{
    strcpy(remote, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(remote);
    open_engine(disk, parameters);
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    fx = (struct fixture){0};
    temp_folder_remove(remote);
}

/* The next `times` writes fail so; 0: all. */
static void fail_puts(int status, uint32_t times)
{
    tierce__fault_set(fault, TIERCE__STORE_PUT,
                      &(struct tierce__fault_rule){
                          .kind = TIERCE__FAULT_ERROR, .status = status, .times = times});
}

static void fail_all(int status)
{
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = status};
    static const enum tierce__store_op ops[] = {TIERCE__STORE_PUT, TIERCE__STORE_PING,
                                                TIERCE__STORE_GET, TIERCE__STORE_LOOKUP};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        tierce__fault_set(fault, ops[i], status < 0 ? &rule : NULL);
}

static void store(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    tierce_chain_destroy(chain);
}

/* What another engine finds in the store. */
static uint64_t found_there(uint32_t seed)
{
    fx_close(&fx);
    open_engine(false, "");
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    uint64_t found = fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
    tierce_chain_destroy(chain);
    return found;
}

static uint64_t skipped(enum tierce__unsent_reason reason)
{
    struct tierce__unsent_report report;
    tierce__unsent_report(&fx.engine->levels[level], &report);
    return report.skipped[reason];
}

static void check_page(const char *text)
{
    struct tierce__line page = {0};
    tierce__engine_status(fx.engine, &page);
    tierce__line_put_bytes(&page, "", 1);
    ck_assert_msg(!page.failed && strstr(page.text, text) != NULL, "%s is not in %s", text,
                  page.text);
    tierce__line_clear(&page);
}

/* Stores while the store is out of service. */
static void store_in_outage(void)
{
    fail_all(-EIO);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.remotes_in_service_now, 0);
    ck_assert_int_eq(s.remote_unsent_chunks, CHUNKS);
    ck_assert_int_eq(s.remote_unsent_now, CHUNKS);
    ck_assert_int_eq(s.remote_stored_chunks, 0);
    ck_assert_uint_eq(skipped(TIERCE__UNSENT_FAILED) + skipped(TIERCE__UNSENT_DOWN), CHUNKS);
    ck_assert_uint_eq(recorded_with("remote_chunks_unsent", "tier=fault reason="), 1);
}

START_TEST(chunks_of_an_outage_are_sent_when_it_ends)
{
    start(_i == 1, "");
    store_in_outage();
    /* Nothing has failed since, but the chunks are not there: not durable. */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_DOWN);
    if (_i == 1) /* they are on disk only */
        ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), CHUNKS);
    fail_all(0);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks == CHUNKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.remote_unsent_chunks, CHUNKS);
    ck_assert_int_eq(s.remote_unsent_now, 0);
    ck_assert_int_eq(s.remote_lost_chunks, 0);
    WAIT_FOR(recorded_with("remote_chunks_sent", "sent=10 lost=0") == 1);
    ck_assert_uint_eq(recorded_with("tier_in_service", "unsent_chunks=10"), 1);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

START_TEST(chunks_that_are_gone_are_lost)
{
    start(false, "");
    store_in_outage();
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), CHUNKS);
    fail_all(0);
    WAIT_FOR(recorded_with("remote_chunks_sent", "sent=0 lost=10 hint=") == 1);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_now, 0);
    end();
}
END_TEST

START_TEST(an_engine_that_closes_with_them_logs_it)
{
    start(false, "");
    store_in_outage();
    end();
    ck_assert_uint_eq(recorded_with("remote_chunks_left", "tier=fault chunks=10 "), 1);
}
END_TEST

/* The store is in service: what its queue dropped is sent once there is room. */
START_TEST(chunks_that_a_full_queue_dropped_are_sent_later)
{
    start(false, "");
    fail_puts(TIERCE_E_FULL, 0);
    store(1);
    WAIT_FOR(skipped(TIERCE__UNSENT_QUEUE) == CHUNKS);
    tierce__fault_set(fault, TIERCE__STORE_PUT, NULL);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks == CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    WAIT_FOR(recorded_with("remote_puts_dropped", "tier=fault dropped=10 total=10 ") == 1);
    ck_assert_uint_eq(recorded_with("remote_puts_dropped", "remote.queue"), 1);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

/* A store without room stays in service: its chunks are read. */
START_TEST(chunks_that_a_full_store_did_not_take_are_sent_when_it_has_room)
{
    start(false, "");
    fail_puts(-ENOSPC, 0);
    store(1);
    WAIT_FOR(skipped(TIERCE__UNSENT_FULL) > 0 && fx_stats(&fx).remote_unsent_now == CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0); /* as long as chunks wait */
    ck_assert_uint_eq(recorded_with("remote_chunks_unsent", "reason=full effect="), 1);
    ck_assert_uint_eq(recorded_with("remote_chunks_unsent", "when the store has room"), 1);
    tierce__fault_set(fault, TIERCE__STORE_PUT, NULL);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks == CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, 0);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

/* A pass that fails at its beginning, or after some chunks, loses nothing: the order is kept. */
START_TEST(a_pass_that_fails_is_repeated)
{
    start(false, "");
    store_in_outage();
    fail_all(0);
    tierce__fault_set(fault, TIERCE__STORE_PUT,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR,
                                                   .status = _i % 2 == 0 ? -EIO : TIERCE_E_FULL,
                                                   .skip = (uint32_t)_i / 2,
                                                   .times = 3});
    WAIT_FOR(fx_stats(&fx).remote_unsent_now == 0);
    ck_assert_int_eq(fx_stats(&fx).remote_sent_late_chunks, CHUNKS);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

/* The store answers the first chunk last: its successors wait for it, and keep their order. */
START_TEST(an_early_chunk_that_is_answered_late_goes_first)
{
    enum { LATE_MS = 1000 };
    start(false, "");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    tierce__fault_set(
        fault, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){
            .kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_FULL, .delay_ms = LATE_MS, .times = 1});
    ck_assert_int_eq(fx_store(&fx, chain, FX_CHUNK_BLOCKS, fx_ids, false), FX_CHUNK_BLOCKS);
    fail_puts(_i == 0 ? TIERCE_E_FULL : TIERCE_E_DOWN, CHUNKS - 1);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS - FX_CHUNK_BLOCKS);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks + fx_stats(&fx).remote_lost_chunks == CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, 0);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static uint64_t next_try_ns(void)
{
    tierce__lock_take(&fx.engine->lock);
    uint64_t next_ns = fx.engine->levels[level].unsent.try_ns;
    tierce__lock_drop(&fx.engine->lock);
    return next_ns;
}

/* Links that wait before they connect again refuse at once, which does not count for the breaker.
 */
START_TEST(a_store_that_refuses_at_once_is_not_asked_all_the_time)
{
    errors_max = "1000000";
    start(false, "");
    fail_puts(TIERCE_E_DOWN, 0);
    uint64_t began_ns = tierce__now_ns();
    store(1);
    WAIT_FOR(next_try_ns() > began_ns);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    tierce__fault_set(fault, TIERCE__STORE_PUT, NULL);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks == CHUNKS);
    end();
}
END_TEST

/* A real store behind a network of 30 ms, a queue for two prompts, and stores that are faster: what
 * the queue dropped follows. */
START_TEST(a_burst_reaches_a_slow_store)
{
    enum { PROMPTS = 12 };
    struct redis_server server;
    struct delay_proxy proxy;
    char url[64];
    ck_assert(redis_start(&server, NULL));
    delay_proxy_start_with(
        &proxy, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                 .port = server.port,
                                                 .round_trip_ns = 30 * TIERCE__MS_NS,
                                                 .bytes_per_s = 50000000});
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)proxy.port);
    fx_open(&fx, false,
            (const char *const[]){"remote.urls", url, "memory.size", "16MiB", "remote.queue",
                                  "256KiB", NULL});
    record_log(TIERCE_LOG_WARN);
    for (uint32_t prompt = 1; prompt <= PROMPTS; prompt++)
        store(prompt);
    WAIT_FOR(fx_stats(&fx).remote_stored_chunks == PROMPTS * CHUNKS);
    struct tierce_engine_stats s = fx_stats(&fx);
    fprintf(stderr, "of %u chunks %lld were dropped, %lld sent late, %lld lost\n", PROMPTS * CHUNKS,
            (long long)s.remote_dropped_puts, (long long)s.remote_sent_late_chunks,
            (long long)s.remote_lost_chunks);
    ck_assert_int_gt(s.remote_dropped_puts, 0);
    ck_assert_int_eq(s.remote_lost_chunks, 0);
    WAIT_FOR(fx_stats(&fx).remote_unsent_now == 0); /* counted after the answer */
    WAIT_FOR(recorded_with("remote_puts_dropped", "tier=redis dropped=") == 1);
    fx_close(&fx);
    fx_remove(&fx);
    fx = (struct fixture){0};
    delay_proxy_stop(&proxy);
    redis_stop(&server);
}
END_TEST

/* Without a key nothing ends by itself: the chunk is counted, and its successors are. */
START_TEST(a_chunk_without_a_key_and_its_successors_are_counted)
{
    start(false, "");
    fail_puts(TIERCE_E_NO_KEY, 1);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(skipped(TIERCE__UNSENT_NO_KEY), 1);
    ck_assert_uint_eq(skipped(TIERCE__UNSENT_REFUSED), CHUNKS - 1);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_now, 0);
    end();
}
END_TEST

/* A successor that is stored while its predecessor waits follows it. */
START_TEST(a_successor_of_a_chunk_that_waits_is_sent_after_it)
{
    start(false, "");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    tierce__lock_take(&fx.engine->lock);
    fx.engine->levels[level].unsent.try_ns = tierce__deadline_in_ms(600000); /* no attempt yet */
    tierce__lock_drop(&fx.engine->lock);
    fail_puts(TIERCE_E_FULL, 1);
    ck_assert_int_eq(fx_store(&fx, chain, FX_CHUNK_BLOCKS, fx_ids, false), FX_CHUNK_BLOCKS);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS - FX_CHUNK_BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(skipped(TIERCE__UNSENT_REFUSED), CHUNKS - 1);
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_now, CHUNKS);
    tierce__lock_take(&fx.engine->lock);
    fx.engine->levels[level].unsent.try_ns = 0;
    tierce__lock_drop(&fx.engine->lock);
    WAIT_FOR(fx_stats(&fx).remote_sent_late_chunks == CHUNKS);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* The bound: the last ones are kept, without a request that allocates. */
START_TEST(only_the_last_ones_are_remembered)
{
    enum { MORE = 7 };
    start(false, "");
    struct tierce__storage_chunk chunk = {.object_bytes = 8192, .block_count = 1};
    fail_all(-EIO);
    store(1);
    WAIT_FOR(fx_stats(&fx).remote_unsent_now == CHUNKS);
    for (uint32_t i = 0; i < TIERCE__UNSENT_MAX - CHUNKS + MORE; i++)
        tierce__unsent_note(&fx.engine->levels[level],
                            &(struct tierce__unsent_answer){
                                .chunk = &chunk, .serial = 1000 + i, .status = TIERCE_E_DOWN});
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_now, TIERCE__UNSENT_MAX);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, MORE);
    fail_all(0); /* of the prompt, the oldest are forgotten, so the others lack their prefix */
    WAIT_FOR(fx_stats(&fx).remote_unsent_now == 0);
    ck_assert_int_eq(fx_stats(&fx).remote_sent_late_chunks, 0);
    end();
}
END_TEST

/* A store that permits only reads stays in service; retries would not help. */
START_TEST(chunks_that_the_store_rejects_are_not_sent_again)
{
    start(false, "");
    fail_puts(-EACCES, 0);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EACCES);
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_chunks, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).remote_lost_chunks, CHUNKS);
    end();
    start(false, "?read_only=true");
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).remote_unsent_chunks, 0); /* none is to be sent */
    end();
}
END_TEST

START_TEST(the_state_is_degraded_while_a_store_is_out_of_service)
{
    start(false, "");
    check_page("\"state\":\"ok\",\"state_reason\":\"\"");
    store_in_outage();
    check_page("\"state\":\"degraded\",\"state_reason\":\"out of service: fault\"");
    check_page("\"unsent_waiting\":10");
    size_t bytes;
    char *metrics = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(strstr(metrics, "tierce_tier_unsent_waiting{tier=\"fault\"} 10"));
    ck_assert_ptr_nonnull(
        strstr(metrics, "tierce_tier_unsent_chunks_total{tier=\"fault\",reason=\"failed\"} "));
    tierce__free(metrics);
    fail_all(0);
    WAIT_FOR(fx_stats(&fx).remotes_in_service_now == 1);
    check_page("\"state\":\"ok\",\"state_reason\":\"\"");
    end();
}
END_TEST

CHECK_MAIN("unsent", .seconds = 180,
           .tests = {chunks_that_are_gone_are_lost, an_engine_that_closes_with_them_logs_it,
                     chunks_that_a_full_queue_dropped_are_sent_later,
                     chunks_that_a_full_store_did_not_take_are_sent_when_it_has_room,
                     a_store_that_refuses_at_once_is_not_asked_all_the_time,
                     a_burst_reaches_a_slow_store,
                     a_chunk_without_a_key_and_its_successors_are_counted,
                     a_successor_of_a_chunk_that_waits_is_sent_after_it,
                     only_the_last_ones_are_remembered,
                     chunks_that_the_store_rejects_are_not_sent_again,
                     the_state_is_degraded_while_a_store_is_out_of_service},
           .loops = {{chunks_of_an_outage_are_sent_when_it_ends, 0, 2},
                     {an_early_chunk_that_is_answered_late_goes_first, 0, 2},
                     {a_pass_that_fails_is_repeated, 0, 8}})
