/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_STORE_WATCH_H
#define TIERCE_ENGINE_STORE_WATCH_H

#include "engine/view.h"
#include "engine/store/reserve.h"

/*
 * A watch sees the chunks of a store while they are filled: after each layer, and at the end.
 *
 *     tierce__store_watch(store, &watch, &what);      // before its first layer
 *
 * In a node, a watch sees a reservation, which clients fill (tierce__reserve_watch): the layers
 * that they report (tierce__store_tell), part by part, and the end.
 *
 * `filled` is called by the thread that works on the store, under no lock. In a node it is called
 * by the threads of all clients that write parts, several at a time, each under its NATIVE_CLIENT;
 * and, under no lock, by the thread that adds the store to a push. `ended` is the last call, under
 * no lock, also for a store that is aborted or given up. For memory of a device, the end of the
 * store reports the layers, as each copy ends: the device may compute meanwhile.
 */

struct tierce__store_watch {
    /* The cells of layers [from, to) of the chunk, counted from 0, are in all rooms. `from` is
     * the first one of a part, so calls repeat layers. Calls of several threads may come in any
     * order. */
    void (*filled)(struct tierce__store_watch *watch, uint32_t from, uint32_t to);
    /* `complete`: the rooms are sealed chunks, unless publishing them was impossible. */
    void (*ended)(struct tierce__store_watch *watch, bool complete);
};

struct tierce__watched {
    const struct tierce_view *view;   /* [borrow for the call] */
    const struct tierce__room *rooms; /* [count] [borrow for the call] */
    size_t count;
};

/* [borrow until ended] watch. Once for each store. */
void tierce__store_watch(struct tierce_store *store, struct tierce__store_watch *watch,
                         struct tierce__watched *out);

/* From now on a store of a node's client reports each layer that it fills to the node. It does not
 * wait for the node: if a message cannot be sent, the next one, or the end, covers its layers. Does
 * nothing for a store of own tiers, or with a node of an older version. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__store_tell(struct tierce_store *store);

/* Of a store of a node's client: its view, the number of the node's session
 * (tierce__node_session_number), and that of the store there. */
const struct tierce_view *tierce__store_at_node(const struct tierce_store *store, uint64_t *node,
                                                uint64_t *number);

#endif
