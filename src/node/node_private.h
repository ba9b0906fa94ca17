/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PRIVATE_H
#define TIERCE_NODE_PRIVATE_H

#include <stdatomic.h>

#include "base/prometheus.h"
#include "node/access.h"
#include "node/config.h"
#include "node/connection.h"
#include "node/grace.h"
#include "node/upload.h"
#include "serve/serve.h"

/* Shared by the files of a node. */

enum tierce__node_counter {
#define TIERCE_COUNTER(name, text) TIERCE__NODE_##name,
#include "node/counters.def"
#undef TIERCE_COUNTER
    TIERCE__NODE_COUNTERS
};

#define TIERCE__NODE_NAME_LOCKS 64u
#define TIERCE__NODE_ROUTES     7u

struct tierce__native;

struct tierce__node {
    const struct tierce__node_config *config;
    struct tierce_engine *engine;
    struct tierce__access *access;
    struct tierce__grace *grace;
    struct tierce__tls_context *tls; /* of the ports of clients, or NULL */
    struct tierce__workers *workers;
    struct tierce__connection_limits limits;
    uint32_t find_ms;
    bool may_wait;
    uint64_t started_ns;
    _Atomic uint16_t resp_port; /* known once the port is open, when the first may be there */

    struct tierce__route routes[TIERCE__NODE_ROUTES]; /* of HTTP */
    struct tierce__native *native;                    /* native.h; or NULL */
    struct tierce__poll_loop **loops;
    size_t loop_count;
    struct tierce__lock
        name_locks[TIERCE__NODE_NAME_LOCKS]; /* NODE_NAME: held while a value is changed */

    struct tierce__lock clients_lock; /* NODE_CLIENTS */
    struct tierce__list clients;      /* connections of Redis' protocol */

    struct tierce__addresses *addresses; /* NULL: no limit */
    _Atomic uint64_t ids;                /* of connections. relaxed, as all below */
    struct tierce__uploads uploads;      /* values being received */
    _Atomic uint32_t connections_now;
    _Atomic bool is_draining;
    _Atomic uint64_t counters[TIERCE__NODE_COUNTERS];
};

static inline void tierce__node_count(struct tierce__node *node, enum tierce__node_counter counter,
                                      uint64_t by)
{
    atomic_fetch_add_explicit(&node->counters[counter], by, memory_order_relaxed);
}

/* The lock to hold while the value of a name is changed, from the check of the old value to the
 * end. */
struct tierce__lock *tierce__node_name_lock(struct tierce__node *node, const void *name,
                                            size_t name_bytes);

/* tierce__object_find, waited for. On a worker, or where nothing waits for a device. */
TIERCE_MUSTUSE int tierce__node_find(struct tierce__node *node, struct tierce__objects *space,
                                     struct tierce__object **out, const void *name,
                                     size_t name_bytes);

/* Room for a value that will arrive, within limit.value and limit.incoming. Errors: as
 * tierce__object_create's. */
TIERCE_MUSTUSE int tierce__node_receive(struct tierce__node *node, struct tierce__upload **out,
                                        struct tierce__objects *space,
                                        const struct tierce__object_what *what);
/* The same for a value that has been received in full. */
TIERCE_MUSTUSE int tierce__node_create(struct tierce__node *node, struct tierce__object **out,
                                       struct tierce__objects *space,
                                       const struct tierce__object_what *what);

extern const struct tierce__protocol tierce__resp_protocol, tierce__lm_protocol;

/* Serves the HTTP of administrators. [borrow] node until the server stops. Errors: as
 * tierce__server_start's. */
TIERCE_MUSTUSE int tierce__node_http_start(struct tierce__server **out, struct tierce__node *node,
                                           uint16_t port, char why[256]);

#endif
