/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_ROOM_WAIT_H
#define TIERCE_ENGINE_ROOM_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * A patient store waits for room in memory and in the queues of all tiers that are to keep its
 * chunks. An ordinary store waits for memory alone (timeout.store); if a slow tier's queue is full,
 * that tier drops chunks, which are lost when memory evicts them. This is for callers with a thread
 * of their own, which no inference engine waits for.
 */
struct tierce__room_wait {
    uint64_t deadline_ns;      /* [in] 0: it does not wait; a chunk without room is not counted as
                                  skipped, because the caller tries again */
    const _Atomic bool *stops; /* [in] ends the wait when true, with tierce__pool_wake; or NULL */
    bool is_full;              /* [out] there was no room for a chunk */
};

/* As tierce_store, but patient. Through a node: tierce_store. [out] room_wait->is_full */
TIERCE_MUSTUSE int64_t tierce__store_waiting(struct tierce_view *view,
                                             const struct tierce_transfer_opts *opts,
                                             struct tierce__room_wait *room_wait);

/* The same until wait_ms from now. [out] *is_full */
TIERCE_MUSTUSE int64_t tierce__store_within(struct tierce_view *view,
                                            const struct tierce_transfer_opts *opts,
                                            uint32_t wait_ms, bool *is_full);

#endif
