/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_PEERS_DISK_H
#define TIERCE_CLI_BENCH_PEERS_DISK_H

#include "bench/bench.h"

/* How fast an engine loads from its disk while a peer reads other chunks from it without a pause:
 * a row with the default of peers.disk_rate, and one with 64 MiB. */
TIERCE_MUSTUSE int tierce__bench_peers_disk(const struct tierce__bench *bench);

#endif
