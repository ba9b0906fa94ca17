/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REHEARSAL_H
#define TIERCE_MANAGER_REHEARSAL_H

#include "manager/pilot/pilot.h"
#include "optimizer/analysis/groups.h"

/*
 * Hits that the autopilot would have reached with recorded requests: one budget of blocks for
 * several groups with caches of their own (LRU). The caches are the optimizer's, with the eviction
 * code of production; curves and decisions come from the manager's code (ghosts.h, pilot.h), on a
 * clock that follows the times of the requests.
 *
 *     equal    each group has the same part, all the time
 *     best     the best split that stays the same all the time, known in hindsight (to 1/256)
 *     act      begins with equal parts, and the autopilot moves them
 *     moving   the best split of each `settle`, known in advance, in caches that are filled at
 *              once: a bound that no autopilot reaches
 *
 * Threads: one call at a time for each result.
 */

struct tierce__rehearsal_opts {
    size_t size;
    const struct tierce__group_spec *groups; /* names; [borrow for the call] */
    size_t group_count;                      /* 2 .. TIERCE__PILOT_GROUPS_MAX */
    const uint32_t *group_of; /* [instances of the recording] index, or GROUP_NONE: left out */
    uint64_t budget;          /* blocks; at least one for each group */
    int64_t settle_us;        /* 0: of pilot.h */
    int64_t epoch_us;         /* 0: of ghosts.h */
    uint64_t seed;            /* of the sample; 0: 1 */
};

struct tierce__rehearsal_group {
    uint64_t blocks;                                /* looked up */
    uint64_t equal, best, act, act_least, act_most; /* blocks: `act` at the end */
    uint64_t equal_hits, best_hits, act_hits;
};

struct tierce__rehearsal {
    struct tierce__rehearsal_group *groups; /* [group_count] */
    size_t group_count;
    uint64_t blocks; /* sums */
    uint64_t equal_hits, best_hits, act_hits, moving_hits;
    double seconds; /* of the recording */
    uint64_t steps, kept, undone, dropped;
};

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (groups, budget). */
TIERCE_MUSTUSE int tierce__rehearse(struct tierce__rehearsal *out,
                                    const struct tierce__recording *recording,
                                    const struct tierce__rehearsal_opts *opts);
void tierce__rehearsal_clear(struct tierce__rehearsal *rehearsal);

#endif
