/* SPDX-License-Identifier: Apache-2.0 */
/* Block jobs: a region of host memory, whose blocks go to the tiers of an engine and come back. */
#include "check_main.h"
#include "child_exit.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "wait_for.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "engine/jobs/block_jobs.h"

enum { BLOCKS = 48, BYTES = 3000, GROUPS = 3, TIMEOUT_MS = 60000 };

#define DISK 1

static struct fixture fx;
static struct tierce_view *views[GROUPS]; /* the second one is NULL */
static struct tierce__block_jobs *jobs;
static uint8_t region[BLOCKS * BYTES];

/* ---- blocks ---------------------------------------------------------------------------------- */

static struct tierce__block block_at(uint32_t number, uint32_t place)
{
    struct tierce__block out = {.key.view = number % 2 * 2, .offset = (uint64_t)place * BYTES};
    for (size_t i = 0; i < TIERCE_HASH_BYTES; i++)
        out.key.hash[i] = (uint8_t)(number >> i % 4 * 8) ^ (uint8_t)(i * 37);
    return out;
}

static struct tierce__block block_of(uint32_t number)
{
    return block_at(number, number % BLOCKS);
}

static void fill(uint32_t number)
{
    for (size_t i = 0; i < BYTES; i++)
        region[number % BLOCKS * BYTES + i] = (uint8_t)(number * 31 + i * 7);
}

static bool is_right(uint32_t number, uint32_t place)
{
    for (size_t i = 0; i < BYTES; i++) {
        if (region[place * BYTES + i] != (uint8_t)(number * 31 + i * 7))
            return false;
    }
    return true;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static struct tierce_view *open_view(const char *layout)
{
    static const uint32_t cell = BYTES;
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *view;
    ns.layout = layout;
    ns.layer_count = 1;
    ns.cell_bytes = &cell;
    ns.chunk_blocks = 1;
    ck_assert_int_eq(
        tierce_view_open(&view, fx.view->engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    return view;
}

static struct tierce__block_jobs_opts usual_opts(void)
{
    return (struct tierce__block_jobs_opts){.views = views,
                                            .view_count = GROUPS,
                                            .region = region,
                                            .region_bytes = sizeof(region),
                                            .block_bytes = BYTES,
                                            .threads = 3,
                                            .blocks_max = 1000,
                                            .timeout_ms = TIMEOUT_MS,
                                            .answers = {.count_max = 1000,
                                                        .ask_ns = TIMEOUT_MS * TIERCE__MS_NS,
                                                        .keep_ns = TIMEOUT_MS * TIERCE__MS_NS,
                                                        .failed_ns = TIMEOUT_MS * TIERCE__MS_NS}};
}

static void open_engine(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    views[0] = open_view("group 0");
    views[2] = open_view("group 2");
}

static void open_jobs(const struct tierce__block_jobs_opts *opts)
{
    ck_assert_int_eq(tierce__block_jobs_open(&jobs, opts), 0);
}

static void open_all(bool disk, const char *const *sets)
{
    struct tierce__block_jobs_opts opts = usual_opts();
    open_engine(disk, sets);
    open_jobs(&opts);
}

static void close_engine(void)
{
    for (size_t i = 0; i < GROUPS; i++) {
        tierce_view_close(views[i]);
        views[i] = NULL;
    }
    fx_close(&fx);
}

static void end(void)
{
    tierce__block_jobs_close(jobs);
    close_engine();
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int submit(uint64_t id, enum tierce__block_op op, uint32_t from, uint32_t to)
{
    struct tierce__block blocks[BLOCKS];
    for (uint32_t i = from; i < to; i++)
        blocks[i - from] = block_of(i);
    return tierce__block_jobs_submit(jobs, id, op, blocks, to - from);
}

static struct tierce__block_job *wait_job(void)
{
    struct tierce__block_job *job = NULL;
    WAIT_FOR((job = tierce__block_jobs_poll(jobs)) != NULL);
    return job;
}

/* Waits for the only job; returns how many of its blocks have moved. */
static size_t wait_moved(uint64_t id, enum tierce__block_op op)
{
    struct tierce__block_job *job = wait_job();
    ck_assert_uint_eq(job->id, id);
    ck_assert_int_eq(job->op, op);
    ck_assert_uint_le(job->began_ns, job->ended_ns);
    size_t moved = 0;
    for (size_t i = 0; i < job->count; i++)
        moved += job->moved[i];
    ck_assert_uint_eq(moved, job->moved_count);
    tierce__block_job_free(job);
    ck_assert_ptr_null(tierce__block_jobs_poll(jobs));
    return moved;
}

static void store(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        fill(i);
    ck_assert_int_eq(submit(1, TIERCE__BLOCK_STORE, from, to), 0);
    ck_assert_uint_eq(wait_moved(1, TIERCE__BLOCK_STORE), to - from);
}

static void wipe(void)
{
    memset(region, 0x5a, sizeof(region));
}

static size_t load(uint32_t from, uint32_t to)
{
    wipe();
    ck_assert_int_eq(submit(2, TIERCE__BLOCK_LOAD, from, to), 0);
    return wait_moved(2, TIERCE__BLOCK_LOAD);
}

static enum tierce__block_found ask(uint32_t number)
{
    struct tierce__block block = block_of(number);
    return tierce__block_jobs_lookup(jobs, &block.key);
}

static bool is_hit(uint32_t number)
{
    WAIT_FOR(ask(number) != TIERCE__BLOCK_RETRY);
    return ask(number) == TIERCE__BLOCK_HIT;
}

START_TEST(blocks_go_and_come_back)
{
    open_all(_i == 1, NULL);
    store(0, BLOCKS);
    ck_assert_uint_eq(load(0, BLOCKS), BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        ck_assert(is_right(i, i));
    /* To other places. */
    struct tierce__block blocks[] = {block_at(5, 9), block_at(6, 2)};
    wipe();
    ck_assert_int_eq(tierce__block_jobs_submit(jobs, 3, TIERCE__BLOCK_LOAD, blocks, 2), 0);
    ck_assert_uint_eq(wait_moved(3, TIERCE__BLOCK_LOAD), 2);
    ck_assert(is_right(5, 9) && is_right(6, 2));
    ck_assert_uint_eq(region[9 * BYTES - 1], 0x5a);
    ck_assert_uint_eq(region[10 * BYTES], 0x5a);
    end();
}
END_TEST

START_TEST(a_stored_block_is_stored_again)
{
    open_all(false, NULL);
    store(0, 4);
    store(0, 6);
    ck_assert_uint_eq(load(0, 6), 6);
    end();
}
END_TEST

START_TEST(what_is_missing_fails_alone)
{
    open_all(true, NULL);
    store(10, 13);
    ck_assert_int_eq(submit(2, TIERCE__BLOCK_LOAD, 8, 15), 0);
    struct tierce__block_job *job = wait_job();
    for (size_t i = 0; i < job->count; i++)
        ck_assert_int_eq(job->moved[i], i + 8 >= 10 && i + 8 < 13);
    tierce__block_job_free(job);
    ck_assert_int_eq(ask(8), TIERCE__BLOCK_MISS); /* at once */
    ck_assert(is_hit(10));
    end();
}
END_TEST

START_TEST(lookups_are_answered_soon)
{
    open_all(_i == 1, NULL);
    ck_assert(!is_hit(1));
    store(0, 4);
    ck_assert_int_eq(ask(1), TIERCE__BLOCK_HIT); /* because of the store, not of a question */
    ck_assert(is_hit(2) && is_hit(3) && !is_hit(4));
    struct tierce__block block = block_of(0);
    block.key.view = 1; /* none */
    ck_assert_int_eq(tierce__block_jobs_lookup(jobs, &block.key), TIERCE__BLOCK_MISS);
    block.key.view = 2; /* another group */
    WAIT_FOR(tierce__block_jobs_lookup(jobs, &block.key) == TIERCE__BLOCK_MISS);
    block.key.view = UINT32_MAX;
    ck_assert_int_eq(tierce__block_jobs_lookup(jobs, &block.key), TIERCE__BLOCK_MISS);
    end();
}
END_TEST

START_TEST(blocks_outlive_the_process)
{
    static const char *const sets[] = {"cost.check", "false", NULL};
    open_all(true, sets);
    store(0, BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.view->engine, TIMEOUT_MS), 0);
    tierce__block_jobs_close(jobs);
    close_engine();
    open_all(true, sets);
    ck_assert(is_hit(7));
    ck_assert_uint_eq(load(0, BLOCKS), BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        ck_assert(is_right(i, i));
    end();
}
END_TEST

START_TEST(contracts_are_checked)
{
    struct tierce__block_jobs_opts opts = usual_opts();
    open_engine(false, NULL);
    opts.block_bytes--;
    ck_assert_int_eq(tierce__block_jobs_open(&jobs, &opts), TIERCE_E_ARGUMENT);
    opts = usual_opts();
    opts.view_count = 0;
    ck_assert_int_eq(tierce__block_jobs_open(&jobs, &opts), TIERCE_E_ARGUMENT);
    opts = usual_opts();
    opts.threads = TIERCE__BLOCK_THREADS_MAX + 1;
    ck_assert_int_eq(tierce__block_jobs_open(&jobs, &opts), TIERCE_E_ARGUMENT);
    opts = usual_opts();
    opts.views = &fx.view; /* of several layers */
    opts.view_count = 1;
    ck_assert_int_eq(tierce__block_jobs_open(&jobs, &opts), TIERCE_E_ARGUMENT);
    opts = usual_opts();
    open_jobs(&opts);
    struct tierce__block block = block_of(0);
    ck_assert_int_eq(tierce__block_jobs_submit(jobs, 1, TIERCE__BLOCK_LOAD, &block, 0),
                     TIERCE_E_ARGUMENT);
    block.key.view = 1;
    ck_assert_int_eq(tierce__block_jobs_submit(jobs, 1, TIERCE__BLOCK_LOAD, &block, 1),
                     TIERCE_E_ARGUMENT);
    static const uint64_t beyond[] = {sizeof(region) - BYTES + 1, sizeof(region), UINT64_MAX};
    for (size_t i = 0; i < CHECK_COUNT(beyond); i++) {
        block = block_of(0);
        block.offset = beyond[i];
        ck_assert_int_eq(tierce__block_jobs_submit(jobs, 1, TIERCE__BLOCK_STORE, &block, 1),
                         TIERCE_E_ARGUMENT);
    }
    ck_assert_ptr_null(tierce__block_jobs_poll(jobs));
    end();
}
END_TEST

/* ---- tiers that fail ------------------------------------------------------------------------- */

/* The disk alone holds the blocks, and reads of it obey the rule from now on. */
static struct tierce__tier *break_reads(const struct tierce__fault_rule *rule)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, TIMEOUT_MS), 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    struct tierce__tier *fault = fx_wrap(&fx, DISK);
    tierce__fault_set(fault, TIERCE__STORE_GET, rule);
    return fault;
}

static const char *const certain[] = {
    "cost.check", "false", "breaker.errors", "1000", "breaker.window", "0", NULL};

START_TEST(a_damaged_block_fails_alone)
{
    silence_log();
    open_all(true, certain);
    store(0, 20);
    (void)break_reads(&(struct tierce__fault_rule){
        .kind = TIERCE__FAULT_FLIP, .bit = 4500 * 8, .skip = 3, .times = 1});
    ck_assert_int_eq(submit(2, TIERCE__BLOCK_LOAD, 0, 20), 0);
    struct tierce__block_job *job = wait_job();
    ck_assert_uint_eq(job->moved_count, 19);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert(!job->moved[i] || is_right(i, i));
        ck_assert(is_hit(i) == job->moved[i]);
    }
    tierce__block_job_free(job);
    end();
}
END_TEST

START_TEST(every_failed_read_is_survived)
{
    silence_log();
    open_all(true, certain);
    store(0, 20);
    struct tierce__tier *fault = break_reads(NULL);
    for (uint32_t nth = 0; nth < 20; nth++) {
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        tierce__fault_set(
            fault, TIERCE__STORE_GET,
            &(struct tierce__fault_rule){
                .kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = nth, .times = 1});
        wipe();
        ck_assert_int_eq(submit(2, TIERCE__BLOCK_LOAD, 0, 20), 0);
        struct tierce__block_job *job = wait_job();
        ck_assert_uint_eq(job->moved_count, 19);
        for (uint32_t i = 0; i < 20; i++)
            ck_assert(!job->moved[i] || is_right(i, i));
        tierce__block_job_free(job);
    }
    end();
}
END_TEST

START_TEST(every_failed_write_is_survived)
{
    static const char *const sets[] = {"cost.check",    "false",          "breaker.errors",
                                       "1000",          "breaker.window", "0",
                                       "breaker.retry", "10ms",           NULL};
    silence_log();
    open_all(true, sets);
    struct tierce__tier *fault = fx_wrap(&fx, DISK);
    for (uint32_t nth = 0; nth < 6; nth++) {
        tierce__fault_set(
            fault, TIERCE__STORE_PUT,
            &(struct tierce__fault_rule){
                .kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = nth, .times = 1});
        store(nth * 6, nth * 6 + 6); /* memory has them */
        (void)!tierce_engine_flush(fx.engine, TIMEOUT_MS);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        ck_assert_uint_eq(load(nth * 6, nth * 6 + 6), 6); /* it was written late */
    }
    end();
}
END_TEST

static const struct tierce__fault_rule hang = {.kind = TIERCE__FAULT_HANG};

START_TEST(a_full_queue_refuses)
{
    static const char *const sets[] = {
        "cost.check", "false", "timeout.load", "4s", "breaker.errors", "1000", "breaker.window",
        "0",          NULL};
    struct tierce__block_jobs_opts opts = usual_opts();
    silence_log();
    open_engine(true, sets);
    opts.blocks_max = 20;
    opts.threads = 1;
    open_jobs(&opts);
    store(0, 40); /* more than the queue has, but alone */
    (void)break_reads(&hang);
    ck_assert_int_eq(submit(2, TIERCE__BLOCK_LOAD, 0, 16), 0);
    ck_assert_int_eq(submit(3, TIERCE__BLOCK_LOAD, 16, 21), TIERCE_E_FULL);
    ck_assert_int_eq(ask(18), TIERCE__BLOCK_MISS);
    ck_assert_int_eq(submit(4, TIERCE__BLOCK_STORE, 16, 21), TIERCE_E_FULL);
    ck_assert_int_eq(submit(5, TIERCE__BLOCK_STORE, 16, 20), 0);
    struct tierce__block_jobs_state state;
    tierce__block_jobs_state(jobs, &state);
    ck_assert_uint_eq(state.blocks, 20);
    ck_assert_uint_eq(state.jobs_refused, 2);
    ck_assert_int_eq(tierce__block_jobs_drain(jobs, 1), TIERCE_E_DEADLINE);
    ck_assert_int_eq(tierce__block_jobs_drain(jobs, TIMEOUT_MS), 0);
    for (size_t i = 0; i < 2; i++) {
        struct tierce__block_job *job = wait_job();
        ck_assert_uint_eq(job->moved_count, job->op == TIERCE__BLOCK_LOAD ? 0 : 4);
        tierce__block_job_free(job);
    }
    end();
}
END_TEST

START_TEST(what_is_not_begun_in_time_fails)
{
    static const char *const sets[] = {
        "cost.check", "false", "timeout.load", "300ms", "breaker.errors", "1000", "breaker.window",
        "0",          NULL};
    struct tierce__block_jobs_opts opts = usual_opts();
    silence_log();
    open_all(true, sets);
    store(0, 32);
    tierce__block_jobs_close(jobs);
    opts.threads = 1;
    opts.timeout_ms = 100;
    open_jobs(&opts);
    (void)break_reads(&hang);
    /* The first sixteen are begun together, and hang for longer than the others have time. */
    ck_assert_uint_eq(load(0, 32), 0);
    ck_assert_int_eq(ask(20), TIERCE__BLOCK_MISS);
    ck_assert_int_le(fx_stats(&fx).blocks_failed, 16);
    end();
}
END_TEST

/* A caller wakes one thread, and the threads wake each other: each begins a part of the job,
 * because the reads of the others hang for longer than blocks may wait. */
START_TEST(all_threads_share_a_job)
{
    static const char *const sets[] = {
        "cost.check", "false", "timeout.load", "6s", "breaker.errors", "1000", "breaker.window",
        "0",          NULL};
    struct tierce__block_jobs_opts opts = usual_opts();
    silence_log();
    open_all(true, sets);
    store(0, BLOCKS);
    tierce__block_jobs_close(jobs);
    opts.timeout_ms = 3000;
    open_jobs(&opts);
    (void)break_reads(&hang);
    ck_assert_uint_eq(load(0, BLOCKS), 0);
    ck_assert_int_eq(fx_stats(&fx).blocks_failed, BLOCKS);
    end();
}
END_TEST

START_TEST(closing_ends_what_is_queued)
{
    static const char *const sets[] = {"cost.check", "false", "timeout.load", "300ms", NULL};
    struct tierce__block_jobs_opts opts = usual_opts();
    silence_log();
    open_engine(true, sets);
    opts.threads = 2;
    open_jobs(&opts);
    store(0, 40);
    (void)break_reads(&hang);
    for (uint64_t id = 0; id < 5; id++)
        ck_assert_int_eq(submit(id, TIERCE__BLOCK_LOAD, 0, 40), 0);
    ck_assert_int_eq(submit(6, TIERCE__BLOCK_STORE, 0, 40), 0);
    end();
}
END_TEST

START_TEST(a_forked_child_lets_go)
{
    open_all(false, NULL);
    store(0, 4);
    pid_t child = fork();
    if (child == 0) {
        struct tierce__block_jobs_state state;
        tierce__block_jobs_state(jobs, &state);
        bool is_quiet = ask(1) == TIERCE__BLOCK_MISS &&
                        submit(5, TIERCE__BLOCK_LOAD, 0, 4) == TIERCE_E_CLOSED &&
                        tierce__block_jobs_poll(jobs) == NULL && state.blocks == 0 &&
                        tierce__block_jobs_drain(jobs, TIMEOUT_MS) == 0;
        tierce__block_jobs_close(jobs);
        child_exit(is_quiet ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(load(0, 4), 4);
    end();
}
END_TEST

/* ---- room ------------------------------------------------------------------------------------ */

enum { LATE_MS = 3000, LATE_COUNT = 2, SMALL_OBJECT = 8192 };

/* The disk's queue has room for LATE_COUNT blocks. So many of the first are written late, or all if
 * the disk hangs. */
static void open_slow(bool hangs, uint32_t threads, uint32_t timeout_ms)
{
    const char *const sets[] = {
        "cost.check", "false",      "breaker.errors", "1000",         "breaker.window",
        "0",          "disk.queue", "16KiB",          "timeout.load", hangs ? "100ms" : "60s",
        NULL};
    struct tierce__block_jobs_opts opts = usual_opts();
    silence_log();
    open_engine(true, sets);
    tierce__fault_set(fx_wrap(&fx, DISK), TIERCE__STORE_PUT,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY,
                                                   .delay_ms = LATE_MS,
                                                   .times = hangs ? 0 : LATE_COUNT});
    opts.threads = threads;
    opts.timeout_ms = timeout_ms;
    open_jobs(&opts);
    for (uint32_t i = 0; i < BLOCKS; i++)
        fill(i);
}

static void await_waiting(int64_t count)
{
    WAIT_FOR(fx_stats(&fx).stores_waited == count);
}

/* More blocks than memory and the queue hold; after that, all can be loaded. */
START_TEST(no_block_is_lost_above_a_slow_tier)
{
    static const char *const sets[] = {"cost.check", "false", "memory.size", "1MiB",
                                       "disk.queue", "16KiB", "disk.depth",  "1",
                                       "disk.size",  "64MiB", NULL};
    enum { ROUNDS_OF_ALL = 10 };
    open_all(true, sets);
    for (uint32_t round = 0; round < ROUNDS_OF_ALL; round++)
        store(round * BLOCKS, (round + 1) * BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, TIMEOUT_MS), 0);
    for (uint32_t round = 0; round < ROUNDS_OF_ALL; round++) {
        ck_assert_uint_eq(load(round * BLOCKS, (round + 1) * BLOCKS), BLOCKS);
        for (uint32_t i = 0; i < BLOCKS; i++)
            ck_assert(is_right(round * BLOCKS + i, i));
    }
    ck_assert_int_eq(fx_stats(&fx).disk_dropped_puts, 0);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 0);
    ck_assert_int_gt(fx_stats(&fx).stores_waited, 0);
    end();
}
END_TEST

/* With one thread too, and although the load comes later. */
START_TEST(a_load_does_not_wait_for_room)
{
    open_slow(false, 1 + (uint32_t)_i * 2, TIMEOUT_MS);
    store(0, LATE_COUNT);
    ck_assert_uint_eq(fx_stats(&fx).memory_bytes_now, LATE_COUNT * SMALL_OBJECT);
    ck_assert_int_eq(submit(5, TIERCE__BLOCK_STORE, 10, 40), 0);
    await_waiting(1);
    ck_assert_int_eq(submit(6, TIERCE__BLOCK_LOAD, 0, LATE_COUNT), 0);
    struct tierce__block_job *loaded = wait_job(), *stored = wait_job();
    ck_assert_uint_eq(loaded->id, 6);
    ck_assert_uint_eq(stored->id, 5);
    ck_assert_uint_eq(loaded->moved_count, LATE_COUNT);
    ck_assert_uint_eq(stored->moved_count, 30);
    tierce__block_job_free(loaded);
    tierce__block_job_free(stored);
    end();
}
END_TEST

START_TEST(stores_wait_in_their_order)
{
    open_slow(false, 3, TIMEOUT_MS);
    store(0, LATE_COUNT);
    for (uint64_t id = 1; id < 5; id++)
        ck_assert_int_eq(submit(id, TIERCE__BLOCK_STORE, (uint32_t)id * 8, (uint32_t)id * 8 + 8),
                         0);
    await_waiting(1);
    ck_assert_int_eq(tierce__block_jobs_drain(jobs, TIMEOUT_MS), 0);
    uint64_t ended_ns = 0;
    for (uint64_t id = 1; id < 5; id++) {
        struct tierce__block_job *job = wait_job();
        ck_assert_uint_eq(job->moved_count, 8);
        ck_assert_uint_ge(job->ended_ns, ended_ns);
        ended_ns = job->ended_ns;
        tierce__block_job_free(job);
    }
    ck_assert_int_eq(fx_stats(&fx).disk_dropped_puts, 0);
    end();
}
END_TEST

START_TEST(a_store_waits_until_its_deadline)
{
    open_slow(false, 1, 200);
    ck_assert_int_eq(submit(5, TIERCE__BLOCK_STORE, 0, 40), 0);
    struct tierce__block_job *job = wait_job();
    ck_assert_uint_eq(job->moved_count, LATE_COUNT);
    for (size_t i = 0; i < job->count; i++) /* the beginning, and nothing instead */
        ck_assert(job->moved[i] == (i < LATE_COUNT));
    ck_assert_uint_ge(job->ended_ns - job->began_ns, 200 * TIERCE__MS_NS);
    ck_assert_uint_lt(job->ended_ns - job->began_ns, LATE_MS * TIERCE__MS_NS);
    tierce__block_job_free(job);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 40 - LATE_COUNT);
    end();
}
END_TEST

START_TEST(closing_ends_the_wait)
{
    open_slow(false, 3, TIMEOUT_MS);
    ck_assert_int_eq(submit(5, TIERCE__BLOCK_STORE, 0, 40), 0);
    ck_assert_int_eq(submit(6, TIERCE__BLOCK_STORE, 0, 40), 0);
    await_waiting(1);
    uint64_t began_ns = tierce__now_ns();
    tierce__block_jobs_close(jobs);
    jobs = NULL;
    ck_assert_uint_lt(tierce__now_ns() - began_ns, LATE_MS * TIERCE__MS_NS);
    end();
}
END_TEST

/* It costs one deadline; then memory holds the blocks. */
START_TEST(a_tier_that_hangs_is_not_waited_for)
{
    open_slow(true, 3, 300);
    ck_assert_int_eq(submit(5, TIERCE__BLOCK_STORE, 0, 20), 0);
    struct tierce__block_job *job = wait_job();
    ck_assert_uint_ge(job->moved_count, LATE_COUNT);
    tierce__block_job_free(job);
    int64_t waited = fx_stats(&fx).stores_waited;
    store(20, 40);
    ck_assert_int_eq(fx_stats(&fx).stores_waited, waited);
    end();
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

enum { USERS = 4, EACH = BLOCKS / USERS, ROUNDS = 8 };

/* Stores and loads blocks of its own, and asks for those of all. */
static void *use_jobs(void *arg)
{
    uint32_t first = (uint32_t)(uintptr_t)arg * EACH;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = first; i < first + EACH && round == 0; i++)
            fill(i);
        (void)submit(first, round % 2 == 0 ? TIERCE__BLOCK_STORE : TIERCE__BLOCK_LOAD, first,
                     first + EACH);
        for (uint32_t i = 0; i < BLOCKS; i++)
            (void)ask(i);
        (void)!tierce__block_jobs_drain(jobs, TIMEOUT_MS);
    }
    return NULL;
}

START_TEST(threads_share_the_jobs)
{
    pthread_t users[USERS];
    open_all(true, NULL);
    for (uintptr_t i = 0; i < USERS; i++)
        ck_assert_int_eq(pthread_create(&users[i], NULL, use_jobs, (void *)i), 0);
    for (size_t i = 0; i < USERS; i++)
        pthread_join(users[i], NULL);
    for (size_t i = 0; i < USERS * ROUNDS; i++) {
        struct tierce__block_job *job = wait_job();
        ck_assert_uint_eq(job->moved_count, EACH);
        tierce__block_job_free(job);
    }
    ck_assert_ptr_null(tierce__block_jobs_poll(jobs));
    for (uint32_t i = 0; i < BLOCKS; i++)
        ck_assert(is_right(i, i));
    end();
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* One round of everything; all may fail, but no block may be wrong. */
static void exercise(uint32_t first)
{
    struct tierce__block_job *job;
    for (uint32_t i = first; i < first + 3; i++) {
        fill(i);
        (void)ask(i + 3);
    }
    (void)submit(1, TIERCE__BLOCK_STORE, first, first + 3);
    ck_assert_int_eq(tierce__block_jobs_drain(jobs, TIMEOUT_MS), 0);
    wipe();
    (void)submit(2, TIERCE__BLOCK_LOAD, first, first + 3);
    ck_assert_int_eq(tierce__block_jobs_drain(jobs, TIMEOUT_MS), 0);
    while ((job = tierce__block_jobs_poll(jobs)) != NULL) {
        for (uint32_t i = 0; job->op == TIERCE__BLOCK_LOAD && i < job->count; i++)
            ck_assert(!job->moved[i] || is_right(first + i, (first + i) % BLOCKS));
        tierce__block_job_free(job);
    }
    for (uint32_t i = first; i < first + 6; i++)
        WAIT_FOR(ask(i) != TIERCE__BLOCK_RETRY);
}

START_TEST(every_failed_allocation_is_survived)
{
    silence_log();
    open_all(true, certain);
    uint64_t made = 1;
    for (uint64_t nth = 1; nth <= made; nth++) {
        tierce__alloc_fail_nth(nth);
        exercise(1000 + (uint32_t)nth * 6);
        uint64_t count = tierce__alloc_fail_nth(0);
        made = count > made ? count : made;
        ck_assert_uint_lt(nth, 10000);
    }
    ck_assert_uint_gt(made, 20);
    end();
}
END_TEST

START_TEST(opening_survives_every_failed_allocation)
{
    struct tierce__block_jobs_opts opts = usual_opts();
    open_engine(false, NULL);
    uint64_t before = tierce__alloc_live();
    bool opened = false;
    for (uint64_t nth = 1; !opened; nth++) {
        tierce__alloc_fail_nth(nth);
        int rc = tierce__block_jobs_open(&jobs, &opts);
        opened = tierce__alloc_fail_nth(0) < nth;
        ck_assert_int_eq(rc, opened ? 0 : -ENOMEM);
        ck_assert(opened || tierce__alloc_live() == before);
        ck_assert_uint_lt(nth, 100);
    }
    end();
}
END_TEST

/* Threads of this process that do not interrupt others when they wake. */
static uint32_t count_patient(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint32_t count = 0;
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        pid_t id = (pid_t)strtol(task->d_name, NULL, 10);
        count += id > 0 && sched_getscheduler(id) == SCHED_BATCH;
    }
    closedir(tasks);
    return count;
}

/* A caller that gives them work goes on: they begin when it leaves its processor, or on another. */
START_TEST(threads_do_not_interrupt_their_caller)
{
    struct tierce__block_jobs_opts opts = usual_opts();
    open_engine(false, NULL);
    uint32_t before = count_patient();
    open_jobs(&opts);
    WAIT_FOR(count_patient() == before + opts.threads + 2);
    end();
}
END_TEST

CHECK_MAIN("block jobs", .seconds = 120,
           .tests = {a_stored_block_is_stored_again,
                     what_is_missing_fails_alone,
                     blocks_outlive_the_process,
                     contracts_are_checked,
                     FX_EMBEDDED(a_damaged_block_fails_alone),
                     FX_EMBEDDED(every_failed_read_is_survived),
                     FX_EMBEDDED(every_failed_write_is_survived),
                     FX_EMBEDDED(a_full_queue_refuses),
                     FX_EMBEDDED(what_is_not_begun_in_time_fails),
                     FX_EMBEDDED(all_threads_share_a_job),
                     FX_EMBEDDED(closing_ends_what_is_queued),
                     FX_EMBEDDED(no_block_is_lost_above_a_slow_tier),
                     FX_EMBEDDED(stores_wait_in_their_order),
                     FX_EMBEDDED(a_store_waits_until_its_deadline),
                     FX_EMBEDDED(closing_ends_the_wait),
                     FX_EMBEDDED(a_tier_that_hangs_is_not_waited_for),
                     FX_EMBEDDED(a_forked_child_lets_go),
                     threads_share_the_jobs,
                     threads_do_not_interrupt_their_caller,
                     FX_EMBEDDED(every_failed_allocation_is_survived),
                     FX_EMBEDDED(opening_survives_every_failed_allocation)},
           .loops = {{blocks_go_and_come_back, 0, 2},
                     {lookups_are_answered_soon, 0, 2},
                     {FX_EMBEDDED(a_load_does_not_wait_for_room), 0, 2}})
