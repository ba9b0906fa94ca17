/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_H
#define TIERCE_CLI_OPTIMIZE_H

#include "optimizer/sweep.h"

#include <stdio.h>

/*
 * What `tierce optimize` was asked for, and what it prints.
 *
 *     optimize_args.c     the command line
 *     optimize_print.c    the table and the CSV
 *     cmd_optimize.c      reading the trace, running the sweep
 */

enum {
    TIERCE__OPTIMIZE_LIST_MAX = 64, /* of one option */
    TIERCE__OPTIMIZE_POINTS = 16,   /* capacities, unless told otherwise */
};

struct tierce__optimize {
    const char *path;
    const char *format; /* of the trace; NULL: told from it */
    const char *csv;    /* NULL, a file, or "-" */
    struct tierce__cache caches[TIERCE__OPTIMIZE_LIST_MAX];
    size_t cache_count;
    enum tierce__touch_order orders[2];
    size_t order_count;
    struct tierce__match matches[TIERCE__OPTIMIZE_LIST_MAX];
    size_t match_count;
    uint64_t capacities[TIERCE__OPTIMIZE_LIST_MAX]; /* blocks */
    size_t capacity_count;                          /* 0: chosen from the trace */
    uint64_t block_bytes;                           /* 0: not told */
    uint64_t seed;
    uint64_t ttl_us;
    struct tierce__kvcm_tuning kvcm;
    double bad_share_max;
    uint32_t threads;
};

/* Fills the request, with what is usual where nothing is said. Returns an exit status; if it is
 * not TIERCE__CLI_OK, why was printed. */
int tierce__optimize_read_args(struct tierce__optimize *out, int argc, char **argv);

/* One line a row under tierce__optimize_csv_header; `trace` is the first column. */
extern const char tierce__optimize_csv_header[];
void tierce__optimize_print_csv(FILE *file, const char *trace, const struct tierce__sweep *sweep);

/* Hit rates by cache and capacity, one table for each match, and what they do not show. */
void tierce__optimize_print_table(FILE *file, const struct tierce__optimize *request,
                                  const struct tierce__recording_totals *totals,
                                  const struct tierce__sweep *sweep);

#endif
