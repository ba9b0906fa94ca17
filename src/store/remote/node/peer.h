/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_PEER_H
#define TIERCE_CONNECTOR_PEER_H

#include "base/text/url.h"
#include "net/channel.h"
#include "store/remote/links.h"

/*
 * A link's connection to its server: opened on demand, closed when it is out of step, and opened
 * again later. Every failure is a status of connector.h, is described in `why`, and closes the
 * connection.
 *
 * Thread: one at a time for each.
 */

struct tierce__peer_place {
    char host[256]; /* or the path of a Unix socket */
    uint16_t port;
    struct tierce__tls_context *tls; /* NULL: without TLS. [borrow] */
};

/* The server address in a URL: one host, or a path if the scheme ends in "+unix"; no user. `port`
 * is the default; 0: the URL must name a port. Errors: TIERCE_E_CONFIG. */
TIERCE_MUSTUSE int tierce__peer_place_parse(struct tierce__peer_place *out,
                                            const struct tierce__url *url, uint16_t port,
                                            char why[TIERCE__CONNECTOR_WHY_BYTES]);

struct tierce__peer {
    const struct tierce__peer_place *place; /* [borrow] */
    struct tierce__channel channel;
    uint64_t connects;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

void tierce__peer_init(struct tierce__peer *peer, const struct tierce__peer_place *place);
void tierce__peer_close(struct tierce__peer *peer);

bool tierce__peer_is_connected(const struct tierce__peer *peer);
struct tierce__link_state tierce__peer_state(const struct tierce__peer *peer);

/* Before a request: connects, if there is no connection on which nothing is awaited. */
TIERCE_MUSTUSE int tierce__peer_begin(struct tierce__peer *peer, uint64_t deadline_ns);

/* As the calls of net/channel.h. */
TIERCE_MUSTUSE int tierce__peer_send(struct tierce__peer *peer, struct iovec *pieces, int count,
                                     uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__peer_receive(struct tierce__peer *peer, struct iovec *pieces, int count,
                                        size_t least, size_t *got, uint64_t deadline_ns);

/* The server sent an invalid answer: closes the connection, because later answers could no longer
 * be matched. Returns TIERCE_E_FORMAT. */
int tierce__peer_misunderstood(struct tierce__peer *peer, const char *what);

#endif
