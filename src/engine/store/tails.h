/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_TAILS_H
#define TIERCE_ENGINE_TAILS_H

#include "engine/view.h"

/*
 * Tails: the unfull chunks at the ends of prompts. When a longer prompt completes the chunk, the
 * whole chunk holds the blocks of the tail as well, and lookups find them there (sibling.h). The
 * tail is then superfluous and is dropped. Without chunk.siblings these functions do nothing.
 *
 * Thread: any.
 */

/* Whether a longer chunk in memory begins with all blocks of the tail. The tail has the last key of
 * `keys`. */
TIERCE_MUSTUSE bool tierce__tail_is_held(struct tierce_view *view, const struct tierce_chain *chain,
                                         const struct tierce__keys *keys);

/*
 * Whether a chunk that a level takes can take the place of tails there. In a remote store a tail is
 * found only by a prompt that ends in the same block, and is in the way of everything else. There
 * those go that the tier remembers, which this process has sent or found: it is not asked for more.
 */
TIERCE_MUSTUSE bool tierce__tails_may_end(const struct tierce_engine *engine, size_t level,
                                          const struct tierce__storage_chunk *chunk);

/* Drops the tails that `chunk` replaces in a level; call when the level holds the chunk. [in] buf:
 * the sealed chunk; the call takes a reference until it is done. Does not block. */
void tierce__tails_end(struct tierce_engine *engine, size_t level,
                       const struct tierce__storage_chunk *chunk, struct tierce__buf *buf);

#endif
