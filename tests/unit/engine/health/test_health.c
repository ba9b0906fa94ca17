/* SPDX-License-Identifier: Apache-2.0 */
/* How a tier does, and what follows from it: out of service and back, what is worth loading. */
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "health_clock.h"
#include "log_record.h"
#include "tier_fault.h"

#include <errno.h>
#include <tierce/why.h>

/* One request that takes `ms` and ends with `status`. */
static enum tierce__health_change answer(enum tierce__store_op op, int status, uint32_t ms)
{
    struct tierce__store_req req = {
        .op = op, .keys = &key, .key_count = 1, .length = 1u << 20, .status = status};
    ck_assert(tierce__health_pass(&health, &req));
    req.begun_ns -= ms * TIERCE__MS_NS;
    return tierce__health_note(&health, &req);
}

/* One request that ends with a failure that is already known, as late as a hanging store. */
static enum tierce__health_change repeat(enum tierce__store_op op, int status)
{
    struct tierce__store_req req = {.op = op, .keys = &key, .key_count = 1, .repeats = true};
    ck_assert(tierce__health_pass(&health, &req));
    ck_assert(!req.repeats);
    req.begun_ns -= 100 * TIERCE__MS_NS;
    req.status = status;
    req.repeats = true;
    return tierce__health_note(&health, &req);
}

static bool passes(enum tierce__store_op op)
{
    struct tierce__store_req req = {
        .op = op, .keys = &key, .key_count = 1, .status = TIERCE_E_MISS};
    bool pass = tierce__health_pass(&health, &req);
    if (pass)
        tierce__health_note(&health, &req); /* a miss shows nothing */
    return pass;
}

START_TEST(failures_in_a_row_end_service_and_a_try_brings_it_back)
{
    setup(3, 0, 0);
    struct tierce__key proven = {.ns = 7};
    ck_assert(!tierce__health_proven(&health, &proven));
    ck_assert_uint_eq(proven.ns, 7);
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_PUT, TIERCE_E_DEADLINE, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_MISS, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_LOOKUP, 0, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(tierce__health_state(&health), TIERCE__HEALTH_CLOSED);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_DOWN, 0), TIERCE__HEALTH_LOST);
        ck_assert_int_eq(tierce__health_state(&health), TIERCE__HEALTH_OPEN);
        ck_assert(!passes(TIERCE__STORE_GET));
        ck_assert(!passes(TIERCE__STORE_LOOKUP));
        ck_assert(!tierce__health_is_due(&health));
        let_pass(31);
        ck_assert_int_eq(tierce__health_state(&health), TIERCE__HEALTH_HALF_OPEN);
        ck_assert(tierce__health_is_due(&health));
        ck_assert(!passes(TIERCE__STORE_LOOKUP));
        ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME); /* not yet */
        ck_assert(!passes(TIERCE__STORE_GET));
        let_pass(31);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_BACK);
        ck_assert_int_eq(tierce__health_state(&health), TIERCE__HEALTH_CLOSED);
    }
    ck_assert(tierce__health_proven(&health, &proven));
    ck_assert_uint_eq(proven.ns, key.ns);
    tierce__health_fini(&health);
}
END_TEST

/* A file system without room fails writes. Its chunks can be read. */
START_TEST(a_full_disk_stays_in_service)
{
    static const int full[] = {-ENOSPC, -EDQUOT};
    setup(3, 5, 0);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(answer(TIERCE__STORE_PUT, full[i % 2], 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_FLUSH, full[i % 2], 0), TIERCE__HEALTH_SAME);
        ck_assert(tierce__health_serves(&health));
    }
    /* Nor does it show that the device works. */
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_PUT, -ENOSPC, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_LOST);
    let_pass(31);
    ck_assert_int_eq(answer(TIERCE__STORE_PUT, -ENOSPC, 0), TIERCE__HEALTH_SAME);
    ck_assert(!tierce__health_serves(&health));
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_BACK);
    tierce__health_fini(&health);
}
END_TEST

/* A store that permits only reads fails writes. Its chunks can be read. */
START_TEST(a_read_only_disk_stays_in_service)
{
    static const int rejected[] = {-EROFS, -EACCES, -EPERM};
    setup(3, 5, 0);
    for (int i = 0; i < 99; i++) {
        ck_assert_int_eq(answer(TIERCE__STORE_PUT, rejected[i % 3], 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_FLUSH, rejected[i % 3], 0), TIERCE__HEALTH_SAME);
        ck_assert(tierce__health_serves(&health));
    }
    for (int i = 0; i < 3; i++) /* reads that are rejected are failures */
        ck_assert_int_eq(answer(TIERCE__STORE_GET, rejected[i], 0),
                         i < 2 ? TIERCE__HEALTH_SAME : TIERCE__HEALTH_LOST);
    tierce__health_fini(&health);
}
END_TEST

/* The failure of one connection answers several requests. */
START_TEST(a_repeated_failure_counts_once)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET, TIERCE__STORE_PUT,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_PING};
    setup(3, 8, 0);
    health.shared = true;
    ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(repeat(ops[i % 4], TIERCE_E_DOWN), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(repeat(ops[i % 4], TIERCE_E_DEADLINE), TIERCE__HEALTH_SAME);
        ck_assert(tierce__health_serves(&health));
    }
    /* Nor does it show that the store works. */
    ck_assert_int_eq(answer(TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_PUT, TIERCE_E_DOWN, 0), TIERCE__HEALTH_LOST);
    for (int i = 0; i < 2; i++) { /* it answers no probe, so that another one may follow */
        let_pass(31);
        ck_assert_int_eq(repeat(i == 0 ? TIERCE__STORE_GET : TIERCE__STORE_PING, TIERCE_E_DOWN),
                         TIERCE__HEALTH_SAME);
        ck_assert(!tierce__health_serves(&health) && tierce__health_is_due(&health));
    }
    ck_assert_int_eq(answer(TIERCE__STORE_PING, 0, 0), TIERCE__HEALTH_BACK);
    tierce__health_fini(&health);
}
END_TEST

/* A disk answers misses from its index in memory; a shared store answers them itself, so a miss
 * proves that it is healthy, even if it lost all its chunks. */
START_TEST(a_no_brings_a_shared_tier_back)
{
    for (int shared = 0; shared < 2; shared++) {
        setup(1, 0, 0);
        health.shared = shared == 1;
        ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_DOWN, 0), TIERCE__HEALTH_LOST);
        let_pass(31);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_CANCELLED, 0), TIERCE__HEALTH_SAME);
        ck_assert(!tierce__health_serves(&health));
        ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_MISS, 0),
                         shared ? TIERCE__HEALTH_BACK : TIERCE__HEALTH_SAME);
        ck_assert_int_eq(tierce__health_serves(&health), shared);
        tierce__health_fini(&health);
    }
}
END_TEST

/* A lookup of a shared store that is not through by its deadline. */
static enum tierce__health_change answer_late(uint32_t deadline_ms, size_t found)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                    .keys = &key,
                                    .key_count = 1,
                                    .status = TIERCE_E_DEADLINE,
                                    .found = found};
    ck_assert(tierce__health_pass(&health, &req));
    req.begun_ns -= deadline_ms * TIERCE__MS_NS;
    req.deadline_ns = req.begun_ns + deadline_ms * TIERCE__MS_NS;
    return tierce__health_note(&health, &req);
}

START_TEST(the_deadline_of_a_lookup_is_no_failure)
{
    setup(2, 4, 0);
    health.shared = true;
    for (int i = 0; i < 100; i++) /* 20 ms: the time of a load */
        ck_assert_int_eq(answer_late(19, 0), TIERCE__HEALTH_SAME);
    /* An answer in part is an answer. */
    ck_assert_int_eq(answer(TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer_late(25, 1), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer_late(25, 0), TIERCE__HEALTH_LOST); /* none in all that time is */
    tierce__health_fini(&health);
}
END_TEST

/* A store that answers is asked again, though nothing is known that it has; it is not a reading. */
START_TEST(a_ping_brings_a_shared_tier_back)
{
    struct tierce__key proven;
    setup(1, 0, 0);
    health.shared = true;
    ck_assert_int_eq(answer(TIERCE__STORE_PUT, TIERCE_E_DOWN, 0), TIERCE__HEALTH_LOST);
    let_pass(31);
    ck_assert_int_eq(answer(TIERCE__STORE_PING, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    ck_assert(!tierce__health_serves(&health) && !tierce__health_is_due(&health));
    let_pass(31);
    ck_assert(tierce__health_is_due(&health));
    ck_assert_int_eq(answer(TIERCE__STORE_PING, 0, 0), TIERCE__HEALTH_BACK);
    ck_assert(tierce__health_serves(&health) && !tierce__health_proven(&health, &proven));
    tierce__health_fini(&health);
}
END_TEST

/* Chunks of peers are read without the manager, which is what has failed. */
START_TEST(a_read_does_not_bring_a_tier_back_that_pings)
{
    setup(1, 0, 0);
    health.shared = health.pings = true;
    struct tierce__store_req early = {
        .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 4096};
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_SAME);
    ck_assert(tierce__health_pass(&health, &early));
    ck_assert_int_eq(answer(TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, 0), TIERCE__HEALTH_LOST);
    ck_assert_int_eq(tierce__health_note(&health, &early), TIERCE__HEALTH_SAME);
    ck_assert(!tierce__health_serves(&health));
    let_pass(31);
    ck_assert(tierce__health_is_due(&health));
    ck_assert(!passes(TIERCE__STORE_GET));
    ck_assert_int_eq(answer(TIERCE__STORE_PING, TIERCE_E_DOWN, 0), TIERCE__HEALTH_SAME);
    let_pass(31);
    ck_assert_int_eq(answer(TIERCE__STORE_PING, 0, 0), TIERCE__HEALTH_BACK);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_SAME);
    tierce__health_fini(&health);
}
END_TEST

START_TEST(one_try_at_a_time)
{
    setup(1, 0, 0);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_LOST);
    let_pass(31);
    struct tierce__store_req first = {.op = TIERCE__STORE_GET, .keys = &key, .key_count = 1};
    struct tierce__store_req second = first;
    ck_assert(tierce__health_pass(&health, &first));
    ck_assert(!tierce__health_pass(&health, &second));
    ck_assert(!tierce__health_is_due(&health));
    ck_assert_int_eq(tierce__health_note(&health, &first), TIERCE__HEALTH_BACK);
    ck_assert(tierce__health_pass(&health, &second));
    ck_assert_int_eq(tierce__health_note(&health, &second), TIERCE__HEALTH_SAME);
    tierce__health_fini(&health);
}
END_TEST

START_TEST(failing_now_and_then_ends_service_too)
{
    setup(1000, 8, 0);
    for (int i = 0; i < 7; i++) {
        ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
        ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_SAME);
    }
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_LOST);
    let_pass(31);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_BACK);
    /* Failures that opened the breaker do not count again; nor do failures older than the
     * window. */
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
    for (unsigned i = 0; i < TIERCE__HEALTH_WINDOW; i++)
        ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 0), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, -EIO, 0), TIERCE__HEALTH_SAME);
    tierce__health_fini(&health);
}
END_TEST

START_TEST(an_answer_that_came_too_late_is_a_failure)
{
    setup(2, 0, 50);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 40), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_GET, 0, 60), TIERCE__HEALTH_SAME);
    ck_assert_int_eq(answer(TIERCE__STORE_PUT, 0, 60), TIERCE__HEALTH_LOST);
    tierce__health_fini(&health);
}
END_TEST

/* Two requests that end at their deadline after 25 ms; if `answered`, another is answered
 * meanwhile. */
static enum tierce__health_change let_time_pass(bool answered)
{
    struct tierce__store_req a = {.op = TIERCE__STORE_GET, .keys = &key, .key_count = 1}, b = a,
                             c = a;
    let_pass(1);
    ck_assert(tierce__health_pass(&health, &a) && tierce__health_pass(&health, &b));
    ck_assert(tierce__health_pass(&health, &c));
    a.status = b.status = TIERCE_E_DEADLINE;
    let_pass(25);
    if (answered)
        tierce__health_note(&health, &c);
    enum tierce__health_change change = tierce__health_note(&health, &a);
    ck_assert_int_eq(tierce__health_note(&health, &b), TIERCE__HEALTH_SAME);
    return change;
}

START_TEST(a_tier_that_is_silent_to_the_deadline_hangs)
{
    setup(1000, 60, 0);
    ck_assert_int_eq(let_time_pass(true), TIERCE__HEALTH_SAME); /* slow, but alive */
    ck_assert(tierce__health_serves(&health));
    ck_assert_int_eq(let_time_pass(false), TIERCE__HEALTH_LOST);
    ck_assert(!tierce__health_serves(&health));
    tierce__health_fini(&health);
    setup(1000, 60, 0);
    /* A deadline that was shorter says nothing. */
    ck_assert_int_eq(answer(TIERCE__STORE_GET, TIERCE_E_DEADLINE, 1), TIERCE__HEALTH_SAME);
    tierce__health_fini(&health);
    setup(1000, 0, 0); /* only failures in a row count */
    ck_assert_int_eq(let_time_pass(false), TIERCE__HEALTH_SAME);
    tierce__health_fini(&health);
}
END_TEST

/* ---- cost ---- */

START_TEST(what_takes_longer_than_computing_is_not_worth_it)
{
    const uint8_t disk[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const uint8_t mixed[8] = {0, 0, 1, 2, 2, 2, 2, 2};
    struct tierce__cost_tier tiers[3] = {{0}, {0.001, 1e9}, {0.1, 1e8}};
    /* 1 MB chunks of 256 tokens. Computing at 10,000 tokens/s takes 25.6 ms a chunk, disk 1 ms. */
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 8, 1000000, 256, 10000), 8);
    /* At 1 M tokens/s 0.256 ms. */
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 8, 1000000, 256, 1000000), 0);
    /* The slow tier: 100 ms and 10 ms a chunk, while two chunks of memory and one of disk cost
     * nothing: it saves 25.6 * 5 = 128 and costs 150. */
    ck_assert_uint_eq(tierce__cost_worth(tiers, mixed, 8, 1000000, 256, 10000), 3);
    tiers[2].latency_s = 0.01;
    ck_assert_uint_eq(tierce__cost_worth(tiers, mixed, 8, 1000000, 256, 10000), 8);
    /* A latency that only many chunks pay for. */
    tiers[1] = (struct tierce__cost_tier){0.1, 1e9};
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 3, 1000000, 256, 10000), 0);
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 8, 1000000, 256, 10000), 8);
    /* With unknown costs, loading is assumed to be worthwhile. */
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 8, 1000000, 256, 0), 8);
    tiers[1].bytes_per_s = 0;
    ck_assert_uint_eq(tierce__cost_worth(tiers, disk, 8, 1000000, 256, 1e9), 8);
}
END_TEST

static struct fixture fx;

/* Blocks are found, told to be slower to load than to compute, and found no more. */
START_TEST(a_slow_disk_is_not_promised)
{
    const char *sets[] = {"memory.size", "8MiB", NULL};
    uint8_t origins[4];
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_open(&fx, true, sets);
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    tierce__fault_set(disk, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 50});
    tierce_view_computed(fx.view, 1000000, 1000000000);        /* a token a microsecond */
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4); /* nobody knows the disk yet */
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 4);
    /* Out of memory, so that it is the disk again that is asked. */
    fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, UINT64_MAX);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).blocks_not_worth, 4);
    ck_assert_int_eq(fx_stats(&fx).misses_not_worth_loading, 1);
    struct tierce_miss miss = {.size = sizeof(miss)};
    ck_assert_int_eq(tierce_why(fx.view, chain, 0, 4, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NOT_WORTH_LOADING);
    /* An engine that computes slowly takes it. */
    for (int i = 0; i < 10; i++)
        tierce_view_computed(fx.view, 10, 20000000000u);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static uint64_t reads_of(struct tierce__tier *tier)
{
    struct tierce__tier_stats stats;
    tier->ops->stats(tier, &stats);
    return stats.get_chunks;
}

/* Makes the numbers of the disk as old as they must be to be measured anew. */
static void grow_old(void)
{
    struct tierce__level *level = &fx.engine->levels[1];
    tierce__lock_take(&level->health.lock);
    level->health.measured_ns -= 11 * 1000 * TIERCE__MS_NS;
    tierce__lock_drop(&level->health.lock);
    atomic_store(&level->measure_tried_ns, 0);
}

/* Chunks that are not worth loading are read for measurement, and no request waits for that. */
START_TEST(a_slow_disk_is_measured_with_nobody_waiting)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *disk = fx_wrap(&fx, 1), *memory = fx.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    tierce__fault_set(disk, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 1500});
    tierce_view_computed(fx.view, 160, 1000000000); /* the chunk in a tenth of a second */
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 4);
    memory->ops->evict(memory, UINT64_MAX);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    ck_assert_uint_eq(reads_of(disk), 1); /* what is new is not measured */
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    uint64_t give_up = tierce__deadline_in_ms(20000);
    for (uint64_t found = 0; found == 0 && tierce__now_ns() < give_up; usleep(10000)) {
        grow_old();
        uint64_t reads = reads_of(disk);
        found = fx_found(&fx, chain, 4, 0, 0, NULL);
        ck_assert_uint_le(reads_of(disk), reads + 1);
        ck_assert(found == 0 || reads > 1);
    }
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(what_the_configuration_says_is_taken)
{
    const char *slow[] = {"cost.read", "1KB", "cost.prefill", "1000000", NULL};
    const char *off[] = {"cost.read", "1KB", "cost.prefill", "1000000", "cost.check",
                         "false",     NULL};
    fx_open(&fx, true, _i == 0 ? slow : off);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4); /* memory is always worth it */
    fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, UINT64_MAX);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), _i == 0 ? 0 : 4);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Or else it would be computed each time that memory has lost it. */
START_TEST(what_is_sooner_computed_is_put_into_memory_again)
{
    const char *slow[] = {"cost.read", "1KB", "cost.prefill", "1000000", NULL};
    fx_open(&fx, true, slow);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0), *start = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    memory->ops->evict(memory, UINT64_MAX);
    tierce__fault_set(fx_wrap(&fx, 1), TIERCE__STORE_PUT, /* it has all of it */
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    what.session = 7;
    ck_assert_int_eq(tierce_store(fx.view, &what), 0); /* nobody looked: it may be held above us */
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 7, NULL), 0);
    ck_assert_int_eq(tierce_store(fx.view, &what), 16);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 16);

    /* Behind what was promised. */
    memory->ops->evict(memory, UINT64_MAX);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 8, NULL), 0);
    struct tierce_transfer_opts first = fx_what(&fx, start, 0, 4, fx_ids);
    first.session = 8;
    ck_assert_int_eq(tierce_store(fx.view, &first), 4);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 9, NULL), 4);
    memory->ops->evict(memory, UINT64_MAX);
    what.session = 9;
    ck_assert_int_eq(tierce_store(fx.view, &what), 12);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 0);

    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce_chain_destroy(start);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The keeper tries it; nobody has to ask. The log has one line for the loss and one for the return.
 */
START_TEST(a_tier_comes_back_by_itself)
{
    record_log(TIERCE_LOG_WARN);
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "20ms", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0), *other = fx_chain(&fx, 2, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__fault_set(
        fx_wrap(&fx, 1), TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    ck_assert_int_eq(fx_store(&fx, other, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    uint64_t deadline = tierce__deadline_in_ms(60000);
    while (fx_stats(&fx).breaker_recoveries == 0 && tierce__now_ns() < deadline)
        usleep(5000);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.breaker_trips, 1);
    ck_assert_int_eq(s.breaker_recoveries, 1);
    ck_assert_int_eq(s.disk_in_service_now, 1);
    ck_assert_uint_eq(recorded_with("tier_out_of_service", "last_error=\"Input/output error\""), 1);
    ck_assert_uint_eq(recorded("tier_in_service"), 1);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Also if nothing has been read or written since the engine was opened. */
START_TEST(a_tier_comes_back_that_never_answered)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "20ms", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    fx_close(&fx);
    fx_open(&fx, true, sets);
    tierce__fault_set(
        fx_wrap(&fx, 1), TIERCE__STORE_GET,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 2});
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 4, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 0);
    uint64_t deadline = tierce__deadline_in_ms(60000);
    while (fx_stats(&fx).breaker_recoveries == 0 && tierce__now_ns() < deadline)
        usleep(5000);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Without a chunk that a probe could read, and without another store. */
START_TEST(an_empty_disk_comes_back_by_itself)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "20s", NULL};
    clock_ns = tierce__now_ns(); /* the engine's threads never see it go back */
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    tierce__fault_set(
        fx_wrap(&fx, 1), TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    let_pass(19000);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 0);
    let_pass(1001);
    while (fx_stats(&fx).breaker_recoveries == 0)
        usleep(1000);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    clock_ns = 0;
}
END_TEST

START_TEST(recompute_all_asks_nobody_during_an_outage)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "60s", "breaker.fallback",
                          "recompute",      NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 4);
    tierce__fault_set(
        fx_wrap(&fx, 1), TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    struct tierce_chain *other = fx_chain(&fx, 2, 4, 0);
    ck_assert_int_eq(fx_store(&fx, other, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("health", .seconds = 60,
           .tests = {failures_in_a_row_end_service_and_a_try_brings_it_back,
                     a_full_disk_stays_in_service,
                     a_read_only_disk_stays_in_service,
                     a_repeated_failure_counts_once,
                     a_no_brings_a_shared_tier_back,
                     a_ping_brings_a_shared_tier_back,
                     a_read_does_not_bring_a_tier_back_that_pings,
                     one_try_at_a_time,
                     failing_now_and_then_ends_service_too,
                     an_answer_that_came_too_late_is_a_failure,
                     a_tier_that_is_silent_to_the_deadline_hangs,
                     the_deadline_of_a_lookup_is_no_failure,
                     what_takes_longer_than_computing_is_not_worth_it,
                     a_slow_disk_is_not_promised,
                     a_slow_disk_is_measured_with_nobody_waiting,
                     what_is_sooner_computed_is_put_into_memory_again,
                     a_tier_comes_back_by_itself,
                     a_tier_comes_back_that_never_answered,
                     an_empty_disk_comes_back_by_itself,
                     recompute_all_asks_nobody_during_an_outage},
           .loops = {{what_the_configuration_says_is_taken, 0, 2}})
