/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of moves alone: bounds, turns, rests, rates. */
#include "check_main.h"
#include "base/alloc.h"
#include "manager/move/moves.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SECOND  1000000ll
#define NOW     (1000 * SECOND)
#define DRAINED ((struct tierce__move_lane){.instance_id = "i", .instance = 7, .from = 3})

static struct tierce__moves *moves;
static struct tierce__arena arena;

static void open_moves(uint64_t rate, uint32_t queued_max)
{
    ck_assert_int_eq(
        tierce__moves_create(&moves,
                             &(struct tierce__moves_opts){.size = sizeof(struct tierce__moves_opts),
                                                          .rate = rate,
                                                          .queued_max = queued_max}),
        0);
}

static void close_moves(void)
{
    tierce__moves_destroy(moves);
    tierce__arena_clear(&arena);
}

static struct tierce__move_block block_of(int64_t key, uint64_t bytes)
{
    struct tierce__move_block block = {.key = key, .bytes = bytes};
    snprintf(block.location_id, sizeof(block.location_id), "l%06d", (int)key);
    return block;
}

static size_t want(struct tierce__move_lane lane, int64_t first, size_t count, int64_t now_us)
{
    size_t queued = 0;
    for (size_t i = 0; i < count; i++) {
        struct tierce__move_block block = block_of(first + (int64_t)i, 100);
        queued += tierce__moves_want(moves, &lane, &block, 1, now_us);
    }
    return queued;
}

static size_t take(size_t most, uint64_t bytes, int64_t now_us, struct tierce__moves_popped *out)
{
    *out = (struct tierce__moves_popped){0};
    int rc = tierce__moves_take(
        moves,
        &(struct tierce__moves_pop){.blocks_max = most, .bytes_max = bytes, .now_us = now_us},
        &arena, out);
    ck_assert_int_ge(rc, 0);
    ck_assert_int_eq(rc > 0, out->count > 0);
    return out->count;
}

START_TEST(blocks_come_out_in_order_and_lanes_take_turns)
{
    struct tierce__moves_popped got;
    struct tierce__move_lane other = DRAINED;
    other.from = 4;
    open_moves(0, 0);
    ck_assert_uint_eq(take(10, 0, NOW, &got), 0);
    ck_assert_uint_eq(want(DRAINED, 0, 10, NOW), 10);
    ck_assert_uint_eq(want(DRAINED, 5, 10, NOW), 5); /* five are known */
    ck_assert_uint_eq(want(other, 100, 3, NOW), 3);
    ck_assert_uint_eq(take(8, 0, NOW, &got), 8);
    ck_assert_int_eq(got.blocks[0].key, 0);
    ck_assert_int_eq(got.blocks[7].key, 7);
    ck_assert_str_eq(got.lane.instance_id, "i");
    ck_assert_uint_eq(take(8, 0, NOW, &got), 3);
    ck_assert_uint_eq(got.lane.from, 4);
    ck_assert_uint_eq(take(8, 250, NOW, &got), 2); /* of 100 bytes each */
    ck_assert_uint_eq(take(8, 1, NOW, &got), 1);   /* one is returned even so */
    ck_assert_int_eq(got.blocks[0].key, 10);
    ck_assert_uint_eq(want(DRAINED, 0, 1, NOW), 1); /* it was taken: it may come again */
    struct tierce__moves_stats stats;
    tierce__moves_stats(moves, &stats);
    ck_assert_uint_eq(stats.queued[TIERCE__MOVE_DRAIN], 5);
    ck_assert_uint_eq(stats.queued_bytes[TIERCE__MOVE_DRAIN], 500);
    close_moves();
}
END_TEST

START_TEST(each_reason_has_a_bound)
{
    struct tierce__moves_stats stats;
    struct tierce__move_lane hot = DRAINED;
    hot.reason = TIERCE__MOVE_HOT;
    open_moves(0, 4);
    ck_assert_uint_eq(tierce__moves_room(moves, TIERCE__MOVE_HOT), 4);
    ck_assert_uint_eq(want(hot, 0, 6, NOW), 4);
    ck_assert_uint_eq(tierce__moves_room(moves, TIERCE__MOVE_HOT), 0);
    ck_assert_uint_eq(want(DRAINED, 10, 6, NOW), 4);
    tierce__moves_stats(moves, &stats);
    ck_assert_uint_eq(stats.refused[TIERCE__MOVE_HOT], 2);
    ck_assert_uint_eq(stats.refused[TIERCE__MOVE_DRAIN], 2);
    tierce__moves_clear(moves);
    ck_assert_uint_eq(tierce__moves_room(moves, TIERCE__MOVE_HOT), 4);
    ck_assert_uint_eq(want(hot, 0, 1, NOW), 1);
    close_moves();
}
END_TEST

START_TEST(failures_and_missing_movers_are_told)
{
    struct tierce__moves_popped got;
    char why[256];
    open_moves(0, 0);
    ck_assert_uint_eq(want(DRAINED, 0, 2, NOW), 2);
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW + 29 * SECOND, why), 2);
    ck_assert_str_eq(why, "");
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW + 30 * SECOND, why), 2);
    ck_assert_ptr_nonnull(strstr(why, "no mover has asked for 30 s"));
    ck_assert_uint_eq(tierce__moves_of(moves, 4, NOW + 30 * SECOND, why), 0);
    ck_assert_str_eq(why, "");
    tierce__moves_asked(moves, NOW + 30 * SECOND);
    ck_assert_uint_eq(take(2, 0, NOW + 30 * SECOND, &got), 2);
    for (size_t i = 0; i < 2; i++)
        tierce__moves_ended(moves, &got.lane, &got.blocks[i], TIERCE__MOVE_TARGET_FAILED,
                            NOW + 30 * SECOND);
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW + 80 * SECOND, why), 0);
    ck_assert_str_eq(why, "2 blocks could not be moved, the last one with result target_failed; "
                          "they are tried again in 11 s at most");
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW + 91 * SECOND, why), 0);
    ck_assert_str_eq(why, "");
    close_moves();
}
END_TEST

START_TEST(a_lane_without_a_target_rests)
{
    struct tierce__moves_popped got, again;
    char why[256];
    open_moves(0, 0);
    ck_assert_uint_eq(want(DRAINED, 0, 4, NOW), 4);
    ck_assert_uint_eq(take(2, 0, NOW, &got), 2);
    tierce__moves_put_back(moves, &got, NOW + SECOND, "no room");
    ck_assert_uint_eq(take(4, 0, NOW, &again), 0);
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW, why), 4);
    ck_assert_str_eq(why, "no room");
    ck_assert_uint_eq(take(4, 0, NOW + SECOND, &again), 4);
    ck_assert_int_eq(again.blocks[0].key, 0); /* in the order of before */
    ck_assert_int_eq(again.blocks[3].key, 3);
    ck_assert_uint_eq(tierce__moves_of(moves, 3, NOW, why), 0);
    ck_assert_str_eq(why, "");
    close_moves();
}
END_TEST

START_TEST(a_block_whose_move_failed_stays_out_for_a_while)
{
    struct tierce__moves_popped got;
    struct tierce__moves_stats stats;
    open_moves(0, 0);
    ck_assert_uint_eq(want(DRAINED, 0, 3, NOW), 3);
    ck_assert_uint_eq(take(3, 0, NOW, &got), 3);
    tierce__moves_ended(moves, &got.lane, &got.blocks[0], TIERCE__MOVED, NOW);
    tierce__moves_ended(moves, &got.lane, &got.blocks[1], TIERCE__MOVE_TARGET_FAILED, NOW);
    tierce__moves_ended(moves, &got.lane, &got.blocks[2], TIERCE__MOVE_UNVERIFIABLE, NOW);
    ck_assert_uint_eq(want(DRAINED, 1, 2, NOW + 59 * SECOND), 0);
    /* Rules that skip known blocks take this one up again, too. */
    ck_assert(tierce__moves_knows(moves, got.lane.instance, &got.blocks[1], NOW + 59 * SECOND));
    ck_assert(!tierce__moves_knows(moves, got.lane.instance, &got.blocks[1], NOW + 60 * SECOND));
    ck_assert_uint_eq(want(DRAINED, 1, 2, NOW + 60 * SECOND), 1);
    ck_assert_uint_eq(want(DRAINED, 2, 1, NOW + 3600 * SECOND), 1);
    tierce__moves_stats(moves, &stats);
    ck_assert_uint_eq(stats.resting, 0);
    ck_assert_uint_eq(stats.moved[TIERCE__MOVE_DRAIN], 1);
    ck_assert_uint_eq(stats.moved_bytes[TIERCE__MOVE_DRAIN], 100);
    ck_assert_uint_eq(stats.ended[TIERCE__MOVED], 1);
    ck_assert_uint_eq(stats.ended[TIERCE__MOVE_UNVERIFIABLE], 1);
    close_moves();
}
END_TEST

/* Nothing was wrong with them: the mover ended, or was killed. */
START_TEST(a_block_that_was_not_tried_does_not_rest)
{
    struct tierce__moves_popped got;
    struct tierce__moves_stats stats;
    open_moves(0, 0);
    ck_assert_uint_eq(want(DRAINED, 0, 2, NOW), 2);
    ck_assert_uint_eq(take(2, 0, NOW, &got), 2);
    tierce__moves_ended(moves, &got.lane, &got.blocks[0], TIERCE__MOVE_UNDONE, NOW);
    tierce__moves_ended(moves, &got.lane, &got.blocks[1], TIERCE__MOVE_EXPIRED, NOW);
    ck_assert_uint_eq(want(DRAINED, 0, 2, NOW), 2);
    tierce__moves_stats(moves, &stats);
    ck_assert_uint_eq(stats.resting, 0);
    ck_assert_uint_eq(stats.ended[TIERCE__MOVE_UNDONE], 1);
    ck_assert_uint_eq(stats.ended[TIERCE__MOVE_EXPIRED], 1);
    close_moves();
}
END_TEST

/* A rule asked again for a block whose copy was on its way, and the copy failed. */
START_TEST(a_lane_that_a_failed_block_leaves_ends)
{
    struct tierce__moves_popped got;
    struct tierce__move_block block = block_of(1, 100);
    open_moves(0, 0);
    ck_assert_uint_eq(want(DRAINED, 1, 1, NOW), 1);
    tierce__moves_ended(moves, &DRAINED, &block, TIERCE__MOVE_TARGET_FAILED, NOW);
    ck_assert_uint_eq(take(8, 0, NOW, &got), 0);
    ck_assert_uint_eq(want(DRAINED, 2, 1, NOW), 1);
    ck_assert_uint_eq(take(8, 0, NOW, &got), 1);
    close_moves();
}
END_TEST

START_TEST(the_rate_holds_for_each_pair)
{
    open_moves(1000, 0);
    ck_assert(tierce__moves_may_flow(moves, 1, 2, NOW));
    tierce__moves_charge(moves, 1, 2, 3000, NOW);
    ck_assert(!tierce__moves_may_flow(moves, 1, 2, NOW + SECOND));
    ck_assert(tierce__moves_may_flow(moves, 2, 1, NOW + SECOND));
    ck_assert(tierce__moves_may_flow(moves, 1, 3, NOW + SECOND));
    ck_assert(tierce__moves_may_flow(moves, 1, 2, NOW + 3 * SECOND));
    close_moves();
}
END_TEST

/* Whichever allocation fails: the numbers stay right, and nothing is lost that was not refused. */
START_TEST(every_allocation_fails_once)
{
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        struct tierce__moves_popped got = {0};
        struct tierce__moves_stats stats;
        open_moves(1000, 0);
        tierce__alloc_fail_nth(n);
        size_t queued = want(DRAINED, 0, 20, NOW);
        int rc = tierce__moves_take(
            moves, &(struct tierce__moves_pop){.blocks_max = 5, .now_us = NOW}, &arena, &got);
        if (rc > 0) {
            tierce__moves_ended(moves, &got.lane, &got.blocks[0], TIERCE__MOVE_EXPIRED, NOW);
            tierce__moves_put_back(moves, &got, NOW, "");
        }
        (void)tierce__moves_may_flow(moves, 1, 2, NOW);
        failed = tierce__alloc_fail_nth(0) >= n;
        tierce__moves_stats(moves, &stats);
        ck_assert_uint_eq(queued + stats.refused[TIERCE__MOVE_DRAIN], 20);
        ck_assert_uint_ge(stats.queued[TIERCE__MOVE_DRAIN] + got.count, queued);
        ck_assert(rc > 0 || rc == -ENOMEM || queued == 0);
        close_moves();
    }
}
END_TEST

CHECK_MAIN("moves",
           .tests = {blocks_come_out_in_order_and_lanes_take_turns, each_reason_has_a_bound,
                     failures_and_missing_movers_are_told, a_lane_without_a_target_rests,
                     a_block_whose_move_failed_stays_out_for_a_while,
                     a_block_that_was_not_tried_does_not_rest,
                     a_lane_that_a_failed_block_leaves_ends, the_rate_holds_for_each_pair,
                     every_allocation_fails_once})
