/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_SEMAPHORE_H
#define TIERCE_BASE_SEMAPHORE_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/list.h"
#include "base/threads/lock.h"

/*
 * A weighted semaphore: a number of units. Callers take some of them in order of arrival. No call
 * blocks: a caller that cannot be served at once waits in a queue and is called back. Small
 * requests do not overtake a large one at the head, so no caller starves.
 *
 *     struct tierce__semaphore_waiter w = {.units = n, .granted = go_on, .arg = arg};
 *     if (tierce__semaphore_take(&semaphore, &w))
 *         ... the units are ours now, and go_on is not called ...
 *     tierce__semaphore_give(&semaphore, n);
 *
 * Thread: any; nothing here blocks or allocates.
 */

struct tierce__semaphore {
    uint64_t capacity;
    struct tierce__lock lock; /* SEMAPHORE: below */
    uint64_t used;
    struct tierce__list waiters; /* in order of arrival */
};

/* [borrow] while it waits. */
struct tierce__semaphore_waiter {
    uint64_t units; /* at most the capacity */
    /* The units are the waiter's now. Called under no lock, by the thread that gave units back or
     * took a waiter out of the queue; once. */
    void (*granted)(void *arg);
    void *arg;
    struct tierce__list node;
};

void tierce__semaphore_init(struct tierce__semaphore *semaphore, uint64_t capacity);
/* No waiter is queued, and all units have been given back (asserted). */
void tierce__semaphore_fini(struct tierce__semaphore *semaphore);

/* True: the units are taken. False: the waiter is in the queue, and granted will be called. */
TIERCE_MUSTUSE bool tierce__semaphore_take(struct tierce__semaphore *semaphore,
                                           struct tierce__semaphore_waiter *waiter);

/* Takes a waiter out of the queue. False: the units have been granted, and granted has been or is
 * about to be called. */
bool tierce__semaphore_leave(struct tierce__semaphore *semaphore,
                             struct tierce__semaphore_waiter *waiter);

/* Returns units and serves the waiters that can be served now. */
void tierce__semaphore_give(struct tierce__semaphore *semaphore, uint64_t units);

uint64_t tierce__semaphore_used(struct tierce__semaphore *semaphore);

#endif
