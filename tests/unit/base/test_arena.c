/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/arena.h"
#include "check_main.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

START_TEST(pieces_are_aligned_and_apart)
{
    struct tierce__arena arena = {0};
    unsigned char *pieces[300];
    for (size_t i = 0; i < 300; i++) {
        pieces[i] = tierce__arena_alloc(&arena, i * 7);
        ck_assert_ptr_nonnull(pieces[i]);
        ck_assert_uint_eq((uintptr_t)pieces[i] % _Alignof(max_align_t), 0);
        memset(pieces[i], (int)i, i * 7);
    }
    for (size_t i = 0; i < 300; i++) {
        for (size_t b = 0; b < i * 7; b++)
            ck_assert_uint_eq(pieces[i][b], (unsigned char)i);
    }
    tierce__arena_clear(&arena);
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(clearing_gives_everything_back)
{
    uint64_t live = tierce__alloc_live();
    struct tierce__arena arena = {0};
    ck_assert_str_eq(tierce__arena_copy(&arena, "texts", 4), "text");
    ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 3000000));
    tierce__arena_clear(&arena);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(a_reset_arena_is_used_again)
{
    struct tierce__arena arena = {0};
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 5000));
    tierce__arena_reset(&arena);
    uint64_t live = tierce__alloc_live();
    ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 100));
    ck_assert_uint_eq(tierce__alloc_live(), live);
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(no_memory_and_absurd_sizes_are_null)
{
    struct tierce__arena arena = {0};
    tierce__alloc_fail_nth(1);
    ck_assert_ptr_null(tierce__arena_alloc(&arena, 1));
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(arena.status, -ENOMEM);
    tierce__arena_clear(&arena);
    ck_assert_ptr_null(tierce__arena_alloc(&arena, SIZE_MAX));
    ck_assert_ptr_null(tierce__arena_calloc(&arena, SIZE_MAX / 4, 8));
    tierce__arena_clear(&arena);
    uint64_t *zeroes = tierce__arena_calloc(&arena, 4, 8);
    ck_assert_uint_eq(zeroes[0] | zeroes[3], 0);
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(a_limit_ends_it)
{
    struct tierce__arena arena = {.limit = 100};
    ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 64));
    ck_assert_ptr_null(tierce__arena_alloc(&arena, 64));
    ck_assert_int_eq(arena.status, TIERCE_E_LIMIT);
    ck_assert_ptr_null(tierce__arena_alloc(&arena, 1));
    tierce__arena_clear(&arena);
    ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 64));
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(blocks_do_not_double_for_ever)
{
    struct tierce__arena arena = {0};
    for (int i = 0; i < 5000; i++) {
        ck_assert_ptr_nonnull(tierce__arena_alloc(&arena, 1000));
        ck_assert_uint_le(arena.capacity, 1u << 20);
    }
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(the_first_piece_leads_back_to_its_arena)
{
    uint64_t live = tierce__alloc_live();
    struct tierce__arena *arena = tierce__arena_create(10000, 0);
    char *first = tierce__arena_alloc(arena, 9000);
    memset(first, 1, 9000);
    for (int i = 0; i < 10; i++)
        memset(tierce__arena_alloc(arena, 5000), 2, 5000);
    ck_assert_ptr_eq(tierce__arena_of(first), arena);
    tierce__arena_reset(arena);
    ck_assert_ptr_eq(tierce__arena_alloc(arena, 10), first);
    tierce__arena_destroy(arena);
    tierce__arena_destroy(NULL);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    ck_assert_ptr_null(tierce__arena_create(SIZE_MAX, 0));
}
END_TEST

CHECK_MAIN("arena", .tests = {pieces_are_aligned_and_apart, clearing_gives_everything_back,
                              a_reset_arena_is_used_again, no_memory_and_absurd_sizes_are_null,
                              a_limit_ends_it, blocks_do_not_double_for_ever,
                              the_first_piece_leads_back_to_its_arena})
