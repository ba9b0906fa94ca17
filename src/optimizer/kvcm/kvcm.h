/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_KVCM_H
#define TIERCE_OPTIMIZER_KVCM_H

#include "optimizer/kvcm/kvcm_policy.h"
#include "optimizer/replay/replay.h"

/*
 * The caches of KVCM (Tair KVCache Manager, as of February 2026), exactly as its own optimizer
 * replays them, including its peculiarities.
 *
 *   read    counts and touches the leading blocks that are cached, from the first on; blocks after
 *           a gap are neither counted nor touched. Stores nothing.
 *   write   fills gaps and adds new blocks; existing blocks are not touched. Then evicts.
 *   turn    a read of all blocks that it stores (so there may be more hits than requested blocks),
 *           then a write.
 *
 * A cache is as large as it must be during a request and is trimmed after it, if the blocks of all
 * instances of a group are more than its quota:
 *
 *   mode 1, group_rough      rounds, in each of which every instance of the group evicts a whole
 *                            batch, until the excess is covered
 *   mode 2, instance_rough   the same of the instance that was written to, alone
 *   mode 3, instance_precise batches of it, the last of which is cut: the excess, no more
 *
 * and no longer once a round evicts nothing. As in KVCM, requests with another match than prefix
 * are skipped.
 *
 *     rc = tierce__kvcm_layout_single(&layout, instances, TIERCE__KVCM_LRU, capacity, &tuning);
 *     rc = tierce__kvcm_create(&kvcm, &(struct tierce__kvcm_opts){..., .layout = &layout});
 *     rc = tierce__kvcm_request(kvcm, request, &read);      // for each request
 *
 * Threads: one at a time.
 */

enum tierce__kvcm_mode {
    TIERCE__KVCM_GROUP_ROUGH = 1,
    TIERCE__KVCM_INSTANCE_ROUGH,
    TIERCE__KVCM_INSTANCE_PRECISE,
};

/* Parameters for which KVCM has no defaults; 0 means the value given here. */
struct tierce__kvcm_tuning {
    enum tierce__kvcm_mode mode; /* instance_precise */
    uint32_t batch;              /* blocks: 100 */
    double used_share;           /* of the capacity: 1 */
    double sample_rate;          /* of random_lru: 0.1 */
};

struct tierce__kvcm_instance {
    enum tierce__kvcm_kind kind;
    double sample_rate;
    uint32_t group;
};

struct tierce__kvcm_group {
    uint64_t quota;                      /* blocks, or UINT64_MAX */
    uint32_t first_member, member_count; /* in `members` */
};

/* The instances, and the groups of instances that share a quota. */
struct tierce__kvcm_layout {
    enum tierce__kvcm_mode mode;
    uint32_t batch;
    struct tierce__kvcm_instance *instances; /* [instance_count] by the trace's index */
    uint32_t *members;                       /* [instance_count] by group, in the order of rounds */
    uint32_t instance_count;
    struct tierce__kvcm_group *groups;
    uint32_t group_count;
};

/* Allocates a zeroed layout of that size. Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_layout_create(struct tierce__kvcm_layout *out,
                                              uint32_t instance_count, uint32_t group_count);

/* All instances in one group, with a policy each. Errors, *out untouched: -ENOMEM,
 * TIERCE_E_ARGUMENT (tuning out of range). */
TIERCE_MUSTUSE int tierce__kvcm_layout_single(struct tierce__kvcm_layout *out,
                                              uint32_t instance_count, enum tierce__kvcm_kind kind,
                                              uint64_t capacity,
                                              const struct tierce__kvcm_tuning *tuning);

/* Accepts a zeroed layout. */
void tierce__kvcm_layout_clear(struct tierce__kvcm_layout *layout);

/* floor(capacity * share); UINT64_MAX stays unchanged. */
uint64_t tierce__kvcm_quota(uint64_t capacity, double used_share);

struct tierce__kvcm_opts {
    size_t size;
    const struct tierce__kvcm_layout *layout; /* [borrow until destroy] */
    uint32_t distinct;                        /* different blocks of the recording */
    const struct tierce__match *matches;      /* [borrow for create] */
    size_t match_count;
};

/* The result of one lookup. */
struct tierce__kvcm_read {
    bool is_read; /* if false, it is a write or was skipped, and the rest is 0 */
    uint32_t internal_blocks, external_blocks;
    uint32_t internal_hits, external_hits;
};

struct tierce__kvcm;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_LIMIT (over 2^31 blocks), TIERCE_E_ARGUMENT (no or too
 * many matches, MATCH_STREAM). */
TIERCE_MUSTUSE int tierce__kvcm_create(struct tierce__kvcm **out,
                                       const struct tierce__kvcm_opts *opts);

/* NULL is accepted. */
void tierce__kvcm_destroy(struct tierce__kvcm *kvcm);

/* Replays one request; its instance is in the layout. Errors: -ENOMEM, TIERCE_E_LIMIT; afterwards
 * the cache can only be destroyed. */
TIERCE_MUSTUSE int tierce__kvcm_request(struct tierce__kvcm *kvcm,
                                        const struct tierce__recorded *request,
                                        struct tierce__kvcm_read *read);

/* [borrow until the next request] Counts only requests that were not skipped. */
const struct tierce__replay_result *tierce__kvcm_result(const struct tierce__kvcm *kvcm);

/* Blocks that an instance holds. */
uint32_t tierce__kvcm_held(const struct tierce__kvcm *kvcm, uint32_t instance);

#endif
