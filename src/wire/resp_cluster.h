/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_CLUSTER_H
#define TIERCE_WIRE_RESP_CLUSTER_H

#include "wire/resp_client.h"

/*
 * A client of a Redis Cluster: a batch of commands is sent to the nodes that have their keys, each
 * node's in one pipeline, and all answers are collected. MOVED and ASK are followed; where a node
 * cannot be reached, another one is asked who has its slots now.
 *
 *     rc = tierce__resp_cluster_open(&cluster, &opts, why);
 *     tierce__resp_cluster_begin(cluster);
 *     rc = tierce__resp_cluster_append(cluster, 1, (const char *[]){"GET", key}, bytes, 2);
 *     rc = tierce__resp_cluster_run(cluster, deadline_ns);
 *     value = tierce__resp_cluster_value(cluster, 0);
 *
 * Within a batch commands on different nodes have no order. A batch that failed may have happened
 * in part: that is the caller's to know.
 *
 * Thread: one at a time.
 */

struct tierce__resp_cluster;

/* opts name one node, of which the others are learnt; user, password and TLS are those of all.
 * Errors: as tierce__resp_open; TIERCE_E_UNSUPPORTED (it is no cluster); `why` in words. */
TIERCE_MUSTUSE int tierce__resp_cluster_open(struct tierce__resp_cluster **out,
                                             const struct tierce__resp_opts *opts,
                                             char why[TIERCE__RESP_WHY_BYTES]);
void tierce__resp_cluster_close(struct tierce__resp_cluster *cluster);

/* Forgets the batch before, with its values. */
void tierce__resp_cluster_begin(struct tierce__resp_cluster *cluster);

/* One more command, copied; arguments[key] says where it goes. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_cluster_append(struct tierce__resp_cluster *cluster, size_t key,
                                               const char *const *arguments, const size_t *bytes,
                                               size_t count);

/* Sends the batch and waits for all answers. Errors: as tierce__resp_read, with
 * tierce__resp_cluster_why in words; then no value may be looked at. */
TIERCE_MUSTUSE int tierce__resp_cluster_run(struct tierce__resp_cluster *cluster,
                                            uint64_t deadline_ns);

/* The answer to the i-th command. [borrow until begin] */
const struct tierce__resp_value *
tierce__resp_cluster_value(const struct tierce__resp_cluster *cluster, size_t i);

const char *tierce__resp_cluster_why(const struct tierce__resp_cluster *cluster);

/* For what is asked of each node, such as SCAN: clients of those that have slots, NULL behind the
 * last. Not while a batch is open; a begin of the client makes its connection. */
struct tierce__resp *tierce__resp_cluster_node(struct tierce__resp_cluster *cluster, size_t i);

/* The slot of a key, 0 .. 16383: of what stands in its first braces, if they are not empty. */
unsigned tierce__resp_slot(const char *key, size_t bytes);

#endif
