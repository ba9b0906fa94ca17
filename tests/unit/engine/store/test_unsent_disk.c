/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that the disk does not get are written later, or a flush returns their loss. */
#define FX_CHUNK_BLOCKS 1u /* 8 KiB */
#include "base/clock.h"
#include "check_main.h"
#include "engine/store/unsent.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "wait_for.h"

#include <errno.h>

enum { BLOCKS = 10, CHUNKS = BLOCKS, DISK = 1 };

static struct fixture fx;
static struct tierce__tier *fault;

static void open_engine(const char *setting, const char *value)
{
    fx_open(&fx, true,
            (const char *const[]){"memory.size", "16MiB", "breaker.errors", "1", "breaker.retry",
                                  "20ms", setting, value, NULL});
    record_log(TIERCE_LOG_INFO);
    fault = fx_wrap(&fx, DISK);
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    fx = (struct fixture){0};
}

static void fail_op(enum tierce__store_op op, int status)
{
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = status};
    tierce__fault_set(fault, op, status < 0 ? &rule : NULL);
}

static void fail_all(int status)
{
    fail_op(TIERCE__STORE_PUT, status);
    fail_op(TIERCE__STORE_GET, status);
    fail_op(TIERCE__STORE_LOOKUP, status);
}

static void store(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, false), BLOCKS);
    tierce_chain_destroy(chain);
}

/* Durable chunks, found by another engine on the same folder. */
static uint64_t found_there(uint32_t seed)
{
    fx_close(&fx);
    open_engine(NULL, NULL);
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    uint64_t found = fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
    tierce_chain_destroy(chain);
    return found;
}

static struct tierce__unsent_report report(void)
{
    struct tierce__unsent_report report;
    tierce__unsent_report(&fx.engine->levels[DISK], &report);
    return report;
}

static void try_at(uint64_t time_ns)
{
    tierce__lock_take(&fx.engine->lock);
    fx.engine->levels[DISK].unsent.try_ns = time_ns;
    tierce__lock_drop(&fx.engine->lock);
}

/* Stores a prompt that the queue drops. No chunk is written late before `try_at`. */
static void store_dropped(void)
{
    try_at(tierce__deadline_in_ms(600000));
    fail_op(TIERCE__STORE_PUT, TIERCE_E_FULL);
    store(1);
    WAIT_FOR(report().skipped[TIERCE__UNSENT_QUEUE] == CHUNKS);
    ck_assert_uint_eq(report().waiting, CHUNKS);
    fail_op(TIERCE__STORE_PUT, 0);
}

START_TEST(a_flush_writes_what_the_queue_dropped)
{
    open_engine(NULL, NULL);
    store_dropped();
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 50), TIERCE_E_DEADLINE);
    try_at(0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(report().sent_late, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).disk_durable_chunks_now, CHUNKS);
    WAIT_FOR(recorded_with("disk_puts_dropped", "tier=fault dropped=10 total=10 lost=0 ") == 1);
    ck_assert_uint_eq(recorded_with("disk_puts_dropped", "raise disk.queue"), 1);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

START_TEST(a_close_writes_it_too)
{
    open_engine(NULL, NULL);
    store_dropped();
    try_at(0);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

START_TEST(a_flush_returns_a_loss_once)
{
    open_engine(NULL, NULL);
    store_dropped();
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), CHUNKS);
    try_at(0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_FULL);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(report().lost, CHUNKS);
    end();
}
END_TEST

/* The queue is empty, so the disk has no space: no flush waits for what never comes. */
START_TEST(chunks_without_space_are_lost)
{
    open_engine(NULL, NULL);
    fail_op(TIERCE__STORE_PUT, TIERCE_E_FULL);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_FULL);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(report().lost, CHUNKS);
    end();
}
END_TEST

/* Neither written after the clear, nor lost. */
START_TEST(a_clear_ends_the_wait)
{
    open_engine(NULL, NULL);
    store_dropped();
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_DISK, NULL), 0);
    try_at(0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(report().waiting, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 0);
    end();
}
END_TEST

START_TEST(chunks_of_an_outage_are_written_when_it_ends)
{
    open_engine(NULL, NULL);
    store(2); /* chunks that the engine can read to probe the disk */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fail_all(-EIO);
    store(1);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0); /* of a write that failed */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_DOWN);
    ck_assert_uint_eq(recorded_with("disk_chunks_unsent", "tier=fault reason="), 1);
    fail_all(0);
    WAIT_FOR(report().sent_late == CHUNKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    WAIT_FOR(recorded_with("disk_chunks_sent", "sent=10 lost=0") == 1);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

/* A real queue that holds few chunks, and stores that are faster than the disk. */
START_TEST(a_burst_reaches_the_disk)
{
    enum { PROMPTS = 12 };
    open_engine("disk.queue", "32KiB");
    for (uint32_t prompt = 1; prompt <= PROMPTS; prompt++)
        store(prompt);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fprintf(stderr, "of %u chunks %lld were dropped, %llu written late, %llu lost\n",
            PROMPTS * CHUNKS, (long long)fx_stats(&fx).disk_dropped_puts,
            (unsigned long long)report().sent_late, (unsigned long long)report().lost);
    ck_assert_int_eq(fx_stats(&fx).disk_durable_chunks_now, PROMPTS * CHUNKS);
    end();
}
END_TEST

/* A disk that has accepted PUTs, and holds their buffers, until it is let go. */
static struct tierce__store_req *held[2048];
static size_t held_count;
static const struct tierce__tier_ops *passing_ops;

static void hold_puts(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op != TIERCE__STORE_PUT) {
        passing_ops->submit(tier, req);
        return;
    }
    tierce__buf_acquire(req->buf);
    held[held_count++] = req;
}

static void let_go(void)
{
    for (size_t i = 0; i < held_count; i++) {
        struct tierce__buf *buf = held[i]->buf;
        passing_ops->submit(fault, held[i]);
        tierce__buf_release(buf);
    }
}

/* With default settings, 1,024 chunks of 8 KiB fill the slots of memory, and half of the queue. */
START_TEST(small_chunks_that_wait_leave_slots_to_others)
{
    enum { PROMPTS = 120 };
    open_engine("memory.size", "64MiB");
    struct tierce__tier_ops holding = *fault->ops;
    passing_ops = fault->ops;
    holding.submit = hold_puts;
    fault->ops = &holding;
    for (uint32_t prompt = 1; prompt <= PROMPTS; prompt++)
        store(prompt);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.stores_skipped, 0);
    ck_assert_int_eq(s.disk_dropped_puts, PROMPTS * CHUNKS - 512);
    ck_assert_uint_eq(report().skipped[TIERCE__UNSENT_QUEUE], PROMPTS * CHUNKS - 512);
    fault->ops = passing_ops;
    let_go();
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_FULL); /* 1,200 > 1,024 */
    ck_assert_uint_eq(report().lost, PROMPTS * CHUNKS - 1024);
    end();
}
END_TEST

/* The disk stays in service: its chunks are read. */
START_TEST(chunks_for_a_disk_without_room_are_written_when_it_has_room)
{
    open_engine(NULL, NULL);
    fail_op(TIERCE__STORE_PUT, -ENOSPC);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -ENOSPC);
    WAIT_FOR(report().waiting == CHUNKS);
    ck_assert_uint_gt(report().skipped[TIERCE__UNSENT_FULL], 0);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0); /* as long as they wait */
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    ck_assert_uint_eq(recorded_with("disk_chunks_unsent", "reason=full"), 1);
    ck_assert_uint_eq(recorded_with("disk_chunks_unsent", "when the disk has room"), 1);
    fail_op(TIERCE__STORE_PUT, 0);
    WAIT_FOR(report().sent_late == CHUNKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(report().lost, 0);
    ck_assert_uint_eq(found_there(1), BLOCKS);
    end();
}
END_TEST

CHECK_MAIN("unsent_disk", .seconds = 60,
           .tests = {a_flush_writes_what_the_queue_dropped,
                     chunks_for_a_disk_without_room_are_written_when_it_has_room,
                     a_close_writes_it_too, a_flush_returns_a_loss_once,
                     chunks_without_space_are_lost, a_clear_ends_the_wait,
                     chunks_of_an_outage_are_written_when_it_ends, a_burst_reaches_the_disk,
                     small_chunks_that_wait_leave_slots_to_others})
