/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * LRU that evicts a suffix before its prefix: an entry with a cached child is not evictable, even
 * if the owner has marked it evictable.
 *
 * A child records its parent's slot and how often that slot had been reused when the child was
 * inserted. So the children of an entry that is removed before them need no visit: the numbers no
 * longer agree, and they are without a parent from then on.
 */

struct leaf_family {
    uint32_t parent; /* slot, or NO_SLOT */
    uint32_t parent_life;
    uint32_t life; /* how often the slot was freed */
    uint32_t children;
};

struct leaf_lru {
    struct tierce__ordered ordered;
    struct leaf_family *families; /* [slot_count] */
    bool *pinned;                 /* [slot_count] the owner's word */
};

static struct leaf_lru *leaf_of(struct tierce__policy *policy)
{
    (void)tierce__order_of(policy);
    return (struct leaf_lru *)(void *)policy;
}

static void leaf_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct leaf_lru *leaf = leaf_of(policy);
    tierce__free(leaf->pinned);
    tierce__free(leaf->families);
    tierce__ordered_destroy(policy);
}

static int leaf_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    struct tierce__policy *policy;
    int rc = tierce__ordered_create(&policy, sizeof(struct leaf_lru), &tierce__policy_leaf_lru_ops,
                                    opts, 1, false);
    if (rc < 0)
        return rc;
    struct leaf_lru *leaf = leaf_of(policy);
    leaf->families = tierce__calloc(opts->slot_count, sizeof(*leaf->families));
    leaf->pinned = tierce__calloc(opts->slot_count, sizeof(*leaf->pinned));
    if (leaf->families == NULL || leaf->pinned == NULL) {
        leaf_destroy(policy);
        return -ENOMEM;
    }
    *out = policy;
    return 0;
}

static void update_evictable(struct leaf_lru *leaf, uint32_t slot)
{
    TIERCE_DASSERT(tierce__order_has(&leaf->ordered.order, slot));
    tierce__order_set_evictable(&leaf->ordered.order, slot,
                                !leaf->pinned[slot] && leaf->families[slot].children == 0);
}

static void leaf_insert(struct tierce__policy *policy, uint32_t slot,
                        const struct tierce__policy_entry *entry)
{
    struct leaf_lru *leaf = leaf_of(policy);
    uint32_t parent = entry->parent;
    if (!tierce__order_has(&leaf->ordered.order, parent))
        parent = TIERCE__NO_SLOT;
    tierce__order_push(&leaf->ordered.order, slot, 0);
    TIERCE_DASSERT(leaf->families[slot].children == 0);
    leaf->pinned[slot] = false;
    leaf->families[slot].parent = parent;
    if (parent == TIERCE__NO_SLOT)
        return;
    TIERCE_DASSERT(parent != slot);
    leaf->families[slot].parent_life = leaf->families[parent].life;
    if (leaf->families[parent].children++ == 0)
        update_evictable(leaf, parent);
}

static void leaf_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct leaf_lru *leaf = leaf_of(policy);
    TIERCE_ASSERT(tierce__order_has(&leaf->ordered.order, slot));
    leaf->pinned[slot] = !evictable;
    update_evictable(leaf, slot);
}

static void leaf_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct leaf_lru *leaf = leaf_of(policy);
    (void)evicted;
    tierce__order_remove(&leaf->ordered.order, slot);
    struct leaf_family *family = &leaf->families[slot];
    family->life++;
    family->children = 0;
    uint32_t parent = family->parent;
    TIERCE_DASSERT(parent == TIERCE__NO_SLOT ||
                   leaf->families[parent].life != family->parent_life ||
                   leaf->families[parent].children > 0);
    if (parent != TIERCE__NO_SLOT && leaf->families[parent].life == family->parent_life &&
        --leaf->families[parent].children == 0)
        update_evictable(leaf, parent);
}

static bool leaf_rank(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                      uint64_t now, uint64_t half_life)
{
    return !history->has_children && tierce__policy_rank_by_use(out, history, now, half_life);
}

const struct tierce__policy_ops tierce__policy_leaf_lru_ops = {
    .name = "leaf_lru",
    .summary = "least recently used, and never a prefix before its suffix",
    .by_parent = true,
    .create = leaf_create,
    .destroy = leaf_destroy,
    .insert = leaf_insert,
    .touch = tierce__ordered_touch,
    .set_evictable = leaf_set_evictable,
    .remove = leaf_remove,
    .victim = tierce__ordered_victim,
    .rank = leaf_rank,
    .prefetch = tierce__ordered_prefetch,
};
