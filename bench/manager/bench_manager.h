/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_MANAGER_H
#define TIERCE_CLI_BENCH_MANAGER_H

#include "bench/bench.h"

/* The parts of `tierce bench manager`, as tierce__bench_manager. */
TIERCE_MUSTUSE int tierce__bench_manager_meta(const struct tierce__bench *bench);
TIERCE_MUSTUSE int tierce__bench_manager_ghost(const struct tierce__bench *bench);
TIERCE_MUSTUSE int tierce__bench_manager_rpc(const struct tierce__bench *bench);

#endif
