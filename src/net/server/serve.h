/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_H
#define TIERCE_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/grpc/grpc_status.h"

#include <tierce/status.h>

#include "net/tls.h"

/*
 * A server of calls over gRPC (unary, HTTP/2 by nghttp2 on epoll loops) and HTTP/1.1
 * (libmicrohttpd). The routes define the meaning of calls.
 *
 *     static void echo(void *arg, struct tierce__call *call)
 *     {
 *         const struct tierce__call_info *info = tierce__call_info(call);
 *         tierce__call_reply(call, &(struct tierce__reply){
 *             .status = 200, .type = "text/plain", .body = info->body, .bytes = info->body_bytes});
 *     }
 *
 *     rc = tierce__server_start(&server, &(struct tierce__server_opts){...}, why);
 *     ...
 *     tierce__server_stop(server, 5000);
 *
 * Threads: Handlers run on the loop of their connection and must not block there. A handler that
 * must block calls tierce__call_defer once, returns, and is called again on a worker. Every call is
 * replied to exactly once, from any thread. Unknown paths are answered UNIMPLEMENTED or 404, a call
 * whose deadline has passed DEADLINE_EXCEEDED or 504, a call above a limit RESOURCE_EXHAUSTED or
 * 503.
 */

enum tierce__serve_protocol {
    TIERCE__SERVE_GRPC,
    TIERCE__SERVE_HTTP,
};

/* ---- a call ---------------------------------------------------------------------------------- */

struct tierce__call;

struct tierce__call_info {
    enum tierce__serve_protocol protocol;
    const char *method; /* "POST", "GET", ... */
    const char *path;   /* "/package.Service/Method", "/api/startWriteCache" */
    const char *query;  /* after the '?', or "" */
    const void *body;   /* the message, uncompressed; not aligned */
    size_t body_bytes;
    uint64_t deadline_ns;    /* clock.h; TIERCE__DEADLINE_NEVER */
    const char *peer;        /* "127.0.0.1:4711", "[::1]:4711" */
    const char *certificate; /* common name of the client's verified certificate, or NULL */
    bool is_deferred;        /* on a worker: may block */
    bool was_aside;          /* was deferred by tierce__call_defer_aside before */
};

/* [borrow until the reply] */
const struct tierce__call_info *tierce__call_info(const struct tierce__call *call);

/* A header by its lower-case name, or NULL. [borrow until the reply] */
const char *tierce__call_header(const struct tierce__call *call, const char *name);

/* Makes the handler run again on a worker. Call it at most once, as the handler's last action. If
 * the call ends before that, it is dropped and the handler is not called again. */
void tierce__call_defer(struct tierce__call *call);

/* The same, and keeps the handler's state: `state` [transfer] is returned by
 * tierce__call_take_state, or released with the call. Its `bytes` count as held. */
void tierce__call_defer_with(struct tierce__call *call, void *state, size_t bytes,
                             void (*release)(void *state));

/* Returns the kept state, once [transfer]; or NULL. */
void *tierce__call_take_state(struct tierce__call *call);

/* As tierce__call_defer, but on a single thread with its own short queue: for long computations,
 * which would block the workers. The handler may defer the call once more from there. */
void tierce__call_defer_aside(struct tierce__call *call);

/* Returns whether the client no longer waits for the answer: the call was cancelled, the client is
 * gone, or the deadline has passed. The handler must still reply. Thread: any. */
bool tierce__call_is_over(const struct tierce__call *call);

struct tierce__reply_header {
    const char *name, *value;
};

struct tierce__reply {
    uint32_t status;                            /* gRPC: enum tierce__grpc_status, which the server
                                                   maps to HTTP for its own replies; HTTP: 200, 400, ... */
    const char *message;                        /* gRPC: grpc-message, or NULL; any UTF-8 */
    const char *type;                           /* HTTP: content type; NULL: application/json */
    const char *header_name, *header_value;     /* HTTP: one more header, or NULL */
    const struct tierce__reply_header *headers; /* HTTP: and further ones */
    size_t header_count;
    const void *body;
    size_t bytes;
    void (*release)(void *body); /* NULL: the body is copied; else [transfer], called when it was
                                    sent or dropped, on any thread */
};

/* Sends the only answer. [borrow] reply for the call. The call must not be used afterwards. Thread:
 * any. */
void tierce__call_reply(struct tierce__call *call, const struct tierce__reply *reply);

/* HTTP only: a plain text reply; and a 401 reply that names the authentication scheme
 * ("Bearer"). */
void tierce__call_reply_text(struct tierce__call *call, uint32_t status, const char *text);
void tierce__call_reply_unknown(struct tierce__call *call, const char *challenge, const char *text);

/* HTTP only: 200 with a body of base/alloc.h [transfer], JSON if type is NULL; 500 if the body is
 * NULL (out of memory). */
void tierce__call_reply_heap(struct tierce__call *call, const char *type, char *body, size_t bytes);

/*
 * HTTP only: replies with an endless stream of events. It replaces the call; NULL (no memory, or a
 * gRPC call): the handler must reply to the call. tierce__stream_write copies; it returns false if
 * the client is gone or too slow (more than the server's stream_buffer_max is queued), or the
 * server stops: then only tierce__stream_end may follow. A stream may outlive its server. Thread:
 * any, one at a time.
 */
struct tierce__http_stream;
struct tierce__http_stream *tierce__call_stream(struct tierce__call *call, const char *type);
bool tierce__stream_write(struct tierce__http_stream *stream, const void *bytes, size_t count);

/*
 * The same for a writer that waits for a slow client: it writes at most tierce__stream_room bytes.
 * If there is less room than `wanted`, `drained` is called once, as soon as half of the buffer is
 * free or the client is gone, on any thread and without locks. `arg` must outlive the server.
 */
struct tierce__stream_opts {
    uint32_t status; /* 0: 200 */
    const char *type;
    const struct tierce__reply_header *headers; /* [borrow for the call] */
    size_t header_count;
    void (*drained)(void *arg); /* or NULL */
    void *arg;
};
struct tierce__http_stream *tierce__call_stream_with(struct tierce__call *call,
                                                     const struct tierce__stream_opts *opts);
size_t tierce__stream_room(struct tierce__http_stream *stream, size_t wanted);
void tierce__stream_end(struct tierce__http_stream *stream);

/* ---- a server -------------------------------------------------------------------------------- */

typedef void (*tierce__serve_fn)(void *arg, struct tierce__call *call);

struct tierce__route {
    const char *path;   /* whole, or up to a final '*'. [borrow until stop] */
    const char *method; /* HTTP: "POST", "GET"; NULL: any */
    tierce__serve_fn serve;
    void *arg;
};

/* Several listeners may share a server; routes may differ between them. */
struct tierce__listener {
    enum tierce__serve_protocol protocol;
    const char *host;       /* "127.0.0.1", "::", a name */
    uint16_t port;          /* 0: any; see tierce__server_port */
    uint32_t threads;       /* HTTP: 0: as many as the server's loops */
    const char *name;       /* prefix of the error message if it cannot start; or NULL */
    struct tierce__tls tls; /* [borrow until stop] the names */
    const struct tierce__route *routes; /* [borrow until stop] */
    size_t route_count;
};

struct tierce__server_opts {
    size_t size;
    const struct tierce__listener *listeners;
    size_t listener_count;
    uint32_t loops;                   /* of gRPC, for all listeners together; 0: one a processor */
    uint32_t workers;                 /* 0: 4 */
    uint32_t queue_max;               /* calls that are queued for a worker; 0: 4096 */
    size_t message_bytes_max;         /* of a request, also uncompressed; 0: 64 MiB */
    size_t held_bytes_max;            /* of all requests and answers in memory; 0: 1 GiB */
    size_t stream_buffer_max;         /* 0: 4 MiB */
    uint32_t connections_max;         /* of each listener; 0: 4096 */
    uint32_t connections_per_address; /* of those, from one address; 0: no separate limit */
    uint32_t streams_max;             /* gRPC calls at a time on one connection; 0: 4096 */
    /* The deadline of an HTTP call, from its request line on; and the time limits for a client to
     * send a request line, to send a gRPC request, to take an answer, and to begin a gRPC call
     * while three quarters of a listener's connections are used; 0: 60 s */
    uint32_t transfer_ms;
    const void *descriptors; /* FileDescriptorSet for gRPC reflection, or NULL. [borrow] */
    size_t descriptor_bytes;
    /* Called on a loop by gRPC's health service with the service name ("" for the whole server);
     * NULL: always true. */
    bool (*is_serving)(void *arg, const char *service);
    void *is_serving_arg;
};

struct tierce__server;

/*
 * Starts to listen and serve. Errors, *out untouched and `why` in words: negative errno (a port in
 * use, a file), TIERCE_E_CONFIG (a certificate), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__server_start(struct tierce__server **out,
                                        const struct tierce__server_opts *opts, char why[256]);

/* The port of a listener by its index. */
uint16_t tierce__server_port(const struct tierce__server *server, size_t listener);

/* Reads the TLS files again for new connections. Errors: as start; then all previous certificates
 * stay. Thread: one at a time. */
TIERCE_MUSTUSE int tierce__server_reload(struct tierce__server *server, char why[256]);

/* The numbers of calls queued for a worker, and for the thread of tierce__call_defer_aside. Thread:
 * any. */
void tierce__server_waiting(const struct tierce__server *server, uint32_t *workers,
                            uint32_t *aside);

/* Rejects new calls, waits at most drain_ms for running ones, closes and frees. Later calls are
 * answered UNAVAILABLE or 503; their handlers' replies are awaited and dropped. A handler must not
 * call this. */
void tierce__server_stop(struct tierce__server *server, uint32_t drain_ms);

#endif
