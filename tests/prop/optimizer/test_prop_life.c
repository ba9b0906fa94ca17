/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/analysis/life.h"
#include "optimizer/analysis/timeline.h"
#include "optimizer/replay/ttl_curve.h"
#include "random_recording.h"

#include <string.h>

/* A scan's results for blocks, against the simplest implementation of the definitions; times to
 * live and slices of time, against replays. */

enum { BLOCKS = 60, REQUESTS = 150, ROUNDS = 20 };

/* ---- a scan ---------------------------------------------------------------------------------- */

static const struct tierce__recorded *at(const struct tierce__recording *recording, uint32_t number)
{
    const struct tierce__recorded *r = tierce__recording_first(recording);
    while (number-- > 0)
        r = tierce__recording_next(recording, r);
    return r;
}

static bool names(const struct tierce__recorded *r, uint32_t block, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tierce__recorded_blocks(r)[i] == block)
            return true;
    }
    return false;
}

/* The last request before `number` that names the block, or UINT32_MAX. */
static uint32_t named_before(const struct tierce__recorded *const *all, uint32_t number,
                             uint32_t block)
{
    while (number-- > 0) {
        if (names(all[number], block, all[number]->count))
            return number;
    }
    return UINT32_MAX;
}

/* Different blocks named after position `place` of request `from`, counted from its last block to
 * its first, up to request `to`; the block there itself included. */
static uint64_t distance(const struct tierce__recorded *const *all, uint32_t from, uint32_t to,
                         uint32_t block)
{
    bool seen[BLOCKS * 4] = {false};
    uint64_t count = 1;
    seen[block] = true;
    for (uint32_t r = from; r < to; r++) {
        const uint32_t *blocks = tierce__recorded_blocks(all[r]);
        for (uint32_t i = 0; i < all[r]->count && (r > from || blocks[i] != block); i++) {
            count += !seen[blocks[i]];
            seen[blocks[i]] = true;
        }
    }
    return count;
}

static void check_histogram(const struct tierce__histogram *a, const struct tierce__histogram *b)
{
    ck_assert_uint_eq(a->count, b->count);
    ck_assert_uint_eq(a->largest, b->largest);
    ck_assert(a->sum == b->sum);
    ck_assert(memcmp(a->bins, b->bins, sizeof(a->bins)) == 0);
}

static void check_block(const struct tierce__recorded *const *all, uint32_t block,
                        struct tierce__life *want)
{
    int64_t first_us = 0, last_us = 0;
    uint64_t uses = 0;
    bool named = false, stored = false, alive = false, reused = false;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        bool used = names(all[r], block, all[r]->read_count);
        uses += used;
        if (used && named) {
            reused = true;
            alive = alive || stored;
            last_us = all[r]->time_us;
        }
        if (!names(all[r], block, all[r]->count))
            continue;
        if (!named)
            first_us = all[r]->time_us;
        named = true;
        stored = stored || all[r]->kind != TIERCE__TRACE_READ;
    }
    want->distinct += named;
    want->stored += stored;
    want->dead += stored && !alive;
    tierce__histogram_add(&want->uses_of, uses, 1);
    if (reused)
        tierce__histogram_add(&want->span_us, (uint64_t)(last_us - first_us), 1);
}

static void check_scan(const struct tierce__recording *recording)
{
    struct tierce__life life, want = {0};
    const struct tierce__recorded *all[REQUESTS];
    ck_assert_int_eq(
        tierce__life_scan(&life, recording,
                          &(struct tierce__life_opts){.size = sizeof(struct tierce__life_opts)}),
        0);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        all[r] = at(recording, r);
        want.uses += all[r]->read_count;
        for (uint32_t i = 0; i < all[r]->read_count; i++) {
            uint32_t block = tierce__recorded_blocks(all[r])[i];
            uint32_t before = named_before(all, r, block);
            if (before == UINT32_MAX)
                continue;
            want.reuses++;
            tierce__histogram_add(&want.distance, distance(all, before, r, block), 1);
            tierce__histogram_add(&want.gap_us, (uint64_t)(all[r]->time_us - all[before]->time_us),
                                  1);
        }
    }
    for (uint32_t b = 0; b < tierce__recording_totals(recording).distinct; b++)
        check_block(all, b, &want);
    ck_assert_uint_eq(life.requests, REQUESTS);
    ck_assert_uint_eq(life.uses, want.uses);
    ck_assert_uint_eq(life.reuses, want.reuses);
    ck_assert_uint_eq(life.distinct, want.distinct);
    ck_assert_uint_eq(life.stored, want.stored);
    ck_assert_uint_eq(life.dead, want.dead);
    check_histogram(&life.distance, &want.distance);
    check_histogram(&life.gap_us, &want.gap_us);
    check_histogram(&life.uses_of, &want.uses_of);
    check_histogram(&life.span_us, &want.span_us);
    tierce__life_clear(&life);
}

START_TEST(a_scan_counts_what_it_says)
{
    struct test_random random = test_random_start("test_prop_life");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .gap_us = i % 4 == 0 ? 0 : 1000,
                                        .instances = 1 + i % 3,
                                        .reads_and_writes = i % 2 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        check_scan(recording);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- the tree -------------------------------------------------------------------------------- */

/* Requests whose looked-up part goes through the block. */
static uint64_t through(const struct tierce__recording *recording, uint32_t block)
{
    uint64_t count = 0;
    for (uint32_t r = 0; r < REQUESTS; r++)
        count += names(at(recording, r), block, at(recording, r)->read_count);
    return count;
}

/* Walks the blocks of a node along a request that goes through it. */
static void check_node(const struct tierce__recording *recording, const struct tierce__life *life,
                       size_t index)
{
    const struct tierce__life_node *node = &life->nodes[index];
    const uint32_t *blocks = NULL;
    for (uint32_t r = 0; r < REQUESTS && blocks == NULL; r++) {
        if (names(at(recording, r), node->block, at(recording, r)->read_count))
            blocks = tierce__recorded_blocks(at(recording, r));
    }
    ck_assert_ptr_nonnull(blocks);
    ck_assert_uint_eq(blocks[node->depth], node->block);
    for (uint32_t i = 0; i < node->blocks; i++)
        ck_assert_uint_eq(through(recording, blocks[node->depth + i]), node->requests);
    if (node->parent == TIERCE__LIFE_NO_PARENT) {
        ck_assert_uint_eq(node->depth, 0);
        return;
    }
    const struct tierce__life_node *parent = &life->nodes[node->parent];
    ck_assert_uint_lt(node->parent, index);
    ck_assert_uint_eq(parent->instance, node->instance);
    ck_assert_uint_eq(parent->depth + parent->blocks, node->depth);
    ck_assert_uint_gt(parent->requests, node->requests);
    ck_assert_uint_ge(parent->children, 1);
}

START_TEST(the_tree_holds_the_hottest_prefixes)
{
    struct test_random random = test_random_start("test_prop_life");
    for (unsigned i = 0; i < 5 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .instances = 1 + i % 3,
                                        .reads_and_writes = i % 2 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__life all, some;
        struct tierce__life_opts opts = {
            .size = sizeof(opts), .nodes_max = 10000, .block_tokens = 16};
        ck_assert_int_eq(tierce__life_scan(&all, recording, &opts), 0);
        opts.nodes_max = 5;
        ck_assert_int_eq(tierce__life_scan(&some, recording, &opts), 0);
        uint64_t blocks = 0;
        for (size_t n = 0; n < all.node_count; n++) {
            check_node(recording, &all, n);
            ck_assert_uint_eq(all.nodes[n].tokens, 16 * all.nodes[n].blocks);
            blocks += all.nodes[n].blocks;
        }
        ck_assert_uint_eq(blocks, all.distinct - all.uses_of.bins[0]); /* all that are used */
        ck_assert_uint_le(some.node_count, 5 * (1 + i % 3));
        for (size_t n = 0, k = 0; n < some.node_count; n++, k++) {
            while (all.nodes[k].instance != some.nodes[n].instance)
                k++;
            ck_assert_uint_eq(all.nodes[k].block, some.nodes[n].block);
        }
        tierce__life_clear(&all);
        tierce__life_clear(&some);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- in one cache ---------------------------------------------------------------------------- */

static struct tierce__replay_result replay(const struct tierce__recording *recording,
                                           const struct tierce__sim_point *point,
                                           const struct tierce__match *matches, size_t count)
{
    struct tierce__replay *r;
    struct tierce__replay_opts opts = {.size = sizeof(opts),
                                       .distinct = tierce__recording_totals(recording).distinct,
                                       .matches = matches,
                                       .match_count = count};
    ck_assert_int_eq(tierce__sim_replay(&r, point, &opts), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
         q = tierce__recording_next(recording, q))
        ck_assert_int_eq(tierce__replay_request(r, q), 0);
    struct tierce__replay_result result = *tierce__replay_result(r);
    tierce__replay_destroy(r);
    return result;
}

START_TEST(blocks_in_a_cache_live_as_in_its_replay)
{
    static const struct tierce__match any = {TIERCE__MATCH_ANY, 0};
    struct test_random random = test_random_start("test_prop_life");
    for (unsigned i = 0; i < 5 * test_scale(); i++) {
        struct recording_shape shape = {
            .requests = REQUESTS, .blocks = BLOCKS, .gap_us = 50, .reads_and_writes = i % 2 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__cache cache;
        for (size_t p = 0; tierce__cache_at(&cache, p); p++) {
            struct tierce__sim_point point = {
                .cache = &cache, .capacity = 1 + test_random_below(&random, 40), .ttl_us = 500};
            struct tierce__life_cached life;
            int rc = tierce__life_replay(&life, recording, &point);
            if (tierce__cache_foresees(&cache) || cache.kind == TIERCE__CACHE_KVCM) {
                ck_assert_int_eq(rc, TIERCE_E_ARGUMENT);
                continue;
            }
            struct tierce__replay_result r = replay(recording, &point, &any, 1);
            ck_assert_int_eq(rc, 0);
            ck_assert_uint_eq(life.stored, r.stored);
            ck_assert_uint_eq(life.left, r.evicted + r.expired);
            ck_assert_uint_eq(life.at_end, r.used);
            ck_assert_uint_eq(life.stay_us.count, life.left);
            ck_assert_uint_eq(life.uses_of.count, life.left);
            ck_assert_uint_eq(life.uses_of.bins[0], life.unused);
            ck_assert_uint_le(life.at_end_unused, life.at_end);
            ck_assert(life.uses_of.sum <= (double)r.hits[0]);
            if (life.left == 0)
                ck_assert_uint_le(life.at_end - life.at_end_unused, r.hits[0]);
        }
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* One block in a cache of one: stored, used, pushed out, stored again and never used. */
START_TEST(a_block_that_leaves_unused_is_counted)
{
    static const uint64_t chains[] = {1, 1, 2, 1, 2};
    struct tierce__recording *recording;
    struct tierce__life_cached life;
    struct tierce__cache lru;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(
            tierce__recording_add(recording, &(struct tierce__trace_request){.time_us = 10 * i,
                                                                             .count = 1,
                                                                             .read_count = 1,
                                                                             .blocks = &chains[i]}),
            0);
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    ck_assert_int_eq(tierce__cache_find(&lru, "lru"), 0);
    ck_assert_int_eq(tierce__life_replay(&life, recording,
                                         &(struct tierce__sim_point){.cache = &lru, .capacity = 1}),
                     0);
    ck_assert_uint_eq(life.stored, 4);
    ck_assert_uint_eq(life.left, 3);
    ck_assert_uint_eq(life.unused, 2);
    ck_assert_uint_eq(life.at_end, 1);
    ck_assert_uint_eq(life.at_end_unused, 1);
    ck_assert_uint_eq(life.stay_us.largest, 20);
    ck_assert(life.stay_us.sum == 20 + 10 + 10);
    tierce__recording_destroy(recording);
}
END_TEST

/* ---- times to live --------------------------------------------------------------------------- */

START_TEST(every_time_to_live_is_that_of_a_replay)
{
    static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0},
                                                   {TIERCE__MATCH_ANY, 0},
                                                   {TIERCE__MATCH_WINDOW, 2},
                                                   {TIERCE__MATCH_STREAM, 0}};
    static const uint64_t ttls[] = {50, 1, 7, 1000, 3, 200, 100000, 20, 7};
    enum { TTLS = sizeof(ttls) / sizeof(ttls[0]) };
    struct test_random random = test_random_start("test_prop_life");
    struct tierce__cache cache;
    ck_assert_int_eq(tierce__cache_find(&cache, "ttl"), 0);
    for (unsigned i = 0; i < 20 * test_scale(); i++) {
        struct recording_shape shape = {
            .requests = REQUESTS, .blocks = BLOCKS, .gap_us = 20, .internal = i % 2 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        for (int order = 0; order < 2; order++) {
            uint64_t hits[4][TTLS];
            ck_assert_int_eq(tierce__ttl_curve(recording, (enum tierce__touch_order)order, matches,
                                               4, ttls, TTLS, &hits[0][0]),
                             0);
            for (size_t t = 0; t < TTLS; t++) {
                struct tierce__sim_point point = {.cache = &cache,
                                                  .order = (enum tierce__touch_order)order,
                                                  .capacity = TIERCE__CAPACITY_UNLIMITED,
                                                  .ttl_us = ttls[t]};
                struct tierce__replay_result r = replay(recording, &point, matches, 4);
                for (size_t m = 0; m < 4; m++)
                    ck_assert_uint_eq(hits[m][t], r.hits[m]);
            }
        }
        tierce__recording_destroy(recording);
    }
}
END_TEST

START_TEST(a_trace_that_reads_has_no_curve_of_times)
{
    static const struct tierce__match prefix = {TIERCE__MATCH_PREFIX, 0};
    struct test_random random = test_random_start("test_prop_life");
    struct recording_shape shape = {.requests = 30, .blocks = BLOCKS, .reads_and_writes = true};
    struct tierce__recording *recording = random_recording(&random, &shape);
    uint64_t ttl = 5, hits, none = 0;
    ck_assert_int_eq(tierce__ttl_curve(recording, TIERCE__TOUCH_REV, &prefix, 1, &ttl, 1, &hits),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__ttl_curve(recording, TIERCE__TOUCH_REV, &prefix, 1, &none, 1, &hits),
                     TIERCE_E_ARGUMENT);
    tierce__recording_destroy(recording);
}
END_TEST

/* ---- over time ------------------------------------------------------------------------------- */

enum { LINES = 5, REPLAYS = 4 }; /* the last is KVCM's, no replay */

static void check_line(const struct tierce__recording *recording,
                       const struct tierce__timeline *timeline, size_t line)
{
    static const struct tierce__match prefix = {TIERCE__MATCH_PREFIX, 0};
    struct tierce__timeline_slice sum = {0};
    const struct tierce__timeline_slice *slices = timeline->lines[line].slices;
    for (uint32_t s = 0; s < timeline->slice_count; s++) {
        int64_t from = timeline->start_us + (int64_t)(s * timeline->slice_us);
        uint64_t requests = 0;
        for (uint32_t r = 0; line == 0 && r < REQUESTS; r++)
            requests += at(recording, r)->time_us >= from &&
                        at(recording, r)->time_us < from + (int64_t)timeline->slice_us;
        if (line == 0)
            ck_assert_uint_eq(slices[s].requests, requests);
        sum.requests += slices[s].requests;
        sum.blocks += slices[s].blocks;
        sum.internal_blocks += slices[s].internal_blocks;
        sum.hits += slices[s].hits;
        sum.internal_hits += slices[s].internal_hits;
        sum.stored += slices[s].stored;
        sum.evicted += slices[s].evicted;
        sum.expired += slices[s].expired;
        sum.used = slices[s].used;
    }
    if (line >= REPLAYS)
        return;
    struct tierce__replay_result r = replay(recording, &timeline->lines[line].point, &prefix, 1);
    ck_assert_uint_eq(sum.requests, r.requests);
    ck_assert_uint_eq(sum.blocks, r.blocks);
    ck_assert_uint_eq(sum.internal_blocks, r.internal_blocks);
    ck_assert_uint_eq(sum.hits, r.hits[0]);
    ck_assert_uint_eq(sum.internal_hits, r.internal_hits[0]);
    ck_assert_uint_eq(sum.stored, r.stored);
    ck_assert_uint_eq(sum.evicted, r.evicted);
    ck_assert_uint_eq(sum.expired, r.expired);
    ck_assert_uint_eq(sum.used, r.used);
}

static void check_timeline(const struct tierce__recording *recording, uint32_t slices_max)
{
    static const char *const names_of[] = {"lru", "ttl", "infinite", "leaf-lru", "kvcm-lru"};
    struct tierce__cache caches[LINES];
    struct tierce__sim_point points[LINES];
    struct tierce__timeline timeline;
    for (size_t p = 0; p < LINES; p++) {
        ck_assert_int_eq(tierce__cache_find(&caches[p], names_of[p]), 0);
        points[p] =
            (struct tierce__sim_point){.cache = &caches[p], .capacity = 10 + p, .ttl_us = 500};
    }
    struct tierce__timeline_opts opts = {.size = sizeof(opts),
                                         .points = points,
                                         .point_count = LINES,
                                         .match = {TIERCE__MATCH_PREFIX, 0},
                                         .slices_max = slices_max};
    ck_assert_int_eq(tierce__timeline_run(&timeline, recording, &opts), 0);
    ck_assert_uint_eq(timeline.line_count, LINES);
    ck_assert_uint_ge(timeline.slice_count, 1);
    ck_assert_uint_le(timeline.slice_count, slices_max);
    ck_assert_int_gt(timeline.start_us + (int64_t)(timeline.slice_us * timeline.slice_count),
                     tierce__recording_totals(recording).last_us);
    for (size_t line = 0; line < LINES; line++)
        check_line(recording, &timeline, line);
    tierce__timeline_clear(&timeline);
}

START_TEST(slices_add_up_to_the_replay)
{
    struct test_random random = test_random_start("test_prop_life");
    for (unsigned i = 0; i < 10 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .gap_us = i % 4 == 0 ? 0 : 1000,
                                        .reads_and_writes = i % 2 == 1,
                                        .internal = i % 3 == 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        check_timeline(recording, 1 + test_random_below(&random, 300));
        tierce__recording_destroy(recording);
    }
}
END_TEST

START_TEST(belady_has_no_timeline)
{
    struct test_random random = test_random_start("test_prop_life");
    struct recording_shape shape = {.requests = 30, .blocks = BLOCKS};
    struct tierce__recording *recording = random_recording(&random, &shape);
    struct tierce__cache belady;
    struct tierce__timeline timeline;
    ck_assert_int_eq(tierce__cache_find(&belady, "belady"), 0);
    struct tierce__sim_point point = {.cache = &belady, .capacity = 9};
    struct tierce__timeline_opts opts = {.size = sizeof(opts), .points = &point, .point_count = 1};
    ck_assert_int_eq(tierce__timeline_run(&timeline, recording, &opts), TIERCE_E_ARGUMENT);
    tierce__recording_destroy(recording);
}
END_TEST

/* ---- tokens of a block ----------------------------------------------------------------------- */

static uint64_t guess(uint64_t size, bool cut, bool tell)
{
    struct test_random random = {size};
    struct tierce__recording *recording;
    uint64_t ids[64];
    for (uint64_t i = 0; i < 64; i++)
        ids[i] = i;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t tokens = 1 + test_random_below(&random, (uint32_t)size * 60);
        uint32_t count = (uint32_t)((tokens + (cut ? size - 1 : 0)) / size);
        ck_assert_int_eq(
            tierce__recording_add(
                recording, &(struct tierce__trace_request){.count = count,
                                                           .read_count = count,
                                                           .blocks = ids,
                                                           .input_tokens = tell ? tokens : 0}),
            0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    uint64_t guessed = tierce__block_tokens(recording);
    tierce__recording_destroy(recording);
    return guessed;
}

START_TEST(the_tokens_of_a_block_are_found)
{
    static const uint64_t sizes[] = {1, 16, 64, 256, 512};
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(guess(sizes[i], true, true), sizes[i]);
        ck_assert_uint_eq(guess(sizes[i], false, true), sizes[i]);
    }
    ck_assert_uint_eq(guess(16, true, false), 0);
}
END_TEST

START_TEST(bins_double)
{
    struct tierce__histogram h = {0};
    ck_assert_uint_eq(tierce__histogram_length(&h), 0);
    ck_assert_uint_eq(tierce__histogram_quantile(&h, 0.5), 0);
    tierce__histogram_add(&h, 0, 2);
    tierce__histogram_add(&h, 1, 1);
    tierce__histogram_add(&h, 5, 1);
    ck_assert_uint_eq(h.bins[0], 2);
    ck_assert_uint_eq(h.bins[1], 1);
    ck_assert_uint_eq(h.bins[3], 1);
    ck_assert_uint_eq(tierce__histogram_from(3), 4);
    ck_assert_uint_eq(tierce__histogram_to(3), 7);
    ck_assert_uint_eq(tierce__histogram_from(0), 0);
    ck_assert_uint_eq(tierce__histogram_to(0), 0);
    ck_assert_uint_eq(tierce__histogram_to(64), UINT64_MAX);
    ck_assert_uint_eq(tierce__histogram_length(&h), 4);
    ck_assert_uint_eq(tierce__histogram_quantile(&h, 0.5), 0);
    ck_assert_uint_eq(tierce__histogram_quantile(&h, 0.75), 1);
    ck_assert_uint_eq(tierce__histogram_quantile(&h, 1), 5);
    tierce__histogram_add(&h, UINT64_MAX, 1);
    ck_assert_uint_eq(h.bins[64], 1);
    ck_assert_uint_eq(tierce__histogram_quantile(&h, 1), UINT64_MAX);
}
END_TEST

CHECK_MAIN("life", .seconds = 60,
           .tests = {a_scan_counts_what_it_says, the_tree_holds_the_hottest_prefixes,
                     blocks_in_a_cache_live_as_in_its_replay, a_block_that_leaves_unused_is_counted,
                     every_time_to_live_is_that_of_a_replay,
                     a_trace_that_reads_has_no_curve_of_times, slices_add_up_to_the_replay,
                     belady_has_no_timeline, the_tokens_of_a_block_are_found, bins_double})
