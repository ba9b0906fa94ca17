/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TIER_STORE_H
#define TIERCE_OPTIMIZER_TIER_STORE_H

#include "policy/policy.h"

/* What one simulated tier holds: blocks by their numbers, and the policy that orders them. For
 * tiers.c, which decides what is put where. */
struct tierce__tier_store {
    const struct tierce__policy_ops *ops; /* NULL: everything is kept, and capacity is no bound */
    struct tierce__policy *policy;
    uint64_t capacity; /* UINT64_MAX where everything is kept */
    uint64_t used;
    uint64_t now;      /* of the policy */
    uint32_t *slot_of; /* [distinct] of a block; NO_SLOT */
    uint32_t
        *block_in;     /* [slots] of a slot that is taken; of one that is free, the next free one */
    uint64_t *cost_in; /* [slots] what it takes of the capacity; NULL: 1 */
    uint32_t slots;
    uint32_t fresh; /* slots from here on were never taken */
    uint32_t free_slot;
};

/* `opts`: seed, ttl and capacity; slot_count is found here. Errors: -ENOMEM, those of the policy.
 * To be finished whatever is returned. */
TIERCE_MUSTUSE int tierce__tier_store_init(struct tierce__tier_store *store,
                                           const struct tierce__policy_ops *ops,
                                           const struct tierce__policy_opts *opts,
                                           uint32_t distinct, bool has_costs);
void tierce__tier_store_fini(struct tierce__tier_store *store);

static inline bool tierce__tier_store_has(const struct tierce__tier_store *store, uint32_t block)
{
    return store->slot_of[block] != TIERCE__NO_SLOT;
}

/* What a block that is there takes of the capacity. */
static inline uint64_t tierce__tier_store_cost(const struct tierce__tier_store *store,
                                               uint32_t block)
{
    return store->cost_in != NULL ? store->cost_in[store->slot_of[block]] : 1;
}

/* Of a block that is there. */
void tierce__tier_store_touch(struct tierce__tier_store *store, uint32_t block);
void tierce__tier_store_hold(struct tierce__tier_store *store, uint32_t block, bool held);

/* Takes out what leaves next, or what has expired: *block; false if there is none. */
bool tierce__tier_store_evict(struct tierce__tier_store *store, uint32_t *block);
bool tierce__tier_store_expire(struct tierce__tier_store *store, uint32_t *block);

/* Announces a block that will be put if there is room; then puts it, which there is. `parent` is a
 * block, there or not, or TIERCE__NO_SLOT. */
void tierce__tier_store_expect(struct tierce__tier_store *store, uint32_t block, uint64_t cost,
                               uint32_t parent);
void tierce__tier_store_put(struct tierce__tier_store *store, uint32_t block, uint64_t cost,
                            uint32_t parent);

#endif
