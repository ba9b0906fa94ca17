/* SPDX-License-Identifier: Apache-2.0 */
/* Hints of clients in the manager: what they change in the reclaimer's order, and whether they come
 * true. */
#include "check_main.h"
#include "manager/meta/hint.h"
#include "manager_reclaim.h"

static const uint16_t closed = TIERCE__HINT_CLOSED;

static void open_small(struct harness *h)
{
    open_all(h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
}

static void hint(struct harness *h, int64_t key, uint16_t kind)
{
    int rc = tierce__locator_hint(h->locator, "i", &key, 1, kind, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static void read_with(struct harness *h, int64_t key, uint16_t kind)
{
    struct tierce__got got = {0};
    const struct tierce__get_request request = {
        .instance_id = "i", .query = TIERCE__QUERY_BATCH, .keys = &key, .count = 1, .hint = kind};
    h->now_us += 2000000;
    ck_assert_int_eq(tierce__locator_get(h->locator, &request, &h->arena, &got, h->why), 0);
    ck_assert_uint_eq(got.hits, 1);
}

static struct tierce__policy_hints outcomes(struct harness *h)
{
    return harness_usage(h).hints;
}

START_TEST(blocks_of_closed_sessions_leave_first)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 8);
    hint(&h, 6, closed);
    read_with(&h, 7, closed); /* the block that was used last */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    for (int64_t key = 0; key < 8; key++)
        ck_assert_msg(is_there(&h, key) == (key >= 1 && key <= 5), "key %d", (int)key);
    close_all(&h);
}
END_TEST

START_TEST(a_use_without_a_hint_ends_it)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 8);
    read_with(&h, 7, closed);
    read_with(&h, 7, 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(is_there(&h, 7));
    close_all(&h);
}
END_TEST

START_TEST(a_time_to_live_counts_from_the_last_use)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 8);
    read_with(&h, 7, tierce__hint_make(TIERCE__HINT_TTL, 10));
    h.now_us += _i == 0 ? 9999999 : 10000000;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(is_there(&h, 7) == (_i == 0));
    close_all(&h);
}
END_TEST

/* Sessions that are said to be closed return as often as others: from then on the hint counts for
 * nothing. */
START_TEST(a_hint_that_proves_wrong_loses_its_weight)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 8);
    for (int i = 0; i < 200; i++) {
        read_with(&h, 0, 0);
        read_with(&h, 7, closed);
    }
    struct tierce__policy_hints seen = outcomes(&h);
    ck_assert_uint_eq(seen.used[TIERCE__HINT_CLOSED], 200);
    ck_assert_uint_eq(seen.returned[TIERCE__HINT_CLOSED], 199);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(is_there(&h, 7));
    close_all(&h);
}
END_TEST

START_TEST(a_hint_that_comes_true_keeps_its_weight)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 1000 * BLOCK_BYTES, .watermark = 0.005});
    store_each(&h, 0, 8);
    for (int i = 0; i < 200; i++)
        read_with(&h, 0, 0);
    for (int64_t key = 100; key < 200; key++) {
        store_each(&h, key, 1);
        hint(&h, key, closed);
        (void)tierce__reclaimer_step(reclaimer);
    }
    struct tierce__policy_hints seen = outcomes(&h);
    ck_assert_uint_eq(seen.used[TIERCE__HINT_CLOSED], 100);
    ck_assert_uint_eq(seen.returned[TIERCE__HINT_CLOSED], 0);
    ck_assert(is_there(&h, 0));
    ck_assert(!is_there(&h, 199));
    close_all(&h);
}
END_TEST

/* The block was evicted because of its hint, and is stored again. */
START_TEST(an_evicted_block_can_return)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 8);
    hint(&h, 7, closed);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(!is_there(&h, 7));
    store_each(&h, 7, 1);
    ck_assert_uint_eq(outcomes(&h).returned[TIERCE__HINT_CLOSED], 1);
    store_each(&h, 100, 1);
    ck_assert_uint_eq(outcomes(&h).returned[TIERCE__HINT_CLOSED], 1);
    close_all(&h);
}
END_TEST

/* The ranks of a request read a block at the same time. */
START_TEST(uses_at_the_same_time_count_once)
{
    struct harness h;
    open_small(&h);
    store_each(&h, 0, 1);
    for (int rank = 0; rank < 4; rank++) {
        read_with(&h, 0, closed);
        h.now_us -= 2000000;
    }
    ck_assert_uint_eq(outcomes(&h).returned[TIERCE__HINT_CLOSED], 0);
    close_all(&h);
}
END_TEST

CHECK_MAIN("hints", .seconds = 20,
           .tests = {blocks_of_closed_sessions_leave_first, a_use_without_a_hint_ends_it,
                     a_hint_that_proves_wrong_loses_its_weight,
                     a_hint_that_comes_true_keeps_its_weight, an_evicted_block_can_return,
                     uses_at_the_same_time_count_once},
           .loops = {{a_time_to_live_counts_from_the_last_use, 0, 2}})
