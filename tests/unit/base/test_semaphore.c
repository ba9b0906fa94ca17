/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/semaphore.h"
#include "check_main.h"
#include "test_random.h"

#include <pthread.h>
#include <stdatomic.h>

static struct tierce__semaphore semaphore;

struct client {
    struct tierce__semaphore_waiter waiter;
    bool granted;
};

static void note_granted(void *arg)
{
    ((struct client *)arg)->granted = true;
}

static bool come(struct client *client, uint64_t units)
{
    *client = (struct client){.waiter = {.units = units, .granted = note_granted, .arg = client}};
    return tierce__semaphore_take(&semaphore, &client->waiter);
}

START_TEST(units_are_served_in_the_order_of_coming)
{
    struct client g[4];
    tierce__semaphore_init(&semaphore, 10);
    ck_assert(come(&g[0], 6));
    ck_assert(!come(&g[1], 5));
    ck_assert(!come(&g[2], 1)); /* there would be room, but it is not its turn */
    ck_assert(!come(&g[3], 10));
    ck_assert_uint_eq(tierce__semaphore_used(&semaphore), 6);
    tierce__semaphore_give(&semaphore, 1);
    ck_assert(g[1].granted && !g[2].granted);
    tierce__semaphore_give(&semaphore, 5);
    ck_assert(g[2].granted && !g[3].granted);
    ck_assert_uint_eq(tierce__semaphore_used(&semaphore), 5 + 1);
    tierce__semaphore_give(&semaphore, 6);
    ck_assert(g[3].granted);
    tierce__semaphore_give(&semaphore, 10);
    tierce__semaphore_fini(&semaphore);
}
END_TEST

START_TEST(who_leaves_the_queue_lets_the_next_ones_pass)
{
    struct client g[3];
    tierce__semaphore_init(&semaphore, 10);
    ck_assert(come(&g[0], 6));
    ck_assert(!come(&g[1], 10));
    ck_assert(!come(&g[2], 4));
    ck_assert(tierce__semaphore_leave(&semaphore, &g[1].waiter));
    ck_assert(g[2].granted && !g[1].granted);
    ck_assert(!tierce__semaphore_leave(&semaphore, &g[2].waiter)); /* too late: it has them */
    tierce__semaphore_give(&semaphore, 10);
    tierce__semaphore_fini(&semaphore);
}
END_TEST

START_TEST(none_and_all)
{
    struct client g;
    tierce__semaphore_init(&semaphore, 0);
    ck_assert(come(&g, 0));
    tierce__semaphore_give(&semaphore, 0);
    tierce__semaphore_fini(&semaphore);
    tierce__semaphore_init(&semaphore, UINT64_MAX);
    ck_assert(come(&g, UINT64_MAX));
    struct client next;
    ck_assert(!come(&next, 1));
    tierce__semaphore_give(&semaphore, UINT64_MAX);
    ck_assert(next.granted);
    tierce__semaphore_give(&semaphore, 1);
    tierce__semaphore_fini(&semaphore);
}
END_TEST

enum { THREADS = 4, TURNS = 2000, CAPACITY = 100 };

static _Atomic uint64_t taken;

struct turn {
    struct tierce__semaphore_waiter waiter;
    _Atomic bool granted;
};

static void grant_turn(void *arg)
{
    atomic_store(&((struct turn *)arg)->granted, true);
}

static void hold_for_a_moment(uint64_t units)
{
    ck_assert_uint_le(atomic_fetch_add(&taken, units) + units, CAPACITY);
    atomic_fetch_sub(&taken, units);
    tierce__semaphore_give(&semaphore, units);
}

static void *take_turns(void *arg)
{
    struct test_random random = {*(uint64_t *)arg};
    for (int i = 0; i < TURNS; i++) {
        struct turn turn = {.waiter = {.units = test_random_below(&random, CAPACITY + 1),
                                       .granted = grant_turn,
                                       .arg = &turn}};
        bool has = tierce__semaphore_take(&semaphore, &turn.waiter);
        bool leaves = !has && test_random_below(&random, 3) == 0;
        if (leaves && tierce__semaphore_leave(&semaphore, &turn.waiter))
            continue;
        while (!has && !atomic_load(&turn.granted))
            sched_yield();
        hold_for_a_moment(turn.waiter.units);
    }
    return NULL;
}

START_TEST(many_threads_never_hold_more_than_there_is_and_all_are_served)
{
    struct test_random random = test_random_start("semaphore");
    pthread_t threads[THREADS];
    uint64_t seeds[THREADS];
    tierce__semaphore_init(&semaphore, CAPACITY);
    for (size_t i = 0; i < THREADS; i++) {
        seeds[i] = test_random_u64(&random);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_turns, &seeds[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(tierce__semaphore_used(&semaphore), 0);
    tierce__semaphore_fini(&semaphore);
}
END_TEST

CHECK_MAIN("semaphore", .seconds = 60,
           .tests = {units_are_served_in_the_order_of_coming,
                     who_leaves_the_queue_lets_the_next_ones_pass, none_and_all,
                     many_threads_never_hold_more_than_there_is_and_all_are_served})
