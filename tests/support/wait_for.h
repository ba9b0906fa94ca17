/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_WAIT_FOR_H
#define TIERCE_TESTS_WAIT_FOR_H

#include "base/clock.h"
#include "check_main.h"

#include <unistd.h>

/* Waits until the condition is true. The test fails if that takes longer than WAIT_FOR_MS, which
 * each program defines: only it knows how slow the threads and servers are that it waits for. */
#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        uint64_t until_ns_ = tierce__deadline_in_ms(WAIT_FOR_MS);                                  \
        while (!(condition)) {                                                                     \
            ck_assert_msg(tierce__now_ns() < until_ns_, "never: " #condition);                     \
            usleep(1000);                                                                          \
        }                                                                                          \
    } while (0)

#endif
