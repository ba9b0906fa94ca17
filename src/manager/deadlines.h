/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_DEADLINES_H
#define TIERCE_MANAGER_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * What is due when: a binary heap of members embedded in what waits. A zeroed heap is empty; a
 * zeroed member is in none. Thread: one at a time; the owner locks.
 */

struct tierce__deadline {
    int64_t due_us;
    size_t position; /* in the heap, from 1; 0: in none */
};

struct tierce__deadlines {
    struct tierce__deadline **members;
    size_t count, room;
};

/* Errors: -ENOMEM, and nothing has changed. */
TIERCE_MUSTUSE int tierce__deadlines_add(struct tierce__deadlines *heap,
                                         struct tierce__deadline *member, int64_t due_us);

/* A member of the heap is due earlier than before. */
void tierce__deadlines_hasten(struct tierce__deadlines *heap, struct tierce__deadline *member,
                              int64_t due_us);

/* A member that is in none is fine. */
void tierce__deadlines_remove(struct tierce__deadlines *heap, struct tierce__deadline *member);

/* The one that is due first, or NULL. */
struct tierce__deadline *tierce__deadlines_first(const struct tierce__deadlines *heap);

/* Frees the heap; its members are the owner's. */
void tierce__deadlines_clear(struct tierce__deadlines *heap);

#endif
