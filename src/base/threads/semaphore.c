/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/semaphore.h"

#include "base/assert.h"

void tierce__semaphore_init(struct tierce__semaphore *semaphore, uint64_t capacity)
{
    *semaphore = (struct tierce__semaphore){.capacity = capacity};
    tierce__lock_init(&semaphore->lock, TIERCE__LOCK_SEMAPHORE);
    tierce__list_init(&semaphore->waiters);
}

void tierce__semaphore_fini(struct tierce__semaphore *semaphore)
{
    TIERCE_ASSERT(tierce__list_empty(&semaphore->waiters));
    TIERCE_ASSERT(semaphore->used == 0);
    tierce__lock_fini(&semaphore->lock);
}

static struct tierce__semaphore_waiter *waiter_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__semaphore_waiter, node);
}

/* Takes the units of the waiters that can be served, the first first, and moves these to `served`.
 * Under the lock. */
static void serve(struct tierce__semaphore *semaphore, struct tierce__list *served)
{
    tierce__lock_assert_held(&semaphore->lock);
    TIERCE_DASSERT(semaphore->used <= semaphore->capacity);
    while (!tierce__list_empty(&semaphore->waiters)) {
        struct tierce__semaphore_waiter *first = waiter_of(semaphore->waiters.next);
        if (first->units > semaphore->capacity - semaphore->used)
            return;
        semaphore->used += first->units;
        tierce__list_remove(&first->node);
        tierce__list_push_back(served, &first->node);
    }
}

/* Calls the served waiters. No other thread touches their nodes: leave searches the queue, and they
 * are no longer in it. */
static void tell(struct tierce__list *served)
{
    while (!tierce__list_empty(served)) {
        struct tierce__semaphore_waiter *first = waiter_of(served->next);
        tierce__list_remove(&first->node);
        first->granted(first->arg);
    }
}

bool tierce__semaphore_take(struct tierce__semaphore *semaphore,
                            struct tierce__semaphore_waiter *waiter)
{
    TIERCE_ASSERT(waiter->units <= semaphore->capacity);
    tierce__lock_take(&semaphore->lock);
    TIERCE_DASSERT(semaphore->used <= semaphore->capacity);
    bool taken = tierce__list_empty(&semaphore->waiters) &&
                 waiter->units <= semaphore->capacity - semaphore->used;
    if (taken) {
        semaphore->used += waiter->units;
    } else {
        tierce__list_push_back(&semaphore->waiters, &waiter->node);
    }
    tierce__lock_drop(&semaphore->lock);
    return taken;
}

bool tierce__semaphore_leave(struct tierce__semaphore *semaphore,
                             struct tierce__semaphore_waiter *waiter)
{
    struct tierce__list served;
    bool waits = false;
    tierce__list_init(&served);
    tierce__lock_take(&semaphore->lock);
    TIERCE__LIST_FOR_EACH (it, &semaphore->waiters)
        waits |= it == &waiter->node;
    if (waits) {
        tierce__list_remove(&waiter->node);
        serve(semaphore, &served); /* it may have been the one that the others waited for */
    }
    tierce__lock_drop(&semaphore->lock);
    tell(&served);
    return waits;
}

void tierce__semaphore_give(struct tierce__semaphore *semaphore, uint64_t units)
{
    struct tierce__list served;
    tierce__list_init(&served);
    tierce__lock_take(&semaphore->lock);
    TIERCE_ASSERT(units <= semaphore->used);
    semaphore->used -= units;
    serve(semaphore, &served);
    tierce__lock_drop(&semaphore->lock);
    tell(&served);
}

uint64_t tierce__semaphore_used(struct tierce__semaphore *semaphore)
{
    tierce__lock_take(&semaphore->lock);
    uint64_t used = semaphore->used;
    TIERCE_DASSERT(used <= semaphore->capacity);
    tierce__lock_drop(&semaphore->lock);
    return used;
}
