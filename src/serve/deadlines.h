/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_DEADLINES_H
#define TIERCE_SERVE_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/* What is to happen when, as a binary heap of nodes that live in what waits. One thread. */

struct tierce__deadline {
    uint64_t at_ns;
    size_t place; /* in the heap, from 1; 0: in none */
    void (*expired)(struct tierce__deadline *deadline);
};

struct tierce__deadlines {
    struct tierce__deadline **items;
    size_t count, capacity;
};

void tierce__deadlines_fini(struct tierce__deadlines *heap);

/* Errors: -ENOMEM, and then it is not in the heap. */
TIERCE_MUSTUSE int tierce__deadline_set(struct tierce__deadlines *heap,
                                        struct tierce__deadline *deadline, uint64_t at_ns);

/* Harmless for one that is not set. */
void tierce__deadline_unset(struct tierce__deadlines *heap, struct tierce__deadline *deadline);

/* The first of all, or TIERCE__DEADLINE_NEVER. */
uint64_t tierce__deadlines_next(const struct tierce__deadlines *heap);

/* Takes out each that has passed and calls its `expired`, which may set and unset others. */
void tierce__deadlines_expire(struct tierce__deadlines *heap, uint64_t now_ns);

#endif
