/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "directory/directory_private.h"

#define SECOND 1000000000ULL

static struct tierce__directory *directory;

static void open_with(struct tierce__directory_opts opts)
{
    opts.size = sizeof(opts);
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
}

static void setup(void)
{
    open_with((struct tierce__directory_opts){.workers_max = 300});
}

static void teardown(void)
{
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__directory_key key_of(uint64_t n)
{
    return (struct tierce__directory_key){n * 7, ~n};
}

static struct tierce__directory_id join_at(const char *group, const char *name, const char *host,
                                           uint64_t now_ns)
{
    struct tierce__directory_id id = {0};
    ck_assert_int_eq(tierce__directory_join(
                         directory,
                         &(struct tierce__directory_worker){
                             .group = group, .name = name, .address = "127.0.0.1:1", .host = host},
                         now_ns, &id),
                     0);
    ck_assert_uint_ne(id.session, 0);
    return id;
}

static void sync_nothing(struct tierce__directory_id id)
{
    ck_assert_int_eq(tierce__directory_sync_begin(directory, id, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_sync_end(directory, id, 0, 0), TIERCE__DIRECTORY_DONE);
}

static struct tierce__directory_id join(const char *group, const char *name, const char *host)
{
    struct tierce__directory_id id = join_at(group, name, host, 0);
    sync_nothing(id);
    return id;
}

/* Keys [from, to) as changes with the numbers from `first` on. */
static enum tierce__directory_answer report(struct tierce__directory_id id, uint64_t first,
                                            uint64_t from, uint64_t to, uint8_t tier, bool admitted)
{
    struct tierce__directory_change changes[512];
    ck_assert_uint_le(to - from, 512);
    for (uint64_t i = from; i < to; i++)
        changes[i - from] =
            (struct tierce__directory_change){.key = key_of(i), .tier = tier, .admitted = admitted};
    return tierce__directory_report(directory, id, first, changes, to - from, 0);
}

static struct tierce__directory_found found;

static void find_as(struct tierce__directory_asker asker, uint64_t from, uint64_t to)
{
    struct tierce__directory_key keys[512];
    for (uint64_t i = from; i < to; i++)
        keys[i - from] = key_of(i);
    ck_assert_int_eq(tierce__directory_find(directory, keys, to - from, &asker, &found), 0);
}

static void find(const char *group, uint64_t from, uint64_t to)
{
    find_as((struct tierce__directory_asker){.group = group, .host = ""}, from, to);
}

static void assert_run(uint32_t at, struct tierce__directory_id id, uint32_t first, uint32_t keys)
{
    ck_assert_uint_lt(at, found.run_count);
    ck_assert_uint_eq(found.runs[at].worker.session, id.session);
    ck_assert_uint_eq(found.runs[at].worker.slot, id.slot);
    ck_assert_uint_eq(found.runs[at].first, first);
    ck_assert_uint_eq(found.runs[at].keys, keys);
}

static struct tierce__directory_about about(struct tierce__directory_id id)
{
    struct tierce__directory_about out;
    ck_assert(tierce__directory_about(directory, id, &out));
    return out;
}

static struct tierce__directory_stats clean_stats(void)
{
    struct tierce__directory_stats stats;
    for (unsigned i = 0; tierce__directory_clean(directory, 64); i++)
        ck_assert_uint_lt(i, 1000000);
    tierce__directory_stats(directory, &stats);
    ck_assert(stats.is_clean);
    return stats;
}

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
    ck_assert(!found.runs[0].is_near);
    asker.host = "h2";
    find_as(asker, 0, 9);
    for (uint32_t i = 0; i < found.prefix_count; i++) {
        uint32_t slot = found.prefixes[i].worker.slot;
        ck_assert_uint_eq(found.prefixes[i].load, slot == near.slot ? 5 : slot == far.slot ? 4 : 0);
        ck_assert(found.prefixes[i].is_near == (slot != far.slot));
    }
    ck_assert(found.runs[0].is_near);
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
        struct tierce__directory_worker worker = {"g", "a", "", "", false, NULL, false};
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

START_TEST(limits)
{
    struct tierce__directory_id id;
    struct tierce__directory_worker worker = {"g", "", "", "", false, NULL, false};
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
    ck_assert_int_eq(tierce__directory_join(
                         directory,
                         &(struct tierce__directory_worker){"g", "c", "", "", false, NULL, false},
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
    struct tierce__directory_worker worker = {"k", "a", "", "", false, NULL, false};
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
    enum { KEYS = 250000, BATCH = 500 };
    struct tierce__directory_id a = join("g", "a", ""), b = join("g", "b", "");
    for (uint64_t i = 0; i < KEYS; i += BATCH)
        ck_assert_int_eq(report(a, i + 1, i, i + BATCH, 0, true), TIERCE__DIRECTORY_DONE);
    struct tierce__directory_stats one, two;
    tierce__directory_stats(directory, &one);
    ck_assert_uint_eq(one.keys, KEYS);
    ck_assert_uint_le(one.bytes, 42ULL * KEYS);
    ck_assert_uint_ge(one.bytes, (20 + 8) * (uint64_t)KEYS); /* an entry and a cell */
    for (uint64_t i = 0; i < KEYS; i += BATCH)
        ck_assert_int_eq(report(b, i + 1, i, i + BATCH, 1, true), TIERCE__DIRECTORY_DONE);
    tierce__directory_stats(directory, &two);
    ck_assert_uint_eq(two.holders, 2 * KEYS);
    ck_assert_uint_le(two.bytes, 40ULL * 2 * KEYS);
}
END_TEST

CHECK_MAIN("directory", .seconds = 30, .setup = setup, .teardown = teardown,
           .tests = {prefixes_and_tiers,
                     the_best_holder,
                     equal_holders_take_turns,
                     groups_do_not_see_one_another,
                     a_gap_concerns_its_worker_alone,
                     a_late_call_of_another_sending_changes_nothing,
                     a_repeated_report_changes_nothing,
                     a_worker_must_send_its_contents_first,
                     a_worker_that_joins_again_or_leaves_holds_nothing,
                     silent_workers_leave,
                     complete_contents_stay_until_others_are_complete,
                     nothing_to_clean_where_nothing_was,
                     a_group_goes_with_its_last_worker,
                     nothing_of_an_old_epoch_comes_back,
                     cleaning_finds_what_became_old_on_its_way,
                     what_is_removed_leaves_room,
                     a_group_has_its_own_words,
                     an_owner_of_several_groups_has_the_bounds_of_one,
                     names_and_slots,
                     a_group_does_not_fill_the_part_of_others,
                     limits,
                     a_full_directory_leaves_out_what_is_new,
                     each_allocation_fails_once,
                     memory_for_each_key})
