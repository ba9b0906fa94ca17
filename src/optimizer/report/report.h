/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_H
#define TIERCE_OPTIMIZER_REPORT_H

#include "optimizer/analysis/ttft.h"
#include "optimizer/analysis/life.h"
#include "optimizer/replay/tiers.h"
#include "optimizer/analysis/timeline.h"
#include "optimizer/analysis/trust.h"

#include <stdio.h>

/*
 * Reports of results: an HTML page, its data as JSON (docs/inside/format/report.md), and a plot of
 * hits against capacity as SVG (the command line, which has cairo, draws the same plot as PNG).
 *
 * The struct borrows all data; fields that are NULL or 0 are unknown, and parts that need them are
 * omitted. Equal input gives equal output. Threads: one at a time.
 */

/* Tiers, and the results of the trace in them. */
struct tierce__report_tiers {
    const struct tierce__tiers_opts *opts;
    const struct tierce__tiers_result *result;
    uint64_t load_ns[3]; /* tierce__tiers_load_ns of 0.5, 0.9 and 0.99 */
};

struct tierce__report {
    const char *name;                              /* of the trace; may hold anything */
    const struct tierce__recording_totals *totals; /* needed */
    const struct tierce__sweep *sweep;             /* needed */
    const char *const *instances;                  /* names; may hold anything */
    uint32_t instance_count;
    uint64_t bad_lines;
    uint64_t block_bytes;                  /* how large a block is */
    const struct tierce__economy *economy; /* of the sweep; so are the next two */
    const struct tierce__latencies *latencies;
    const struct tierce__trust *trust;
    const struct tierce__timeline *timeline;
    struct tierce__match timeline_match; /* of it */
    const struct tierce__life *life;
    const struct tierce__report_tiers *tiers;
};

/* [borrow] the report for the call. Errors: -ENOMEM; write errors are reported by ferror. */
TIERCE_MUSTUSE int tierce__report_html(FILE *file, const struct tierce__report *report);
TIERCE_MUSTUSE int tierce__report_json(FILE *file, const struct tierce__report *report);
TIERCE_MUSTUSE int tierce__report_svg(FILE *file, const struct tierce__report *report);

/* ---- rows as curves, for those who show them ------------------------------------------------- */

/* The rows of one cache, order and match. */
struct tierce__report_curve {
    const struct tierce__sweep_row **rows; /* by capacity; unlimited last */
    size_t count;
    const struct tierce__sweep_curve *exact; /* the same at every capacity, or NULL */
};

/* Fills in capacities of an exact curve between its smallest and largest row, ascending with equal
 * factors, and returns their number; 0 if there are none between the rows. */
#define TIERCE__REPORT_EXACT_MAX 200u
size_t tierce__report_exact(uint64_t out[TIERCE__REPORT_EXACT_MAX],
                            const struct tierce__report_curve *curve);

/* Hits at one of them. */
uint64_t tierce__report_exact_hits(const struct tierce__report_curve *curve, uint64_t capacity);

struct tierce__report_curves {
    struct tierce__report_curve *curves; /* in the order of the sweep */
    size_t count;
    const struct tierce__sweep_row **rows; /* of all */
};

/* [borrow] the sweep until clear. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__report_curves(struct tierce__report_curves *out,
                                         const struct tierce__sweep *sweep);

/* Accepts a zeroed one. */
void tierce__report_curves_clear(struct tierce__report_curves *curves);

/* "lru", "ttl:5min", or "lru/rev" where both orders were run. */
#define TIERCE__REPORT_LABEL_BYTES 80u
void tierce__report_label(char out[TIERCE__REPORT_LABEL_BYTES],
                          const struct tierce__report_curves *curves, size_t index);

/* Returns whether two curves have the same match. */
bool tierce__report_same_match(const struct tierce__report_curve *a,
                               const struct tierce__report_curve *b);

#endif
