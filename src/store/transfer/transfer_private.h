/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TRANSFER_PRIVATE_H
#define TIERCE_TRANSFER_PRIVATE_H

#include <stdatomic.h>

#include "net/listen.h"
#include "net/server/addresses.h"
#include "net/server/poll_door.h"
#include "net/server/poll_loop.h"
#include "net/tls.h"
#include "proto/transfer/transfer_wire.h"
#include "store/transfer/transfer.h"

/*
 * A connection of the server. Its files:
 *
 *     transfer_server.c      loops, the door, limits, the end
 *     transfer_connection.c  its life: events, patience, closing
 *     transfer_socket.c      bytes from and to the socket, with TLS or without
 *     transfer_session.c     frames: the greeting, requests, their bytes
 *     transfer_slots.c       requests: the keeper's work, and replies in order
 *
 * A request has a slot from its head until its reply is sent. Slots form a ring, so replies leave
 * in the order of the requests, and a client that does not read stops being read. The keeper works
 * on all slots at the same time.
 *
 * Thread: its loop. The keeper's answers arrive on any thread and are posted to it.
 */

#define TIERCE__TRANSFER_IN_BYTES 4096u

_Static_assert(TIERCE__TRANSFER_NAME_MAX == TIERCE_PLUGIN_NAME_MAX, "one limit for names");
_Static_assert(TIERCE__TRANSFER_IN_BYTES >= TIERCE__TRANSFER_HELLO_BYTES +
                                                TIERCE__TRANSFER_SPACE_MAX +
                                                TIERCE__TRANSFER_TOKEN_MAX,
               "a greeting fits");
_Static_assert(TIERCE__TRANSFER_IN_BYTES >= TIERCE__TRANSFER_HEAD_BYTES + TIERCE__TRANSFER_NAME_MAX,
               "a request fits");

struct tierce__transfer_connection;

enum tierce__slot_state {
    TIERCE__SLOT_RECEIVING, /* its bytes arrive */
    TIERCE__SLOT_WORKING,   /* the keeper has it */
    TIERCE__SLOT_READY,     /* its reply can be sent */
};

struct tierce__transfer_slot {
    struct tierce__transfer_connection *connection;
    enum tierce__slot_state state;
    struct tierce__transfer_request request;
    char name[TIERCE__TRANSFER_NAME_MAX];

    struct tierce__keeper_call call; /* READ and DROP */
    struct tierce__keeper_room room; /* WRITE */
    bool has_lease, has_room;
    bool is_calling, is_answered; /* the keeper answered before its function returned */
    struct tierce__task task;     /* its answer on the way to the loop */
    int refused;                  /* WRITE without room: the status, while its bytes are skipped */
    uint8_t *memory;              /* ASK and LIST: names, and the reply's bytes */
    size_t memory_bytes, memory_room;

    struct tierce__transfer_reply reply;
    uint8_t head[TIERCE__TRANSFER_HEAD_BYTES];
    const uint8_t *bytes; /* of the reply, or NULL */
    uint64_t sent;        /* of head and bytes together */
};

/* The meaning of a connection's deadline. */
enum tierce__transfer_patience {
    TIERCE__TRANSFER_PATIENCE_NONE, /* the keeper works */
    TIERCE__TRANSFER_PATIENCE_GREETING,
    TIERCE__TRANSFER_PATIENCE_IDLE,
    TIERCE__TRANSFER_PATIENCE_REQUEST,
    TIERCE__TRANSFER_PATIENCE_REPLY,
    TIERCE__TRANSFER_PATIENCE_END,
};

struct tierce__transfer_connection {
    struct tierce__poll_source source;
    struct tierce__poll_loop *loop;
    struct tierce__transfer_server *server;
    struct tierce__list member;   /* of the loop */
    struct tierce__list greeting; /* of those that have not greeted; else alone */
    struct tierce__address address;
    struct tierce__task end;
    char peer[TIERCE__PEER_BYTES];
    struct tierce__tls_session *tls; /* or NULL */
    short wants;                     /* of tls, after -EAGAIN */

    bool is_readable, is_writable;
    bool is_greeted;
    bool is_draining; /* it ends after the requests that have begun */
    bool is_ending;   /* it takes no more input, and ends when all is sent */
    bool is_shut;     /* all is sent; it ends when the client has closed */
    bool is_closing;  /* the socket is gone */
    int low_water;    /* bytes that the socket awaits before it reports them */

    uint32_t rights;
    uint64_t rights_ns; /* when they were asked for; tokens may be removed */
    size_t token_bytes;
    char token[TIERCE__TRANSFER_TOKEN_MAX + 1];
    char space[TIERCE__TRANSFER_SPACE_MAX];
    size_t space_bytes;

    uint8_t in[TIERCE__TRANSFER_IN_BYTES]; /* input that was not used yet */
    size_t in_at, in_bytes;
    /* The bytes behind a request, which go into `body`; NULL: they are skipped. */
    struct tierce__transfer_slot *receiving; /* NULL: none are awaited */
    uint8_t *body;
    uint64_t body_left;

    uint8_t welcome[TIERCE__TRANSFER_WELCOME_BYTES];
    size_t welcome_at, welcome_bytes;

    struct tierce__transfer_slot slots[TIERCE__TRANSFER_PIPELINE];
    uint32_t first, count; /* the ring */
    uint32_t working;      /* slots that the keeper has */
    uint16_t sequence;     /* of the next request */

    enum tierce__transfer_patience patience;
    /* The deadline may be earlier than the end, to look whether it has stalled. */
    uint64_t patience_begun_ns, patience_ends_ns;
    uint64_t seen_bytes; /* received and sent, at the last look */
    struct tierce__deadline deadline;
    uint64_t received, sent; /* bytes since the deadline was set */
    bool has_moved;          /* a request has arrived, or a reply was sent, since then */
};

_Static_assert(sizeof(struct tierce__transfer_connection) < 20480,
               "docs/inside/format/transfer.md states it");

struct tierce__transfer_counters {
    _Atomic uint64_t accepted, refused, reads, read_bytes, misses, writes, written_bytes, full,
        drops, errors;
};

struct tierce__transfer_server {
    uint32_t magic;
    struct tierce__transfer_server_opts opts; /* without host */
    struct tierce__poll_door door;
    struct tierce__poll_loop **loops;
    struct tierce__list *greetings; /* for each loop, and its own: connections that have not
                                       greeted, the oldest first */
    size_t loop_count;
    _Atomic uint32_t connections; /* relaxed: compared with a limit */
    struct tierce__transfer_counters counters;
};

static inline void tierce__transfer_count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- transfer_connection.c ------------------------------------------------------------------- */

struct tierce__transfer_arrival {
    struct tierce__task task;
    struct tierce__transfer_server *server;
    struct tierce__poll_loop *loop;
    struct tierce__list *greetings;
    int fd;
    bool is_extra; /* beyond connections_max */
    struct tierce__address address;
    char peer[TIERCE__PEER_BYTES];
};

/* On the loop. Errors: -ENOMEM, negative errno: the descriptor is closed. */
TIERCE_MUSTUSE int tierce__transfer_connection_open(const struct tierce__transfer_arrival *arrival);

/* Closes the first of these, to make room. False: there is none. On their loop. */
TIERCE_MUSTUSE bool tierce__transfer_connection_make_way(struct tierce__list *greetings);

/* Ends every connection of the loop: at once, or after the requests that have begun. On the loop.
 */
void tierce__transfer_connections_end(struct tierce__poll_loop *loop, bool at_once);

/* Continues with what there is to do. Not from within the functions below. */
void tierce__transfer_connection_run(struct tierce__transfer_connection *c);

/* Ends it now. The memory stays until the keeper has answered and this round of events is over. */
void tierce__transfer_connection_close(struct tierce__transfer_connection *c, const char *why);

/* The same, after an error of the socket or of TLS. */
void tierce__transfer_connection_fail(struct tierce__transfer_connection *c, int rc);

/* The keeper has answered for a connection that is closing. */
void tierce__transfer_connection_bury(struct tierce__transfer_connection *c);

/* Counts it out of the server. */
void tierce__transfer_connection_gone(struct tierce__transfer_server *server,
                                      struct tierce__poll_loop *loop,
                                      const struct tierce__address *address);

/* ---- transfer_socket.c ----------------------------------------------------------------------- */

/* Once, without waiting; the pieces are not empty. 0: *done > 0. -EAGAIN: nothing now, is_readable
 * or is_writable is false. -ECONNRESET: the end. Other negative errno. */
TIERCE_MUSTUSE int tierce__transfer_receive(struct tierce__transfer_connection *c,
                                            const struct iovec *pieces, int count, size_t *done);
TIERCE_MUSTUSE int tierce__transfer_send(struct tierce__transfer_connection *c,
                                         struct iovec *pieces, int count, size_t *done);

/* So many bytes of the present request are missing: epoll need not report each packet. */
void tierce__transfer_expect(struct tierce__transfer_connection *c, uint64_t bytes);

/* No more bytes will be sent. */
void tierce__transfer_shut(struct tierce__transfer_connection *c);

/* ---- transfer_session.c ---------------------------------------------------------------------- */

/* Uses buffered input. True: something was done. */
bool tierce__transfer_session_step(struct tierce__transfer_connection *c);

/* Reads from the socket if input can be used. True: something was done. */
bool tierce__transfer_session_read(struct tierce__transfer_connection *c);

/* Whether a part of a greeting or request has arrived. */
bool tierce__transfer_session_is_within(const struct tierce__transfer_connection *c);

/* ---- transfer_slots.c ------------------------------------------------------------------------ */

/* The slot of a new request, whose name lies in `name`. NULL: all are in use. */
struct tierce__transfer_slot *
tierce__transfer_slot_take(struct tierce__transfer_connection *c,
                           const struct tierce__transfer_request *request, const uint8_t *name);
bool tierce__transfer_slots_are_full(const struct tierce__transfer_connection *c);

/* Begins a request: does all of it, gives it to the keeper, or names the memory for the bytes that
 * follow it. */
void tierce__transfer_slot_begin(struct tierce__transfer_slot *slot);

/* The bytes behind the request have arrived. False: they are invalid. */
TIERCE_MUSTUSE bool tierce__transfer_slot_filled(struct tierce__transfer_slot *slot);

/* Whether replies, or the welcome, can be sent. */
bool tierce__transfer_slots_have_output(const struct tierce__transfer_connection *c);

/* Sends some of it. True: something was sent. */
bool tierce__transfer_slots_send(struct tierce__transfer_connection *c);

/* Whether the slots hold memory of the keeper. */
bool tierce__transfer_slots_hold(const struct tierce__transfer_connection *c);

/* Releases what the slots hold, except those that the keeper has. */
void tierce__transfer_slots_clear(struct tierce__transfer_connection *c);

#endif
