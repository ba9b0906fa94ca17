/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PEER_SERVER_H
#define TIERCE_ENGINE_PEER_SERVER_H

#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"

/*
 * The transfer server through which other engines read this engine's chunks (peer_keeper.h).
 *
 *     rc = tierce__peer_server_start(&server, engine, &opts, why);
 *     rc = tierce__peer_server_listen(server, host, port, why); // at another network link too
 *     tierce__peer_server_set_secret(server, secret);     // of the group, from the manager
 *     tierce__peer_server_address(server, address);       // for the others
 *     tierce__peer_server_stop(server, deadline_ns);      // before the engine's tiers end
 *
 * A client shows a secret as the token of its greeting, and may read, and nothing else. Without a
 * secret, the server rejects all clients. So an open port alone gives nothing. When the secret
 * changes, the previous one is accepted for another TIERCE__PEER_OLD_SECRET_MS, because the other
 * engines receive the new one at other times. Without TLS (peer_tls.h), nothing is encrypted.
 *
 * Thread: any; start and stop block.
 */

#define TIERCE__PEER_OLD_SECRET_MS 60000u /* as peers_self.h keeps it */
#define TIERCE__PEER_SECRET_MAX    128u
#define TIERCE__PEER_LISTENS_MAX   4u
#define TIERCE__PEER_ADDRESS_BYTES 128u /* of all; as the directory takes it */

struct tierce__peer_server;

struct tierce__peer_server_opts {
    size_t size;                  /* sizeof(struct tierce__peer_server_opts) */
    const char *host;             /* an address of this machine; [borrow for the call] */
    uint16_t port;                /* 0: a free one */
    struct tierce__peer_tls *tls; /* NULL: without TLS. [borrow until stop] */
    struct tierce__peer_keeper_opts keeper;
    uint32_t request_ms; /* a client must read a MiB in it, and greet; 0: 10000 */
};

/* Errors: TIERCE_E_ARGUMENT (no address), TIERCE_E_CONFIG (the certificate), negative errno (the
 * port), -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__peer_server_start(struct tierce__peer_server **out,
                                             struct tierce_engine *engine,
                                             const struct tierce__peer_server_opts *opts,
                                             char why[256]);
/* Serves at another address too. Before the first secret. Errors: as start, and TIERCE_E_LIMIT (the
 * addresses are too many, or too long together); the server serves as before then. */
TIERCE_MUSTUSE int tierce__peer_server_listen(struct tierce__peer_server *server, const char *host,
                                              uint16_t port, char why[256]);
/* Ends all connections; a request in progress may end until the deadline. NULL is accepted. */
void tierce__peer_server_stop(struct tierce__peer_server *server, uint64_t deadline_ns);

/* "HOST:PORT", "[HOST]:PORT" for IPv6; several are separated by commas. */
void tierce__peer_server_address(const struct tierce__peer_server *server,
                                 char out[TIERCE__PEER_ADDRESS_BYTES]);

/* Errors: TIERCE_E_ARGUMENT (empty, or longer than TIERCE__PEER_SECRET_MAX). */
TIERCE_MUSTUSE int tierce__peer_server_set_secret(struct tierce__peer_server *server,
                                                  const char *secret);

void tierce__peer_server_stats(struct tierce__peer_server *server,
                               struct tierce__transfer_stats *transfers,
                               struct tierce__peer_keeper_stats *keeper);

#endif
