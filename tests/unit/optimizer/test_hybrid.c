/* SPDX-License-Identifier: Apache-2.0 */
/* The replay of hybrid models: which blocks leave, and which instance is the tree. */
#include "check_main.h"

#include "core/key/group.h"
#include "optimizer/analysis/hybrid.h"
#include "optimizer/replay/sweep.h"

enum { FULL, STATE, NEWER, TOKENS = 4, LENGTH = 8, SECOND_US = 1000000 };

static const struct tierce__trace_layers layers[] = {
    [FULL] = {"full", "g", "f", "0", TOKENS, 0, 0},
    [STATE] = {"linear", "g", "f", "1", TOKENS, 0, TOKENS},
    [NEWER] = {"full", "g", "f", "0", TOKENS, 0, 0},
};

static struct tierce__hybrid *hybrid;
static int64_t now_us;

static void open_hybrid(uint64_t capacity)
{
    now_us = 0;
    ck_assert_int_eq(
        tierce__hybrid_create(
            &hybrid, &(struct tierce__hybrid_opts){.size = sizeof(struct tierce__hybrid_opts),
                                                   .capacity = capacity,
                                                   .block_bytes = 1,
                                                   .is_paired = true}),
        0);
}

static void add(uint32_t instance, enum tierce__trace_kind kind, const uint64_t *keys, size_t count)
{
    struct tierce__trace_request request = {
        .time_us = now_us,
        .instance = instance,
        .kind = kind,
        .count = (uint32_t)count,
        .read_count = kind == TIERCE__TRACE_WRITE ? 0 : (uint32_t)count,
        .blocks = keys,
    };
    ck_assert_int_eq(tierce__hybrid_add(hybrid, &request, &layers[instance]), 0);
}

/* Keys of a chain; the last one is `last` unless it is 0. */
static const uint64_t *chain(uint64_t first, size_t count, uint64_t last)
{
    static uint64_t keys[LENGTH + 1];
    for (size_t i = 0; i < count; i++)
        keys[i] = first + i;
    if (last != 0)
        keys[count - 1] = last;
    return keys;
}

static uint64_t look_up(uint32_t instance, uint64_t first, size_t count, uint64_t last)
{
    uint64_t before = tierce__hybrid_result(hybrid).hit_tokens;
    add(instance, TIERCE__TRACE_READ, chain(first, count, last), count);
    return (tierce__hybrid_result(hybrid).hit_tokens - before) / TOKENS;
}

static void store(uint32_t instance, uint64_t first, size_t count)
{
    add(instance, TIERCE__TRACE_WRITE, chain(first, count, 0), count);
}

/* Two chains with states at each block; then so many of 100 prompts stop inside, and a block is
 * stored for which others leave. Returns how far a prompt that differs after block 4 is found. */
static uint64_t reach_inside(int inside, int64_t age_us)
{
    open_hybrid(4 * LENGTH);
    for (uint64_t first = 200; first >= 100; first -= 100) {
        store(FULL, first, LENGTH);
        store(STATE, first, LENGTH);
    }
    for (int i = 0; i < 100; i++)
        ck_assert_uint_gt(look_up(FULL, 100, i < inside ? 5 : LENGTH, i < inside ? 999 : 0), 0);
    now_us += age_us;
    store(STATE, 300, 5);
    uint64_t hit = look_up(FULL, 200, 5, 998);
    tierce__hybrid_destroy(hybrid);
    return hit;
}

/* While few prompts stop inside, the states there leave before the older end. */
START_TEST(states_inside_leave_first)
{
    ck_assert_uint_lt(reach_inside(0, 60 * SECOND_US), 4);
    ck_assert_uint_lt(reach_inside(19, 60 * SECOND_US), 4);
}
END_TEST

/* If many do, the ends of the older chain leave, with their states. */
START_TEST(states_inside_stay_if_many_prompts_stop_there)
{
    ck_assert_uint_eq(reach_inside(25, 60 * SECOND_US), 4);
    ck_assert_uint_eq(reach_inside(100, 60 * SECOND_US), 4);
}
END_TEST

/* Of the states inside, one that was read leaves after newer ones that nobody read. */
START_TEST(a_state_that_was_read_stays)
{
    open_hybrid(4 * LENGTH);
    store(FULL, 100, LENGTH);
    store(STATE, 100, LENGTH);
    ck_assert_uint_eq(look_up(FULL, 100, 4, 999), 3);
    store(FULL, 200, LENGTH);
    store(STATE, 200, LENGTH);
    now_us += 60 * SECOND_US;
    store(STATE, 300, LENGTH - 1); /* there are six older ones */
    ck_assert_uint_eq(look_up(FULL, 100, 4, 999), 3);
    tierce__hybrid_destroy(hybrid);
}
END_TEST

/* Blocks of the last minute have their full value. */
START_TEST(young_blocks_leave_by_age)
{
    ck_assert_uint_eq(reach_inside(0, 59 * SECOND_US), 4);
}
END_TEST

/* A chain without states leaves back to its last point, here as a whole, but not in its first
 * minute: its states may still come. */
START_TEST(a_young_chain_waits_for_its_states)
{
    static const int64_t ages_us[] = {60 * SECOND_US - 1, 60 * SECOND_US};
    open_hybrid(4 * LENGTH);
    store(STATE, 900, 1); /* the family has states; this one is the oldest block */
    store(FULL, 100, LENGTH);
    store(FULL, 200, LENGTH);
    store(STATE, 200, LENGTH);
    now_us += ages_us[_i];
    store(FULL, 300, LENGTH + 1); /* two blocks too many */
    ck_assert_uint_eq(tierce__hybrid_result(hybrid).evicted, _i == 0 ? 2 : 1 + LENGTH);
    tierce__hybrid_destroy(hybrid);
}
END_TEST

/* Engines have other options: the lookups of the instance that replaces another one count, in its
 * own blocks. */
START_TEST(another_generation_is_the_tree)
{
    open_hybrid(TIERCE__CAPACITY_UNLIMITED);
    store(FULL, 100, LENGTH);
    store(STATE, 100, LENGTH);
    ck_assert_uint_eq(look_up(FULL, 100, LENGTH, 0), LENGTH);
    ck_assert_uint_eq(look_up(NEWER, 100, LENGTH, 0), 0);
    store(NEWER, 100, 3);
    ck_assert_uint_eq(look_up(NEWER, 100, LENGTH, 0), 3);
    store(FULL, 100, LENGTH + 1); /* an engine of before is still there */
    store(STATE, 100, LENGTH + 1);
    ck_assert_uint_eq(look_up(FULL, 100, LENGTH + 1, 0), LENGTH + 1);
    tierce__hybrid_destroy(hybrid);
}
END_TEST

CHECK_MAIN("hybrid", .seconds = 20,
           .tests = {states_inside_leave_first, states_inside_stay_if_many_prompts_stop_there,
                     a_state_that_was_read_stays, young_blocks_leave_by_age,
                     another_generation_is_the_tree},
           .loops = {{a_young_chain_waits_for_its_states, 0, 2}})
