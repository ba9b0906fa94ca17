/* SPDX-License-Identifier: Apache-2.0 */
#include "directory_fixture.h"

START_TEST(prefixes_and_tiers)
{
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    ck_assert_int_eq(report(a, 1, 0, 10, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(b, 1, 0, 20, 1, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(b, 21, 0, 4, 0, true), TIERCE__DIRECTORY_DONE);
    find("g", 0, 30);
    ck_assert_uint_eq(found.prefix_count, 2);
    ck_assert_uint_eq(found.prefixes[0].worker.slot, b.slot);
    ck_assert_uint_eq(found.prefixes[0].keys, 20);
    ck_assert_uint_eq(found.prefixes[0].in_tier[0], 4);
    ck_assert_uint_eq(found.prefixes[0].in_tier[1], 20);
    ck_assert_uint_eq(found.prefixes[1].keys, 10);
    ck_assert_uint_eq(found.run_count, 1);
    assert_run(0, b, 0, 20);
    ck_assert_uint_eq(found.runs[0].slowest, 1);
    /* A key that only the middle has is not a prefix. */
    ck_assert_int_eq(report(a, 11, 40, 41, 0, true), TIERCE__DIRECTORY_DONE);
    find("g", 39, 41);
    ck_assert_uint_eq(found.prefix_count + found.run_count, 0);
    ck_assert_uint_eq(about(b).tier_keys[0], 4);
    ck_assert_uint_eq(about(b).tier_keys[1], 20);
    /* Each tier for itself. */
    ck_assert_int_eq(report(b, 25, 0, 4, 1, false), TIERCE__DIRECTORY_DONE);
    find("g", 0, 30);
    ck_assert_uint_eq(found.prefixes[0].keys, 20);
    ck_assert_uint_eq(found.prefixes[0].in_tier[1], 0);
    ck_assert_int_eq(report(b, 29, 0, 4, 0, false), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(b).tier_keys[0], 0);
    ck_assert_uint_eq(about(b).tier_keys[1], 16);
    find("g", 0, 30);
    ck_assert_uint_eq(found.prefix_count, 1);
    assert_run(0, a, 0, 10);
    assert_run(1, b, 10, 10);
    find("g", 0, 0);
    ck_assert_uint_eq(found.prefix_count + found.run_count, 0);
}
END_TEST

START_TEST(the_best_holder)
{
    struct tierce__directory_id far = join("g", "far", "h1"), near = join("g", "near", "h2"),
                                slow = join("g", "slow", "h2"), self = join("g", "self", "h2");
    struct tierce__directory_asker asker = {.group = "g", .host = "h2", .exclude = self};
    ck_assert_int_eq(report(far, 1, 0, 8, 0, true), 0);
    ck_assert_int_eq(report(near, 1, 0, 8, 0, true), 0);
    ck_assert_int_eq(report(slow, 1, 0, 8, 1, true), 0);
    ck_assert_int_eq(report(self, 1, 0, 9, 0, true), 0);
    find_as(asker, 0, 9);
    assert_run(0, near, 0, 8);
    ck_assert_uint_eq(found.prefix_count, 3);
    /* Of equal hosts the less busy one. */
    asker.host = "h3";
    ck_assert_int_eq(tierce__directory_beat(directory, near, 5, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_beat(directory, far, 4, 0), TIERCE__DIRECTORY_DONE);
    find_as(asker, 0, 9);
    assert_run(0, far, 0, 8);
    ck_assert_uint_eq(found.runs[0].load, 4);
    ck_assert_uint_eq(found.runs[0].distance, 1);
    asker.host = "h2";
    find_as(asker, 0, 9);
    for (uint32_t i = 0; i < found.prefix_count; i++) {
        uint32_t slot = found.prefixes[i].worker.slot;
        ck_assert_uint_eq(found.prefixes[i].load, slot == near.slot ? 5 : slot == far.slot ? 4 : 0);
        ck_assert_uint_eq(found.prefixes[i].distance, slot == far.slot);
    }
    ck_assert_uint_eq(found.runs[0].distance, 0);
    asker.host = "h3";
    ck_assert_int_eq(tierce__directory_beat(directory, far, 6, 0), TIERCE__DIRECTORY_DONE);
    find_as(asker, 0, 9);
    assert_run(0, near, 0, 8);
    /* Hosts that are not known are not the same one. */
    struct tierce__directory_id hidden = join("g", "hidden", "");
    ck_assert_int_eq(report(hidden, 1, 20, 21, 0, true), 0);
    ck_assert_int_eq(report(near, 9, 20, 21, 0, true), 0);
    ck_assert_int_eq(tierce__directory_beat(directory, hidden, 9, 0), TIERCE__DIRECTORY_DONE);
    asker.host = "";
    find_as(asker, 20, 21);
    assert_run(0, near, 0, 1);
    asker.host = "h3";
    /* The longer run wins over all of that. */
    ck_assert_int_eq(report(slow, 9, 8, 9, 1, true), 0);
    find_as(asker, 0, 9);
    assert_run(0, slow, 0, 9);
}
END_TEST

static struct tierce__directory_id join_zone(const char *name, const char *host, const char *zone)
{
    struct tierce__directory_id id = {0};
    ck_assert_int_eq(tierce__directory_join(
                         directory,
                         &(struct tierce__directory_worker){
                             .group = "g", .name = name, .address = "", .host = host, .zone = zone},
                         0, &id),
                     0);
    sync_nothing(id);
    return id;
}

/* The holders of keys [0, 8), in this order. */
static void assert_order(const struct tierce__directory_asker *asker,
                         const struct tierce__directory_id *order, uint32_t count)
{
    find_as(*asker, 0, 8);
    ck_assert_uint_eq(found.prefix_count, count);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(found.prefixes[i].worker.slot, order[i].slot);
    assert_run(0, order[0], 0, found.prefixes[0].keys);
}

START_TEST(the_order_of_holders)
{
    static const char *const zones[] = {"eu/row-2/rack-7/late", "eu/row-2/rack-70", "eu/row-9",
                                        "us/row-2/rack-7", ""};
    static const uint32_t distances[] = {0, 1, 2, 3, 4, 4};
    struct tierce__directory_id order[8] = {join_zone("same host", "h", "us")};
    struct tierce__directory_asker asker = {.group = "g", .host = "h", .zone = "eu/row-2/rack-7"};
    for (uint32_t i = 0; i < 5; i++)
        order[i + 1] = join_zone((const char *[]){"a", "b", "c", "d", "e"}[i], "", zones[i]);
    for (uint32_t i = 6; i-- > 0;)
        ck_assert_int_eq(report(order[i], 1, 0, 8, 0, true), 0);
    /* The far workers are idle, the near ones busy. */
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_int_eq(tierce__directory_beat(directory, order[i], i < 5 ? 2000 - i : 2000, 0),
                         0);
    assert_order(&asker, order, 6);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_uint_eq(found.prefixes[i].distance, distances[i]);
    /* On disks: a near one with no read left, the same far away, a near one, a far one. */
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_int_eq(tierce__directory_leave(directory, order[i]), 0);
    order[0] = join_zone("near", "", "eu/row-2/rack-1");
    order[1] = join_zone("far", "", "us");
    order[2] = join_zone("near, slower", "", "eu/row-2");
    order[3] = join_zone("full, near", "", "eu/row-2/rack-7");
    order[4] = join_zone("less", "h", "");
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(report(order[i], 1, 0, i == 4 ? 7 : 8,
                                i == 2   ? 2
                                : i == 4 ? 0
                                         : 1,
                                true),
                         0);
        ck_assert_int_eq(tierce__directory_beat(directory, order[i], i == 3 ? 1000 : 999, 0), 0);
    }
    assert_order(&asker, order, 5);
    /* An asker without a zone: only the host counts. */
    asker.zone = NULL;
    find_as(asker, 0, 8);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(found.prefixes[i].distance,
                          found.prefixes[i].worker.slot != order[4].slot);
}
END_TEST

START_TEST(a_zone_that_is_none_is_rejected)
{
    static const char *const wrong[] = {"/",   "/a", "a/",  "a//b",
                                        "a b", "ä",  "a,b", "1/2/3/4/5/6/7/8/9"};
    static const char *const right[] = {"", "a", "A.b-c_9/d", "1/2/3/4/5/6/7/8"};
    static const int counts[] = {0, 1, 2, TIERCE__ZONE_PARTS_MAX};
    char longest[TIERCE__ZONE_BYTES + 1];
    uint32_t prefixes[TIERCE__ZONE_PARTS_MAX];
    struct tierce__directory_id id;
    struct tierce__directory_worker worker = {.group = "g", .name = "a", .address = "", .host = ""};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        worker.zone = wrong[i];
        ck_assert_msg(tierce__directory_join(directory, &worker, 0, &id) == TIERCE_E_ARGUMENT, "%s",
                      wrong[i]);
    }
    const struct tierce__directory_asker asker = {.group = "g", .host = "", .zone = "a b"};
    const struct tierce__directory_key key = key_of(1);
    ck_assert_int_eq(tierce__directory_find(directory, &key, 1, &asker, &found), TIERCE_E_ARGUMENT);
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++)
        ck_assert_int_eq(tierce__zone_parse(prefixes, right[i], 1), counts[i]);
    memset(longest, 'a', sizeof(longest));
    longest[TIERCE__ZONE_BYTES] = '\0';
    ck_assert_int_eq(tierce__zone_parse(prefixes, longest, 1), TIERCE_E_ARGUMENT);
    longest[TIERCE__ZONE_BYTES - 1] = '\0';
    ck_assert_int_eq(tierce__zone_parse(prefixes, longest, 1), 1);
}
END_TEST

START_TEST(equal_holders_take_turns)
{
    struct tierce__directory_id ids[4];
    unsigned chosen[300] = {0};
    for (unsigned i = 0; i < 4; i++) {
        ids[i] = join("g", (const char *[]){"a", "b", "c", "d"}[i], "");
        ck_assert_int_eq(report(ids[i], 1, 0, 400, 0, true), 0);
    }
    for (uint64_t i = 0; i < 400; i++) {
        find("g", i, i + 1);
        chosen[found.runs[0].worker.slot]++;
    }
    for (unsigned i = 0; i < 4; i++)
        ck_assert_uint_gt(chosen[ids[i].slot], 50);
}
END_TEST

START_TEST(groups_do_not_see_one_another)
{
    struct tierce__directory_id a = join("one", "w", ""), b = join("two", "w", "");
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), 0);
    find("two", 0, 5);
    ck_assert_uint_eq(found.prefix_count + found.run_count, 0);
    find("three", 0, 5);
    ck_assert_uint_eq(found.prefix_count + found.run_count, 0);
    ck_assert_int_eq(report(b, 1, 0, 2, 0, true), 0);
    find("two", 0, 5);
    ck_assert_uint_eq(found.prefix_count, 1);
    assert_run(0, b, 0, 2);
}
END_TEST

START_TEST(a_gap_concerns_its_worker_alone)
{
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(b, 1, 0, 3, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(a, 7, 6, 7, 0, true), TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(report(a, 6, 6, 7, 0, true), TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(tierce__directory_beat(directory, a, 0, 0), TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(report(b, 4, 3, 4, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).gaps, 1);
    ck_assert(!about(a).is_synced && about(b).is_synced);
    find("g", 0, 7);
    assert_run(0, a, 0, 5); /* until it has sent its contents */
    ck_assert_int_eq(tierce__directory_sync_begin(directory, a, 0), TIERCE__DIRECTORY_DONE);
    find("g", 0, 7);
    assert_run(0, a, 0, 5);
    struct tierce__directory_change contents[] = {{.key = key_of(0), .admitted = true},
                                                  {.key = key_of(6), .tier = 2, .admitted = true}};
    ck_assert_int_eq(tierce__directory_sync_add(directory, a, contents, 2, 0),
                     TIERCE__DIRECTORY_DONE);
    find("g", 0, 7);
    assert_run(0, a, 0, 5);
    ck_assert_int_eq(tierce__directory_sync_end(directory, a, UINT64_MAX, 0),
                     TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(tierce__directory_sync_end(directory, a, 40, 0), TIERCE__DIRECTORY_DONE);
    find("g", 0, 7);
    assert_run(0, b, 0, 4);
    ck_assert_uint_eq(found.prefixes[1].keys, 1);
    ck_assert_uint_eq(about(a).next, 41);
    ck_assert_uint_eq(about(a).keys, 2);
    ck_assert_int_eq(report(a, 41, 1, 2, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(clean_stats().holders, 4 + 3);
}
END_TEST

START_TEST(a_repeated_report_changes_nothing)
{
    struct tierce__directory_id a = join("g", "a", "");
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(a, 6, 0, 5, 0, false), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), TIERCE__DIRECTORY_DONE);
    find("g", 0, 5);
    ck_assert_uint_eq(found.run_count, 0);
    /* Half of it is new. */
    ck_assert_int_eq(report(a, 9, 10, 14, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(about(a).next, 13);
    ck_assert_uint_eq(about(a).keys, 2);
    ck_assert_int_eq(report(a, 0, 10, 14, 0, true), TIERCE__DIRECTORY_RESYNC);
}
END_TEST

static enum tierce__directory_answer add_as(struct tierce__directory_id id, uint64_t sending,
                                            uint64_t key)
{
    struct tierce__directory_change change = {.key = key_of(key), .admitted = true};
    return tierce__directory_sending_add(directory, id, sending, &change, 1, 0);
}

/* Calls of two sendings of one worker, late and repeated, are never mixed. */
START_TEST(a_late_call_of_another_sending_changes_nothing)
{
    enum { DONE = TIERCE__DIRECTORY_DONE, RESYNC = TIERCE__DIRECTORY_RESYNC };
    struct tierce__directory_id a = join_at("g", "a", "", 0);
    ck_assert_int_eq(tierce__directory_sending_begin(directory, a, 1, 0), DONE);
    ck_assert_int_eq(add_as(a, 1, 0), DONE);
    ck_assert_int_eq(tierce__directory_sending_begin(directory, a, 1, 0), DONE); /* repeated */
    ck_assert_int_eq(tierce__directory_sending_begin(directory, a, 2, 0), DONE);
    ck_assert_int_eq(add_as(a, 1, 1), RESYNC);
    ck_assert_int_eq(tierce__directory_sending_begin(directory, a, 1, 0), RESYNC);
    ck_assert_int_eq(tierce__directory_sending_end(directory, a, 1, 90, 0), RESYNC);
    ck_assert_int_eq(add_as(a, 2, 2), DONE);
    ck_assert_int_eq(tierce__directory_sending_end(directory, a, 2, 10, 0), DONE);
    find("g", 0, 1);
    ck_assert_uint_eq(found.prefix_count, 0);
    find("g", 2, 3);
    ck_assert_uint_eq(found.prefix_count, 1);
    /* After the end: a late begin ends nothing, and a repeated end sets no number back. */
    ck_assert_int_eq(report(a, 11, 3, 5, 0, true), DONE);
    ck_assert_int_eq(tierce__directory_sending_begin(directory, a, 2, 0), RESYNC);
    ck_assert_int_eq(add_as(a, 2, 1), RESYNC);
    ck_assert_int_eq(tierce__directory_sending_end(directory, a, 2, 10, 0), DONE);
    ck_assert_uint_eq(about(a).next, 13);
    ck_assert(about(a).is_synced && about(a).is_whole);
    ck_assert_uint_eq(about(a).keys, 3);
}
END_TEST

START_TEST(a_worker_must_send_its_contents_first)
{
    struct tierce__directory_id a = join_at("g", "a", "", 0);
    struct tierce__directory_change change = {.key = key_of(0), .admitted = true};
    ck_assert_int_eq(report(a, 1, 0, 1, 0, true), TIERCE__DIRECTORY_RESYNC);
    ck_assert_uint_eq(about(a).gaps, 0);
    ck_assert_int_eq(tierce__directory_sync_add(directory, a, &change, 1, 0),
                     TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(tierce__directory_sync_end(directory, a, 0, 0), TIERCE__DIRECTORY_RESYNC);
    find("g", 0, 1);
    ck_assert_uint_eq(found.run_count, 0);
}
END_TEST

START_TEST(a_worker_that_joins_again_or_leaves_holds_nothing)
{
    struct tierce__directory_id a = join("g", "a", "");
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), TIERCE__DIRECTORY_DONE);
    struct tierce__directory_id again = join("g", "a", "");
    find("g", 0, 5);
    ck_assert_uint_eq(found.run_count, 0);
    ck_assert_int_eq(report(a, 6, 5, 6, 0, true), TIERCE__DIRECTORY_UNKNOWN);
    ck_assert_int_eq(report(again, 1, 0, 2, 0, true), TIERCE__DIRECTORY_DONE);
    find("g", 0, 5);
    assert_run(0, again, 0, 2);
    ck_assert_int_eq(tierce__directory_leave(directory, again), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_leave(directory, again), TIERCE__DIRECTORY_UNKNOWN);
    ck_assert_int_eq(tierce__directory_beat(directory, again, 0, 0), TIERCE__DIRECTORY_UNKNOWN);
    find("g", 0, 5);
    ck_assert_uint_eq(found.run_count, 0);
    struct tierce__directory_about nobody;
    uint32_t from = 0;
    ck_assert(!tierce__directory_about(directory, again, &nobody));
    ck_assert(!tierce__directory_next(directory, &from, &nobody));
    struct tierce__directory_stats stats = clean_stats();
    ck_assert_uint_eq(stats.holders + stats.keys + stats.workers, 0);
    ck_assert_int_eq(tierce__directory_leave(directory, (struct tierce__directory_id){1, 999}),
                     TIERCE__DIRECTORY_UNKNOWN);
}
END_TEST

START_TEST(silent_workers_leave)
{
    struct tierce__directory_id a = join_at("g", "a", "", SECOND),
                                b = join_at("g", "b", "", SECOND);
    ck_assert_uint_eq(tierce__directory_expire(directory, 10 * SECOND), 0);
    ck_assert_int_eq(tierce__directory_beat(directory, b, 0, 9 * SECOND), TIERCE__DIRECTORY_RESYNC);
    ck_assert_uint_eq(tierce__directory_expire(directory, 11 * SECOND), 1);
    ck_assert_int_eq(tierce__directory_beat(directory, a, 0, 0), TIERCE__DIRECTORY_UNKNOWN);
    ck_assert_uint_eq(tierce__directory_expire(directory, 18 * SECOND), 0);
    ck_assert_uint_eq(tierce__directory_expire(directory, 19 * SECOND), 1);
}
END_TEST

static enum tierce__directory_answer send_again(struct tierce__directory_id id, uint64_t key)
{
    struct tierce__directory_change change = {.key = key_of(key), .admitted = true};
    enum tierce__directory_answer answer = tierce__directory_sync_begin(directory, id, 0);
    if (answer == TIERCE__DIRECTORY_DONE)
        answer = tierce__directory_sync_add(directory, id, &change, 1, 0);
    return answer;
}

/* However often contents have no end. */
START_TEST(complete_contents_stay_until_others_are_complete)
{
    struct tierce__directory_id a = join("g", "a", "");
    unsigned later = 0;
    ck_assert_int_eq(report(a, 1, 0, 5, 0, true), TIERCE__DIRECTORY_DONE);
    for (unsigned round = 0; round < 1000; round++) {
        enum tierce__directory_answer answer = send_again(a, round % 7);
        if (answer == TIERCE__DIRECTORY_LATER) {
            later++;
            clean_stats();
            answer = send_again(a, round % 7);
        }
        ck_assert_int_eq(answer, TIERCE__DIRECTORY_DONE);
        find("g", 0, 5);
        assert_run(0, a, 0, 5);
        if (round % 400 == 390)
            ck_assert_uint_eq(clean_stats().holders, 7);
    }
    ck_assert_uint_ge(later, 1);
    ck_assert_int_eq(tierce__directory_sync_end(directory, a, 0, 0), TIERCE__DIRECTORY_DONE);
    find("g", 999 % 7, 999 % 7 + 1);
    assert_run(0, a, 0, 1);
    ck_assert_uint_eq(clean_stats().holders, 1);
}
END_TEST

START_TEST(nothing_to_clean_where_nothing_was)
{
    struct tierce__directory_stats stats;
    for (unsigned i = 0; i < 3; i++) {
        struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
        sync_nothing(a);
        ck_assert_int_eq(tierce__directory_leave(directory, b), TIERCE__DIRECTORY_DONE);
        tierce__directory_stats(directory, &stats);
        ck_assert(stats.is_clean);
    }
}
END_TEST

START_TEST(a_group_goes_with_its_last_worker)
{
    struct tierce__directory_id a = join("first", "a", ""), b = join("first", "b", "");
    uint64_t first = tierce__directory_group(directory, "first");
    ck_assert_uint_ne(first, 0);
    ck_assert_int_eq(tierce__directory_leave(directory, a), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(tierce__directory_group(directory, "first"), first);
    ck_assert_int_eq(tierce__directory_leave(directory, b), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(tierce__directory_group(directory, "first"), 0);
    /* Its place is used again, its number is not: a lookup may still have it. */
    for (unsigned i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof(name), "group %u", i);
        a = join(name, "a", "");
        ck_assert_int_eq(report(a, 1, 0, 1, 0, true), TIERCE__DIRECTORY_DONE);
        ck_assert_uint_gt(tierce__directory_group(directory, name), first);
        ck_assert_uint_eq(directory->group_count, 1);
        ck_assert_str_eq(about(a).group, name);
        find("first", 0, 1);
        ck_assert_uint_eq(found.run_count, 0);
        find(name, 0, 1);
        assert_run(0, a, 0, 1);
        ck_assert_int_eq(tierce__directory_leave(directory, a), TIERCE__DIRECTORY_DONE);
        clean_stats();
    }
}
END_TEST

/* 256 epochs, and a worker that uses more of them. */
START_TEST(nothing_of_an_old_epoch_comes_back)
{
    struct tierce__directory_id a = join("g", "a", "");
    unsigned later = 0, limits = 0;
    for (unsigned round = 0; round < 700; round++) {
        uint64_t key = 1000 + round;
        enum tierce__directory_answer answer = tierce__directory_sync_begin(directory, a, 0);
        if (answer == TIERCE__DIRECTORY_LATER) {
            later++;
            clean_stats();
            answer = tierce__directory_sync_begin(directory, a, 0);
        }
        ck_assert_int_eq(answer, TIERCE__DIRECTORY_DONE);
        struct tierce__directory_change change = {.key = key_of(key), .admitted = true};
        ck_assert_int_eq(tierce__directory_sync_add(directory, a, &change, 1, 0),
                         TIERCE__DIRECTORY_DONE);
        ck_assert_int_eq(tierce__directory_sync_end(directory, a, 0, 0), TIERCE__DIRECTORY_DONE);
        for (uint64_t old = 1000; old <= key; old++) {
            find("g", old, old + 1);
            ck_assert_uint_eq(found.run_count, old == key);
        }
    }
    ck_assert_uint_ge(later, 2);
    /* Or it joins again and again. */
    for (unsigned round = 0; round < 1000; round++) {
        struct tierce__directory_worker worker = {"g", "a", "", "", false, NULL, false, NULL};
        int rc = tierce__directory_join(directory, &worker, 0, &a);
        limits += rc == TIERCE_E_LIMIT;
        if (rc == 0)
            continue;
        ck_assert_int_eq(rc, TIERCE_E_LIMIT);
        clean_stats();
    }
    ck_assert_uint_eq(limits, 0); /* it takes another place */
}
END_TEST

START_TEST(cleaning_finds_what_became_old_on_its_way)
{
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    ck_assert_int_eq(report(a, 1, 0, 500, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(report(b, 1, 0, 500, 0, true), TIERCE__DIRECTORY_DONE);
    /* Replaced contents are shown until the end, also when all is clean, and removed after it. */
    ck_assert_int_eq(tierce__directory_sync_begin(directory, a, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(clean_stats().holders, 1000);
    ck_assert_int_eq(tierce__directory_sync_end(directory, a, 0, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(clean_stats().holders, 500);
    /* A worker leaves in the middle of a round. */
    ck_assert_int_eq(report(a, 1, 0, 10, 0, true), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_leave(directory, a), TIERCE__DIRECTORY_DONE);
    for (unsigned i = 0; i < 30; i++)
        ck_assert(tierce__directory_clean(directory, 64));
    ck_assert_int_eq(tierce__directory_leave(directory, b), TIERCE__DIRECTORY_DONE);
    ck_assert_uint_eq(clean_stats().holders, 0);
}
END_TEST

START_TEST(what_is_removed_leaves_room)
{
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    uint64_t bytes = 0;
    for (uint64_t round = 0; round < 300; round++) {
        struct tierce__directory_stats stats;
        for (unsigned half = 0; half < 2; half++) {
            uint64_t next = 1 + round * 1000 + half * 500;
            ck_assert_int_eq(report(a, next, 0, 500, 0, half == 0), TIERCE__DIRECTORY_DONE);
            ck_assert_int_eq(report(b, next, 0, 500, 0, half == 0), TIERCE__DIRECTORY_DONE);
        }
        tierce__directory_stats(directory, &stats);
        ck_assert_uint_eq(stats.keys + stats.holders, 0);
        ck_assert(round == 0 || stats.bytes == bytes);
        bytes = stats.bytes;
    }
}
END_TEST

/* Several changes of one key in a report: those that are alike are made at once, the others in
 * their order, and one of an unknown tier is left out alone. */
START_TEST(changes_of_one_key)
{
    struct tierce__directory_id id = join("", "a", "");
    const struct tierce__directory_key key = key_of(1), other = key_of(2);
    const struct tierce__directory_change changes[] = {
        {key, 0, true},   {key, 1, true},    {other, 0, true}, {other, 0, false}, {key, 1, false},
        {key, 9, true},   {key, 2, true},    {key, 0, false},  {key, 0, true},    {other, 1, true},
        {other, 2, true}, {other, 1, false}, {other, 2, false}};
    size_t count = sizeof(changes) / sizeof(*changes);
    ck_assert_int_eq(tierce__directory_report(directory, id, 1, changes, count, 0),
                     TIERCE__DIRECTORY_DONE);
    struct tierce__directory_about seen = about(id);
    ck_assert_uint_eq(seen.keys, 1);
    ck_assert_uint_eq(seen.left_out, 1);
    ck_assert_uint_eq(seen.tier_keys[0], 1);
    ck_assert_uint_eq(seen.tier_keys[1], 0);
    ck_assert_uint_eq(seen.tier_keys[2], 1);
    find("", 1, 3);
    ck_assert_uint_eq(found.prefix_count, 1);
    ck_assert_uint_eq(found.prefixes[0].keys, 1);
    ck_assert_uint_eq(clean_stats().keys, 1);
}
END_TEST

CHECK_MAIN("directory", .seconds = 30, .setup = setup, .teardown = teardown,
           .tests = {prefixes_and_tiers, the_best_holder, the_order_of_holders,
                     a_zone_that_is_none_is_rejected, equal_holders_take_turns,
                     groups_do_not_see_one_another, a_gap_concerns_its_worker_alone,
                     a_repeated_report_changes_nothing,
                     a_late_call_of_another_sending_changes_nothing,
                     a_worker_must_send_its_contents_first,
                     a_worker_that_joins_again_or_leaves_holds_nothing, silent_workers_leave,
                     complete_contents_stay_until_others_are_complete,
                     nothing_to_clean_where_nothing_was, a_group_goes_with_its_last_worker,
                     nothing_of_an_old_epoch_comes_back, cleaning_finds_what_became_old_on_its_way,
                     what_is_removed_leaves_room, changes_of_one_key})
