/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPLAY_H
#define TIERCE_OPTIMIZER_REPLAY_H

#include "optimizer/match.h"
#include "optimizer/recording.h"
#include "policy/policy.h"

/*
 * One cache of one policy and capacity, driven by requests: the very code that evicts in
 * production, and a count of what would have hit.
 *
 * A request first looks its blocks up, which changes nothing; then it uses them one at a time in
 * the order that was asked for: what is there is touched, what is not is stored, evicting first
 * where the cache is full. A read touches what is there and stores nothing; a write looks nothing
 * up. A block that is larger than the cache is not stored.
 *
 * Whole requests (opts.whole) are what a tier does that never keeps a suffix without its prefix:
 * what is there is touched and held until the request's end, what is not is stored from the first
 * block on, and at the first that does not fit the rest is not stored. At the end all is put in
 * order, the first block newest, which policies that count uses do not hear of. There is no other
 * order of touching then, and no MATCH_STREAM.
 *
 * Threads: one at a time; any number of replays may read one recording.
 */

#define TIERCE__REPLAY_MATCHES_MAX 8u

/* Told of what happens to blocks, in the order in which it happens. */
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
};

struct tierce__replay_result {
    uint64_t requests;
    uint64_t blocks;                                    /* looked up */
    uint64_t internal_blocks;                           /* of those, held by the engine itself */
    uint64_t hits[TIERCE__REPLAY_MATCHES_MAX];          /* by match */
    uint64_t internal_hits[TIERCE__REPLAY_MATCHES_MAX]; /* of those, on internal blocks */
    uint64_t stored;                                    /* blocks */
    uint64_t refused; /* blocks that were not stored: too large, or nothing could leave */
    uint64_t evicted; /* for room */
    uint64_t expired; /* by their time to live */
    uint64_t used;    /* at the end, in the unit of the capacity */
    uint64_t used_max;
    bool has_hand;  /* the policy has one */
    uint64_t wraps; /* how often it came round */
};

struct tierce__replay;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (capacity 0, no or too many matches,
 * MATCH_STREAM of whole requests, more blocks than a policy has slots). */
TIERCE_MUSTUSE int tierce__replay_create(struct tierce__replay **out,
                                         const struct tierce__replay_opts *opts);

/* NULL is accepted. */
void tierce__replay_destroy(struct tierce__replay *replay);

/* One request. Errors: -ENOMEM; the replay is then good for nothing but destroy. */
TIERCE_MUSTUSE int tierce__replay_request(struct tierce__replay *replay,
                                          const struct tierce__recorded *request);

/* [borrow until the next request] */
const struct tierce__replay_result *tierce__replay_result(const struct tierce__replay *replay);

#endif
