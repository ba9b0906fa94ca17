/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_H
#define TIERCE_ENGINE_WHY_H

#include "engine/engine_private.h"

#include <tierce/why.h>

/*
 * Why a chunk is missing. What the tiers tell of departures and what they refuse is remembered
 * (departures.h); what is not remembered is looked for under the other namespaces.
 *
 * Thread: any.
 */

/* What a tier's watcher was told. */
void tierce__why_note(struct tierce_engine *engine, size_t rung,
                      const struct tierce__tier_event *event);

/* Fetches what is remembered of a chunk that will be asked for soon. */
void tierce__why_prefetch(const struct tierce_engine *engine, const struct tierce__key *key);

/* What a tier's reason is called. */
enum tierce_miss_reason tierce__why_left(enum tierce__tier_left left);

/* Notes that a rung did not take a chunk that was put. */
void tierce__why_refused(struct tierce_engine *engine, size_t rung, const struct tierce__key *key,
                         int status);

/* tierce_why, on a zeroed *out. */
struct tierce__why_what {
    uint64_t from_block, to_block;
    bool whole_view; /* not one that only names chunks: costs and siblings count, too */
};
TIERCE_MUSTUSE int tierce__why_chain(struct tierce_view *view, const struct tierce_chain *chain,
                                     const struct tierce__why_what *what, struct tierce_miss *out);

/* How a chunk of this hash left that is in no tier, of the shard 0 of 1, under whatever namespace.
 * False: nothing is known of it. */
TIERCE_MUSTUSE bool tierce__why_departed(struct tierce_engine *engine, const uint8_t *hash,
                                         struct tierce_miss *out);

/* Counts the reason of a lookup's first missing chunk, number `index` of its keys. Twins are only
 * looked for where it is the very first: who has the wrong namespace finds nothing, and who finds
 * something shall not wait. Does not block on a device. */
void tierce__why_count(struct tierce_engine *engine, const struct tierce__keys *keys, size_t index,
                       const struct tierce__unasked *unasked);

#endif
