/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_MANAGER_PROCESS_H
#define TIERCE_CLI_BENCH_MANAGER_PROCESS_H

#include <sys/types.h>

#include "bench/bench.h"

/* A manager in a process of its own, on a free port of loopback, with its index in memory and one
 * storage. The kernel kills it when this process ends. Its files lie in the benchmark's folder,
 * which the caller removes. */

struct tierce__bench_manager_process {
    pid_t pid;
    uint16_t port;       /* of gRPC */
    uint16_t admin_port; /* of HTTP for administrators: its metrics */
    char log[4096];
};

/* Starts the manager over a storage of this type and storage_spec (JSON), or over a pool of nodes
 * (`pool` not NULL; the storage is not used), and blocks until it listens. The caller must call
 * tierce__bench_manager_process_stop also after an error. Errors: -ECANCELED, reported. */
TIERCE_MUSTUSE int
tierce__bench_manager_process_start(struct tierce__bench_manager_process *manager,
                                    const struct tierce__bench *bench, const char *type,
                                    const char *spec, const char *pool);
/* The same for engines that read from one another: url [out] is that of peers://. */
#define TIERCE__BENCH_PEERS_URL_BYTES 96
TIERCE_MUSTUSE int
tierce__bench_manager_process_of_peers(struct tierce__bench_manager_process *manager,
                                       const struct tierce__bench *bench,
                                       char url[TIERCE__BENCH_PEERS_URL_BYTES]);
void tierce__bench_manager_process_stop(struct tierce__bench_manager_process *manager);

#endif
