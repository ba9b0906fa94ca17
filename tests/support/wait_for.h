/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_WAIT_FOR_H
#define TIERCE_TESTS_WAIT_FOR_H

#include "base/clock.h"
#include "check_main.h"

#include <unistd.h>

/* Waits until the condition is true. The test fails if that takes longer than the limit. */
#define WAIT_WITHIN(limit_ms, condition)                                                           \
    do {                                                                                           \
        uint64_t until_ns_ = tierce__deadline_in_ms(limit_ms);                                     \
        while (!(condition)) {                                                                     \
            ck_assert_msg(tierce__now_ns() < until_ns_, "never: " #condition);                     \
            usleep(1000);                                                                          \
        }                                                                                          \
    } while (0)

/* The same where nothing but the speed of the machine decides when it becomes true. */
#define WAIT_FOR(condition) WAIT_WITHIN(120000, condition)

#endif
