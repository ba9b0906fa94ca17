/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_SCALE_H
#define TIERCE_OPTIMIZER_SCALE_H

#include "optimizer/trace/recording.h"
#include "optimizer/replay/sweep.h"

/*
 * A sweep over a sample of the trace, with proportionally smaller caches: for policies without a
 * curve, if the trace is too long to be replayed completely.
 *
 * The sample consists of whole conversations, never single blocks, because prefixes would get
 * holes. A conversation is a session of the trace, if it has sessions, else all requests with the
 * same root: the first block of a request that at most one request in a hundred contains, so that a
 * common prefix (a system prompt) does not join all requests. If all blocks of a request are
 * shared, its last one is the root. Each conversation is drawn with the probability `rate`, by a
 * hash of its id and the seed.
 *
 * Capacities are multiplied by `share`, the sample's share of all distinct blocks. Common blocks
 * are always in the sample, so they weigh too much in a small one.
 *
 * The error is measured: LRU over the sample is compared with LRU over the whole trace at the same
 * capacities and matches (rev).
 */

/* Makes a recording of the drawn requests, in order. Errors, *out untouched: those of
 * tierce__recording_filter. */
TIERCE_MUSTUSE int tierce__scale_draw(struct tierce__recording **out,
                                      const struct tierce__recording *recording, double rate,
                                      uint64_t seed, const char *folder);

/* The scaled capacity: at least 1; unlimited stays unlimited. */
uint64_t tierce__scale_capacity(uint64_t capacity, double share);

struct tierce__scaled {
    struct tierce__sweep sweep; /* rows have the original capacities, but the requests, blocks and
                                   hits of the sample */
    uint64_t requests, requests_all;
    uint32_t distinct, distinct_all;
    double rate;  /* asked for */
    double share; /* distinct / distinct_all: the factor of the capacities */

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
