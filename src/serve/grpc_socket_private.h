/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_GRPC_SOCKET_PRIVATE_H
#define TIERCE_SERVE_GRPC_SOCKET_PRIVATE_H

#include "serve/grpc_socket.h"

/* What the sockets of a listener have in common. */
struct tierce__grpc_origin {
    struct tierce__shared *shared;
    const struct tierce__routes *routes;
    struct tierce__tls_context *tls; /* or NULL */
    _Atomic uint32_t sockets;        /* relaxed: for the limit */
};

/* Takes the descriptor over; counted already, by the loop and by its origin. Owner only. */
void tierce__grpc_socket_open(struct tierce__uv_loop *loop, struct tierce__grpc_origin *origin,
                              int fd, const char *peer);

#endif
