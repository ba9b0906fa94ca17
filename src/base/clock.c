/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

uint64_t tierce__now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

uint64_t tierce__wall_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME_COARSE, &ts);
    return ts.tv_sec > 0 ? (uint64_t)ts.tv_sec : 0;
}

uint64_t tierce__wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec > 0 ? (uint64_t)ts.tv_sec * 1000000ULL + (uint64_t)ts.tv_nsec / 1000 : 0;
}

uint64_t tierce__deadline_in_ms(uint32_t timeout_ms)
{
    if (timeout_ms == UINT32_MAX)
        return TIERCE__DEADLINE_NEVER;
    return tierce__now_ns() + timeout_ms * TIERCE__MS_NS;
}
