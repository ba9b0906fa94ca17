/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_POOL_H
#define TIERCE_NODE_POOL_H

#include "base/json/json_write.h"
#include "base/text/prometheus.h"

#include <tierce/status.h>

/*
 * A node's share in a fleet's pool: its parts, the server by which engines reach them, and their
 * registration with the managers. Parameters: pool.* of the node.
 *
 * Thread: any; start and stop by one.
 */

struct tierce__node;
struct tierce__node_config;
struct tierce__node_pool;

/* *out NULL: pool.manager is not set. [borrow] node until stop: its configuration, access and TLS.
 * Errors, `why` in words: of part.h, transfer.h and join.h. */
TIERCE_MUSTUSE int tierce__node_pool_start(struct tierce__node_pool **out,
                                           struct tierce__node *node, char why[256]);
/* Begins to leave the pool, so that clients go elsewhere; the parts still serve. Does not block.
 * NULL is accepted. */
void tierce__node_pool_leave(struct tierce__node_pool *pool);
/* Leaves the pool, ends the connections, and closes the parts. Blocks until deadline_ns at most, or
 * for two seconds from the beginning of the leave, for a manager that does not answer. NULL is
 * accepted. */
void tierce__node_pool_stop(struct tierce__node_pool *pool, uint64_t deadline_ns);

/* The node's name in a fleet: pool.name, or the first label of the host's name. Errors, `why` in
 * words: TIERCE_E_CONFIG. */
#define TIERCE__NODE_NAME_BYTES 256u
TIERCE_MUSTUSE int tierce__node_pool_name(char name[TIERCE__NODE_NAME_BYTES],
                                          const struct tierce__node_config *config, char why[256]);

/* The port of its server. */
uint16_t tierce__node_pool_port(const struct tierce__node_pool *pool);

/* Returns whether a part cannot be read, and why; it is tried again and again. Not while a part is
 * being read. False for NULL. */
bool tierce__node_pool_fails(struct tierce__node_pool *pool, char *why, size_t bytes);

/* For /status and /metrics. NULL puts nothing. */
void tierce__node_pool_status(struct tierce__node_pool *pool, struct tierce__json_write *json);
void tierce__node_pool_metrics(struct tierce__node_pool *pool, struct tierce__prometheus *text);

#endif
