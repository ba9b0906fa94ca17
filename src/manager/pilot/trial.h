/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_TRIAL_H
#define TIERCE_MANAGER_TRIAL_H

#include "core/policy/policy.h"
#include "manager/pilot/ghost_log.h"

/*
 * What would other policies and times to live have done with the last requests? A log of the sample
 * (ghost_log.h) is replayed in caches that are smaller in proportion, with the ranks and the order
 * of reclaim (optimizer/replay/ranked.h).
 *
 * The caches begin empty. Hits count from the first request after which the first cache, that of
 * the present setting, has lost a block, or from the middle of the log; or from a time that the
 * caller gives. All caches count the same lookups, so that differences between them are much more
 * exact than their hits.
 *
 * Error. The difference to the first setting is taken for each of 16 parts of the keys and each of
 * 8 parts of the time. Their variances yield the standard error of the whole; the larger one of
 * both counts.
 *
 * Threads: any; nothing is shared.
 */

enum { TIERCE__TRIAL_SETTINGS_MAX = 8 };

struct tierce__trial_setting {
    const struct tierce__policy_ops *policy; /* with a rank */
    int64_t ttl_us;                          /* 0: none */
};

struct tierce__trial_opts {
    size_t size;
    const struct tierce__ghost_log *log;
    double bytes;                                 /* that the cache may hold */
    int64_t from_us;                              /* lookups count from there; 0: as above */
    const struct tierce__trial_setting *settings; /* the first is the present one */
    size_t count;                                 /* 1 .. TIERCE__TRIAL_SETTINGS_MAX */
};

struct tierce__trial {
    double seconds;    /* of the counted lookups; 0: none were counted */
    double asked;      /* tokens */
    uint64_t sampled;  /* keys that were looked up */
    uint32_t capacity; /* blocks of the sample */
    struct tierce__trial_hits {
        double tokens;
        double more, error; /* than with the first setting; standard error */
    } hits[TIERCE__TRIAL_SETTINGS_MAX];
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__trial_run(struct tierce__trial *out,
                                     const struct tierce__trial_opts *opts);

#endif
