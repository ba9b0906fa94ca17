/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TTL_CURVE_H
#define TIERCE_OPTIMIZER_TTL_CURVE_H

#include "optimizer/replay/match.h"
#include "optimizer/trace/recording.h"

/*
 * The hits of an unbounded cache whose blocks expire after a time to live since their last use, for
 * many times to live in one scan. A block is cached iff its last use is less than the time to live
 * ago, so for each match tierce__match_costs turns ages into the minimum times to live of the hits.
 *
 * Exact (equal to replays with the policy ttl) for requests that store the blocks they look up or
 * only store. A request that only looks up does not store expired blocks, so there is no common
 * last use for all times: such a recording is rejected and must be replayed instead.
 *
 * Costs 8 bytes per distinct block, and a search in the list per use.
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
