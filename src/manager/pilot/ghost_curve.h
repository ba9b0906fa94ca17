/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GHOST_CURVE_H
#define TIERCE_MANAGER_GHOST_CURVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Bytes -> hit rate of LRU over the recent requests of one or several instances that share a quota,
 * from a sample of their keys.
 *
 * Sample. A key is in the sample if its mixed value is at most the bound of its instance (its
 * member here). So all uses of a key are in the sample or none is (spatially hashed sampling: C.
 * Waldspurger and others, "Efficient MRC Construction with SHARDS", FAST 2015). Every key of the
 * sample stands for `unit` bytes. A member whose keys have b bytes has the bound 2^64 * b / unit;
 * so members with different sizes count by their bytes. The unit doubles when the sample exceeds
 * blocks_max blocks. It is halved when the sample has become small; until a window later, the keys
 * that are new in the sample seem to be cold (is_warm is false).
 *
 * Positions in the order of last use come from the optimizer's curve (optimizer/replay/curve.h).
 * Blocks beyond `reach` bytes, or not used for 64 epochs, are dropped.
 *
 * Hits. A key of a chain hits at a capacity if all keys of the chain before it do; other keys hit
 * by themselves. Single keys are sampled, so a miss between two keys of the sample goes unseen;
 * chains are evicted from their ends, so this is rare.
 *
 * Classes. Keys near the beginnings of chains are fewer and are looked up more often than others:
 * with or without one of them, the sample would differ much. So lookups are counted by the class of
 * their position, and the caller counts all of them. In each class the rate is that of the sample,
 * and the class has the weight of all its lookups. A class without a sample consists of a few very
 * frequent keys, and counts as hits at the smallest capacity.
 *
 * Window. Hits are counted by epoch; the window is the last 8 epochs and the current one.
 *
 * Not seen: removals, expiry, and evictions by policies other than LRU.
 *
 * Memory: at most tierce__ghost_curve_bytes_max.
 * Threads: one at a time.
 */

struct tierce__ghost_curve;

/* Positions 0, 1, 2 and 3, 4 to 7, ... 32 to 63, and all others. */
enum { TIERCE__GHOST_CLASSES = 8 };

static inline uint32_t tierce__ghost_class(size_t position)
{
    uint32_t width = position == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(position);
    return width < TIERCE__GHOST_CLASSES ? width : TIERCE__GHOST_CLASSES - 1;
}

/* The first position of a class. */
static inline size_t tierce__ghost_class_first(uint32_t class_)
{
    return class_ == 0 ? 0 : (size_t)1 << (class_ - 1);
}

/* A key as curves take it: mixed, with the class instead of its lowest bits. */
static inline uint64_t tierce__ghost_key(uint64_t mixed, uint32_t class_)
{
    return (mixed & ~(uint64_t)(TIERCE__GHOST_CLASSES - 1)) | class_;
}

struct tierce__ghost_curve_opts {
    size_t size;
    uint32_t blocks_max; /* of the sample; >= 64 */
    int64_t epoch_us;
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghost_curve_create(struct tierce__ghost_curve **out,
                                              const struct tierce__ghost_curve_opts *opts);

/* NULL is accepted. */
void tierce__ghost_curve_destroy(struct tierce__ghost_curve *curve);

/* The most memory that a curve of this many blocks takes, with one member. */
size_t tierce__ghost_curve_bytes_max(uint32_t blocks_max);

/* Adds a member, whose keys have `key_bytes` bytes (> 0) and `tokens` tokens (> 0) each. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghost_curve_add(struct tierce__ghost_curve *curve, double key_bytes,
                                           double tokens, uint32_t *member);
/* Removes a member and its blocks; its number may be used again. */
void tierce__ghost_curve_remove(struct tierce__ghost_curve *curve, uint32_t member);
/* Changes the bytes of a member's keys. Changes of less than an eighth are ignored. */
void tierce__ghost_curve_resize(struct tierce__ghost_curve *curve, uint32_t member,
                                double key_bytes);

/* The largest mixed value of the member's keys in the sample. */
uint64_t tierce__ghost_curve_bound(const struct tierce__ghost_curve *curve, uint32_t member);

/* The bytes for which a key of the sample stands, and those of a member's key. */
double tierce__ghost_curve_unit(const struct tierce__ghost_curve *curve);
double tierce__ghost_curve_key_bytes(const struct tierce__ghost_curve *curve, uint32_t member);

/* The largest capacity of interest. 0: none is known. */
void tierce__ghost_curve_set_reach(struct tierce__ghost_curve *curve, double bytes);

/* Doubles the unit, which halves the work. */
void tierce__ghost_curve_coarsen(struct tierce__ghost_curve *curve);

/* Ends the epochs that are over at `now_us`. `may_refine`: a small sample may be enlarged. */
void tierce__ghost_curve_advance(struct tierce__ghost_curve *curve, int64_t now_us,
                                 bool may_refine);

/*
 * A lookup, a use or a write of keys (tierce__ghost_key), in the order of their chain; those
 * outside the sample are ignored. A key that no write has named is a miss, and is not cached by a
 * lookup. Errors: -ENOMEM; the curve then restarts.
 */
TIERCE_MUSTUSE int tierce__ghost_curve_read(struct tierce__ghost_curve *curve, uint32_t member,
                                            const uint64_t *keys, size_t count, bool is_chain);
TIERCE_MUSTUSE int tierce__ghost_curve_use(struct tierce__ghost_curve *curve, uint32_t member,
                                           const uint64_t *keys, size_t count, bool is_write);

/* Counts keys that were looked up, by class, and keys that were found, in the sample or not. */
void tierce__ghost_curve_count(struct tierce__ghost_curve *curve, uint32_t member,
                               const uint64_t asked[TIERCE__GHOST_CLASSES], uint64_t found);

/* ---- the result ------------------------------------------------------------------------------ */

enum {
    /* Capacities are counted in buckets: 8 of equal width for each power of two from 1 KiB on. */
    TIERCE__GHOST_STEPS = 8,
    TIERCE__GHOST_BUCKETS = 48 * TIERCE__GHOST_STEPS,
};

/* The window, weighted by tokens. */
struct tierce__ghost_shape {
    double seconds;      /* its length */
    double asked, found; /* tokens looked up; tokens that the manager had */
    double unit_bytes;   /* that a key of the sample stands for */
    double key_bytes;    /* of a key, on average over the sample */
    double reach_bytes;  /* hits at larger capacities were not seen; 0: no limit */
    uint64_t sampled;    /* keys of the sample that were looked up */
    uint32_t blocks;     /* in the sample now */
    bool is_warm;        /* the sample is complete */
    /* [i]: tokens that hit in a cache as large as the lower end of bucket i. */
    double hits[TIERCE__GHOST_BUCKETS + 1];
};

/* `now_us`: as of advance. */
void tierce__ghost_curve_shape(const struct tierce__ghost_curve *curve, int64_t now_us,
                               struct tierce__ghost_shape *out);

/* The same for the last `epochs` epochs (at most those of the window) and the current one. */
void tierce__ghost_curve_recent(const struct tierce__ghost_curve *curve, int64_t now_us,
                                uint32_t epochs, struct tierce__ghost_shape *out);

/* How far a rate of the curve lies from that of all keys, on average over capacities: the bounds of
 * docs/inside/ghost.md for this number of blocks. */
double tierce__ghost_error(const struct tierce__ghost_shape *shape);

/* The lower end of a bucket, in bytes. */
double tierce__ghost_bucket_bytes(uint32_t bucket);

/* Tokens that hit at a capacity, interpolated within a bucket; and their share of those asked
 * for, 0 if there are none. */
double tierce__ghost_hits(const struct tierce__ghost_shape *shape, double bytes);
double tierce__ghost_rate(const struct tierce__ghost_shape *shape, double bytes);

#endif
