/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch: the chunks, their order, their holder, and the release of all resources after any
 * failure, except that of an allocation: tests/torture/test_torture_load.c. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "child_exit.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "tier_fault.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#define BLOCKS  40u
#define CHUNKS  (BLOCKS / FX_CHUNK_BLOCKS)
#define SESSION 7u
#define LONG_MS 20000u

static struct fixture fx;
static struct tierce__tier *disk;
static struct tierce_chain *chain;
static struct tierce_prefetch *prefetch;
static struct tierce_prefetch_result result;

static void wrap_disk(void)
{
    ck_assert_uint_eq(fx.engine->level_count, 2);
    disk = fx_wrap(&fx, 1);
}

/* An engine whose disk has a prompt of so many blocks and whose memory is empty. */
static void open_with(const char *const *sets, size_t blocks)
{
    int32_t ids[FX_BLOCKS];
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = i;
    silence_log();
    fx_open(&fx, true, NULL);
    chain = fx_chain(&fx, 1, blocks, 0);
    ck_assert_int_eq(fx_store(&fx, chain, blocks, ids, true), (int64_t)blocks);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_open(&fx, true, sets);
    fx_wipe(&fx);
    wrap_disk();
    prefetch = NULL;
    result = (struct tierce_prefetch_result){.size = sizeof(result)};
}

static void open_default(void)
{
    static const char *const sets[] = {"breaker.errors", "1000000", "breaker.window", "0", NULL};
    open_with(sets, BLOCKS);
}

static void close_all(void)
{
    tierce_prefetch_end(prefetch);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void fault(enum tierce__store_op op, enum tierce__fault_kind kind, uint32_t skip,
                  uint32_t times)
{
    struct tierce__fault_rule rule = {
        .kind = kind, .status = -EIO, .delay_ms = 50, .skip = skip, .times = times};
    tierce__fault_set(disk, op, &rule);
}

static struct tierce_prefetch_opts pinned(void)
{
    return (struct tierce_prefetch_opts){.size = sizeof(struct tierce_prefetch_opts),
                                         .flags = TIERCE_PREFETCH_PIN,
                                         .session = SESSION};
}

static void begin(const struct tierce_prefetch_opts *opts)
{
    ck_assert_int_eq(
        tierce_prefetch_begin(&prefetch, fx.view, chain, tierce_chain_blocks(chain), opts), 0);
}

/* Begins and waits for the end. */
static void run(const struct tierce_prefetch_opts *opts)
{
    begin(opts);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
}

static int64_t load_from_memory(size_t blocks, uint64_t session)
{
    uint8_t origins[FX_BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, fx_ids);
    what.session = session;
    int64_t memory = 0;
    ck_assert_int_ge(tierce_load(fx.view, &what, origins), 0);
    for (size_t b = 0; b < blocks; b++) {
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
        memory += origins[b] == TIERCE_ORIGIN_MEMORY;
    }
    return memory;
}

/* Forgets chunks [from, to) in memory. */
static void forget(size_t from, size_t to)
{
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, BLOCKS, BLOCKS, false), 0);
    for (size_t i = from; i < to; i++)
        tierce__storage_quarantine(fx.engine, 0, &keys.keys[i], TIERCE_E_VERSION);
    tierce__keys_fini(&keys);
}

static void await(bool (*condition)(void))
{
    uint64_t give_up = tierce__deadline_in_ms(LONG_MS);
    while (!condition() && tierce__now_ns() < give_up)
        usleep(1000);
    ck_assert(condition());
}

static bool memory_is_free(void)
{
    return fx_stats(&fx).memory_bytes_now == 0;
}

static bool prefetches_hold_nothing(void)
{
    return fx_stats(&fx).prefetch_bytes_now == 0;
}

/* ---- receiving ---- */

START_TEST(what_the_disk_has_comes_to_memory_and_is_held)
{
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_uint_eq(result.tier_count, 2);
    ck_assert_uint_eq(result.tiers[0].promised, 0);
    ck_assert_uint_eq(result.tiers[1].promised, BLOCKS);
    ck_assert_uint_eq(result.tiers[1].loaded, BLOCKS);
    ck_assert(!result.cancelled && !result.late && !result.short_of_memory);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.sessions_now, 1);
    ck_assert_int_gt(s.pinned_bytes_now, 0);
    ck_assert_int_eq(s.prefetch_blocks, BLOCKS);
    ck_assert_int_eq(s.prefetch_bytes_now, 0);
    tierce_prefetch_end(prefetch);
    prefetch = NULL;
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 1); /* the pins stay */
    ck_assert_int_eq(load_from_memory(BLOCKS, SESSION), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 0);
    close_all();
}
END_TEST

/* Counts reads: of loads, and ahead. */
static _Atomic unsigned reads[2];
static struct tierce__tier_ops before;

static void spy(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_GET)
        atomic_fetch_add(&reads[req->ahead], 1);
    before.submit(tier, req);
}

START_TEST(the_tiers_are_told_who_reads_ahead)
{
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    struct tierce__tier *tier = fx.engine->levels[1].tier;
    const struct tierce__tier_ops *own = tier->ops;
    before = *own;
    struct tierce__tier_ops spying = before;
    spying.submit = spy;
    tier->ops = &spying;
    run(&opts);
    ck_assert_uint_eq(atomic_load(&reads[0]), 0);
    unsigned ahead = atomic_load(&reads[1]);
    ck_assert_uint_ge(ahead, CHUNKS);
    ck_assert_int_eq(load_from_memory(BLOCKS, SESSION), BLOCKS); /* the pins end */
    forget(0, CHUNKS);
    ck_assert_int_eq(load_from_memory(BLOCKS, 0), 0);
    ck_assert_uint_ge(atomic_load(&reads[0]), CHUNKS);
    ck_assert_uint_eq(atomic_load(&reads[1]), ahead);
    tier->ops = own;
    close_all();
}
END_TEST

START_TEST(each_tier_gives_what_the_faster_ones_lack)
{
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    tierce_prefetch_end(prefetch);
    tierce_unpin(fx.view, SESSION);
    forget(3, 6);
    run(&opts);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_uint_eq(result.tiers[0].promised, BLOCKS - 12);
    ck_assert_uint_eq(result.tiers[0].loaded, BLOCKS - 12);
    ck_assert_uint_eq(result.tiers[1].promised, 12);
    ck_assert_uint_eq(result.tiers[1].loaded, 12);
    close_all();
}
END_TEST

START_TEST(a_prefetch_that_verifies_ends_before_a_damaged_chunk)
{
    open_default();
    uint64_t at = tierce__shape_offset(&fx.inner->full, 3) + fx_cells[3] + 17;
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_FLIP, .bit = at * 8 + 3, .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce_prefetch_opts opts = pinned();
    opts.flags |= TIERCE_PREFETCH_VERIFY;
    run(&opts);
    uint64_t verified = result.memory_blocks;
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_lt(verified, BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    ck_assert_int_eq(load_from_memory(verified, SESSION), (int64_t)verified);
    tierce_prefetch_end(prefetch);
    /* The damaged chunk is deleted from the disk, as after a load. */
    run(&opts);
    ck_assert_uint_eq(result.blocks, verified);
    ck_assert_uint_eq(result.memory_blocks, verified);
    close_all();
}
END_TEST

START_TEST(only_the_tiers_that_are_wanted_are_searched)
{
    open_default();
    struct tierce_prefetch_opts opts = {.size = sizeof(opts), .tiers = 1u << TIERCE_ORIGIN_MEMORY};
    run(&opts);
    ck_assert_uint_eq(result.blocks, 0);
    tierce_prefetch_end(prefetch);
    opts.tiers = 1u << TIERCE_ORIGIN_DISK;
    run(&opts);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0); /* without PIN nobody holds it */
    close_all();
}
END_TEST

START_TEST(a_part_of_a_prompt_and_its_tail)
{
    open_with(NULL, 42);
    struct tierce_prefetch_opts opts = pinned();
    opts.from_block = 9; /* inside the third chunk */
    begin(&opts);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_eq(result.memory_blocks, 42);
    ck_assert_uint_eq(result.tiers[1].loaded, 33);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 9);
    tierce_prefetch_end(prefetch);
    opts.from_block = 0;
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, 6, &opts), 0);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_eq(result.memory_blocks, 6);
    close_all();
}
END_TEST

START_TEST(a_load_and_a_prefetch_read_once)
{
    open_default();
    fault(TIERCE__STORE_GET, TIERCE__FAULT_DELAY, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts);
    uint8_t origins[BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    struct tierce__tier_stats stats;
    disk->ops->stats(disk, &stats);
    ck_assert_uint_eq(stats.get_chunks, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).promotions, CHUNKS);
    close_all();
}
END_TEST

START_TEST(it_can_be_begun_again_and_replaces_the_pins)
{
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    for (int i = 0; i < 3; i++) {
        run(&opts);
        ck_assert_uint_eq(result.memory_blocks, BLOCKS);
        tierce_prefetch_end(prefetch);
    }
    int64_t held = fx_stats(&fx).pinned_bytes_now;
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, SESSION, NULL), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, held);
    tierce_unpin(fx.view, SESSION);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    prefetch = NULL;
    close_all();
}
END_TEST

/* ---- what fails ---- */

START_TEST(at_a_gap_it_is_cut_and_the_rest_released)
{
    open_default();
    fault(TIERCE__STORE_GET, TIERCE__FAULT_ERROR, 2, 1);
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_eq(result.memory_blocks, 8);
    ck_assert_uint_eq(result.tiers[1].promised, BLOCKS);
    ck_assert_uint_eq(result.tiers[1].loaded, 8);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 2);
    tierce_unpin(fx.view, SESSION);
    forget(0, 2);
    await(memory_is_free);
    close_all();
}
END_TEST

START_TEST(a_wrong_header_is_not_published)
{
    open_default();
    struct tierce__fault_rule rule = {
        .kind = TIERCE__FAULT_FLIP, .bit = 512, .skip = 3, .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.memory_blocks, 12);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures + fx_stats(&fx).identity_failures, 1);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 3);
    close_all();
}
END_TEST

START_TEST(a_wrong_cell_is_found_by_the_load_and_leaves_both_tiers)
{
    open_default();
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_FLIP,
                                      .bit = (tierce__shape_offset(&fx.view->full, 1) + 5) * 8,
                                      .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_int_eq(load_from_memory(BLOCKS, SESSION), BLOCKS - 1);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), 0);
    close_all();
}
END_TEST

START_TEST(a_tier_that_does_not_answer_a_lookup_has_nothing)
{
    static const char *const sets[] = {"timeout.lookup", "50ms", NULL};
    open_with(sets, BLOCKS);
    fault(TIERCE__STORE_LOOKUP, TIERCE__FAULT_HANG, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts); /* and does not wait for it */
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_eq(result.blocks, 0);
    ck_assert(!result.late);
    close_all();
}
END_TEST

START_TEST(the_deadline_ends_what_hangs_and_keeps_what_came)
{
    open_default();
    fault(TIERCE__STORE_GET, TIERCE__FAULT_HANG, 4, 0);
    struct tierce_prefetch_opts opts = pinned();
    opts.timeout_ms = 3000;
    run(&opts);
    ck_assert(result.late && !result.cancelled);
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_eq(result.memory_blocks, 16);
    ck_assert_int_eq(fx_stats(&fx).prefetches_late, 1);
    await(prefetches_hold_nothing);
    close_all();
}
END_TEST

START_TEST(what_is_abandoned_gives_all_back_by_its_deadline)
{
    open_default();
    fault(TIERCE__STORE_GET, TIERCE__FAULT_HANG, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    opts.timeout_ms = 3000;
    begin(&opts);
    ck_assert_int_gt(fx_stats(&fx).prefetch_bytes_now, 0);
    await(prefetches_hold_nothing);
    await(memory_is_free);
    prefetch = NULL; /* closing the view frees the handle */
    close_all();
}
END_TEST

START_TEST(a_view_can_be_closed_over_a_running_one)
{
    open_default();
    fault(TIERCE__STORE_LOOKUP, TIERCE__FAULT_HANG, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts);
    prefetch = NULL;
    close_all();
}
END_TEST

/* ---- callbacks ---- */

struct heard {
    unsigned tiers, done, after_end;
    bool ended, cancelled;
    uint64_t loaded;
};

static void hear_tier(void *arg, const char *tier, uint64_t promised, uint64_t loaded)
{
    struct heard *heard = arg;
    ck_assert_str_eq(tier, heard->tiers == 0 ? "memory" : "fault");
    ck_assert_uint_eq(heard->done, 0);
    ck_assert_uint_ge(promised, loaded);
    heard->tiers++;
    heard->loaded += loaded;
    heard->after_end += heard->ended;
}

static void hear_done(void *arg, const struct tierce_prefetch_result *told)
{
    struct heard *heard = arg;
    ck_assert(told->final);
    ck_assert_uint_eq(heard->tiers, 2);
    heard->done++;
    heard->cancelled = told->cancelled;
    heard->after_end += heard->ended;
}

START_TEST(each_tier_and_the_end_are_told_once)
{
    struct heard heard = {0};
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    opts.on_tier = hear_tier;
    opts.on_done = hear_done;
    opts.arg = &heard;
    run(&opts);
    tierce_prefetch_end(prefetch);
    prefetch = NULL;
    ck_assert_uint_eq(heard.tiers, 2);
    ck_assert_uint_eq(heard.done, 1);
    ck_assert_uint_eq(heard.loaded, BLOCKS);
    ck_assert(!heard.cancelled);
    close_all();
}
END_TEST

START_TEST(who_is_ended_early_is_told_so_before_end_returns)
{
    struct heard heard = {0};
    open_default();
    tierce__fault_set(disk, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 2000});
    struct tierce_prefetch_opts opts = pinned();
    opts.on_tier = hear_tier;
    opts.on_done = hear_done;
    opts.arg = &heard;
    begin(&opts);
    tierce_prefetch_end(prefetch);
    prefetch = NULL;
    heard.ended = true;
    ck_assert_uint_eq(heard.done, 1);
    ck_assert(heard.cancelled);
    await(prefetches_hold_nothing);
    tierce_unpin(fx.view, SESSION);
    await(memory_is_free);
    ck_assert_uint_eq(heard.after_end, 0);
    close_all();
}
END_TEST

/* ---- memory ---- */

/* More than ever may be held at once: watches while it runs. */
START_TEST(a_prompt_larger_than_the_bound_passes_through_it)
{
    static const char *const sets[] = {"prefetch.memory", "1%", "prefetch.disk_window", "16KiB",
                                       NULL};
    open_with(sets, BLOCKS);
    fault(TIERCE__STORE_GET, TIERCE__FAULT_DELAY, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts);
    while (!tierce_prefetch_poll(prefetch, &result)) {
        ck_assert_int_le(fx_stats(&fx).prefetch_bytes_now, (4 << 20) / 100);
        usleep(1000);
    }
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    close_all();
}
END_TEST

START_TEST(without_a_share_of_memory_nothing_is_read)
{
    static const char *const sets[] = {"prefetch.memory", "0%", NULL};
    open_with(sets, BLOCKS);
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.blocks, BLOCKS);
    ck_assert_uint_eq(result.memory_blocks, 0);
    ck_assert(result.short_of_memory);
    ck_assert_int_eq(fx_stats(&fx).prefetches_short, 1);
    close_all();
}
END_TEST

START_TEST(the_bound_on_pins_bounds_it_too)
{
    static const char *const sets[] = {"memory.pins", "5%", NULL};
    open_with(sets, 120);
    struct tierce_prefetch_opts opts = pinned();
    run(&opts);
    ck_assert_uint_eq(result.blocks, 120);
    ck_assert_uint_gt(result.memory_blocks, 0);
    ck_assert_uint_lt(result.memory_blocks, 120);
    ck_assert(result.short_of_memory);
    ck_assert_int_le(fx_stats(&fx).pinned_bytes_now, (4 << 20) / 20);
    close_all();
}
END_TEST

START_TEST(who_finds_no_room_waits_in_the_queue)
{
    static const char *const sets[] = {"prefetch.memory", "1%", NULL};
    struct tierce_prefetch *second;
    open_with(sets, BLOCKS);
    fault(TIERCE__STORE_GET, TIERCE__FAULT_HANG, 0, 2);
    struct tierce_prefetch_opts opts = pinned();
    opts.timeout_ms = 3000;
    begin(&opts); /* takes all the room there is, and hangs */
    opts.timeout_ms = LONG_MS;
    opts.session = SESSION + 1;
    opts.from_block = 16;
    ck_assert_int_eq(tierce_prefetch_begin(&second, fx.view, chain, BLOCKS, &opts), 0);
    ck_assert_int_eq(tierce_prefetch_wait(second, 0), TIERCE_E_DEADLINE);
    ck_assert_int_eq(tierce_prefetch_wait(second, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(second, &result));
    ck_assert_uint_eq(result.memory_blocks, BLOCKS);
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, LONG_MS), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert(result.late);
    tierce_prefetch_end(second);
    close_all();
}
END_TEST

START_TEST(stores_go_on_while_prefetches_hold_all_they_may)
{
    open_with(NULL, 400);
    fault(TIERCE__STORE_GET, TIERCE__FAULT_HANG, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts);
    for (uint32_t seed = 50; seed < 60; seed++) {
        struct tierce_chain *other = fx_chain(&fx, seed, BLOCKS, 0);
        ck_assert_int_eq(fx_store(&fx, other, BLOCKS, fx_ids, false), BLOCKS);
        tierce_chain_destroy(other);
    }
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 0);
    close_all();
}
END_TEST

START_TEST(wrong_arguments_are_refused)
{
    open_default();
    struct tierce_prefetch_opts opts = pinned();
    opts.session = 0;
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts),
                     TIERCE_E_ARGUMENT);
    opts = pinned();
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS + 1, &opts),
                     TIERCE_E_ARGUMENT);
    opts.size--;
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts),
                     TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(prefetch);
    opts = pinned();
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, 0, &opts), 0);
    ck_assert(tierce_prefetch_poll(prefetch, &result)); /* nothing is wanted */
    close_all();
}
END_TEST

START_TEST(a_child_by_fork_can_let_go_of_it)
{
    open_default();
    fault(TIERCE__STORE_GET, TIERCE__FAULT_HANG, 0, 0);
    struct tierce_prefetch_opts opts = pinned();
    begin(&opts);
    pid_t child = fork();
    if (child == 0) {
        struct tierce_prefetch *own;
        alarm(20);
        bool refused = tierce_prefetch_begin(&own, fx.view, chain, 4, &opts) == TIERCE_E_CLOSED &&
                       tierce_prefetch_wait(prefetch, 5) == TIERCE_E_CLOSED &&
                       tierce_prefetch_poll(prefetch, &result) && result.blocks == 0;
        tierce_prefetch_end(prefetch);
        child_exit(refused ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    close_all();
}
END_TEST

CHECK_MAIN("prefetch", .seconds = 60, .at_once = true,
           .tests = {what_the_disk_has_comes_to_memory_and_is_held,
                     FX_EMBEDDED(the_tiers_are_told_who_reads_ahead),
                     each_tier_gives_what_the_faster_ones_lack,
                     a_prefetch_that_verifies_ends_before_a_damaged_chunk,
                     only_the_tiers_that_are_wanted_are_searched,
                     a_part_of_a_prompt_and_its_tail,
                     a_load_and_a_prefetch_read_once,
                     it_can_be_begun_again_and_replaces_the_pins,
                     at_a_gap_it_is_cut_and_the_rest_released,
                     a_wrong_header_is_not_published,
                     a_wrong_cell_is_found_by_the_load_and_leaves_both_tiers,
                     a_tier_that_does_not_answer_a_lookup_has_nothing,
                     the_deadline_ends_what_hangs_and_keeps_what_came,
                     what_is_abandoned_gives_all_back_by_its_deadline,
                     a_view_can_be_closed_over_a_running_one,
                     FX_EMBEDDED(each_tier_and_the_end_are_told_once),
                     FX_EMBEDDED(who_is_ended_early_is_told_so_before_end_returns),
                     a_prompt_larger_than_the_bound_passes_through_it,
                     without_a_share_of_memory_nothing_is_read,
                     the_bound_on_pins_bounds_it_too,
                     who_finds_no_room_waits_in_the_queue,
                     stores_go_on_while_prefetches_hold_all_they_may,
                     wrong_arguments_are_refused,
                     a_child_by_fork_can_let_go_of_it})
