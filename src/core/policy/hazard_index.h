/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_HAZARD_INDEX_H
#define TIERCE_POLICY_HAZARD_INDEX_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The worth of keeping an entry, learned from reuse. Entries have a class (their history) and a
 * bucket (their age: the time since the last use). For each class and bucket the owner counts how
 * many entries reached the bucket (risks) and how many were used again in it (hits). The hazard of
 * a bucket is hits / risks. The worth of a cell (class and bucket) is the largest number of
 * expected hits per expected time in the cache over all ages at which the entry may be given up: a
 * Gittins index.
 *
 * A class has a place in the request, and a part: the hint of the client, or else the size of the
 * output: class = place * PARTS + part. The hazard of a class with little data approaches that of
 * its place, and the hazard of a place approaches that of all entries.
 *
 * Only cells of learned classes, which have been used, are in the order. A class that is not has
 * the worths of its place.
 *
 * Thread: one at a time. Nothing allocates or fails.
 */

enum {
    TIERCE__HAZARD_PLACES = 8,
    TIERCE__HAZARD_OUTPUTS = 3,
    TIERCE__HAZARD_HINTS = 5,
    TIERCE__HAZARD_PARTS = TIERCE__HAZARD_OUTPUTS + TIERCE__HAZARD_HINTS,
    TIERCE__HAZARD_CLASSES = TIERCE__HAZARD_PLACES * TIERCE__HAZARD_PARTS, /* bits of `learned` */
    TIERCE__HAZARD_BUCKETS = 27,
    TIERCE__HAZARD_CELLS = TIERCE__HAZARD_CLASSES * TIERCE__HAZARD_BUCKETS,
};

struct tierce__hazard_index {
    double hits[TIERCE__HAZARD_CLASSES][TIERCE__HAZARD_BUCKETS];
    double risks[TIERCE__HAZARD_CLASSES][TIERCE__HAZARD_BUCKETS];
    double widths[TIERCE__HAZARD_BUCKETS]; /* of the buckets, in any unit of time */
    double worths[TIERCE__HAZARD_CELLS];   /* [class * BUCKETS + bucket] */
    uint64_t learned;                      /* a bit for each class */
    uint32_t order_count;                  /* cells of learned classes */
    uint16_t order[TIERCE__HAZARD_CELLS];  /* these, the one with the least worth first */
    uint16_t ranks[TIERCE__HAZARD_CELLS];  /* of each of them in `order` */
};

/* No data yet. Bucket b begins at the age starts[b], which increase from 0; the last bucket has no
 * end, and is given the width of its start. [borrow `starts` for the call] */
void tierce__hazard_index_init(struct tierce__hazard_index *index,
                               const uint32_t starts[TIERCE__HAZARD_BUCKETS]);

/* Multiplies all hits and risks by `factor`, from 0 to 1. */
void tierce__hazard_index_fade(struct tierce__hazard_index *index, double factor);

static inline bool tierce__hazard_index_has(const struct tierce__hazard_index *index,
                                            uint32_t klass)
{
    return (index->learned >> klass & 1) != 0;
}

/* Adds a class that is not learned, with the worths of its place, and orders the cells anew. */
void tierce__hazard_index_learn(struct tierce__hazard_index *index, uint32_t klass);

/* Computes worths, order and ranks from hits and risks. Among equal worths, the older bucket comes
 * first. */
void tierce__hazard_index_refresh(struct tierce__hazard_index *index);

#endif
