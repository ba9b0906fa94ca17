/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/replay/curve.h"
#include "test_random.h"

#include <string.h>

/* The curve against LRU caches of every capacity that are played one by one. */

enum { BLOCKS = 40, REQUEST_MAX = 14, CAPACITY_MAX = BLOCKS + 2, ROUNDS = 15, REQUESTS = 150 };

static const struct tierce__match matches[] = {
    {TIERCE__MATCH_PREFIX, 0}, {TIERCE__MATCH_ANY, 0},    {TIERCE__MATCH_STREAM, 0},
    {TIERCE__MATCH_WINDOW, 1}, {TIERCE__MATCH_WINDOW, 3}, {TIERCE__MATCH_WINDOW, 9},
};
enum { MATCHES = sizeof(matches) / sizeof(matches[0]) };

/* The blocks, the one used last first. */
struct lru {
    uint32_t blocks[CAPACITY_MAX];
    uint32_t count, capacity;
    uint64_t hits[MATCHES];
};

static uint32_t find(const struct lru *lru, uint32_t block)
{
    uint32_t at = 0;
    while (at < lru->count && lru->blocks[at] != block)
        at++;
    return at;
}

static bool lru_touch(struct lru *lru, uint32_t block)
{
    uint32_t at = find(lru, block);
    bool hit = at < lru->count;
    if (!hit && lru->count < lru->capacity)
        lru->count++;
    if (at == lru->count)
        at--;
    memmove(lru->blocks + 1, lru->blocks, at * sizeof(lru->blocks[0]));
    lru->blocks[0] = block;
    return hit;
}

/* The definition of each match, implemented in the simplest way. */
static uint32_t count_hits(const struct tierce__match *match, const bool *there, uint32_t count)
{
    uint32_t hits = 0;
    for (uint32_t k = 1; k <= count; k++) {
        bool all = true;
        uint32_t first =
            match->kind == TIERCE__MATCH_WINDOW && k > match->window ? k - match->window : 0;
        for (uint32_t i = first; i < k; i++)
            all = all && there[i];
        if (match->kind == TIERCE__MATCH_ANY)
            hits += there[k - 1];
        else if (all)
            hits = k;
    }
    return hits;
}

static void lru_request(struct lru *lru, enum tierce__touch_order order, const uint32_t *blocks,
                        uint32_t count, uint32_t read_count)
{
    bool there[REQUEST_MAX];
    for (uint32_t i = 0; i < read_count; i++)
        there[i] = find(lru, blocks[i]) < lru->count;
    for (uint32_t m = 0; m < MATCHES; m++) {
        if (matches[m].kind == TIERCE__MATCH_STREAM)
            continue;
        uint32_t hits = count_hits(&matches[m], there, read_count);
        lru->hits[m] += hits;
        ck_assert_uint_eq(tierce__match_count(&matches[m], there, read_count), hits);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = order == TIERCE__TOUCH_REV ? count - 1 - i : i;
        lru->hits[2] += lru_touch(lru, blocks[at]) && at < read_count;
    }
}

/* Mostly chains of a tree, whose blocks are all different; sometimes whatever, repeated blocks
 * too. */
static uint32_t draw_request(struct test_random *random, uint32_t *blocks)
{
    uint32_t count = test_random_below(random, REQUEST_MAX + 1);
    bool chain = test_random_below(random, 4) > 0;
    uint32_t block = test_random_below(random, 6);
    for (uint32_t i = 0; i < count; i++) {
        if (chain && block >= BLOCKS)
            return i;
        blocks[i] = chain ? block : test_random_below(random, BLOCKS);
        block += 1 + test_random_below(random, 2) * (1 + block % 5);
    }
    return count;
}

static void play(struct test_random *random, enum tierce__touch_order order)
{
    static struct lru caches[CAPACITY_MAX];
    memset(caches, 0, sizeof(caches));
    struct tierce__curve *curve;
    ck_assert_int_eq(tierce__curve_create(&curve, order, matches, MATCHES), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t blocks[REQUEST_MAX];
        uint32_t count = draw_request(random, blocks);
        uint32_t read =
            test_random_below(random, 4) > 0 ? count : test_random_below(random, count + 1);
        ck_assert_int_eq(tierce__curve_request(curve, blocks, count, read), 0);
        for (uint32_t c = 1; c < CAPACITY_MAX; c++) {
            caches[c].capacity = c;
            lru_request(&caches[c], order, blocks, count, read);
        }
    }
    for (uint32_t m = 0; m < MATCHES; m++) {
        ck_assert_uint_eq(tierce__curve_hits(curve, m, 0), 0);
        for (uint32_t c = 1; c < CAPACITY_MAX; c++)
            ck_assert_uint_eq(tierce__curve_hits(curve, m, c), caches[c].hits[m]);
        ck_assert_uint_eq(tierce__curve_hits(curve, m, UINT64_MAX), caches[BLOCKS].hits[m]);
    }
    tierce__curve_destroy(curve);
}

START_TEST(every_capacity_is_that_of_a_replay)
{
    struct test_random random = test_random_start("test_prop_curve");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        play(&random, TIERCE__TOUCH_REV);
        play(&random, TIERCE__TOUCH_FWD);
    }
}
END_TEST

/* So many touches and blocks that the line of slots is closed up and lengthened. */
START_TEST(a_long_line_is_closed_up)
{
    enum { LONG_BLOCKS = 50000, TOUCHES = 300000 };
    struct tierce__curve *curve;
    ck_assert_int_eq(tierce__curve_create(&curve, TIERCE__TOUCH_FWD, matches, 1), 0);
    for (uint32_t i = 0; i < TOUCHES; i++) {
        uint32_t block = i % LONG_BLOCKS;
        ck_assert_int_eq(tierce__curve_request(curve, &block, 1, 1), 0);
    }
    ck_assert_uint_eq(tierce__curve_blocks(curve), LONG_BLOCKS);
    ck_assert_uint_eq(tierce__curve_hits(curve, 0, LONG_BLOCKS - 1), 0);
    ck_assert_uint_eq(tierce__curve_hits(curve, 0, LONG_BLOCKS), TOUCHES - LONG_BLOCKS);
    tierce__curve_destroy(curve);
}
END_TEST

START_TEST(a_match_is_read_as_it_is_written)
{
    char text[TIERCE__MATCH_TEXT_BYTES];
    struct tierce__match match;
    for (uint32_t m = 0; m < MATCHES; m++) {
        tierce__match_print(&matches[m], text);
        ck_assert_int_eq(tierce__match_parse(&match, text), 0);
        ck_assert_int_eq(match.kind, matches[m].kind);
        ck_assert_uint_eq(match.window, matches[m].window);
    }
    static const char *const wrong[] = {
        "",          "Prefix", "window", "window:", "window:0", "window:-1", "window:4294967296",
        "window:1x", "any "};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_int_eq(tierce__match_parse(&match, wrong[i]), TIERCE_E_ARGUMENT);
}
END_TEST

CHECK_MAIN("curve", .seconds = 60,
           .tests = {every_capacity_is_that_of_a_replay, a_long_line_is_closed_up,
                     a_match_is_read_as_it_is_written})
