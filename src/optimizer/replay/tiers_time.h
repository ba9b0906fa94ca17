/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TIERS_TIME_H
#define TIERCE_OPTIMIZER_TIERS_TIME_H

#include "optimizer/replay/tiers.h"

/*
 * Timing for tiers.c: the duration of operations, the backlog of each tier, and the load times of
 * all requests. Times are nanoseconds since the first request, capped at 2^63 - 1.
 *
 * A tier with a write speed has a queue: it does one operation at a time, in order. Without a write
 * speed a load begins at once, and writes take no time.
 */

/* Zeroed: free. */
struct tierce__tier_queue {
    uint64_t free_ns; /* when the tier has finished its backlog */
};

/* 0 for a time before the first. */
uint64_t tierce__tier_now_ns(int64_t first_us, int64_t time_us);

/* Adds a load of that many bytes and returns the time until it is done. Counts the waiting in
 * `result`. */
uint64_t tierce__tier_queue_load(struct tierce__tier_queue *queue,
                                 const struct tierce__tier_spec *spec, uint64_t now_ns,
                                 uint64_t bytes, struct tierce__tier_result *result);

/* Adds a write of 0 or more bytes; updates the queue's length in `result`. */
void tierce__tier_queue_write(struct tierce__tier_queue *queue,
                              const struct tierce__tier_spec *spec, uint64_t now_ns, uint64_t bytes,
                              struct tierce__tier_result *result);

/* Zeroed: none. */
struct tierce__load_times {
    uint64_t *ns; /* [room] */
    size_t count, room;
    bool sorted;
};

/* -ENOMEM. */
TIERCE_MUSTUSE int tierce__load_times_add(struct tierce__load_times *times, uint64_t ns);

/* As tierce__tiers_load_ns. */
uint64_t tierce__load_times_at(struct tierce__load_times *times, double share);

void tierce__load_times_clear(struct tierce__load_times *times);

#endif
