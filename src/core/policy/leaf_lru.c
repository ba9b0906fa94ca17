/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"
#include "core/policy/ring.h"

#include <errno.h>

/*
 * LRU that evicts a suffix before its prefix: an entry with a cached child is not evictable, even
 * if the owner has marked it evictable.
 *
 * A child records its parent's slot and how often that slot had been reused when the child was
 * inserted. So the children of an entry that is removed before them need no visit: the numbers no
 * longer agree, and they are without a parent from then on.
 *
 * The order has the leaves and the pinned entries; evictable entries with children are in a list
 * too, for tierce__policy_inner.
 */

struct leaf_family {
    uint32_t parent; /* slot, or NO_SLOT */
    uint32_t parent_life;
    uint32_t life; /* how often the slot was freed */
    uint32_t children;
    struct tierce__ring_link link; /* if is_inner */
    bool is_pinned;                /* the owner's word */
    bool is_inner;                 /* in the list of inner entries */
};

struct leaf_lru {
    struct tierce__ordered ordered;
    struct leaf_family *families; /* [slot_count] */
    uint32_t inner;               /* the oldest inner entry, or NO_SLOT */
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
    leaf->inner = TIERCE__NO_SLOT;
    if (leaf->families == NULL) {
        leaf_destroy(policy);
        return -ENOMEM;
    }
    *out = policy;
    return 0;
}

static void set_inner(struct leaf_lru *leaf, uint32_t slot, bool is_inner)
{
    struct leaf_family *family = &leaf->families[slot];
    const struct tierce__ring_links links = {&leaf->families[0].link, sizeof(*family)};
    if (family->is_inner == is_inner)
        return;
    family->is_inner = is_inner;
    if (is_inner)
        (void)tierce__ring_add(links, &leaf->inner, slot, false);
    else
        (void)tierce__ring_remove(links, &leaf->inner, slot);
}

static void update_evictable(struct leaf_lru *leaf, uint32_t slot)
{
    const struct leaf_family *family = &leaf->families[slot];
    TIERCE_DASSERT(tierce__order_has(&leaf->ordered.order, slot));
    tierce__order_set_evictable(&leaf->ordered.order, slot,
                                !family->is_pinned && family->children == 0);
    set_inner(leaf, slot, !family->is_pinned && family->children > 0);
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
    leaf->families[slot].is_pinned = false;
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
    leaf->families[slot].is_pinned = !evictable;
    update_evictable(leaf, slot);
}

static void leaf_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct leaf_lru *leaf = leaf_of(policy);
    (void)evicted;
    tierce__order_remove(&leaf->ordered.order, slot);
    set_inner(leaf, slot, false);
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

static bool leaf_inner(struct tierce__policy *policy, uint32_t *slot)
{
    const struct leaf_lru *leaf = leaf_of(policy);
    const struct tierce__ring_links links = {&leaf->families[0].link, sizeof(leaf->families[0])};
    return tierce__ring_newest(links, leaf->inner, slot);
}

static bool leaf_rank(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                      uint64_t now, uint64_t half_life)
{
    return !history->has_children && tierce__policy_rank_by_use(out, history, now, half_life);
}

const struct tierce__policy_ops tierce__policy_leaf_lru_ops = {
    .name = "leaf_lru",
    .summary = "least recently used; a suffix before its prefix",
    .by_parent = true,
    .create = leaf_create,
    .destroy = leaf_destroy,
    .insert = leaf_insert,
    .touch = tierce__ordered_touch,
    .set_evictable = leaf_set_evictable,
    .remove = leaf_remove,
    .victim = tierce__ordered_victim,
    .inner = leaf_inner,
    .rank = leaf_rank,
    .prefetch = tierce__ordered_prefetch,
};
