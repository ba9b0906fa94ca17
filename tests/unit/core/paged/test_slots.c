/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/paged/slots.h"

#include <limits.h>
#include <string.h>

enum { TOKENS = 4, BLOCKS = 10 };

static const int64_t mapped[11] = {20, 21, 22, 23, 0, 1, 2, 3, 36, 37, 38};

START_TEST(whole_blocks_are_found)
{
    int32_t ids[3] = {-7, -7, -7};
    ck_assert_int_eq(tierce__slots_to_blocks(ids, mapped, 8, TOKENS, BLOCKS), 2);
    ck_assert_int_eq(ids[0], 5);
    ck_assert_int_eq(ids[1], 0);
    /* The tokens behind the last whole block are no block. */
    ck_assert_int_eq(tierce__slots_to_blocks(ids, mapped, 11, TOKENS, BLOCKS), 2);
    ck_assert_int_eq(ids[2], -7);
    ck_assert_int_eq(tierce__slots_to_blocks(ids, mapped, 3, TOKENS, BLOCKS), 0);
    ck_assert_int_eq(tierce__slots_to_blocks(NULL, NULL, 0, TOKENS, BLOCKS), 0);
    ck_assert_int_eq(tierce__slots_to_blocks(ids, mapped, 2, 1, 30), 2);
    ck_assert_int_eq(ids[0], 20);
    ck_assert_int_eq(ids[1], 21);
}
END_TEST

static void expect_refused(size_t at, int64_t slot)
{
    int64_t slots[8];
    int32_t ids[2] = {-7, -7};
    memcpy(slots, mapped, sizeof(slots));
    slots[at] = slot;
    ck_assert_int_eq(tierce__slots_to_blocks(ids, slots, 8, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(ids[0], -7);
    ck_assert_int_eq(ids[1], -7);
}

START_TEST(hostile_slots_are_refused)
{
    static const int64_t hostile[] = {
        -1, -4, 21, 40, INT64_MAX, INT64_MIN, INT64_MAX - 3, (int64_t)1 << 33};
    for (size_t at = 0; at < 8; at++)
        for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++)
            if (hostile[i] != mapped[at])
                expect_refused(at, hostile[i]);
    /* Consecutive as they should be, but from the middle of a block, below 0, or out of range. */
    static const int64_t runs[] = {
        -TOKENS, 1, 22, TOKENS - 1, BLOCKS * TOKENS, BLOCKS * TOKENS - 1, INT64_MIN};
    int32_t id = -7;
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        int64_t run[TOKENS] = {runs[i], runs[i] + 1, runs[i] + 2, runs[i] + 3};
        ck_assert_int_eq(tierce__slots_to_blocks(&id, run, TOKENS, TOKENS, BLOCKS),
                         TIERCE_E_ARGUMENT);
        ck_assert_int_eq(id, -7);
    }
    ck_assert_int_eq(tierce__slots_to_blocks(&id, mapped, 4, 0, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__slots_to_blocks(&id, mapped, 4, TOKENS, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__slots_to_blocks(NULL, mapped, 4, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__slots_to_blocks(&id, NULL, 4, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__slots_to_blocks(&id, mapped, (size_t)INT_MAX + 1, 1, BLOCKS),
                     TIERCE_E_ARGUMENT);
}
END_TEST

/* A block id above 2^31 - 1 does not fit the ids, even when the engine claims so many blocks. */
START_TEST(ids_beyond_int32_are_refused)
{
    int64_t slot = (int64_t)INT32_MAX + 1;
    int32_t id = -7;
    ck_assert_int_eq(tierce__slots_to_blocks(&id, &slot, 1, 1, UINT32_MAX), TIERCE_E_ARGUMENT);
    slot = INT32_MAX;
    ck_assert_int_eq(tierce__slots_to_blocks(&id, &slot, 1, 1, UINT32_MAX), 1);
    ck_assert_int_eq(id, INT32_MAX);
}
END_TEST

START_TEST(ids_and_slots_are_inverse)
{
    int32_t ids[3] = {9, 0, 4}, back[3];
    int64_t slots[3 * TOKENS];
    ck_assert_int_eq(tierce__blocks_to_slots(slots, ids, 3, TOKENS, BLOCKS), 0);
    ck_assert_int_eq(slots[0], 36);
    ck_assert_int_eq(slots[3], 39);
    ck_assert_int_eq(slots[4], 0);
    ck_assert_int_eq(slots[11], 19);
    ck_assert_int_eq(tierce__slots_to_blocks(back, slots, 3 * TOKENS, TOKENS, BLOCKS), 3);
    ck_assert_mem_eq(back, ids, sizeof(ids));
}
END_TEST

START_TEST(hostile_ids_are_refused)
{
    static const int32_t hostile[] = {-1, BLOCKS, INT32_MAX, INT32_MIN};
    int64_t slots[2 * TOKENS];
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        int32_t ids[2] = {1, hostile[i]};
        memset(slots, 0x77, sizeof(slots));
        ck_assert_int_eq(tierce__blocks_to_slots(slots, ids, 2, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
        for (int j = 0; j < 2 * TOKENS; j++)
            ck_assert_int_eq(slots[j], 0x7777777777777777);
    }
    int32_t id = 0;
    ck_assert_int_eq(tierce__blocks_to_slots(slots, &id, 1, 0, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__blocks_to_slots(slots, &id, SIZE_MAX / 16, TOKENS, BLOCKS),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__blocks_to_slots(NULL, &id, 1, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__blocks_to_slots(slots, NULL, 1, TOKENS, BLOCKS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__blocks_to_slots(NULL, NULL, 0, TOKENS, BLOCKS), 0);
}
END_TEST

CHECK_MAIN("slots", .tests = {whole_blocks_are_found, hostile_slots_are_refused,
                              ids_beyond_int32_are_refused, ids_and_slots_are_inverse,
                              hostile_ids_are_refused})
