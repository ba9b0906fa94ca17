/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/replay/belady.h"
#include "optimizer/replay/curve.h"
#include "optimizer/replay/replay.h"
#include "test_random.h"

#include <string.h>

/* What theory says about replays, on random traces of chains of a tree. */

enum { BLOCKS = 60, REQUEST_MAX = 12, REQUESTS = 120, ROUNDS = 12, CAPACITY_MAX = 40 };

static const struct tierce__match matches[] = {
    {TIERCE__MATCH_PREFIX, 0},
    {TIERCE__MATCH_ANY, 0},
    {TIERCE__MATCH_WINDOW, 3},
    {TIERCE__MATCH_STREAM, 0}, /* the last: not every replay has it */
};
enum { MATCHES = 4, PREFIX = 0, ANY = 1 };

/* A block's parent is fixed, so that ids are prefix ids: the children of b are 2b + 2, 2b + 3. */
static uint32_t draw_chain(struct test_random *random, uint64_t *ids)
{
    uint64_t path[REQUEST_MAX];
    uint32_t count = 0;
    for (uint64_t b = test_random_below(random, BLOCKS); count < REQUEST_MAX; b = (b - 2) / 2) {
        path[count++] = b;
        if (b < 2)
            break;
    }
    for (uint32_t i = 0; i < count; i++)
        ids[i] = path[count - 1 - i];
    return test_random_below(random, 8) > 0 ? count : test_random_below(random, count + 1);
}

static struct tierce__recording *record(struct test_random *random, bool chains)
{
    struct tierce__recording *recording;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t ids[REQUEST_MAX];
        struct tierce__trace_request request = {
            .time_us = i, .kind = TIERCE__TRACE_TURN, .blocks = ids};
        request.count = draw_chain(random, ids);
        for (uint32_t k = 0; !chains && k < request.count; k++)
            ids[k] = 7 * k + test_random_below(random, 7); /* all different */
        request.read_count = request.count;
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

static struct tierce__replay_result replay(const struct tierce__recording *recording,
                                           struct tierce__replay_opts opts)
{
    struct tierce__replay *r;
    opts.size = sizeof(opts);
    opts.distinct = tierce__recording_totals(recording).distinct;
    opts.matches = matches;
    opts.match_count = opts.whole ? MATCHES - 1 : MATCHES;
    ck_assert_int_eq(tierce__replay_create(&r, &opts), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
         q = tierce__recording_next(recording, q))
        ck_assert_int_eq(tierce__replay_request(r, q), 0);
    struct tierce__replay_result result = *tierce__replay_result(r);
    tierce__replay_destroy(r);
    return result;
}

static void check_curve(const struct tierce__recording *recording, enum tierce__touch_order order)
{
    struct tierce__curve *curve;
    ck_assert_int_eq(tierce__curve_create(&curve, order, matches, MATCHES), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
         q = tierce__recording_next(recording, q))
        ck_assert_int_eq(
            tierce__curve_request(curve, tierce__recorded_blocks(q), q->count, q->read_count), 0);
    for (uint32_t c = 1; c < CAPACITY_MAX; c++) {
        struct tierce__replay_result lru = replay(
            recording, (struct tierce__replay_opts){
                           .policy = tierce__policy_find("lru"), .capacity = c, .order = order});
        ck_assert_uint_le(lru.used_max, c);
        for (size_t m = 0; m < MATCHES; m++)
            ck_assert_uint_eq(tierce__curve_hits(curve, m, c), lru.hits[m]);
    }
    tierce__curve_destroy(curve);
}

START_TEST(the_curve_is_lru_at_every_capacity)
{
    struct test_random random = test_random_start("test_prop_replay");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        struct tierce__recording *recording = record(&random, i % 2 == 0);
        check_curve(recording, TIERCE__TOUCH_REV);
        check_curve(recording, TIERCE__TOUCH_FWD);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* Touched from the tail, LRU keeps what is closed under prefixes, which is leaf-first LRU. */
START_TEST(lru_from_the_tail_is_leaf_first_lru)
{
    struct test_random random = test_random_start("test_prop_replay");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        struct tierce__recording *recording = record(&random, true);
        for (uint32_t c = 1; c < CAPACITY_MAX; c++) {
            struct tierce__replay_result lru =
                replay(recording, (struct tierce__replay_opts){.policy = tierce__policy_find("lru"),
                                                               .capacity = c});
            struct tierce__replay_result leaf = replay(
                recording, (struct tierce__replay_opts){.policy = tierce__policy_find("leaf_lru"),
                                                        .capacity = c,
                                                        .whole = true});
            ck_assert_uint_eq(lru.hits[PREFIX], lru.hits[ANY]);
            ck_assert_uint_eq(leaf.hits[PREFIX], leaf.hits[ANY]);
            ck_assert_uint_eq(leaf.hits[PREFIX], lru.hits[PREFIX]);
        }
        tierce__recording_destroy(recording);
    }
}
END_TEST

START_TEST(nothing_beats_belady)
{
    struct test_random random = test_random_start("test_prop_replay");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        struct tierce__recording *recording = record(&random, true);
        struct tierce__future *future;
        ck_assert_int_eq(tierce__future_create(&future, recording, NULL), 0);
        for (uint32_t c = 1; c < CAPACITY_MAX; c += 3) {
            uint64_t best[MATCHES];
            ck_assert_int_eq(tierce__belady_run(future, c, matches, 2, best), 0);
            const struct tierce__policy_ops *ops;
            for (size_t p = 0; (ops = tierce__policy_at(p)) != NULL; p++) {
                for (int order = 0; order < 2; order++) {
                    struct tierce__replay_result got = replay(
                        recording,
                        (struct tierce__replay_opts){.policy = ops, .capacity = c, .order = order});
                    ck_assert_uint_le(got.hits[PREFIX], best[PREFIX]);
                    ck_assert_uint_le(got.hits[ANY], best[ANY]);
                    ck_assert_uint_le(got.used_max, c);
                    ck_assert(got.refused == 0 || ops->admits != NULL);
                }
            }
        }
        tierce__future_destroy(future);
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- the best there is, by trying all ---- */

enum { TINY_BLOCKS = 6, TINY_REQUESTS = 7 };

struct tiny {
    uint32_t blocks[TINY_REQUESTS][3], count[TINY_REQUESTS], capacity;
    enum tierce__match_kind kind;
};

/* The most hits from request `r` on with the set `held`, over every choice of what to keep. */
static uint64_t best_of(const struct tiny *t, uint32_t r, uint32_t held)
{
    if (r == TINY_REQUESTS)
        return 0;
    uint32_t came = held;
    bool there[3] = {false};
    for (uint32_t i = 0; i < t->count[r]; i++) {
        there[i] = (held >> t->blocks[r][i] & 1) != 0;
        came |= 1u << t->blocks[r][i];
    }
    struct tierce__match match = {t->kind, 0};
    uint64_t hits = tierce__match_count(&match, there, t->count[r]), best = 0;
    for (uint32_t keep = came;; keep = (keep - 1) & came) {
        if ((uint32_t)__builtin_popcount(keep) <= t->capacity) {
            uint64_t rest = best_of(t, r + 1, keep);
            best = rest > best ? rest : best;
        }
        if (keep == 0)
            break;
    }
    return hits + best;
}

START_TEST(belady_is_the_best_there_is)
{
    static const uint32_t parents[TINY_BLOCKS] = {UINT32_MAX, 0, 1, 0, UINT32_MAX, 4};
    struct test_random random = test_random_start("test_prop_replay");
    for (unsigned i = 0; i < 40 * test_scale(); i++) {
        struct tiny t = {.capacity = 1 + test_random_below(&random, 3)};
        struct tierce__recording *recording;
        struct tierce__future *future;
        ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
        for (uint32_t r = 0; r < TINY_REQUESTS; r++) {
            uint64_t ids[3];
            uint32_t leaf = test_random_below(&random, TINY_BLOCKS), count = 0;
            for (uint32_t b = leaf; b != UINT32_MAX; b = parents[b])
                count++;
            t.count[r] = count;
            for (uint32_t b = leaf; b != UINT32_MAX; b = parents[b]) {
                count--;
                ids[count] = t.blocks[r][count] = b;
            }
            struct tierce__trace_request request = {
                .count = t.count[r], .read_count = t.count[r], .blocks = ids};
            ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
        }
        ck_assert_int_eq(tierce__recording_seal(recording), 0);
        ck_assert_int_eq(tierce__future_create(&future, recording, NULL), 0);
        uint64_t hits[2];
        ck_assert_int_eq(tierce__belady_run(future, t.capacity, matches, 2, hits), 0);
        t.kind = TIERCE__MATCH_PREFIX;
        ck_assert_uint_eq(hits[PREFIX], best_of(&t, 0, 0));
        t.kind = TIERCE__MATCH_ANY;
        ck_assert_uint_eq(hits[ANY], best_of(&t, 0, 0));
        tierce__future_destroy(future);
        tierce__recording_destroy(recording);
    }
}
END_TEST

CHECK_MAIN("replay", .seconds = 60,
           .tests = {the_curve_is_lru_at_every_capacity, lru_from_the_tail_is_leaf_first_lru,
                     nothing_beats_belady, belady_is_the_best_there_is})
