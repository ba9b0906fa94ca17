/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "base/arena.h"

#include <tierce/status.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

START_TEST(test_pieces)
{
    uint64_t live = tierce__alloc_live();
    struct tierce__arena *arena = tierce__arena_create(0, SIZE_MAX);
    char *pieces[300];
    ck_assert_ptr_nonnull(arena);
    for (size_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < 300; i++) {
            pieces[i] = tierce__arena_take(arena, i * i);
            ck_assert_ptr_nonnull(pieces[i]);
            ck_assert_uint_eq((uintptr_t)pieces[i] % 16, 0);
            memset(pieces[i], (int)i, i * i);
        }
        for (size_t i = 1; i < 300; i++)
            ck_assert_int_eq((unsigned char)pieces[i][i * i - 1], (unsigned char)i);
        ck_assert_ptr_eq(tierce__arena_of(pieces[0]), arena);
        tierce__arena_reset(arena, SIZE_MAX);
        ck_assert_uint_eq(tierce__alloc_live(), live + 1);
    }
    tierce__arena_destroy(arena);
    tierce__arena_destroy(NULL);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(test_limit)
{
    struct tierce__arena *arena = tierce__arena_create(100, 64);
    ck_assert_ptr_nonnull(tierce__arena_take(arena, 48));
    ck_assert_ptr_null(tierce__arena_take(arena, 17));
    ck_assert_int_eq(tierce__arena_status(arena), TIERCE_E_LIMIT);
    ck_assert_ptr_null(tierce__arena_take(arena, 1));
    tierce__arena_reset(arena, SIZE_MAX);
    ck_assert_int_eq(tierce__arena_status(arena), 0);
    ck_assert_ptr_null(tierce__arena_take(arena, SIZE_MAX));
    ck_assert_int_eq(tierce__arena_status(arena), TIERCE_E_LIMIT);
    tierce__arena_destroy(arena);
}
END_TEST

START_TEST(test_no_memory)
{
    tierce__alloc_fail_nth(1);
    ck_assert_ptr_null(tierce__arena_create(0, SIZE_MAX));
    struct tierce__arena *arena = tierce__arena_create(0, SIZE_MAX);
    tierce__alloc_fail_nth(1);
    ck_assert_ptr_null(tierce__arena_take(arena, 100000));
    ck_assert_int_eq(tierce__arena_status(arena), -ENOMEM);
    tierce__alloc_fail_nth(0);
    tierce__arena_destroy(arena);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tests = tcase_create("arena");
    tcase_add_test(tests, test_pieces);
    tcase_add_test(tests, test_limit);
    tcase_add_test(tests, test_no_memory);
    suite_add_tcase(suite, tests);
    return check_main(suite);
}
