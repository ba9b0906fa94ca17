/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_OTHER_H
#define TIERCE_HANDOVER_OTHER_H

#include "core/chunk/heads.h"
#include "engine/handover/handover.h"
#include "engine/view.h"

/*
 * Chunks of a prefiller with a different tensor-parallel size: they have the names, cells and
 * headers of its namespace. A chunk is verified in full as a chunk of that namespace, and is then
 * converted (core/chunk/heads.h) in memory of this engine, with a header and sums of its own.
 *
 * Thread: one at a time.
 */

struct tierce__other {
    struct tierce_view *view; /* of the prefiller's namespace */
    struct tierce__heads heads;
};

/* Whether chunks of `of` can become chunks of `view`. Errors, with `why`: TIERCE_E_ARGUMENT (no
 * heads, or a view of another engine), TIERCE_E_UNSUPPORTED. */
TIERCE_MUSTUSE int tierce__other_init(struct tierce__other *out, const struct tierce_view *view,
                                      const struct tierce__handover_other *of,
                                      char why[TIERCE__HANDOVER_WHY_BYTES]);

/* A chunk of other->view that was verified. Its bytes may change since then: a node's memory is
 * shared with its clients. So its header is not read again. */
struct tierce__other_chunk {
    const uint8_t *object;
    uint32_t block_count;
    uint64_t created_s;
};

/* Writes chunk `index` of the chain as an object of `view`. */
void tierce__other_convert(const struct tierce__other *other, const struct tierce_view *view,
                           const struct tierce_chain *chain, size_t index, uint8_t *to,
                           const struct tierce__other_chunk *from);

#endif
