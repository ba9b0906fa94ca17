/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HTTP_PRIVATE_H
#define TIERCE_NET_HTTP_PRIVATE_H

#include <microhttpd.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "net/server/http/http.h"

struct tierce__http {
    struct tierce__shared *shared;
    struct tierce__routes routes;
    struct MHD_Daemon *daemon;
    uint16_t port;
    int fd;                              /* owned by us again after quiesce */
    _Atomic int spare_fd;                /* listen.h; -1: none, or a thread uses it */
    atomic_bool is_short;                /* of descriptors: an idle connection must be closed */
    bool is_loopback;                    /* listens on loopback only */
    struct tierce__addresses *addresses; /* or NULL: no limit */
    /* The certificates for starting libmicrohttpd; each connection uses `credentials` instead. */
    char *certificate, *key, *client_ca;
    char priorities[48];
    struct tierce__http_credentials *credentials; /* under the lock; NULL: no TLS */

    struct tierce__lock lock;
    struct tierce__cond changed;
    struct tierce__list calls; /* by deadline: all have the same time */
    struct tierce__list
        late; /* answered; by the deadline for reading the answer, which is equally long */
    struct tierce__list past; /* calls that missed their deadline and are aborted; streams */
    struct tierce__list idle; /* connections without a request, by deadline */
    struct tierce__list streams;
    uint32_t call_count; /* on the first three */
    uint32_t connection_count, connections_max;
    uint32_t excess;  /* connections beyond that limit, for which others must be closed */
    uint64_t look_ns; /* time of the next check for closed connections */
    bool is_draining, is_ending;
    pthread_t keeper;
    bool has_keeper;
};

/* Certificate, key and authority as gnutls has them. A counted handle. */
struct tierce__http_credentials;

struct tierce__http_connection {
    struct tierce__list node; /* of http->idle, under its lock */
    uint64_t deadline_ns;
    int fd;
    bool is_counted; /* by its address */
    struct tierce__address address;
    struct tierce__http_credentials *credentials; /* of its session */
    bool is_checked, is_good;                     /* whether the client was checked, once */
    char name[256];                               /* its certificate's, or "" */
};

/* The state of a call between libmicrohttpd's thread and the replying thread. */
enum tierce__http_state {
    TIERCE__HTTP_RUNNING,   /* libmicrohttpd's thread will check for the answer */
    TIERCE__HTTP_SUSPENDED, /* the answering thread resumes the connection */
    TIERCE__HTTP_ANSWERED,
};

struct tierce__http_call {
    struct tierce__call base;
    struct tierce__http *http;
    struct MHD_Connection *connection; /* valid while it is on a list of http, or suspended */
    struct tierce__list node;          /* of http, under its lock */
    uint64_t taken_by_ns;              /* on http->late */
    bool came_too_late;                /* the server ends: on no list, will not be served */
    bool is_stream;                    /* its answer is a stream */
    int fd;
    bool has_begun; /* its headers are complete */
    bool was_dispatched;
    bool is_too_large;
    char *uri; /* path, NUL, query */
    char *body;
    size_t bytes, capacity, discarded;
    atomic_bool is_claimed;                /* acq_rel: the thread that sets it answers */
    _Atomic enum tierce__http_state state; /* acq_rel: hands the answer over */
    struct MHD_Response *response;
    unsigned status;
    size_t held; /* of the server's limit, for the answer */
};

/* http_call.c */
void *tierce__http_call_begin(void *http, const char *uri, struct MHD_Connection *connection);
enum MHD_Result tierce__http_call_access(void *http, struct MHD_Connection *connection,
                                         const char *url, const char *method, const char *version,
                                         const char *data, size_t *count, void **context);
void tierce__http_call_completed(void *http, struct MHD_Connection *connection, void **context,
                                 enum MHD_RequestTerminationCode code);
/* A response of the server itself, {"error": why}; NULL: no memory. */
struct MHD_Response *tierce__http_error(const char *why);
/* Returns whether the client has closed its side. Called under the lock of http, with the call held
 * or its connection suspended. */
bool tierce__http_has_left(int fd);
/* Sets the answer unless one is set. [transfer] response; NULL closes the connection. */
void tierce__http_settle(struct tierce__http_call *call, unsigned status,
                         struct MHD_Response *response);

/* http_origin.c: returns why a browser must not make this call, whose headers are complete; or
 * NULL. */
const char *tierce__http_refuses(const struct tierce__http_call *call);

/* http_stream.c: ends every stream. */
void tierce__http_streams_end(struct tierce__http *http);

/* http_connection.c */
void tierce__http_connection_notify(void *http, struct MHD_Connection *connection, void **context,
                                    enum MHD_ConnectionNotificationCode code);
/* libmicrohttpd's log. Drops the messages. A message may mean that no descriptor is left for a
 * connection; that connection is then closed. */
void tierce__http_connection_log(void *http, const char *format, va_list values);
/* A request begins or ends. Under the lock of http. */
void tierce__http_connection_has_request(struct MHD_Connection *connection);
void tierce__http_connection_had_request(struct tierce__http *http,
                                         struct MHD_Connection *connection);

/* http_tls.c */
/* Reads and checks the files. Errors: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__http_tls_read(struct tierce__http *http, const struct tierce__tls *files,
                                         char why[256]);
void tierce__http_tls_fini(struct tierce__http *http);
/* Makes the coming handshake use the current credentials. */
void tierce__http_tls_begin(struct tierce__http *http, struct tierce__http_connection *c,
                            struct MHD_Connection *connection);
/* Returns whether the client may be served; *name is the name in its certificate, or NULL. */
bool tierce__http_tls_accepts(const struct tierce__http *http, struct MHD_Connection *connection,
                              const char **name);

#endif
