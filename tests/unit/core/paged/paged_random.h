/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_PAGED_RANDOM_H
#define TIERCE_TESTS_PAGED_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mix.h"

/* A seed of the day, or the one that a failed run printed: TIERCE_TEST_SEED=n. */
static inline uint64_t random_seed(const char *test)
{
    const char *text = getenv("TIERCE_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10)
                                 : (uint64_t)now.tv_sec * 1000003U + (uint64_t)now.tv_nsec;
    printf("%s: TIERCE_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

/* splitmix64 */
static inline uint64_t random_next(uint64_t *state)
{
    return tierce__random_next(state);
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_next(state) % limit;
}

static inline void random_fill(uint64_t *state, uint8_t *bytes, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word = random_next(state);
        memcpy(bytes + i, &word, 8);
    }
    for (; i < n; i++)
        bytes[i] = (uint8_t)random_next(state);
}

#endif
