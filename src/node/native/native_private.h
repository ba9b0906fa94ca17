/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_NATIVE_PRIVATE_H
#define TIERCE_NODE_NATIVE_PRIVATE_H

#include <stdatomic.h>

#include <tierce/prefetch.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "net/control/socket_users.h"
#include "engine/store/shared_write.h"
#include "engine/load/load_lease.h"
#include "engine/node_client/shared.h"
#include "node/native/native_server.h"
#include "proto/native/native.h"

/* Shared by native_server.c (sockets), native_client.c and native_shared.c (objects of clients),
 * and native_calls.c and native_load.c (requests). */

#define TIERCE__NATIVE_PIN_BINS       64u
#define TIERCE__NATIVE_PUSHES_MAX     64u  /* of a client: each has a thread */
#define TIERCE__NATIVE_ALL_PUSHES_MAX 512u /* of all clients; both with those given up */
#define TIERCE__NATIVE_ENGINE_BYTES   128u /* of a name, with its NUL */

struct tierce__native {
    struct tierce__node *node;
    struct tierce_engine *engine;
    struct tierce__engine_memory memory;
    const char *path;
    uint64_t boot;
    struct tierce__socket_users allowed;
    int fd, wake_fd;
    pthread_t thread;
    _Atomic bool is_draining, is_ending; /* relaxed */
    _Atomic uint64_t transfers;          /* loads and stores of all clients; relaxed */

    struct tierce__lock lock; /* NATIVE: protects the following fields */
    struct tierce__cond changed;
    struct tierce__list clients, connections, views;
    struct tierce__list pushes; /* that were given up and are not over */
    uint32_t push_count;        /* these, and those of clients */
    uint32_t connection_count;
};

/* A namespace and shard, with one view and its sessions, for all clients that share sessions: the
 * clients of a named inference engine, one client alone, or the clients without a name that store
 * parts. */
struct tierce__native_shared {
    struct tierce__list node;
    struct tierce_view *view;
    const struct tierce__native_client
        *client; /* the only client that uses it, or NULL; only compared, never dereferenced */
    char engine[TIERCE__NATIVE_ENGINE_BYTES]; /* its name, or "" */
    uint32_t refs;                            /* under NATIVE */
    struct tierce__list holders;              /* under NATIVE: the views of clients */
};

/* An object that a client names by a number. */
struct tierce__native_open {
    struct tierce__list node;
    uint64_t number;
    uint64_t deadline_ns; /* loads, stores, pins */
    bool busy;            /* a request for it is being answered */
    bool over;            /* it was taken while busy */
};

struct tierce__native_held_view {
    struct tierce__native_open open;
    struct tierce__native_shared *shared;
    struct tierce__list beside; /* under NATIVE: among shared->holders */
    struct tierce_part part;
    uint32_t refs; /* of objects opened on it, and of the client until it is closed */
};

struct tierce__native_held_load {
    struct tierce__native_open open;
    struct tierce__native_held_view *view;
    struct tierce__native_held_chain *chain; /* which does not change meanwhile */
    struct tierce__load_lease *lease;
    uint64_t bytes;
    size_t next; /* behind the chunk that LOAD_NEXT has leased; 0: none */
};

struct tierce__native_held_store {
    struct tierce__native_open open;
    struct tierce__share share;
    struct tierce_part part; /* that its client writes */
    uint64_t bytes;
    bool late;
};

struct tierce__native_held_prefetch {
    struct tierce__native_open open;
    struct tierce__native_held_view *view;
    struct tierce_prefetch *prefetch;
};

/* open.number is the session. */
struct tierce__native_pin {
    struct tierce__native_open open;
    struct tierce__native_held_view *view;
};

struct tierce__native_held_chain {
    struct tierce__list node; /* most recently requested first */
    uint64_t number;
    uint32_t refs; /* held by requests in progress, and by the list */
    size_t bytes;
    struct tierce_chain *chain;
};

enum tierce__native_list {
    TIERCE__NATIVE_VIEWS,
    TIERCE__NATIVE_LOADS,
    TIERCE__NATIVE_STORES,
    TIERCE__NATIVE_PREFETCHES,
    TIERCE__NATIVE_PUSHES,
    TIERCE__NATIVE_LISTS
};

struct tierce__native_client {
    struct tierce__list node; /* under NATIVE, as connections */
    uint32_t connections;
    struct tierce__native *native;
    uint8_t id[TIERCE__NATIVE_ID_BYTES];
    uint64_t pid;
    _Atomic(struct tierce__handover *) handover; /* its offers; NULL: none. Release, acquire */

    struct tierce__lock lock; /* NATIVE_CLIENT: protects the following fields */
    uint64_t last_number;
    struct tierce__list lists[TIERCE__NATIVE_LISTS];
    uint32_t counts[TIERCE__NATIVE_LISTS];
    struct tierce__list pins[TIERCE__NATIVE_PIN_BINS];
    uint32_t pin_count;
    struct tierce__list chains;
    size_t chain_bytes;
    uint64_t held_bytes;
};

struct tierce__native_connection {
    struct tierce__list node;
    struct tierce__native *native;
    struct tierce__native_client *client; /* after HELLO */
    int fd;
    int pid;
    uint8_t *in; /* received bytes: [in_used] of in_room */
    size_t in_used, in_room;
    struct tierce__native_frame out;
    uint8_t *rows; /* of the answer that is being made */
    size_t rows_room;
    bool sends_pool; /* with the next answer */
    /* The object that the last request created, whose answer the client may not have received: the
     * operation that created it (0: none), and its number. */
    enum tierce__native_op begun_by;
    uint64_t begun;
};

/* ---- native_handover.c ---- */

/* Ends the client's offers. */
void tierce__native_end_handover(struct tierce__native_client *client);

/* ---- native_push.c ---- */

/* Gives up a push that was taken out of the client's list; no request uses it. */
void tierce__native_end_push(struct tierce__native_client *client,
                             struct tierce__native_open *open);
/* Gives up those of a client that has forgotten them. */
void tierce__native_expire_pushes(struct tierce__native_client *client, uint64_t now_ns);
/* Frees pushes that were given up and are over; or all, when no client is left: then blocks for up
 * to two seconds after the last one was given up. */
void tierce__native_reap_pushes(struct tierce__native *native, bool all);

/* ---- native_shared.c ---- */

/* Sets view->shared; view->part is set. Errors: as tierce_view_open's. */
TIERCE_MUSTUSE int tierce__native_share(struct tierce__native_client *client,
                                        struct tierce__native_held_view *view,
                                        const struct tierce_namespace *ns,
                                        const struct tierce_shard *shard, const char *engine);
/* The view is no longer used, by any request or object. */
void tierce__native_unshare(struct tierce__native *native, struct tierce__native_held_view *view);

/* ---- native_client.c ---- */

/* Joins the client of an id, or, of zeroes, makes one. Errors: TIERCE_E_CLOSED (no such client),
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__native_join(struct tierce__native_connection *connection,
                                       const struct tierce__native_hello *hello);

/* Detaches a connection; the last one releases all resources of the client. */
void tierce__native_leave(struct tierce__native_connection *connection);

/* Handles the deadlines that have passed. */
void tierce__native_expire(struct tierce__native *native);

/* Adds an object to a list of a client and returns its number; from then on any request can use it.
 * 0: there are too many. */
TIERCE_MUSTUSE uint64_t tierce__native_add(struct tierce__native_client *client,
                                           enum tierce__native_list list,
                                           struct tierce__native_open *open);

/* Returns the object with this number, reserved for this request until put; or NULL. A view is not
 * reserved but gets a reference. */
struct tierce__native_open *tierce__native_get(struct tierce__native_client *client,
                                               enum tierce__native_list list, uint64_t number);
/* False: it was taken meanwhile, and the caller must end it. */
TIERCE_MUSTUSE bool tierce__native_put(struct tierce__native_client *client,
                                       struct tierce__native_open *open);

/* The same, taken out of the list. NULL: there is none, or (*later) another request for it is being
 * answered, and that request ends it. */
struct tierce__native_open *tierce__native_take(struct tierce__native_client *client,
                                                enum tierce__native_list list, uint64_t number,
                                                bool *later);

/* Notes that a client has written the first `layers` layers of a store, which may have ended. */
void tierce__native_note_layers(struct tierce__native_client *client, uint64_t number,
                                uint32_t layers);

/* Bytes of loads and stores; false: beyond the limit. */
TIERCE_MUSTUSE bool tierce__native_hold(struct tierce__native_client *client, uint64_t bytes);
void tierce__native_unhold(struct tierce__native_client *client, uint64_t bytes);

/* Changes the number of bytes that a load or store holds. */
TIERCE_MUSTUSE bool tierce__native_rehold(struct tierce__native_client *client, uint64_t *bytes,
                                          uint64_t now);

/* A view of the client's. Errors: as tierce_view_open's, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__native_view_open(struct tierce__native_client *client, uint64_t *number,
                                            const struct tierce_namespace *ns,
                                            const struct tierce_shard *shard,
                                            const struct tierce_part *part, const char *engine);
struct tierce__native_held_view *tierce__native_view_get(struct tierce__native_client *client,
                                                         uint64_t number);
void tierce__native_view_put(struct tierce__native_client *client,
                             struct tierce__native_held_view *view);
/* Forgets it; false: there is none. */
TIERCE_MUSTUSE bool tierce__native_view_close(struct tierce__native_client *client,
                                              uint64_t number);

/* Notes that a session has pins. False: there are too many. */
TIERCE_MUSTUSE bool tierce__native_pin(struct tierce__native_client *client,
                                       struct tierce__native_held_view *view, uint64_t session,
                                       uint32_t pin_ms);
/* Forgets it; returns whether it was known. */
bool tierce__native_unpin(struct tierce__native_client *client,
                          const struct tierce__native_held_view *view, uint64_t session);

/* The chain of a request, until put. Returns 0, TIERCE__NATIVE_UNKNOWN_CHAIN, or an error. */
TIERCE_MUSTUSE int tierce__native_chain_get(struct tierce__native_client *client,
                                            struct tierce__native_held_chain **out,
                                            const struct tierce__native_held_view *view,
                                            const struct tierce__native_chain *asked);
void tierce__native_chain_put(struct tierce__native_client *client,
                              struct tierce__native_held_chain *chain);

/* Release their resources, and free them. */
void tierce__native_end_load(struct tierce__native_client *client,
                             struct tierce__native_held_load *load, const uint32_t *blocks);
int64_t tierce__native_end_store(struct tierce__native_client *client,
                                 struct tierce__native_held_store *store, bool complete);
void tierce__native_end_prefetch(struct tierce__native_client *client,
                                 struct tierce__native_held_prefetch *prefetch);

/* ---- native_calls.c ---- */

/* Answers a request into connection->out, which is empty if it has no answer. Errors:
 * TIERCE_E_FORMAT and others that end the connection. Blocks like the call that it implements. */
TIERCE_MUSTUSE int tierce__native_answer(struct tierce__native_connection *connection, uint32_t op,
                                         const uint8_t *body, size_t body_bytes);

/* Ends the object that the last answer began if the client does not know it: the answer was not
 * sent, or was not read when the connection was closed. */
void tierce__native_end_unheard(struct tierce__native_connection *connection);

#endif
