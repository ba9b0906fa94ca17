/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_REDIS_SERVER_H
#define TIERCE_CLI_BENCH_REDIS_SERVER_H

#include <sys/types.h>

#include "bench/bench.h"

/* A private redis-server for a benchmark, on a free port of loopback, without persistence. The
 * kernel kills it when this process ends. */

struct tierce__bench_redis_server {
    pid_t pid;
    uint16_t port;
};

/* Starts the server and blocks until it accepts connections. The caller must call
 * tierce__bench_redis_stop also after an error. Errors: -ECANCELED, reported. */
TIERCE_MUSTUSE int tierce__bench_redis_start(struct tierce__bench_redis_server *server,
                                             const struct tierce__bench *bench);
void tierce__bench_redis_stop(struct tierce__bench_redis_server *server);

#endif
