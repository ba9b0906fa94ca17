/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_VICTIMS_H
#define TIERCE_MANAGER_VICTIMS_H

#include "core/policy/policy.h"
#include "manager/locate/locator.h"
#include "manager/reclaim/reclaimer.h"

/*
 * Selects the blocks to evict so that a limit is kept (docs/inside/design/008-reclaim.md). Keys are
 * sampled from all instances under the limit, in proportion to their numbers of keys. The sample is
 * ordered by the policy's rank and handed to the deleter until the need is met. If the instances
 * have no more keys than the sample holds, the choice is exact.
 *
 * Thread: the reclaimer's, one at a time.
 */

#define TIERCE__RECLAIM_HALF_LIFE_US (3600ull * 1000000) /* of an LFU frequency */

/* The usual size of a sample, which of a smaller index is all of it; and a larger one evicts one
 * key in so many. */
enum { TIERCE__RECLAIM_SAMPLE_KEYS = 1000, TIERCE__RECLAIM_SLICE = 10 };

/* The policy that ranks the blocks of a group: enum tierce__reclaim_policy. */
const struct tierce__policy_ops *tierce__victims_policy(int32_t reclaim_policy);

/* How much to evict, and from which blocks. */
struct tierce__need {
    uint64_t bytes, keys; /* both must be met */
    const char *group;    /* only blocks of this group; NULL: of all groups */
    uint32_t instance;    /* only blocks of the instance with this number; 0: of all */
    const char *shared; /* only blocks of groups with this global_quota_group_name; NULL: of all */
    bool of_slot;       /* only locations of this kind of storage (type slot of quotas) */
    uint32_t slot;
    uint16_t storage; /* only locations in this storage; 0: in any */
    /* For each group of the catalog, whether its victims move to a colder candidate (demote.h); the
     * blocks of other groups stay. NULL: victims are evicted. */
    const bool *demotes;
};

/* Whether the need concerns locations in a storage of that type. */
bool tierce__need_concerns(const struct tierce__need *need, uint8_t type, uint16_t storage);

struct tierce__victims_opts {
    struct tierce__locator *locator;
    const struct tierce__catalog *catalog;
    const struct tierce__need *need;
    uint32_t sample_keys;
    uint64_t *random;
    tierce__reclaimer_submitted_fn submitted; /* or NULL */
    void *arg;
};

struct tierce__victims_stats {
    uint64_t blocks, locations,
        bytes;        /* evicted; a block counts if at least one of its locations was */
    uint64_t demoted; /* queued to be moved */
    uint64_t sampled_keys, used_again; /* used_again: used since they were sampled, so they stay */
};

/* Evicts as much as the need requires, or as much as possible. Errors are logged. */
void tierce__victims_take(const struct tierce__victims_opts *opts,
                          struct tierce__victims_stats *stats);

#endif
