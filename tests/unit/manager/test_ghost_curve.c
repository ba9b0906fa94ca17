/* SPDX-License-Identifier: Apache-2.0 */
/* Curves from a sample of the keys, compared with exact curves of the same requests. */
#include "check_main.h"

#include "base/alloc.h"
#include "ghost_trace.h"
#include "manager/pilot/ghost_curve.h"
#include "optimizer/replay/curve.h"
#include "optimizer/trace/intern.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>

#define BLOCK_BYTES 1048576.0
#define EPOCH_US    1000000

/* ---- the exact curve ------------------------------------------------------------------------- */

struct exact {
    struct tierce__curve *curve;
    struct tierce__intern *intern;
    uint64_t asked;
};

static void exact_open(struct exact *e)
{
    static const struct tierce__match prefix = {.kind = TIERCE__MATCH_PREFIX};
    *e = (struct exact){0};
    ck_assert_int_eq(tierce__curve_create(&e->curve, TIERCE__TOUCH_REV, &prefix, 1), 0);
    ck_assert_int_eq(tierce__intern_create(&e->intern), 0);
}

static void exact_add(struct exact *e, const uint64_t *keys, size_t count)
{
    uint32_t numbers[4096];
    ck_assert_uint_le(count, 4096);
    ck_assert_int_eq(tierce__intern_chain(e->intern, 0, keys, count, numbers), 0);
    ck_assert_int_eq(tierce__curve_request(e->curve, numbers, (uint32_t)count, (uint32_t)count), 0);
    e->asked += count;
}

static double exact_rate(const struct exact *e, double blocks)
{
    return (double)tierce__curve_hits(e->curve, 0, (uint64_t)blocks) / (double)e->asked;
}

static void exact_close(struct exact *e)
{
    tierce__curve_destroy(e->curve);
    tierce__intern_destroy(e->intern);
}

static void exact_of(struct exact *e, const struct ghost_load *load)
{
    exact_open(e);
    for (size_t i = 0; i < load->count; i++) {
        size_t count;
        const uint64_t *keys = ghost_load_at(load, i, &count);
        exact_add(e, keys, count);
    }
}

/* ---- the sampled curve ----------------------------------------------------------------------- */

static struct tierce__ghost_curve *open_curve(uint32_t blocks_max)
{
    struct tierce__ghost_curve *curve;
    ck_assert_int_eq(tierce__ghost_curve_create(&curve,
                                                &(struct tierce__ghost_curve_opts){
                                                    .size = sizeof(struct tierce__ghost_curve_opts),
                                                    .blocks_max = blocks_max,
                                                    .epoch_us = EPOCH_US}),
                     0);
    tierce__ghost_curve_advance(curve, 0, false);
    return curve;
}

/* A turn: the chain is looked up, then stored. */
static int add_turn(struct tierce__ghost_curve *curve, uint32_t member, uint64_t seed,
                    const uint64_t *keys, size_t count)
{
    uint64_t own[4096], asked[TIERCE__GHOST_CLASSES] = {0};
    ck_assert_uint_le(count, 4096);
    for (size_t i = 0; i < count; i++) {
        uint32_t class_ = tierce__ghost_class(i);
        own[i] = tierce__ghost_key(tierce__mix(keys[i] + tierce__spread(seed)), class_);
        asked[class_]++;
    }
    tierce__ghost_curve_count(curve, member, asked, 0);
    int rc = tierce__ghost_curve_read(curve, member, own, count, true);
    int wrote = tierce__ghost_curve_use(curve, member, own, count, true);
    return rc < 0 ? rc : wrote;
}

struct errors {
    double mean, largest;
    struct tierce__ghost_shape shape;
};

/* Runs a load through a sampled curve, and compares it with the exact curve of this load at 1/64 to
 * all of the load's distinct blocks. */
static struct errors compare(const struct exact *exact, const struct ghost_load *load,
                             uint32_t blocks_max, uint64_t seed)
{
    enum { POINTS = 32 };
    struct errors errors = {0};
    uint32_t member;
    struct tierce__ghost_curve *curve = open_curve(blocks_max);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
    for (size_t i = 0; i < load->count; i++) {
        size_t count;
        const uint64_t *keys = ghost_load_at(load, i, &count);
        ck_assert_int_eq(add_turn(curve, member, seed, keys, count), 0);
    }
    tierce__ghost_curve_shape(curve, EPOCH_US, &errors.shape);
    double distinct = tierce__curve_blocks(exact->curve);
    for (int i = 0; i < POINTS; i++) {
        double blocks = floor(distinct * pow(64, (double)(i - POINTS + 1) / (POINTS - 1)));
        double error = fabs(tierce__ghost_rate(&errors.shape, blocks * BLOCK_BYTES) -
                            exact_rate(exact, blocks));
        errors.mean += error / POINTS;
        errors.largest = fmax(errors.largest, error);
    }
    tierce__ghost_curve_destroy(curve);
    return errors;
}

static void make(struct ghost_load *load, uint64_t seed)
{
    *load = (struct ghost_load){0};
    ghost_load_make(
        load, &(struct ghost_load_opts){
                  .seed = seed, .requests = 10000, .sessions = 400, .prompts = 30, .turns = 12});
}

/* A sample of all keys differs only by the buckets of capacities. */
START_TEST(a_full_sample_is_exact)
{
    struct ghost_load load;
    struct exact exact;
    make(&load, 7);
    exact_of(&exact, &load);
    struct errors errors = compare(&exact, &load, 1 << 20, 1);
    ck_assert_double_eq(errors.shape.unit_bytes, BLOCK_BYTES);
    ck_assert_double_lt(errors.largest, 0.004);
    exact_close(&exact);
    ghost_load_free(&load);
}
END_TEST

/* Blocks of a power of two bytes lie at the ends of buckets: a cache of exactly as many bytes as a
 * hit needs has the hit. */
START_TEST(a_hit_needs_no_more_than_its_blocks)
{
    enum { BLOCKS = 10 };
    struct tierce__ghost_curve *curve = open_curve(1024);
    struct tierce__ghost_shape shape;
    uint64_t keys[BLOCKS];
    uint32_t member;
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 1, &member), 0);
    for (size_t i = 0; i < BLOCKS; i++)
        keys[i] = ghost_key(3, 1, i);
    ck_assert_int_eq(add_turn(curve, member, 1, keys, BLOCKS), 0);
    ck_assert_int_eq(add_turn(curve, member, 1, keys, BLOCKS), 0);
    tierce__ghost_curve_shape(curve, EPOCH_US, &shape);
    for (size_t i = 0; i <= BLOCKS; i++)
        ck_assert_double_eq(tierce__ghost_hits(&shape, (double)i * BLOCK_BYTES), (double)i);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

/* Blocks that nobody used for 64 epochs leave the sample when it is gone through. */
START_TEST(idle_blocks_leave_the_sample)
{
    struct tierce__ghost_curve *curve = open_curve(1024);
    struct tierce__ghost_shape shape;
    uint64_t keys[10];
    uint32_t member, other;
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 1, &member), 0);
    for (size_t i = 0; i < 10; i++)
        keys[i] = ghost_key(3, 1, i);
    ck_assert_int_eq(add_turn(curve, member, 1, keys, 10), 0);
    tierce__ghost_curve_advance(curve, 60 * EPOCH_US, false);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 1, &other), 0);
    tierce__ghost_curve_shape(curve, 60 * EPOCH_US, &shape);
    ck_assert_uint_eq(shape.blocks, 10);
    tierce__ghost_curve_advance(curve, 66 * EPOCH_US, false);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 1, &other), 0);
    tierce__ghost_curve_shape(curve, 66 * EPOCH_US, &shape);
    ck_assert_uint_eq(shape.blocks, 0);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

/*
 * The bounds that ghost.md states, for seeds that draw other samples. The error falls with the root
 * of the sample: a curve has 8,192 blocks, or 4,096 for a single instance.
 */
static const struct {
    uint32_t blocks_max;
    double mean, largest;
} bounds[] = {{2048, 0.03, 0.05}, {4096, 0.02, 0.035}, {8192, 0.012, 0.03}};

static void check_bounds(const struct exact *exact, const struct ghost_load *load, const char *name,
                         uint64_t seed)
{
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        struct errors errors = compare(exact, load, bounds[i].blocks_max, seed);
        ck_assert_uint_le(errors.shape.blocks, bounds[i].blocks_max);
        ck_assert_double_gt(errors.shape.unit_bytes, 2 * BLOCK_BYTES); /* it is a sample */
        ck_assert_msg(errors.mean < bounds[i].mean && errors.largest < bounds[i].largest,
                      "%s seed %llu, %u blocks: the errors are %.4f (mean) and %.4f (largest)",
                      name, (unsigned long long)seed, bounds[i].blocks_max, errors.mean,
                      errors.largest);
    }
}

START_TEST(the_error_of_a_sample_is_bounded)
{
    struct ghost_load load;
    struct exact exact;
    make(&load, 100 + (uint64_t)_i);
    exact_of(&exact, &load);
    check_bounds(&exact, &load, "made up", 1000 + (uint64_t)_i);
    exact_close(&exact);
    ghost_load_free(&load);
}
END_TEST

static const char *const traces[] = {"mooncake_conversation.jsonl", "mooncake_synthetic.jsonl",
                                     "coding_agents.jsonl.gz"};

enum { TRACES = sizeof(traces) / sizeof(traces[0]) };

START_TEST(the_error_on_real_traces_is_bounded)
{
    struct ghost_load load = {0};
    struct exact exact;
    if (!ghost_load_read(&load, traces[_i]))
        return;
    exact_of(&exact, &load);
    for (uint64_t seed = 20; seed < 24; seed++)
        check_bounds(&exact, &load, traces[_i], seed);
    exact_close(&exact);
    ghost_load_free(&load);
}
END_TEST

/* ---- members of one curve -------------------------------------------------------------------- */

/* Two instances, whose keys have one and three MiB and so many tokens, alternate. Exact is a curve
 * of MiB: a large block is three small ones that are always used together. */
static void compare_sizes(uint32_t blocks_max, double mean_max)
{
    enum { POINTS = 24 };
    struct ghost_load load;
    struct exact exact;
    struct tierce__ghost_shape shape;
    uint32_t members[2];
    double mean = 0, distinct;
    struct tierce__ghost_curve *curve = open_curve(blocks_max);
    make(&load, 55);
    exact_open(&exact);
    for (int m = 0; m < 2; m++)
        ck_assert_int_eq(tierce__ghost_curve_add(curve, (1 + 2 * m) * BLOCK_BYTES, 16 * (1 + 2 * m),
                                                 &members[m]),
                         0);
    for (size_t i = 0; i < load.count; i++) {
        uint64_t parts[3 * GHOST_LOAD_CHAIN_MAX];
        size_t count, part_count = 0;
        const uint64_t *keys = ghost_load_at(&load, i, &count);
        size_t size = i % 2 == 0 ? 1 : 3;
        for (size_t k = 0; k < count; k++) {
            for (size_t p = 0; p < size; p++)
                parts[part_count++] = tierce__mix(keys[k] + i % 2) + p;
        }
        exact_add(&exact, parts, part_count);
        ck_assert_int_eq(add_turn(curve, members[i % 2], 3, keys, count), 0);
    }
    tierce__ghost_curve_shape(curve, EPOCH_US, &shape);
    distinct = tierce__curve_blocks(exact.curve);
    ck_assert_double_eq(shape.asked, (double)exact.asked * 16);
    for (int i = 0; i < POINTS; i++) {
        double blocks = floor(distinct * pow(64, (double)(i - POINTS + 1) / (POINTS - 1)));
        mean +=
            fabs(tierce__ghost_rate(&shape, blocks * BLOCK_BYTES) - exact_rate(&exact, blocks)) /
            POINTS;
    }
    ck_assert_msg(mean < mean_max, "the mean error is %.4f", mean);
    exact_close(&exact);
    ghost_load_free(&load);
    tierce__ghost_curve_destroy(curve);
}

START_TEST(members_count_by_their_bytes)
{
    compare_sizes(1 << 20, 0.004);
    compare_sizes(8192, 0.012);
    compare_sizes(4096, 0.02);
}
END_TEST

static void run_load(struct tierce__ghost_curve *curve, uint32_t member,
                     const struct ghost_load *load, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        size_t count;
        const uint64_t *keys = ghost_load_at(load, i, &count);
        ck_assert_int_eq(add_turn(curve, member, 9, keys, count), 0);
    }
}

/* A removed member leaves, and blocks of the others keep their order. */
START_TEST(a_member_can_be_removed)
{
    struct ghost_load load;
    struct tierce__ghost_shape shape;
    uint32_t member, other, again;
    struct tierce__ghost_curve *curve = open_curve(4096);
    make(&load, 3);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &other), 0);
    run_load(curve, member, &load, 0, 10);
    tierce__ghost_curve_shape(curve, 0, &shape);
    uint32_t blocks = shape.blocks;
    run_load(curve, other, &load, 0, 20);
    tierce__ghost_curve_remove(curve, other);
    tierce__ghost_curve_advance(curve, 9 * EPOCH_US, false); /* the lookups so far do not count */
    tierce__ghost_curve_shape(curve, 9 * EPOCH_US, &shape);
    ck_assert_uint_eq(shape.blocks, blocks);
    ck_assert_double_eq(shape.asked, 0);
    run_load(curve, member, &load, 0, 10);
    tierce__ghost_curve_shape(curve, 9 * EPOCH_US, &shape);
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 2.0 * blocks * BLOCK_BYTES), 1, 1e-9);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &again), 0);
    ck_assert_uint_eq(again, other);
    ghost_load_free(&load);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

/* Larger keys than before: the unit grows with them, and the sample of the others shrinks. */
START_TEST(keys_may_turn_out_larger)
{
    struct ghost_load load;
    struct tierce__ghost_shape before, after;
    uint32_t member, other;
    struct tierce__ghost_curve *curve = open_curve(1 << 20);
    make(&load, 3);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &other), 0);
    run_load(curve, member, &load, 0, load.count);
    tierce__ghost_curve_shape(curve, 0, &before);
    tierce__ghost_curve_resize(curve, other, 1.1 * BLOCK_BYTES);
    ck_assert_uint_eq(tierce__ghost_curve_bound(curve, member), UINT64_MAX); /* too little */
    tierce__ghost_curve_resize(curve, other, 4 * BLOCK_BYTES);
    ck_assert_uint_eq(tierce__ghost_curve_bound(curve, other), UINT64_MAX);
    ck_assert_uint_eq(tierce__ghost_curve_bound(curve, member), UINT64_MAX / 4 + 1);
    tierce__ghost_curve_shape(curve, 0, &after);
    ck_assert_double_eq(after.unit_bytes, 4 * BLOCK_BYTES);
    ck_assert_uint_lt(after.blocks, before.blocks / 3);
    ck_assert_uint_gt(after.blocks, before.blocks / 5);
    ghost_load_free(&load);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

/* Blocks out of reach are dropped, so the sample of the others stays dense. */
START_TEST(a_reach_keeps_the_sample_dense)
{
    struct ghost_load load;
    struct tierce__ghost_shape all, near;
    uint32_t member;
    make(&load, 4);
    for (int is_near = 0; is_near < 2; is_near++) {
        struct tierce__ghost_curve *curve = open_curve(4096);
        ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
        tierce__ghost_curve_set_reach(curve, is_near ? 3000 * BLOCK_BYTES : 0);
        run_load(curve, member, &load, 0, load.count);
        tierce__ghost_curve_shape(curve, 0, is_near ? &near : &all);
        tierce__ghost_curve_destroy(curve);
    }
    ck_assert_double_gt(all.unit_bytes, 4 * BLOCK_BYTES);
    ck_assert_double_eq(near.unit_bytes, BLOCK_BYTES);
    ck_assert_double_eq_tol(tierce__ghost_rate(&near, 2000 * BLOCK_BYTES),
                            tierce__ghost_rate(&all, 2000 * BLOCK_BYTES), 0.03);
    ghost_load_free(&load);
}
END_TEST

/* A sample that became small is enlarged, and is complete a window later. */
START_TEST(a_small_sample_is_refined)
{
    struct ghost_load load;
    struct tierce__ghost_shape shape;
    uint32_t member;
    int64_t now_us = 0;
    struct tierce__ghost_curve *curve = open_curve(4096);
    make(&load, 5);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
    run_load(curve, member, &load, 0, load.count);
    tierce__ghost_curve_shape(curve, now_us, &shape);
    double unit = shape.unit_bytes;
    ck_assert_double_ge(unit, 8 * BLOCK_BYTES);
    for (int e = 0; e < 64 + 200; e++) {
        now_us += EPOCH_US;
        tierce__ghost_curve_advance(curve, now_us, true);
        run_load(curve, member, &load, 0, 3);
        if (e == 65) /* the old blocks go when they are idle for 64 epochs and one is needed */
            tierce__ghost_curve_coarsen(curve);
        tierce__ghost_curve_shape(curve, now_us, &shape);
        ck_assert(shape.unit_bytes <= unit || e == 65);
        ck_assert(shape.unit_bytes == unit || e == 65 || !shape.is_warm);
        unit = shape.unit_bytes;
    }
    ck_assert_double_eq(unit, BLOCK_BYTES);
    ck_assert(shape.is_warm);
    ghost_load_free(&load);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

/* A curve is complete a window of eight epochs after it was begun, was refined or has lost its
 * sample for lack of memory; it is refined no sooner. */
START_TEST(a_sample_is_complete_a_window_later)
{
    enum { WINDOW = 8, KEYS = 300 };
    struct tierce__ghost_curve *curve = open_curve(4096);
    struct tierce__ghost_shape shape;
    uint64_t keys[KEYS];
    uint32_t member;
    int64_t now_us = 0;
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 1, &member), 0);
    for (size_t i = 0; i < KEYS; i++)
        keys[i] = ghost_key(3, 1, i);
    ck_assert_int_eq(add_turn(curve, member, 1, keys, 10), 0);
    tierce__ghost_curve_coarsen(curve);
    tierce__ghost_curve_coarsen(curve);
    tierce__ghost_curve_advance(curve, now_us, true);
    for (int e = 1; e <= 3 * WINDOW; e++) {
        tierce__ghost_curve_advance(curve, now_us += EPOCH_US, true);
        tierce__ghost_curve_shape(curve, now_us, &shape);
        ck_assert(shape.unit_bytes == (4 >> (e / WINDOW < 2 ? e / WINDOW : 2)) * BLOCK_BYTES);
        ck_assert_int_eq(shape.is_warm, e == 3 * WINDOW);
    }
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__ghost_curve_use(curve, member, keys, KEYS, true), -ENOMEM);
    tierce__alloc_fail_nth(0);
    for (int e = 0; e <= WINDOW; e++) {
        tierce__ghost_curve_shape(curve, now_us, &shape);
        ck_assert_uint_eq(shape.blocks, 0);
        ck_assert_int_eq(shape.is_warm, e == WINDOW);
        tierce__ghost_curve_advance(curve, now_us += EPOCH_US, true);
    }
    tierce__ghost_curve_destroy(curve);
}
END_TEST

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* The heap while a curve has as much as it may have: glibc's own count. */
START_TEST(memory_is_bounded)
{
    struct ghost_load load;
    uint32_t member;
    make(&load, 6);
    size_t loaded = heap_bytes(), most = 0;
    struct tierce__ghost_curve *curve = open_curve(8192);
    ck_assert_int_eq(tierce__ghost_curve_add(curve, BLOCK_BYTES, 16, &member), 0);
    for (size_t i = 0; i + 10 <= load.count; i += 10) {
        run_load(curve, member, &load, i, i + 10);
        size_t now = heap_bytes() - loaded;
        most = now > most ? now : most;
    }
    size_t bound = tierce__ghost_curve_bytes_max(8192);
    ck_assert_msg(most <= bound, "a curve takes %zu bytes; the bound is %zu", most, bound);
    ck_assert_msg(most == 0 || most > bound / 2, "%zu of %zu bytes", most, bound);
    ghost_load_free(&load);
    tierce__ghost_curve_destroy(curve);
}
END_TEST

CHECK_MAIN("ghost_curve", .seconds = 60,
           .tests = {a_full_sample_is_exact, a_hit_needs_no_more_than_its_blocks,
                     idle_blocks_leave_the_sample, members_count_by_their_bytes,
                     a_member_can_be_removed, keys_may_turn_out_larger,
                     a_reach_keeps_the_sample_dense, a_small_sample_is_refined,
                     a_sample_is_complete_a_window_later, memory_is_bounded},
           .loops = {{the_error_of_a_sample_is_bounded, 0, 6},
                     {the_error_on_real_traces_is_bounded, 0, TRACES}})
