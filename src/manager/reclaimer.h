/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RECLAIMER_H
#define TIERCE_MANAGER_RECLAIMER_H

#include "manager/locator.h"
#include "manager/record.h"

/*
 * What leaves when a group comes near its limits.
 *
 * A round looks at every group: bytes of each kind of storage against its quota, all bytes against
 * the group's, keys against the sum of its instances' limits, and bytes of each storage against
 * that storage's capacity. Above the watermark (reclaim_strategy.trigger_strategy) it takes exactly
 * what is above, less what is being deleted already, out of the group's instances in proportion to
 * what they hold: a random sample of keys, ranked by the policy (src/policy), the first of them
 * until it is enough. A key that was used since it was drawn stays.
 *
 *   - LRU: the longest not used
 *   - LFU: the least often used, of equals the longest not used
 *   - TTL: older than the group's ttl, watermark or not; above the watermark as LRU
 *   - LEAF_LRU: as LRU, but nothing that something else in the index follows
 *
 * Only what serves is reclaimed. Threads: one at a time for step; with a thread of its own
 * otherwise.
 */

struct tierce__reclaimer;

/* A location that leaves. */
struct tierce__reclaimed {
    int64_t key;
    char location_id[TIERCE__LOCATION_ID_BYTES]; /* not NUL-terminated */
};

struct tierce__reclaimer_opts {
    size_t size;
    struct tierce__locator *locator;   /* [borrow until stop] */
    struct tierce__registry *registry; /* [borrow until stop] */
    uint32_t interval_ms;              /* between rounds; 0: 100 */
    uint32_t sample_keys;              /* 0: 1000 */
    uint64_t seed;
    bool has_thread; /* else only tierce__reclaimer_step */
    /* What is given to the deleter; on the reclaimer's thread. May be NULL. */
    void (*submitted)(void *arg, const char *instance_id, const struct tierce__reclaimed *gone,
                      size_t count, int64_t delay_us);
    void *submitted_arg;
};

TIERCE_MUSTUSE int tierce__reclaimer_start(struct tierce__reclaimer **out,
                                           const struct tierce__reclaimer_opts *opts);
void tierce__reclaimer_stop(struct tierce__reclaimer *reclaimer);

/* Between these a leader's work stands still; pause waits for the round in progress. */
void tierce__reclaimer_pause(struct tierce__reclaimer *reclaimer);
void tierce__reclaimer_resume(struct tierce__reclaimer *reclaimer);

/* One round; returns how many keys it took out. */
size_t tierce__reclaimer_step(struct tierce__reclaimer *reclaimer);

/* The share of a quota above which a group is reclaimed from. */
double tierce__reclaimer_watermark_share(const struct tierce__group *group);

/* Bytes of a group, in all states but deleting, above which it is reclaimed from. */
double tierce__reclaimer_watermark_bytes(const struct tierce__group *group);

struct tierce__reclaimer_stats {
    uint64_t rounds, triggered_rounds;
    uint64_t submitted_blocks, submitted_locations, submitted_bytes;
    uint64_t sampled_keys, used_again; /* since they were drawn */
};
void tierce__reclaimer_stats(struct tierce__reclaimer *reclaimer,
                             struct tierce__reclaimer_stats *out);

#endif
