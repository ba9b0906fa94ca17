/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_SOCKET_H
#define TIERCE_NET_GRPC_SOCKET_H

#include "net/server/addresses.h"
#include "net/server/call_private.h"
#include "net/server/poll_door.h"
#include "net/server/routes.h"
#include "net/tls.h"

/* gRPC connections on sockets of epoll loops. */

struct tierce__grpc_listener;

struct tierce__grpc_listener_opts {
    struct tierce__shared *shared;
    struct tierce__poll_loop *const *loops; /* the first one accepts */
    size_t loop_count;
    const struct tierce__listener *listener;
    uint32_t connections_max;
    struct tierce__addresses *addresses; /* [borrow until destroy]; NULL: no limit */
};

/* Errors: negative errno, TIERCE_E_CONFIG; `why` in words. */
TIERCE_MUSTUSE int tierce__grpc_listener_start(struct tierce__grpc_listener **out,
                                               const struct tierce__grpc_listener_opts *opts,
                                               char why[256]);
uint16_t tierce__grpc_listener_port(const struct tierce__grpc_listener *listener);

/* Installs certificates for new connections; `fresh` receives the previous ones. */
void tierce__grpc_listener_exchange(struct tierce__grpc_listener *listener,
                                    struct tierce__tls_context *fresh);

/* Stops accepting; returns when that is done. */
void tierce__grpc_listener_close(struct tierce__grpc_listener *listener);

/* Once its loops have ended. */
void tierce__grpc_listener_destroy(struct tierce__grpc_listener *listener);

/* Asks every connection of a loop to end its calls, or to abort them. Not on the loop. */
void tierce__grpc_sockets_drain(struct tierce__poll_loop *loop);
void tierce__grpc_sockets_give_up(struct tierce__poll_loop *loop);

#endif
