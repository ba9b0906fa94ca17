/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_MANAGER_H
#define TIERCE_CLI_BENCH_MANAGER_H

#include "bench/bench.h"

/* The rounds before a measurement with ghost curves take 3 s, or as long as the measurement if
 * that is shorter: the sample adapts to the load. */
static inline uint64_t tierce__bench_warm_ns(const struct tierce__bench *bench)
{
    const double most = 3;
    return (uint64_t)((bench->seconds < most ? bench->seconds : most) * 1e9);
}

/* The parts of `tierce bench manager`, as tierce__bench_manager. */
TIERCE_MUSTUSE int tierce__bench_manager_meta(const struct tierce__bench *bench);
TIERCE_MUSTUSE int tierce__bench_manager_ghost(const struct tierce__bench *bench);
TIERCE_MUSTUSE int tierce__bench_manager_rpc(const struct tierce__bench *bench);
TIERCE_MUSTUSE int tierce__bench_manager_share(const struct tierce__bench *bench);

#endif
