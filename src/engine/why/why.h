/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_H
#define TIERCE_ENGINE_WHY_H

#include "engine/view.h"

#include <tierce/why.h>

/*
 * Why a chunk is missing. Departures and rejections that tiers report are remembered
 * (departures.h). Chunks without a remembered event are searched under the other namespaces.
 *
 * Thread: any.
 */

/* Notes an event of a tier's watcher. */
void tierce__why_note(struct tierce_engine *engine, size_t level,
                      const struct tierce__tier_event *event);

/* Prefetches the remembered event of a chunk that will be queried soon. */
void tierce__why_prefetch(const struct tierce_engine *engine, const struct tierce__key *key);

/* The reason of a miss for a tier's reason. */
enum tierce_miss_reason tierce__why_left(enum tierce__tier_left left);

/* Notes that a level did not take a chunk that was put. */
void tierce__why_refused(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
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

/* Counts the reason of a lookup's first missing chunk, number `index` of its keys. Twins are
 * searched only if the first chunk is missing: a wrong namespace finds nothing at all, and a lookup
 * that finds something must not wait. Does not block on a device. */
void tierce__why_count(struct tierce_engine *engine, const struct tierce__keys *keys, size_t index,
                       const struct tierce__unasked *unasked);

#endif
