/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_SWEEP_H
#define TIERCE_OPTIMIZER_SWEEP_H

#include "optimizer/kvcm/kvcm.h"
#include "optimizer/replay/match.h"
#include "optimizer/trace/recording.h"

/*
 * Runs every combination of caches, orders, matches and capacities over one recording, on several
 * threads. LRU at all capacities takes one scan if the recording allows it (curve.h); equal
 * combinations are replayed once.
 *
 *     rc = tierce__sweep_run(&sweep, recording, &(struct tierce__sweep_opts){...});
 *     for (size_t i = 0; i < sweep.row_count; i++)
 *         print(&sweep.rows[i]);
 *     tierce__sweep_clear(&sweep);
 *
 * Threads: one at a time for each sweep.
 */

/* The caches that can be simulated: the policies of src/core/policy by name, and others. */
enum tierce__cache_kind {
    TIERCE__CACHE_POLICY,
    TIERCE__CACHE_INFINITE, /* keeps everything */
    TIERCE__CACHE_BELADY,   /* belady.h */
    TIERCE__CACHE_ORACLE,   /* a policy with true hints of the future: replay.h, next_uses */
    TIERCE__CACHE_KVCM,     /* kvcm.h */
};

struct tierce__cache {
    enum tierce__cache_kind kind;
    const struct tierce__policy_ops *policy; /* CACHE_POLICY, CACHE_ORACLE */
    enum tierce__kvcm_kind kvcm;             /* CACHE_KVCM */
    char name[32];                           /* as users write it, with dashes */
};

/* Finds a cache by name, with dashes or underscores. TIERCE_E_ARGUMENT: unknown name. */
TIERCE_MUSTUSE int tierce__cache_find(struct tierce__cache *out, const char *name);

/* The cache of a policy in a shared object, by its plugin:// URL. Errors: as tierce__policy_open.
 */
TIERCE_MUSTUSE int tierce__cache_load(struct tierce__cache *out, const char *url,
                                      char why[TIERCE__POLICY_WHY_BYTES]);

/* The caches by index, for lists; false past the end. */
bool tierce__cache_at(struct tierce__cache *out, size_t index);

/* Returns whether it knows the requests to come, so that it cannot run in a cache. */
bool tierce__cache_foresees(const struct tierce__cache *cache);

/* Returns whether it drops blocks that were not used for a time to live. */
bool tierce__cache_expires(const struct tierce__cache *cache);

/* Returns whether the touch order of a request's blocks affects the result. */
bool tierce__cache_has_order(const struct tierce__cache *cache);

#define TIERCE__CAPACITY_UNLIMITED UINT64_MAX

/* The parameters of a single replay. */
struct tierce__sim_point {
    const struct tierce__cache *cache; /* [borrow] */
    enum tierce__touch_order order;    /* where the cache has one */
    bool in_bytes;
    uint64_t capacity; /* blocks, or bytes if in_bytes; or UNLIMITED */
    uint64_t ttl_us;   /* for a cache that expires; 0: never */
    uint64_t seed;
};

/*
 * Creates the replay of a point; the other fields of `opts` (distinct, matches, samples, watch) are
 * used unchanged. Errors, *out untouched: those of tierce__replay_create; TIERCE_E_ARGUMENT
 * (Belady's cache, or KVCM's, which are not replays; an oracle without opts->next_uses).
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
    size_t capacity_index;                      /* in the options' list; 0 of the infinite cache */
    uint64_t ttl_us;                            /* time to live; 0: entries do not expire */
    uint64_t requests, blocks, internal_blocks; /* looked up */
    uint64_t hits, internal_hits;
    bool is_replayed; /* if false, from a curve or Belady: the fields below are 0 */
    uint64_t evicted, refused, expired;
    bool has_hand; /* whether the policy's hand wrapped around, and how often */
    uint64_t wraps;
    bool has_tokens;    /* prefix or window, and opts.block_tokens: */
    double hit_tokens;  /* over all lookups, the hit tokens that the engine did not hold, */
    double hit_squares; /* and the sum of p * p - i * i for p hit tokens of which it held i */
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
 * Observes every lookup of every row except MATCH_STREAM. Called on any thread; for each row one
 * lookup at a time, in the order of the trace.
 */
struct tierce__watch {
    void *arg;
    /* Called before the first lookup, on the caller's thread, with the rows without results [borrow
     * until the sweep has run]. An error ends the sweep, which returns it. */
    int (*begin)(void *arg, const struct tierce__sweep *sweep);
    /* A request with a lookup, and the number of its hits. */
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
 * [borrow] options for the call, except the caches. For each capacity a cache with expiry is run
 * with every time to live, in the order of the list; if it is unlimited and no request only looks
 * up, all times take one scan (ttl_curve.h). Combinations without a meaning are omitted: stream
 * with caches that have no order, and Belady's unlimited cache. The infinite cache has one capacity
 * regardless of the list. KVCM's caches have all instances in one group. Errors: -ENOMEM, negative
 * errno (a temporary file, a thread), TIERCE_E_ARGUMENT (Belady's bound or KVCM's caches of blocks
 * that differ in size; `kvcm` out of range; over TIERCE__REPLAY_MATCHES_MAX matches),
 * TIERCE_E_LIMIT (KVCM's caches of over 2^31 blocks); what a watch returns.
 */
TIERCE_MUSTUSE int tierce__sweep_run(struct tierce__sweep *out,
                                     const struct tierce__recording *recording,
                                     const struct tierce__sweep_opts *opts);

/* The benefit of a store: the hit rate over the looked-up blocks that the engine did not hold.
 * Without such marks in the trace, hits / blocks. */
double tierce__sweep_rate(const struct tierce__sweep_row *row);

/*
 * The best feasible row of a match: the most hits on blocks that the engine did not hold, without
 * Belady's cache and the infinite cache, and within the budget. Ties go to the smaller capacity,
 * then to the first in the list. NULL if no row fits. [borrow until clear]
 */
const struct tierce__sweep_row *tierce__sweep_best(const struct tierce__sweep *sweep,
                                                   const struct tierce__match *match,
                                                   uint64_t budget);

/* The cache's name, with the time to live if it has one: "ttl:5min". */
#define TIERCE__SWEEP_NAME_BYTES 64u
void tierce__sweep_name(char out[TIERCE__SWEEP_NAME_BYTES], const struct tierce__sweep_row *row);

/* Looked-up blocks that missed; 0 if KVCM's caches count more hits than lookups. */
static inline uint64_t tierce__sweep_missed(const struct tierce__sweep_row *row)
{
    return row->hits < row->blocks ? row->blocks - row->hits : 0;
}

/* Returns whether two rows differ only in capacity. */
bool tierce__sweep_same_line(const struct tierce__sweep_row *a, const struct tierce__sweep_row *b);

/* Accepts a zeroed sweep. */
void tierce__sweep_clear(struct tierce__sweep *sweep);

#endif
