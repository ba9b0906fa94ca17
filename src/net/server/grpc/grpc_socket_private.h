/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_SOCKET_PRIVATE_H
#define TIERCE_NET_GRPC_SOCKET_PRIVATE_H

#include "net/server/grpc/grpc_socket.h"
#include "net/listen.h"

/* The shared state of a listener's sockets. */
struct tierce__grpc_origin {
    struct tierce__shared *shared;
    const struct tierce__routes *routes;
    struct tierce__tls_context *tls;     /* or NULL */
    struct tierce__addresses *addresses; /* or NULL */
    uint32_t connections_max;
    _Atomic uint32_t sockets; /* relaxed: for the limit */
};

/* A socket on its way to its loop; counted by the loop, by its origin and by its address. */
struct tierce__grpc_arrival {
    struct tierce__task task;
    struct tierce__grpc_origin *origin;
    struct tierce__poll_loop *loop;
    int fd;
    struct tierce__address address;
    char peer[TIERCE__PEER_BYTES];
};

/* Takes it over. [transfer] Owner only. */
void tierce__grpc_socket_open(struct tierce__grpc_arrival *arrival);

#endif
