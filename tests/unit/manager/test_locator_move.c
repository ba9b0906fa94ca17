/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are copied and moved between storages, and all that may happen meanwhile. */
#include "check_main.h"
#include "base/alloc.h"
#include "manager_moves.h"
#include "meta_folder.h"

static const int64_t keys[] = {1, 2, 3, 4, 5, 6};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static void store_in_s(struct harness *h)
{
    moves_open(h, &(struct harness_opts){0});
    harness_store(h, keys, KEYS);
    h->now_us += 5000000;
}

/* With an index that outlives its leader. */
static void store_durably(struct harness *h)
{
    meta_folder_make();
    moves_open(h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    harness_store(h, keys, KEYS);
    h->now_us += 5000000;
}

static void lead_again(struct harness *h)
{
    static uint64_t fence = 1;
    tierce__locator_drop(h->locator);
    int rc = tierce__locator_recover(h->locator, ++fence, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static void close_durable(struct harness *h)
{
    close_all(h);
    meta_folder_remove();
}

static struct tierce__taken_moves take_one(struct harness *h, bool is_copy)
{
    ck_assert_uint_eq(moves_want(h, keys, KEYS, "s", is_copy, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(h, 100);
    ck_assert_uint_eq(taken.count, 1);
    ck_assert_uint_eq(taken.batches[0].count, KEYS);
    return taken;
}

/* A reader finds each block, at a place that is not being deleted. */
static void check_readable(struct harness *h)
{
    ck_assert_uint_eq(harness_prefix(h, keys, KEYS), KEYS);
}

static void delete_due(struct harness *h)
{
    h->now_us += 1000000000;
    while (tierce__deleter_step(h->locator->deleter, 100) > 0)
        ;
}

START_TEST(a_move_changes_the_place_and_nothing_else)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__record before = moves_record(&h, 3);
    struct tierce__taken_moves taken = take_one(&h, false);
    const struct tierce__move_batch *batch = &taken.batches[0];
    ck_assert_str_eq(batch->from_storage, "s");
    ck_assert_str_eq(batch->to_storage, "t");
    ck_assert_int_eq(batch->keys[0], 1);
    ck_assert_uint_eq(batch->from[0].spec_count, 2);
    ck_assert_str_eq(batch->from[0].specs[1].name, batch->to[0].specs[1].name);
    ck_assert_ptr_nonnull(strstr(batch->from[0].specs[0].uri, "file://s/"));
    ck_assert_ptr_nonnull(strstr(batch->to[0].specs[0].uri, "file://t/"));
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(moves_finish(&h, batch, TIERCE__MOVED), KEYS);
    struct tierce__record after = moves_record(&h, 3);
    ck_assert_uint_eq(after.location_count, 1);
    ck_assert_uint_eq(after.locations[0].storage, moves_number_of(&h, "t"));
    ck_assert_int_eq(after.used_us, before.used_us);
    ck_assert_int_eq(after.stored_us, before.stored_us);
    ck_assert(after.has_parent && after.parent == 2);
    ck_assert_uint_eq(after.children, before.children);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, KEYS * BLOCK_BYTES); /* the sources */
    check_readable(&h);
    delete_due(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(moves_stats(&h).moved[TIERCE__MOVE_COLD], KEYS);
    ck_assert_uint_eq(moves_stats(&h).moved_bytes[TIERCE__MOVE_COLD], KEYS * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

/* Its bytes stay for a while: a reader was given them. */
START_TEST(readers_of_the_source_have_time)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    h.now_us += 9000000;
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 100), 0);
    h.now_us += 1000000;
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 100), 1);
    close_all(&h);
}
END_TEST

START_TEST(a_copy_keeps_the_source)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, true);
    ck_assert(taken.batches[0].is_copy);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, 2);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 2 * KEYS * BLOCK_BYTES);
    /* There is no third storage to copy it to. */
    ck_assert_uint_eq(moves_want(&h, keys, 1, "s", true, TIERCE__MOVE_TO_ANY), 1);
    ck_assert_uint_eq(moves_take(&h, 10).count, 0);
    close_all(&h);
}
END_TEST

static void remove_three(struct harness *h)
{
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h->locator, "i", &keys[2], 1, &none, h->why), 0);
}

static void report_three(struct harness *h)
{
    uint64_t dropped;
    struct tierce__got got = harness_get(h, TIERCE__QUERY_BATCH, &keys[2], 1, 0);
    struct tierce__location_report report = {.key = 3,
                                             .spec_name = got.found[0].specs[0].name,
                                             .uri = got.found[0].specs[0].uri,
                                             .reason = TIERCE__REPORT_DAMAGED};
    ck_assert_int_eq(tierce__locator_report(h->locator, "i", &report, 1, &dropped, h->why), 0);
    ck_assert_uint_eq(dropped, 1);
}

/* As the reclaimer does: nobody marks the claim. */
static void evict_three(struct harness *h)
{
    struct tierce__live *live;
    struct tierce__removed removed = {0};
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(tierce__live_remove(live, &keys[2], 1,
                                         &(struct tierce__removal){.due_us = h->now_us}, &removed),
                     0);
    tierce__live_release(live);
}

static void evict_three_and_write_it_again(struct harness *h)
{
    evict_three(h);
    struct tierce__started started = harness_start(h, &keys[2], 1);
    ck_assert_uint_eq(started.count, 0); /* the copy's claim keeps it */
}

START_TEST(a_block_that_left_meanwhile_does_not_come_back)
{
    void (*const events[])(struct harness *) = {remove_three, report_three, evict_three,
                                                evict_three_and_write_it_again};
    struct harness h;
    for (int restarts = 0; restarts < 2; restarts++) {
        store_durably(&h);
        struct tierce__taken_moves taken = take_one(&h, false);
        if (restarts)
            lead_again(&h);
        events[_i](&h);
        ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS - 1);
        ck_assert_uint_eq(moves_record(&h, 3).location_count, 0);
        ck_assert_uint_eq(moves_record(&h, 4).location_count, 1);
        ck_assert_uint_eq(moves_stats(&h).ended[TIERCE__MOVE_OVERTAKEN], 1);
        delete_due(&h);
        ck_assert_uint_eq(harness_usage(&h).serving_bytes, (KEYS - 1) * BLOCK_BYTES);
        ck_assert_uint_eq(moves_bytes_in(&h, "s") + moves_bytes_in(&h, "t"),
                          (KEYS - 1) * BLOCK_BYTES);
        close_durable(&h);
    }
}
END_TEST

START_TEST(an_invalidation_meanwhile)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    char id[] = "i";
    struct tierce__instance invalidated = {.id = id, .generation = 1};
    ck_assert_int_eq(tierce__locator_invalidate(h.locator, &invalidated, h.why), 0);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    delete_due(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 0);
    close_all(&h);
}
END_TEST

/* As in an index that was taken over: the place is a text, and has the sum in it. */
static void make_text(struct harness *h, int64_t key, const char *uri)
{
    struct tierce__live *live;
    struct tierce__record record = moves_record(h, key);
    struct tierce__location location = record.locations[0];
    struct tierce__spec_place place = location.places[0];
    char text[512];
    snprintf(text, sizeof(text), "%s&sum=ab00000000000000000000000000000c", uri);
    place = (struct tierce__spec_place){.spec = place.spec, .bytes = place.bytes, .uri = text};
    location.places = &place;
    location.place_count = 1;
    record.locations = &location;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    struct tierce__meta_put put = {key, record};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    ck_assert_int_eq(live->space->ops->write(live->space, &batch), 0);
    tierce__live_release(live);
}

START_TEST(sums_move_with_the_bytes)
{
    static const int64_t key = 77;
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, &key, 1);
    struct tierce__written_sum sum = {
        .key = 0, .spec = started.locations[0].specs[0].name, .sum = {0xab, [15] = 0x0c}};
    struct tierce__mask all = {.offset = 1};
    ck_assert_int_eq(tierce__locator_finish_write_noted(h.locator, "i", started.session, &all,
                                                        &(struct tierce__written_notes){&sum, 1, 0},
                                                        h.why),
                     0);
    h.now_us += 5000000;
    if (_i == 1)
        make_text(&h, key, started.locations[0].specs[0].uri);
    for (int is_copy = 1; is_copy >= 0; is_copy--) {
        ck_assert_uint_eq(moves_want(&h, &key, 1, "s", is_copy != 0, TIERCE__MOVE_TO_ANY), 1);
        struct tierce__taken_moves taken = moves_take(&h, 100);
        ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 1);
        struct tierce__record record = moves_record(&h, key);
        ck_assert_uint_eq(record.location_count, 2);
        for (size_t l = 0; l < record.location_count; l++)
            if (record.locations[l].places[0].uri == NULL)
                ck_assert_mem_eq(record.locations[l].places[0].sum, sum.sum, sizeof(sum.sum));
        if (is_copy)
            moves_add_storage(&h, "u", 0);
    }
    close_all(&h);
}
END_TEST

START_TEST(a_mover_that_dies)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    h.now_us += 31000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    enum tierce__move_result results[KEYS] = {0};
    size_t moved;
    ck_assert_int_eq(tierce__locator_finish_moves(h.locator, "i", taken.batches[0].session, results,
                                                  KEYS, &moved, h.why),
                     -ESRCH);
    ck_assert_uint_eq(moves_stats(&h).ended[TIERCE__MOVE_EXPIRED], KEYS);
    check_readable(&h);
    delete_due(&h); /* and again, in case the mover still wrote */
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 0);
    /* Nothing was wrong with the blocks: they do not rest. */
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), KEYS);
    close_all(&h);
}
END_TEST

START_TEST(a_mover_that_holds_its_batches)
{
    struct harness h;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false), renewed;
    struct tierce__held_moves held[] = {{"i", taken.batches[0].session}, {"i", "unknown"}};
    for (int i = 0; i < 5; i++) {
        h.now_us += 20000000;
        ck_assert_int_eq(tierce__locator_take_moves(
                             h.locator, &(struct tierce__take_moves){.held = held, .held_count = 2},
                             &h.arena, &renewed, h.why),
                         0);
        ck_assert_uint_eq(tierce__locator_expire(h.locator), 0);
        ck_assert_uint_eq(renewed.lost_count, 1);
        ck_assert_str_eq(renewed.lost[0], "unknown");
        ck_assert_uint_eq(renewed.count, 0);
    }
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    close_all(&h);
}
END_TEST

START_TEST(a_mover_that_lies)
{
    struct harness h;
    enum tierce__move_result results[KEYS + 1] = {0};
    size_t moved;
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    const char *session = taken.batches[0].session;
    /* A client that has its id cannot end it as a write. */
    struct tierce__mask all = {.offset = KEYS};
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", session, &all, h.why), -ESRCH);
    ck_assert_int_eq(
        tierce__locator_finish_moves(h.locator, "i", "unknown", results, KEYS, &moved, h.why),
        -ESRCH);
    ck_assert_int_eq(
        tierce__locator_finish_moves(h.locator, "i", session, results, KEYS - 1, &moved, h.why),
        TIERCE_E_ARGUMENT);
    ck_assert_str_eq(h.why, "results has 5 entries, but the batch has 6 blocks; send one for each");
    ck_assert_int_eq(
        tierce__locator_finish_moves(h.locator, "i", session, results, KEYS + 1, &moved, h.why),
        TIERCE_E_ARGUMENT);
    results[2] = TIERCE__MOVE_OVERTAKEN;
    ck_assert_int_eq(
        tierce__locator_finish_moves(h.locator, "i", session, results, KEYS, &moved, h.why),
        TIERCE_E_ARGUMENT);
    int64_t new_key = 77;
    struct tierce__started write = harness_start(&h, &new_key, 1);
    ck_assert_int_eq(
        tierce__locator_finish_moves(h.locator, "i", write.session, results, 1, &moved, h.why),
        -ESRCH);
    ck_assert_ptr_nonnull(strstr(h.why, "another client's write session"));
    harness_finish(&h, &write);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    close_all(&h);
}
END_TEST

START_TEST(bad_sources_leave_and_others_stay)
{
    struct harness h;
    size_t moved = 0;
    uint64_t reports[TIERCE__REPORT_REASONS];
    enum tierce__move_result results[KEYS] = {
        TIERCE__MOVED,
        TIERCE__MOVE_SOURCE_MISSING,
        TIERCE__MOVE_SOURCE_DAMAGED,
        TIERCE__MOVE_SOURCE_UNREACHABLE,
        TIERCE__MOVE_TARGET_FAILED,
        TIERCE__MOVE_UNVERIFIABLE,
    };
    size_t locations[KEYS] = {1, 0, 0, 1, 1, 1};
    store_in_s(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    ck_assert_int_eq(tierce__locator_finish_moves(h.locator, "i", taken.batches[0].session, results,
                                                  KEYS, &moved, h.why),
                     0);
    ck_assert_uint_eq(moved, 1);
    for (size_t i = 0; i < KEYS; i++) {
        ck_assert_uint_eq(moves_record(&h, keys[i]).location_count, locations[i]);
        ck_assert_uint_eq(moves_stats(&h).ended[results[i]], 1);
    }
    tierce__locator_reports(h.locator, reports);
    ck_assert_uint_eq(reports[TIERCE__REPORT_MISSING], 1);
    ck_assert_uint_eq(reports[TIERCE__REPORT_DAMAGED], 1);
    ck_assert_uint_eq(moves_stats(&h).resting, 3);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), 0);
    delete_due(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), BLOCK_BYTES);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 3 * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

START_TEST(the_order_of_candidates_is_hot_to_cold)
{
    static const struct {
        enum tierce__move_to to;
        const char *target;
    } cases[] = {{TIERCE__MOVE_TO_ANY, "s"},
                 {TIERCE__MOVE_TO_HOTTER, "s"},
                 {TIERCE__MOVE_TO_COLDER, "u"},
                 {TIERCE__MOVE_TO_SAME_TYPE, "s"}};
    struct harness h;
    store_in_s(&h);
    moves_add_storage(&h, "u", 0);
    struct tierce__taken_moves taken = take_one(&h, false);
    moves_finish(&h, &taken.batches[0], TIERCE__MOVED); /* to t */
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "t", false, cases[_i].to), KEYS);
    taken = moves_take(&h, 100);
    ck_assert_uint_eq(taken.count, 1);
    ck_assert_str_eq(taken.batches[0].to_storage, cases[_i].target);
    close_all(&h);
}
END_TEST

/* A move stops at the watermark, so that nothing is evicted for it. */
START_TEST(without_room_blocks_wait)
{
    struct harness h;
    char why[256];
    open_all(&h, &(struct harness_opts){.has_engines = true});
    moves_add_storage(&h, "t", 4 * BLOCK_BYTES); /* 95 % of it: three */
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(&h, 100);
    ck_assert_uint_eq(taken.count, 1);
    ck_assert_uint_eq(taken.batches[0].count, 3);
    ck_assert_uint_eq(tierce__moves_of(h.locator->moves, moves_number_of(&h, "s"), h.now_us, why),
                      3);
    ck_assert_ptr_nonnull(strstr(why, "the quota by storage"));
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 3);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    h.now_us += 5000000;
    ck_assert_uint_eq(moves_take(&h, 100).count, 0);
    for (size_t i = 0; i < TIERCE__REJECTIONS; i++)
        ck_assert_uint_eq(harness_usage(&h).rejected_keys[i], 0);
    check_readable(&h);
    close_all(&h);
}
END_TEST

START_TEST(the_rate_between_two_storages)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.has_engines = true, .move_rate = BLOCK_BYTES});
    moves_add_storage(&h, "t", 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), KEYS);
    ck_assert_uint_eq(moves_take(&h, 3).count, 1);
    ck_assert_uint_eq(moves_take(&h, 3).count, 0);
    ck_assert_int_eq(moves_take(&h, 3).wait_ms, 250);
    h.now_us += 2000000;
    ck_assert_uint_eq(moves_take(&h, 3).count, 0);
    h.now_us += 1250000;
    ck_assert_uint_eq(moves_take(&h, 3).count, 1);
    close_all(&h);
}
END_TEST

START_TEST(blocks_of_other_clients_stay)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "t", 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), KEYS);
    ck_assert_uint_eq(moves_take(&h, 100).count, 0);
    ck_assert_uint_eq(moves_stats(&h).ended[TIERCE__MOVE_UNVERIFIABLE], KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), 0);
    close_all(&h);
}
END_TEST

/* The next leader knows the sources, and a batch that was not finished leaves nothing. */
START_TEST(another_leader_goes_on)
{
    struct harness h;
    store_durably(&h);
    struct tierce__taken_moves taken = take_one(&h, false);
    lead_again(&h);
    struct tierce__record before = moves_record(&h, 6);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    ck_assert_uint_eq(moves_record(&h, 6).location_count, 1);
    ck_assert_int_eq(moves_record(&h, 6).stored_us, before.stored_us);
    lead_again(&h); /* the sources are being deleted */
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, KEYS * BLOCK_BYTES);
    delete_due(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    check_readable(&h);
    close_durable(&h);
}
END_TEST

/* The index may be full: blocks that move are counted once. */
START_TEST(moves_take_no_room_in_the_index)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.has_engines = true, .keys_max = KEYS + 2});
    moves_add_storage(&h, "t", 0);
    harness_store(&h, keys, KEYS);
    (void)take_one(&h, false);
    int64_t more[] = {101, 102, 103};
    struct tierce__started started = harness_start(&h, more, 3);
    ck_assert_uint_eq(started.count, 2);
    close_all(&h);
}
END_TEST

/* Whichever allocation fails: each block can be read, and the sums are right in the end. */
START_TEST(every_allocation_fails_once)
{
    struct harness h;
    bool failed = true;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    for (uint64_t n = 1; failed; n++) {
        struct tierce__taken_moves taken = {0};
        enum tierce__move_result results[KEYS] = {0};
        size_t moved = 0;
        (void)moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY);
        (void)moves_want(&h, keys, KEYS, "t", false, TIERCE__MOVE_TO_ANY);
        tierce__alloc_fail_nth(n);
        int rc = tierce__locator_take_moves(
            h.locator, &(struct tierce__take_moves){.blocks_max = 100}, &h.arena, &taken, h.why);
        for (size_t i = 0; rc == 0 && i < taken.count; i++)
            (void)!tierce__locator_finish_moves(h.locator, "i", taken.batches[i].session, results,
                                                taken.batches[i].count, &moved, h.why);
        failed = tierce__alloc_fail_nth(0) >= n;
        tierce__arena_clear(&h.arena);
        check_readable(&h);
        h.now_us += 100000000; /* what was lost on the way times out */
        (void)tierce__locator_expire(h.locator);
        check_readable(&h);
        delete_due(&h);
        ck_assert_uint_eq(harness_usage(&h).serving_bytes, KEYS * BLOCK_BYTES);
        ck_assert_uint_eq(moves_bytes_in(&h, "s") + moves_bytes_in(&h, "t"), KEYS * BLOCK_BYTES);
    }
    close_all(&h);
}
END_TEST

/* One target suits all blocks of a batch, so a block with a copy somewhere is moved in another
 * batch: its target is a storage that does not hold it. */
START_TEST(blocks_with_other_copies_have_their_own_batch)
{
    struct harness h;
    size_t batches = 0;
    moves_open(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "u", 0);
    harness_store(&h, keys, 2);
    ck_assert_uint_eq(moves_want(&h, &keys[1], 1, "s", true, TIERCE__MOVE_TO_ANY), 1);
    struct tierce__taken_moves taken = moves_take(&h, 10);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 1);
    ck_assert_uint_eq(moves_want(&h, keys, 2, "s", false, TIERCE__MOVE_TO_ANY), 2);
    while ((taken = moves_take(&h, 10)).count > 0) {
        for (size_t i = 0; i < taken.count; i++, batches++) {
            ck_assert_uint_eq(taken.batches[i].count, 1);
            ck_assert_uint_eq(moves_finish(&h, &taken.batches[i], TIERCE__MOVED), 1);
        }
    }
    ck_assert_uint_eq(batches, 2);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, 1);
    struct tierce__record copied = moves_record(&h, 2);
    ck_assert_uint_eq(copied.location_count, 2);
    ck_assert_uint_ne(copied.locations[0].storage, copied.locations[1].storage);
    close_all(&h);
}
END_TEST

CHECK_MAIN("locator_move",
           .tests = {blocks_with_other_copies_have_their_own_batch,
                     a_move_changes_the_place_and_nothing_else, readers_of_the_source_have_time,
                     a_copy_keeps_the_source, an_invalidation_meanwhile, a_mover_that_dies,
                     a_mover_that_holds_its_batches, a_mover_that_lies,
                     bad_sources_leave_and_others_stay, without_room_blocks_wait,
                     the_rate_between_two_storages, blocks_of_other_clients_stay,
                     another_leader_goes_on, moves_take_no_room_in_the_index,
                     every_allocation_fails_once},
           .loops = {{sums_move_with_the_bytes, 0, 2},
                     {a_block_that_left_meanwhile_does_not_come_back, 0, 4},
                     {the_order_of_candidates_is_hot_to_cold, 0, 4}})
