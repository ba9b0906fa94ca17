/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "check_main.h"
#include "optimizer/trace/filter.h"
#include "optimizer/analysis/groups.h"
#include "optimizer/replay/scale.h"
#include "optimizer/replay/jobs.h"
#include "random_recording.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Groups with caches of their own against replays of their requests; the split of a budget against
 * all splits; a part of a trace against the whole. */

enum { BLOCKS = 60, REQUESTS = 150, GROUPS = 3, INSTANCES = 5 };

static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0}, {TIERCE__MATCH_ANY, 0}};
static const enum tierce__touch_order orders[] = {TIERCE__TOUCH_REV};

static struct tierce__sweep_opts sweep_opts(const struct tierce__cache *caches, size_t count)
{
    return (struct tierce__sweep_opts){.size = sizeof(struct tierce__sweep_opts),
                                       .caches = caches,
                                       .cache_count = count,
                                       .orders = orders,
                                       .order_count = 1,
                                       .matches = matches,
                                       .match_count = 2};
}

/* Hits of one group's requests alone, in one cache. */
static uint64_t hits_of(const struct tierce__recording *recording, const uint32_t *group_of,
                        uint32_t group, const struct tierce__cache *cache, uint64_t capacity,
                        const struct tierce__match *match)
{
    struct tierce__replay *r;
    struct tierce__replay_opts opts = {.size = sizeof(opts),
                                       .distinct = tierce__recording_totals(recording).distinct,
                                       .matches = match,
                                       .match_count = 1};
    struct tierce__sim_point point = {.cache = cache, .capacity = capacity};
    ck_assert_int_eq(tierce__sim_replay(&r, &point, &opts), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
         q = tierce__recording_next(recording, q)) {
        if (group_of[q->instance] == group)
            ck_assert_int_eq(tierce__replay_request(r, q), 0);
    }
    uint64_t hits = tierce__replay_result(r)->hits[0];
    tierce__replay_destroy(r);
    return hits;
}

START_TEST(a_group_is_a_replay_of_its_requests)
{
    static const char *const names[] = {"lru", "leaf-lru", "sieve", "infinite", "belady"};
    struct test_random random = test_random_start("test_prop_groups");
    struct tierce__cache caches[5];
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(tierce__cache_find(&caches[i], names[i]), 0);
    for (unsigned i = 0; i < 15 * test_scale(); i++) {
        struct recording_shape shape = {
            .requests = REQUESTS, .blocks = BLOCKS, .instances = INSTANCES, .internal = i % 2 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__group_spec specs[GROUPS];
        uint32_t group_of[INSTANCES];
        uint64_t left_out = 0;
        for (uint32_t k = 0; k < INSTANCES; k++)
            group_of[k] = k == 4 ? TIERCE__GROUP_NONE : test_random_below(&random, GROUPS);
        for (size_t g = 0; g < GROUPS; g++)
            specs[g] = (struct tierce__group_spec){"g", 1 + test_random_below(&random, 40)};
        for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
             q = tierce__recording_next(recording, q))
            left_out += q->instance == 4;
        struct tierce__groups groups;
        ck_assert_int_eq(tierce__groups_run(&groups, recording,
                                            &(struct tierce__groups_opts){
                                                .size = sizeof(struct tierce__groups_opts),
                                                .groups = specs,
                                                .group_count = GROUPS,
                                                .group_of = group_of,
                                                .sweep = sweep_opts(caches, 5)}),
                         0);
        ck_assert_uint_eq(groups.left_out, left_out);
        ck_assert_uint_eq(groups.row_count, (GROUPS + 1) * 5 * 2);
        for (size_t n = 0; n < groups.row_count; n++) {
            const struct tierce__groups_row *row = &groups.rows[n];
            uint64_t hits = 0, requests = 0;
            if (row->group < GROUPS && row->row.cache->kind != TIERCE__CACHE_BELADY) {
                ck_assert_uint_eq(row->row.hits,
                                  hits_of(recording, group_of, row->group, row->row.cache,
                                          specs[row->group].capacity, &row->row.match));
                continue;
            }
            for (size_t k = 0; k < groups.row_count && row->group == GROUPS; k++) {
                if (groups.rows[k].group == GROUPS || groups.rows[k].row.cache != row->row.cache ||
                    groups.rows[k].row.match.kind != row->row.match.kind)
                    continue;
                hits += groups.rows[k].row.hits;
                requests += groups.rows[k].row.requests;
            }
            if (row->group == GROUPS) {
                ck_assert_uint_eq(row->row.hits, hits);
                ck_assert_uint_eq(row->row.requests, requests);
                ck_assert_uint_eq(requests, REQUESTS - left_out);
            }
        }
        tierce__groups_clear(&groups);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- the best split -------------------------------------------------------------------------- */

enum { CURVE = 9 };

/* The maximum number of hits over all splits of the budget. */
static uint64_t best_split(uint64_t curves[GROUPS][CURVE], const uint64_t *lengths, size_t group,
                           uint64_t budget)
{
    uint64_t best = 0;
    if (group == GROUPS)
        return 0;
    for (uint64_t c = 0; c < lengths[group] && c <= budget; c++) {
        uint64_t hits = curves[group][c] + best_split(curves, lengths, group + 1, budget - c);
        best = hits > best ? hits : best;
    }
    return best;
}

static void draw_curve(struct test_random *random, uint64_t *curve, uint64_t length, bool concave)
{
    uint64_t slope = 20;
    curve[0] = 0;
    for (uint64_t c = 1; c < length; c++) {
        slope = concave ? test_random_below(random, (uint32_t)slope + 1)
                        : test_random_below(random, 2) * test_random_below(random, 20);
        curve[c] = curve[c - 1] + slope;
    }
}

START_TEST(the_split_lies_between_the_curves_and_their_hulls)
{
    struct test_random random = test_random_start("test_prop_groups");
    for (unsigned i = 0; i < 400 * test_scale(); i++) {
        uint64_t curves[GROUPS][CURVE], lengths[GROUPS], capacities[GROUPS], budget, sum = 0;
        const uint64_t *pointers[GROUPS];
        double hull_hits[GROUPS], hull = 0;
        uint64_t hits = 0;
        bool concave = i % 2 == 0;
        for (size_t g = 0; g < GROUPS; g++) {
            lengths[g] = 1 + test_random_below(&random, CURVE);
            draw_curve(&random, curves[g], lengths[g], concave);
            pointers[g] = curves[g];
        }
        budget = test_random_below(&random, GROUPS * CURVE);
        ck_assert_int_eq(
            tierce__split_hulls(pointers, lengths, GROUPS, budget, capacities, hull_hits), 0);
        for (size_t g = 0; g < GROUPS; g++) {
            ck_assert_uint_lt(capacities[g], lengths[g]);
            ck_assert(hull_hits[g] >= (double)curves[g][capacities[g]] - 1e-9);
            sum += capacities[g];
            hits += curves[g][capacities[g]];
            hull += hull_hits[g];
        }
        uint64_t best = best_split(curves, lengths, 0, budget);
        ck_assert_uint_le(sum, budget);
        ck_assert_uint_le(hits, best);
        ck_assert(hull >= (double)best - 1e-6);
        if (concave)
            ck_assert_uint_eq(hits, best);
    }
}
END_TEST

START_TEST(a_split_is_that_of_the_groups_curves)
{
    struct test_random random = test_random_start("test_prop_groups");
    struct tierce__cache lru;
    ck_assert_int_eq(tierce__cache_find(&lru, "lru"), 0);
    for (unsigned i = 0; i < 10 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .instances = GROUPS,
                                        .reads_and_writes = i == 3};
        struct tierce__recording *recording = random_recording(&random, &shape);
        uint32_t group_of[GROUPS] = {0, 1, 2};
        struct tierce__group_spec specs[GROUPS] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
        uint64_t budget = test_random_below(&random, 2 * BLOCKS), capacity = 0;
        struct tierce__split split;
        ck_assert_int_eq(tierce__split_run(&split, recording,
                                           &(struct tierce__groups_opts){
                                               .size = sizeof(struct tierce__groups_opts),
                                               .groups = specs,
                                               .group_count = GROUPS,
                                               .group_of = group_of},
                                           budget),
                         0);
        ck_assert_uint_eq(split.part_count, GROUPS);
        ck_assert_uint_eq(split.requests, REQUESTS);
        ck_assert_int_eq(split.is_exact, i != 3);
        ck_assert(split.hull_hits >= (double)split.hits - 1e-6);
        ck_assert_uint_le(split.hits, split.hits_max);
        for (uint32_t g = 0; g < GROUPS; g++) {
            const struct tierce__split_part *part = &split.parts[g];
            capacity += part->capacity;
            if (split.is_exact && part->capacity > 0)
                ck_assert_uint_eq(
                    part->hits, hits_of(recording, group_of, g, &lru, part->capacity, &matches[0]));
            if (split.is_exact)
                ck_assert_uint_eq(part->hits_max, hits_of(recording, group_of, g, &lru,
                                                          TIERCE__CAPACITY_UNLIMITED, &matches[0]));
        }
        ck_assert_uint_le(capacity, budget);
        tierce__split_clear(&split);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- a part of a trace ----------------------------------------------------------------------- */

static bool is_odd(void *arg, const struct tierce__recorded *request)
{
    (void)arg;
    return request->count % 2 == 1;
}

START_TEST(a_filter_keeps_all_of_a_request)
{
    struct test_random random = test_random_start("test_prop_groups");
    struct recording_shape shape = {.requests = REQUESTS,
                                    .blocks = BLOCKS,
                                    .instances = 2,
                                    .gap_us = 9,
                                    .reads_and_writes = true,
                                    .internal = true,
                                    .bytes = true,
                                    .sessions = true};
    struct tierce__recording *recording = random_recording(&random, &shape), *kept;
    ck_assert_int_eq(tierce__recording_filter(&kept, recording, is_odd, NULL, NULL), 0);
    const struct tierce__recorded *k = tierce__recording_first(kept);
    uint32_t number[4 * BLOCKS];
    memset(number, 0xff, sizeof(number));
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->count % 2 == 0)
            continue;
        ck_assert_ptr_nonnull(k);
        ck_assert_int_eq(k->time_us, r->time_us);
        ck_assert_uint_eq(k->session, r->session);
        ck_assert_uint_eq(k->instance, r->instance);
        ck_assert_uint_eq(k->count, r->count);
        ck_assert_uint_eq(k->read_count, r->read_count);
        ck_assert_uint_eq(k->kind, r->kind);
        ck_assert_uint_eq(k->output_tokens, r->output_tokens);
        for (uint32_t i = 0; i < r->count; i++) {
            uint32_t block = tierce__recorded_blocks(r)[i];
            if (number[block] == UINT32_MAX)
                number[block] = tierce__recorded_blocks(k)[i];
            ck_assert_uint_eq(tierce__recorded_blocks(k)[i], number[block]);
            ck_assert_uint_eq(tierce__recorded_bytes(k)[i], tierce__recorded_bytes(r)[i]);
            ck_assert_uint_eq(tierce__recorded_internal(k)[i], tierce__recorded_internal(r)[i]);
        }
        k = tierce__recording_next(kept, k);
    }
    ck_assert_ptr_null(k);
    tierce__recording_destroy(kept);
    tierce__recording_destroy(recording);
}
END_TEST

START_TEST(a_part_that_is_all_has_no_error)
{
    struct test_random random = test_random_start("test_prop_groups");
    static const uint64_t capacities[] = {3, 10, TIERCE__CAPACITY_UNLIMITED, 30};
    struct tierce__cache caches[3];
    ck_assert_int_eq(tierce__cache_find(&caches[0], "sieve"), 0);
    ck_assert_int_eq(tierce__cache_find(&caches[1], "infinite"), 0);
    ck_assert_int_eq(tierce__cache_find(&caches[2], "belady"), 0);
    for (unsigned i = 0; i < 5 * test_scale(); i++) {
        struct recording_shape shape = {
            .requests = REQUESTS, .blocks = BLOCKS, .sessions = i % 2 == 0};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__sweep_opts opts = sweep_opts(caches, 3);
        struct tierce__scaled all, half;
        struct tierce__sweep whole;
        opts.capacities = capacities;
        opts.capacity_count = 4;
        opts.seed = i;
        ck_assert_int_eq(tierce__scale_run(&all, recording, 1, &opts), 0);
        ck_assert_int_eq(tierce__sweep_run(&whole, recording, &opts), 0);
        ck_assert(all.share == 1);
        ck_assert(all.error_max == 0);
        ck_assert_uint_eq(all.sweep.row_count, whole.row_count);
        for (size_t r = 0; r < whole.row_count; r++) {
            ck_assert_uint_eq(all.sweep.rows[r].hits, whole.rows[r].hits);
            ck_assert_uint_eq(all.sweep.rows[r].capacity, whole.rows[r].capacity);
        }
        ck_assert_int_eq(tierce__scale_run(&half, recording, 0.5, &opts), 0);
        ck_assert_uint_lt(half.requests, REQUESTS);
        ck_assert_uint_gt(half.requests, 0);
        ck_assert(half.error_mean <= half.error_max);
        double mean = 0;
        for (size_t p = 0; p < 8; p++)
            mean += fabs(half.lru_part[p] - half.lru_exact[p]) / 8;
        ck_assert(fabs(mean - half.error_mean) < 1e-9);
        for (size_t r = 0; r < half.sweep.row_count; r++) {
            ck_assert_uint_eq(half.sweep.rows[r].capacity, whole.rows[r].capacity);
            ck_assert_uint_eq(half.sweep.rows[r].requests, half.requests);
        }
        tierce__scaled_clear(&half);
        tierce__scaled_clear(&all);
        tierce__sweep_clear(&whole);
        ck_assert_int_eq(tierce__scale_run(&all, recording, 0, &opts), TIERCE_E_ARGUMENT);
        ck_assert_int_eq(tierce__scale_run(&all, recording, 1.5, &opts), TIERCE_E_ARGUMENT);
        ck_assert_int_eq(tierce__scale_run(&all, recording, 1e-9, &opts), 0);
        ck_assert_uint_eq(all.requests, 0);
        ck_assert_uint_eq(all.sweep.row_count, 0);
        tierce__scaled_clear(&all);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- the best row, and the threads ----------------------------------------------------------- */

START_TEST(the_best_row_can_be_bought)
{
    struct tierce__cache lru = {.kind = TIERCE__CACHE_POLICY},
                         belady = {.kind = TIERCE__CACHE_BELADY};
    struct tierce__sweep_row rows[] = {
        {.cache = &lru, .capacity = 10, .hits = 5},
        {.cache = &lru, .capacity = 20, .hits = 9},
        {.cache = &lru, .capacity = 30, .hits = 100},
        {.cache = &lru, .capacity = 15, .hits = 9},
        {.cache = &belady, .capacity = 10, .hits = 50},
        {.cache = &lru, .capacity = 10, .hits = 60, .match = {TIERCE__MATCH_ANY, 0}},
    };
    struct tierce__sweep sweep = {.rows = rows, .row_count = sizeof(rows) / sizeof(rows[0])};
    ck_assert_ptr_eq(tierce__sweep_best(&sweep, &matches[0], 25), &rows[3]);
    ck_assert_ptr_eq(tierce__sweep_best(&sweep, &matches[0], 30), &rows[2]);
    ck_assert_ptr_eq(tierce__sweep_best(&sweep, &matches[0], 14), &rows[0]);
    ck_assert_ptr_null(tierce__sweep_best(&sweep, &matches[0], 9));
}
END_TEST

static _Atomic unsigned runs[100];

static int run_one(void *arg, size_t job, struct tierce__jobs *workers)
{
    size_t *fails = arg;
    atomic_fetch_add(&runs[job], 1);
    for (int i = 0; i < 10; i++)
        (void)tierce__jobs_tell(workers, 1);
    return job == *fails ? -77 : 0;
}

static void tell(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;
    ck_assert_uint_ge(done, *last);
    ck_assert_uint_le(done, total);
    *last = done;
}

START_TEST(every_job_runs_once)
{
    for (uint32_t threads = 0; threads < 4; threads++) {
        size_t fails = SIZE_MAX;
        uint64_t last = 0;
        for (size_t i = 0; i < 100; i++)
            atomic_store(&runs[i], 0);
        struct tierce__jobs_opts opts = {.job_count = 100,
                                         .run = run_one,
                                         .arg = &fails,
                                         .threads = threads,
                                         .total = 1000,
                                         .progress = tell,
                                         .progress_arg = &last};
        ck_assert_int_eq(tierce__jobs_run(&opts), 0);
        ck_assert_uint_eq(last, 1000);
        for (size_t i = 0; i < 100; i++)
            ck_assert_uint_eq(runs[i], 1);
        fails = 5;
        opts.progress = NULL;
        ck_assert_int_eq(tierce__jobs_run(&opts), -77);
        opts.job_count = 0;
        ck_assert_int_eq(tierce__jobs_run(&opts), 0);
    }
}
END_TEST

/* The first job fails after the second has begun. The second ends when it learns of the failure. */
struct two_jobs {
    _Atomic bool has_begun, was_told;
};

static int fail_or_wait(void *arg, size_t job, struct tierce__jobs *workers)
{
    struct two_jobs *two = arg;
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    const struct timespec pause = {.tv_nsec = 1000000};
    if (job == 1)
        two->has_begun = true;
    while (tierce__now_ns() < give_up_ns) {
        if (job == 0 && two->has_begun)
            return -77;
        if (job == 1 && !tierce__jobs_tell(workers, 0)) {
            two->was_told = true;
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    return -78;
}

START_TEST(a_job_is_told_that_another_has_failed)
{
    struct two_jobs two = {0};
    ck_assert_int_eq(
        tierce__jobs_run(&(struct tierce__jobs_opts){
            .job_count = 2, .run = fail_or_wait, .arg = &two, .threads = 2, .total = 1}),
        -77);
    ck_assert(two.was_told);
}
END_TEST

CHECK_MAIN("groups", .seconds = 60,
           .tests = {a_group_is_a_replay_of_its_requests,
                     the_split_lies_between_the_curves_and_their_hulls,
                     a_split_is_that_of_the_groups_curves, a_filter_keeps_all_of_a_request,
                     a_part_that_is_all_has_no_error, the_best_row_can_be_bought,
                     every_job_runs_once, a_job_is_told_that_another_has_failed})
