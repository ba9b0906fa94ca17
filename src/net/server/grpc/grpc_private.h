/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_PRIVATE_H
#define TIERCE_NET_GRPC_PRIVATE_H

#include <nghttp2/nghttp2.h>

#include "net/server/grpc/grpc_connection.h"
#include "net/grpc/grpc_frame.h"
#include "net/server/grpc/grpc_talk.h"

struct tierce__grpc_connection {
    struct tierce__grpc_connection_opts opts;
    nghttp2_session *session;
    struct tierce__list calls;
    uint64_t quiet_since_ns; /* when the last call ended */
    const uint8_t *rest; /* the session's last output, valid until the next request for output */
    size_t rest_bytes;
    struct tierce__deadline drain; /* the last GOAWAY is sent even if the PING is not answered */
    bool is_feeding, is_open, is_draining;
};

/* The state of a call's answer. */
enum tierce__grpc_phase {
    TIERCE__GRPC_RECEIVING, /* the request is incomplete */
    TIERCE__GRPC_SERVING,   /* with the handler */
    TIERCE__GRPC_TALKING,   /* a stream of messages in both directions */
    TIERCE__GRPC_ANSWERED,  /* all was passed to the session, or will be by read_body */
};

struct tierce__grpc_call {
    struct tierce__call base;
    struct tierce__grpc_connection *connection; /* owner only; NULL once the stream is closed */
    struct tierce__list node;                   /* among the connection's */
    int32_t stream;
    enum tierce__grpc_phase phase;
    bool request_ended;
    bool is_too_long; /* its headers */
    bool inflates;    /* compressed messages are allowed */
    struct tierce__deadline deadline;
    struct tierce__grpc_reader reader;
    struct tierce__grpc_message request;
    bool has_request;

    struct tierce__loop *loop;
    struct tierce__task deliver; /* for a reply from another thread */
    uint32_t status;
    char *message; /* grpc-message, encoded; or NULL */
    uint8_t prefix[TIERCE__GRPC_PREFIX_BYTES];
    void *body;
    size_t body_bytes, body_capacity; /* capacity: of a talk's */
    size_t sent;                      /* the prefix of a unary answer included */
    void (*release)(void *body);
    size_t held; /* of the server's limit, for the body */

    const struct tierce__grpc_talk *talk; /* NULL: unary */
    bool has_headers;                     /* of the answer */
    bool is_waiting;                      /* read_body had no data */
};

/* grpc_call.c, called by the session's callbacks (grpc_connection.c). */
struct tierce__grpc_call *tierce__grpc_call_begin(struct tierce__grpc_connection *connection,
                                                  int32_t stream);
void tierce__grpc_call_header(struct tierce__grpc_call *call, const char *name, size_t name_bytes,
                              const char *value, size_t value_bytes);
void tierce__grpc_call_headers_end(struct tierce__grpc_call *call);
void tierce__grpc_call_data(struct tierce__grpc_call *call, const uint8_t *data, size_t count);
void tierce__grpc_call_request_end(struct tierce__grpc_call *call);
void tierce__grpc_call_closed(struct tierce__grpc_call *call);

/* Limits the time in which the client must send the rest of its request or take the answer, because
 * it holds shared memory meanwhile. -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_call_hurry(struct tierce__grpc_call *call);

/* grpc_reply.c */
void tierce__grpc_call_refuse(struct tierce__grpc_call *call, uint32_t status, const char *message);
void tierce__grpc_call_refuse_http(struct tierce__grpc_call *call, const char *status);
void tierce__grpc_call_reply(struct tierce__call *base, const struct tierce__reply *reply);
void tierce__grpc_call_free_reply(struct tierce__grpc_call *call);
/* Sends the data appended to the body of a talk, and its end if the client has ended. */
void tierce__grpc_call_say(struct tierce__grpc_call *call);

/* Reports that the session has output that feed did not cause. */
void tierce__grpc_connection_changed(struct tierce__grpc_connection *connection);

/*
 * Decompresses a message (gzip or zlib) in place. Errors, the message unchanged: TIERCE_E_FORMAT,
 * TIERCE_E_LIMIT (the result exceeds bytes_max), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__grpc_message_inflate(struct tierce__grpc_message *message,
                                                size_t bytes_max);

#endif
