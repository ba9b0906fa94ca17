/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "optimizer/kvcm/kvcm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* KVCM's caches, in cases small enough to be worked out by hand. */

static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0}, {TIERCE__MATCH_ANY, 0}};

enum { ALL_MAX = 64 };

/* A cache, driven by requests one at a time. */
struct harness {
    struct tierce__kvcm_layout layout;
    struct tierce__kvcm *kvcm;
    int64_t now;
    struct {
        struct tierce__recorded head;
        uint32_t blocks[ALL_MAX];
        uint8_t internal[ALL_MAX];
    } request;
};

static struct harness start(enum tierce__kvcm_kind kind, uint64_t capacity,
                            struct tierce__kvcm_tuning tuning)
{
    struct harness h = {0};
    ck_assert_int_eq(tierce__kvcm_layout_single(&h.layout, 2, kind, capacity, &tuning), 0);
    return h;
}

static void stop(struct harness *h)
{
    tierce__kvcm_destroy(h->kvcm);
    tierce__kvcm_layout_clear(&h->layout);
}

/* Blocks are single characters; `kind` and `instance` as in requests. */
static struct tierce__kvcm_read ask(struct harness *h, enum tierce__trace_kind kind,
                                    uint32_t instance, const char *chain)
{
    struct tierce__kvcm_read read;
    if (h->kvcm == NULL)
        ck_assert_int_eq(tierce__kvcm_create(&h->kvcm,
                                             &(struct tierce__kvcm_opts){
                                                 .size = sizeof(struct tierce__kvcm_opts),
                                                 .layout = &h->layout,
                                                 .distinct = ALL_MAX,
                                                 .matches = matches,
                                                 .match_count = 2,
                                             }),
                         0);
    uint32_t count = (uint32_t)strlen(chain);
    h->request.head =
        (struct tierce__recorded){.time_us = ++h->now,
                                  .instance = instance,
                                  .count = count,
                                  .read_count = kind != TIERCE__TRACE_WRITE ? count : 0,
                                  .stored = kind != TIERCE__TRACE_READ ? count : 0,
                                  .kind = (uint8_t)kind};
    for (uint32_t i = 0; i < count; i++)
        h->request.blocks[i] = (uint32_t)chain[i] + 256 * instance;
    ck_assert_int_eq(tierce__kvcm_request(h->kvcm, &h->request.head, &read), 0);
    return read;
}

static void put(struct harness *h, const char *chain)
{
    ask(h, TIERCE__TRACE_WRITE, 0, chain);
}

static uint32_t get(struct harness *h, const char *chain)
{
    return ask(h, TIERCE__TRACE_READ, 0, chain).external_hits;
}

static uint32_t turn(struct harness *h, const char *chain)
{
    return ask(h, TIERCE__TRACE_TURN, 0, chain).external_hits;
}

/* Blocks of a chain that are cached anywhere; the last thing that a test asks of a cache. */
static uint64_t cached_of(struct harness *h, const char *chain)
{
    uint64_t before = tierce__kvcm_result(h->kvcm)->hits[1];
    get(h, chain);
    return tierce__kvcm_result(h->kvcm)->hits[1] - before;
}

START_TEST(the_head_of_a_chain_leaves_first)
{
    struct harness h = start(TIERCE__KVCM_LRU, 3, (struct tierce__kvcm_tuning){0});
    put(&h, "abc");
    put(&h, "x");
    ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 0), 3);
    ck_assert_uint_eq(get(&h, "abc"), 0); /* a is gone */
    ck_assert_uint_eq(cached_of(&h, "abc"), 2);
    stop(&h);
}
END_TEST

START_TEST(what_is_behind_a_hole_is_neither_counted_nor_touched)
{
    struct harness h = start(TIERCE__KVCM_LRU, 4, (struct tierce__kvcm_tuning){0});
    put(&h, "abcd");
    put(&h, "x"); /* for a */
    ck_assert_uint_eq(get(&h, "abcd"), 0);
    put(&h, "y"); /* for b: had it been touched, x would leave */
    ck_assert_uint_eq(get(&h, "x"), 1);
    ck_assert_uint_eq(cached_of(&h, "abcd"), 2);
    stop(&h);
}
END_TEST

START_TEST(a_read_touches_what_it_counts)
{
    struct harness h = start(TIERCE__KVCM_LRU, 4, (struct tierce__kvcm_tuning){0});
    put(&h, "abcd");
    ck_assert_uint_eq(get(&h, "ab"), 2); /* now c and d are the oldest */
    put(&h, "x");
    put(&h, "y");
    ck_assert_uint_eq(get(&h, "abcd"), 2);
    stop(&h);
}
END_TEST

START_TEST(a_read_stores_nothing_and_a_write_touches_nothing)
{
    struct harness h = start(TIERCE__KVCM_LRU, 2, (struct tierce__kvcm_tuning){0});
    ck_assert_uint_eq(get(&h, "a"), 0);
    ck_assert_uint_eq(get(&h, "a"), 0);
    put(&h, "a");
    put(&h, "b");
    put(&h, "a"); /* there: still the oldest */
    put(&h, "c");
    ck_assert_uint_eq(get(&h, "a"), 0);
    ck_assert_uint_eq(get(&h, "b"), 1);
    stop(&h);
}
END_TEST

START_TEST(a_hole_is_filled_when_it_is_written_again)
{
    struct harness h = start(TIERCE__KVCM_LRU, 3, (struct tierce__kvcm_tuning){0});
    ck_assert_uint_eq(turn(&h, "abc"), 0);
    ck_assert_uint_eq(turn(&h, "x"), 0);   /* for a */
    ck_assert_uint_eq(turn(&h, "abc"), 0); /* fills a; b, behind the hole, is the oldest and goes */
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->stored, 5);
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->evicted, 2);
    ck_assert_uint_eq(get(&h, "abc"), 1);
    ck_assert_uint_eq(cached_of(&h, "abc"), 2);
    stop(&h);
}
END_TEST

/* "ab" and "ac" part behind a: one node of a, two leaves. */
START_TEST(leaves_leave_first)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 3, (struct tierce__kvcm_tuning){0});
    put(&h, "ab");
    put(&h, "ac");
    put(&h, "x"); /* a is the oldest, but no leaf any more: b goes */
    ck_assert_uint_eq(get(&h, "ab"), 1);
    put(&h, "y"); /* c goes, and a is a leaf again, as of its last use: newer than x */
    put(&h, "z"); /* x goes */
    ck_assert_uint_eq(get(&h, "x"), 0);
    ck_assert_uint_eq(get(&h, "ac"), 1);
    stop(&h);
}
END_TEST

START_TEST(in_a_leaf_the_head_leaves_first_too)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 3, (struct tierce__kvcm_tuning){0});
    put(&h, "abc");
    put(&h, "x");
    ck_assert_uint_eq(get(&h, "abc"), 0);
    ck_assert_uint_eq(cached_of(&h, "abc"), 2);
    stop(&h);
}
END_TEST

/*
 * "abcd" and "abce": a run of three blocks of the same time is skipped, and becomes a candidate
 * again when both leaves are evicted.
 */
static void pass_over_a_run(struct harness *h)
{
    put(h, "abcd");
    put(h, "abce");
    put(h, "x");
    h->now = 100;
    put(h, "y"); /* for d; a, b and c were older */
}

START_TEST(an_old_run_comes_back_as_it_stood)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 6, (struct tierce__kvcm_tuning){0});
    pass_over_a_run(&h);
    put(&h, "z"); /* for e: x, older than the others, is newer than a, b, c */
    put(&h, "u"); /* for c */
    ck_assert_uint_eq(get(&h, "abc"), 2);
    ck_assert_uint_eq(get(&h, "x"), 1);
    stop(&h);
}
END_TEST

START_TEST(a_new_run_comes_back_turned_round)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 6, (struct tierce__kvcm_tuning){0});
    pass_over_a_run(&h);
    ck_assert_uint_eq(get(&h, "abc"), 3);
    put(&h, "z"); /* for e: a, b, c are newer than y, and nearer to z than to x */
    put(&h, "u"); /* for x */
    put(&h, "v"); /* for y */
    put(&h, "w"); /* for a */
    ck_assert_uint_eq(get(&h, "abc"), 0);
    ck_assert_uint_eq(cached_of(&h, "abc"), 2);
    stop(&h);
}
END_TEST

START_TEST(a_run_from_the_middle_comes_back_as_it_stood)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 6, (struct tierce__kvcm_tuning){0});
    pass_over_a_run(&h);
    ck_assert_uint_eq(get(&h, "abc"), 3); /* at 102; x was stored at 3 */
    h.now = 200;
    put(&h, "z"); /* for e, at 201: as far from 102 as x */
    put(&h, "u"); /* for x */
    put(&h, "v"); /* for y */
    put(&h, "w"); /* for c */
    ck_assert_uint_eq(get(&h, "abc"), 2);
    stop(&h);
}
END_TEST

START_TEST(a_leaf_of_holes_goes_with_its_node)
{
    struct harness h = start(TIERCE__KVCM_LEAF_AWARE_LRU, 2, (struct tierce__kvcm_tuning){0});
    put(&h, "ab");
    put(&h, "ac"); /* b goes */
    put(&h, "x");  /* c goes, then a is a leaf */
    put(&h, "y");  /* a goes, and its node with it */
    put(&h, "ac"); /* x and y go; a and c are one leaf now, so that a goes before c */
    put(&h, "z");
    ck_assert_uint_eq(get(&h, "ac"), 0);
    ck_assert_uint_eq(cached_of(&h, "ac"), 1);
    stop(&h);
}
END_TEST

START_TEST(rough_modes_overshoot)
{
    static const uint32_t held[4] = {0, 2, 2, 4};
    for (int mode = 1; mode <= 3; mode++) {
        struct harness h =
            start(TIERCE__KVCM_LRU, 4, (struct tierce__kvcm_tuning){.mode = mode, .batch = 3});
        put(&h, "abcde");
        ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 0), held[mode]);
        ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->used_max, 5);
        stop(&h);
    }
}
END_TEST

START_TEST(a_quota_is_shared)
{
    static const uint32_t held[4][2] = {{0, 0}, {2, 1}, {4, 1}, {4, 2}};
    for (int mode = 1; mode <= 3; mode++) {
        struct harness h =
            start(TIERCE__KVCM_LRU, 6, (struct tierce__kvcm_tuning){.mode = mode, .batch = 2});
        ask(&h, TIERCE__TRACE_WRITE, 0, "abcd");
        ask(&h, TIERCE__TRACE_WRITE, 1, "abc");
        ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 0), held[mode][0]);
        ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 1), held[mode][1]);
        stop(&h);
    }
}
END_TEST

/* The excess is the group's, and the one that writes cannot cover it alone. */
START_TEST(no_more_than_there_is_leaves)
{
    struct harness h = start(TIERCE__KVCM_LRU, 4, (struct tierce__kvcm_tuning){.mode = 3});
    h.layout.groups[0].quota = 10;
    ask(&h, TIERCE__TRACE_WRITE, 0, "abcdefgh");
    h.layout.groups[0].quota = 2;
    ask(&h, TIERCE__TRACE_WRITE, 1, "ab");
    ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 0), 8);
    ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 1), 0);
    stop(&h);
}
END_TEST

START_TEST(only_a_share_of_the_capacity_is_used)
{
    struct harness h =
        start(TIERCE__KVCM_LRU, 10, (struct tierce__kvcm_tuning){.used_share = 0.55});
    put(&h, "abcdefgh");
    ck_assert_uint_eq(tierce__kvcm_held(h.kvcm, 0), 5);
    ck_assert_uint_eq(tierce__kvcm_quota(UINT64_MAX, 0.5), UINT64_MAX);
    ck_assert_uint_eq(tierce__kvcm_quota(1000, 0.1), 100);
    stop(&h);
}
END_TEST

/* Draws of an xorshift64: from 8 blocks, 4 at a rate of 1/2 of batches of 2. */
START_TEST(random_lru_takes_the_oldest_of_what_it_draws)
{
    struct harness h = start(TIERCE__KVCM_RANDOM_LRU, 7,
                             (struct tierce__kvcm_tuning){.batch = 2, .sample_rate = 0.5});
    static const char *const chains[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    uint64_t x = 0x12345678abcdef01ULL;
    uint32_t least = 8;
    for (int i = 0; i < 4; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        least = x % 8 < least ? (uint32_t)(x % 8) : least;
    }
    for (uint32_t i = 0; i < 8; i++)
        put(&h, chains[i]);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(get(&h, chains[i]), i != least);
    stop(&h);
}
END_TEST

START_TEST(what_the_engine_held_counts_apart)
{
    struct harness h = start(TIERCE__KVCM_LRU, 9, (struct tierce__kvcm_tuning){0});
    struct tierce__kvcm_read read;
    put(&h, "abc");
    static const uint32_t chain[] = {'a', 'b', 'c', 'd'};
    h.request.head = (struct tierce__recorded){
        .count = 4, .read_count = 4, .kind = TIERCE__TRACE_READ, .has_internal = 1};
    memcpy(h.request.blocks, chain, sizeof(chain));
    memcpy(h.request.blocks + 4, "\1\1\0\1", 4);
    ck_assert_int_eq(tierce__kvcm_request(h.kvcm, &h.request.head, &read), 0);
    ck_assert_uint_eq(read.internal_blocks, 3);
    ck_assert_uint_eq(read.external_blocks, 1);
    ck_assert_uint_eq(read.internal_hits, 2);
    ck_assert_uint_eq(read.external_hits, 1);
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->hits[0], 3);
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->internal_hits[0], 2);
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->internal_hits[1], 2);
    /* So it does of a turn, as access logs tell of them. */
    h.request.head.kind = TIERCE__TRACE_TURN;
    h.request.head.stored = 4;
    ck_assert_int_eq(tierce__kvcm_request(h.kvcm, &h.request.head, &read), 0);
    ck_assert_uint_eq(read.internal_blocks, 3);
    ck_assert_uint_eq(read.internal_hits, 2);
    ck_assert_uint_eq(read.external_hits, 1);
    stop(&h);
}
END_TEST

/* A turn looks up all that it stores. */
START_TEST(hits_of_a_turn_may_be_more_than_it_asks_for)
{
    struct harness h = start(TIERCE__KVCM_LRU, 9, (struct tierce__kvcm_tuning){0});
    struct tierce__kvcm_read read;
    turn(&h, "abcd");
    h.request.head.read_count = 2;
    ck_assert_int_eq(tierce__kvcm_request(h.kvcm, &h.request.head, &read), 0);
    ck_assert_uint_eq(read.external_blocks, 2);
    ck_assert_uint_eq(read.external_hits, 4);
    ck_assert_uint_eq(turn(&h, ""), 0);
    stop(&h);
}
END_TEST

START_TEST(other_matches_are_left_out)
{
    struct harness h = start(TIERCE__KVCM_LRU, 9, (struct tierce__kvcm_tuning){0});
    struct tierce__kvcm_read read;
    put(&h, "ab");
    h.request.head.kind = TIERCE__TRACE_TURN;
    h.request.head.query = TIERCE__QUERY_ANY;
    ck_assert_int_eq(tierce__kvcm_request(h.kvcm, &h.request.head, &read), 0);
    ck_assert(!read.is_read);
    ck_assert_uint_eq(tierce__kvcm_result(h.kvcm)->requests, 1);
    stop(&h);
}
END_TEST

static void add_chain(struct tierce__kvcm_tree *tree, const char *chain, uint32_t *path)
{
    uint32_t keys[ALL_MAX], count = (uint32_t)strlen(chain);
    for (uint32_t i = 0; i < count; i++)
        keys[i] = (uint32_t)chain[i];
    uint32_t found = tierce__kvcm_tree_walk(tree, 0, keys, count, path);
    for (uint32_t i = 0; i < found; i++) {
        if (!tierce__kvcm_is_cached(tree, path[i]))
            tierce__kvcm_tree_fill(tree, path[i]);
    }
    ck_assert_int_eq(tierce__kvcm_tree_extend(tree, 0, keys, count, found, path), 0);
    for (uint32_t i = found; i < count; i++)
        tierce__kvcm_tree_fill(tree, path[i]);
}

/* However deep, and in whatever order its blocks were evicted, a branch of holes is removed; and
 * what is removed is used again. */
START_TEST(no_branch_of_holes_stays)
{
    struct tierce__kvcm_tree tree;
    uint32_t path[ALL_MAX], other[ALL_MAX];
    ck_assert_int_eq(tierce__kvcm_tree_init(&tree, 1, 4), 0);
    for (int round = 0; round < 4; round++) {
        add_chain(&tree, "abcdef", path);
        add_chain(&tree, "abcx", other);
        add_chain(&tree, "aby", other + 8);
        ck_assert_uint_eq(tree.table.count, 5); /* ab; c and y; def and x */
        ck_assert_uint_eq(tree.block_count, 1 + 8);
        ck_assert_uint_eq(tree.node_count, 1 + 5);
        ck_assert_int_eq(tierce__kvcm_tree_expect(&tree, 8), 0);
        tierce__kvcm_tree_evict(&tree, other[3]);
        for (int i = 0; i < 6; i++)
            tierce__kvcm_tree_evict(&tree, path[round % 2 == 0 ? i : 5 - i]);
        tierce__kvcm_tree_clean(&tree);
        ck_assert_uint_eq(tree.table.count, 2); /* ab, of holes, and y */
        ck_assert_int_eq(tierce__kvcm_tree_expect(&tree, 1), 0);
        tierce__kvcm_tree_evict(&tree, other[8 + 2]);
        tierce__kvcm_tree_clean(&tree);
        /* As in the original: ab has lost its blocks before. */
        ck_assert_uint_eq(tree.table.count, 1);
        add_chain(&tree, "ab", path);
        ck_assert_int_eq(tierce__kvcm_tree_expect(&tree, 2), 0);
        tierce__kvcm_tree_evict(&tree, path[1]);
        tierce__kvcm_tree_evict(&tree, path[0]);
        tierce__kvcm_tree_clean(&tree);
        ck_assert_uint_eq(tree.table.count, 0);
    }
    tierce__kvcm_tree_fini(&tree);
}
END_TEST

static int replay_all(enum tierce__kvcm_kind kind)
{
    static const char *const chains[] = {"abcdef", "abcxyz", "abq", "uvw", "abcdef", "r", "uvwst"};
    struct tierce__kvcm_layout layout = {0};
    struct tierce__kvcm *kvcm = NULL;
    struct tierce__kvcm_read read;
    struct {
        struct tierce__recorded head;
        uint32_t blocks[8];
    } request;
    int rc =
        tierce__kvcm_layout_single(&layout, 1, kind, 5, &(struct tierce__kvcm_tuning){.batch = 2});
    if (rc == 0)
        rc = tierce__kvcm_create(&kvcm, &(struct tierce__kvcm_opts){
                                            .size = sizeof(struct tierce__kvcm_opts),
                                            .layout = &layout,
                                            .distinct = 1, /* so that everything must grow */
                                            .matches = matches,
                                            .match_count = 2,
                                        });
    for (uint32_t i = 0; rc == 0 && i < 7; i++) {
        request.head = (struct tierce__recorded){.time_us = i, .kind = TIERCE__TRACE_TURN};
        request.head.count = request.head.read_count = request.head.stored =
            (uint32_t)strlen(chains[i]);
        for (uint32_t b = 0; b < request.head.count; b++)
            request.blocks[b] = (uint32_t)chains[i][b];
        rc = tierce__kvcm_request(kvcm, &request.head, &read);
    }
    tierce__kvcm_destroy(kvcm);
    tierce__kvcm_layout_clear(&layout);
    return rc;
}

START_TEST(every_allocation_may_fail)
{
    for (int kind = 0; kind < 3; kind++) {
        uint64_t live = tierce__alloc_live();
        tierce__alloc_fail_nth(0);
        ck_assert_int_eq(replay_all(kind), 0);
        uint64_t count = tierce__alloc_fail_nth(0);
        for (uint64_t nth = 1; nth <= count; nth++) {
            tierce__alloc_fail_nth(nth);
            ck_assert_int_eq(replay_all(kind), -ENOMEM);
            ck_assert_uint_eq(tierce__alloc_live(), live);
        }
        tierce__alloc_fail_nth(0);
    }
}
END_TEST

START_TEST(bad_options_are_refused)
{
    struct tierce__kvcm_layout layout = {0};
    struct tierce__kvcm *kvcm;
    static const struct tierce__match stream = {TIERCE__MATCH_STREAM, 0};
    static const struct tierce__kvcm_tuning bad[] = {
        {.mode = 4}, {.batch = UINT32_MAX}, {.used_share = 1.5}, {.sample_rate = -1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(tierce__kvcm_layout_single(&layout, 1, TIERCE__KVCM_LRU, 1, &bad[i]),
                         TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__kvcm_layout_single(&layout, 1, TIERCE__KVCM_LRU, 1,
                                                &(struct tierce__kvcm_tuning){0}),
                     0);
    struct tierce__kvcm_opts opts = {
        .size = sizeof(opts), .layout = &layout, .matches = &stream, .match_count = 1};
    ck_assert_int_eq(tierce__kvcm_create(&kvcm, &opts), TIERCE_E_ARGUMENT);
    opts.match_count = 0;
    ck_assert_int_eq(tierce__kvcm_create(&kvcm, &opts), TIERCE_E_ARGUMENT);
    tierce__kvcm_layout_clear(&layout);
}
END_TEST

/* ---- the numbers of the original ---- */

static struct tierce__recording *record(const char *path)
{
    char why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    struct tierce__recording *recording;
    int rc = tierce__trace_open(&trace, path, NULL, why);
    ck_assert_msg(rc == 0, "%s %s", path, why);
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    while ((rc = tierce__trace_next(trace, &request)) > 0)
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    tierce__trace_close(trace);
    return recording;
}

static uint64_t hits_of(const struct tierce__recording *recording, enum tierce__kvcm_kind kind,
                        uint64_t capacity, const struct tierce__kvcm_tuning *tuning)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct tierce__kvcm_layout layout;
    struct tierce__kvcm *kvcm;
    struct tierce__kvcm_read read;
    uint64_t reads = 0;
    ck_assert_int_eq(tierce__kvcm_layout_single(&layout, totals.instances, kind, capacity, tuning),
                     0);
    ck_assert_int_eq(tierce__kvcm_create(&kvcm,
                                         &(struct tierce__kvcm_opts){
                                             .size = sizeof(struct tierce__kvcm_opts),
                                             .layout = &layout,
                                             .distinct = totals.distinct,
                                             .matches = matches,
                                             .match_count = 1,
                                         }),
                     0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        ck_assert_int_eq(tierce__kvcm_request(kvcm, r, &read), 0);
        reads += read.is_read;
    }
    ck_assert_uint_eq(reads, 102);
    ck_assert_uint_eq(tierce__kvcm_result(kvcm)->blocks, 4246);
    uint64_t hits = tierce__kvcm_result(kvcm)->hits[0];
    tierce__kvcm_destroy(kvcm);
    tierce__kvcm_layout_clear(&layout);
    return hits;
}

START_TEST(the_numbers_of_the_original)
{
    static const uint64_t expected[] = {2883, 2617, 3003};
    char path[4096];
    if (getenv("TIERCE_TEST_DATA") == NULL)
        return;
    snprintf(path, sizeof(path), "%s/traces/kvcm_event_publisher.log", getenv("TIERCE_TEST_DATA"));
    struct tierce__recording *recording = record(path);
    for (int kind = 0; kind < 3; kind++) {
        for (int mode = 1; mode <= 3; mode++)
            ck_assert_uint_eq(hits_of(recording, kind, 1000,
                                      &(struct tierce__kvcm_tuning){.mode = mode, .batch = 10}),
                              3265);
        ck_assert_uint_eq(
            hits_of(recording, kind, 300, &(struct tierce__kvcm_tuning){.mode = 3, .batch = 10}),
            expected[kind]);
    }
    tierce__recording_destroy(recording);
}
END_TEST

CHECK_MAIN("kvcm", .tests = {the_head_of_a_chain_leaves_first,
                             what_is_behind_a_hole_is_neither_counted_nor_touched,
                             a_read_touches_what_it_counts,
                             a_read_stores_nothing_and_a_write_touches_nothing,
                             a_hole_is_filled_when_it_is_written_again,
                             leaves_leave_first,
                             in_a_leaf_the_head_leaves_first_too,
                             an_old_run_comes_back_as_it_stood,
                             a_new_run_comes_back_turned_round,
                             a_run_from_the_middle_comes_back_as_it_stood,
                             a_leaf_of_holes_goes_with_its_node,
                             rough_modes_overshoot,
                             a_quota_is_shared,
                             no_more_than_there_is_leaves,
                             only_a_share_of_the_capacity_is_used,
                             random_lru_takes_the_oldest_of_what_it_draws,
                             what_the_engine_held_counts_apart,
                             hits_of_a_turn_may_be_more_than_it_asks_for,
                             other_matches_are_left_out,
                             no_branch_of_holes_stays,
                             every_allocation_may_fail,
                             bad_options_are_refused,
                             the_numbers_of_the_original})
