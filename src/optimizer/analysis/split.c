/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/replay/curve.h"
#include "optimizer/analysis/groups.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- along the hulls ------------------------------------------------------------------------- */

/* A straight piece of a hull. */
struct split_piece {
    size_t group;
    uint64_t from, to; /* capacities */
    double slope;      /* hits a block */
};

struct split_pieces {
    struct split_piece *list;
    size_t count, room;
};

/* Whether the point b lies on or below the line from a to c. */
static bool is_below(const uint64_t *curve, uint64_t a, uint64_t b, uint64_t c)
{
    TIERCE_DASSERT(a < b && b < c);
    __extension__ typedef unsigned __int128 wide;
    return (wide)(curve[b] - curve[a]) * (c - a) <= (wide)(curve[c] - curve[a]) * (b - a);
}

/* The upper concave hull of a curve, as far as it rises. The pieces after `first` are a stack; a
 * new point first removes the points below its line. */
static int add_hull(struct split_pieces *pieces, size_t group, const uint64_t *curve,
                    uint64_t length)
{
    TIERCE_ASSERT(length > 0);
    size_t first = pieces->count;
    for (uint64_t c = 1; c < length; c++) {
        uint64_t from = pieces->count > first ? pieces->list[pieces->count - 1].to : 0;
        if (curve[c] == curve[c - 1])
            continue; /* no hull bends where nothing rises */
        while (pieces->count > first &&
               is_below(curve, pieces->list[pieces->count - 1].from, from, c)) {
            from = pieces->list[pieces->count - 1].from;
            pieces->count--;
        }
        if (TIERCE__GROW(pieces->list, pieces->room, pieces->count + 1, 256) < 0)
            return -ENOMEM;
        pieces->list[pieces->count++] = (struct split_piece){
            group, from, c, (double)(curve[c] - curve[from]) / (double)(c - from)};
    }
    return 0;
}

/* Sorts the steepest first; pieces of one group keep their order despite rounding of the slopes. */
static int compare_pieces(const void *a, const void *b)
{
    const struct split_piece *left = a, *right = b;
    if (left->slope != right->slope)
        return left->slope > right->slope ? -1 : 1;
    if (left->group != right->group)
        return left->group < right->group ? -1 : 1;
    return left->from < right->from ? -1 : left->from > right->from;
}

int tierce__split_hulls(const uint64_t *const *curves, const uint64_t *lengths, size_t group_count,
                        uint64_t budget, uint64_t *capacities, double *hull_hits)
{
    struct split_pieces pieces = {0};
    int rc = 0;
    for (size_t g = 0; rc == 0 && g < group_count; g++) {
        capacities[g] = 0;
        hull_hits[g] = (double)curves[g][0];
        rc = add_hull(&pieces, g, curves[g], lengths[g]);
    }
    if (rc == 0 && pieces.count > 0)
        qsort(pieces.list, pieces.count, sizeof(pieces.list[0]), compare_pieces);
    for (size_t i = 0; rc == 0 && i < pieces.count && budget > 0; i++) {
        const struct split_piece *p = &pieces.list[i];
        uint64_t take = p->to - p->from < budget ? p->to - p->from : budget;
        TIERCE_ASSERT(p->to > p->from);
        capacities[p->group] += take;
        hull_hits[p->group] += p->slope * (double)take;
        budget -= take;
    }
    tierce__free(pieces.list);
    return rc;
}

/* ---- of a recording -------------------------------------------------------------------------- */

/* The hits of LRU at each capacity up to all blocks of the group (heap). */
static int make_curve(uint64_t **out, uint64_t *length, const struct tierce__recording *recording,
                      const struct tierce__groups_opts *opts)
{
    struct tierce__match match = {TIERCE__MATCH_PREFIX, 0};
    enum tierce__touch_order order = TIERCE__TOUCH_REV;
    struct tierce__curve *curve = NULL;
    uint32_t entries;
    if (opts->sweep.match_count > 0)
        match = opts->sweep.matches[0];
    if (opts->sweep.order_count > 0)
        order = opts->sweep.orders[0];
    int rc = tierce__curve_create(&curve, order, &match, 1);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r))
        rc = tierce__curve_request(curve, tierce__recorded_blocks(r), r->count, r->read_count);
    if (rc < 0) {
        tierce__curve_destroy(curve);
        return rc;
    }
    const uint64_t *histogram = tierce__curve_histogram(curve, 0, &entries);
    uint64_t *hits = tierce__alloc(entries * sizeof(*hits)), sum = 0;
    for (uint32_t c = 0; hits != NULL && c < entries; c++)
        hits[c] = sum += histogram[c];
    tierce__curve_destroy(curve);
    if (hits == NULL)
        return -ENOMEM;
    *out = hits;
    *length = entries;
    return 0;
}

struct group_curves {
    uint64_t **curves;
    uint64_t *lengths, *capacities;
    double *hull_hits;
};

static int make_curves(struct group_curves *c, struct tierce__split *split,
                       const struct tierce__recording *recording,
                       const struct tierce__groups_opts *opts)
{
    int rc = 0;
    for (size_t g = 0; rc == 0 && g < opts->group_count; g++) {
        struct tierce__recording *part = NULL;
        rc = tierce__group_recording(&part, recording, opts, g);
        if (rc < 0)
            return rc;
        struct tierce__recording_totals totals = tierce__recording_totals(part);
        split->parts[g].requests = totals.requests;
        split->parts[g].blocks = totals.read_blocks;
        split->is_exact = split->is_exact && !totals.has_reads;
        rc = make_curve(&c->curves[g], &c->lengths[g], part, opts);
        tierce__recording_destroy(part);
    }
    return rc;
}

static void fill_parts(struct tierce__split *split, const struct group_curves *c)
{
    for (size_t g = 0; g < split->part_count; g++) {
        struct tierce__split_part *part = &split->parts[g];
        TIERCE_ASSERT(c->lengths[g] > 0);
        uint64_t last = c->lengths[g] - 1;
        part->capacity = c->capacities[g];
        part->hits = c->curves[g][part->capacity < last ? part->capacity : last];
        part->hits_max = c->curves[g][last];
        TIERCE_ASSERT(part->hits <= part->hits_max);
        part->hull_hits = c->hull_hits[g];
        split->requests += part->requests;
        split->blocks += part->blocks;
        split->hits += part->hits;
        split->hits_max += part->hits_max;
        split->hull_hits += part->hull_hits;
    }
}

int tierce__split_run(struct tierce__split *out, const struct tierce__recording *recording,
                      const struct tierce__groups_opts *opts, uint64_t budget)
{
    size_t count = opts->group_count;
    struct tierce__split split = {.part_count = count, .budget = budget, .is_exact = true};
    struct group_curves c = {0};
    int rc = -ENOMEM;
    split.parts = tierce__calloc(count + 1, sizeof(*split.parts));
    c.curves = tierce__calloc(count + 1, sizeof(*c.curves));
    c.lengths = tierce__calloc(count + 1, sizeof(*c.lengths));
    c.capacities = tierce__calloc(count + 1, sizeof(*c.capacities));
    c.hull_hits = tierce__calloc(count + 1, sizeof(*c.hull_hits));
    if (split.parts != NULL && c.curves != NULL && c.lengths != NULL && c.capacities != NULL &&
        c.hull_hits != NULL)
        rc = make_curves(&c, &split, recording, opts);
    if (rc == 0)
        rc = tierce__split_hulls((const uint64_t *const *)c.curves, c.lengths, count, budget,
                                 c.capacities, c.hull_hits);
    if (rc == 0)
        fill_parts(&split, &c);
    for (size_t g = 0; c.curves != NULL && g < count; g++)
        tierce__free(c.curves[g]);
    tierce__free(c.curves);
    tierce__free(c.lengths);
    tierce__free(c.capacities);
    tierce__free(c.hull_hits);
    if (rc == 0)
        *out = split;
    else
        tierce__split_clear(&split);
    return rc;
}

void tierce__split_clear(struct tierce__split *split)
{
    tierce__free(split->parts);
    *split = (struct tierce__split){0};
}
