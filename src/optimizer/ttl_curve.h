/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TTL_CURVE_H
#define TIERCE_OPTIMIZER_TTL_CURVE_H

#include "optimizer/match.h"
#include "optimizer/recording.h"

/*
 * The hits of a cache without a bound, whose blocks stay for a time to live after their last use,
 * at many such times from one scan: a block is there iff its last use is less than that ago. So for
 * each match tierce__match_costs turns ages into the times from which on a hit counts.
 *
 * Exact (equal to replays with the policy ttl) for requests that store what they look up or only
 * store. Where a request only looks up, what has expired is not stored by it, and there is no one
 * last use for all times: such a recording is refused, and replayed instead.
 *
 * Costs 8 bytes for each different block, and for each use a search in the list.
 */

/*
 * ttls: [ttl_count] microseconds, in any order, >= 1. hits: [match_count][ttl_count]. Times are
 * clamped as in a replay: a time before 0 counts as 0.
 * Errors: -ENOMEM; TIERCE_E_ARGUMENT (a request that only looks up; a time to live of 0).
 */
TIERCE_MUSTUSE int tierce__ttl_curve(const struct tierce__recording *recording,
                                     enum tierce__touch_order order,
                                     const struct tierce__match *matches, size_t match_count,
                                     const uint64_t *ttls, size_t ttl_count, uint64_t *hits);

#endif
