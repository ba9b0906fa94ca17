/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_HYBRID_H
#define TIERCE_OPTIMIZER_HYBRID_H

#include "optimizer/trace/trace.h"

/*
 * A replay of the event log of hybrid models: each group of layers is an instance, and a hit needs
 * blocks of all of them.
 *
 *     rc = tierce__hybrid_create(&hybrid, &(struct tierce__hybrid_opts){.size = ..., ...});
 *     while (tierce__trace_next(trace, &request) > 0)
 *         rc = tierce__hybrid_add(hybrid, &request,
 *                                 tierce__trace_layers(trace, request.instance));
 *     result = tierce__hybrid_result(hybrid);
 *
 * Instances of one group and one family belong together; keys are equal for equal tokens. A lookup
 * is a read of the family's instance of full attention. Its hit is the largest number of its blocks
 * after which each instance of the family has the blocks that tierce__group_needs names. These
 * blocks count as used. Reads of the other instances are left out, because they depend on the hits
 * of the recorded cache. An instance is required from its first request on. If instances of a
 * family have equal layers, the last one that stored a block is required, and if they are of full
 * attention, its reads are the lookups.
 *
 * The cache is LRU by bytes, over all families; a chain of full attention is evicted from its end.
 * When it is full, it evicts a hundredth of its capacity. If `is_paired`, blocks are judged then,
 * by the rules of the manager (docs/inside/design/008-reclaim.md, "Families"): blocks that no
 * lookup can use leave first, then windows and states inside a chain, then all others; and a block
 * leaves with those that are useless without it. Unlike the manager, the replay knows the position
 * of each block in its chain, and judges chunked attention too.
 *
 * Left out: instances without full attention in their family, requests of instances of unknown
 * layers, and window or chunked groups whose blocks have another length than those of full
 * attention. Removals are not replayed.
 *
 * Costs: 72 bytes for each distinct block, and a pass over all blocks whenever the cache is full.
 * Threads: one at a time.
 */

struct tierce__hybrid;

struct tierce__hybrid_opts {
    size_t size;          /* sizeof(struct tierce__hybrid_opts) */
    uint64_t capacity;    /* bytes >= 1, or TIERCE__CAPACITY_UNLIMITED */
    uint64_t block_bytes; /* of blocks whose size the trace does not give; >= 1 */
    bool is_paired;
};

struct tierce__hybrid_result {
    uint64_t lookups;
    uint64_t tokens, hit_tokens; /* of these; whole blocks */
    uint64_t stored, evicted;    /* blocks */
    uint64_t used_bytes;         /* held now */
};

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (an option out of its range). */
TIERCE_MUSTUSE int tierce__hybrid_create(struct tierce__hybrid **out,
                                         const struct tierce__hybrid_opts *opts);

/* [borrow] both for the call; `layers` may be NULL: the request is left out. -ENOMEM,
 * TIERCE_E_LIMIT (over 2^32 - 2 distinct blocks); afterwards it can only be destroyed. */
TIERCE_MUSTUSE int tierce__hybrid_add(struct tierce__hybrid *hybrid,
                                      const struct tierce__trace_request *request,
                                      const struct tierce__trace_layers *layers);

struct tierce__hybrid_result tierce__hybrid_result(const struct tierce__hybrid *hybrid);

/* NULL is accepted. */
void tierce__hybrid_destroy(struct tierce__hybrid *hybrid);

#endif
