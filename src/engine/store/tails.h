/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_TAILS_H
#define TIERCE_ENGINE_TAILS_H

#include "engine/view.h"

/*
 * Tails: the partial chunks at the ends of prompts. When a longer prompt completes the chunk, the
 * whole chunk holds the blocks of the tail as well, and lookups find them there (sibling.h). Then
 * the tail is no longer required, and is dropped. Without chunk.siblings these functions do
 * nothing.
 *
 * Thread: any.
 */

/* Whether a longer chunk in memory begins with all blocks of the tail. The tail has the last key of
 * `keys`. */
TIERCE_MUSTUSE bool tierce__tail_is_held(struct tierce_view *view, const struct tierce_chain *chain,
                                         const struct tierce__keys *keys);

/*
 * Whether a chunk that a level stores can replace tails there. In a remote store only a prompt that
 * ends in the same block finds a tail; for all others it wastes space. In such a tier only the
 * tails that this process has sent or found are deleted; the store is not queried for others.
 */
TIERCE_MUSTUSE bool tierce__tails_may_end(const struct tierce_engine *engine, size_t level,
                                          const struct tierce__storage_chunk *chunk);

/* Drops the tails that a chunk replaces in memory, which holds it. [in] buf: the sealed chunk. */
void tierce__tails_end(struct tierce_engine *engine, const struct tierce__storage_chunk *chunk,
                       const struct tierce__buf *buf);

/*
 * Drops the tails that a chunk replaces in a slower level, which holds it: looks them up one after
 * the other. It does not block, because it may run on the disk's own thread, which reports that a
 * chunk is on disk; the answers of the tier continue the search. Its memory is the caller's until
 * `over`, which is called exactly once, perhaps before the search returns.
 */
struct tierce__tail_search {
    /* [in] */
    struct tierce_engine *engine;
    size_t level;
    struct tierce__buf *held;      /* the sealed chunk. [transfer] the reference */
    struct tierce__store_req *req; /* for the lookups. [borrow until over] */
    void (*over)(struct tierce__tail_search *search);

    /* The search's own. */
    struct tierce__key tail; /* being looked up */
    const uint8_t *hashes;   /* of the chunk's blocks, in held */
    uint32_t blocks, block_count;
    _Atomic bool is_answered; /* or the caller no longer waits for the answer */
};
void tierce__tails_search(struct tierce__tail_search *search,
                          const struct tierce__storage_chunk *chunk);

#endif
