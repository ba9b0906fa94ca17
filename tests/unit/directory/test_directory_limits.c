/* SPDX-License-Identifier: Apache-2.0 */
#include "directory_fixture.h"

/* Bounds of groups, workers and memory. */

START_TEST(limits)
{
    struct tierce__directory_id id;
    struct tierce__directory_worker worker = {"g", "", "", "", false, NULL, false, NULL};
    char longest[TIERCE__DIRECTORY_NAME_BYTES + 1];
    memset(longest, 'x', sizeof(longest));
    longest[TIERCE__DIRECTORY_NAME_BYTES] = '\0';
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), TIERCE_E_ARGUMENT);
    worker.name = longest;
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), TIERCE_E_ARGUMENT);
    worker.name = longest + 1;
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), 0);
    worker.host = longest;
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), TIERCE_E_ARGUMENT);
    worker.host = "";
    for (unsigned i = 1; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%u", i);
        worker.name = name;
        ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), 0);
    }
    worker.name = "one more";
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &id), TIERCE_E_LIMIT);
    struct tierce__directory *other = NULL;
    ck_assert_int_eq(
        tierce__directory_create(
            &other, &(struct tierce__directory_opts){.size = sizeof(struct tierce__directory_opts),
                                                     .workers_max = 65536}),
        TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(a_full_directory_leaves_out_what_is_new)
{
    tierce__directory_destroy(directory);
    open_with((struct tierce__directory_opts){.workers_max = 300, .bytes_max = 2000000});
    struct tierce__directory_id a = join("g", "a", "");
    uint64_t next = 1;
    for (unsigned i = 0; i < 500; i++, next += 500)
        ck_assert_int_eq(report(a, next, next, next + 500, 0, true), TIERCE__DIRECTORY_DONE);
    struct tierce__directory_stats stats;
    tierce__directory_stats(directory, &stats);
    ck_assert_uint_le(stats.bytes, 2000000);
    ck_assert_uint_gt(stats.keys, 20000);
    ck_assert_uint_eq(about(a).left_out, 250000 - stats.keys);
    ck_assert_uint_eq(stats.left_out, about(a).left_out);
    ck_assert(about(a).is_synced && !about(a).is_whole);
    find("g", 1, 100);
    assert_run(0, a, 0, 99);
    ck_assert(found.prefixes[0].is_incomplete);
    /* Room comes back: in each shard, of those where the new ones are to go too. */
    for (unsigned i = 0; i < 20; i++, next += 500)
        ck_assert_int_eq(report(a, next, 1 + 500 * i, 501 + 500 * i, 0, false),
                         TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(a, next, 900000, 900010, 0, true), TIERCE__DIRECTORY_DONE);
    find("g", 900000, 900010);
    assert_run(0, a, 0, 10);
}
END_TEST

/* The same story with each allocation failing once: nothing is wrong but what is left out. */
/* A group has its part of workers and memory, and others have theirs. */
START_TEST(a_group_does_not_fill_the_part_of_others)
{
    tierce__directory_destroy(directory);
    open_with((struct tierce__directory_opts){
        .workers_max = 4, .group_workers_max = 2, .group_holders_max = 100});
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", ""), other;
    ck_assert_int_eq(tierce__directory_join(directory,
                                            &(struct tierce__directory_worker){
                                                "g", "c", "", "", false, NULL, false, NULL},
                                            0, &other),
                     TIERCE_E_FULL);
    a = join("g", "a", ""); /* it replaces the one of its name */
    ck_assert_int_eq(report(a, 1, 0, 80, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(b, 1, 0, 80, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).left_out, 0);
    ck_assert_uint_eq(about(b).left_out, 60);
    ck_assert(about(a).is_whole && !about(b).is_whole);
    struct tierce__directory_id c = join("h", "c", "");
    ck_assert_int_eq(report(c, 1, 0, 80, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(c).left_out, 0);
    /* Contents that are begun again and again, without an end, count as well. */
    for (uint64_t i = 0; i < 5; i++) {
        ck_assert_int_eq(tierce__directory_sync_begin(directory, c, 0), TIERCE__DIRECTORY_DONE);
        for (uint64_t key = 1000 * i + 100; key < 1000 * i + 150; key++) {
            struct tierce__directory_change change = {.key = key_of(key), .admitted = true};
            ck_assert_int_eq(tierce__directory_sync_add(directory, c, &change, 1, 0),
                             TIERCE__DIRECTORY_DONE);
        }
    }
    struct tierce__directory_stats stats;
    tierce__directory_stats(directory, &stats);
    ck_assert_uint_eq(stats.holders, 200);
    /* Room comes back as what was held is cleaned. */
    (void)tierce__directory_leave(directory, b);
    ck_assert_uint_eq(clean_stats().holders, 180);
    ck_assert_int_eq(report(a, 81, 80, 100, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).left_out, 0);
}
END_TEST

/* Holders of a group whose workers have left count for this group until they are cleaned, also when
 * it comes back, and for no other group. */
START_TEST(a_group_has_its_own_words)
{
    tierce__directory_destroy(directory);
    open_with((struct tierce__directory_opts){.workers_max = 4, .group_holders_max = 100});
    struct tierce__directory_id a = join("g", "a", "");
    ck_assert_int_eq(report(a, 1, 0, 80, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_leave(directory, a), TIERCE__DIRECTORY_DONE);
    struct tierce__directory_id b = join("h", "b", "");
    ck_assert_int_eq(report(b, 1, 0, 100, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(b).left_out, 0);
    a = join("g", "a", "");
    ck_assert_int_eq(report(a, 1, 100, 200, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).left_out, 80);
    ck_assert_uint_eq(clean_stats().holders, 120);
    ck_assert_int_eq(report(a, 101, 100, 180, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).left_out, 80);
    /* As many groups as workers, which all leave something: another one waits for the cleaning. */
    (void)tierce__directory_leave(directory, a);
    (void)tierce__directory_leave(directory, b);
    for (unsigned i = 0; i < 2; i++) {
        a = join((const char *[]){"i", "j"}[i], "a", "");
        ck_assert_int_eq(report(a, 1, 0, 80, 0, true), TIERCE__DIRECTORY_DONE);
        (void)tierce__directory_leave(directory, a);
    }
    struct tierce__directory_worker worker = {"k", "a", "", "", false, NULL, false, NULL};
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &a), TIERCE_E_LIMIT);
    ck_assert_uint_eq(clean_stats().holders, 0);
    ck_assert_int_eq(tierce__directory_join(directory, &worker, 0, &a), 0);
    ck_assert_uint_eq(directory->group_count, 5); /* one found no slot, and left its place */
}
END_TEST

static struct tierce__directory_id join_for(const char *owner, const char *group, const char *name,
                                            int expected)
{
    struct tierce__directory_id id = {0};
    ck_assert_int_eq(
        tierce__directory_join(
            directory,
            &(struct tierce__directory_worker){
                .group = group, .name = name, .address = "", .host = "", .owner = owner},
            0, &id),
        expected);
    if (expected == 0)
        sync_nothing(id);
    return id;
}

/* An account that may use many groups has no more of the directory than one group. */
START_TEST(an_owner_of_several_groups_has_the_bounds_of_one)
{
    tierce__directory_destroy(directory);
    open_with((struct tierce__directory_opts){
        .workers_max = 6, .group_workers_max = 3, .group_holders_max = 100});
    struct tierce__directory_id ids[3];
    for (unsigned i = 0; i < 3; i++) {
        ids[i] = join_for("all", (const char *[]){"a", "b", "c"}[i], "w", 0);
        ck_assert_int_eq(report(ids[i], 1, 0, 40, 0, true), TIERCE__DIRECTORY_DONE);
    }
    ck_assert_uint_eq(about(ids[1]).left_out, 0);
    ck_assert_uint_eq(about(ids[2]).left_out, 20);
    (void)join_for("all", "d", "w", TIERCE_E_FULL);
    (void)join_for("all", "a", "v", TIERCE_E_FULL);
    /* Others have theirs, in the same groups and with the name of the owner. */
    struct tierce__directory_id other = join_for("", "a", "v", 0),
                                same = join_for("", "all", "w", 0);
    ck_assert_int_eq(report(other, 1, 0, 60, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(same, 1, 0, 100, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(other).left_out + about(same).left_out, 0);
    find("all", 0, 1);
    ck_assert_uint_eq(found.prefix_count, 1);
    /* A group's own bound counts all of its workers. */
    ck_assert_int_eq(report(other, 61, 60, 70, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(other).left_out, 10);
    /* Its workers have left: what they held counts until it is clean. */
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(tierce__directory_leave(directory, ids[i]), TIERCE__DIRECTORY_DONE);
    ids[0] = join_for("all", "d", "w", 0);
    ck_assert_int_eq(report(ids[0], 1, 0, 40, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(ids[0]).left_out, 40);
    ck_assert_uint_eq(clean_stats().holders, 160);
    ck_assert_int_eq(report(ids[0], 41, 0, 40, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(ids[0]).left_out, 40);
    /* The slot of one owner is no other's before it is clean. */
    ck_assert_int_eq(tierce__directory_leave(directory, ids[0]), TIERCE__DIRECTORY_DONE);
    ids[1] = join_for("others", "d", "w", 0);
    ck_assert_uint_ne(ids[1].slot, ids[0].slot);
    ck_assert_int_eq(report(ids[1], 1, 0, 40, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(ids[1]).left_out, 0);
    for (unsigned i = 0; i < 2; i++)
        (void)tierce__directory_leave(directory, i == 0 ? other : same);
    (void)tierce__directory_leave(directory, ids[1]);
    ck_assert_uint_eq(clean_stats().holders, 0);
    for (uint32_t i = 0; i < directory->group_count; i++)
        ck_assert_uint_eq(directory->groups[i].id, 0);
}
END_TEST

/* Names are of their group; a worker that joins and leaves again and again needs one slot. */
START_TEST(names_and_slots)
{
    struct tierce__directory_id a = join("g", "a", ""), b = join("h", "a", ""), id = {0};
    ck_assert(tierce__directory_named(directory, "h", "a", &id));
    ck_assert_uint_eq(id.session, b.session);
    ck_assert(tierce__directory_named(directory, "g", "a", &id));
    ck_assert_uint_eq(id.session, a.session);
    ck_assert(!tierce__directory_named(directory, "g", "b", &id));
    ck_assert(!tierce__directory_named(directory, "i", "a", &id));
    for (unsigned i = 0; i < 200; i++) {
        a = join("g", "a", "");
        ck_assert_int_eq(report(a, 1, 0, 10, 0, true), TIERCE__DIRECTORY_DONE);
    }
    ck_assert_uint_eq(directory->slots_used, 2);
    ck_assert_int_eq(tierce__directory_leave(directory, a), TIERCE__DIRECTORY_DONE);
    ck_assert(!tierce__directory_named(directory, "g", "a", &id));
    ck_assert(tierce__directory_named(directory, "h", "a", &id));
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    tierce__directory_destroy(directory);
    directory = NULL;
    for (uint64_t nth = 1;; nth++) {
        struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = 300};
        tierce__alloc_fail_nth(nth);
        int rc = tierce__directory_create(&directory, &opts);
        ck_assert(rc == 0 || rc == -ENOMEM);
        struct tierce__directory_id ids[3] = {{0}};
        unsigned joined = 0;
        for (unsigned i = 0; rc == 0 && i < 3; i++) {
            struct tierce__directory_worker worker = {.group = "g",
                                                      .name = (const char *[]){"a", "b", "c"}[i],
                                                      .address = "",
                                                      .host = ""};
            rc = tierce__directory_join(directory, &worker, 0, &ids[i]);
            ck_assert(rc == 0 || rc == -ENOMEM);
            joined += rc == 0;
        }
        for (unsigned i = 0; i < joined; i++) {
            sync_nothing(ids[i]);
            ck_assert_int_eq(report(ids[i], 1, 0, 400, 0, true), TIERCE__DIRECTORY_DONE);
        }
        uint64_t made = tierce__alloc_fail_nth(0), left_out = 0;
        for (unsigned i = 0; i < joined; i++)
            left_out += about(ids[i]).left_out;
        ck_assert_uint_le(left_out, 1);
        for (uint64_t i = 0; joined > 0 && i < 400; i++) {
            find("g", i, i + 1);
            ck_assert(found.prefix_count == joined || left_out > 0);
        }
        if (joined > 0) {
            find("g", 0, 400);
            tierce__alloc_fail_nth(1);
            struct tierce__directory_key key = key_of(1);
            struct tierce__directory_asker asker = {.group = "g", .host = ""};
            ck_assert_int_eq(tierce__directory_find(directory, &key, 1, &asker, &found), -ENOMEM);
            tierce__alloc_fail_nth(0);
        }
        tierce__directory_destroy(directory);
        directory = NULL;
        ck_assert_uint_eq(tierce__alloc_live(), 0);
        if (made < nth)
            return;
    }
}
END_TEST

START_TEST(memory_for_each_key)
{
    /* The tables have just doubled, so they are as empty as they become: 13 bits for a shard. */
    enum { KEYS = 226000, BATCH = 500 };
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    for (uint64_t i = 0; i < KEYS; i += BATCH)
        ck_assert_int_eq(report(a, i + 1, i, i + BATCH, 0, true), TIERCE__DIRECTORY_DONE);
    struct tierce__directory_stats one, two;
    tierce__directory_stats(directory, &one);
    ck_assert_uint_eq(one.keys, KEYS);
    ck_assert_uint_le(one.bytes, 40ULL * KEYS);
    ck_assert_uint_ge(one.bytes, 38ULL * KEYS);
    for (uint64_t i = 0; i < KEYS; i += BATCH)
        ck_assert_int_eq(report(b, i + 1, i, i + BATCH, 1, true), TIERCE__DIRECTORY_DONE);
    tierce__directory_stats(directory, &two);
    ck_assert_uint_eq(two.holders, 2 * KEYS);
    ck_assert_uint_le(two.bytes, 40ULL * 2 * KEYS);
}
END_TEST

CHECK_MAIN("directory_limits", .seconds = 30, .setup = setup, .teardown = teardown,
           .tests = {limits, a_full_directory_leaves_out_what_is_new,
                     a_group_does_not_fill_the_part_of_others, a_group_has_its_own_words,
                     an_owner_of_several_groups_has_the_bounds_of_one, names_and_slots,
                     each_allocation_fails_once, memory_for_each_key})
