/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LATENCY_H
#define TIERCE_OPTIMIZER_LATENCY_H

#include "optimizer/analysis/economy.h"

/*
 * Time to the first token (tierce__ttft_seconds) with each cache of a sweep, and without one.
 * Watches the sweep and keeps a histogram per row in steps of 1 %, so percentiles are accurate to
 * half a per cent for a trace of any length.
 *
 *     rc = tierce__latencies_create(&latencies, &setup, recording);
 *     opts.watches = (struct tierce__watch[]){tierce__latencies_watch(latencies)};
 *     rc = tierce__sweep_run(...);
 *     p99 = tierce__latencies_at(latencies, row, 0.99);
 *
 * Threads: as for struct tierce__watch while the sweep runs; then any.
 */

struct tierce__latencies;

/* For sweeps of that recording [borrow until the sweep has run] with setup->block_tokens, >= 1.
 * Errors, *out untouched: -ENOMEM. [borrow] setup for the call. */
TIERCE_MUSTUSE int tierce__latencies_create(struct tierce__latencies **out,
                                            const struct tierce__setup *setup,
                                            const struct tierce__recording *recording);

/* NULL is accepted. */
void tierce__latencies_destroy(struct tierce__latencies *latencies);

/* [borrow latencies until the sweep has run] */
struct tierce__watch tierce__latencies_watch(struct tierce__latencies *latencies);

/* The quantile of the time to the first token, in seconds, over requests that look up, for a share
 * above 0 and up to 1. `row` is a row of the sweep, or TIERCE__NO_CACHE for no cache. NAN if
 * nothing was watched: no requests, or a match that is not a prefix. */
#define TIERCE__NO_CACHE SIZE_MAX
double tierce__latencies_at(const struct tierce__latencies *latencies, size_t row, double share);

#endif
