/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/hazard_index.h"
#include "base/assert.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define PLACES  TIERCE__HAZARD_PLACES
#define PARTS   TIERCE__HAZARD_PARTS
#define CLASSES TIERCE__HAZARD_CLASSES
#define BUCKETS TIERCE__HAZARD_BUCKETS
#define CELLS   TIERCE__HAZARD_CELLS

#define PRIOR        0.01  /* hazard of a bucket without any data, at most */
#define PRIOR_WEIGHT 100.0 /* entries that a prior counts as */

void tierce__hazard_index_init(struct tierce__hazard_index *index, const uint32_t starts[BUCKETS])
{
    *index = (struct tierce__hazard_index){0};
    TIERCE_DASSERT(starts[0] == 0);
    for (uint32_t b = 0; b + 1 < BUCKETS; b++) {
        TIERCE_DASSERT(starts[b] < starts[b + 1]);
        index->widths[b] = starts[b + 1] - starts[b];
    }
    index->widths[BUCKETS - 1] = starts[BUCKETS - 1];
    tierce__hazard_index_refresh(index);
}

void tierce__hazard_index_fade(struct tierce__hazard_index *index, double factor)
{
    TIERCE_DASSERT(factor >= 0 && factor <= 1);
    for (uint64_t left = index->learned; left != 0; left &= left - 1) {
        uint32_t c = (uint32_t)__builtin_ctzll(left);
        for (uint32_t b = 0; b < BUCKETS; b++) {
            index->hits[c][b] *= factor;
            index->risks[c][b] *= factor;
        }
    }
}

static double shrink(double hits, double risks, double prior)
{
    double hazard = (hits + PRIOR_WEIGHT * prior) / (risks + PRIOR_WEIGHT);
    return hazard < 1 ? hazard : 1;
}

/*
 * hazards[p][b] of every place. The prior of a bucket is at most the hazard of the bucket before
 * it: old ages, which few entries reach, are worth no more than young ages at which nothing was
 * used again. Otherwise a cache to which nothing returns would evict its newest entries.
 */
static void find_hazards(const struct tierce__hazard_index *index, double hazards[PLACES][BUCKETS])
{
    double all = PRIOR;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        double hits[PLACES] = {0}, risks[PLACES] = {0}, all_hits = 0, all_risks = 0;
        for (uint64_t left = index->learned; left != 0; left &= left - 1) {
            uint32_t c = (uint32_t)__builtin_ctzll(left);
            hits[c / PARTS] += index->hits[c][b];
            risks[c / PARTS] += index->risks[c][b];
        }
        for (uint32_t p = 0; p < PLACES; p++) {
            all_hits += hits[p];
            all_risks += risks[p];
        }
        all = shrink(all_hits, all_risks, fmin(PRIOR, all));
        for (uint32_t p = 0; p < PLACES; p++)
            hazards[p][b] = shrink(hits[p], risks[p], all);
    }
}

/*
 * worths[b] = max over end >= b of (expected hits) / (expected time) from the middle of b through
 * `end`. An entry is used again in the middle of a bucket on average, and half of bucket b is over.
 * The fractions are compared without a division, which would take most of the time.
 */
static void find_worths(const struct tierce__hazard_index *index, const double hazards[BUCKETS],
                        double worths[BUCKETS])
{
    double times[BUCKETS];
    for (uint32_t b = 0; b < BUCKETS; b++)
        times[b] = index->widths[b] * (1 - hazards[b] / 2);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        double half = hazards[b] / (1 + sqrt(1 - hazards[b])); /* 1 - sqrt(...), if tiny too */
        double hits = half, time = index->widths[b] / 2 * (1 - half / 2), alive = 1 - half;
        double best_hits = hits, best_time = time;
        for (uint32_t end = b + 1; end < BUCKETS; end++) {
            hits += alive * hazards[end];
            time += alive * times[end];
            alive *= 1 - hazards[end];
            bool better = hits * best_time > best_hits * time;
            best_hits = better ? hits : best_hits;
            best_time = better ? time : best_time;
        }
        worths[b] = best_hits / best_time;
    }
}

static bool is_before(const struct tierce__hazard_index *index, uint32_t a, uint32_t b)
{
    if (index->worths[a] < index->worths[b] || index->worths[b] < index->worths[a])
        return index->worths[a] < index->worths[b];
    uint32_t a_bucket = a % BUCKETS, b_bucket = b % BUCKETS;
    return a_bucket != b_bucket ? a_bucket > b_bucket : a < b;
}

/* Insertion: the order before is nearly right. */
static void sort_cells(struct tierce__hazard_index *index)
{
    for (uint32_t i = 1; i < index->order_count; i++) {
        uint16_t cell = index->order[i];
        uint32_t at = i;
        for (; at > 0 && is_before(index, cell, index->order[at - 1]); at--)
            index->order[at] = index->order[at - 1];
        index->order[at] = cell;
    }
    for (uint32_t i = 0; i < index->order_count; i++)
        index->ranks[index->order[i]] = (uint16_t)i;
}

void tierce__hazard_index_refresh(struct tierce__hazard_index *index)
{
    double hazards[PLACES][BUCKETS], of_class[BUCKETS], worths[BUCKETS];
    find_hazards(index, hazards);
    for (uint32_t p = 0; p < PLACES; p++) {
        find_worths(index, hazards[p], worths);
        for (uint32_t c = p * PARTS; c < (p + 1) * PARTS; c++)
            memcpy(index->worths + (size_t)c * BUCKETS, worths, sizeof(worths));
    }
    for (uint64_t left = index->learned; left != 0; left &= left - 1) {
        uint32_t c = (uint32_t)__builtin_ctzll(left);
        for (uint32_t b = 0; b < BUCKETS; b++)
            of_class[b] = shrink(index->hits[c][b], index->risks[c][b], hazards[c / PARTS][b]);
        find_worths(index, of_class, index->worths + (size_t)c * BUCKETS);
    }
    sort_cells(index);
}

void tierce__hazard_index_learn(struct tierce__hazard_index *index, uint32_t klass)
{
    TIERCE_DASSERT(klass < CLASSES && !tierce__hazard_index_has(index, klass));
    index->learned |= UINT64_C(1) << klass;
    for (uint32_t b = 0; b < BUCKETS; b++)
        index->order[index->order_count++] = (uint16_t)(klass * BUCKETS + b);
    sort_cells(index);
}
