/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_PUSH_H
#define TIERCE_HANDOVER_PUSH_H

#include "engine/handover/handover.h"

/*
 * The prefiller's side of a push: it writes the chunks of a prompt to a decoder's inbox
 * (handover_inbox.h) while they are computed.
 *
 *     rc = tierce__push_begin(&push, view, &to);
 *     rc = tierce__push_held(push, view, chain, to_block); // chunks that memory has
 *     rc = tierce_store_begin(&store, view, &what);      // for each step of the prompt:
 *     rc = tierce__push_watch(push, store);
 *     ... tierce_store_layer, tierce_store_end ...
 *     tierce__push_end(push);                            // all steps are done
 *     while (!tierce__push_is_over(push, &pushed)) ...
 *     tierce__push_destroy(push);                        // before the engine is closed
 *
 * A thread sends all that is ready: the first 8 bytes of each chunk, which make the decoder reserve
 * its memory; then each layer as soon as it is in this engine's memory, several at a time if the
 * network is slower than the engine; and the header with its sums when the chunk is sealed. Earlier
 * chunks go first. So no bytes are sent for which the decoder has no room, and no chunk is visible
 * there whose store was given up here.
 *
 * A decoder without room is asked again for `wait_ms`; a chunk that finds none is left out. A
 * connection that fails, or on which a range takes longer than `timeout_ms`, ends the push. A push
 * that fails changes nothing here: the decoder reads the chunks, or computes them.
 *
 * The push holds a reference on each chunk until the decoder has it. Out of the memory of a device,
 * a layer is sent when its copy has ended; the end of the store waits for these copies.
 *
 * A client of a node (node.socket) has the node push, out of the node's memory. Its watched store
 * reports each layer to the node; a rank whose store is a part of the same chunks, and that does
 * not push itself, calls tierce__store_tell. The node sends layers that a rank does not report when
 * the stores of all parts have ended. Each call then blocks until the node has answered.
 *
 * Thread: any, except that destroy must be the last call.
 */

struct tierce__push;
struct tierce__reservation;

struct tierce__push_to {
    const char *host; /* all three: [borrow for the call] */
    uint16_t port;
    bool uses_tls; /* as its inbox says; this engine must, too */
    const char *ticket;
    uint32_t wait_ms;    /* for room at the decoder */
    uint32_t timeout_ms; /* of connecting, and of each range */
};

struct tierce__pushed {
    uint64_t chunks, bytes; /* that the decoder has verified */
    uint64_t present;       /* chunks that it had already */
    uint64_t left_out;      /* chunks that it has not got */
    uint64_t over_ns;       /* when the answer came that the last one is verified; 0: none */
    int status;             /* the first failure, or 0 */
    char why[TIERCE__HANDOVER_WHY_BYTES];
};

/* Does not block, except for the answer of a node. Errors: TIERCE_E_UNSUPPORTED (the node is of an
 * older version: logged), TIERCE_E_ARGUMENT (a text is too long), -ENOMEM, negative errno (no
 * thread), TIERCE_E_DOWN (no node), TIERCE_E_LIMIT (the node has too many pushes of this client).
 */
TIERCE_MUSTUSE int tierce__push_begin(struct tierce__push **out, struct tierce_view *view,
                                      const struct tierce__push_to *to);

/* Adds the chunks of chain[0, to_block), which ends the chain, that memory holds now. The view is
 * one of the same engine. Returns how many. Errors: -ENOMEM. */
TIERCE_MUSTUSE int64_t tierce__push_held(struct tierce__push *push, struct tierce_view *view,
                                         const struct tierce_chain *chain, uint64_t to_block);

/* Adds the chunks of a store, before its first layer; of any view of the engine. The push is
 * destroyed after the store's end. Errors: -ENOMEM; the store goes on without the push. */
TIERCE_MUSTUSE int tierce__push_watch(struct tierce__push *push, struct tierce_store *store);
/* The same in a node, of a client's store, which does not end meanwhile. Also TIERCE_E_ARGUMENT: as
 * tierce__reserve_watch. */
TIERCE_MUSTUSE int tierce__push_reserved(struct tierce__push *push, const struct tierce_view *view,
                                         struct tierce__reservation *reservation);

/* No more chunks are added. Does not block, except for the answer of a node. */
void tierce__push_end(struct tierce__push *push);
/* Whether its thread and the watched stores have ended. [out] its result so far; NULL is accepted.
 * Ends the connection of a push whose time is over (give_up). */
bool tierce__push_is_over(struct tierce__push *push, struct tierce__pushed *out);
/* Gives up what has not been sent; answers that are due may come for `ms`. The next is_over or
 * destroy after that ends the connection, also while it is being made. Does not block: the push is
 * over when its watched stores are, too. */
void tierce__push_give_up(struct tierce__push *push, uint32_t ms);
/* Gives up what has not been sent, and blocks for the answers that are due, at most timeout_ms for
 * all of them. All watched stores have ended. NULL is accepted. */
void tierce__push_destroy(struct tierce__push *push);

#endif
