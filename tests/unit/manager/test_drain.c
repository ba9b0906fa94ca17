/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that an operator empties. */
#include "check_main.h"
#include "manager_moves.h"
#include "meta_folder.h"

static const int64_t keys[] = {1, 2, 3, 4, 5, 6};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static void drain(struct harness *h, const char *name, enum tierce__draining how)
{
    int rc = tierce__registry_drain_storage(h->registry, name, how, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static struct tierce__drain_state state_of(struct harness *h, const char *name)
{
    struct tierce__drain_state state;
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    tierce__locator_drain_state(h->locator, tierce__catalog_storage(catalog, name), &state);
    tierce__registry_release(h->registry, catalog);
    return state;
}

/* One round of the reclaimer, a mover that copies all it gets, and the deleter. */
static size_t work(struct harness *h)
{
    size_t moved = 0;
    h->now_us += 11000000;
    (void)tierce__reclaimer_step(reclaimer);
    struct tierce__taken_moves taken = moves_take(h, 1000);
    for (size_t i = 0; i < taken.count; i++)
        moved += moves_finish(h, &taken.batches[i], TIERCE__MOVED);
    (void)tierce__deleter_step(h->locator->deleter, 100);
    return moved;
}

START_TEST(blocks_move_and_new_ones_go_elsewhere)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    const int64_t late[] = {7};
    struct tierce__started began_before = harness_start(&h, late, 1);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    const int64_t fresh[] = {8};
    struct tierce__started after = harness_start(&h, fresh, 1);
    ck_assert_ptr_nonnull(strstr(after.locations[0].specs[0].uri, "file://t/"));
    harness_finish(&h, &after);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS); /* it is still read */
    ck_assert_uint_eq(work(&h), KEYS);
    ck_assert_uint_eq(state_of(&h, "s").left_locations, KEYS); /* by the scan, before the moves */
    harness_finish(&h, &began_before);
    ck_assert_uint_eq(work(&h), 1);
    ck_assert_uint_eq(work(&h), 0);
    ck_assert_uint_eq(state_of(&h, "s").left_locations, 0);
    ck_assert_uint_eq(state_of(&h, "s").left_bytes, 0);
    (void)work(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), (KEYS + 2) * BLOCK_BYTES);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    drain(&h, "s", TIERCE__DRAINING_NOT);
    const int64_t again[] = {9};
    struct tierce__started last = harness_start(&h, again, 1);
    ck_assert_ptr_nonnull(strstr(last.locations[0].specs[0].uri, "file://s/"));
    close_all(&h);
}
END_TEST

START_TEST(dropped_blocks_leave_and_others_stay)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_DROPS);
    const int64_t fresh[] = {8};
    harness_store(&h, fresh, 1);
    h.now_us += 11000000;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    ck_assert_uint_eq(harness_prefix(&h, fresh, 1), 1);
    ck_assert_uint_eq(state_of(&h, "s").left_bytes, 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), KEYS * BLOCK_BYTES); /* readers have time */
    h.now_us += 10000000;
    (void)tierce__deleter_step(h.locator->deleter, 100);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    close_all(&h);
}
END_TEST

/* A block with a copy elsewhere keeps it. */
START_TEST(copies_in_other_storages_stay)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", true, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(&h, 100);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    drain(&h, "s", TIERCE__DRAINING_DROPS);
    (void)work(&h);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, 1);
    close_all(&h);
}
END_TEST

START_TEST(without_a_target_it_waits_and_says_so)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.has_engines = true});
    moves_add_storage(&h, "t", 4 * BLOCK_BYTES); /* room for three */
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_uint_eq(work(&h), 3);
    ck_assert_uint_eq(work(&h), 0);
    struct tierce__drain_state state = state_of(&h, "s");
    ck_assert_uint_eq(state.left_locations, 3);
    ck_assert_uint_eq(state.queued_blocks, 3);
    ck_assert_ptr_nonnull(strstr(state.why, "the quota by storage"));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    moves_add_storage(&h, "u", 0); /* the operator adds room */
    ck_assert_uint_eq(work(&h), 3);
    ck_assert_uint_eq(state_of(&h, "s").left_bytes, 0);
    close_all(&h);
}
END_TEST

START_TEST(blocks_that_nobody_can_verify_are_counted)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "t", 0);
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_uint_eq(work(&h), 0);
    ck_assert_uint_eq(state_of(&h, "s").left_locations, KEYS);
    ck_assert_uint_eq(state_of(&h, "s").unverifiable_locations, KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    drain(&h, "s", TIERCE__DRAINING_DROPS);
    (void)work(&h);
    ck_assert_uint_eq(state_of(&h, "s").left_bytes, 0);
    close_all(&h);
}
END_TEST

START_TEST(another_leader_goes_on)
{
    struct harness h;
    meta_folder_make();
    moves_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    h.now_us += 11000000;
    (void)tierce__reclaimer_step(reclaimer);
    tierce__locator_drop(h.locator);
    int rc = tierce__locator_recover(h.locator, 2, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    ck_assert_uint_eq(moves_take(&h, 100).count, 0); /* the queue was in memory */
    ck_assert_uint_eq(work(&h), KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all(&h);
    meta_folder_remove();
}
END_TEST

CHECK_MAIN("drain",
           .tests = {blocks_move_and_new_ones_go_elsewhere, dropped_blocks_leave_and_others_stay,
                     copies_in_other_storages_stay, without_a_target_it_waits_and_says_so,
                     blocks_that_nobody_can_verify_are_counted, another_leader_goes_on})
