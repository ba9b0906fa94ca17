/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIVE_H
#define TIERCE_OPTIMIZER_LIVE_H

#include "optimizer/match.h"
#include "optimizer/recording.h"
#include "optimizer/sweep.h"

/*
 * LRU at every capacity over requests as they come, without a recording: what there is to know is
 * known at any time.
 *
 *     rc = tierce__live_curve_create(&live, matches, match_count);
 *     rc = tierce__live_curve_add(live, &request);                   // for each
 *     rc = tierce__live_curve_sweep(live, &sweep, capacities, count); // whenever one likes
 *
 * Hits are those of turns that touch from their last block to their first. A request that only
 * looks up is taken for a turn: that what it misses is computed and then stored is what happens
 * next, but the trace has not come so far. Removals are passed over. For each different block some
 * 60 bytes are kept.
 *
 * Threads: one at a time.
 */

struct tierce__live_curve;

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (no match, or too many). */
TIERCE_MUSTUSE int tierce__live_curve_create(struct tierce__live_curve **out,
                                             const struct tierce__match *matches,
                                             size_t match_count);

/* NULL is accepted. */
void tierce__live_curve_destroy(struct tierce__live_curve *live);

/* Errors, after which it is good for nothing but destroy: -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__live_curve_add(struct tierce__live_curve *live,
                                          const struct tierce__trace_request *request);

/* Of what came so far; `has_reads`: some request only looked up. */
struct tierce__recording_totals tierce__live_curve_totals(const struct tierce__live_curve *live);

/* A row for each match and capacity, as tierce__sweep_run makes them; tierce__sweep_clear. Errors,
 * *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__live_curve_sweep(const struct tierce__live_curve *live,
                                            struct tierce__sweep *out, const uint64_t *capacities,
                                            size_t count);

#endif
