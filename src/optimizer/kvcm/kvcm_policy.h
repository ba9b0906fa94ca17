/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_KVCM_POLICY_H
#define TIERCE_OPTIMIZER_KVCM_POLICY_H

#include "optimizer/kvcm/kvcm_tree.h"

/*
 * The order in which KVCM evicts the blocks of one instance:
 *
 *   lru             evicts the least recently used block. A chain is used from its head on, so its
 *                   head is evicted first.
 *   random_lru      samples blocks with replacement and evicts the oldest of the sample; possibly
 *                   fewer than requested, because a block may be sampled twice.
 *   leaf_aware_lru  as lru, but only for leaves: nodes without a child that has a block of its own.
 *                   A node is tested when a block is stored and when it is the oldest; a node
 *                   skipped then becomes a candidate again when its last child has lost its blocks.
 *
 * Threads: one at a time.
 */

enum tierce__kvcm_kind {
    TIERCE__KVCM_LRU,
    TIERCE__KVCM_RANDOM_LRU,
    TIERCE__KVCM_LEAF_AWARE_LRU,
};

struct tierce__kvcm_policy {
    enum tierce__kvcm_kind kind;
    struct tierce__kvcm_tree *tree; /* [borrow] */
    uint32_t end;                   /* of the list of this instance */
    uint32_t held_count;            /* cached blocks */
    /* random_lru */
    uint64_t state;
    uint64_t samples;
    uint32_t *held; /* [held_count]; a block's `newer` is its index */
    uint32_t held_room;
    uint32_t *drawn; /* [drawn_room] */
    uint32_t drawn_room;
};

/*
 * `root` is that of the instance. random_lru draws floor(batch / sample_rate) blocks; a sample_rate
 * of 0 or less is 0.1.
 */
void tierce__kvcm_policy_init(struct tierce__kvcm_policy *out, enum tierce__kvcm_kind kind,
                              struct tierce__kvcm_tree *tree, uint32_t root, uint32_t batch,
                              double sample_rate);

/* Accepts a zeroed policy. */
void tierce__kvcm_policy_fini(struct tierce__kvcm_policy *policy);

/* A hole is filled. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_policy_store(struct tierce__kvcm_policy *policy, uint32_t block,
                                             int64_t time_us);

/* A cached block is used. */
void tierce__kvcm_policy_touch(struct tierce__kvcm_policy *policy, uint32_t block, int64_t time_us);

/* Evicts up to `count` blocks. Returns how many; or -ENOMEM. */
TIERCE_MUSTUSE int64_t tierce__kvcm_policy_evict(struct tierce__kvcm_policy *policy,
                                                 uint32_t count);

#endif
