/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PRIVATE_H
#define TIERCE_NODE_PRIVATE_H

#include <errno.h>
#include <stdatomic.h>

#include "base/text/prometheus.h"
#include "engine/objects/object_names.h"
#include "node/access.h"
#include "node/node_config.h"
#include "node/connection.h"
#include "node/short_lease.h"
#include "node/upload.h"
#include "net/server/serve.h"

/* Shared by the files of a node. */

enum tierce__node_counter {
#define TIERCE_COUNTER(name, text) TIERCE__NODE_##name,
#include "node/counters.def"
#undef TIERCE_COUNTER
    TIERCE__NODE_COUNTERS
};

#define TIERCE__NODE_NAME_TABLES 16u
#define TIERCE__NODE_ROUTES      7u

/* Errors of the node itself, which no tier returns. */
#define TIERCE__NODE_NAME_IN_USE (-EUSERS) /* another command changed the value for too long */
#define TIERCE__NODE_NO_WORKER   (-EBUSY)  /* all were busy for too long, or their queue is full */

struct tierce__native;
struct tierce__node_pool;
struct tierce__mover;

struct tierce__node {
    const struct tierce__node_config *config;
    struct tierce_engine *engine;
    struct tierce__access *access;
    struct tierce__short_leases *leases;
    struct tierce__tls_context *tls; /* of the ports of clients, or NULL */
    struct tierce__workers *workers;
    struct tierce__connection_limits limits;
    uint32_t find_ms;
    bool may_wait;
    uint64_t started_ns;
    _Atomic uint16_t
        resp_port; /* known once the port is open; the first client may have connected by then */

    struct tierce__route routes[TIERCE__NODE_ROUTES]; /* of HTTP */
    struct tierce__native *native;                    /* native_server.h; or NULL */
    struct tierce__node_pool *pool;                   /* part/node_pool.h; or NULL */
    struct tierce__mover *mover;                      /* part/node_mover.h; or NULL */
    struct tierce__poll_loop **loops;
    size_t loop_count;
    struct tierce__object_names names[TIERCE__NODE_NAME_TABLES]; /* whose values are changed */

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

/* The deadline of a command that begins now: timeout.load. A command that changes several values
 * resets it after each, so that it ends timeout.load after the last success. */
uint64_t tierce__node_deadline(const struct tierce__node *node);

/* Takes a name, to be held while its value is changed, from the check of the old value to the end;
 * ended by tierce__object_name_end. Waits for other commands during half of the time to the
 * command's deadline, so that the change has the other half. Errors: TIERCE__NODE_NAME_IN_USE,
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__node_name_begin(struct tierce__node *node,
                                           struct tierce__object_name **out, const void *name,
                                           size_t name_bytes, uint64_t deadline_ns);

/* Calls tierce__object_find and waits for its answer, for at most half of the time to the command's
 * deadline. On a worker, or where nothing waits for a device. */
TIERCE_MUSTUSE int tierce__node_find(struct tierce__objects *space, struct tierce__object **out,
                                     const void *name, size_t name_bytes, uint64_t deadline_ns);

/* An error in words. For a timeout the text names the awaited event and the parameter that limits
 * the wait; for a limit other than memory, the remedy. */
#define TIERCE__NODE_ERROR_BYTES 192u
void tierce__node_error(char text[TIERCE__NODE_ERROR_BYTES], const struct tierce__node *node,
                        int rc);

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
