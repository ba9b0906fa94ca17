/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_PEERS_LOAD_H
#define TIERCE_CLI_BENCH_PEERS_LOAD_H

#include "bench/bench.h"

/* The rows of loads by an engine, and of a network with a delay; see bench_peers_load.c. Errors are
 * printed. */
TIERCE_MUSTUSE int tierce__bench_peers_load(const struct tierce__bench *bench);

#endif
