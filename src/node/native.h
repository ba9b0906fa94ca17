/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_NATIVE_H
#define TIERCE_NODE_NATIVE_H

#include <stdint.h>

#include "node/node_private.h"

/*
 * The native protocol (wire/native.h), which programs of this host speak that map the pool: a Unix
 * socket, a thread for each connection, and what each client has under way.
 *
 *     rc = tierce__native_start(&native, node, path, why);
 *     ...
 *     tierce__native_stop(native);
 *
 * What a client has is given back when its last connection closes, and not before: who is connected
 * may still write to the rooms of his stores. Loads that are late lose their leases, stores that
 * are late will not be published.
 *
 * Thread: any.
 */

struct tierce__native;

/* [borrow] node, path until stop. Errors, *out untouched: negative errno (why in words),
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__native_start(struct tierce__native **out, struct tierce__node *node,
                                        const char *path, char why[256]);

/* Takes no new loads and stores, waits for those under way for serve.drain, closes all connections
 * and gives back what clients have. NULL is accepted. */
void tierce__native_stop(struct tierce__native *native);

struct tierce__native_stats {
    uint64_t clients, connections, views, loads, stores, prefetches;
    uint64_t held_bytes; /* of loads and stores */
    uint64_t chain_bytes;
};
/* NULL is accepted: zeroes. */
void tierce__native_stats(struct tierce__native *native, struct tierce__native_stats *out);

#endif
