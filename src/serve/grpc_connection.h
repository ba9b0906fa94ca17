/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_GRPC_CONNECTION_H
#define TIERCE_SERVE_GRPC_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/call_private.h"
#include "serve/routes.h"

/*
 * The server's side of one gRPC connection: bytes in, calls out of them, bytes out. It knows no
 * socket and no TLS. Thread: the owner of the loop; replies may come from any.
 */

struct tierce__grpc_connection;

struct tierce__grpc_connection_opts {
    struct tierce__shared *shared;
    struct tierce__loop *loop;
    const struct tierce__routes *routes;
    const char *peer;
    const char *certificate; /* or NULL */
    /* There is something to take that did not come of the caller's own feed. */
    void (*changed)(void *arg);
    void *arg;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_connection_create(struct tierce__grpc_connection **out,
                                                  const struct tierce__grpc_connection_opts *opts);

/* Its calls are over; their handlers may still reply. NULL is accepted. */
void tierce__grpc_connection_destroy(struct tierce__grpc_connection *connection);

/* What the client has sent. Errors: TIERCE_E_FORMAT, TIERCE_E_LIMIT, -ENOMEM: to be closed once
 * what it wants to say has been taken. */
TIERCE_MUSTUSE int tierce__grpc_connection_feed(struct tierce__grpc_connection *connection,
                                                const void *bytes, size_t count);

/* Up to `capacity` bytes for the client; 0: nothing now. */
size_t tierce__grpc_connection_take(struct tierce__grpc_connection *connection, void *bytes,
                                    size_t capacity);

/* Whether it has neither anything to send nor anything to wait for. */
bool tierce__grpc_connection_is_done(const struct tierce__grpc_connection *connection);

/* Whether the client has introduced itself (its preface and settings). */
bool tierce__grpc_connection_is_open(const struct tierce__grpc_connection *connection);

/* Tells the client to make no more calls here; done once those that run have ended. */
void tierce__grpc_connection_drain(struct tierce__grpc_connection *connection);

/* Answers every call UNAVAILABLE. */
void tierce__grpc_connection_give_up(struct tierce__grpc_connection *connection);

#endif
