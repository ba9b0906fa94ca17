/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STALE_H
#define TIERCE_MANAGER_STALE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Removal of the records of older generations: blocks that were invalidated (locator.h). One scan
 * of all records for each invalidation, and one after each change of the leader for an instance
 * that was ever invalidated: no note says that the last scan has ended.
 */

struct tierce__live;
struct tierce__removed;

/* The scan of an instance. Zeroed: no generation was swept but the first. */
struct tierce__stale_sweep {
    uint64_t swept;  /* there are no records of generations before this one */
    uint64_t target; /* of the scan in progress */
    bool is_scanning;
    uint64_t cursor;
    int64_t not_before_us; /* after a failure of the store */
};

/* Removes stale records, a bounded part in each call; their bytes are due for deletion after
 * delay_us. Adds to `removed`, and lowers *next_us to the time of the next call that is needed
 * (now: at once). Thread: one at a time for an instance. */
void tierce__live_sweep_stale(struct tierce__live *live, int64_t delay_us,
                              struct tierce__removed *removed, int64_t *next_us);

#endif
