/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_CALLS_H
#define TIERCE_CLI_BENCH_CALLS_H

#include "bench/bench.h"
#include "store/remote/connector.h"

/*
 * Requests to a connector, all at once. Thread: any; the call blocks until all are answered.
 */

/* Sets the deadline, `done` and `arg` of each request, and submits them. Returns the nanoseconds
 * until the last one was answered, or the status of one that failed; prints nothing. */
TIERCE_MUSTUSE int64_t tierce__bench_calls_try(struct tierce__connector *connector,
                                               struct tierce__store_req *reqs, size_t count);

/* The same, but a failure is printed with the connector's reason. */
TIERCE_MUSTUSE int64_t tierce__bench_calls_run(const struct tierce__bench *bench,
                                               struct tierce__connector *connector,
                                               struct tierce__store_req *reqs, size_t count);

#endif
