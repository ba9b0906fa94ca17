/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CLOCK_H
#define TIERCE_BASE_CLOCK_H

#include <stdint.h>

/*
 * Time. Deadlines are absolute values of the monotonic clock in nanoseconds, so that a jump of
 * the wall clock changes nothing; the wall clock is only ever written down, never waited for.
 */

#define TIERCE__MS_NS          1000000ULL
#define TIERCE__DEADLINE_NEVER UINT64_MAX

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t tierce__now_ns(void);

/* Seconds since 1970 of the wall clock. */
uint64_t tierce__wall_s(void);

/* The same in microseconds. */
uint64_t tierce__wall_us(void);

/* The deadline `timeout_ms` from now, saturating; UINT32_MAX means never. */
uint64_t tierce__deadline_in_ms(uint32_t timeout_ms);

#endif
