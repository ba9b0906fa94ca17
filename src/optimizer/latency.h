/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LATENCY_H
#define TIERCE_OPTIMIZER_LATENCY_H

#include "optimizer/economy.h"

/*
 * How long requests would have waited for their first token (tierce__ttft_seconds), with each cache
 * of a sweep and without any. Watches the sweep, and keeps for each row how many requests waited
 * how long, in steps of 1 %: a percentile is right to half a per cent, whatever the trace's length.
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

/* Seconds within which that share (above 0, up to 1) of the requests that look up had their first
 * token: of a row of the sweep, or with no cache, for TIERCE__NO_CACHE. NAN where nothing was
 * watched: of a match that is no prefix, without requests. */
#define TIERCE__NO_CACHE SIZE_MAX
double tierce__latencies_at(const struct tierce__latencies *latencies, size_t row, double share);

#endif
