/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_NATIVE_CALLS_H
#define TIERCE_NODE_NATIVE_CALLS_H

#include "node/native/native_private.h"

/* Shared by the files that answer requests: native_calls.c and native_load.c. */

/* A request and its answer. Each kind of request has a function that returns the status. */
struct tierce__native_call {
    struct tierce__native_connection *connection;
    struct tierce__native_client *client;
    struct tierce__native *native;
    union tierce__native_request ask;
    union tierce__native_answer say;
    char why[256]; /* of the answers to HAND_OVER and PUSH_POLL */
};

/* Returns room for `count` rows of the answer; NULL: no memory. It is valid until the next call for
 * this connection. */
uint8_t *tierce__native_make_rows(struct tierce__native_call *call,
                                  struct tierce__native_rows *rows, size_t count, size_t row_bytes);

/* A request about a chain in a view: holds both until done. */
struct tierce__native_about {
    struct tierce__native_held_view *view;
    struct tierce__native_held_chain *chain;
};

/* Fills `about`; end it after an error too. Returns 0, TIERCE__NATIVE_UNKNOWN,
 * TIERCE__NATIVE_UNKNOWN_CHAIN, or TIERCE_E_ARGUMENT: the chain has not the blocks. */
TIERCE_MUSTUSE int tierce__native_begin_about(struct tierce__native_call *call,
                                              struct tierce__native_about *about, uint64_t view,
                                              const struct tierce__native_chain *chain,
                                              uint64_t from_block, uint64_t to_block);
void tierce__native_end_about(struct tierce__native_call *call, struct tierce__native_about *about);

/* Passes the reference to the object that is open on it. */
struct tierce__native_held_view *tierce__native_keep_view(struct tierce__native_about *about);

/* Whether the node accepts no new loads, stores and prefetches. */
bool tierce__native_is_draining(const struct tierce__native_call *call);

/* ---- native_load.c ---- */

int tierce__native_answer_load_begin(struct tierce__native_call *call);
int tierce__native_answer_load_wait(struct tierce__native_call *call);
int tierce__native_answer_load_next(struct tierce__native_call *call);
int tierce__native_answer_load_end(struct tierce__native_call *call);

/* ---- native_handover.c ---- */

int tierce__native_answer_hand_over(struct tierce__native_call *call);

/* ---- native_push.c ---- */

/* The kinds of HAND_OVER about pushes. */
int tierce__native_push_call(struct tierce__native_call *call, char *why);
int tierce__native_answer_push_poll(struct tierce__native_call *call);

#endif
