/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LATENCY_H
#define TIERCE_BASE_LATENCY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Counts of durations in buckets whose bounds grow as 1, 2, 5, 10: from 10 us to 50 s. Zeroed is
 * empty. Thread: any; relaxed counters, so a reader may see only one of two counters that were
 * changed together.
 */

#define TIERCE__LATENCY_BUCKETS 22u /* the last has no bound */

struct tierce__latency {
    _Atomic uint64_t counts[TIERCE__LATENCY_BUCKETS];
    _Atomic uint64_t sum_ns;
};

void tierce__latency_add(struct tierce__latency *latency, uint64_t ns);

/* The upper bound of bucket `index`, below BUCKETS - 1, itself included. */
uint64_t tierce__latency_bound_ns(size_t index);

#endif
