/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_CODED_H
#define TIERCE_CLI_BENCH_CODED_H

#include "bench/bench.h"

/* A part of the benchmark `codec`: emits rows of loads from a remote store, memory, coded memory
 * and a disk, of chunks with these values [borrow] in bfloat16, which `source` names. `bytes` is at
 * least one. Errors: reported. */
int tierce__bench_coded(const struct tierce__bench *bench, const uint8_t *values, uint64_t bytes,
                        const char *source);

#endif
