/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_CALL_PRIVATE_H
#define TIERCE_SERVE_CALL_PRIVATE_H

#include <stdatomic.h>

#include "serve/serve.h"
#include "serve/loop.h"
#include "serve/workers.h"

/*
 * What every call is, whatever protocol it came by. A call has two holders: its connection, until
 * the stream or request is over, and from its dispatch to its reply the handler.
 */

/* What the calls and connections of a server share. */
struct tierce__shared {
    size_t message_bytes_max, held_bytes_max, stream_buffer_max;
    uint32_t streams_max, transfer_ms;
    bool (*is_serving)(void *arg, const char *service);
    void *is_serving_arg;
    struct tierce__workers *workers, *aside;
    const struct tierce__reflection *reflection; /* or NULL */
    _Atomic size_t held_bytes;                   /* relaxed: a sum that only a limit looks at */
    _Atomic uint64_t handlers;                   /* release by the reply, acquire by stop */
    atomic_bool stopping;
};

/* Whether `bytes` more of requests may be held; they are then, until given back. */
bool tierce__shared_hold(struct tierce__shared *shared, size_t bytes);
void tierce__shared_give_back(struct tierce__shared *shared, size_t bytes);

#define TIERCE__HEADER_BYTES_MAX (16u << 10)

/* Pairs of texts, one behind the other: two lengths, "name\0value\0". */
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
    /* Takes the answer over; the handler holds the call until it returns. Thread: any. */
    void (*reply)(struct tierce__call *call, const struct tierce__reply *reply);
    /* Whether the client is seen to be gone where nothing tells of it. NULL: never. Thread: any */
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
};

void tierce__call_init(struct tierce__call *call, const struct tierce__call_ops *ops,
                       struct tierce__shared *shared);

/* Copies what the call must not borrow of its connection, so that it can outlive that. */
TIERCE_MUSTUSE int tierce__call_set_peer(struct tierce__call *call, const char *peer,
                                         const char *certificate);

/* Hands it to its route's handler. */
void tierce__call_dispatch(struct tierce__call *call);

/* The handler's hold on the call, and on the server, ends: nothing may be touched behind it. */
void tierce__call_handler_is_done(struct tierce__call *call);

/* One holder fewer. */
void tierce__call_drop(struct tierce__call *call);

#endif
