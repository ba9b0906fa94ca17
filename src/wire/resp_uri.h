/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_URI_H
#define TIERCE_WIRE_RESP_URI_H

#include "wire/resp_cluster.h"

/*
 * Where a Redis is, as text:
 *
 *     redis://user:password@host:port/database?timeout_ms=500&client_max_pool_size=8
 *     rediss://...                 with TLS; ?ca_file=, client_certificate=, client_key=
 *     redis+unix:///path/of/socket?db=1
 *     redis-cluster://user:password@host:port,host:port    a cluster, by some of its nodes
 *     rediss-cluster://...
 *
 * User information without a colon is the password. What stands between may be percent-encoded.
 * timeout_ms bounds connecting and calls; parameters that are not known here are kept for whoever
 * knows them.
 *
 * Thread: any.
 */

#define TIERCE__RESP_URI_NODES 16u

struct tierce__resp_uri {
    struct tierce__resp_opts opts; /* texts are borrowed from the fields below */
    uint32_t pool_max;             /* client_max_pool_size; 16 */
    bool is_cluster;               /* redis-cluster://, or cluster=true */
    struct tierce__resp_node nodes[TIERCE__RESP_URI_NODES]; /* of a cluster; the first is opts' */
    size_t node_count;
    uint32_t wait_replicas; /* of a cluster: that have a write before it is told; 0 */
    char *text;             /* owned: the URI, cut into pieces */
    const char *names[16], *values[16];
    size_t param_count;
};

/* Errors, *out untouched and `why` in words without the password: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *uri,
                                          char why[TIERCE__RESP_WHY_BYTES]);

/* Accepts a zeroed one. */
void tierce__resp_uri_clear(struct tierce__resp_uri *uri);

/* The value of a parameter, or NULL. [borrow until clear] */
const char *tierce__resp_uri_param(const struct tierce__resp_uri *uri, const char *name);

#endif
