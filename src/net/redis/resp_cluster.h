/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_CLUSTER_H
#define TIERCE_NET_RESP_CLUSTER_H

#include "net/redis/resp_client.h"

/*
 * A client of a Redis Cluster: a batch of commands is sent to the nodes that have their keys, each
 * node's in one pipeline, and all answers are collected. MOVED and ASK are followed; if a node
 * cannot be reached, another node is queried for the new owner of its slots.
 *
 *     rc = tierce__resp_cluster_create(&cluster, &opts, nodes, count);
 *     tierce__resp_cluster_begin(cluster);
 *     rc = tierce__resp_cluster_append(cluster, 1, (const char *[]){"GET", key}, bytes, 2);
 *     rc = tierce__resp_cluster_run(cluster, deadline_ns);
 *     value = tierce__resp_cluster_value(cluster, 0);
 *
 * Within a batch commands on different nodes have no order. A failed batch may have been
 * applied in part; the caller must allow for this.
 *
 * Thread: one at a time.
 */

struct tierce__resp_cluster;

struct tierce__resp_node {
    const char *host;
    uint16_t port; /* 0: 6379 */
};

/* Creates a client from some nodes of the cluster. It discovers the others when it first needs
 * them. All options except host and port apply to all nodes. [borrow] all for the call. Errors:
 * -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__resp_cluster_create(struct tierce__resp_cluster **out,
                                               const struct tierce__resp_opts *opts,
                                               const struct tierce__resp_node *nodes, size_t count);

void tierce__resp_cluster_close(struct tierce__resp_cluster *cluster);

/* Forgets the batch before, with its values. */
void tierce__resp_cluster_begin(struct tierce__resp_cluster *cluster);

/* One more command, copied; arguments[key] determines its node. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_cluster_append(struct tierce__resp_cluster *cluster, size_t key,
                                               const char *const *arguments, const size_t *bytes,
                                               size_t count);

/* The same, but for the last argument, which stays the caller's until run has returned. */
TIERCE_MUSTUSE int tierce__resp_cluster_append_borrowed(struct tierce__resp_cluster *cluster,
                                                        size_t key, const char *const *arguments,
                                                        const size_t *bytes, size_t count);

/* The answer to the command appended last goes to the caller's memory, as by
 * tierce__resp_read_into. */
void tierce__resp_cluster_into(struct tierce__resp_cluster *cluster, void *memory, size_t capacity);

/* The batch writes: every node must wait (WAIT) until this many of its replicas have the writes. If
 * they don't in time, run fails with TIERCE_E_DEADLINE, and it may be lost. */
void tierce__resp_cluster_wait(struct tierce__resp_cluster *cluster, uint32_t replicas);

/* Sends the batch and waits for all answers. Errors: as tierce__resp_read, -EACCES,
 * TIERCE_E_UNSUPPORTED (it is not a cluster), with tierce__resp_cluster_why in words; then no value
 * may be looked at. */
TIERCE_MUSTUSE int tierce__resp_cluster_run(struct tierce__resp_cluster *cluster,
                                            uint64_t deadline_ns);

/* The answer to the i-th command. [borrow until begin] */
const struct tierce__resp_value *
tierce__resp_cluster_value(const struct tierce__resp_cluster *cluster, size_t i);

const char *tierce__resp_cluster_why(const struct tierce__resp_cluster *cluster);

/* Whether there is a connection to any node, and how many have been made to nodes that serve. */
bool tierce__resp_cluster_is_connected(const struct tierce__resp_cluster *cluster);
uint64_t tierce__resp_cluster_connects(const struct tierce__resp_cluster *cluster);

/* For commands to every node, such as SCAN: the client of the i-th node with slots. Between begin
 * and the first append. Errors: -ENOENT after the last; TIERCE_E_DOWN (some slots have no node),
 * TIERCE_E_UNSUPPORTED (not a cluster), those of tierce__resp_open. */
TIERCE_MUSTUSE int tierce__resp_cluster_node(struct tierce__resp_cluster *cluster, size_t i,
                                             struct tierce__resp **out);

#define TIERCE__RESP_SLOTS 16384u

/* The slot of a key, 0 .. 16383: that of the text in its first braces, if they are not empty. */
unsigned tierce__resp_slot(const char *key, size_t bytes);

/* The smallest number whose decimal digits hash to a slot; a key with this number in braces is in
 * the same slot. */
uint32_t tierce__resp_slot_tag(unsigned slot);

#endif
