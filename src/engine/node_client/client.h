/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_H
#define TIERCE_ENGINE_CLIENT_H

#include <tierce/engine.h>

#include "base/list.h"
#include "engine/lender.h"
#include "proto/native/native.h"

/*
 * The client of an engine without tiers, which uses a node (node.socket): its connections, the
 * mapping of the node's pool, and the objects that the node knows. The requests are in client_ask.c
 * and client_transfer.c.
 *
 *     struct tierce__node_session *peer = tierce__client_peer(engine->client);   // NULL: a miss
 *     struct tierce__asking asking;
 *     rc = tierce__node_session_ask(&asking, peer, TIERCE__NATIVE_LOOKUP, &question, deadline_ns);
 *     ... asking.answer ...
 *     tierce__node_session_done(&asking);
 *     tierce__node_session_release(peer);
 *
 * A node session, `peer` below, begins with our first connection to a node and ends when the node
 * closes that connection. The next node is another peer and knows nothing of earlier requests. The
 * mapping of a peer stays until the last reference is released: a copy from a dead node's pool
 * reads the bytes left there and verifies them as usual.
 *
 *     none ──a call, at most one a second──> connected ──it closes our first connection──> gone
 *
 * The first connection of a peer carries no requests, so that no late answer closes it: it keeps
 * this process the same client.
 *
 * A connected node that hangs is silent after a few late requests: until it answers a probe, every
 * request returns TIERCE_E_DOWN at once, as if there were no node (client_silence.h).
 *
 * Locks: CLIENT, under which nothing waits. Thread: any.
 */

struct tierce__node_client;
struct tierce__node_session;

/* The client of node.socket. [borrow until close] engine. Errors: -ENOMEM. Connects to nothing. */
TIERCE_MUSTUSE int tierce__client_open(struct tierce__node_client **out,
                                       struct tierce_engine *engine,
                                       const struct tierce_config *config);

/* The name of the inference engine that this process is of, or "". [borrow until close] */
const char *tierce__client_engine_name(const struct tierce__node_client *client);

/* No peer may be in use. NULL is accepted. */
void tierce__client_close(struct tierce__node_client *client);

/* The node, with a reference, or NULL where there is none now. Connects if an attempt is due. It
 * blocks until the deadline, at most for timeout.lookup; other threads find no node meanwhile. */
struct tierce__node_session *tierce__client_peer(struct tierce__node_client *client,
                                                 uint64_t deadline_ns);

/* A reference more; NULL is accepted by release. */
struct tierce__node_session *tierce__node_session_acquire(struct tierce__node_session *peer);
void tierce__node_session_release(struct tierce__node_session *peer);

/* How long its stores wait for memory. */
uint32_t tierce__node_session_store_ms(const struct tierce__node_session *peer);

/* Whether it has announced a bit of `tiers`: TIERCE__NATIVE_ASKS_TOKENS,
 * TIERCE__NATIVE_TAKES_HINTS.
 */
bool tierce__node_session_announces(const struct tierce__node_session *peer, uint32_t bit);

/* The version of the native protocol that both sides know. */
uint32_t tierce__node_session_version(const struct tierce__node_session *peer);

/* A number for every peer of the process, not 0. */
uint64_t tierce__node_session_number(const struct tierce__node_session *peer);

/* Memory of the pool, or NULL if it is not all inside. */
uint8_t *tierce__node_session_memory(const struct tierce__node_session *peer, uint64_t offset,
                                     uint64_t bytes);

/* The pool as devices see it; [borrow until the last reference is released]. */
struct tierce__pinnings *tierce__node_session_pinnings(struct tierce__node_session *peer);

/* An answered request. The answer borrows memory of a connection, which is reserved for this caller
 * until done. */
struct tierce__asking {
    struct tierce__node_session *peer;
    struct tierce__node_connection *connection; /* NULL: nothing to release */
    union tierce__native_answer answer;
};

/*
 * Returns the answer's status: 0, an enum tierce__native_status, or a node's error; or a local
 * error: TIERCE_E_DEADLINE (the operation that a late answer begins is ended: by this side if the
 * answer arrives within timeout.pin, else by the node, which cannot deliver the answer),
 * TIERCE_E_DOWN (the node is gone or silent, or its last answers were late: requests that begin an
 * operation are then not sent), -ENOMEM. *asking needs `done` only after 0.
 */
TIERCE_MUSTUSE int tierce__node_session_ask(struct tierce__asking *asking,
                                            struct tierce__node_session *peer,
                                            enum tierce__native_op op,
                                            const union tierce__native_request *question,
                                            uint64_t deadline_ns);
void tierce__node_session_done(struct tierce__asking *asking);

/* Sends a request whose answer has no content. */
int tierce__node_session_tell(struct tierce__node_session *peer, enum tierce__native_op op,
                              const union tierce__native_request *question, uint64_t deadline_ns);

/* Sends a request that has no answer. Returns TIERCE_E_DOWN if none was sent: no connection is
 * idle, or the node does not read. Does not block. */
int tierce__node_session_post(struct tierce__node_session *peer, enum tierce__native_op op,
                              const union tierce__native_request *question);

/*
 * The pending end of a load, store or prefetch. It must reach the node: if it cannot be sent now,
 * it is sent when the node next answers. Allocated with the handle, so that ending cannot fail for
 * lack of memory.
 */
struct tierce__owed {
    struct tierce__list node;
    enum tierce__native_op op;
    union tierce__native_request question; /* without rows */
};

/* [transfer] owed. If it can be sent now, it has the rows of `question`. Returns the count of the
 * answer to the end of a store, else 0. */
uint64_t tierce__node_session_end(struct tierce__node_session *peer, struct tierce__owed *owed,
                                  const union tierce__native_request *question);

/* ---- client_ask.c, which has the table of the lender ---- */

/* A client's part of a view: the names of its namespace, and the peer that knows the view. */
struct tierce__client_view;

/* The peer, and the view's number there. NULL: there is no peer, it rejects the view, or the
 * deadline has passed. */
struct tierce__node_session *tierce__client_view_peer(const struct tierce_view *view,
                                                      uint64_t *number, uint64_t deadline_ns);

/* Sends a request whose `slot` is filled with the blocks of the chain that the peer lacks;
 * afterwards the peer has the whole chain. */
TIERCE_MUSTUSE int tierce__client_ask_chain(struct tierce__asking *asking,
                                            struct tierce__node_session *peer,
                                            enum tierce__native_op op,
                                            union tierce__native_request *question,
                                            struct tierce__native_chain *slot,
                                            const struct tierce_chain *chain, uint64_t deadline_ns);

/* A node's status as the result of a call: an error for a broken contract, 0 for a miss. Forgets
 * the view's number if the peer does not know it. */
int tierce__client_miss(const struct tierce_view *view, int status);

/* Drops the session's pins in the node. If the request is lost, they expire. */
void tierce__client_unpin(struct tierce_view *view, uint64_t session);

/* client_tokens.c: sends the tokens of chain[0, to_block) that the peer lacks, if it asks for them
 * and the chain has kept them. They are for KV events only: a failure has no consequence. [in]
 * number: the view's, at the peer. */
void tierce__client_tell_tokens(const struct tierce_view *view, struct tierce__node_session *peer,
                                uint64_t number, const struct tierce_chain *chain,
                                uint64_t to_block, uint64_t deadline_ns);

/* Whether the node is connected now and is not silent: for the counters. */
bool tierce__client_is_connected(struct tierce__node_client *client);

/* ---- client_handover.c ---- */

#define TIERCE__CLIENT_WHY_BYTES 256u

/* The chunks that a call is about; without chunks, all are NULL. */
struct tierce__client_about {
    const struct tierce_view *view;
    const struct tierce_view *other; /* its number becomes that of the request; or NULL */
    const struct tierce_chain *chain;
    uint64_t *node;    /* the number of its session: no other node is asked; 0: is set; or NULL */
    uint64_t until_ns; /* the call ends then at the latest; 0: with its own time */
};

/* Has the node carry out a call for prefill and decode. Returns the status of the call, with `why`
 * in words or "", or TIERCE_E_DOWN (there is no node), TIERCE_E_VERSION (an older one),
 * TIERCE_E_DEADLINE. Blocks for up to ask->timeout_ms, and some seconds, or until about->until_ns.
 */
TIERCE_MUSTUSE int tierce__client_hand_over(struct tierce_engine *engine,
                                            const struct tierce__client_about *about,
                                            const struct tierce__native_hand *ask,
                                            struct tierce__native_handed *out,
                                            char why[TIERCE__CLIENT_WHY_BYTES]);

/* The progress of a push. Returns 0; TIERCE_E_DOWN (there is no node, or another one),
 * -EAGAIN (it accepts nothing now), TIERCE_E_DEADLINE, -ENOMEM, TIERCE_E_MISS (it does not know the
 * push). Blocks for some seconds.
 */
TIERCE_MUSTUSE int tierce__client_push_poll(struct tierce_engine *engine, uint64_t node,
                                            uint64_t push, struct tierce__native_pushed *out,
                                            char why[TIERCE__CLIENT_WHY_BYTES]);

/* ---- client_transfer.c ---- */

/* The numbers by which the node identifies the space: of the session and of the store. */
void tierce__client_store_number(const struct tierce__lender_space *space, uint64_t *node,
                                 uint64_t *number);

/* A watch of the store that reports its layers to the node. It outlives the store, and holds the
 * peer. *out is NULL if the node is of an older version. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__client_store_tell(struct tierce__store_watch **out,
                                             const struct tierce__lender_space *space);

/*
 * Stores and loads in the memory of a node's pool. If no node answers, there is nothing to store or
 * to load. Beginning a store blocks for up to timeout.lookup plus timeout.store, beginning a load
 * for up to timeout.lookup.
 *
 * Errors: TIERCE_E_ARGUMENT, -ENOMEM. Thread: a store or a load belongs to one thread at a time.
 */

int tierce__client_store_begin(struct tierce__lender_space *space, struct tierce_view *view,
                               const struct tierce_transfer_opts *opts);
int64_t tierce__client_store_end(struct tierce__lender_space *space, bool complete);
/* The node gives a store up by itself, timeout.pin after its begin. */
void tierce__client_store_give_up(struct tierce__lender_space *space);

int tierce__client_load_begin(struct tierce__load_lease **out, struct tierce_view *view,
                              const struct tierce_transfer_opts *opts);

#endif
