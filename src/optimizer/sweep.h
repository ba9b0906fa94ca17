/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_SWEEP_H
#define TIERCE_OPTIMIZER_SWEEP_H

#include "optimizer/kvcm.h"
#include "optimizer/match.h"
#include "optimizer/recording.h"

/*
 * Every combination of caches, orders, matches and capacities over one recording, on the threads
 * there are. LRU at all capacities costs one scan where the recording allows it (curve.h); what is
 * equal is replayed once.
 *
 *     rc = tierce__sweep_run(&sweep, recording, &(struct tierce__sweep_opts){...});
 *     for (size_t i = 0; i < sweep.row_count; i++)
 *         print(&sweep.rows[i]);
 *     tierce__sweep_clear(&sweep);
 *
 * Threads: one at a time for each sweep.
 */

/* What can be simulated: the policies of src/policy by name, and others. */
enum tierce__cache_kind {
    TIERCE__CACHE_POLICY,
    TIERCE__CACHE_INFINITE, /* keeps everything */
    TIERCE__CACHE_BELADY,   /* belady.h */
    TIERCE__CACHE_KVCM,     /* kvcm.h */
};

struct tierce__cache {
    enum tierce__cache_kind kind;
    const struct tierce__policy_ops *policy; /* CACHE_POLICY */
    enum tierce__kvcm_kind kvcm;             /* CACHE_KVCM */
    char name[32];                           /* as users write it, with dashes */
};

/* The cache of that name, dashes or underscores. TIERCE_E_ARGUMENT: there is none. */
TIERCE_MUSTUSE int tierce__cache_find(struct tierce__cache *out, const char *name);

/* The caches by index, for lists; false past the end. */
bool tierce__cache_at(struct tierce__cache *out, size_t index);

/* Whether it drops what was not used for a time to live. */
bool tierce__cache_expires(const struct tierce__cache *cache);

/* Whether a request's blocks are touched in an order that makes a difference. */
bool tierce__cache_has_order(const struct tierce__cache *cache);

#define TIERCE__CAPACITY_UNLIMITED UINT64_MAX

/* One cache: what a single replay is of. */
struct tierce__sim_point {
    const struct tierce__cache *cache; /* [borrow] */
    enum tierce__touch_order order;    /* where the cache has one */
    bool in_bytes;
    uint64_t capacity; /* blocks, or bytes if in_bytes; or UNLIMITED */
    uint64_t ttl_us;   /* for a cache that expires; 0: never */
    uint64_t seed;
};

/*
 * A replay of a point; the rest of `opts` (distinct, matches, samples, watch) as it is.
 * Errors, *out untouched: those of tierce__replay_create; TIERCE_E_ARGUMENT (Belady's cache, or
 * KVCM's, which are no replays).
 */
TIERCE_MUSTUSE int tierce__sim_replay(struct tierce__replay **out,
                                      const struct tierce__sim_point *point,
                                      const struct tierce__replay_opts *opts);

struct tierce__sweep_row {
    const struct tierce__cache *cache; /* [borrow from the options] */
    bool has_order;
    enum tierce__touch_order order;
    struct tierce__match match;
    uint64_t capacity;
    size_t capacity_index; /* in the options' list; 0 of the infinite cache */
    uint64_t ttl_us;       /* of a cache that expires; 0: never, or it does not */
    uint64_t requests, blocks, internal_blocks; /* looked up */
    uint64_t hits, internal_hits;
    bool is_replayed; /* else from a curve or Belady: what follows is 0 */
    uint64_t evicted, refused, expired;
    bool has_hand; /* the policy has one, which came round so often */
    uint64_t wraps;
    bool has_tokens;    /* prefix or window, and opts.block_tokens: */
    double hit_tokens;  /* of all lookups, the tokens that hit and the engine did not hold, */
    double hit_squares; /* and of p tokens that hit behind i that it held, p * p - i * i */
};

/* LRU at every capacity. */
struct tierce__sweep_point {
    uint64_t hits;
    double tokens, squares; /* hit_tokens and hit_squares; 0 without opts.block_tokens */
};

struct tierce__sweep_curve {
    const struct tierce__cache *cache; /* as in the rows */
    enum tierce__touch_order order;
    struct tierce__match match;
    struct tierce__sweep_point *points; /* [length] by blocks of capacity; larger is as the last */
    uint32_t length;
};

struct tierce__sweep {
    struct tierce__sweep_row *rows;
    size_t row_count;
    bool in_bytes;
    uint32_t block_tokens; /* of the options */
    struct tierce__sweep_curve *curves;
    size_t curve_count; /* 0 unless opts.keeps_curves */
};

/*
 * Is told of every lookup of every row but those of MATCH_STREAM, as it happens: on any thread, a
 * row's lookups one at a time and in the order of the trace.
 */
struct tierce__watch {
    void *arg;
    /* Before the first: the rows, without results [borrow until the sweep has run]. An error ends
     * the sweep and is what it returns. On the caller's thread. */
    int (*begin)(void *arg, const struct tierce__sweep *sweep);
    /* A request that looks something up, and how many of its blocks hit. */
    void (*lookup)(void *arg, size_t row, const struct tierce__recorded *request, uint32_t hits);
};

struct tierce__sweep_opts {
    size_t size;
    const struct tierce__cache *caches; /* [borrow until clear] */
    size_t cache_count;
    const enum tierce__touch_order *orders;
    size_t order_count;
    const struct tierce__match *matches;
    size_t match_count;
    const uint64_t *capacities; /* blocks, or bytes if `in_bytes` */
    size_t capacity_count;
    bool in_bytes;
    const uint64_t *ttls; /* microseconds, for caches that expire; none: they never do */
    size_t ttl_count;
    uint64_t seed;
    uint32_t samples;
    struct tierce__kvcm_tuning kvcm;
    const char *folder;                  /* for temporary files, or NULL */
    uint32_t threads;                    /* 0: one for each processor */
    uint32_t block_tokens;               /* 0: tokens are not counted */
    bool keeps_curves;                   /* 24 bytes a different block, for each curve */
    const struct tierce__watch *watches; /* [borrow for the call] */
    size_t watch_count;
    void (*progress)(void *arg, uint64_t done,
                     uint64_t total); /* or NULL; on the caller's thread */
    void *progress_arg;
};

/*
 * [borrow] options for the call, but the caches. A cache that expires is run with every time to
 * live, in the order of the list, of each capacity first; without a limit and where no request only
 * looks up, all times cost one scan (ttl_curve.h). Combinations without a meaning are left out:
 * stream of caches that have no order, and Belady's without a limit. The infinite cache has one
 * capacity whatever the list says. KVCM's caches have all instances in one group.
 * Errors: -ENOMEM, negative errno (a temporary file, a thread), TIERCE_E_ARGUMENT (Belady's bound
 * or KVCM's caches of blocks that differ in size; `kvcm` out of range; over
 * TIERCE__REPLAY_MATCHES_MAX matches), TIERCE_E_LIMIT (KVCM's caches of over 2^31 blocks); what a
 * watch returns.
 */
TIERCE_MUSTUSE int tierce__sweep_run(struct tierce__sweep *out,
                                     const struct tierce__recording *recording,
                                     const struct tierce__sweep_opts *opts);

/*
 * The row with the most hits of a match that could be bought: not of Belady's cache or the infinite
 * one, and of no larger capacity than the budget. Of equal hits the smaller capacity, then the
 * first in the list. NULL if no row fits. [borrow until clear]
 */
const struct tierce__sweep_row *tierce__sweep_best(const struct tierce__sweep *sweep,
                                                   const struct tierce__match *match,
                                                   uint64_t budget);

/* The cache's name, with the time to live if it has one: "ttl:5min". */
#define TIERCE__SWEEP_NAME_BYTES 64u
void tierce__sweep_name(char out[TIERCE__SWEEP_NAME_BYTES], const struct tierce__sweep_row *row);

/* Blocks looked up that did not hit; 0 where KVCM's caches count more hits than that. */
static inline uint64_t tierce__sweep_missed(const struct tierce__sweep_row *row)
{
    return row->hits < row->blocks ? row->blocks - row->hits : 0;
}

/* Whether two rows differ in nothing but their capacity. */
bool tierce__sweep_same_line(const struct tierce__sweep_row *a, const struct tierce__sweep_row *b);

/* Accepts a zeroed sweep. */
void tierce__sweep_clear(struct tierce__sweep *sweep);

#endif
