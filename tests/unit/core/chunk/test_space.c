/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "core/chunk/space.h"

#include <errno.h>
#include <signal.h>

enum { PAGE = 4096 };

static struct tierce__space *space;

static void start(uint64_t pages)
{
    ck_assert_int_eq(tierce__space_create(&space, pages * PAGE + 1), 0);
}

static uint64_t take(uint64_t bytes)
{
    uint64_t offset;
    ck_assert_int_eq(tierce__space_take(space, &offset, bytes), 0);
    return offset / PAGE;
}

static void give(uint64_t page, uint64_t bytes)
{
    tierce__space_give(space, page * PAGE, bytes);
}

START_TEST(the_smallest_hole_that_holds_it_is_used)
{
    start(20);
    ck_assert_uint_eq(take(4 * PAGE), 0);
    ck_assert_uint_eq(take(1), 4);
    ck_assert_uint_eq(take(2 * PAGE), 5);
    ck_assert_uint_eq(take(PAGE), 7);
    ck_assert_uint_eq(take(2 * PAGE), 8);
    ck_assert_uint_eq(take(PAGE), 10);
    give(0, 4 * PAGE);
    give(8, 2 * PAGE);
    give(5, 2 * PAGE);
    ck_assert_uint_eq(take(2 * PAGE - 5), 5);
    ck_assert_uint_eq(take(2 * PAGE), 8);
    ck_assert_uint_eq(take(3 * PAGE), 0);
    ck_assert_uint_eq(tierce__space_used(space), 10 * PAGE);
    ck_assert_uint_eq(tierce__space_asked(space), (2 * PAGE - 5) + 7 * PAGE + 1);
    tierce__space_destroy(space);
}
END_TEST

START_TEST(neighbours_become_one_on_both_sides)
{
    start(9);
    for (int i = 0; i < 9; i++)
        take(PAGE);
    uint64_t offset = 5;
    ck_assert_int_eq(tierce__space_take(space, &offset, 1), TIERCE_E_FULL);
    ck_assert_uint_eq(offset, 5);
    ck_assert_uint_eq(tierce__space_high(space), 9 * PAGE);
    give(3, PAGE);
    give(5, PAGE);
    ck_assert_int_eq(tierce__space_take(space, &offset, PAGE + 1), TIERCE_E_FULL);
    give(4, PAGE);
    ck_assert_uint_eq(tierce__space_longest(space), 3 * PAGE);
    ck_assert_uint_eq(take(3 * PAGE), 3);
    give(8, PAGE);
    give(7, PAGE);
    ck_assert_uint_eq(tierce__space_high(space), 7 * PAGE);
    tierce__space_destroy(space);
}
END_TEST

START_TEST(sizes_out_of_bounds_are_refused)
{
    uint64_t offset;
    ck_assert_int_eq(tierce__space_create(&space, PAGE - 1), TIERCE_E_ARGUMENT);
    start(4);
    ck_assert_int_eq(tierce__space_take(space, &offset, 4 * PAGE + 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__space_take(space, &offset, UINT64_MAX), TIERCE_E_LIMIT);
    ck_assert_uint_eq(take(4 * PAGE), 0);
    ck_assert_uint_eq(tierce__space_longest(space), 0);
    give(0, 4 * PAGE);
    ck_assert_uint_eq(tierce__space_high(space), 0);
    tierce__space_destroy(space);
}
END_TEST

START_TEST(claims_are_checked)
{
    start(10);
    ck_assert_int_eq(tierce__space_claim(space, 3 * PAGE, 2 * PAGE), 0);
    ck_assert_int_eq(tierce__space_claim(space, 9 * PAGE, PAGE), 0);
    static const uint64_t bad[][2] = {
        {3 * PAGE, PAGE}, {4 * PAGE, PAGE},    {2 * PAGE, PAGE + 1}, {PAGE, 9 * PAGE},
        {0, 0},           {10 * PAGE, PAGE},   {0, UINT64_MAX},      {UINT64_MAX - PAGE + 1, PAGE},
        {1, PAGE},        {8 * PAGE, 2 * PAGE}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(tierce__space_claim(space, bad[i][0], bad[i][1]), TIERCE_E_FORMAT);
    ck_assert_uint_eq(tierce__space_used(space), 3 * PAGE);
    ck_assert_int_eq(tierce__space_claim(space, 0, 3 * PAGE), 0);
    ck_assert_uint_eq(take(4 * PAGE), 5);
    ck_assert_uint_eq(tierce__space_used(space), 10 * PAGE);
    tierce__space_destroy(space);
}
END_TEST

/* Every allocation fails once; a space that could not grow is as it was. */
START_TEST(no_memory_changes_nothing)
{
    uint64_t live = tierce__alloc_live();
    for (uint64_t n = 1; n <= 2; n++) {
        struct tierce__space *none = NULL;
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(tierce__space_create(&none, 1 << 20), -ENOMEM);
        ck_assert_ptr_null(none);
    }
    start(1000);
    uint64_t taken = 0, offset;
    int failures = 0;
    while (taken < 1000) {
        tierce__alloc_fail_nth(1);
        int rc = taken % 2 ? tierce__space_claim(space, taken * PAGE, PAGE)
                           : tierce__space_take(space, &offset, PAGE);
        tierce__alloc_fail_nth(0);
        if (rc == 0) {
            taken++;
            continue;
        }
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_uint_eq(tierce__space_used(space), taken * PAGE);
        ck_assert_int_eq(tierce__space_reserve(space, (uint32_t)taken + 1), 0);
        failures++;
    }
    ck_assert_int_gt(failures, 3);
    tierce__alloc_fail_nth(1); /* giving back needs no memory, in the worst order too */
    for (uint64_t i = 0; i < 1000; i += 2)
        give(i, PAGE);
    for (uint64_t i = 1; i < 1000; i += 2)
        give(i, PAGE);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(take(1000 * PAGE), 0);
    tierce__space_destroy(space);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(giving_back_twice_panics)
{
    start(4);
    take(PAGE);
    take(PAGE);
    give(0, PAGE);
    give(0, PAGE);
}
END_TEST

START_TEST(giving_back_too_much_panics)
{
    start(4);
    take(PAGE);
    take(PAGE);
    give(1, 2 * PAGE);
}
END_TEST

CHECK_MAIN("space",
           .tests = {the_smallest_hole_that_holds_it_is_used, neighbours_become_one_on_both_sides,
                     sizes_out_of_bounds_are_refused, claims_are_checked,
                     no_memory_changes_nothing},
           .panics = {giving_back_twice_panics, giving_back_too_much_panics})
