/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_CLIENT_H
#define TIERCE_NET_GRPC_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <poll.h>

#include <tierce/status.h>

#include "net/grpc/grpc_status.h"

/*
 * A client of unary gRPC calls: one server, one or several connections, many calls in flight, all
 * driven by the thread that calls it.
 *
 *     struct tierce__grpc_client_opts opts = {.size = sizeof(opts), .host = host, .port = port};
 *     rc = tierce__grpc_client_open(&client, &opts, why);
 *     struct tierce__grpc_request request = {
 *         .path = "/package.Service/Method", .body = bytes, .bytes = count, .timeout_ms = 1000};
 *     rc = tierce__grpc_client_unary(client, &request, &answer);
 *     if (rc == 0 && answer.status == TIERCE__GRPC_OK)
 *         ...
 *     tierce__grpc_answer_fini(&answer);
 *
 * Several calls in flight: call tierce__grpc_client_start repeatedly, then tierce__grpc_client_poll
 * until it returns 0; a `done` callback may start the next call.
 *
 * A thread that waits for other things too, or for several clients, calls
 * tierce__grpc_client_wants, poll, and tierce__grpc_client_serve instead of
 * tierce__grpc_client_poll.
 *
 * If a connection is lost, its calls end with UNAVAILABLE. The next start begins another one; calls
 * wait for it until their timeout. A connection over which nothing comes during a call that is late
 * must answer a ping within connect_timeout_ms; otherwise later calls get another one. Nothing
 * blocks but open (unless it is lazy), poll and unary. Thread: one at a time.
 */

struct tierce__grpc_client_opts {
    size_t size;
    const char *host;
    uint16_t port;
    uint32_t connections;        /* 0: 1 */
    uint32_t connect_timeout_ms; /* 0: 5000 */
    size_t message_bytes_max;    /* of an answer; 0: 64 MiB */
    bool tls;
    const char *ca_file; /* PEM, or NULL for the system's */
    const char *certificate, *key;
    const char *server_name; /* name expected in its certificate; NULL: host */
    bool lazy;               /* open does not connect */
};

struct tierce__grpc_request {
    const char *path;
    const void *body; /* [borrow until done] */
    size_t bytes;
    uint32_t timeout_ms; /* also sent to the server; 0: none */
    /* One more header (metadata), or NULL. [borrow until done] */
    const char *header_name, *header_value;
};

struct tierce__grpc_answer {
    uint32_t status;   /* enum tierce__grpc_status */
    char message[256]; /* decoded, cut */
    void *body;        /* [transfer]: tierce__grpc_answer_fini */
    size_t bytes;
    bool unsent; /* the server has not seen the call, for certain */
};

struct tierce__grpc_client;

/* Connects all connections, unless it is lazy. Errors, *out untouched and `why` in words: negative
 * errno, TIERCE_E_CONFIG (TLS files), TIERCE_E_DEADLINE, TIERCE_E_REFUSED (the server does not
 * speak TLS and HTTP/2, or a certificate is invalid). */
TIERCE_MUSTUSE int tierce__grpc_client_open(struct tierce__grpc_client **out,
                                            const struct tierce__grpc_client_opts *opts,
                                            char why[256]);

/* Calls in flight are dropped without their `done`. NULL is accepted. */
void tierce__grpc_client_close(struct tierce__grpc_client *client);

/* The callback owns `answer` during the call, and may take the body by setting it to NULL. It may
 * start calls, but must neither poll nor close. */
typedef void (*tierce__grpc_done_fn)(void *arg, struct tierce__grpc_answer *answer);

/* Starts a call on the connection with the fewest calls in flight. `done` is called exactly once,
 * never by start. Errors, without `done`: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_client_start(struct tierce__grpc_client *client,
                                             const struct tierce__grpc_request *request,
                                             tierce__grpc_done_fn done, void *arg);

/* Sends and receives until progress was made or `timeout_ms` has passed. Returns the number of
 * calls in flight. */
size_t tierce__grpc_client_poll(struct tierce__grpc_client *client, uint32_t timeout_ms);

/*
 * The events that poll waits for: fds[0 .. returned), and *until_ns, which is lowered if something
 * is due earlier. Neither sends nor calls `done`. `room`: at least the connections, and one more
 * for each that accepts no more calls and still has some; the last of these have to wait.
 */
size_t tierce__grpc_client_wants(struct tierce__grpc_client *client, struct pollfd *fds,
                                 size_t room, uint64_t *until_ns);
/* After poll, with the entries of wants. Receives, ends calls that are late, sends. */
void tierce__grpc_client_serve(struct tierce__grpc_client *client, const struct pollfd *fds,
                               size_t count);

/* Connections that are established. */
size_t tierce__grpc_client_connected(const struct tierce__grpc_client *client);

/* Makes one complete call; other calls in flight continue meanwhile. 0: *answer is filled, with any
 * status. Errors, *answer untouched: as start. */
TIERCE_MUSTUSE int tierce__grpc_client_unary(struct tierce__grpc_client *client,
                                             const struct tierce__grpc_request *request,
                                             struct tierce__grpc_answer *answer);

void tierce__grpc_answer_fini(struct tierce__grpc_answer *answer);

#endif
