/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_MOVER_H
#define TIERCE_NODE_MOVER_H

#include "base/json/json_write.h"
#include "base/text/prometheus.h"
#include "mover/mover.h"

/*
 * The mover of a node: it copies blocks between the storages of a fleet, as the managers ask for.
 * Parameters: mover.* of the node.
 *
 * Thread: any; start and stop by one.
 */

struct tierce__node_config;

/* The managers whose moves a node carries out; NULL: none. */
const char *tierce__node_mover_url(const struct tierce__node_config *config);

/* *out NULL: the node moves nothing. Errors, `why` in words: those of mover.h. */
TIERCE_MUSTUSE int tierce__node_mover_start(struct tierce__mover **out,
                                            const struct tierce__node_config *config,
                                            char why[256]);
/* Blocks until deadline_ns, and for five seconds at most. NULL is accepted. */
void tierce__node_mover_stop(struct tierce__mover *mover, uint64_t deadline_ns);

/* For /status and /metrics. NULL puts nothing. */
void tierce__node_mover_status(struct tierce__mover *mover, struct tierce__json_write *json);
void tierce__node_mover_metrics(struct tierce__mover *mover, struct tierce__prometheus *text);

#endif
