/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_RANDOM_H
#define TIERCE_TESTS_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mix.h"

/*
 * Random numbers for property tests. The seed is drawn from the clock and printed, so that a
 * failure can be played again: TIERCE_TEST_SEED=n sets it. TIERCE_TEST_SCALE=n makes the tests
 * that ask for it n times as long.
 */
struct test_random {
    uint64_t state;
};

static inline struct test_random test_random_start(const char *test)
{
    const char *text = getenv("TIERCE_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10)
                                 : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    printf("%s: TIERCE_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    fflush(stdout);
    return (struct test_random){seed};
}

/* 64 random bits (splitmix64). */
static inline uint64_t test_random_u64(struct test_random *random)
{
    return tierce__random_next(&random->state);
}

/* A number below `bound` (> 0). */
static inline uint32_t test_random_below(struct test_random *random, uint32_t bound)
{
    return (uint32_t)(((test_random_u64(random) >> 32) * bound) >> 32);
}

/*
 * Half of the rounds with the address sanitizer, whose seeds differ from run to run, and an eighth
 * with the thread sanitizer: it makes a round ten times slower, and it reports a race that is
 * possible between two threads when both have been there, not when they have collided. All of them
 * run without a sanitizer, in `make test-long` and by hand.
 */
#if defined(__SANITIZE_THREAD__)
#define TEST_ROUNDS(count) ((count) / 8)
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_ROUNDS(count) ((count) / 2)
#else
#define TEST_ROUNDS(count) (count)
#endif

/* By how much TIERCE_TEST_SCALE makes this run longer. */
static inline unsigned test_scale(void)
{
    const char *text = getenv("TIERCE_TEST_SCALE");
    unsigned scale = text != NULL ? (unsigned)strtoul(text, NULL, 10) : 1;
    return scale > 0 ? scale : 1;
}

#endif
