/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_HEAP_H
#define TIERCE_POLICY_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A heap of slots: the slot of the lowest rank is on top, and any slot can be removed. It holds the
 * slots that a search for a victim skipped, so it is empty most of the time; its memory is
 * reserved, and touched only where it is used.
 */

/* Compared by `major`, then by `minor`. */
struct tierce__rank {
    uint64_t major;
    uint64_t minor;
};

static inline bool tierce__rank_is_lower(const struct tierce__rank *a, const struct tierce__rank *b)
{
    return a->major != b->major ? a->major < b->major : a->minor < b->minor;
}

struct tierce__heap_item {
    struct tierce__rank rank;
    uint32_t slot;
};

struct tierce__heap {
    struct tierce__heap_item *items; /* [slot_count] */
    uint32_t *places;                /* [slot_count] index in items, of slots that are in */
    uint32_t count;
};

/* After -ENOMEM, fini may still be called; fini accepts a zeroed heap. */
TIERCE_MUSTUSE int tierce__heap_init(struct tierce__heap *heap, uint32_t slot_count);
void tierce__heap_fini(struct tierce__heap *heap);

void tierce__heap_insert(struct tierce__heap *heap, uint32_t slot, struct tierce__rank rank);
void tierce__heap_remove(struct tierce__heap *heap, uint32_t slot);

#endif
