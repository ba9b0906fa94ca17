/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_SEEDS_H
#define TIERCE_TESTS_SIM_SEEDS_H

#include "test_random.h"

#include <stdlib.h>
#include <string.h>

/*
 * The seeds that a program of the simulation runs: without arguments, `runs` of them from 1 on, and
 * its corpus; fewer with a sanitizer, and `long_runs` without one in `make test-long`.
 * `--seed N [COUNT]` runs seeds from N on, and no other test.
 */
struct sim_seeds {
    int first, end;
    bool are_given, is_one;
};

static inline struct sim_seeds sim_seeds(int argc, char **argv, int runs, int long_runs)
{
    bool is_plain = TEST_ROUNDS(8) == 8, is_long = test_scale() > 1;
    int scaled = (int)(TEST_ROUNDS((unsigned)runs) * test_scale());
    struct sim_seeds s = {.first = 1, .end = 1 + (is_plain && is_long ? long_runs : scaled)};
    if (argc < 3 || strcmp(argv[1], "--seed") != 0)
        return s;
    int count = argc >= 4 ? atoi(argv[3]) : 1;
    s.first = atoi(argv[2]);
    return (struct sim_seeds){
        .first = s.first, .end = s.first + count, .are_given = true, .is_one = count == 1};
}

#endif
