/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_ASKS_H
#define TIERCE_ENGINE_ASKS_H

#include "base/list.h"
#include "base/threads/lock.h"
#include "engine/waterfall.h"
#include "store/tier.h"

/*
 * Queries to remote stores on behalf of lookups. A query outlives the lookups that wait for it. Its
 * deadline is timeout.lookup; the keys that the store has not answered by then are queried once
 * more with timeout.load. The tier remembers the answers (TIERCE__RECALL_ONLY), so that the next
 * lookup of the same prompt has them at once. If a query for the next key of a lookup is in
 * progress, the lookup waits for that query instead of sending another.
 *
 * Lock: ASKS; no tier is called under it. Thread: any.
 */

struct tierce_engine;
struct tierce__search;

struct tierce__asks {
    struct tierce__lock lock; /* ASKS */
    struct tierce__cond changed;
    struct tierce__list list;
    size_t count;
    /* How long stores took recently for a query of few keys; 0: not known. */
    uint64_t answer_ns[TIERCE__TIERS_MAX];
};

/* A store answers for so many chunks about as soon as for one. */
#define TIERCE__ASKS_ONE_TRIP 8u

/* Time for an answer sent by the deadline to arrive. */
#define TIERCE__ASKS_GRACE_NS (20 * TIERCE__MS_NS)
#define TIERCE__ASKS_MAX      256u

void tierce__asks_init(struct tierce__asks *asks);
/* Call after the tiers are closed, when all queries have been answered. */
void tierce__asks_fini(struct tierce__asks *asks);

/* The deadline of a query that is sent for the second time. */
uint64_t tierce__ask_patience(const struct tierce_engine *engine);

/*
 * Returns how many leading keys the given remote stores hold; all of them must be
 * TIERCE__TIER_SHARED. All are queried in parallel, and the answer of one store may extend the
 * answer of another. Returns as soon as the answers cover all keys or no store can extend them, so
 * a slow or dead store costs no time if other stores hold all keys. Returns at the search's
 * deadline at the latest, and at once if it has passed. Sets the search's places and unasked.
 * [borrow for the call] keys.
 */
size_t tierce__ask_stores(struct tierce_engine *engine, struct tierce__search *wanted,
                          const struct tierce__key *keys, size_t count);

#endif
