/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"
#include "core/policy/heap.h"
#include "core/policy/policy_private.h"

#include <errno.h>
#include <math.h>

/*
 * Least frequently used, by counts that an entry loses when it leaves.
 *
 * Entries of one count form a group: a list in the order in which they came to that count. Groups
 * form a list by count, so a use moves an entry to the next group, which is there or is made: O(1).
 * Entries that are not evictable are skipped as in order.h: the search parks them, which removes
 * them from their group's list. When they become evictable again, they enter a heap ordered by
 * count and time of parking. A group lives as long as it has members, parked ones too, so that a
 * use of a parked entry finds the next group as well. The search walks over groups that have
 * nothing but parked members; there are at most as many as pinned entries with different counts.
 */

#define LFU_MAGIC 0x4c465531u
#define NONE      UINT32_MAX

enum { SLOT_IN = 1, SLOT_EVICTABLE = 2, SLOT_PARKED = 4 };

struct lfu_node {
    uint32_t newer, older; /* in its group's list, or NONE */
    uint32_t group;        /* of slots that are in */
    uint32_t flags;
};

struct lfu_group {
    uint64_t uses;
    uint32_t lower, higher; /* groups, or NONE; of free ones `higher` is the next free one */
    uint32_t newest, oldest;
    uint32_t members; /* parked ones included */
};

struct lfu {
    struct tierce__policy base;
    uint32_t magic;
    uint32_t slot_count;
    struct lfu_node *nodes;   /* [slot_count] */
    struct lfu_group *groups; /* [slot_count + 1]: a use needs its new group before the old ends */
    uint32_t groups_used;     /* those beyond were never used */
    uint32_t groups_free;     /* first of the free ones, or NONE */
    uint32_t lowest;          /* group, or NONE */
    struct tierce__heap heap;
    uint64_t parkings;
};

static struct lfu *lfu_of(struct tierce__policy *policy)
{
    struct lfu *lfu = (struct lfu *)(void *)policy;
    TIERCE_CHECK_MAGIC(lfu, LFU_MAGIC);
    return lfu;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The group with `uses`, which lies right above `lower` (NONE: below all); made if missing. */
static uint32_t find_group(struct lfu *lfu, uint64_t uses, uint32_t lower)
{
    uint32_t higher = lower != NONE ? lfu->groups[lower].higher : lfu->lowest;
    TIERCE_DASSERT(lower == NONE || lfu->groups[lower].uses < uses);
    TIERCE_DASSERT(higher == NONE || lfu->groups[higher].uses >= uses);
    if (higher != NONE && lfu->groups[higher].uses == uses)
        return higher;
    uint32_t group = lfu->groups_free;
    if (group != NONE)
        lfu->groups_free = lfu->groups[group].higher;
    else
        group = lfu->groups_used++;
    TIERCE_ASSERT(group <= lfu->slot_count);
    lfu->groups[group] = (struct lfu_group){
        .uses = uses, .lower = lower, .higher = higher, .newest = NONE, .oldest = NONE};
    if (higher != NONE)
        lfu->groups[higher].lower = group;
    if (lower != NONE)
        lfu->groups[lower].higher = group;
    else
        lfu->lowest = group;
    return group;
}

static void free_group(struct lfu *lfu, uint32_t group)
{
    struct lfu_group *g = &lfu->groups[group];
    TIERCE_DASSERT(g->newest == NONE && g->oldest == NONE);
    TIERCE_DASSERT(g->members == 0);
    if (g->higher != NONE)
        lfu->groups[g->higher].lower = g->lower;
    if (g->lower != NONE)
        lfu->groups[g->lower].higher = g->higher;
    else
        lfu->lowest = g->higher;
    g->higher = lfu->groups_free;
    lfu->groups_free = group;
}

static void link_newest(struct lfu *lfu, uint32_t slot, uint32_t group)
{
    struct lfu_group *g = &lfu->groups[group];
    TIERCE_DASSERT(g->newest == NONE || lfu->nodes[g->newest].newer == NONE);
    struct lfu_node *node = &lfu->nodes[slot];
    TIERCE_DASSERT((node->flags & SLOT_IN) != 0 && group < lfu->groups_used);
    node->group = group;
    node->newer = NONE;
    node->older = g->newest;
    if (g->newest != NONE)
        lfu->nodes[g->newest].newer = slot;
    else
        g->oldest = slot;
    g->newest = slot;
    g->members++;
}

/* Out of its group's list; it stays a member. */
static void unlink_slot(struct lfu *lfu, uint32_t slot)
{
    const struct lfu_node *node = &lfu->nodes[slot];
    struct lfu_group *g = &lfu->groups[node->group];
    TIERCE_DASSERT(node->newer != NONE || g->newest == slot);
    TIERCE_DASSERT(node->older != NONE || g->oldest == slot);
    TIERCE_DASSERT((node->flags & SLOT_PARKED) == 0);
    if (node->newer != NONE)
        lfu->nodes[node->newer].older = node->older;
    else
        g->newest = node->older;
    if (node->older != NONE)
        lfu->nodes[node->older].newer = node->newer;
    else
        g->oldest = node->newer;
}

/* Out of the list or the heap, wherever it is; it stays a member. */
static void detach_slot(struct lfu *lfu, uint32_t slot)
{
    uint32_t flags = lfu->nodes[slot].flags;
    TIERCE_DASSERT((flags & SLOT_IN) != 0);
    if ((flags & SLOT_PARKED) == 0)
        unlink_slot(lfu, slot);
    else if ((flags & SLOT_EVICTABLE) != 0)
        tierce__heap_remove(&lfu->heap, slot);
}

static void leave_group(struct lfu *lfu, uint32_t group)
{
    TIERCE_DASSERT(lfu->groups[group].members > 0);
    if (--lfu->groups[group].members == 0)
        free_group(lfu, group);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void lfu_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct lfu *lfu = lfu_of(policy);
    lfu->magic = 0;
    tierce__heap_fini(&lfu->heap);
    tierce__free(lfu->groups);
    tierce__free(lfu->nodes);
    tierce__free(lfu);
}

static int lfu_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    if (!tierce__policy_opts_good(opts))
        return TIERCE_E_ARGUMENT;
    struct lfu *lfu = tierce__calloc(1, sizeof(*lfu));
    if (lfu == NULL)
        return -ENOMEM;
    lfu->base.ops = &tierce__policy_lfu_ops;
    lfu->magic = LFU_MAGIC;
    lfu->slot_count = opts->slot_count;
    lfu->groups_free = NONE;
    lfu->lowest = NONE;
    lfu->nodes = tierce__calloc(opts->slot_count, sizeof(*lfu->nodes));
    lfu->groups = tierce__calloc((size_t)opts->slot_count + 1, sizeof(*lfu->groups));
    int rc = tierce__heap_init(&lfu->heap, opts->slot_count);
    if (lfu->nodes == NULL || lfu->groups == NULL)
        rc = -ENOMEM;
    if (rc < 0) {
        lfu_destroy(&lfu->base);
        return rc;
    }
    tierce__advise_huge(lfu->nodes, opts->slot_count * sizeof(*lfu->nodes));
    *out = &lfu->base;
    return 0;
}

static void lfu_insert(struct tierce__policy *policy, uint32_t slot,
                       const struct tierce__policy_entry *entry)
{
    struct lfu *lfu = lfu_of(policy);
    (void)entry;
    TIERCE_ASSERT(slot < lfu->slot_count && lfu->nodes[slot].flags == 0);
    lfu->nodes[slot].flags = SLOT_IN | SLOT_EVICTABLE;
    link_newest(lfu, slot, find_group(lfu, 1, NONE));
}

static void lfu_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct lfu *lfu = lfu_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < lfu->slot_count && lfu->nodes[slot].flags != 0);
    uint32_t group = lfu->nodes[slot].group;
    uint32_t next = find_group(lfu, lfu->groups[group].uses + 1, group);
    detach_slot(lfu, slot);
    lfu->nodes[slot].flags &= ~(uint32_t)SLOT_PARKED;
    link_newest(lfu, slot, next);
    leave_group(lfu, group);
}

static void lfu_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct lfu *lfu = lfu_of(policy);
    TIERCE_ASSERT(slot < lfu->slot_count && lfu->nodes[slot].flags != 0);
    struct lfu_node *node = &lfu->nodes[slot];
    if (((node->flags & SLOT_EVICTABLE) != 0) == evictable)
        return;
    if ((node->flags & SLOT_PARKED) != 0 && !evictable) {
        tierce__heap_remove(&lfu->heap, slot);
    } else if ((node->flags & SLOT_PARKED) != 0) {
        uint64_t parking = (uint64_t)node->newer << 32 | node->older;
        tierce__heap_insert(
            &lfu->heap, slot,
            (struct tierce__rank){.major = lfu->groups[node->group].uses, .minor = parking});
    }
    node->flags ^= SLOT_EVICTABLE;
}

static void lfu_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct lfu *lfu = lfu_of(policy);
    (void)evicted;
    TIERCE_ASSERT(slot < lfu->slot_count && lfu->nodes[slot].flags != 0);
    detach_slot(lfu, slot);
    leave_group(lfu, lfu->nodes[slot].group);
    lfu->nodes[slot].flags = 0;
}

/* A parked slot is in no list; its links hold the sequence number of its parking. */
static void park_slot(struct lfu *lfu, uint32_t slot)
{
    struct lfu_node *node = &lfu->nodes[slot];
    TIERCE_DASSERT((node->flags & SLOT_EVICTABLE) == 0);
    unlink_slot(lfu, slot);
    node->flags |= SLOT_PARKED;
    node->newer = (uint32_t)(lfu->parkings >> 32);
    node->older = (uint32_t)lfu->parkings;
    lfu->parkings++;
}

/* The oldest evictable slot of a group's list, or NONE. Parks older entries. */
static uint32_t first_listed(struct lfu *lfu, uint32_t group)
{
    TIERCE_DASSERT(group < lfu->groups_used);
    uint32_t slot;
    while ((slot = lfu->groups[group].oldest) != NONE &&
           (lfu->nodes[slot].flags & SLOT_EVICTABLE) == 0)
        park_slot(lfu, slot);
    return slot;
}

static bool lfu_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct lfu *lfu = lfu_of(policy);
    (void)now;
    for (uint32_t group = lfu->lowest; group != NONE; group = lfu->groups[group].higher) {
        /* Within a count the parked ones are older than the listed ones. */
        if (lfu->heap.count > 0 && lfu->heap.items[0].rank.major <= lfu->groups[group].uses) {
            *slot = lfu->heap.items[0].slot;
            TIERCE_DASSERT((lfu->nodes[*slot].flags & (SLOT_PARKED | SLOT_EVICTABLE)) ==
                           (SLOT_PARKED | SLOT_EVICTABLE));
            return true;
        }
        uint32_t first = first_listed(lfu, group);
        if (first != NONE) {
            TIERCE_DASSERT((lfu->nodes[first].flags & SLOT_EVICTABLE) != 0);
            *slot = first;
            return true;
        }
    }
    return false;
}

static uint32_t lfu_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_lfu_ops, uses);
}

/* The average frequency over the entry's life, in uses a half_life, as a logarithm; and one less
 * for each half_life since its last use. */
static bool lfu_rank(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                     uint64_t now, uint64_t half_life)
{
    double uses = (double)history->uses, half = (double)half_life;
    out->time = history->used;
    out->worth = uses;
    if (half_life == 0)
        return true;
    double life = history->used > history->stored ? (double)(history->used - history->stored) : 0;
    double idle = now > history->used ? (double)(now - history->used) : 0;
    out->worth = log2(1 + uses) - log2(1 + life / half) - idle / half;
    return true;
}

const struct tierce__policy_ops tierce__policy_lfu_ops = {
    .name = "lfu",
    .summary = "least frequently used: evicts the entry with the fewest uses; among equals, the "
               "one that reached its count first",
    .counts_uses = true,
    .create = lfu_create,
    .destroy = lfu_destroy,
    .insert = lfu_insert,
    .touch = lfu_touch,
    .set_evictable = lfu_set_evictable,
    .remove = lfu_remove,
    .victim = lfu_victim,
    .rank = lfu_rank,
    .run = lfu_run,
};
