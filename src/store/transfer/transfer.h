/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TRANSFER_H
#define TIERCE_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/threads/deadlines.h"
#include <tierce/plugin.h>

/*
 * Named objects of opaque bytes that a process serves to other processes from memory of its own.
 * The server is generic: a keeper (below) finds objects and makes room for new ones. Clients are
 * connectors (store/remote/connector.h) of the schemes "transfer" and "transfer+tls":
 *
 *     transfer://HOST:PORT/SPACE[?connections=N&token_file=F]
 *     transfer+tls://...[&ca_file=F&client_certificate=F&client_key=F]
 *
 * One round trip finds an object and moves its bytes. Bytes go from the socket into the memory that
 * the keeper gave, and from it to the socket, without copies unless TLS is used. A name, not an
 * address, is what a client says: no offset from the wire is used before it has been compared with
 * the object's length. An object is visible when its last byte has arrived, and not before; a
 * connection that ends earlier leaves nothing. Readers verify what they have read (header and
 * cells); the transfer does not.
 *
 * The frames are specified in docs/inside/format/transfer.md. A SPACE is a text that the keeper
 * interprets, for example "memory" or "disk".
 */

/* ---- the keeper ------------------------------------------------------------------------------ */

struct tierce__keeper;

/* Bytes of an object that stay readable, and unchanged, until they are released. */
struct tierce__keeper_lease {
    const uint8_t *data; /* those outside of the range of the call may be undefined */
    uint64_t from;       /* where in the object data[0] is, at most the offset of the call */
    uint64_t bytes;      /* of the whole object */
    void *owner;         /* the keeper's */
};

/* A find or a drop, whose answer may come later. The keeper's until `done`, which is called exactly
 * once, perhaps before find or drop returns, on any thread; it does not block. */
struct tierce__keeper_call {
    struct tierce_plugin_name space, name; /* [borrow until done] */
    uint64_t offset, length; /* of a find: the range that is read; length 0: all from the offset */
    uint64_t total;          /* of a find: the length of the object that is meant; 0: any */
    uint64_t deadline_ns;
    /* [out] 0: of a find, lease is set. TIERCE_E_MISS (a find only); TIERCE_E_ARGUMENT (no such
     * space), TIERCE_E_DEADLINE, TIERCE_E_LIMIT (too many at a time), TIERCE_E_FORMAT (the range
     * lies outside of the object, or it has another length), -ENOMEM, negative errno of a device.
     */
    int status;
    struct tierce__keeper_lease lease;
    void (*done)(struct tierce__keeper_call *call);
    void *arg;
    struct tierce__list node;    /* the keeper's until done */
    struct tierce__deadline due; /* the same; zeroed by the caller */
};

/* Room for an object that is arriving. One thread at a time. */
struct tierce__keeper_room {
    uint8_t *data;  /* `bytes` of them, to be written */
    uint64_t bytes; /* as asked for */
    void *owner;    /* the keeper's */
    int status;     /* [out] of keep */
    void (*done)(struct tierce__keeper_room *room);
    void *arg;
    struct tierce__list node; /* the keeper's until done */
    /* [in] of make_range: the client, by the token of its greeting and its address ("HOST:PORT",
     * "[HOST]:PORT"). [borrow for the call] */
    struct tierce_plugin_name token;
    const char *peer;
};

/* A part of an object that arrives in several WRITEs. offset + length <= total. */
struct tierce__keeper_range {
    uint64_t offset, length, total;
};

/* Threads: any, several at a time. No function blocks, unless it says so. */
struct tierce__keeper_ops {
    /* Whether there is such a space: a client of another one is rejected in the greeting. NULL:
     * each request is answered on its own. */
    bool (*has)(struct tierce__keeper *keeper, const struct tierce_plugin_name *space);
    void (*find)(struct tierce__keeper *keeper, struct tierce__keeper_call *call);
    void (*release)(struct tierce__keeper *keeper, struct tierce__keeper_lease *lease);
    /* The length of an object, without a lease. Errors: TIERCE_E_MISS, TIERCE_E_ARGUMENT. */
    TIERCE_MUSTUSE int (*measure)(struct tierce__keeper *keeper,
                                  const struct tierce_plugin_name *space,
                                  const struct tierce_plugin_name *name, uint64_t *bytes);
    /* Room for a new object; sets data, bytes and owner. Errors: TIERCE_E_FULL, TIERCE_E_LIMIT
     * (larger than the space, or too many objects arrive at a time), TIERCE_E_ARGUMENT,
     * TIERCE_E_REFUSED (the space accepts nothing now), -ENOMEM. */
    TIERCE_MUSTUSE int (*make)(struct tierce__keeper *keeper, struct tierce__keeper_room *room,
                               const struct tierce_plugin_name *space,
                               const struct tierce_plugin_name *name, uint64_t bytes);
    /*
     * In place of make, for a keeper that accepts the ranges of an object one by one, in any order
     * and on several connections: room for a range. The object is visible when all of its ranges
     * were kept, and the keeper has verified it. Further errors: -EEXIST (the object exists, and
     * needs no bytes), TIERCE_E_FORMAT (the range contradicts earlier ones: the connection ends,
     * and it is logged). NULL: objects arrive whole.
     */
    int (*make_range)(struct tierce__keeper *keeper, struct tierce__keeper_room *room,
                      const struct tierce_plugin_name *space, const struct tierce_plugin_name *name,
                      const struct tierce__keeper_range *range);
    /* A connection with this token has ended, after its rooms were kept or abandoned. NULL: not
     * told. */
    void (*gone)(struct tierce__keeper *keeper, const struct tierce_plugin_name *token);
    /* The bytes are there: makes the object visible, in place of an older one of that name. Calls
     * room->done exactly once, perhaps before it returns, on any thread, with `status`; the room is
     * gone then. */
    void (*keep)(struct tierce__keeper *keeper, struct tierce__keeper_room *room);
    /* The bytes will not come. */
    void (*abandon)(struct tierce__keeper *keeper, struct tierce__keeper_room *room);
    /* Removes an object, for good when it is answered; status 0 if there was none. Leases on it
     * stay valid. */
    void (*drop)(struct tierce__keeper *keeper, struct tierce__keeper_call *call);
    /* Names that begin with `prefix`, page by page: *cursor is 0 at first, and 0 again after the
     * last page. An object that exists during the whole walk is reported at least once. A page has
     * at most 2000 names. `each` is called without a lock. */
    TIERCE_MUSTUSE int (*list)(struct tierce__keeper *keeper,
                               const struct tierce_plugin_name *space,
                               const struct tierce_plugin_name *prefix, uint64_t *cursor,
                               tierce_plugin_each_fn *each, void *arg);
    /* Whether others wait for memory that leases and rooms of a space hold. NULL: never. */
    bool (*is_short)(struct tierce__keeper *keeper, const struct tierce_plugin_name *space);
    /* The server ends: answers all calls until the deadline at the latest, and later ones with an
     * error. Leases and rooms stay valid. Blocks. NULL: calls are answered by deadlines of their
     * own, for which the server waits. */
    void (*end)(struct tierce__keeper *keeper, uint64_t deadline_ns);
};

/* First member of every implementation. */
struct tierce__keeper {
    const struct tierce__keeper_ops *ops;
};

/*
 * ---- the server ------------------------------------------------------------------------------
 *
 * Its limits against hostile clients:
 *
 * - At connections_max, a new connection takes the place of the one of its loop that has not
 *   greeted for longest, and is closed if there is none. So connections without a greeting
 *   do not block other clients.
 * - A client must move a MiB in each request_ms while it has a request or a reply in transit. While
 *   the keeper is short of memory, a client that holds some must do so in each stall_ms, and move
 *   something in a quarter of it.
 */

struct tierce__transfer_server;
struct tierce__addresses;
struct tierce__tls_context;

#define TIERCE__TRANSFER_READ  1u
#define TIERCE__TRANSFER_WRITE 2u /* and remove */

struct tierce__transfer_server_opts {
    size_t size; /* sizeof(struct tierce__transfer_server_opts) */
    const char *host;
    uint16_t port;                       /* 0: a free one */
    struct tierce__keeper *keeper;       /* [borrow until stop] */
    struct tierce__tls_context *tls;     /* NULL: none. [borrow until stop] */
    uint8_t incarnation[16];             /* of this process; the greeting has it */
    uint32_t loops;                      /* threads; 0: 2 */
    uint32_t connections_max;            /* 0: 4096; see below */
    struct tierce__addresses *addresses; /* counts and limits the connections of each address; NULL:
                                            no limit. [borrow until stop] */
    uint32_t request_ms; /* how long a client may take for each MiB, and to greet; 0: 30000 */
    uint32_t stall_ms;   /* how long, while its keeper is short; 0: request_ms alone applies */
    uint32_t idle_ms;    /* a connection without a request for longer is closed; 0: never */
    /* The rights of a token; "" if the client has none. It is called again when a connection has a
     * request and the answer is a second old. NULL: all clients have all rights. Thread:
     * any. */
    uint32_t (*rights)(void *arg, const char *token, size_t token_bytes);
    void *rights_arg;
};

struct tierce__transfer_stats {
    uint64_t connections, accepted, refused; /* refused: beyond the maximum, or a wrong token */
    uint64_t reads, read_bytes, misses, writes, written_bytes, full, drops, errors;
};

/* Errors: negative errno (the port), TIERCE_E_ARGUMENT, -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__transfer_server_start(struct tierce__transfer_server **out,
                                                 const struct tierce__transfer_server_opts *opts,
                                                 char why[256]);
uint16_t tierce__transfer_server_port(const struct tierce__transfer_server *server);
void tierce__transfer_server_stats(const struct tierce__transfer_server *server,
                                   struct tierce__transfer_stats *out);
/* Ends all connections; requests in progress may end until the deadline. Then the keeper is ended,
 * and its answers are awaited. Not on a loop. NULL is accepted. */
void tierce__transfer_server_stop(struct tierce__transfer_server *server, uint64_t deadline_ns);

#endif
