/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_HISTORY_H
#define TIERCE_MANAGER_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * What a manager's numbers were in the last while, for its web page: a ring of samples, in memory
 * only. It holds at most `samples_max` samples of `groups_max` groups each, below 3 MiB with the
 * defaults; what is older than that is forgotten.
 *
 * Threads: any.
 */

enum {
    TIERCE__HISTORY_INTERVAL_MS = 5000,
    TIERCE__HISTORY_SAMPLES_MAX = 720, /* an hour */
    TIERCE__HISTORY_GROUPS_MAX = 128,
};

struct tierce__history_group {
    uint16_t number; /* of the registry: never given again */
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

/* Keeps a copy, with the first groups_max of its groups. -ENOMEM: the sample is left out. */
TIERCE_MUSTUSE int tierce__history_add(struct tierce__history *history,
                                       const struct tierce__history_sample *sample);

/* The samples after that sequence number, the oldest first; returns the newest one's number, or 0.
 * [borrow] for the call of `each`, which takes no lock. */
uint64_t tierce__history_each(struct tierce__history *history, uint64_t after,
                              void (*each)(void *arg, const struct tierce__history_sample *sample),
                              void *arg);

#endif
