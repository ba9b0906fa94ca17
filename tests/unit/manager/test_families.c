/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaim of the groups of layers of a hybrid model: what no lookup can use leaves first. */
#include "check_main.h"
#include "manager_hybrid.h"
#include "test_random.h"

enum { FULL_BYTES = 100, WINDOW_BYTES = 40, STATE_BYTES = 60, LENGTH = 8 };

static const struct hybrid_group full_group = {"full", "full", "f", 4, 0, 0, FULL_BYTES, "0-3"};
static const struct hybrid_group window_group = {"window", "window", "f",          4,
                                                 4,        0,        WINDOW_BYTES, "4-7"};
/* A token needs the nine before it: its own block's, and those of two more. */
static const struct hybrid_group long_group = {"window", "window", "f",          4,
                                               10,       0,        WINDOW_BYTES, "4-7"};
static const struct hybrid_group state_group = {"state", "linear", "f",         4,
                                                0,       4,        STATE_BYTES, "8-9"};

static struct harness h;

static void open_groups(const struct hybrid_group *const *groups, size_t count)
{
    open_all(&h, &(struct harness_opts){0});
    for (size_t i = 0; i < count; i++)
        hybrid_add(&h, groups[i]);
}

#define OPEN(...)                                                                                  \
    open_groups((const struct hybrid_group *[]){__VA_ARGS__},                                      \
                sizeof((const struct hybrid_group *[]){__VA_ARGS__}) / sizeof(void *))

/* A chain of blocks from `first` on, behind nothing; one block a second. */
static void store_chain(const char *id, int64_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t key = first + (int64_t)i, before = key - 1;
        h.now_us += 1000000;
        hybrid_store(&h, id, i > 0 ? &before : NULL, key);
    }
}

static void store_at(const char *id, int64_t first, const int *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t key = first + blocks[i] - 1, before = key - 1;
        hybrid_store(&h, id, blocks[i] > 1 ? &before : NULL, key);
    }
}

static void wait_a_minute(void)
{
    h.now_us += 60 * 1000000LL;
}

static void expect(const char *id, int64_t first, const char *blocks)
{
    const char *has = hybrid_blocks(&h, id, first, LENGTH);
    ck_assert_msg(strcmp(has, blocks) == 0, "%s: [%s], expected [%s]", id, has, blocks);
}

/* ---- windows --------------------------------------------------------------------------------- */

START_TEST(windows_inside_a_chain_leave_first)
{
    OPEN(&full_group, &window_group);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    store_chain("full", 200, LENGTH);
    store_chain("window", 200, LENGTH);
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 3 * WINDOW_BYTES), 3);
    expect("window", 100, "4 5 6 7 8"); /* the oldest of those inside */
    (void)hybrid_evict(&h, 11 * WINDOW_BYTES);
    expect("window", 100, "8");
    expect("window", 200, "8");
    expect("full", 100, "1 2 3 4 5 6 7 8");
    close_all(&h);
}
END_TEST

/* The end of the older chain serves nothing without its window, nor do the blocks before it. */
START_TEST(a_chain_leaves_with_its_window)
{
    OPEN(&full_group, &window_group);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    store_chain("full", 200, LENGTH);
    store_chain("window", 200, LENGTH);
    wait_a_minute();
    (void)hybrid_evict(&h, 14 * WINDOW_BYTES);
    /* One byte more: the oldest pair leaves, and then, before anything usable, its chain. */
    (void)hybrid_evict(&h, 1);
    expect("full", 200, "1 2 3 4 5 6 7 8");
    expect("window", 200, "8");
    (void)hybrid_evict(&h, 7 * FULL_BYTES + WINDOW_BYTES);
    expect("full", 100, "");
    expect("window", 100, "");
    expect("full", 200, "1 2 3 4 5 6 7 8");
    expect("window", 200, "8");
    close_all(&h);
}
END_TEST

/* Where two prompts part, a third one may part too. */
START_TEST(a_window_at_a_branch_stays)
{
    static const int64_t branch = 103;
    OPEN(&full_group, &window_group);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    hybrid_store(&h, "full", &branch, 200);
    hybrid_store(&h, "window", &branch, 200);
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 6 * WINDOW_BYTES), 6);
    expect("window", 100, "4 8");
    ck_assert(hybrid_has(&h, "window", 200));
    close_all(&h);
}
END_TEST

/* Three blocks before an end are one window: no part of it can be used alone. */
START_TEST(a_long_window_stays_whole)
{
    OPEN(&full_group, &long_group);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    store_chain("full", 200, LENGTH);
    store_chain("window", 200, LENGTH);
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 10 * WINDOW_BYTES), 10);
    expect("window", 100, "6 7 8");
    expect("window", 200, "6 7 8");
    ck_assert_uint_eq(hybrid_evict(&h, LENGTH * FULL_BYTES + 3 * WINDOW_BYTES), LENGTH + 3);
    expect("window", 100, "");
    expect("full", 100, "");
    close_all(&h);
}
END_TEST

/* The chunks of the window are half as long, and the pool has full attention up to every other end
 * only. */
START_TEST(windows_that_end_inside_a_block_serve_nothing)
{
    static const struct hybrid_group half = {"window", "window", "f", 2, 2, 0, WINDOW_BYTES, "4-7"};
    OPEN(&full_group, &half);
    store_chain("full", 100, 4);
    for (int64_t key = 100; key < 104; key++) { /* 900 to 903 lie in the middle of a block */
        int64_t middle = key + 800, before = key - 1;
        hybrid_store(&h, "window", key > 100 ? &before : NULL, middle);
        hybrid_store(&h, "window", &middle, key);
    }
    wait_a_minute();
    hybrid_use(&h, "window", 903);
    hybrid_use(&h, "window", 900);
    ck_assert_uint_eq(hybrid_evict(&h, 4 * WINDOW_BYTES), 4);
    expect("window", 900, "");
    expect("window", 100, "1 2 3 4");
    close_all(&h);
}
END_TEST

/* A window of two halves: the end needs both. */
START_TEST(half_a_block_of_a_long_window_stays)
{
    static const struct hybrid_group half = {"window", "window", "f", 2, 4, 0, WINDOW_BYTES, "4-7"};
    OPEN(&full_group, &half);
    store_chain("full", 100, 4);
    for (int64_t key = 100; key < 104; key++) {
        int64_t middle = key + 800, before = key - 1;
        hybrid_store(&h, "window", key > 100 ? &before : NULL, middle);
        hybrid_store(&h, "window", &middle, key);
    }
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 6 * WINDOW_BYTES), 6);
    expect("window", 900, "4");
    expect("window", 100, "4");
    close_all(&h);
}
END_TEST

/* ---- states ---------------------------------------------------------------------------------- */

START_TEST(a_state_is_worth_the_tokens_and_the_reads)
{
    static const int blocks[] = {1, 4, 5, 6, 8};
    OPEN(&full_group, &state_group);
    store_chain("full", 100, LENGTH);
    store_at("state", 100, blocks, 5);
    for (int i = 0; i < 2; i++) {
        hybrid_use(&h, "state", 103); /* three blocks, twice: 6 */
        hybrid_use(&h, "state", 104); /* one block: 2 */
        hybrid_use(&h, "state", 104); /* 4 */
        hybrid_use(&h, "state", 100); /* 2 */
    }
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, STATE_BYTES), 1);
    expect("state", 100, "1 4 5 8"); /* 6 was never read */
    ck_assert_uint_eq(hybrid_evict(&h, STATE_BYTES), 1);
    expect("state", 100, "4 5 8");
    ck_assert_uint_eq(hybrid_evict(&h, STATE_BYTES), 1);
    expect("state", 100, "4 8");
    ck_assert_uint_eq(hybrid_evict(&h, STATE_BYTES), 1);
    expect("state", 100, "8");
    close_all(&h);
}
END_TEST

/* Looks up a prompt that differs after `count` blocks of a chain. */
static void stop_after(const char *id, int64_t first, size_t count)
{
    int64_t keys[LENGTH + 1];
    struct tierce__got got;
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    keys[count] = 9999;
    struct tierce__get_request request = {
        .instance_id = id, .query = TIERCE__QUERY_PREFIX, .keys = keys, .count = count + 1};
    int rc = tierce__locator_get(h.locator, &request, &h.arena, &got, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    ck_assert_uint_eq(got.hits, count);
    tierce__arena_clear(&h.arena);
}

/* So many of 101 lookups stop inside a chain, the others at an end. Then two states are evicted;
 * the inner one of the older chain was read. */
static void evict_after_stops(int inside, const char *older, const char *newer)
{
    static const int blocks[] = {4, 8};
    OPEN(&full_group, &state_group);
    store_chain("full", 200, LENGTH);
    store_at("state", 200, blocks, 2);
    store_chain("full", 100, LENGTH);
    store_at("state", 100, blocks, 2);
    hybrid_use(&h, "state", 203);
    wait_a_minute();
    for (int i = 0; i < 100; i++)
        stop_after("full", 100, i < inside ? 3 : LENGTH);
    stop_after("full", 200, LENGTH);
    ck_assert_uint_eq(hybrid_evict(&h, 2 * STATE_BYTES), 2);
    expect("state", 200, older);
    expect("state", 100, newer);
    close_all(&h);
}

/* As long as prompts continue from ends, the states inside leave first. */
START_TEST(states_inside_leave_if_few_prompts_stop_there)
{
    evict_after_stops(20, "8", "8");
}
END_TEST

/* Those that no prompt read leave first. */
START_TEST(read_states_inside_stay_if_some_prompts_stop_there)
{
    evict_after_stops(21, "4", "8");
}
END_TEST

/* They leave by age: the older end first. */
START_TEST(states_inside_stay_if_many_prompts_stop_there)
{
    evict_after_stops(26, "4", "4 8");
}
END_TEST

/* Lookups of long ago count less and less. */
START_TEST(stops_fade)
{
    OPEN(&full_group, &state_group);
    store_chain("full", 100, LENGTH);
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "full", h.why), 0);
    for (int i = 0; i < TIERCE__STOPS_MOST; i++)
        stop_after("full", 100, 3);
    ck_assert(!tierce__stops_spare(tierce__live_stops(live), false));
    ck_assert_uint_eq(tierce__live_stops(live).all, TIERCE__STOPS_MOST / 2);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < TIERCE__STOPS_MOST / 2; k++)
            stop_after("full", 100, LENGTH);
        (void)tierce__live_stops(live);
    }
    ck_assert(tierce__stops_spare(tierce__live_stops(live), true));
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* An engine asks for a prompt of more blocks in several lookups: a row that is found in full is not
 * where the prompt stops. */
START_TEST(full_rows_of_long_prompts_are_no_stops)
{
    const struct tierce__record last = {.children = 1};
    struct tierce__live *live;
    OPEN(&full_group, &state_group);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "full", h.why), 0);
    tierce__live_count_stop(live, &last, TIERCE__LOOKUP_ROW, TIERCE__LOOKUP_ROW);
    tierce__live_count_stop(live, &last, 1, 1); /* a writer's question */
    ck_assert_uint_eq(tierce__live_stops(live).all, 0);
    tierce__live_count_stop(live, &last, TIERCE__LOOKUP_ROW - 1, TIERCE__LOOKUP_ROW);
    tierce__live_count_stop(live, &last, 2, 2);
    ck_assert_uint_eq(tierce__live_stops(live).inside, 2);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* The blocks behind the last state serve nothing, and are newer than everything else. */
START_TEST(blocks_behind_the_last_state_leave_first)
{
    static const int blocks[] = {5};
    OPEN(&full_group, &state_group);
    store_chain("full", 200, 2);
    store_at("state", 200, (const int[]){2}, 1);
    store_chain("full", 100, LENGTH);
    store_at("state", 100, blocks, 1);
    ck_assert_uint_eq(hybrid_evict(&h, FULL_BYTES + 1), 2); /* a state may follow: by age */
    expect("full", 200, "1");
    expect("state", 200, "");
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 4 * FULL_BYTES), 4);
    expect("full", 200, "");
    expect("full", 100, "1 2 3 4 5");
    expect("state", 100, "5");
    close_all(&h);
}
END_TEST

/* Without its chain, or without the other groups, a state serves nothing. */
START_TEST(a_state_without_its_chain_leaves_first)
{
    static const struct hybrid_group second = {"more", "linear", "f", 4, 0, 4, STATE_BYTES, "10"};
    OPEN(&full_group, &state_group, &second);
    store_chain("full", 100, LENGTH);
    store_at("state", 100, (const int[]){4, 8}, 2);
    store_at("more", 100, (const int[]){4, 8}, 2);
    store_at("state", 300, (const int[]){7}, 1);
    store_at("more", 300, (const int[]){7}, 1);
    wait_a_minute();
    hybrid_use(&h, "state", 306);
    hybrid_use(&h, "more", 306);
    ck_assert_uint_eq(hybrid_evict(&h, 2 * STATE_BYTES), 2);
    ck_assert(!hybrid_has(&h, "state", 306) && !hybrid_has(&h, "more", 306));
    int64_t gone = 103;
    hybrid_use(&h, "state", 103);
    ck_assert_int_eq(
        tierce__locator_remove(h.locator, "more", &gone, 1, &(struct tierce__mask){0}, h.why), 0);
    ck_assert_uint_eq(hybrid_evict(&h, 1), 1);
    expect("state", 100, "8");
    expect("more", 100, "8");
    expect("full", 100, "1 2 3 4 5 6 7 8");
    close_all(&h);
}
END_TEST

/* ---- families -------------------------------------------------------------------------------- */

/* A removed window or state makes no hole: blocks behind it stay. */
START_TEST(sparse_blocks_leave_no_holes)
{
    int64_t gone = 103;
    OPEN(&full_group, &window_group);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    ck_assert_int_eq(
        tierce__locator_remove(h.locator, "window", &gone, 1, &(struct tierce__mask){0}, h.why), 0);
    for (int i = 0; i < 5; i++)
        (void)tierce__reclaimer_step(reclaimer);
    expect("window", 100, "1 2 3 5 6 7 8");
    store_at("window", 100, (const int[]){4}, 1);
    expect("window", 100, "1 2 3 4 5 6 7 8");
    ck_assert_int_eq(
        tierce__locator_remove(h.locator, "full", &gone, 1, &(struct tierce__mask){0}, h.why), 0);
    for (int i = 0; i < 5; i++)
        (void)tierce__reclaimer_step(reclaimer);
    expect("full", 100, "1 2 3");
    close_all(&h);
}
END_TEST

/* Instances of clients that send no family, or of another one, are no pairs. */
START_TEST(other_instances_are_no_pairs)
{
    static const struct hybrid_group other = {"window", "window", "g",          4,
                                              4,        0,        WINDOW_BYTES, "4-7"};
    static const struct hybrid_group none = {"full", "", "", 4, 0, 0, FULL_BYTES, ""};
    OPEN(_i == 0 ? &full_group : &none, &other);
    store_chain("full", 100, 3);
    store_chain("window", 100, 3);
    wait_a_minute();
    /* By age alone, chains from their ends. */
    ck_assert_uint_eq(hybrid_evict(&h, 3 * FULL_BYTES), 3);
    expect("full", 100, "");
    expect("window", 100, "1 2 3");
    close_all(&h);
}
END_TEST

/* Engines were started with another chunk.tokens. While both generations have blocks, it is unknown
 * which windows a chain needs; then the old chain is empty. */
START_TEST(two_generations)
{
    static const struct hybrid_group old = {"old", "full", "f", 8, 0, 0, FULL_BYTES, "0-3"};
    OPEN(&old, &full_group, &window_group);
    store_chain("old", 300, 2);
    store_chain("full", 100, LENGTH);
    store_chain("window", 100, LENGTH);
    wait_a_minute();
    ck_assert_uint_eq(hybrid_evict(&h, 2 * FULL_BYTES), 2);
    expect("old", 300, "");
    ck_assert_uint_eq(hybrid_evict(&h, 7 * WINDOW_BYTES), 7);
    expect("window", 100, "8");
    expect("full", 100, "1 2 3 4 5 6 7 8");
    close_all(&h);
}
END_TEST

/* While two generations of the windows have blocks, no point needs either of them: a block of one
 * leaves without the state that has its key. */
START_TEST(a_generation_that_nothing_needs_takes_no_pairs)
{
    static const struct hybrid_group old = {"old", "window", "f", 4, 4, 0, WINDOW_BYTES, "4-7"};
    OPEN(&full_group, &old, &window_group, &state_group);
    store_chain("old", 100, LENGTH);
    store_chain("window", 200, 1);
    store_chain("full", 100, LENGTH);
    store_at("state", 100, (const int[]){8}, 1);
    wait_a_minute();
    stop_after("full", 100, LENGTH);
    hybrid_use(&h, "state", 107);
    for (int i = 0; i < LENGTH - 1; i++)
        hybrid_use(&h, "old", 100 + i);
    ck_assert_uint_eq(hybrid_evict(&h, WINDOW_BYTES + 1), 2);
    expect("old", 100, "1 2 3 4 5 6 7");
    expect("window", 200, "");
    expect("state", 100, "8");
    close_all(&h);
}
END_TEST

/* ---- partial samples ------------------------------------------------------------------------- */

/* 40 prompts of 8 blocks. The last of each are read, so that half of the prompts must leave: whole,
 * with their windows and states. */
START_TEST(a_sample_evicts_pairs)
{
    enum { PROMPTS = 40 };
    harness_open(&h, &(struct harness_opts){0});
    start_reclaimer(&h, 60);
    hybrid_add(&h, &full_group);
    hybrid_add(&h, &window_group);
    hybrid_add(&h, &state_group);
    for (int64_t p = 0; p < PROMPTS; p++) {
        store_chain("full", 100 * p, LENGTH);
        store_chain("window", 100 * p, LENGTH);
        store_at("state", 100 * p, (const int[]){4, 8}, 2);
    }
    wait_a_minute();
    for (int64_t p = PROMPTS / 2; p < PROMPTS; p++) {
        hybrid_use(&h, "window", 100 * p + LENGTH - 1);
        hybrid_use(&h, "state", 100 * p + LENGTH - 1);
        for (int64_t key = LENGTH - 1; key >= 0; key--)
            hybrid_use(&h, "full", 100 * p + key);
    }
    /* Windows and states inside, then half of the chains with their ends. */
    int64_t bytes = PROMPTS * (7 * WINDOW_BYTES + STATE_BYTES) +
                    PROMPTS / 2 * (LENGTH * FULL_BYTES + WINDOW_BYTES + STATE_BYTES);
    for (int i = 0; i < 4; i++)
        (void)hybrid_evict(&h, bytes / 4);
    int kept = 0, wrong = 0;
    for (int64_t p = 0; p < PROMPTS; p++) {
        int64_t end = 100 * p + LENGTH - 1;
        bool all = hybrid_has(&h, "full", end) && hybrid_has(&h, "window", end) &&
                   hybrid_has(&h, "state", end);
        kept += all;
        wrong += all != (p >= PROMPTS / 2);
    }
    ck_assert_msg(kept >= 18 && wrong <= 4, "%d prompts can be used, %d wrong ones", kept, wrong);
    close_all(&h);
}
END_TEST

/* ---- any prompts ----------------------------------------------------------------------------- */

enum { KEYS = 60 };

static struct {
    int parent[KEYS]; /* -1: the first of a prompt */
    int children[KEYS];
} tree;

/* Every block continues one of the blocks before it. */
static void grow_tree(struct test_random *random, bool has_states)
{
    for (int i = 0; i < KEYS; i++) {
        bool begins = i == 0 || test_random_below(random, 10) == 0;
        bool follows = test_random_below(random, 4) > 0;
        tree.parent[i] = begins    ? -1
                         : follows ? i - 1
                                   : (int)test_random_below(random, (uint32_t)i);
        int64_t before = tree.parent[i];
        h.now_us += 1000000;
        hybrid_store(&h, "full", begins ? NULL : &before, i);
        hybrid_store(&h, "window", begins ? NULL : &before, i);
        if (has_states && test_random_below(random, 2) == 0)
            hybrid_store(&h, "state", begins ? NULL : &before, i);
    }
    for (int i = 0; i < KEYS; i++) {
        if (test_random_below(random, 3) == 0)
            hybrid_use(&h, "full", i);
        if (test_random_below(random, 3) == 0)
            hybrid_use(&h, "window", i);
    }
}

static bool can_continue_at(int key, int run, bool has_states)
{
    bool can = hybrid_has(&h, "full", key) && (!has_states || hybrid_has(&h, "state", key));
    for (int i = 0, at = key; i < run && at >= 0; i++, at = tree.parent[at])
        can = can && hybrid_has(&h, "window", at);
    return can;
}

/* Whether it is unknown to the manager which blocks follow a block of a window. */
static bool may_go_on(int key, int run)
{
    struct tierce__record record;
    return run > 1 && hybrid_read(&h, "window", key, &record) &&
           record.children > (uint32_t)record.has_child;
}

/* Blocks of which it is known that no lookup needs them. */
static int count_useless(int run, bool has_states)
{
    bool needed[KEYS] = {false}, chain[KEYS] = {false};
    int useless = 0;
    for (int key = 0; key < KEYS; key++) {
        bool can = can_continue_at(key, run, has_states), may = may_go_on(key, run);
        for (int i = 0, at = key; (can || may) && at >= 0; i++, at = tree.parent[at]) {
            chain[at] |= can;
            needed[at] |= i < run;
        }
    }
    for (int key = 0; key < KEYS; key++) {
        useless += hybrid_has(&h, "full", key) && !chain[key];
        useless += hybrid_has(&h, "window", key) && !needed[key];
        useless +=
            has_states && hybrid_has(&h, "state", key) && !can_continue_at(key, run, has_states);
    }
    return useless;
}

static int count_usable(int run, bool has_states)
{
    int usable = 0;
    for (int key = 0; key < KEYS; key++)
        usable += can_continue_at(key, run, has_states);
    return usable;
}

/* As long as there is a block that no lookup can use, no point is lost at which a prompt could
 * continue. */
START_TEST(useless_blocks_leave_before_usable_ones)
{
    struct test_random random = test_random_start("families");
    int run = _i % 2 == 0 ? 1 : 3;
    bool has_states = _i / 2 == 1;
    OPEN(&full_group, run == 1 ? &window_group : &long_group);
    if (has_states)
        hybrid_add(&h, &state_group);
    grow_tree(&random, has_states);
    wait_a_minute();
    while (harness_usage(&h).keys > 0) {
        int useless = count_useless(run, has_states), usable = count_usable(run, has_states);
        size_t gone = hybrid_evict(&h, 1);
        ck_assert_uint_gt(gone, 0);
        ck_assert_msg(useless == 0 || count_usable(run, has_states) == usable,
                      "%d useless blocks, and %d usable points become %d", useless, usable,
                      count_usable(run, has_states));
    }
    close_all(&h);
}
END_TEST

CHECK_MAIN("families", .seconds = 120,
           .tests = {windows_inside_a_chain_leave_first, a_chain_leaves_with_its_window,
                     a_window_at_a_branch_stays, a_long_window_stays_whole,
                     windows_that_end_inside_a_block_serve_nothing,
                     half_a_block_of_a_long_window_stays, a_state_is_worth_the_tokens_and_the_reads,
                     states_inside_leave_if_few_prompts_stop_there,
                     read_states_inside_stay_if_some_prompts_stop_there,
                     states_inside_stay_if_many_prompts_stop_there, stops_fade,
                     full_rows_of_long_prompts_are_no_stops,
                     blocks_behind_the_last_state_leave_first,
                     a_state_without_its_chain_leaves_first, sparse_blocks_leave_no_holes,
                     two_generations, a_generation_that_nothing_needs_takes_no_pairs,
                     a_sample_evicts_pairs},
           .loops = {{other_instances_are_no_pairs, 0, 2},
                     {useless_blocks_leave_before_usable_ones, 0, 4}})
