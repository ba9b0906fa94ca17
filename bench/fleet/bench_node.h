/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_NODE_H
#define TIERCE_CLI_BENCH_NODE_H

#include "bench/bench.h"

/* A node's part of a pool in this process: memory, the server by which clients reach it, and its
 * registration with a manager. Thread: the main one. */

#define TIERCE__BENCH_POOL "nodes"

struct tierce__join;
struct tierce__parts;
struct tierce__transfer_server;

/* Zeroed: none. */
struct tierce__bench_node {
    struct tierce__parts *parts;
    struct tierce__transfer_server *server;
    struct tierce__join *join;
    uint16_t port; /* of the server */
};

/* A part of so many bytes, which serves. The caller must call tierce__bench_node_stop also after an
 * error. Errors: reported. */
TIERCE_MUSTUSE int tierce__bench_node_start(struct tierce__bench_node *node,
                                            const struct tierce__bench *bench, uint64_t bytes);
/* Registers it with the manager at this port, for the pool TIERCE__BENCH_POOL, from now on. Errors:
 * reported. */
TIERCE_MUSTUSE int tierce__bench_node_join(struct tierce__bench_node *node,
                                           const struct tierce__bench *bench, uint16_t port);
void tierce__bench_node_leave(struct tierce__bench_node *node);
void tierce__bench_node_stop(struct tierce__bench_node *node);

#endif
