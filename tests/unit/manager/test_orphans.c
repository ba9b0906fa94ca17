/* SPDX-License-Identifier: Apache-2.0 */
/* The fate of blocks after a removed block: in chains that are reclaimed, removed, or expire. */
#include "base/alloc.h"
#include "check_main.h"
#include "manager_reclaim.h"

#include <errno.h>

enum { LENGTH = 8 };
static const int64_t chain[LENGTH] = {11, 22, 33, 44, 55, 66, 77, 88};

static void remove_keys(struct harness *h, const int64_t *keys, size_t count)
{
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h->locator, "i", keys, count, &none, h->why), 0);
}

/* Rounds until nothing is left to do, and their deletions. */
static size_t sweep(struct harness *h)
{
    size_t removed = 0;
    for (int i = 0; i < 100; i++) {
        h->now_us += 100000;
        removed += tierce__reclaimer_step(reclaimer);
    }
    (void)tierce__deleter_step(h->locator->deleter, SIZE_MAX);
    return removed;
}

static size_t count_notes(struct harness *h)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    size_t count = live->holes.note_count + live->holes.map.count;
    tierce__live_release(live);
    return count;
}

START_TEST(what_follows_a_removed_block_is_deleted)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, LENGTH);
    harness_write_files(started.locations, started.count);
    harness_finish(&h, &started);
    remove_keys(&h, &chain[3], 1);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), 3);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert_uint_eq(harness_usage(&h).keys, 3);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 3 * BLOCK_BYTES);
    ck_assert_uint_eq(harness_count_files(&h), 3 * 2);
    /* Not from the middle either, nor by key. */
    ck_assert_uint_eq(harness_prefix(&h, chain + 4, 4), 0);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, LENGTH, 0).hits, 3);
    ck_assert_uint_eq(count_notes(&h), 0);
    close_all(&h);
}
END_TEST

START_TEST(branches_go_and_what_is_beside_them_stays)
{
    /* 11-22-33-44, 22-133-144, 222-233 */
    static const int64_t first[] = {11, 22, 33, 44}, second[] = {11, 22, 133, 144},
                         other[] = {222, 233};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, first, 4);
    harness_store(&h, second, 4);
    harness_store(&h, other, 2);
    remove_keys(&h, &first[1], 1);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert(is_there(&h, 11) && is_there(&h, 222) && is_there(&h, 233));
    ck_assert_uint_eq(harness_usage(&h).keys, 3);
    close_all(&h);
}
END_TEST

START_TEST(a_chain_that_is_removed_as_a_whole_leaves_no_hole)
{
    struct harness h;
    int64_t keys[300];
    open_all(&h, &(struct harness_opts){0});
    for (int i = 0; i < 300; i++)
        keys[i] = 1000 + i;
    harness_store(&h, keys, 300); /* more than one step */
    remove_keys(&h, keys, 300);
    ck_assert_uint_eq(sweep(&h), 0);
    ck_assert_uint_eq(count_notes(&h), 0);
    struct tierce__reclaimer_stats stats;
    tierce__reclaimer_stats(reclaimer, &stats);
    ck_assert_uint_eq(stats.orphaned_blocks, 0);
    close_all(&h);
}
END_TEST

START_TEST(a_block_that_is_stored_again_has_its_suffix_back)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    struct tierce__started started = harness_start(&h, chain, LENGTH); /* the engine computes it */
    ck_assert_uint_eq(started.count, 1);
    ck_assert_uint_eq(sweep(&h), 0); /* while it is being written, too */
    harness_finish(&h, &started);
    ck_assert_uint_eq(sweep(&h), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), LENGTH);
    ck_assert_uint_eq(count_notes(&h), 0);
    /* The block has its number of successors: a second removal is noticed. */
    remove_keys(&h, &chain[3], 1);
    ck_assert_uint_eq(sweep(&h), 4);
    close_all(&h);
}
END_TEST

/* The old hole is still listed when the block is removed again. */
START_TEST(a_block_that_is_removed_twice_leaves_one_hole)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    harness_store(&h, chain, LENGTH);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), LENGTH);
    remove_keys(&h, &chain[3], 1);
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_uint_eq(live->holes.map.count, 1);
    ck_assert_uint_eq(tierce__holes_children(&live->holes, chain[3]), 1);
    tierce__live_release(live);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert_uint_eq(count_notes(&h), 0);
    close_all(&h);
}
END_TEST

/* Blocks that a sweep skipped for lack of memory are found by a later sweep. */
START_TEST(each_allocation_of_a_sweep_fails_once)
{
    uint64_t nth = 0, made;
    do {
        struct harness h;
        open_all(&h, &(struct harness_opts){0});
        harness_store(&h, chain, LENGTH);
        remove_keys(&h, &chain[3], 1);
        tierce__alloc_fail_nth(++nth);
        for (int i = 0; i < 10; i++) {
            h.now_us += 100000;
            (void)tierce__reclaimer_step(reclaimer);
        }
        made = tierce__alloc_fail_nth(0);
        (void)sweep(&h);
        ck_assert_msg(harness_usage(&h).keys == 3, "allocation %d", (int)nth);
        ck_assert_uint_eq(count_notes(&h), 0);
        close_all(&h);
    } while (made >= nth);
    ck_assert_uint_gt(nth, 10);
}
END_TEST

START_TEST(the_next_leader_finds_what_was_left)
{
    struct harness h;
    char index[] = "/tmp/tierce_indexXXXXXX";
    temp_folder_make(index);
    open_all(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(harness_usage(&h).keys, 7);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert_uint_eq(count_notes(&h), 0);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 3, h.why), 0);
    ck_assert_uint_eq(count_notes(&h), 0); /* in the store, too */
    close_all(&h);
    temp_folder_remove(index);
}
END_TEST

/* Dropping the notes of closed holes leaves the note of an open one, for the next leader. */
START_TEST(the_note_of_an_open_hole_stays)
{
    struct harness h;
    char index[] = "/tmp/tierce_indexXXXXXX";
    struct tierce__live *live;
    temp_folder_make(index);
    open_all(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__live_drop_hole_notes(live), 0);
    ck_assert_uint_eq(live->holes.note_count, 1);
    tierce__live_release(live);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert_uint_eq(count_notes(&h), 0);
    close_all(&h);
    temp_folder_remove(index);
}
END_TEST

START_TEST(what_follows_an_expired_block_goes)
{
    struct harness h;
    struct tierce__started started;
    struct tierce__write_request request = {
        .instance_id = "i", .keys = chain, .count = 3, .timeout_s = 30, .ttl_s = 10};
    open_all(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     0);
    harness_finish(&h, &started);
    harness_store(&h, chain, LENGTH); /* the rest, without a time */
    h.now_us += 11 * 1000000LL;
    ck_assert_uint_eq(sweep(&h), LENGTH);
    ck_assert_uint_eq(harness_usage(&h).keys, 0);
    close_all(&h);
}
END_TEST

/* The session of the suffix began before. */
START_TEST(what_is_stored_behind_a_hole_goes)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 4);
    struct tierce__started started = harness_start(&h, chain, LENGTH);
    ck_assert_uint_eq(started.count, 4);
    remove_keys(&h, &chain[3], 1);
    (void)sweep(&h);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_usage(&h).keys, 7);
    ck_assert_uint_eq(sweep(&h), 4);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), 3);
    close_all(&h);
}
END_TEST

/* Two sessions store behind the same hole; one of the blocks is removed. */
START_TEST(a_hole_knows_all_that_came_behind_it)
{
    static const int64_t other[] = {11, 22, 133};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 2);
    struct tierce__started first = harness_start(&h, chain, 3);
    struct tierce__started second = harness_start(&h, other, 3);
    remove_keys(&h, &chain[1], 1);
    harness_finish(&h, &first);
    harness_finish(&h, &second);
    remove_keys(&h, &chain[2], 1);
    ck_assert_uint_eq(sweep(&h), 1);
    ck_assert(is_there(&h, 11) && !is_there(&h, 133));
    close_all(&h);
}
END_TEST

/* Clients of sliding windows store the end of a prompt only. */
START_TEST(what_was_never_stored_is_no_hole)
{
    static const uint8_t last[LENGTH] = {0, 0, 0, 0, 0, 1, 1, 1};
    struct tierce__mask mask = {.is_values = true, .values = last, .count = LENGTH};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, LENGTH);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &mask, h.why),
                     0);
    ck_assert_uint_eq(sweep(&h), 0);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_WINDOW, chain, LENGTH, 3).hits, 3);
    close_all(&h);
}
END_TEST

/* Blocks of a group with a time to live stay while their successors are read, even if the engine
 * never requests them. */
START_TEST(a_prefix_does_not_expire_before_its_suffix)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.policy = TIERCE__RECLAIM_TTL}); /* an hour */
    harness_store(&h, chain, LENGTH);
    for (int i = 0; i < 5; i++) {
        struct tierce__got got;
        struct tierce__get_request request = {.instance_id = "i",
                                              .query = TIERCE__QUERY_PREFIX,
                                              .keys = chain,
                                              .count = LENGTH,
                                              .mask = {.offset = 5}};
        h.now_us += 1000 * 1000000LL;
        (void)tierce__reclaimer_step(reclaimer);
        ck_assert_int_eq(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why), 0);
        ck_assert_uint_eq(got.count, 3);
    }
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), LENGTH);
    close_all(&h);
}
END_TEST

/* ---- the steps of a sweep -------------------------------------------------------------------- */

static struct tierce__live *take_live(struct harness *h)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    return live;
}

static struct tierce__reclaimed told[16];
static size_t told_count;

static void note_told(void *arg, const char *instance_id, const struct tierce__reclaimed *gone,
                      size_t count, int64_t delay_us)
{
    ck_assert_str_eq(instance_id, "i");
    ck_assert_int_eq(delay_us, 5);
    for (size_t i = 0; i < count && told_count < 16; i++)
        told[told_count++] = gone[i];
    (void)arg;
}

/* One call of the sweep; *next_us = when the next one is due, or INT64_MAX. */
static struct tierce__removed sweep_once(struct harness *h, struct tierce__live *live,
                                         int64_t *next_us)
{
    struct tierce__removed swept = {0};
    const struct tierce__orphan_sweeping how = {.delay_us = 5, .submitted = note_told, .arg = h};
    *next_us = INT64_MAX;
    tierce__live_sweep_orphans(live, &how, &swept, next_us);
    return swept;
}

static struct harness *scanned;
static const struct tierce__meta_store_ops *scan_ops;
static int scans;
static struct tierce__started unfinished;

/* A session that began before the hole ends after the sweep began. */
static int scan_and_finish(struct tierce__meta_space *space, uint64_t *cursor, size_t wanted,
                           int64_t *keys, size_t *count)
{
    if (scans++ == 0) {
        scanned->now_us += 1;
        harness_finish(scanned, &unfinished);
    }
    return scan_ops->scan(space, cursor, wanted, keys, count);
}

/* A store may return a key twice, as Redis does. */
static int scan_twice(struct tierce__meta_space *space, uint64_t *cursor, size_t wanted,
                      int64_t *keys, size_t *count)
{
    *cursor = 0;
    int rc = scan_ops->scan(space, cursor, wanted, keys, count);
    *cursor = scans++ == 0 ? 1 : 0;
    return rc;
}

static int scan_fails(struct tierce__meta_space *space, uint64_t *cursor, size_t wanted,
                      int64_t *keys, size_t *count)
{
    (void)space, (void)cursor, (void)wanted, (void)keys, (void)count;
    return -EIO;
}

static void set_scan(struct tierce__live *live, struct tierce__meta_store_ops *ops,
                     int (*scan)(struct tierce__meta_space *space, uint64_t *cursor, size_t wanted,
                                 int64_t *keys, size_t *count))
{
    scans = 0;
    scan_ops = live->space->ops;
    *ops = *scan_ops;
    ops->scan = scan;
    live->space->ops = ops;
}

/* A block that is stored behind a hole during a sweep stays until the next one: its client may
 * store the hole's key next. */
START_TEST(a_sweep_removes_what_was_there_when_it_began)
{
    static const int64_t branch[] = {11, 22, 33, 44, 155};
    struct harness h;
    struct tierce__meta_store_ops ops;
    int64_t next_us;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__live *live = take_live(&h);
    harness_store(&h, chain, LENGTH);
    struct tierce__record last;
    bool found;
    ck_assert_int_eq(
        tierce__meta_index_get(live->index, &chain[LENGTH - 1], 1, &h.arena, &last, &found), 0);
    unfinished = harness_start(&h, branch, 5);
    ck_assert_uint_eq(unfinished.count, 1);
    remove_keys(&h, &chain[3], 1);
    scanned = &h;
    set_scan(live, &ops, scan_and_finish);
    struct tierce__removed swept = sweep_once(&h, live, &next_us);
    live->space->ops = scan_ops;
    ck_assert(is_there(&h, 155));
    ck_assert_uint_eq(swept.keys, 4);
    ck_assert_uint_eq(swept.locations, 4);
    ck_assert_uint_eq(swept.bytes, 4 * BLOCK_BYTES);
    ck_assert_uint_eq(told_count, 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(told[i].key, chain[LENGTH - 1 - i]); /* the farthest first */
    ck_assert_mem_eq(told[0].location_id, last.locations[0].id, sizeof(told[0].location_id));
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

START_TEST(a_key_that_a_scan_returns_twice)
{
    struct harness h;
    struct tierce__meta_store_ops ops;
    int64_t next_us;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__live *live = take_live(&h);
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    set_scan(live, &ops, scan_twice);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 4);
    live->space->ops = scan_ops;
    ck_assert_int_eq(scans, 2);
    ck_assert_int_eq(next_us, INT64_MAX);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

static struct tierce__holes *scanned_holes;
static const struct tierce__gone indexed = {.key = 44, .children = 1};

static int scan_and_open(struct tierce__meta_space *space, uint64_t *cursor, size_t wanted,
                         int64_t *keys, size_t *count)
{
    tierce__holes_take(scanned_holes, &indexed, 1, 0);
    return scan_ops->scan(space, cursor, wanted, keys, count);
}

/* The table may name a key that is indexed: the call that stored it has not closed the hole yet.
 * That is so when a sweep begins, or when it looks for victims. */
START_TEST(a_hole_whose_key_is_indexed_is_closed)
{
    static const int64_t other[] = {222, 233};
    struct tierce__meta_store_ops ops;
    struct harness h;
    int64_t next_us;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__live *live = take_live(&h);
    harness_store(&h, chain, LENGTH);
    tierce__holes_take(&live->holes, &indexed, 1, 0);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
    ck_assert(!tierce__holes_any(&live->holes));
    h.now_us += 1000000;
    harness_store(&h, other, 2);
    remove_keys(&h, other, 1);
    scanned_holes = &live->holes;
    set_scan(live, &ops, scan_and_open);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 1);
    live->space->ops = scan_ops;
    ck_assert(!tierce__holes_any(&live->holes) && !is_there(&h, 233));
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), LENGTH);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* While a hole's key is written, and after an error of the store, the sweep is tried again a second
 * later, not at once. */
START_TEST(a_sweep_that_cannot_go_on_waits_a_second)
{
    enum { SECOND_US = 1000000 };
    const struct tierce__mask none = {0};
    struct harness h;
    struct tierce__meta_store_ops ops;
    int64_t next_us;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__live *live = take_live(&h);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
    ck_assert_int_eq(next_us, INT64_MAX); /* there is no hole */
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    struct tierce__started started = harness_start(&h, chain, LENGTH);
    set_scan(live, &ops, scan_fails);
    for (int i = 0; i < 2; i++) {
        int64_t due_us = h.now_us + SECOND_US;
        ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
        ck_assert_int_eq(next_us, due_us);
        if (i == 0)
            ck_assert_int_eq(
                tierce__locator_finish_write(h.locator, "i", started.session, &none, h.why), 0);
        else
            live->space->ops = scan_ops;
        h.now_us = due_us - 1;
        ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
        ck_assert_int_eq(next_us, due_us);
        h.now_us = due_us;
    }
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 4);
    ck_assert_int_eq(next_us, INT64_MAX);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* A sweep of many blocks takes several calls: eight pages of 1024 keys are read at once, and 1024
 * blocks are removed. The next one begins after ten times the time that it took. */
START_TEST(a_long_sweep_takes_several_calls)
{
    enum { BLOCKS = 9000, PAGE = 1024, SECOND_US = 1000000 };
    static int64_t keys[BLOCKS];
    struct harness h;
    int64_t next_us;
    size_t calls = 0, removed = 0;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__live *live = take_live(&h);
    for (int i = 0; i < BLOCKS; i++)
        keys[i] = i + 1;
    harness_store(&h, keys, BLOCKS);
    remove_keys(&h, keys, 1);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
    ck_assert_int_eq(next_us, h.now_us); /* it goes on */
    h.now_us += SECOND_US;
    for (; removed < BLOCKS - 1; calls++) {
        size_t left = BLOCKS - 1 - removed, some = sweep_once(&h, live, &next_us).keys;
        ck_assert_uint_eq(some, left < PAGE ? left : PAGE);
        removed += some;
        ck_assert_int_eq(next_us, removed < BLOCKS - 1 ? h.now_us : INT64_MAX);
        ck_assert_int_eq(is_there(&h, keys[1]), removed < BLOCKS - 1);
    }
    ck_assert_uint_eq(calls, (BLOCKS - 1 + PAGE - 1) / PAGE);
    harness_store(&h, chain, LENGTH);
    remove_keys(&h, &chain[3], 1);
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 0);
    ck_assert_int_eq(next_us, h.now_us + 10 * SECOND_US);
    h.now_us = next_us;
    ck_assert_uint_eq(sweep_once(&h, live, &next_us).keys, 4);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* ---- reclaim --------------------------------------------------------------------------------- */

/* The first blocks of a chain were not read for longest, since the engine has them itself: still
 * the last leave. */
START_TEST(chains_are_reclaimed_from_their_ends)
{
    static const int policies[] = {TIERCE__RECLAIM_LRU, TIERCE__RECLAIM_LFU, TIERCE__RECLAIM_TTL};
    struct harness h;
    open_all(&h, &(struct harness_opts){
                     .capacity = 10 * BLOCK_BYTES, .watermark = 0.5, .policy = policies[_i]});
    harness_store(&h, chain, LENGTH);
    for (int i = 4; i < LENGTH; i++)
        read_key(&h, chain[i]);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), 5);
    ck_assert_uint_eq(sweep(&h), 0);
    close_all(&h);
}
END_TEST

/* 30 chains of 50 blocks, of which a sample draws a few ends only. */
START_TEST(a_sample_makes_no_holes)
{
    enum { CHAINS = 30, BLOCKS = 50 };
    struct harness h;
    int64_t keys[BLOCKS];
    harness_open(&h, &(struct harness_opts){.capacity = (int64_t)CHAINS * BLOCKS * BLOCK_BYTES,
                                            .watermark = 0.5});
    start_reclaimer(&h, 200);
    for (int c = 0; c < CHAINS; c++) {
        h.now_us += 1000000;
        for (int i = 0; i < BLOCKS; i++)
            keys[i] = c * 1000 + i;
        harness_store(&h, keys, BLOCKS);
    }
    for (int i = 0; i < 20; i++)
        (void)tierce__reclaimer_step(reclaimer);
    size_t left = harness_usage(&h).keys, oldest = 0;
    ck_assert_uint_le(left, CHAINS * BLOCKS / 2);
    ck_assert_uint_ge(left, CHAINS * BLOCKS / 2 - BLOCKS);
    for (int c = 0; c < CHAINS; c++) {
        for (int i = 0; i < BLOCKS; i++)
            keys[i] = c * 1000 + i;
        size_t prefix = harness_prefix(&h, keys, BLOCKS);
        ck_assert_uint_eq(prefix, harness_get(&h, TIERCE__QUERY_BATCH, keys, BLOCKS, 0).hits);
        oldest += c < CHAINS / 3 ? prefix : 0;
        left -= prefix;
    }
    ck_assert_uint_eq(left, 0);                         /* every block that is there is reached */
    ck_assert_uint_le(oldest, CHAINS / 3 * BLOCKS / 4); /* and few of the oldest are */
    ck_assert_uint_eq(count_notes(&h), 0);
    close_all(&h);
}
END_TEST

/* Blocks that follow each other in a circle, as nobody sane stores them, do not fill a group. */
START_TEST(a_circle_can_be_reclaimed)
{
    static const int64_t there[] = {1, 2, 3}, back[] = {3, 1};
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 4 * BLOCK_BYTES, .watermark = 0.5});
    harness_store(&h, there, 3);
    remove_keys(&h, there, 1);
    harness_store(&h, back, 2); /* 1 follows 3 */
    ck_assert_uint_eq(harness_usage(&h).keys, 3);
    ck_assert_uint_ge(tierce__reclaimer_step(reclaimer), 1);
    (void)sweep(&h);
    ck_assert_uint_le(harness_usage(&h).keys, 2);
    close_all(&h);
}
END_TEST

/* A block that is used while it is being selected stays, and so do its predecessors: other blocks
 * are selected. */
START_TEST(a_use_meanwhile_makes_no_hole)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    harness_store(&h, chain, LENGTH);
    touch_between(&h, chain[LENGTH - 1]);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    touch_no_more(&h);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, LENGTH, 0).hits, 5);
    ck_assert_uint_eq(harness_prefix(&h, chain, LENGTH), 5);
    ck_assert_uint_eq(count_notes(&h), 0);
    close_all(&h);
}
END_TEST

CHECK_MAIN("orphans", .seconds = 60,
           .tests = {what_follows_a_removed_block_is_deleted,
                     branches_go_and_what_is_beside_them_stays,
                     a_chain_that_is_removed_as_a_whole_leaves_no_hole,
                     a_block_that_is_stored_again_has_its_suffix_back,
                     a_block_that_is_removed_twice_leaves_one_hole,
                     each_allocation_of_a_sweep_fails_once,
                     the_next_leader_finds_what_was_left,
                     the_note_of_an_open_hole_stays,
                     what_follows_an_expired_block_goes,
                     what_is_stored_behind_a_hole_goes,
                     a_hole_knows_all_that_came_behind_it,
                     what_was_never_stored_is_no_hole,
                     a_prefix_does_not_expire_before_its_suffix,
                     a_sample_makes_no_holes,
                     a_circle_can_be_reclaimed,
                     a_use_meanwhile_makes_no_hole,
                     a_sweep_removes_what_was_there_when_it_began,
                     a_key_that_a_scan_returns_twice,
                     a_hole_whose_key_is_indexed_is_closed,
                     a_sweep_that_cannot_go_on_waits_a_second,
                     a_long_sweep_takes_several_calls},
           .loops = {{chains_are_reclaimed_from_their_ends, 0, 3}})
