/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_H
#define TIERCE_ENGINE_WHY_H

#include "engine/view.h"

#include <tierce/why.h>

/*
 * Why a chunk is missing. Other files of the engine record facts here (a chunk was added, removed
 * or rejected; a lookup ended), and only src/engine/why turns facts into reasons, counters and
 * texts. The last removal or rejection of a chunk is remembered (departures.h). A chunk without a
 * remembered event is searched under other namespaces.
 *
 *     tierce__why_note(engine, level, event);              a tier added or removed a chunk
 *     tierce__why_refused(engine, level, key, status);     a tier rejected a chunk
 *     tierce__why_missing(engine, &keys, found, &unasked, &miss); a lookup ended at
 * keys.keys[found]
 *
 * Functions that record a fact cannot fail. Thread: any; why_note may be called under a tier's
 * lock.
 */

/* Records an event of a tier's watcher. */
void tierce__why_note(struct tierce_engine *engine, size_t level,
                      const struct tierce__tier_event *event);

/* Records that a level rejected a chunk. `status`: the error, negative. */
void tierce__why_refused(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                         int status);

/*
 * Finds the reason of a lookup's first missing chunk, number `index` of its keys, and counts it;
 * `unasked` is the tier that could not be queried, if any. A missing tail that was never stored is
 * not counted. Twins are searched only if `index` is 0: under a wrong namespace a lookup finds
 * nothing, and a lookup that finds something must not wait. Does not block on a device. [in] *out:
 * zero; all fields but `size` and `block` are filled.
 */
void tierce__why_missing(struct tierce_engine *engine, const struct tierce__keys *keys,
                         size_t index, const struct tierce__unasked *unasked,
                         struct tierce_miss *out);

/* The same for a lookup that searched memory only. It is not counted, because other tiers may hold
 * the chunk. */
void tierce__why_not_in_memory(struct tierce_engine *engine, const struct tierce__keys *keys,
                               size_t index, struct tierce_miss *out);

/* Counts a lookup that ended for a reason that does not depend on a chunk's past. */
void tierce__why_count(struct tierce_engine *engine, enum tierce_miss_reason reason);

/* Prefetches the remembered event of a chunk that will be queried soon. */
void tierce__why_prefetch(const struct tierce_engine *engine, const struct tierce__key *key);

/* Converts a tier's reason for a removal to the reason of a miss. */
enum tierce_miss_reason tierce__why_left(enum tierce__tier_left left);

/* ---- for the operator's questions (why_answer.h, why_chunk.h) ----------------------------------
 */

/* Sets the reason in *out: namespace `ns` of the table has the chunk. [borrow] its text. */
void tierce__why_twin(struct tierce_miss *out, struct tierce__namespaces *namespaces, uint32_t ns);

struct tierce__why_what {
    uint64_t from_block, to_block;
    bool whole_view; /* false: the view only names chunks; costs and siblings are ignored */
};
struct tierce__why_found {
    struct tierce_miss miss;
    uint64_t held; /* the inference engine can continue after this number of blocks */
};

/* tierce_why, on a zeroed *out. */
TIERCE_MUSTUSE int tierce__why_chain(struct tierce_view *view, const struct tierce_chain *chain,
                                     const struct tierce__why_what *what,
                                     struct tierce__why_found *out);

/* The remembered event of a chunk of shard 0 of 1 with this hash, which no tier has, under any
 * namespace. Returns false, *out untouched, if nothing is remembered. */
TIERCE_MUSTUSE bool tierce__why_departed(struct tierce_engine *engine, const uint8_t *hash,
                                         struct tierce_miss *out);

#endif
