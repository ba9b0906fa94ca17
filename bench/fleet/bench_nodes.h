/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_NODES_H
#define TIERCE_CLI_BENCH_NODES_H

#include "bench/bench.h"

/* The processor time that a manager needs for the reports of many nodes: a row for each number of
 * nodes. Errors: reported. Thread: the main one. */
TIERCE_MUSTUSE int tierce__bench_nodes(const struct tierce__bench *bench);

#endif
