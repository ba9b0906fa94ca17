/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "policy/policy_private.h"

#include <errno.h>

/*
 * Least recently used.
 *
 * All slots stand in one list, newest first, evictable or not, so that turning evictability off
 * and on again (which every lease does) changes one byte and no link. What is not evictable is
 * met at the tail by victim(), which parks it: it leaves the list and remembers the number of its
 * parking. At that moment it is older than everything in the list and newer than everything
 * parked before it, and both stay true, because a touch takes it back to the head. A parked slot
 * that becomes evictable enters a heap ordered by that number; the heap's top is therefore the
 * oldest evictable slot of all. So the order is that of plain LRU, always, and an entry is passed
 * over at most once for each time that it was touched or became evictable:
 * touch, insert and set_evictable O(1), victim O(1) amortised; O(log parked) for parked slots.
 */

#define LRU_MAGIC 0x4c525531u

enum {
    SLOT_IN = 1,
    SLOT_EVICTABLE = 2,
    SLOT_PARKED = 4, /* not in the list; in the heap if it is evictable too */
};

struct lru_link {
    uint32_t prev; /* towards the head, which is newest */
    uint32_t next;
};

struct lru {
    struct tierce__policy base;
    uint32_t magic;
    uint32_t slot_count;
    struct lru_link *links; /* [slot_count + 1], the last one is the head of the circle */
    uint8_t *flags;         /* [slot_count] */
    uint64_t *parkings;     /* [slot_count] the number of the parking, of parked slots */
    uint32_t *heap_places;  /* [slot_count] index in the heap, of slots in the heap */
    uint32_t *heap;         /* [slot_count] slots, the one parked first on top */
    uint32_t heap_count;
    uint64_t parking_next;
};

static struct lru *lru_of(struct tierce__policy *policy)
{
    struct lru *lru = (struct lru *)(void *)policy;
    TIERCE_CHECK_MAGIC(lru, LRU_MAGIC);
    return lru;
}

static void unlink_slot(struct lru *lru, uint32_t slot)
{
    struct lru_link link = lru->links[slot];
    lru->links[link.prev].next = link.next;
    lru->links[link.next].prev = link.prev;
}

static void push_newest(struct lru *lru, uint32_t slot)
{
    uint32_t head = lru->slot_count, first = lru->links[head].next;
    lru->links[slot] = (struct lru_link){.prev = head, .next = first};
    lru->links[first].prev = slot;
    lru->links[head].next = slot;
}

/* ---- the heap of parked slots that are evictable again --------------------------------------- */

static void heap_set(struct lru *lru, uint32_t place, uint32_t slot)
{
    lru->heap[place] = slot;
    lru->heap_places[slot] = place;
}

static void heap_sift_up(struct lru *lru, uint32_t place, uint32_t slot)
{
    while (place > 0) {
        uint32_t above = (place - 1) / 2;
        if (lru->parkings[lru->heap[above]] <= lru->parkings[slot])
            break;
        heap_set(lru, place, lru->heap[above]);
        place = above;
    }
    heap_set(lru, place, slot);
}

static void heap_sift_down(struct lru *lru, uint32_t place, uint32_t slot)
{
    for (;;) {
        uint64_t below = (uint64_t)place * 2 + 1;
        if (below >= lru->heap_count)
            break;
        if (below + 1 < lru->heap_count &&
            lru->parkings[lru->heap[below + 1]] < lru->parkings[lru->heap[below]])
            below++;
        if (lru->parkings[slot] <= lru->parkings[lru->heap[below]])
            break;
        heap_set(lru, place, lru->heap[below]);
        place = (uint32_t)below;
    }
    heap_set(lru, place, slot);
}

static void heap_insert(struct lru *lru, uint32_t slot)
{
    heap_sift_up(lru, lru->heap_count++, slot);
}

static void heap_remove(struct lru *lru, uint32_t slot)
{
    uint32_t place = lru->heap_places[slot];
    uint32_t last = lru->heap[--lru->heap_count];
    if (last == slot)
        return;
    if (lru->parkings[last] < lru->parkings[slot])
        heap_sift_up(lru, place, last);
    else
        heap_sift_down(lru, place, last);
}

/* Takes a slot out of the list or the heap, wherever it is. */
static void detach_slot(struct lru *lru, uint32_t slot)
{
    unsigned flags = lru->flags[slot];
    if ((flags & SLOT_PARKED) == 0)
        unlink_slot(lru, slot);
    else if ((flags & SLOT_EVICTABLE) != 0)
        heap_remove(lru, slot);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void lru_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct lru *lru = lru_of(policy);
    lru->magic = 0;
    tierce__free(lru->heap);
    tierce__free(lru->heap_places);
    tierce__free(lru->parkings);
    tierce__free(lru->flags);
    tierce__free(lru->links);
    tierce__free(lru);
}

static int lru_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    if (opts->slot_count < 1 || opts->slot_count >= TIERCE__NO_SLOT)
        return TIERCE_E_ARGUMENT;
    struct lru *lru = tierce__calloc(1, sizeof(*lru));
    if (lru == NULL)
        return -ENOMEM;
    size_t count = opts->slot_count;
    lru->base.ops = &tierce__policy_lru_ops;
    lru->magic = LRU_MAGIC;
    lru->slot_count = opts->slot_count;
    lru->links = tierce__calloc(count + 1, sizeof(*lru->links));
    lru->flags = tierce__calloc(count, sizeof(*lru->flags));
    lru->parkings = tierce__calloc(count, sizeof(*lru->parkings));
    lru->heap_places = tierce__calloc(count, sizeof(*lru->heap_places));
    lru->heap = tierce__calloc(count, sizeof(*lru->heap));
    if (lru->links == NULL || lru->flags == NULL || lru->parkings == NULL ||
        lru->heap_places == NULL || lru->heap == NULL) {
        lru_destroy(&lru->base);
        return -ENOMEM;
    }
    lru->links[count] = (struct lru_link){.prev = opts->slot_count, .next = opts->slot_count};
    *out = &lru->base;
    return 0;
}

static void lru_insert(struct tierce__policy *policy, uint32_t slot,
                       const struct tierce__policy_entry *entry)
{
    struct lru *lru = lru_of(policy);
    (void)entry;
    TIERCE_ASSERT(slot < lru->slot_count && lru->flags[slot] == 0);
    lru->flags[slot] = SLOT_IN | SLOT_EVICTABLE;
    push_newest(lru, slot);
}

static void lru_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct lru *lru = lru_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < lru->slot_count && lru->flags[slot] != 0);
    detach_slot(lru, slot);
    lru->flags[slot] = (uint8_t)(lru->flags[slot] & ~SLOT_PARKED);
    push_newest(lru, slot);
}

static void lru_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct lru *lru = lru_of(policy);
    TIERCE_ASSERT(slot < lru->slot_count && lru->flags[slot] != 0);
    unsigned flags = lru->flags[slot];
    if (((flags & SLOT_EVICTABLE) != 0) == evictable)
        return;
    if ((flags & SLOT_PARKED) != 0) {
        if (evictable)
            heap_insert(lru, slot);
        else
            heap_remove(lru, slot);
    }
    lru->flags[slot] = (uint8_t)(flags ^ SLOT_EVICTABLE);
}

static void lru_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct lru *lru = lru_of(policy);
    (void)evicted;
    TIERCE_ASSERT(slot < lru->slot_count && lru->flags[slot] != 0);
    detach_slot(lru, slot);
    lru->flags[slot] = 0;
}

static bool lru_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct lru *lru = lru_of(policy);
    (void)now;
    if (lru->heap_count > 0) {
        *slot = lru->heap[0];
        return true;
    }
    uint32_t head = lru->slot_count, oldest;
    while ((oldest = lru->links[head].prev) != head) {
        if ((lru->flags[oldest] & SLOT_EVICTABLE) != 0) {
            *slot = oldest;
            return true;
        }
        unlink_slot(lru, oldest);
        lru->flags[oldest] |= SLOT_PARKED;
        lru->parkings[oldest] = lru->parking_next++;
    }
    return false;
}

const struct tierce__policy_ops tierce__policy_lru_ops = {
    .name = "lru",
    .summary = "least recently used: the entry whose last use is longest ago leaves first",
    .create = lru_create,
    .destroy = lru_destroy,
    .insert = lru_insert,
    .touch = lru_touch,
    .set_evictable = lru_set_evictable,
    .remove = lru_remove,
    .victim = lru_victim,
};
