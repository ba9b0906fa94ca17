/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_GROUPS_H
#define TIERCE_OPTIMIZER_GROUPS_H

#include "optimizer/trace/recording.h"
#include "optimizer/replay/sweep.h"

/*
 * Groups of instances, each with a cache of its own: the effect of quotas (tierce__groups_run), and
 * the best quotas (tierce__split_run).
 *
 * A group consists of the requests of its instances. Instances of one group share a cache but no
 * blocks: the same id in two instances is two blocks.
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
    struct tierce__sweep_opts sweep; /* the sweep for each group; capacities come from the groups */
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
 * Splits one budget of blocks over groups of LRU caches to maximize their total hits: a greedy walk
 * along the upper concave hulls of the groups' exact LRU curves, steepest piece first. If the
 * curves are concave, the split is optimal. Otherwise the last piece may end inside a segment where
 * the curve lies below its hull; the optimum then lies between `hits` and `hull_hits`.
 */
struct tierce__split_part {
    uint64_t capacity; /* blocks; the sum of all parts is at most the budget, and less if no group
                          gains from more */
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
    double hull_hits; /* sum; an upper bound for every split of the budget */
    bool is_exact;    /* false if some request only looks up: the curves then treat its blocks as
                         stored */
};

/* Reads these options: the groups, group_of, the first of sweep.orders (default rev), the first of
 * sweep.matches (default prefix) and sweep.folder. Errors, *out untouched: -ENOMEM, negative errno
 * (a temporary file), TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__split_run(struct tierce__split *out,
                                     const struct tierce__recording *recording,
                                     const struct tierce__groups_opts *opts, uint64_t budget);
void tierce__split_clear(struct tierce__split *split);

/* The walk itself, for given curves: curves[g][c] = hits of group g at capacity c, for c from 0 to
 * lengths[g] - 1 (>= 1), increasing; beyond that as at the end. Sets capacities[g] to the group's
 * part and hull_hits[g] to the hull's value there. -ENOMEM. */
TIERCE_MUSTUSE int tierce__split_hulls(const uint64_t *const *curves, const uint64_t *lengths,
                                       size_t group_count, uint64_t budget, uint64_t *capacities,
                                       double *hull_hits);

#endif
