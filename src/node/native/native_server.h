/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_NATIVE_H
#define TIERCE_NODE_NATIVE_H

#include <stdint.h>

#include "node/node_private.h"

/*
 * The native protocol (proto/native/native.h) for programs on this host that map the pool: a Unix
 * socket, a thread for each connection, and the operations of each client.
 *
 *     rc = tierce__native_start(&native, node, path, why);
 *     ...
 *     tierce__native_stop(native, until_ns);
 *
 * A client's resources are released when its last connection closes, and not before: a connected
 * client may still write to the memory of its stores. A late load loses its leases; a late store is
 * not published.
 *
 * Thread: any.
 */

struct tierce__native;

/* [borrow] node, path until stop. Errors, *out untouched: negative errno (why in words),
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__native_start(struct tierce__native **out, struct tierce__node *node,
                                        const char *path, char why[256]);

/* Rejects new loads and stores, waits for those in progress until `until_ns` at most, closes all
 * connections and releases the clients' resources. NULL is accepted. */
void tierce__native_stop(struct tierce__native *native, uint64_t until_ns);

struct tierce__native_stats {
    uint64_t clients, connections, views, loads, stores, prefetches;
    uint64_t held_bytes; /* of loads and stores */
    uint64_t chain_bytes;
};
/* NULL is accepted: zeroes. */
void tierce__native_stats(struct tierce__native *native, struct tierce__native_stats *out);

#endif
