/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_CONNECTION_H
#define TIERCE_NODE_CONNECTION_H

#include "engine/objects/objects.h"
#include "net/server/poll_loop.h"
#include "net/server/addresses.h"
#include "net/tls.h"
#include "base/threads/threads.h"

/*
 * A client's socket, and the operation in progress on it. It reads bytes into the memory that its
 * session names, sends the session's output, and waits for the engine on the session's behalf. A
 * session implements a protocol, without access to sockets.
 *
 * It does one thing at a time: while a find or a work is in progress, or a value is being sent, it
 * reads nothing more. So a client that does not read holds one value and a little text.
 *
 * Thread: its loop; find and work run on other threads and return to it.
 */

struct tierce__node;
struct tierce__connection;

struct tierce__protocol {
    const char *name;
    size_t session_bytes; /* zeroed memory of a session lies in the connection */
    TIERCE_MUSTUSE int (*open)(void *session, struct tierce__connection *connection);
    /* Called when no operation is in progress. */
    void (*close)(void *session);
    /* Takes bytes, or continues with buffered ones (count 0). It stops when it is busy or the
     * connection is full. Errors: pending output is sent, and the connection is closed. */
    TIERCE_MUSTUSE int (*feed)(void *session, const uint8_t *bytes, size_t count, size_t *used);
    /* As in proto/resp/resp_request.h; feed follows filled. Memory that room returned is in use
     * until filled, which is called even if no bytes arrived (0). */
    void *(*room)(void *session, size_t *bytes);
    void (*filled)(void *session, size_t bytes);
    /* How many bytes should be read in addition to those that fit into the room. */
    size_t (*wanted)(const void *session);
    /* Whether a part of a request has arrived. */
    bool (*is_within)(const void *session);
    /* Completes an operation that find or work left pending. */
    void (*answered)(void *session);
};

struct tierce__connection_limits {
    uint32_t idle_ms;    /* without a request; 0: for ever */
    uint32_t request_ms; /* for each MiB of a request or an answer, and for authentication */
};

/* The meaning of a connection's deadline. */
enum tierce__patience {
    TIERCE__PATIENCE_NONE,
    TIERCE__PATIENCE_OPENING,
    TIERCE__PATIENCE_IDLE,
    TIERCE__PATIENCE_REQUEST,
    TIERCE__PATIENCE_ANSWER,
};

struct tierce__connection {
    struct tierce__poll_source source;
    struct tierce__poll_loop *loop;
    struct tierce__node *node;
    const struct tierce__protocol *protocol;
    struct tierce__list member; /* of the loop */
    struct tierce__task task;   /* an answer that is being delivered, or the end */
    uint64_t id;
    char peer[64];
    struct tierce__address address;
    void (*gone)(struct tierce__connection *connection); /* before it is freed */

    bool is_readable, is_writable;
    bool has_hung_up; /* the peer has closed; its last bytes must be read */
    bool is_busy;     /* a find or a work is under way */
    bool goes_on;     /* the session requests a turn without input */
    bool is_ending;   /* closed when all is sent */
    bool is_closing;  /* the socket is gone */
    bool has_plain;   /* TLS may have decrypted bytes that were not read yet */
    bool has_said_bye;
    bool is_open;  /* it has authenticated, if that is required */
    int low_water; /* bytes that the socket awaits before it reports them */
    int failure;   /* no memory for the session's output */

    struct tierce__tls_session *tls; /* or NULL */
    uint8_t *cipher;                 /* output of `tls` that was not sent yet */
    size_t cipher_at, cipher_bytes;

    uint8_t *kept; /* input that was not taken yet */
    size_t kept_at, kept_bytes;

    uint8_t *text; /* to be sent first */
    size_t text_at, text_bytes, text_room;
    struct tierce__object *value; /* then this, or NULL */
    uint64_t value_at, value_end;
    const char *tail; /* then this; constant storage */
    size_t tail_bytes;

    enum tierce__patience patience;
    struct tierce__deadline deadline;
    uint64_t progress_bytes; /* since the deadline was set */
    bool has_taken;          /* the client has taken all pending answers since the last check */

    struct tierce__object_find find;
    struct tierce__object_settle settle;
    void (*work)(void *session);
    struct tierce__task work_task;
    _Alignas(16) uint8_t session[];
};

struct tierce__connection_opts {
    struct tierce__poll_loop *loop;
    struct tierce__node *node;
    const struct tierce__protocol *protocol;
    int fd;                          /* [transfer], non-blocking */
    struct tierce__tls_context *tls; /* or NULL. [borrow until the connection is gone] */
    const char *peer;
    struct tierce__address address; /* for `gone` */
    uint64_t id;
    void (*gone)(struct tierce__connection *connection);
};

/* Owner loop. Errors: -ENOMEM, negative errno: the descriptor is closed, gone is not called. */
TIERCE_MUSTUSE int tierce__connection_open(const struct tierce__connection_opts *opts);

/* Ends every connection of the loop: at once, or when it has nothing under way. Owner only. */
void tierce__connections_end(struct tierce__poll_loop *loop, bool at_once);

/* ---- of the session, on the loop ------------------------------------------------------------- */

/* Text to be sent. No memory: the connection ends. */
void tierce__connection_put(struct tierce__connection *connection, const void *bytes, size_t count);

/* value [from, to) to be sent behind the text, and then `tail` [constant storage]. [transfer]
 * object, of which the first piece behind `from` is verified. One at a time. */
void tierce__connection_put_value(struct tierce__connection *connection,
                                  struct tierce__object *object, uint64_t from, uint64_t to,
                                  const char *tail);

/* Whether the session must not take more input now: it waits for the engine, its output must be
 * sent first, or the connection is ending. */
bool tierce__connection_is_waiting(const struct tierce__connection *connection);

/* Calls feed again although no bytes have arrived. */
void tierce__connection_go_on(struct tierce__connection *connection);

/* Closes when all output has been sent. */
void tierce__connection_end(struct tierce__connection *connection);

/* Acknowledges received bytes now, without sending any. */
void tierce__connection_acknowledge(struct tierce__connection *connection);

/* tierce__object_find: 0, an error, or -EINPROGRESS, and then `answered` is called and the answer
 * is in connection->find. The name is borrowed until then. */
TIERCE_MUSTUSE int tierce__connection_find(struct tierce__connection *connection,
                                           struct tierce__objects *space, const void *name,
                                           size_t name_bytes);

/* Runs an operation that may wait for a device: at once without a device (0), else on a worker
 * (-EINPROGRESS, and then `answered` is called). Errors: -EBUSY (too many wait). */
TIERCE_MUSTUSE int tierce__connection_work(struct tierce__connection *connection,
                                           void (*work)(void *session));

/* Calls tierce__objects_settle_begin; `answered` is called at the end, with the status in
 * connection->settle. */
void tierce__connection_settle(struct tierce__connection *connection,
                               struct tierce__objects *space);

#endif
