/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_HEALTH_CLOCK_H
#define TIERCE_TESTS_HEALTH_CLOCK_H

/* The health of a tier under a clock of the test's own. The test is linked with
 * --wrap=tierce__now_ns. */
#include "base/clock.h"
#include "engine/health/health.h"

static struct tierce__health health;
static struct tierce__key key;

/* The clock of the tests that call setup, which stands still but for let_pass; 0: the real one. */
static _Atomic uint64_t clock_ns;
uint64_t __real_tierce__now_ns(void);
uint64_t __wrap_tierce__now_ns(void);

uint64_t __wrap_tierce__now_ns(void)
{
    uint64_t now_ns = clock_ns;
    return now_ns != 0 ? now_ns : __real_tierce__now_ns();
}

static inline void let_pass(uint32_t ms)
{
    clock_ns += ms * TIERCE__MS_NS;
}

static inline void setup(uint32_t errors, uint32_t window, uint32_t slow_ms)
{
    clock_ns = tierce__now_ns();
    tierce__health_init(&health, &(struct tierce__health_limits){.errors_max = errors,
                                                                 .window_errors_max = window,
                                                                 .slow_ms = slow_ms,
                                                                 .hang_ms = 20,
                                                                 .retry_ms = 30});
}

#endif
