/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that an operator empties. */
#include "check_main.h"
#include "log_record.h"
#include "manager_moves.h"
#include "meta_folder.h"
#include "silent_log.h"

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
    ck_assert_uint_eq(state_of(&h, "s").left.bytes, 0);
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
    ck_assert_uint_eq(state_of(&h, "s").left.bytes, 0);
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
    ck_assert_uint_eq(state_of(&h, "s").left.bytes, 0);
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
    ck_assert_uint_eq(state_of(&h, "s").left.bytes, 0);
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

/* ---- its end --------------------------------------------------------------------------------- */

static void lead_again(struct harness *h, uint64_t fence)
{
    tierce__locator_drop(h->locator);
    int rc = tierce__locator_recover(h->locator, fence, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

/* A storage whose blocks have moved still has their objects: readers have time. */
START_TEST(it_is_drained_when_its_objects_are_deleted)
{
    struct harness h;
    meta_folder_make();
    moves_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_str_eq(state_of(&h, "s").name, "moving");
    ck_assert_uint_eq(work(&h), KEYS);
    for (uint64_t fence = 2; fence < 4; fence++) {
        struct tierce__drain_state state = state_of(&h, "s");
        ck_assert_str_eq(state.name, "deleting");
        ck_assert_uint_eq(state.left.bytes, 0);
        ck_assert_uint_eq(state.left.deleting_bytes, KEYS * BLOCK_BYTES);
        ck_assert_uint_eq(state.left.deleting_locations, KEYS);
        ck_assert_int_eq(state.left.due_in_us, 10000000);
        ck_assert_ptr_nonnull(strstr(state.why, "6 locations are still to be deleted; the last"));
        lead_again(&h, fence);
    }
    h.now_us += 9000000;
    (void)tierce__deleter_step(h.locator->deleter, 100);
    ck_assert_str_eq(state_of(&h, "s").name, "deleting");
    h.now_us += 1000000;
    ck_assert_int_eq(state_of(&h, "s").left.due_in_us, 0);
    ck_assert_ptr_nonnull(strstr(state_of(&h, "s").why, "has not confirmed the deletion of 6"));
    (void)tierce__deleter_step(h.locator->deleter, 100);
    struct tierce__drain_state drained = state_of(&h, "s");
    ck_assert_str_eq(drained.name, "drained");
    ck_assert_str_eq(drained.why, "");
    ck_assert_uint_eq(drained.left.deleting_bytes + drained.left.deleting_locations, 0);
    close_all(&h);
    meta_folder_remove();
}
END_TEST

/* A client whose write failed may still write: the objects are deleted once more after a while. */
START_TEST(a_second_deletion_counts)
{
    struct harness h;
    const struct tierce__mask none = {0};
    meta_folder_make();
    moves_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    struct tierce__started started = harness_start(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &none, h.why),
                     0);
    (void)work(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    lead_again(&h, 2);
    struct tierce__drain_state state = state_of(&h, "s");
    ck_assert_str_eq(state.name, "deleting");
    ck_assert_uint_eq(state.left.deleting_locations, KEYS);
    h.now_us += state.left.due_in_us;
    (void)tierce__deleter_step(h.locator->deleter, 100);
    ck_assert_str_eq(state_of(&h, "s").name, "drained");
    close_all(&h);
    meta_folder_remove();
}
END_TEST

/* The reason is shown and logged, once a minute; it is gone when a mover asks. */
START_TEST(without_a_mover_it_says_so)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    record_log(TIERCE_LOG_INFO);
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_str_eq(state_of(&h, "s").why, "");
    h.now_us += 60000000;
    (void)tierce__reclaimer_step(reclaimer);
    h.now_us += 30000000;
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_uint_eq(recorded_with("storage_draining", "no mover has asked for 60 s: start"), 1);
    ck_assert_uint_eq(recorded_with("storage_draining", "no mover"), 1);
    silence_log();
    ck_assert_ptr_nonnull(strstr(state_of(&h, "s").why, "no mover has asked for 90 s: start "
                                                        "tierce node --mover.manager=fleet://"));
    ck_assert_uint_eq(moves_take(&h, 0).count, 0);
    ck_assert_str_eq(state_of(&h, "s").why, "");
    close_all(&h);
}
END_TEST

/* Its end is logged once, and not before it. */
START_TEST(its_end_is_logged_once)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    record_log(TIERCE_LOG_INFO);
    ck_assert_uint_eq(work(&h), KEYS);
    (void)work(&h); /* its objects were not deleted yet when the scan ended */
    ck_assert_uint_eq(recorded_with("storage_drained", ""), 0);
    for (int round = 0; round < 20; round++)
        (void)work(&h);
    ck_assert_uint_eq(recorded_with("storage_drained", "storage=s"), 1);
    ck_assert_uint_eq(recorded_with("storage_draining", "storage=s state=moving"), 1);
    silence_log();
    close_all(&h);
}
END_TEST

/* ---- blocks with copies ---------------------------------------------------------------------- */

static void store_twice(struct harness *h)
{
    harness_store(h, keys, KEYS);
    ck_assert_uint_eq(moves_want(h, keys, KEYS, "s", true, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(h, 100);
    ck_assert_uint_eq(moves_finish(h, &taken.batches[0], TIERCE__MOVED), KEYS);
}

/* A block with a copy elsewhere is not copied again. It is if nobody can read that copy now. */
START_TEST(blocks_with_a_copy_elsewhere_leave)
{
    const bool is_available = _i == 0;
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "u", 0);
    store_twice(&h);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "t", is_available, h.why), 0);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_uint_eq(work(&h), is_available ? 0 : KEYS);
    ck_assert_uint_eq(moves_stats(&h).refused[TIERCE__MOVE_DRAIN], 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, is_available ? 1 : 2);
    ck_assert_uint_eq(state_of(&h, "s").left.bytes, 0);
    close_all(&h);
}
END_TEST

/* The part of a node, in memory, becomes a candidate of "g". */
static void add_part(struct harness *h)
{
    const struct tierce__storage part = {.name = "p.a",
                                         .type = TIERCE__STORAGE_NODE,
                                         .is_enabled = true,
                                         .capacity_bytes = 1 << 20,
                                         .uri = "transfer://127.0.0.1:1/memory",
                                         .pool = "p",
                                         .node = "a",
                                         .medium = "memory",
                                         .incarnation = "0123456789abcdef0123456789abcdef",
                                         .host_id = "h"};
    char s[] = "s", p[] = "p.a";
    char *names[] = {s, p};
    int rc = tierce__registry_put_part(h->registry, &part, false, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quotas[] = {
        group.type_quotas[0], {.type = TIERCE__STORAGE_NODE, .capacity_bytes = 1 << 20}};
    group.type_quotas = quotas;
    group.type_quota_count = 2;
    group.storage_candidates = names;
    group.storage_candidate_count = 2;
    group.version++;
    rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

/* The copy in the memory of a node may be lost with the node: a block of a file still moves. The
 * other way round, the block of the node has its copy in a file. */
START_TEST(a_copy_in_a_node_does_not_replace_a_file)
{
    const bool is_file_drained = _i == 0;
    struct harness h;
    open_all(&h, &(struct harness_opts){.has_engines = true});
    add_part(&h);
    store_twice(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "p.a"), KEYS * BLOCK_BYTES);
    moves_add_storage(&h, "t", 0);
    drain(&h, is_file_drained ? "s" : "p.a", TIERCE__DRAINING_MOVES);
    (void)work(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), is_file_drained ? KEYS * BLOCK_BYTES : 0);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, is_file_drained ? 2 : 1);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all(&h);
}
END_TEST

/* A group that wants two copies keeps two: the blocks move. */
START_TEST(replicas_move)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "u", 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = group.type_quotas[0];
    quota.replicas = 2;
    group.type_quotas = &quota;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
    harness_store(&h, keys, KEYS);
    struct tierce__taken_moves taken = moves_take(&h, 100);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), KEYS);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), KEYS * BLOCK_BYTES);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    ck_assert_uint_eq(work(&h), KEYS);
    ck_assert_uint_eq(moves_bytes_in(&h, "u"), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, 2);
    close_all(&h);
}
END_TEST

/* Neither of two storages that are drained at once counts on the other's copies. */
START_TEST(copies_in_drained_storages_do_not_count)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    moves_add_storage(&h, "u", 0);
    store_twice(&h);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    drain(&h, "t", TIERCE__DRAINING_MOVES);
    for (int round = 0; round < 4; round++)
        (void)work(&h);
    ck_assert_uint_eq(state_of(&h, "s").left.bytes + state_of(&h, "t").left.bytes, 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(moves_record(&h, 1).location_count, 1);
    close_all(&h);
}
END_TEST

/* Blocks that wait for a mover stay when the operator changes his mind. */
START_TEST(an_ended_draining_moves_nothing)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    drain(&h, "s", TIERCE__DRAINING_MOVES);
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_uint_eq(state_of(&h, "s").queued_blocks, KEYS);
    drain(&h, "s", TIERCE__DRAINING_NOT);
    ck_assert_uint_eq(moves_take(&h, 100).count, 0);
    ck_assert_uint_eq(moves_stats(&h).queued[TIERCE__MOVE_DRAIN], 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), KEYS * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

CHECK_MAIN("drain",
           .tests = {blocks_move_and_new_ones_go_elsewhere, dropped_blocks_leave_and_others_stay,
                     copies_in_other_storages_stay, without_a_target_it_waits_and_says_so,
                     blocks_that_nobody_can_verify_are_counted, another_leader_goes_on,
                     it_is_drained_when_its_objects_are_deleted, a_second_deletion_counts,
                     without_a_mover_it_says_so, its_end_is_logged_once, replicas_move,
                     copies_in_drained_storages_do_not_count, an_ended_draining_moves_nothing},
           .loops = {{blocks_with_a_copy_elsewhere_leave, 0, 2},
                     {a_copy_in_a_node_does_not_replace_a_file, 0, 2}})
