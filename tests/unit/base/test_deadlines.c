/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/deadlines.h"
#include "check_main.h"
#include "test_random.h"

#include <errno.h>
#include <stdbool.h>

struct item {
    struct tierce__deadline deadline;
    bool is_set, has_expired, is_odd;
};

static uint64_t now;

static void note(struct tierce__deadline *deadline)
{
    struct item *item = (struct item *)deadline;
    ck_assert(item->is_set && !item->has_expired && deadline->at <= now);
    item->has_expired = true;
    item->is_set = false;
}

static void expect_first(const struct tierce__deadlines *heap, const struct item *items,
                         size_t count)
{
    const struct tierce__deadline *first = tierce__deadlines_first(heap);
    uint64_t next = TIERCE__DEADLINE_NEVER;
    bool in_place = true;
    for (size_t i = 0; i < count; i++) {
        in_place = in_place && items[i].is_set == (items[i].deadline.place != 0);
        if (items[i].is_set && items[i].deadline.at < next)
            next = items[i].deadline.at;
    }
    ck_assert(in_place);
    ck_assert(tierce__deadlines_next(heap) == next);
    ck_assert((first != NULL ? first->at : TIERCE__DEADLINE_NEVER) == next);
}

static bool is_odd(struct tierce__deadline *deadline)
{
    ck_assert_uint_le(deadline->at, now);
    return ((const struct item *)deadline)->is_odd;
}

static void check_find(const struct tierce__deadlines *heap, const struct item *items, size_t count)
{
    struct tierce__deadline *found = tierce__deadlines_find_due(heap, now, is_odd);
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any = any || (items[i].is_set && items[i].is_odd && items[i].deadline.at <= now);
    ck_assert(any == (found != NULL));
    ck_assert(found == NULL || (found->place != 0 && is_odd(found)));
}

START_TEST(random_steps_agree_with_a_list)
{
    enum { COUNT = 100 };
    struct test_random random = test_random_start("deadlines");
    struct tierce__deadlines heap = {0};
    static struct item items[COUNT];
    for (int i = 0; i < COUNT; i++) {
        items[i].deadline.expired = note;
        items[i].is_odd = i % 2 != 0;
    }
    for (int step = 0; step < 5000; step++) {
        struct item *item = &items[test_random_below(&random, COUNT)];
        switch (test_random_below(&random, 4)) {
        case 0:
        case 1: {
            uint64_t at = now + test_random_below(&random, 100);
            ck_assert_int_eq(tierce__deadline_set(&heap, &item->deadline, at), 0);
            item->is_set = true;
            item->has_expired = false;
            break;
        }
        case 2:
            tierce__deadline_unset(&heap, &item->deadline);
            item->is_set = false;
            break;
        default:
            now += test_random_below(&random, 3);
            for (int i = 0; i < COUNT; i++)
                items[i].has_expired = false;
            check_find(&heap, items, COUNT);
            tierce__deadlines_expire(&heap, now);
            ck_assert(tierce__deadlines_next(&heap) > now);
        }
        expect_first(&heap, items, COUNT);
    }
    tierce__deadlines_fini(&heap);
}
END_TEST

START_TEST(without_memory_it_is_in_no_heap_and_what_was_in_moves)
{
    struct tierce__deadlines heap = {0};
    struct tierce__deadline first = {0}, second = {0};
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__deadline_set(&heap, &first, 7), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(first.place, 0);
    ck_assert_ptr_null(tierce__deadlines_first(&heap));
    ck_assert_int_eq(tierce__deadline_set(&heap, &first, 7), 0);
    ck_assert_int_eq(tierce__deadline_set(&heap, &second, 8), 0);
    ck_assert_int_eq(tierce__deadline_set(&heap, &first, 9), 0);
    ck_assert_ptr_eq(tierce__deadlines_first(&heap), &second);
    tierce__deadline_unset(&heap, &second);
    tierce__deadline_unset(&heap, &second);
    ck_assert_uint_eq(tierce__deadlines_next(&heap), 9);
    tierce__deadlines_fini(&heap);
}
END_TEST

/* `expired` of one unsets another that is due too, and sets a third. */
static struct tierce__deadlines chain_heap;
static struct tierce__deadline chain[3];
static int chain_calls;

static void unset_and_set(struct tierce__deadline *deadline)
{
    chain_calls++;
    ck_assert_uint_eq(deadline->place, 0);
    tierce__deadline_unset(&chain_heap, &chain[1]);
    ck_assert_int_eq(tierce__deadline_set(&chain_heap, &chain[2], 3), 0);
}

static void count_call(struct tierce__deadline *deadline)
{
    (void)deadline;
    chain_calls++;
}

START_TEST(what_expires_may_set_and_unset_others)
{
    chain[0].expired = unset_and_set;
    chain[1].expired = chain[2].expired = count_call;
    ck_assert_int_eq(tierce__deadline_set(&chain_heap, &chain[0], 1), 0);
    ck_assert_int_eq(tierce__deadline_set(&chain_heap, &chain[1], 2), 0);
    tierce__deadlines_expire(&chain_heap, 5);
    ck_assert_int_eq(chain_calls, 2);
    ck_assert_uint_eq(chain_heap.count, 0);
    tierce__deadlines_fini(&chain_heap);
}
END_TEST

CHECK_MAIN("deadlines", .tests = {random_steps_agree_with_a_list,
                                  without_memory_it_is_in_no_heap_and_what_was_in_moves,
                                  what_expires_may_set_and_unset_others})
