/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_SCALE_H
#define TIERCE_OPTIMIZER_SCALE_H

#include "optimizer/recording.h"
#include "optimizer/sweep.h"

/*
 * A sweep over a part of the trace, in caches that are smaller by as much: for policies that have
 * no curve, where a trace is too long to be replayed as a whole.
 *
 * What is drawn is whole conversations, never single blocks, or prefixes would have holes: the
 * requests of a session where the trace names sessions, else all requests that go through the same
 * root: the first block of a request that at most one request in a hundred goes through, so that a
 * prefix that all have (a system prompt) does not make everything one. A request of shared
 * blocks alone has its last one for its root. Each session or root is drawn with the probability
 * `rate`, by a hash of it and of the seed.
 *
 * Capacities are multiplied by `share`, the blocks that the part has of all different blocks. What
 * is shared by all is drawn whole, and so weighs too much in a small part.
 *
 * The error is shown, not guessed: LRU is run over the part as well, and compared with LRU over the
 * whole trace at the same capacities and matches (rev).
 */

struct tierce__scaled {
    struct tierce__sweep sweep; /* rows as of the whole: capacity is what was asked for; requests,
                                   blocks and hits are the part's */
    uint64_t requests, requests_all;
    uint32_t distinct, distinct_all;
    double rate;  /* asked for */
    double share; /* distinct / distinct_all: by which capacities were multiplied */

    /* LRU, order rev, at each capacity and match: [capacity_count][match_count]. */
    size_t capacity_count, match_count;
    uint64_t *capacities;
    double *lru_part, *lru_exact; /* hit rates */
    double error_mean, error_max; /* |lru_part - lru_exact| */
};

/*
 * `opts` as for the whole. Errors, *out untouched: those of tierce__sweep_run and
 * tierce__recording_filter; TIERCE_E_ARGUMENT (a rate that is not above 0 and up to 1). If
 * nothing was drawn, `requests` is 0 and there are no rows.
 */
TIERCE_MUSTUSE int tierce__scale_run(struct tierce__scaled *out,
                                     const struct tierce__recording *recording, double rate,
                                     const struct tierce__sweep_opts *opts);
void tierce__scaled_clear(struct tierce__scaled *scaled);

#endif
