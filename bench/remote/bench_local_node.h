/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_LOCAL_NODE_H
#define TIERCE_CLI_BENCH_LOCAL_NODE_H

#include "bench/bench.h"
#include "node/node.h"

/* A node in this process that serves RESP on a free port of loopback, and clients that map its
 * memory. Thread: the main one. */

/* Zeroed: none. */
struct tierce__bench_local_node {
    struct tierce__node_config config;
    struct tierce__node *node;
    uint16_t port;
    char socket[128]; /* for node.socket; "" if no client was announced */
};

/* A node with so many bytes of memory. `name`: of its socket in the folder of the run; NULL: no
 * client maps its memory. The caller must call tierce__bench_local_node_stop also after an error.
 * Errors: -ECANCELED, reported. */
TIERCE_MUSTUSE int tierce__bench_local_node_start(struct tierce__bench_local_node *node,
                                                  const struct tierce__bench *bench, uint64_t bytes,
                                                  const char *name);
void tierce__bench_local_node_stop(struct tierce__bench_local_node *node);

#endif
