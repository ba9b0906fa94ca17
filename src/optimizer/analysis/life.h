/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIFE_H
#define TIERCE_OPTIMIZER_LIFE_H

#include "optimizer/replay/histogram.h"
#include "optimizer/trace/recording.h"
#include "optimizer/replay/sweep.h"

/*
 * The life of blocks: statistics of the trace alone (tierce__life_scan), and in one cache
 * (tierce__life_replay).
 *
 *     rc = tierce__life_scan(&life, recording, &(struct tierce__life_opts){
 *              .size = sizeof(struct tierce__life_opts)});
 *     ...
 *     tierce__life_clear(&life);
 *
 * Terms. A request names all its blocks. It uses those that it looks up (its first read_count), and
 * stores all of them unless it only reads. A reuse is the use of a block that an earlier request
 * named. Requests with equal times are still ordered.
 *
 * A scan costs 49 bytes per distinct block (8 more if the trace has sizes), plus the memory of the
 * curve (curve.h).
 *
 * Threads: any; each call by itself.
 */

#define TIERCE__LIFE_NO_PARENT UINT32_MAX

/*
 * A run of blocks that the same requests share: each block except the first has the previous one as
 * its parent, and the same number of uses. The parent of a block is the block before it in the
 * first request that names it.
 */
struct tierce__life_node {
    uint32_t parent;   /* index of the node whose last block precedes the first block of this one;
                          NO_PARENT: the run is at the start of its requests (or the ids are not
                          prefix ids, and a block may have more uses than its predecessor) */
    uint32_t instance; /* index into the trace's names of instances */
    uint32_t block;    /* number of the first block in the recording */
    uint32_t depth;    /* blocks before the run in a request */
    uint32_t blocks;   /* of the run; >= 1 */
    uint32_t children; /* of the last block, in the trace; those among the nodes may be fewer */
    uint64_t requests; /* that use the run: the uses of each of its blocks */
    int64_t first_us;  /* time of the first request that names the first block */
    int64_t last_us;   /* time of the last request that uses it, or first_us */
    uint64_t tokens;   /* blocks * block_tokens; 0 if that is not known */
};

struct tierce__life {
    uint64_t requests;
    uint64_t uses;     /* blocks looked up */
    uint64_t reuses;   /* of those */
    uint32_t distinct; /* different blocks named */
    uint32_t stored;   /* different blocks that some request stores */
    uint32_t dead;     /* of those, with no use by a request after the first that stores it: dead on
                          arrival. Share: dead / stored */
    uint64_t stored_bytes, dead_bytes; /* the same in bytes, as last given; 0 where the trace gives
                                          no sizes */

    /* Reuses, by the number of different blocks named since the block was last named, itself
     * included, counted at the request's start with each request's blocks touched from its last to
     * its first: the smallest LRU cache that would hold it (curve.h, match `any`). */
    struct tierce__histogram distance;
    /* Reuses, by the microseconds since an earlier request last named the block. */
    struct tierce__histogram gap_us;
    /* Different blocks, by their uses: the requests that use them, unless a block occurs in a
     * request more than once. */
    struct tierce__histogram uses_of;
    /* Different blocks with a reuse, by the microseconds from the first request that names them to
     * the last that uses them. */
    struct tierce__histogram span_us;

    uint64_t block_tokens; /* as given, else tierce__block_tokens; 0: unknown */

    /* The nodes with the most requests through them, of each instance at most nodes_max: first the
     * instances in their order, then the requests, most first; equal ones shallower first. A
     * parent comes before its children. */
    struct tierce__life_node *nodes;
    size_t node_count;
};

struct tierce__life_opts {
    size_t size;
    uint32_t nodes_max; /* of each instance; 0: 128. All instances together have at most 4,096: each
                           at most its share, and at least one */
    uint64_t block_tokens; /* 0: derived from the recording */
};

/* Errors, *out untouched: -ENOMEM, TIERCE_E_LIMIT (as tierce__curve_request). */
TIERCE_MUSTUSE int tierce__life_scan(struct tierce__life *out,
                                     const struct tierce__recording *recording,
                                     const struct tierce__life_opts *opts);

/* Accepts a zeroed one. */
void tierce__life_clear(struct tierce__life *life);

/*
 * Derives the tokens per block from the requests that give their number of tokens. The result is
 * the roundest number (divisible by the largest power of two) that explains each request's count of
 * blocks, with a full or partial last block; otherwise the roundest number if partial last blocks
 * are omitted. 0 if the trace gives no tokens or is inconsistent.
 */
uint64_t tierce__block_tokens(const struct tierce__recording *recording);

/* ---- in one cache ---------------------------------------------------------------------------- */

struct tierce__life_cached {
    uint64_t stored; /* times that a block was stored */
    uint64_t left;   /* of those, evicted or expired */
    uint64_t unused; /* removed without any use; share: unused / left */
    uint64_t at_end; /* still there: stored - left */
    uint64_t at_end_unused;
    struct tierce__histogram stay_us; /* of removed blocks: time from store to removal */
    struct tierce__histogram uses_of; /* of removed blocks: number of uses */
};

/*
 * Replays a policy of src/core/policy, or the infinite cache. `order`, `capacity`, `in_bytes`,
 * `seed` and `ttl_us` as for tierce__replay_create. Errors, *out untouched: -ENOMEM,
 * TIERCE_E_ARGUMENT (another kind of cache, capacity 0).
 */
TIERCE_MUSTUSE int tierce__life_replay(struct tierce__life_cached *out,
                                       const struct tierce__recording *recording,
                                       const struct tierce__sim_point *point);

#endif
