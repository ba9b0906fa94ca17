/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of live requests: until requests drop out of it, it equals a sweep over all requests;
 * old requests fade, by the clock of their source; memory is bounded; a sample represents the
 * whole.
 */
#include "check_main.h"
#include "optimizer/live/live.h"
#include "random_recording.h"

#include <math.h>
#include <string.h>

enum { BLOCKS = 60, REQUESTS = 200, CACHES = 6, CAPACITIES = 3 };

static const uint64_t capacities[CAPACITIES] = {3, 17, 50};
static const enum tierce__touch_order rev = TIERCE__TOUCH_REV;
static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0}, {TIERCE__MATCH_ANY, 0}};

static size_t find_caches(struct tierce__cache caches[CACHES], const char *const *names)
{
    size_t count = 0;
    for (; names[count] != NULL; count++)
        ck_assert_int_eq(tierce__cache_find(&caches[count], names[count]), 0);
    return count;
}

static struct tierce__sweep_opts sweep_opts(const struct tierce__cache *caches, size_t count)
{
    return (struct tierce__sweep_opts){.size = sizeof(struct tierce__sweep_opts),
                                       .caches = caches,
                                       .cache_count = count,
                                       .orders = &rev,
                                       .order_count = 1,
                                       .matches = matches,
                                       .match_count = 2,
                                       .capacities = capacities,
                                       .capacity_count = CAPACITIES,
                                       .threads = 1};
}

static struct tierce__live_window *make_window(uint64_t blocks_max, uint64_t fade_us)
{
    struct tierce__live_window *window;
    ck_assert_int_eq(tierce__live_window_create(&window,
                                                &(struct tierce__live_window_opts){
                                                    .size = sizeof(struct tierce__live_window_opts),
                                                    .blocks_max = blocks_max,
                                                    .fade_us = fade_us}),
                     0);
    return window;
}

static struct tierce__live_result look(const struct tierce__live_window *window,
                                       const struct tierce__sweep_opts *opts, uint64_t sample,
                                       uint64_t now_ns)
{
    struct tierce__live_picture picture;
    struct tierce__live_result result;
    ck_assert_int_eq(tierce__live_window_take(window, &picture, now_ns), 0);
    ck_assert_int_eq(tierce__live_sweep(&result, &picture, opts, sample), 0);
    tierce__live_picture_clear(&picture);
    return result;
}

/* One cache by prefix. */
static double rate_at(const struct tierce__live_window *window, uint64_t capacity, uint64_t now_ns)
{
    static const char *const names[] = {"lru", NULL};
    struct tierce__cache caches[CACHES];
    struct tierce__sweep_opts opts = sweep_opts(caches, find_caches(caches, names));
    opts.capacities = &capacity;
    opts.capacity_count = opts.match_count = 1;
    struct tierce__live_result result = look(window, &opts, 0, now_ns);
    double rate = tierce__sweep_rate(&result.sweep.rows[0]);
    tierce__live_result_clear(&result);
    return rate;
}

static void add(struct tierce__live_window *window, uint32_t source, int64_t time_us,
                const uint64_t *ids, uint32_t count, uint64_t now_ns)
{
    ck_assert_int_eq(
        tierce__live_window_add(window, source,
                                &(struct tierce__trace_request){.time_us = time_us,
                                                                .kind = TIERCE__TRACE_TURN,
                                                                .count = count,
                                                                .read_count = count,
                                                                .blocks = ids},
                                now_ns),
        0);
}

/* Request r generated r tokens, or too many for a recording. */
static void check_outputs(const struct tierce__live_window *window)
{
    struct tierce__live_picture picture;
    uint32_t r = 0;
    ck_assert_int_eq(tierce__live_window_take(window, &picture, REQUESTS), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(picture.recording); q != NULL;
         q = tierce__recording_next(picture.recording, q), r++)
        ck_assert_uint_eq(q->output_tokens, r % 2 == 0 ? r : UINT32_MAX);
    ck_assert_uint_eq(r, REQUESTS);
    tierce__live_picture_clear(&picture);
}

START_TEST(a_window_that_holds_all_is_a_sweep)
{
    static const char *const names[] = {"lru",    "leaf-lru", "lfu", "s3fifo",
                                        "belady", "infinite", NULL};
    struct test_random random = test_random_start("test_prop_live");
    struct tierce__cache caches[CACHES];
    struct tierce__sweep_opts opts = sweep_opts(caches, find_caches(caches, names));
    for (unsigned i = 0; i < 5 * test_scale(); i++) {
        struct tierce__live_window *window = make_window(0, 0);
        struct tierce__recording *recording;
        struct tierce__sweep sweep;
        ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
        for (uint32_t r = 0; r < REQUESTS; r++) {
            uint64_t ids[RECORDING_DEPTH];
            uint32_t count = random_chain(&random, BLOCKS, ids);
            struct tierce__trace_request request = {
                .time_us = r,
                .kind = (enum tierce__trace_kind)test_random_below(&random, 3),
                .count = count,
                .read_count = count,
                .blocks = ids,
                .output_tokens = r % 2 == 0 ? r : UINT64_MAX - r};
            ck_assert_int_eq(tierce__live_window_add(window, 0, &request, r), 0);
            if (request.kind == TIERCE__TRACE_READ)
                request.kind = TIERCE__TRACE_TURN;
            ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
        }
        ck_assert_int_eq(tierce__recording_seal(recording), 0);
        ck_assert_int_eq(tierce__sweep_run(&sweep, recording, &opts), 0);
        struct tierce__live_result result = look(window, &opts, 0, REQUESTS);
        ck_assert_uint_eq(result.sweep.row_count, sweep.row_count);
        for (size_t row = 0; row < sweep.row_count; row++) {
            ck_assert_uint_eq(result.sweep.rows[row].hits, sweep.rows[row].hits);
            ck_assert_uint_eq(result.sweep.rows[row].blocks, sweep.rows[row].blocks);
        }
        check_outputs(window);
        tierce__live_result_clear(&result);
        tierce__sweep_clear(&sweep);
        tierce__recording_destroy(recording);
        tierce__live_window_destroy(window);
    }
}
END_TEST

/* A block that misses at 0 s and hits at 1 s; half of the first counts. */
START_TEST(what_is_old_counts_less)
{
    const uint64_t id = 7, s = 1000000000;
    struct tierce__live_window *window = make_window(0, 1000000);
    add(window, 0, 0, &id, 1, 0);
    add(window, 0, 1000000, &id, 1, s);
    ck_assert_double_le(fabs(rate_at(window, 10, s) - 1 / 1.5), 0.001);
    /* Without new requests both fade equally. */
    ck_assert_double_le(fabs(rate_at(window, 10, 3 * s) - 1 / 1.5), 0.005);
    add(window, 0, 11100000, &id, 1, 12 * s);
    ck_assert_uint_eq(tierce__live_window_seen(window), 3);
    /* The first two are more than ten times the fading old and have left: the third misses. */
    ck_assert_double_eq(rate_at(window, 10, 12 * s), 0);
    tierce__live_window_destroy(window);
}
END_TEST

/* A working set that shifts: soon the curve is that of the second one. */
START_TEST(the_curve_follows_the_workload)
{
    struct tierce__live_window *window = make_window(0, 1000), *whole = make_window(0, 0);
    for (uint64_t r = 0; r < 10000; r++) {
        /* First each block comes once, then ten take turns. */
        const uint64_t id = r < 8000 ? r : 100000 + r % 10;
        add(window, 0, (int64_t)r, &id, 1, r * 1000);
        add(whole, 0, (int64_t)r, &id, 1, r * 1000);
        if (r == 7999)
            ck_assert_double_eq(rate_at(window, 20, r * 1000), 0);
    }
    ck_assert_double_le(rate_at(whole, 20, 10000000), 0.21);
    ck_assert_double_ge(rate_at(window, 20, 10000000), 0.7);
    tierce__live_window_destroy(window);
    tierce__live_window_destroy(whole);
}
END_TEST

START_TEST(memory_is_bounded)
{
    struct tierce__live_window *window = make_window(1000, 0);
    struct tierce__live_picture picture;
    for (uint64_t r = 0; r < 20000; r++) {
        const uint64_t ids[] = {1, 10 + r, 100000 + r};
        add(window, 0, (int64_t)r, ids, 3, r * 1000);
    }
    ck_assert_int_eq(tierce__live_window_take(window, &picture, 20000000), 0);
    struct tierce__recording_totals held = tierce__recording_totals(picture.recording);
    ck_assert_uint_le(held.blocks, 1000);
    ck_assert_uint_ge(held.requests, 200);
    ck_assert_uint_eq(picture.totals.requests, 20000);
    ck_assert_uint_eq(picture.totals.blocks, 60000);
    ck_assert_uint_eq(picture.left, 20000 - held.requests);
    ck_assert_uint_gt(picture.fade_us, 0);
    tierce__live_picture_clear(&picture);
    /* A third hits, although the window began empty again and again. */
    ck_assert_double_le(fabs(rate_at(window, 100, 20000000) - 1.0 / 3), 0.01);
    tierce__live_window_destroy(window);
}
END_TEST

/* The same ids of two sources are other blocks, and the clock of one says nothing of the other's.
 */
START_TEST(sources_stay_apart)
{
    const uint64_t id = 5, s = 1000000000;
    struct tierce__live_window *window = make_window(0, 1000000);
    add(window, 0, 0, &id, 1, s);
    add(window, 1, 1763975741000000, &id, 1, s);
    ck_assert_double_eq(rate_at(window, 10, s), 0);
    add(window, 0, 0, &id, 1, s);
    ck_assert_double_le(fabs(rate_at(window, 10, s) - 1.0 / 3), 0.001);
    add(window, 1, 1763975741000000, &id, 1, s);
    ck_assert_double_le(fabs(rate_at(window, 10, s) - 0.5), 0.001);
    tierce__live_window_destroy(window);
}
END_TEST

/* Conversations of which some come back; a sample has whole ones. */
START_TEST(a_part_stands_for_the_whole)
{
    static const char *const names[] = {"lru", "lfu", "s3fifo", NULL};
    struct test_random random = test_random_start("test_prop_live");
    struct tierce__live_window *window = make_window(0, 0);
    const uint64_t sizes[] = {2000, 8000};
    struct tierce__cache caches[CACHES];
    struct tierce__sweep_opts opts = sweep_opts(caches, find_caches(caches, names));
    opts.capacities = sizes;
    opts.capacity_count = 2;
    for (uint32_t r = 0; r < 20000; r++) {
        uint64_t ids[6], conversation = test_random_below(&random, 4000);
        uint32_t count = 2 + (uint32_t)conversation % 5;
        for (uint32_t i = 0; i < count; i++)
            ids[i] = conversation * 100 + i;
        add(window, 0, r, ids, count, r * 1000);
    }
    struct tierce__live_result all = look(window, &opts, UINT64_MAX, 20000000);
    struct tierce__live_result part = look(window, &opts, 20000, 20000000);
    ck_assert_double_eq(all.share, 1);
    ck_assert_double_le(fabs(part.share - 0.25), 0.1);
    ck_assert_double_gt(part.error_max, 0);
    ck_assert_double_le(part.error_max, 0.05);
    ck_assert_uint_eq(all.sweep.row_count, part.sweep.row_count);
    for (size_t i = 0; i < all.sweep.row_count; i++) {
        const struct tierce__sweep_row *a = &all.sweep.rows[i], *b = &part.sweep.rows[i];
        ck_assert_uint_eq(a->capacity, b->capacity);
        if (strcmp(a->cache->name, "lru") == 0)
            ck_assert_uint_eq(a->hits, b->hits);
        else
            ck_assert_double_le(fabs(tierce__sweep_rate(a) - tierce__sweep_rate(b)), 0.05);
    }
    tierce__live_result_clear(&all);
    tierce__live_result_clear(&part);
    tierce__live_window_destroy(window);
}
END_TEST

CHECK_MAIN("live", .seconds = 60,
           .tests = {a_window_that_holds_all_is_a_sweep, what_is_old_counts_less,
                     the_curve_follows_the_workload, memory_is_bounded, sources_stay_apart,
                     a_part_stands_for_the_whole})
