/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_DEADLINES_H
#define TIERCE_BASE_DEADLINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A binary heap of deadlines. Its members are embedded in the objects that wait. A zeroed heap is
 * empty; a zeroed member is in no heap. The owner chooses the clock and the unit, the same for all
 * members of a heap. Thread: one at a time; the owner locks.
 */

struct tierce__deadline {
    uint64_t at;
    size_t place; /* in the heap, from 1; 0: in none */
    /* Called by tierce__deadlines_expire; NULL if the owner does not use that function. */
    void (*expired)(struct tierce__deadline *deadline);
};

struct tierce__deadlines {
    struct tierce__deadline **items;
    size_t count, capacity;
};

/* Frees the heap; its members are the owner's. */
void tierce__deadlines_fini(struct tierce__deadlines *heap);

/* Puts it into the heap, or moves it there. Errors: -ENOMEM, only for a member that was in no heap.
 * */
TIERCE_MUSTUSE int tierce__deadline_set(struct tierce__deadlines *heap,
                                        struct tierce__deadline *deadline, uint64_t at);

/* Makes room, so that tierce__deadline_set does not fail while the heap has less than `count`
 * members. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__deadlines_reserve(struct tierce__deadlines *heap, size_t count);

/* Has no effect on a member that is not set. */
void tierce__deadline_unset(struct tierce__deadlines *heap, struct tierce__deadline *deadline);

/* The member with the earliest deadline, or NULL. */
struct tierce__deadline *tierce__deadlines_first(const struct tierce__deadlines *heap);

/* A member whose deadline has passed and that `accepts` accepts, or NULL. Members whose deadline is
 * later are not visited. */
struct tierce__deadline *
tierce__deadlines_find_due(const struct tierce__deadlines *heap, uint64_t now,
                           bool (*accepts)(struct tierce__deadline *deadline));

/* The earliest deadline, or TIERCE__DEADLINE_NEVER. */
uint64_t tierce__deadlines_next(const struct tierce__deadlines *heap);

/* Removes each member whose deadline has passed, and calls its `expired`, which may set and unset
 * other members. */
void tierce__deadlines_expire(struct tierce__deadlines *heap, uint64_t now);

#endif
