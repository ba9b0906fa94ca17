/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_HTTP_PRIVATE_H
#define TIERCE_SERVE_HTTP_PRIVATE_H

#include <microhttpd.h>

#include "serve/http.h"

struct tierce__http {
    struct tierce__shared *shared;
    struct tierce__routes routes;
    struct MHD_Daemon *daemon;
    uint16_t port;
    int fd;                              /* after quiesce it is ours again */
    bool is_loopback;                    /* it listens there only */
    struct tierce__addresses *addresses; /* or NULL: no limit */
    /* What libmicrohttpd is started with; each connection is given `credentials` instead. */
    char *certificate, *key, *client_ca;
    char priorities[48];
    struct tierce__http_credentials *credentials; /* under the lock; NULL: no TLS */

    struct tierce__lock lock;
    struct tierce__cond changed;
    struct tierce__list calls; /* by deadline: all have the same time */
    struct tierce__list late;  /* answered, by their time to take the answer: as long again */
    struct tierce__list past;  /* those that did not, and are cut off; streams */
    struct tierce__list idle;  /* connections without a request, by deadline */
    struct tierce__list streams;
    uint32_t call_count; /* on the first three */
    uint32_t connection_count, connections_max;
    uint32_t excess;  /* connections that came beyond that, for which others have to give way */
    uint64_t look_ns; /* when those that left are looked for again */
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
    bool is_checked, is_good;                     /* what was found out about the client, once */
    char name[256];                               /* its certificate's, or "" */
};

/* Where a call stands between libmicrohttpd's thread and the one that replies. */
enum tierce__http_state {
    TIERCE__HTTP_RUNNING,   /* libmicrohttpd's thread will look for the answer */
    TIERCE__HTTP_SUSPENDED, /* whoever answers resumes the connection */
    TIERCE__HTTP_ANSWERED,
};

struct tierce__http_call {
    struct tierce__call base;
    struct tierce__http *http;
    struct MHD_Connection *connection; /* good while it is on a list of http, or suspended */
    struct tierce__list node;          /* of http, under its lock */
    uint64_t taken_by_ns;              /* on http->late */
    bool came_too_late;                /* the server ends: on no list, not to be served */
    bool is_stream;                    /* its answer has no end */
    int fd;
    bool has_begun; /* its headers are there */
    bool was_dispatched;
    bool is_too_large;
    char *uri; /* path, NUL, query */
    char *body;
    size_t bytes, capacity, discarded;
    atomic_bool is_claimed;                /* acq_rel: whoever sets it answers */
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
/* Whether the client has closed its side. Under the lock of http, while the call is held, or while
 * its connection is suspended. */
bool tierce__http_has_left(int fd);
/* The answer, unless there is one. [transfer] response; NULL closes the connection. */
void tierce__http_settle(struct tierce__http_call *call, unsigned status,
                         struct MHD_Response *response);

/* http_origin.c: why a browser must not make this call, whose headers are there; or NULL. */
const char *tierce__http_refuses(const struct tierce__http_call *call);

/* http_stream.c: ends every stream. */
void tierce__http_streams_end(struct tierce__http *http);

/* http_connection.c */
void tierce__http_connection_notify(void *http, struct MHD_Connection *connection, void **context,
                                    enum MHD_ConnectionNotificationCode code);
/* A request begins, is over. Under the lock of http. */
void tierce__http_connection_has_request(struct MHD_Connection *connection);
void tierce__http_connection_had_request(struct tierce__http *http,
                                         struct MHD_Connection *connection);

/* http_tls.c */
/* Reads and checks the files. Errors: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__http_tls_read(struct tierce__http *http, const struct tierce__tls *files,
                                         char why[256]);
void tierce__http_tls_fini(struct tierce__http *http);
/* Has the handshake, which is still to come, made with the credentials of now. */
void tierce__http_tls_begin(struct tierce__http *http, struct tierce__http_connection *c,
                            struct MHD_Connection *connection);
/* Whether the client may be served; *name is its certificate's, or NULL. */
bool tierce__http_tls_accepts(const struct tierce__http *http, struct MHD_Connection *connection,
                              const char **name);

#endif
