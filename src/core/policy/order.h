/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_ORDER_H
#define TIERCE_POLICY_ORDER_H

#include "base/assert.h"
#include "core/policy/heap.h"
#include "core/policy/policy.h"

/*
 * Lists of slots that always find the first evictable slot. Most policies consist of one or two
 * such lists and a rule.
 *
 * All slots are in their list, evictable or not, so that clearing and setting evictability (which
 * every lease does) changes one bit and no link. When order_first meets a slot at the list's end
 * that is not evictable, it parks the slot: the slot leaves the list. Once it is evictable again it
 * enters a heap ordered by the time of its last move, and the end of the list is compared with the
 * heap's top. So the order is always that of the plain policy, and a search skips an entry at most
 * once for each time that it moved or became evictable: push, move and set_evictable O(1), first
 * O(1) amortised; O(log parked) for parked slots.
 */

enum {
    TIERCE__ORDER_EVICTABLE = 1,
    TIERCE__ORDER_PARKED = 2, /* in no list; in the heap if it is evictable too */
    TIERCE__ORDER_LIST_SHIFT = 2,
    TIERCE__ORDER_LISTS_MAX = 2,
    TIERCE__ORDER_STAMP_SHIFT = 3, /* leaves 2^61 moves: centuries */
};

struct tierce__order_node {
    uint32_t newer, older;
    uint64_t state; /* stamp of the last move, list, flags; 0: not in */
};

struct tierce__order {
    struct tierce__order_node
        *nodes; /* [slot_count + lists]: the last ones are the ends of the lists */
    uint32_t slot_count;
    uint32_t list_count;
    uint64_t moves;
    bool newest_first;
    struct tierce__heap heaps[TIERCE__ORDER_LISTS_MAX];
};

/* After -ENOMEM, fini may still be called; fini accepts a zeroed order. */
TIERCE_MUSTUSE int tierce__order_init(struct tierce__order *order, uint32_t slot_count,
                                      uint32_t list_count, bool newest_first);
void tierce__order_fini(struct tierce__order *order);

void tierce__order_set_evictable(struct tierce__order *order, uint32_t slot, bool evictable);

/* The slow path of tierce__order_first: entries were skipped, or must be skipped now. */
bool tierce__order_search(struct tierce__order *order, uint32_t list, uint32_t *slot);

/* Takes a parked slot out of the heap, if it is there. */
void tierce__order_unpark(struct tierce__order *order, uint32_t slot);

/* ---- on the hot path ------------------------------------------------------------------------- */

static inline bool tierce__order_has(const struct tierce__order *order, uint32_t slot)
{
    return slot < order->slot_count && order->nodes[slot].state != 0;
}

static inline uint32_t tierce__order_list_of(const struct tierce__order *order, uint32_t slot)
{
    TIERCE_DASSERT(slot < order->slot_count);
    return (uint32_t)(order->nodes[slot].state >> TIERCE__ORDER_LIST_SHIFT) & 1;
}

static inline bool tierce__order_is_evictable(const struct tierce__order *order, uint32_t slot)
{
    TIERCE_DASSERT(slot < order->slot_count);
    return (order->nodes[slot].state & TIERCE__ORDER_EVICTABLE) != 0;
}

static inline void tierce__order_link(struct tierce__order *order, uint32_t slot, uint32_t list,
                                      uint64_t flags)
{
    struct tierce__order_node *nodes = order->nodes;
    TIERCE_DASSERT(slot < order->slot_count && list < order->list_count);
    uint32_t head = order->slot_count + list, newest = nodes[head].older;
    TIERCE_DASSERT(nodes[newest].newer == head);
    nodes[slot] =
        (struct tierce__order_node){.newer = head,
                                    .older = newest,
                                    .state = ++order->moves << TIERCE__ORDER_STAMP_SHIFT |
                                             (uint64_t)list << TIERCE__ORDER_LIST_SHIFT | flags};
    nodes[newest].newer = slot;
    nodes[head].older = slot;
}

static inline void tierce__order_unlink(struct tierce__order *order, uint32_t slot)
{
    struct tierce__order_node *nodes = order->nodes, node = nodes[slot];
    if (__builtin_expect((node.state & TIERCE__ORDER_PARKED) != 0, 0)) {
        tierce__order_unpark(order, slot);
        return;
    }
    TIERCE_DASSERT(nodes[node.newer].older == slot && nodes[node.older].newer == slot);
    nodes[node.newer].older = node.older;
    nodes[node.older].newer = node.newer;
}

/* Adds a slot as the newest of a list, evictable. */
static inline void tierce__order_push(struct tierce__order *order, uint32_t slot, uint32_t list)
{
    TIERCE_ASSERT(slot < order->slot_count && order->nodes[slot].state == 0);
    tierce__order_link(order, slot, list, TIERCE__ORDER_EVICTABLE);
}

/* Makes a slot the newest of a list; its evictability is unchanged. */
static inline void tierce__order_move(struct tierce__order *order, uint32_t slot, uint32_t list)
{
    TIERCE_ASSERT(tierce__order_has(order, slot));
    uint64_t flags = order->nodes[slot].state & TIERCE__ORDER_EVICTABLE;
    tierce__order_unlink(order, slot);
    tierce__order_link(order, slot, list, flags);
}

static inline void tierce__order_remove(struct tierce__order *order, uint32_t slot)
{
    TIERCE_ASSERT(tierce__order_has(order, slot));
    tierce__order_unlink(order, slot);
    order->nodes[slot].state = 0;
}

/* *slot = the evictable entry of the list that was moved longest ago (newest_first: last). */
static inline bool tierce__order_first(struct tierce__order *order, uint32_t list, uint32_t *slot)
{
    const struct tierce__order_node *nodes = order->nodes;
    TIERCE_DASSERT(list < order->list_count);
    uint32_t head = order->slot_count + list;
    uint32_t first = order->newest_first ? nodes[head].older : nodes[head].newer;
    if (__builtin_expect(order->heaps[list].count > 0 || first == head ||
                             !tierce__order_is_evictable(order, first),
                         0))
        return tierce__order_search(order, list, slot);
    /* The next victim, which was last touched long ago. */
    __builtin_prefetch(&nodes[order->newest_first ? nodes[first].older : nodes[first].newer], 1);
    *slot = first;
    TIERCE_DASSERT(first < order->slot_count);
    return true;
}

/* The two calls of a policy's prefetch, for a slot that is in. */
static inline void tierce__order_prefetch(const struct tierce__order *order, uint32_t slot,
                                          bool near)
{
    const struct tierce__order_node *nodes = order->nodes;
    if (!near) {
        __builtin_prefetch(&nodes[slot], 1);
    } else {
        __builtin_prefetch(&nodes[nodes[slot].newer], 1);
        __builtin_prefetch(&nodes[nodes[slot].older], 1);
    }
}

/* ---- policies that are an order -------------------------------------------------------------- */

/* First member of every such policy. */
struct tierce__ordered {
    struct tierce__policy base;
    uint32_t magic;
    struct tierce__order order;
};

#define TIERCE__ORDERED_MAGIC 0x4f524431u

static inline struct tierce__order *tierce__order_of(struct tierce__policy *policy)
{
    struct tierce__ordered *ordered = (struct tierce__ordered *)(void *)policy;
    TIERCE_CHECK_MAGIC(ordered, TIERCE__ORDERED_MAGIC);
    return &ordered->order;
}

/* `size` zeroed bytes that begin with a tierce__ordered. Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__ordered_create(struct tierce__policy **out, size_t size,
                                          const struct tierce__policy_ops *ops,
                                          const struct tierce__policy_opts *opts,
                                          uint32_t list_count, bool newest_first);

void tierce__ordered_destroy(struct tierce__policy *policy);

/* The operations of policies that have a single list and no other state. Inline, for `run`. */
static inline void tierce__ordered_prefetch(const struct tierce__policy *policy, uint64_t key,
                                            uint32_t slot, bool near)
{
    (void)key;
    if (slot != TIERCE__NO_SLOT)
        tierce__order_prefetch(&((const struct tierce__ordered *)(const void *)policy)->order, slot,
                               near);
}

static inline void tierce__ordered_insert(struct tierce__policy *policy, uint32_t slot,
                                          const struct tierce__policy_entry *entry)
{
    (void)entry;
    tierce__order_push(tierce__order_of(policy), slot, 0);
}

static inline void tierce__ordered_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    (void)now;
    tierce__order_move(tierce__order_of(policy), slot, 0);
}

static inline void tierce__ordered_set_evictable(struct tierce__policy *policy, uint32_t slot,
                                                 bool evictable)
{
    tierce__order_set_evictable(tierce__order_of(policy), slot, evictable);
}

static inline void tierce__ordered_remove(struct tierce__policy *policy, uint32_t slot,
                                          bool evicted)
{
    (void)evicted;
    tierce__order_remove(tierce__order_of(policy), slot);
}

static inline bool tierce__ordered_victim(struct tierce__policy *policy, uint64_t now,
                                          uint32_t *slot)
{
    (void)now;
    return tierce__order_first(tierce__order_of(policy), 0, slot);
}

#endif
