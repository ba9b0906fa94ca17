/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_URI_H
#define TIERCE_NET_RESP_URI_H

#include "base/text/url.h"
#include "net/redis/resp_cluster.h"

/*
 * The address of a Redis server or a node as a URI:
 *
 *     redis://user:password@host:port/database?timeout_ms=500&client_max_pool_size=8
 *     rediss://...                 with TLS; ?ca_file=, client_certificate=, client_key=
 *     redis+unix:///path/of/socket?db=1
 *     redis-cluster://user:password@host:port,host:port    a cluster, by some of its nodes
 *     rediss-cluster://...         (redis+cluster:// is the same)
 *     redis+sentinel://user:password@host:port,host:port/name/database
 *     rediss+sentinel://...        the master of a name, by its sentinels; user and password are
 *                                  the master's; ?sentinel_user=, sentinel_password=
 *     tierce://token@host:port     a node, port 6494; with TLS unless the host is this machine and
 * no file of TLS is named, or ?tls= says it
 *
 * valkey... is redis.... User information without a colon is the password. ?credentials_file= names
 * a file that holds them instead (resp_credentials.c). timeout_ms bounds connecting and calls;
 * unknown parameters are kept in `url` for the caller.
 *
 * Thread: any.
 */

#define TIERCE__RESP_URI_NODES 16u
#define TIERCE__RESP_NODE_PORT                                                                     \
    6494u /* default port of tierce://; same as in node/node_params.def */

struct tierce__resp_uri {
    struct tierce__resp_opts opts; /* texts are borrowed from url */
    uint32_t pool_max;             /* client_max_pool_size; 16 */
    bool is_cluster;               /* redis-cluster://, or cluster=true */
    bool is_sentinel;              /* redis+sentinel:// */
    const char *master;            /* the name that sentinels know; NULL without them */
    struct tierce__resp_node nodes[TIERCE__RESP_URI_NODES]; /* the first is opts' */
    size_t node_count;
    uint32_t wait_replicas; /* replicas that must have a write before it is acknowledged; 0 */
    struct tierce__url url; /* owned */
    char *credentials;      /* owned: the content of the file, to which opts may point; or NULL */
    size_t credentials_bytes;
};

/* Reads the file of credentials, too. Errors, *out untouched and `why` in words without the
 * password: TIERCE_E_CONFIG (a file that cannot be read or is invalid, too), -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *text,
                                          char why[TIERCE__RESP_WHY_BYTES]);

/* Accepts a zeroed one. */
void tierce__resp_uri_clear(struct tierce__resp_uri *uri);

/*
 * The file of ?credentials_file=, called by parse: sets the user and password of opts. Lines are
 *
 *     user=NAME           (optional)
 *     password=SECRET
 *
 * Blank lines, and those that begin with '#', are ignored. Everything after the '=' counts. Any
 * other line makes the file invalid, so that no other file can be named whose content would be
 * sent. Errors: as parse.
 */
TIERCE_MUSTUSE int tierce__resp_credentials_read(struct tierce__resp_uri *uri, const char *path,
                                                 char why[TIERCE__RESP_WHY_BYTES]);

#endif
