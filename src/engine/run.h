/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_RUN_H
#define TIERCE_ENGINE_RUN_H

#include "engine/view.h"
#include "engine/own_tiers.h"

struct tierce__run_search {
    const struct tierce__keys *keys; /* of [0, to_block) at least */
    uint64_t from_block, to_block;
    uint32_t levels;
    uint64_t deadline_ns;           /* 0: the search does not wait for remote stores */
    bool pending;                   /* [out] a query is in progress that may lengthen the run */
    size_t missing;                 /* [out] the first chunk missing in the run of to_block blocks;
                                       keys->count: none */
    struct tierce__unasked unasked; /* [out] of that chunk */
};

/* Searches the engine's tiers for a held run. Returns the result of tierce__run_find. Thread: any.
 * Blocks until the deadline at most. */
struct tierce__run tierce__run_search(struct tierce_view *view, struct tierce__run_search *search);

#endif
