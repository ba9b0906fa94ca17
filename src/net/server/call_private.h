/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_CALL_PRIVATE_H
#define TIERCE_NET_CALL_PRIVATE_H

#include <stdatomic.h>

#include "net/held.h"
#include "net/server/serve.h"
#include "net/server/loop.h"
#include "base/threads/threads.h"

/*
 * The common part of all calls, independent of the protocol. A call has two holders: its
 * connection, until the stream or request is over, and the handler, from dispatch to reply.
 */

/* State shared by the calls and connections of a server. */
struct tierce__shared {
    size_t message_bytes_max, stream_buffer_max;
    uint32_t streams_max, transfer_ms;
    bool (*is_serving)(void *arg, const char *service);
    void *is_serving_arg;
    struct tierce__workers *workers, *aside;
    const struct tierce__reflection *reflection; /* or NULL */
    struct tierce__held held;                    /* of requests and answers */
    _Atomic uint64_t handlers;                   /* release by the reply, acquire by stop */
    atomic_bool stopping;
};

#define TIERCE__HEADER_BYTES_MAX (16u << 10)

/* Consecutive pairs of texts: two lengths, "name\0value\0". */
struct tierce__texts {
    char *data; /* small, or on the heap */
    size_t used, capacity;
    char small[488]; /* gRPC clients send about 300 bytes */
};

/* Errors: TIERCE_E_LIMIT (TIERCE__HEADER_BYTES_MAX), -ENOMEM. */
TIERCE_MUSTUSE int tierce__texts_add(struct tierce__texts *texts, const char *name,
                                     size_t name_bytes, const char *value, size_t value_bytes);

/* The value of a name, or NULL. */
const char *tierce__texts_find(const struct tierce__texts *texts, const char *name);

struct tierce__call_ops {
    /* Takes over the answer. The handler holds the call until this returns. Thread: any. */
    void (*reply)(struct tierce__call *call, const struct tierce__reply *reply);
    /* Checks whether the client is gone, if the transport does not report it. NULL: it does.
     * Thread: any */
    bool (*is_gone)(const struct tierce__call *call);
    void (*destroy)(struct tierce__call *call);
};

struct tierce__call {
    uint32_t magic;
    _Atomic uint32_t holders; /* acq_rel: the last one destroys */
    atomic_bool is_over;      /* relaxed: a hint */
    bool was_deferred, was_aside;
    const struct tierce__call_ops *ops;
    struct tierce__shared *shared;
    const struct tierce__route *route;
    struct tierce__call_info info;
    struct tierce__texts headers;
    struct tierce__task work;
    void *state; /* of tierce__call_defer_with, until it is taken */
    size_t state_bytes;
    void (*release_state)(void *state);
};

void tierce__call_init(struct tierce__call *call, const struct tierce__call_ops *ops,
                       struct tierce__shared *shared);

/* Copies the fields that the call borrows from its connection, so that it can outlive it. */
TIERCE_MUSTUSE int tierce__call_set_peer(struct tierce__call *call, const char *peer,
                                         const char *certificate);

/* Passes the call to its route's handler. */
void tierce__call_dispatch(struct tierce__call *call);

/* Ends the handler's hold on the call and on the server; neither may be used afterwards. */
void tierce__call_handler_is_done(struct tierce__call *call);

/* Drops a reference. */
void tierce__call_drop(struct tierce__call *call);

#endif
