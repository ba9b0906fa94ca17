/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/reclaim/quota.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static const struct tierce__quota_at here = {
    .group = "g", .type = TIERCE__STORAGE_NFS, .storage = 1};
static const struct tierce__quota_limits none = {
    .group = UINT64_MAX, .type = UINT64_MAX, .storage = UINT64_MAX};
static struct tierce__quota *quota;

static void share(uint64_t capacity)
{
    const struct tierce__quota_group limit = {"q", capacity};
    ck_assert_int_eq(tierce__quota_set_shared(quota, &limit, 1), 0);
    ck_assert_int_eq(tierce__quota_share(quota, "g", "q"), 0);
    ck_assert_int_eq(tierce__quota_share(quota, "h", "q"), 0);
}

static void set_up(void)
{
    ck_assert_int_eq(tierce__quota_create(&quota), 0);
    share(UINT64_MAX);
}

static void tear_down(void)
{
    tierce__quota_destroy(quota);
}

static size_t reserve(const struct tierce__quota_at *at, const struct tierce__quota_limits *limits,
                      uint64_t bytes, size_t count, const char *expected_limit)
{
    uint64_t amounts[16];
    size_t reserved = SIZE_MAX;
    const char *limit = "none";
    for (size_t i = 0; i < count; i++)
        amounts[i] = bytes;
    ck_assert_int_eq(tierce__quota_reserve(quota, at, limits, amounts, count, &reserved, &limit),
                     0);
    if (expected_limit == NULL)
        ck_assert_ptr_null(limit);
    else
        ck_assert_str_eq(limit, expected_limit);
    return reserved;
}

static uint64_t group_bytes(const char *group, enum tierce__quota_state state)
{
    struct tierce__quota_use use;
    tierce__quota_group_use(quota, group, &use);
    return use.by_state[state];
}

static uint64_t storage_bytes(uint16_t storage, enum tierce__quota_state state)
{
    uint64_t by_state[TIERCE__QUOTA_STATES];
    tierce__quota_storage_use(quota, storage, by_state, NULL);
    return by_state[state];
}

/* As after a restart. */
static void add_serving(enum tierce__storage_type type, uint64_t bytes)
{
    struct tierce__quota_sums sums = {.by_storage.item_bytes = TIERCE__QUOTA_SUMS_ITEM};
    ck_assert_int_eq(tierce__quota_sums_add(&sums, TIERCE__QUOTA_SERVING, (uint8_t)type, 1, bytes),
                     0);
    ck_assert_int_eq(tierce__quota_add(quota, "g", &sums), 0);
    tierce__quota_sums_clear(&sums);
}

/* A damaged record says that its block had more bytes than were ever added. */
START_TEST(more_than_was_added_takes_all_and_ends_nothing)
{
    ck_assert_uint_eq(reserve(&here, &none, 100, 1, NULL), 1);
    tierce__quota_move(quota, &here, TIERCE__QUOTA_WRITING, TIERCE__QUOTA_DELETING, 1ull << 60);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 0);
    ck_assert_uint_eq(storage_bytes(1, TIERCE__QUOTA_WRITING), 0);
    tierce__quota_move(quota, &here, TIERCE__QUOTA_DELETING, TIERCE__QUOTA_STATES, 1ull << 60);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_DELETING), 0);
}
END_TEST

START_TEST(the_leading_amounts_that_fit_are_reserved)
{
    struct tierce__quota_limits limits = none;
    limits.group = 350;
    ck_assert_uint_eq(reserve(&here, &limits, 100, 5, "group"), 3);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 300);
    ck_assert_uint_eq(reserve(&here, &limits, 51, 1, "group"), 0);
    ck_assert_uint_eq(reserve(&here, &limits, 50, 1, NULL), 1); /* to the last byte */
    ck_assert_uint_eq(reserve(&here, &limits, 1, 1, "group"), 0);
    ck_assert_uint_eq(reserve(&here, &limits, 0, 2, NULL), 2);
}
END_TEST

/* One that is too large ends it, though a smaller one behind it would fit. */
START_TEST(none_is_left_out)
{
    static const uint64_t amounts[] = {10, 100, 10};
    struct tierce__quota_limits limits = none;
    size_t reserved;
    const char *limit;
    limits.group = 50;
    ck_assert_int_eq(tierce__quota_reserve(quota, &here, &limits, amounts, 3, &reserved, &limit),
                     0);
    ck_assert_uint_eq(reserved, 1);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 10);
}
END_TEST

START_TEST(each_limit_is_one_and_the_least_says_so)
{
    static const char *const names[] = {"group", "type", "shared", "storage"};
    for (size_t i = 0; i < 4; i++) {
        uint64_t all[] = {1000, 1000, 1000, 1000};
        all[i] = 200;
        struct tierce__quota_limits limits = {.group = all[0], .type = all[1], .storage = all[3]};
        tierce__quota_reset(quota);
        share(all[2]);
        ck_assert_uint_eq(reserve(&here, &limits, 100, 4, names[i]), 2);
    }
}
END_TEST

START_TEST(what_is_counted_where)
{
    struct tierce__quota_at other_type = here, other_storage = here, other_group = here,
                            alone = here;
    struct tierce__quota_limits limits = none;
    other_type.type = TIERCE__STORAGE_MOONCAKE;
    other_type.storage = 2;
    other_storage.storage = 3;
    other_group.group = "h";
    other_group.storage = 4;
    alone.group = "k";
    ck_assert_uint_eq(reserve(&here, &none, 100, 1, NULL), 1);
    limits.type = 100;
    ck_assert_uint_eq(reserve(&other_type, &limits, 100, 1, NULL), 1);
    ck_assert_uint_eq(reserve(&other_storage, &limits, 1, 1, "type"), 0);
    limits = none;
    limits.storage = 100;
    ck_assert_uint_eq(reserve(&other_storage, &limits, 100, 1, NULL), 1);
    ck_assert_uint_eq(reserve(&here, &limits, 1, 1, "storage"), 0);
    limits = none;
    limits.group = 100;
    ck_assert_uint_eq(reserve(&other_group, &limits, 100, 1, NULL), 1);
    limits = none;
    share(400); /* of g and h together */
    ck_assert_uint_eq(reserve(&other_group, &limits, 1, 1, "shared"), 0);
    ck_assert_uint_eq(reserve(&alone, &limits, 1000, 1, NULL), 1); /* shares nothing */
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 300);
    ck_assert_uint_eq(group_bytes("h", TIERCE__QUOTA_WRITING), 100);
    ck_assert_uint_eq(group_bytes("nobody", TIERCE__QUOTA_WRITING), 0);
    ck_assert_uint_eq(storage_bytes(1, TIERCE__QUOTA_WRITING), 1100);
}
END_TEST

/* A VCNS 3FS is a 3FS to its quota. */
START_TEST(kinds_that_are_one_to_quotas)
{
    struct tierce__quota_at vcns = here, plain = here;
    struct tierce__quota_limits limits = none;
    vcns.type = TIERCE__STORAGE_VCNS_3FS;
    plain.type = TIERCE__STORAGE_3FS;
    limits.type = 100;
    ck_assert_uint_eq(reserve(&vcns, &limits, 60, 1, NULL), 1);
    ck_assert_uint_eq(reserve(&plain, &limits, 60, 1, "type"), 0);
    add_serving(TIERCE__STORAGE_VCNS_3FS, 40);
    ck_assert_uint_eq(reserve(&plain, &limits, 1, 1, "type"), 0);
}
END_TEST

START_TEST(bytes_count_until_they_are_gone)
{
    struct tierce__quota_limits limits = none;
    struct tierce__quota_use use;
    uint32_t slot = tierce__meta_type_slot(TIERCE__STORAGE_NFS);
    limits.group = limits.type = limits.storage = 100;
    share(100);
    ck_assert_uint_eq(reserve(&here, &limits, 100, 1, NULL), 1);
    static const enum tierce__quota_state way[] = {TIERCE__QUOTA_WRITING, TIERCE__QUOTA_SERVING,
                                                   TIERCE__QUOTA_DELETING, TIERCE__QUOTA_STATES};
    for (size_t i = 0; i + 1 < 4; i++) {
        ck_assert_uint_eq(reserve(&here, &limits, 1, 1, "group"), 0);
        tierce__quota_group_use(quota, "g", &use);
        for (enum tierce__quota_state state = 0; state < TIERCE__QUOTA_STATES; state++) {
            uint64_t expected = state == way[i] ? 100 : 0;
            ck_assert_uint_eq(use.by_state[state], expected);
            ck_assert_uint_eq(use.by_type[state][slot], expected);
            ck_assert_uint_eq(storage_bytes(1, state), expected);
        }
        tierce__quota_move(quota, &here, way[i], way[i + 1], 60);
        tierce__quota_move(quota, &here, way[i], way[i + 1], 40);
    }
    ck_assert_uint_eq(reserve(&here, &limits, 100, 1, NULL), 1);
}
END_TEST

/* After a restart, or a limit that was lowered: nothing more is reserved, and nothing goes
 * below. */
START_TEST(what_is_beyond_a_limit_stays)
{
    struct tierce__quota_limits limits = none;
    add_serving(TIERCE__STORAGE_NFS, 500);
    static const char *const names[] = {"group", "type", "shared", "storage"};
    for (size_t i = 0; i < 4; i++) {
        uint64_t all[] = {1000, 1000, 1000, 1000};
        all[i] = 500;
        struct tierce__quota_limits one = {.group = all[0], .type = all[1], .storage = all[3]};
        share(all[2]);
        ck_assert_uint_eq(reserve(&here, &one, 1, 1, names[i]), 0);
    }
    share(UINT64_MAX);
    limits.group = 0;
    ck_assert_uint_eq(reserve(&here, &limits, 1, 1, "group"), 0);
    limits.group = 501;
    ck_assert_uint_eq(reserve(&here, &limits, 1, 2, "group"), 1);
    tierce__quota_reset(quota);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_SERVING), 0);
    ck_assert_uint_eq(storage_bytes(1, TIERCE__QUOTA_SERVING), 0);
}
END_TEST

static uint64_t shared_bytes(const char *name)
{
    char space[64];
    struct tierce__quota_shared shared;
    for (size_t i = 0; tierce__quota_shared_at(quota, i, &shared, space, sizeof(space)); i++) {
        if (strcmp(shared.name, name) == 0)
            return shared.by_state[TIERCE__QUOTA_WRITING] + shared.by_state[TIERCE__QUOTA_SERVING];
    }
    return UINT64_MAX;
}

/* The bytes of a group move with it to another global quota, while limits change. */
START_TEST(shared_limits_change_while_in_use)
{
    struct tierce__quota_at other = here;
    other.group = "h";
    ck_assert_uint_eq(reserve(&here, &none, 100, 3, NULL), 3);
    ck_assert_uint_eq(reserve(&other, &none, 100, 1, NULL), 1);
    tierce__quota_move(quota, &here, TIERCE__QUOTA_WRITING, TIERCE__QUOTA_SERVING, 200);
    ck_assert_uint_eq(shared_bytes("q"), 400);
    ck_assert_int_eq(tierce__quota_share(quota, "g", "r"), 0);
    ck_assert_uint_eq(shared_bytes("q"), 100);
    ck_assert_uint_eq(shared_bytes("r"), 300);
    static const struct tierce__quota_group limits[] = {{"q", 200}, {"r", 300}};
    ck_assert_int_eq(tierce__quota_set_shared(quota, limits, 2), 0);
    ck_assert_uint_eq(reserve(&here, &none, 1, 1, "shared"), 0);
    ck_assert_uint_eq(reserve(&other, &none, 100, 2, "shared"), 1);
    ck_assert_int_eq(tierce__quota_set_shared(quota, limits, 1), 0); /* r has none now */
    ck_assert_uint_eq(reserve(&here, &none, 1, 1, NULL), 1);
    ck_assert_int_eq(tierce__quota_share(quota, "g", ""), 0);
    ck_assert_uint_eq(shared_bytes("r"), 0);
    tierce__quota_move(quota, &here, TIERCE__QUOTA_SERVING, TIERCE__QUOTA_STATES, 200);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 101);
}
END_TEST

/* A write without room is reported once, with the limit; a write that can never fit is not. */
START_TEST(writes_leave_what_they_wanted)
{
    struct tierce__quota_limits limits = none;
    struct tierce__quota_use use;
    limits.type = 100;
    ck_assert_uint_eq(reserve(&here, &limits, 60, 3, "type"), 1);
    ck_assert_uint_eq(reserve(&here, &limits, 101, 1, "type"), 0);
    tierce__quota_group_use(quota, "g", &use);
    ck_assert_uint_eq(use.wanted_by_type[tierce__meta_type_slot(TIERCE__STORAGE_NFS)], 60);
    ck_assert_uint_eq(use.wanted, 0);
    uint64_t changes = tierce__quota_changes(quota);
    tierce__quota_clear_wanted(quota);
    tierce__quota_group_use(quota, "g", &use);
    ck_assert_uint_eq(use.wanted_by_type[tierce__meta_type_slot(TIERCE__STORAGE_NFS)], 0);
    ck_assert_uint_eq(tierce__quota_changes(quota), changes);
    ck_assert_uint_eq(reserve(&here, &limits, 60, 1, "type"), 0);
    ck_assert_uint_ne(tierce__quota_changes(quota), changes);
}
END_TEST

/* Sums of sizes that a client may name. */
START_TEST(amounts_that_are_too_large)
{
    static const uint64_t amounts[] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    struct tierce__quota_limits limits = none;
    size_t reserved;
    const char *limit;
    limits.group = UINT64_MAX - 2;
    ck_assert_int_eq(tierce__quota_reserve(quota, &here, &limits, amounts, 3, &reserved, &limit),
                     0);
    ck_assert_uint_eq(reserved, 1);
}
END_TEST

START_TEST(limits_that_are_prepared_are_set)
{
    static const struct tierce__quota_group limits[] = {{"q", 100}, {"new", 300}};
    for (uint64_t nth = 1; nth <= 2; nth++) { /* an account and its name */
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__quota_prepare_shared(quota, limits, 2), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(reserve(&here, &none, 200, 1, NULL), 1); /* as before */
    }
    ck_assert_int_eq(tierce__quota_prepare_shared(quota, limits, 2), 0);
    ck_assert_uint_eq(reserve(&here, &none, 200, 1, NULL), 1);
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__quota_set_shared(quota, limits, 2), 0);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(reserve(&here, &none, 1, 1, "shared"), 0);
}
END_TEST

START_TEST(without_memory_nothing_is_reserved)
{
    static const uint64_t amount = 10;
    size_t reserved;
    const char *limit;
    tierce__quota_reset(quota);
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= 4; nth++) { /* two accounts and their names */
        tierce__quota_reset(quota);
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__quota_share(quota, "g", "another"), -ENOMEM);
        tierce__alloc_fail_nth(0);
    }
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__quota_reset(quota);
        tierce__alloc_fail_nth(nth);
        int rc = tierce__quota_reserve(quota, &here, &none, &amount, 1, &reserved, &limit);
        tierce__alloc_fail_nth(0);
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 0);
        ck_assert_uint_eq(storage_bytes(1, TIERCE__QUOTA_WRITING), 0);
    }
    tierce__quota_reset(quota);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

static void *reserve_and_give(void *arg)
{
    static const uint64_t amounts[] = {7, 7, 7, 7};
    struct tierce__quota_limits limits = none;
    size_t reserved;
    const char *limit;
    limits.group = 100;
    for (int i = 0; i < 5000; i++) {
        ck_assert_int_eq(
            tierce__quota_reserve(quota, &here, &limits, amounts, 4, &reserved, &limit), 0);
        ck_assert_uint_le(group_bytes("g", TIERCE__QUOTA_WRITING), 100);
        if (reserved > 0)
            tierce__quota_move(quota, &here, TIERCE__QUOTA_WRITING, TIERCE__QUOTA_STATES,
                               reserved * 7);
    }
    return arg;
}

START_TEST(threads_do_not_exceed_it)
{
    pthread_t threads[6];
    for (size_t i = 0; i < 6; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, reserve_and_give, NULL), 0);
    for (size_t i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(group_bytes("g", TIERCE__QUOTA_WRITING), 0);
}
END_TEST

CHECK_MAIN("quota", .setup = set_up, .teardown = tear_down,
           .tests = {more_than_was_added_takes_all_and_ends_nothing,
                     the_leading_amounts_that_fit_are_reserved, none_is_left_out,
                     each_limit_is_one_and_the_least_says_so, what_is_counted_where,
                     kinds_that_are_one_to_quotas, bytes_count_until_they_are_gone,
                     what_is_beyond_a_limit_stays, amounts_that_are_too_large,
                     shared_limits_change_while_in_use, writes_leave_what_they_wanted,
                     limits_that_are_prepared_are_set, without_memory_nothing_is_reserved,
                     threads_do_not_exceed_it})
