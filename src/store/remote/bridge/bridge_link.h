/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_BRIDGE_LINK_H
#define TIERCE_CONNECTOR_BRIDGE_LINK_H

#include "store/remote/bridge/bridge.h"
#include "store/remote/links.h"

/*
 * The functions of struct tierce__client (links.h) that all clients on a bridge share: a link is a
 * seat of the bridge. A call cannot be ended at its deadline; one that takes too long ends the
 * bridge (struct tierce__bridge_opts, call_ms).
 *
 * Thread: as links.h.
 */

struct tierce__bridge_link;

/* First member of the store of such a client. */
struct tierce__bridge_store {
    struct tierce__bridge *bridge;
    uint8_t *pool_base;
    uint32_t links_made;
    const char *prefix; /* of all names, for the PING; "" for none */
    /* The status of a request after a negative result. May set link->why. */
    int (*status_of)(struct tierce__bridge_link *link, enum tierce__bridge_op op, int64_t result);
};

struct tierce__bridge_link {
    struct tierce__bridge_store *store;
    uint32_t seat;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* The bridge of a URL; opts without `pool`, which is that of the source. Errors, with `why` set:
 * TIERCE_E_UNSUPPORTED, -ENOMEM. */
TIERCE_MUSTUSE int tierce__bridge_store_open(struct tierce__bridge_store *store,
                                             const struct tierce__connector_source *source,
                                             const struct tierce__bridge_opts *opts,
                                             char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* Handles a result that its call cannot have: the process is faulty. Returns TIERCE_E_FORMAT. */
int tierce__bridge_link_misunderstood(struct tierce__bridge_link *link, int64_t result);

/* As tierce__bridge_call. *result is at least 0, and 0 after an error; errors also: those of
 * status_of. */
TIERCE_MUSTUSE int tierce__bridge_link_call(struct tierce__bridge_link *link, uint64_t *result,
                                            const struct tierce__bridge_ask *ask);
TIERCE_MUSTUSE int tierce__bridge_link_ask_get(struct tierce__bridge_link *link, uint64_t *result,
                                               const struct tierce__link_get *get);

int tierce__bridge_link_open(void **out, void *store);
int tierce__bridge_link_exists(void *link, const struct tierce_plugin_name *names, size_t count,
                               size_t *found, uint64_t deadline_ns);
int tierce__bridge_link_put(void *link, const struct tierce_plugin_name *name, const void *memory,
                            uint64_t length, uint64_t deadline_ns);
int tierce__bridge_link_remove(void *link, const struct tierce_plugin_name *name,
                               uint64_t deadline_ns);
int tierce__bridge_link_ping(void *link, uint64_t deadline_ns);
const char *tierce__bridge_link_why(void *link);
struct tierce__link_state tierce__bridge_link_state(const void *link);

void tierce__bridge_store_abort(void *store);
/* Frees it, too. */
void tierce__bridge_store_close(void *store);

#endif
