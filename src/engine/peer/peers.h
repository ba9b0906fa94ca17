/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PEERS_H
#define TIERCE_ENGINE_PEERS_H

#include "engine/observe/reporter.h"
#include "engine/peer/peer_server.h"
#include "store/remote/peers/peers_table.h"

/*
 * The part of an engine that has a peers:// URL in remote.urls: it serves its own chunks to the
 * other engines of the group (peer_server.h), and its connector reads theirs
 * (store/remote/peers).
 *
 *     rc = tierce__peers_create(&peers, config, tls, why); // *out NULL: no such URL
 *     ... the tiers are opened; the connector takes tierce__peers_self_of(peers) ...
 *     rc = tierce__peers_start(peers, engine, why);
 *     ... a reporter with url, transfer_address and joined of tierce__peers_reporter ...
 *     tierce__peers_stop(peers, deadline_ns);              // the reporter has stopped
 *     tierce__peers_destroy(peers);                        // the tiers are closed
 *
 * The functions accept NULL. Thread: one; `joined` on the reporter's.
 */

struct tierce__peers;
struct tierce__peers_self;

/* [in] tls: NULL: without. [borrow until destroy]
 * Errors: -ENOMEM, TIERCE_E_CONFIG (peers.listen, several such URLs), `why` set. */
TIERCE_MUSTUSE int tierce__peers_create(struct tierce__peers **out,
                                        const struct tierce_config *config,
                                        struct tierce__peer_tls *tls,
                                        char why[TIERCE_CONFIG_ERROR_BYTES]);
void tierce__peers_destroy(struct tierce__peers *peers);

/* NULL without peers. [borrow until destroy] */
struct tierce__peers_self *tierce__peers_self_of(struct tierce__peers *peers);

/*
 * Starts the server, at peers.listen or else at a free port of the address from which a manager is
 * reached. If no such address is found, this is logged, and the reporter searches for it again.
 * Errors: TIERCE_E_CONFIG (peers.listen or the certificate cannot be used), -ENOMEM; `why` set.
 */
TIERCE_MUSTUSE int tierce__peers_start(struct tierce__peers *peers, struct tierce_engine *engine,
                                       char why[TIERCE_CONFIG_ERROR_BYTES]);
/* Sets transfer_address or find_address, uses_tls, joined, load, arg, and url if it is empty.
 * [borrow until destroy] */
void tierce__peers_reporter(struct tierce__peers *peers, struct tierce__reporter_opts *opts);
/* Blocks until the deadline, and no longer than a second. A read from a disk that hangs is awaited
 * until its own deadline, which is at most 10 s after it began. */
void tierce__peers_stop(struct tierce__peers *peers, uint64_t deadline_ns);

struct tierce__peers_stats {
    struct tierce__peers_table_stats read;   /* from other engines */
    struct tierce__transfer_stats transfers; /* to other engines; 0 while it serves nobody */
    struct tierce__peer_keeper_stats served;
};
/* False: no peers. Not while stop runs. Thread: any. */
bool tierce__peers_stats(struct tierce__peers *peers, struct tierce__peers_stats *out);

/* NULL: it serves nobody yet. [borrow until stop] Thread: any. */
struct tierce__peer_server *tierce__peers_server(struct tierce__peers *peers);

#endif
