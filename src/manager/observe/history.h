/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_HISTORY_H
#define TIERCE_MANAGER_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Recent history of a manager's metrics, for its web page: a ring of samples in memory. It holds at
 * most `samples_max` samples of `groups_max` groups each, below 3 MiB with the defaults; the oldest
 * samples are overwritten.
 *
 * Threads: any.
 */

enum {
    TIERCE__HISTORY_INTERVAL_MS = 5000,
    TIERCE__HISTORY_SAMPLES_MAX = 720, /* an hour */
    TIERCE__HISTORY_GROUPS_MAX = 128,
};

struct tierce__history_group {
    uint16_t number; /* the group's number in the registry, never reused */
    uint64_t serving_bytes, writing_bytes, deleting_bytes;
};

struct tierce__history_sample {
    uint64_t sequence; /* 1 and more, given by tierce__history_add */
    int64_t at_us;     /* wall clock */
    /* Since the start, or since this manager began to lead. */
    uint64_t calls, errors;
    uint64_t asked_keys, found_keys;
    uint64_t reclaimed_blocks, deleted_locations;
    const struct tierce__history_group *groups;
    size_t group_count;
};

struct tierce__history;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__history_create(struct tierce__history **out, size_t samples_max,
                                          size_t groups_max);
void tierce__history_destroy(struct tierce__history *history);

/* Stores a copy of the sample with its first groups_max groups. -ENOMEM: the sample is dropped. */
TIERCE_MUSTUSE int tierce__history_add(struct tierce__history *history,
                                       const struct tierce__history_sample *sample);

/* Calls `each` for the samples after a sequence number, oldest first. Returns the newest sample's
 * number, or 0. [borrow] for the call of `each`, which must take no lock. */
uint64_t tierce__history_each(struct tierce__history *history, uint64_t after,
                              void (*each)(void *arg, const struct tierce__history_sample *sample),
                              void *arg);

#endif
