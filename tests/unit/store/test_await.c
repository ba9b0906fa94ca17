/* SPDX-License-Identifier: Apache-2.0 */
#include "store/await.h"

#include "base/clock.h"
#include "check_main.h"
#include "test_random.h"

#include <pthread.h>

START_TEST(answers_before_the_wait_end_it_at_once)
{
    struct tierce__await await;
    tierce__await_begin(&await);
    ck_assert(tierce__await_end(&await, 0)); /* nothing is expected */
    for (int i = 0; i < 3; i++)
        tierce__await_expect(&await);
    for (int i = 0; i < 3; i++)
        ck_assert(!tierce__await_answer(&await));
    ck_assert(tierce__await_end(&await, 0));
}
END_TEST

static void *answer_twice(void *arg)
{
    for (int i = 0; i < 2; i++)
        ck_assert(!tierce__await_answer(arg));
    return NULL;
}

/* Rounds in which the answers and the wait meet at any place. */
START_TEST(a_wait_ends_with_the_last_answer)
{
    for (int round = 0; round < TEST_ROUNDS(2000); round++) {
        pthread_t threads[2];
        struct tierce__await await;
        tierce__await_begin(&await);
        for (int i = 0; i < 4; i++)
            tierce__await_expect(&await);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, answer_twice, &await), 0);
        ck_assert(tierce__await_end(&await, TIERCE__DEADLINE_NEVER));
        ck_assert(atomic_load(&await.left) <= 1);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
}
END_TEST

/* The last answer after the deadline learns that the memory is its own, others do not. */
START_TEST(the_last_answer_frees_an_abandoned_wait)
{
    struct tierce__await await;
    tierce__await_begin(&await);
    tierce__await_expect(&await);
    tierce__await_expect(&await);
    uint64_t deadline_ns = tierce__now_ns() + 5 * TIERCE__MS_NS;
    ck_assert(!tierce__await_end(&await, deadline_ns));
    ck_assert_uint_ge(tierce__now_ns(), deadline_ns);
    ck_assert(!tierce__await_answer(&await));
    ck_assert(tierce__await_answer(&await));
}
END_TEST

struct race {
    struct tierce__await await;
    _Atomic int owners; /* who may free it: exactly one */
};

static void *answer_late(void *arg)
{
    struct race *race = arg;
    if (tierce__await_answer(&race->await))
        atomic_fetch_add(&race->owners, 1);
    return NULL;
}

/* Rounds in which the answer and the deadline meet: either the waiter or the answer is the owner.
 */
START_TEST(an_answer_at_the_deadline_has_one_owner)
{
    for (int round = 0; round < TEST_ROUNDS(2000); round++) {
        pthread_t thread;
        struct race race = {.owners = 0};
        tierce__await_begin(&race.await);
        tierce__await_expect(&race.await);
        ck_assert_int_eq(pthread_create(&thread, NULL, answer_late, &race), 0);
        if (tierce__await_end(&race.await, tierce__now_ns() + (uint64_t)round % 64 * 2000))
            atomic_fetch_add(&race.owners, 1);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(atomic_load(&race.owners), 1);
    }
}
END_TEST

CHECK_MAIN("await", .seconds = 120,
           .tests = {answers_before_the_wait_end_it_at_once, a_wait_ends_with_the_last_answer,
                     the_last_answer_frees_an_abandoned_wait,
                     an_answer_at_the_deadline_has_one_owner})
