/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PREFETCHES_H
#define TIERCE_ENGINE_PREFETCHES_H

#include "base/list.h"
#include "base/threads/lock.h"
#include "base/threads/semaphore.h"

struct tierce_engine;
struct tierce_view;

/* The prefetches of an engine whose handles have not been released. */
struct tierce__prefetches {
    struct tierce__lock lock; /* PREFETCH: the list, and the mutable state of prefetches */
    struct tierce__list list;
    struct tierce__semaphore memory; /* bytes that are being read and not published yet */
};

void tierce__prefetches_init(struct tierce__prefetches *prefetches, uint64_t bytes_max);
void tierce__prefetches_fini(struct tierce__prefetches *prefetches);

/* Ends the prefetches whose deadline has passed: only their handles stay. */
void tierce__prefetches_expire(struct tierce_engine *engine);

/* Ends the prefetches of a view and frees their handles. */
void tierce__prefetches_drop(struct tierce_view *view);

#endif
