/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_CONNECTION_H
#define TIERCE_NET_GRPC_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/server/call_private.h"
#include "net/server/routes.h"

/*
 * The server's side of one gRPC connection: turns received bytes into calls and replies into bytes.
 * Independent of sockets and TLS. Thread: the owner of the loop; replies may come from any thread.
 */

struct tierce__grpc_connection;

struct tierce__grpc_connection_opts {
    struct tierce__shared *shared;
    struct tierce__loop *loop;
    const struct tierce__routes *routes;
    const char *peer;
    const char *certificate; /* or NULL */
    /* Called when output is available that the caller's own feed did not cause. */
    void (*changed)(void *arg);
    void *arg;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_connection_create(struct tierce__grpc_connection **out,
                                                  const struct tierce__grpc_connection_opts *opts);

/* Ends its calls; their handlers may still reply. NULL is accepted. */
void tierce__grpc_connection_destroy(struct tierce__grpc_connection *connection);

/* Feeds bytes from the client. Errors: TIERCE_E_FORMAT, TIERCE_E_LIMIT, -ENOMEM; then send the
 * remaining output and close the connection. */
TIERCE_MUSTUSE int tierce__grpc_connection_feed(struct tierce__grpc_connection *connection,
                                                const void *bytes, size_t count);

/* Takes up to `capacity` bytes of output for the client; 0: none now. */
size_t tierce__grpc_connection_take(struct tierce__grpc_connection *connection, void *bytes,
                                    size_t capacity);

/* Returns whether it has no output and no running calls. */
bool tierce__grpc_connection_is_done(const struct tierce__grpc_connection *connection);

/* Returns whether the client has sent its preface and settings. */
bool tierce__grpc_connection_is_open(const struct tierce__grpc_connection *connection);

/* The time since the client had a call here, or since the connection began; 0: it has one. */
uint64_t tierce__grpc_connection_quiet_ns(const struct tierce__grpc_connection *connection);

/* Asks the client to start no more calls here; the connection is done when the running ones have
 * ended. */
void tierce__grpc_connection_drain(struct tierce__grpc_connection *connection);

/* Answers every call UNAVAILABLE. */
void tierce__grpc_connection_give_up(struct tierce__grpc_connection *connection);

#endif
