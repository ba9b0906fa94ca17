/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TIMELINE_H
#define TIERCE_OPTIMIZER_TIMELINE_H

#include "optimizer/trace/recording.h"
#include "optimizer/replay/sweep.h"

/*
 * The results of a few caches over the time of the trace.
 *
 *     rc = tierce__timeline_run(&timeline, recording, &(struct tierce__timeline_opts){
 *              .points = points, .point_count = 3, .match = {TIERCE__MATCH_PREFIX, 0}, ...});
 *     rate of slice i of line l = timeline.lines[l].slices[i].hits / .blocks
 *
 * The time from the first request to the last is cut into equal slices, at most `slices_max`:
 * slice_us = max(1, ceil((last_us - first_us + 1) / slices_max)). Slice i holds the requests with
 * start_us + i * slice_us <= time < start_us + (i + 1) * slice_us; one without any has zeros, and
 * `used` of the slice before.
 *
 * Threads: one call at a time for each timeline.
 */

struct tierce__timeline_slice {
    uint64_t requests;
    uint64_t blocks;          /* looked up */
    uint64_t internal_blocks; /* of those, held by the engine itself */
    uint64_t hits;            /* internal ones too */
    uint64_t internal_hits;   /* external hits are hits - internal_hits, of blocks -
                                 internal_blocks */
    uint64_t stored;          /* blocks; 0 of KVCM's caches */
    uint64_t evicted;         /* for room */
    uint64_t expired;
    uint64_t used; /* after the slice's last request, in the unit of the capacity */
};

struct tierce__timeline_line {
    struct tierce__sim_point point;        /* as asked for */
    struct tierce__timeline_slice *slices; /* [slice_count] */
};

struct tierce__timeline {
    int64_t start_us; /* the first request's time */
    uint64_t slice_us;
    uint32_t slice_count;
    struct tierce__timeline_line *lines;
    size_t line_count;
};

#define TIERCE__TIMELINE_SLICES 200u

struct tierce__timeline_opts {
    size_t size;
    const struct tierce__sim_point *points; /* [borrow for the call, their caches until clear] */
    size_t point_count;
    struct tierce__match match;
    struct tierce__kvcm_tuning kvcm; /* for KVCM's caches, all instances in one group */
    uint32_t slices_max;             /* 0: 200 */
    uint32_t threads;                /* 0: one for each processor */
};

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (Belady's cache, which has no state at a
 * moment; a match without a meaning; capacity 0), TIERCE_E_LIMIT (as the sweep). */
TIERCE_MUSTUSE int tierce__timeline_run(struct tierce__timeline *out,
                                        const struct tierce__recording *recording,
                                        const struct tierce__timeline_opts *opts);

/* Accepts a zeroed one. */
void tierce__timeline_clear(struct tierce__timeline *timeline);

#endif
