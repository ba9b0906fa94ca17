/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_GHOST_H
#define TIERCE_POLICY_GHOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/map.h"
#include "base/mix.h"
#include "core/policy/order.h"

/*
 * Keys of entries that were evicted, with their sizes, in one or two lists by age. A key is in one
 * list at most. Nodes are reused in the order of their age. If keys are dense numbers, an array
 * over them replaces the table.
 */

enum { TIERCE__GHOST_LISTS = 2 };

/* The policy's data about an entry that may become a ghost. */
struct tierce__ghost_entry {
    uint64_t key;
    uint64_t bytes;
};

struct tierce__ghost_node {
    uint64_t key;
    uint64_t bytes;
    uint32_t newer, older;
    uint32_t hash;
    uint32_t list;
};

struct tierce__ghost {
    struct tierce__ghost_node
        *nodes; /* [node_count + LISTS]: the last ones are the ends of the lists */
    struct tierce__numbers table; /* of the nodes; or it is empty, and */
    uint32_t *node_of;            /* [range] of a key, + 1; 0: none */
    uint64_t range;
    uint32_t node_count;
    uint32_t nodes_used; /* those beyond were never used */
    uint32_t nodes_free; /* stack through `newer`; node_count: none */
    uint64_t bytes[TIERCE__GHOST_LISTS];
};

/* Room for `key_count` keys (>= 1), which are all below `range`, or any if it is 0. After -ENOMEM,
 * fini may still be called; fini accepts a zeroed ghost. */
TIERCE_MUSTUSE int tierce__ghost_init(struct tierce__ghost *ghost, uint32_t key_count,
                                      uint32_t range);
void tierce__ghost_fini(struct tierce__ghost *ghost);

/* Whether a key is known; then *list is the list that has it. */
bool tierce__ghost_find(const struct tierce__ghost *ghost, uint64_t key, uint32_t *list);

/* Prefetches the cell in which a key would be. */
static inline uint32_t tierce__ghost_hash(uint64_t key)
{
    return (uint32_t)(tierce__spread(key ^ (key >> 32)) >> 32);
}

static inline void tierce__ghost_prefetch(const struct tierce__ghost *ghost, uint64_t key)
{
    if (ghost->node_of != NULL)
        __builtin_prefetch(&ghost->node_of[key], 1);
    else
        tierce__numbers_prefetch(&ghost->table, tierce__ghost_hash(key));
}

/* Prefetches the data needed to remember the entries evicted after `slot`: the cell of the next
 * entry, whose key is already cached, and the key of the entry after it. */
static inline void tierce__ghost_fetch_next(const struct tierce__ghost *ghost,
                                            const struct tierce__ghost_entry *entries,
                                            const struct tierce__order *order, uint32_t slot)
{
    uint32_t next = order->nodes[slot].newer;
    if (next >= order->slot_count)
        return;
    tierce__ghost_prefetch(ghost, entries[next].key);
    next = order->nodes[next].newer;
    __builtin_prefetch(&order->nodes[next], 1);
    if (next < order->slot_count)
        __builtin_prefetch(&entries[next]);
}

/* Forgets a key. Returns whether it was known; then *list is the list that had it. */
bool tierce__ghost_take(struct tierce__ghost *ghost, uint64_t key, uint32_t *list);

/* Makes a key the newest of a list, moving it if it is known. If there is no room, the oldest key
 * of that list is dropped, or else that of the other list. */
void tierce__ghost_push(struct tierce__ghost *ghost, uint32_t list, uint64_t key, uint64_t bytes);

/* Forgets the oldest of a list; false if it is empty. */
bool tierce__ghost_drop_oldest(struct tierce__ghost *ghost, uint32_t list);

#endif
