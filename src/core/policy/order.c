/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/order.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/policy_private.h"

#include <errno.h>

int tierce__order_init(struct tierce__order *order, uint32_t slot_count, uint32_t list_count,
                       bool newest_first)
{
    TIERCE_DASSERT(slot_count >= 1 && slot_count <= TIERCE__POLICY_SLOTS_MAX);
    TIERCE_ASSERT(list_count >= 1 && list_count <= TIERCE__ORDER_LISTS_MAX);
    *order = (struct tierce__order){
        .slot_count = slot_count, .list_count = list_count, .newest_first = newest_first};
    order->nodes = tierce__calloc((size_t)slot_count + list_count, sizeof(*order->nodes));
    if (order->nodes == NULL)
        return -ENOMEM;
    tierce__advise_huge(order->nodes, (size_t)slot_count * sizeof(*order->nodes));
    for (uint32_t list = 0; list < list_count; list++) {
        uint32_t head = slot_count + list;
        order->nodes[head] = (struct tierce__order_node){.newer = head, .older = head};
        int rc = tierce__heap_init(&order->heaps[list], slot_count);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void tierce__order_fini(struct tierce__order *order)
{
    for (uint32_t list = 0; list < order->list_count; list++)
        tierce__heap_fini(&order->heaps[list]);
    tierce__free(order->nodes);
    *order = (struct tierce__order){0};
}

void tierce__order_unpark(struct tierce__order *order, uint32_t slot)
{
    TIERCE_DASSERT(tierce__order_has(order, slot));
    TIERCE_DASSERT((order->nodes[slot].state & TIERCE__ORDER_PARKED) != 0);
    if (tierce__order_is_evictable(order, slot))
        tierce__heap_remove(&order->heaps[tierce__order_list_of(order, slot)], slot);
}

/* Ranks are unique, because each move has a number of its own. */
static struct tierce__rank rank_of(const struct tierce__order *order, uint32_t slot)
{
    TIERCE_DASSERT(slot < order->slot_count);
    uint64_t stamp = order->nodes[slot].state >> TIERCE__ORDER_STAMP_SHIFT;
    return (struct tierce__rank){.major = order->newest_first ? UINT64_MAX - stamp : stamp};
}

void tierce__order_set_evictable(struct tierce__order *order, uint32_t slot, bool evictable)
{
    TIERCE_ASSERT(tierce__order_has(order, slot));
    uint64_t state = order->nodes[slot].state;
    if (((state & TIERCE__ORDER_EVICTABLE) != 0) == evictable)
        return;
    if ((state & TIERCE__ORDER_PARKED) != 0) {
        struct tierce__heap *heap = &order->heaps[tierce__order_list_of(order, slot)];
        if (evictable)
            tierce__heap_insert(heap, slot, rank_of(order, slot));
        else
            tierce__heap_remove(heap, slot);
    }
    order->nodes[slot].state = state ^ TIERCE__ORDER_EVICTABLE;
}

/* The first evictable slot that is in the list, or the list's head. Parks the entries before it. */
static uint32_t first_listed(struct tierce__order *order, uint32_t list)
{
    TIERCE_DASSERT(list < order->list_count);
    struct tierce__order_node *nodes = order->nodes;
    uint32_t head = order->slot_count + list;
    for (;;) {
        uint32_t slot = order->newest_first ? nodes[head].older : nodes[head].newer;
        if (slot == head || tierce__order_is_evictable(order, slot))
            return slot;
        TIERCE_DASSERT(tierce__order_list_of(order, slot) == list);
        tierce__order_unlink(order, slot);
        nodes[slot].state |= TIERCE__ORDER_PARKED;
    }
}

bool tierce__order_search(struct tierce__order *order, uint32_t list, uint32_t *slot)
{
    const struct tierce__heap *heap = &order->heaps[list];
    TIERCE_DASSERT(heap->count == 0 || tierce__order_is_evictable(order, heap->items[0].slot));
    TIERCE_DASSERT(heap->count == 0 || tierce__order_list_of(order, heap->items[0].slot) == list);
    uint32_t first = first_listed(order, list), head = order->slot_count + list;
    if (heap->count > 0 &&
        (first == head || heap->items[0].rank.major < rank_of(order, first).major))
        first = heap->items[0].slot;
    if (first == head)
        return false;
    TIERCE_DASSERT(first < order->slot_count);
    TIERCE_DASSERT(tierce__order_is_evictable(order, first));
    *slot = first;
    return true;
}

/* ---- policies that are an order -------------------------------------------------------------- */

int tierce__ordered_create(struct tierce__policy **out, size_t size,
                           const struct tierce__policy_ops *ops,
                           const struct tierce__policy_opts *opts, uint32_t list_count,
                           bool newest_first)
{
    TIERCE_DASSERT(size >= sizeof(struct tierce__ordered));
    if (!tierce__policy_opts_good(opts))
        return TIERCE_E_ARGUMENT;
    struct tierce__ordered *ordered = tierce__calloc(1, size);
    if (ordered == NULL)
        return -ENOMEM;
    ordered->base.ops = ops;
    ordered->magic = TIERCE__ORDERED_MAGIC;
    int rc = tierce__order_init(&ordered->order, opts->slot_count, list_count, newest_first);
    if (rc < 0) {
        tierce__ordered_destroy(&ordered->base);
        return rc;
    }
    *out = &ordered->base;
    return 0;
}

void tierce__ordered_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    tierce__order_fini(tierce__order_of(policy));
    struct tierce__ordered *ordered = (struct tierce__ordered *)(void *)policy;
    ordered->magic = 0;
    tierce__free(ordered);
}
