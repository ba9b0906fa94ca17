/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RECLAIMER_H
#define TIERCE_MANAGER_RECLAIMER_H

#include "manager/locate/locator.h"
#include "manager/meta/record.h"

/*
 * Keeps groups, quotas that groups share, and storages below their limits, so that writes find room
 * (docs/inside/design/008-reclaim.md). Each round checks every limit. If usage is above the
 * watermark, or a write has recently found no room, the round selects victims (victims.h): as many
 * bytes as needed, less the bytes that are already being deleted.
 *
 * - LRU: the least recently used blocks of all instances of the group
 *   - LFU: the least often used, by a frequency that fades
 *   - TTL: as LRU. Expired blocks (expiry.h) are removed under every policy, even when there is
 *       room
 *   - LEAF_LRU: as LRU, but a block that another indexed block follows is never evicted
 *
 * Under every policy a block is evicted after the blocks that follow it. If a block is removed or
 * expires first, a sweep removes the blocks that follow it (orphans.h).
 *
 * A round also drops the locations in storages that have lost their objects (locator_forget.c).
 *
 * Only serving locations are reclaimed. Threads: one at a time for step; with has_thread, the
 * reclaimer's own thread calls it.
 */

struct tierce__reclaimer;

/* An evicted location. */
struct tierce__reclaimed {
    int64_t key;
    char location_id[TIERCE__LOCATION_ID_BYTES]; /* not NUL-terminated */
};

/* Called with the locations that were handed to the deleter, on the reclaimer's thread. */
typedef void (*tierce__reclaimer_submitted_fn)(void *arg, const char *instance_id,
                                               const struct tierce__reclaimed *gone, size_t count,
                                               int64_t delay_us);

struct tierce__reclaimer_opts {
    size_t size;
    struct tierce__locator *locator;   /* [borrow until stop] */
    struct tierce__registry *registry; /* [borrow until stop] */
    uint32_t interval_ms;              /* between rounds; 0: 100 */
    uint32_t sample_keys;              /* 0: 1000 */
    uint64_t seed;
    bool has_thread;                          /* else only tierce__reclaimer_step */
    tierce__reclaimer_submitted_fn submitted; /* or NULL */
    void *submitted_arg;
};

TIERCE_MUSTUSE int tierce__reclaimer_start(struct tierce__reclaimer **out,
                                           const struct tierce__reclaimer_opts *opts);
void tierce__reclaimer_stop(struct tierce__reclaimer *reclaimer);

/* Pause waits for the round in progress; no round starts before resume. */
void tierce__reclaimer_pause(struct tierce__reclaimer *reclaimer);
void tierce__reclaimer_resume(struct tierce__reclaimer *reclaimer);

/* Runs one round; returns the number of keys that it removed. */
size_t tierce__reclaimer_step(struct tierce__reclaimer *reclaimer);

/* The share of a quota above which a group's blocks are reclaimed: 0.8 if the group names none, at
 * most 0.95. */
double tierce__reclaimer_watermark_share(const struct tierce__group *group);

/* The bytes of a group, in all states except deleting, above which its blocks are reclaimed. */
double tierce__reclaimer_watermark_bytes(const struct tierce__group *group);

/* The bytes of all groups in a storage, in all states except deleting, above which its blocks are
 * reclaimed: watermark_percent of its capacity, 95 if it names none. 0: it has no capacity. */
double tierce__reclaimer_storage_watermark_bytes(const struct tierce__storage *storage);

struct tierce__reclaimer_stats {
    uint64_t rounds, triggered_rounds; /* rounds without any limit to check do not count */
    uint64_t submitted_blocks, submitted_locations, submitted_bytes;
    uint64_t expired_blocks;     /* included in submitted_blocks */
    uint64_t invalidated_blocks; /* the same: of older generations */
    uint64_t orphaned_blocks;  /* included in submitted_blocks: blocks whose predecessor is gone */
    uint64_t demoted_blocks;   /* queued to be moved to a colder candidate */
    uint64_t undemoted_blocks; /* included in submitted_blocks: evicted although their group
                                  demotes, because the moves did not keep up */
    uint64_t sampled_keys, used_again; /* used again since they were sampled */
};
void tierce__reclaimer_stats(struct tierce__reclaimer *reclaimer,
                             struct tierce__reclaimer_stats *out);

#endif
