/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPLAY_H
#define TIERCE_OPTIMIZER_REPLAY_H

#include "optimizer/replay/match.h"
#include "optimizer/trace/recording.h"
#include "core/policy/policy.h"

/*
 * Replays requests in one cache with one policy and capacity, using the eviction code of
 * production, and counts the hits.
 *
 * A request first looks up its blocks, which changes nothing. Then it uses them one at a time in
 * the configured order: cached blocks are touched, missing ones are stored, after an eviction if
 * the cache is full. A read only touches cached blocks; a write looks nothing up. A block larger
 * than the cache is not stored.
 *
 * Whole requests (opts.whole) model a tier that never keeps a suffix without its prefix: cached
 * blocks are touched and held until the request's end; missing blocks are stored from the first on,
 * and after the first that does not fit the rest is not stored. Finally all blocks are reordered,
 * the first one newest, without counting as uses. Other touch orders and MATCH_STREAM are not
 * available.
 *
 * Threads: one at a time; any number of replays may read one recording.
 */

#define TIERCE__REPLAY_MATCHES_MAX 8u

/* Callbacks for events of blocks, in order. */
struct tierce__replay_watch {
    /* A lookup is over: there[i] of the request's [count] blocks. */
    void (*looked_up)(void *arg, const struct tierce__recorded *request, const bool *there);
    void (*stored)(void *arg, uint32_t block);
    void (*left)(void *arg, uint32_t block); /* evicted or expired */
    void *arg;
};

struct tierce__replay_opts {
    size_t size;                             /* sizeof(struct tierce__replay_opts) */
    const struct tierce__policy_ops *policy; /* NULL: everything is kept */
    uint64_t capacity;                       /* blocks, or bytes if `in_bytes`; >= 1 */
    bool in_bytes;
    bool whole;
    enum tierce__touch_order order;
    uint64_t seed;
    uint64_t ttl_us; /* for policies that expire; 0: never */
    uint32_t samples;
    uint32_t distinct;                   /* different blocks of the recording */
    const struct tierce__match *matches; /* [borrow for create] */
    size_t match_count;
    const struct tierce__replay_watch *watch; /* NULL, or [borrow until destroy] */
    /* NULL, or [borrow until destroy] with `whole`: for each block of the recording, in order, the
     * next request that uses it, or UINT32_MAX. Each use has the hint open or closed accordingly.
     */
    const uint32_t *next_uses;
};

struct tierce__replay_result {
    uint64_t requests;
    uint64_t blocks;                                    /* looked up */
    uint64_t internal_blocks;                           /* of those, held by the engine itself */
    uint64_t hits[TIERCE__REPLAY_MATCHES_MAX];          /* by match */
    uint64_t internal_hits[TIERCE__REPLAY_MATCHES_MAX]; /* of those, on internal blocks */
    uint64_t stored;                                    /* blocks */
    uint64_t refused; /* blocks that were not stored: too large, or nothing could be evicted */
    uint64_t evicted; /* for room */
    uint64_t expired; /* by their time to live */
    uint64_t used;    /* at the end, in the unit of the capacity */
    uint64_t used_max;
    bool has_hand;  /* the policy has one */
    uint64_t wraps; /* how often the policy's hand wrapped around */
};

struct tierce__replay;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (capacity 0, no or too many matches,
 * MATCH_STREAM of whole requests, more blocks than a policy has slots). */
TIERCE_MUSTUSE int tierce__replay_create(struct tierce__replay **out,
                                         const struct tierce__replay_opts *opts);

/* NULL is accepted. */
void tierce__replay_destroy(struct tierce__replay *replay);

/* Replays one request. Errors: -ENOMEM; afterwards the replay can only be destroyed. */
TIERCE_MUSTUSE int tierce__replay_request(struct tierce__replay *replay,
                                          const struct tierce__recorded *request);

/* Changes the capacity, from 1 to that of create, and evicts what does not fit any more. Not with
 * ARC and S3-FIFO, which divide the capacity that they were created with. */
void tierce__replay_resize(struct tierce__replay *replay, uint64_t capacity);

/* [borrow until the next request] */
const struct tierce__replay_result *tierce__replay_result(const struct tierce__replay *replay);

#endif
