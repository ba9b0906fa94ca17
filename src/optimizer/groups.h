/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_GROUPS_H
#define TIERCE_OPTIMIZER_GROUPS_H

#include "optimizer/recording.h"
#include "optimizer/sweep.h"

/*
 * Groups of instances, each with a cache of its own: what quotas do (tierce__groups_run), and which
 * would do best (tierce__split_run).
 *
 * A group is the requests of its instances. Instances of one group share a cache, and no blocks:
 * the same id in two instances is two blocks.
 *
 * Threads: one call at a time for each result.
 */

#define TIERCE__GROUP_NONE UINT32_MAX

struct tierce__group_spec {
    const char *name;  /* [borrow] */
    uint64_t capacity; /* blocks, or bytes if in_bytes; or TIERCE__CAPACITY_UNLIMITED. Not read by
                          split */
};

struct tierce__groups_opts {
    size_t size;
    const struct tierce__group_spec *groups; /* [borrow for the call] */
    size_t group_count;
    const uint32_t *group_of; /* [instances of the recording] index, or GROUP_NONE: left out */
    struct tierce__sweep_opts sweep; /* what is run in each group; capacities are the groups' own */
};

/* A row of the sweep in one group; or, with group == group_count, the sum over all groups: its
 * capacity too (UNLIMITED if one is). */
struct tierce__groups_row {
    size_t group;
    struct tierce__sweep_row row;
};

struct tierce__groups {
    struct tierce__groups_row *rows; /* by group, then as the sweep has them; the sums last */
    size_t row_count;
    size_t group_count;
    uint64_t left_out; /* requests of instances in no group */
};

/* Errors, *out untouched: those of tierce__sweep_run and tierce__recording_filter. */
TIERCE_MUSTUSE int tierce__groups_run(struct tierce__groups *out,
                                      const struct tierce__recording *recording,
                                      const struct tierce__groups_opts *opts);
void tierce__groups_clear(struct tierce__groups *groups);

/* The requests of one group, as a recording (filter.h). */
TIERCE_MUSTUSE int tierce__group_recording(struct tierce__recording **out,
                                           const struct tierce__recording *recording,
                                           const struct tierce__groups_opts *opts, size_t group);

/*
 * One budget of blocks over groups of LRU caches, so that the hits of all are many: a greedy walk
 * along the upper concave hulls of the groups' exact LRU curves, steepest piece first. Where the
 * curves are concave this is the best split there is; elsewhere the last piece may be cut inside,
 * where the curve lies below its hull, and the best split has between `hits` and `hull_hits`.
 */
struct tierce__split_part {
    uint64_t capacity; /* blocks; all parts together are at most the budget, and less where no
                          group gains from more */
    uint64_t requests, blocks;
    uint64_t hits;     /* exact, of LRU at this capacity */
    double hull_hits;  /* of the hull there; >= hits */
    uint64_t hits_max; /* at any capacity */
};

struct tierce__split {
    struct tierce__split_part *parts; /* [group_count] */
    size_t part_count;
    uint64_t budget;
    uint64_t requests, blocks, hits, hits_max; /* sums */
    double hull_hits;                          /* sum: no split of the budget has more hits */
    bool is_exact; /* false where some request only looks up: the curves then count as if what
                      it looks up were stored */
};

/* Of opts the groups, group_of, the first of sweep.orders (rev if there is none), the first of
 * sweep.matches (prefix if there is none) and sweep.folder are read. Errors, *out untouched:
 * -ENOMEM, negative errno (a temporary file), TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__split_run(struct tierce__split *out,
                                     const struct tierce__recording *recording,
                                     const struct tierce__groups_opts *opts, uint64_t budget);
void tierce__split_clear(struct tierce__split *split);

/* The walk itself, of curves that are given: curves[g][c] = hits of group g at capacity c, for c
 * from 0 to lengths[g] - 1 (>= 1), increasing; beyond that as at the end. capacities[g] becomes its
 * part, hull_hits[g] what the hull has there. -ENOMEM. */
TIERCE_MUSTUSE int tierce__split_hulls(const uint64_t *const *curves, const uint64_t *lengths,
                                       size_t group_count, uint64_t budget, uint64_t *capacities,
                                       double *hull_hits);

#endif
