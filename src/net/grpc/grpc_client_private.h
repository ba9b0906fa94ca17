/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_CLIENT_PRIVATE_H
#define TIERCE_NET_GRPC_CLIENT_PRIVATE_H

#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/list.h"
#include "base/threads/deadlines.h"
#include "net/grpc/grpc_client.h"
#include "net/grpc/grpc_frame.h"
#include "net/resolve.h"
#include "net/tls.h"

#define TIERCE__CLIENT_BUFFER (64u << 10)

struct tierce__grpc_client {
    uint32_t magic;
    char *host, *server_name, *authority;
    uint16_t port;
    uint32_t connection_count, connect_timeout_ms;
    size_t message_bytes_max;
    struct tierce__tls_context *tls; /* or NULL */
    struct tierce__list links;
    struct tierce__deadlines deadlines;
    size_t in_flight;
    struct pollfd *polled; /* one of each link */
    size_t polled_capacity;
    uint8_t in[TIERCE__CLIENT_BUFFER], plain[TIERCE__CLIENT_BUFFER];
};

/* One connection. */
struct tierce__grpc_link {
    struct tierce__list node;
    struct tierce__grpc_client *client;
    int fd; /* -1: none yet */
    enum tierce__grpc_link_state {
        TIERCE__GRPC_LINK_RESOLVING,
        TIERCE__GRPC_LINK_CONNECTING,
        TIERCE__GRPC_LINK_SHAKING, /* TLS */
        TIERCE__GRPC_LINK_READY,
    } state;
    struct tierce__resolve *resolve;
    const struct addrinfo *next;      /* addresses that were not tried */
    struct tierce__deadline deadline; /* of connecting; when it is ready, of an answer to a ping */
    uint64_t received;                /* how often something came */
    int error;                        /* why it could not connect: as tierce__grpc_client_open */
    char why[200];                    /* why it failed, in words, with the address */
    bool is_leaving; /* accepts no more calls; closed when the running ones have ended */
    bool has_failed;
    nghttp2_session *session;
    struct tierce__tls_session *tls;
    struct tierce__list calls;
    size_t in_flight;
    size_t out_begin, out_end; /* of out: not yet written */
    uint8_t out[TIERCE__CLIENT_BUFFER];
};

struct tierce__grpc_client_call {
    struct tierce__list node;
    struct tierce__grpc_link *link;
    int32_t stream;
    struct tierce__deadline deadline;
    uint64_t received; /* as the link's, when it began */
    tierce__grpc_done_fn done;
    void *arg;
    uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES];
    const uint8_t *body;
    size_t bytes, sent; /* sent: the prefix included */
    struct tierce__grpc_reader reader;
    struct tierce__grpc_message message;
    bool has_message, is_broken; /* broken: the data received is not an answer */
    int http_status;
    int64_t status; /* -1: none came */
    char text[256];
};

/* Begins to connect; calls may be started on it at once. A failure is found by poll. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_link_open(struct tierce__grpc_client *client);
/* Goes on connecting, if it can: a name is resolved, or a socket was ready (`events`). */
void tierce__grpc_link_advance(struct tierce__grpc_link *link, short events);

/* Ends its calls with UNAVAILABLE if `done` is to be called. */
void tierce__grpc_link_close(struct tierce__grpc_link *link, bool tell);

/* Writes and reads as much as possible without blocking; records a failure. */
void tierce__grpc_link_write(struct tierce__grpc_link *link);
void tierce__grpc_link_read(struct tierce__grpc_link *link);
bool tierce__grpc_link_wants_write(const struct tierce__grpc_link *link);

/* Nothing came for a call in its time: asks the peer whether it is there. */
void tierce__grpc_link_doubt(struct tierce__grpc_link *link);

/* grpc_link_call.c: its session, and its calls. */
TIERCE_MUSTUSE int tierce__grpc_link_session(struct tierce__grpc_link *link);
void tierce__grpc_link_end_calls(struct tierce__grpc_link *link, bool tell);
TIERCE_MUSTUSE int tierce__grpc_link_start(struct tierce__grpc_link *link,
                                           const struct tierce__grpc_request *request,
                                           tierce__grpc_done_fn done, void *arg);

#endif
