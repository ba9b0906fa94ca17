/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_JOIN_H
#define TIERCE_NODE_JOIN_H

#include "node/part/part.h"

/*
 * A thread that registers a node's parts with the managers of a fleet (RegisterNode), a few times
 * in each lease, as long as the node runs. A manager that does not answer is asked again; the parts
 * serve meanwhile. Each kind of trouble is logged when it begins and when it ends.
 *
 *     fleet://MANAGER:PORT[,MANAGER:PORT]/POOL[?token_file=F&ca_file=F]      fleet+tls://...
 *
 * Thread: any.
 */

struct tierce__join;

struct tierce__join_opts {
    size_t size;
    const char *url;            /* as above; [borrow for the call], as all texts here */
    const char *node, *address; /* its name; HOST:PORT of its server, for engines */
    bool uses_tls;
    struct tierce__parts *parts;        /* [borrow until stop] */
    uint64_t (*moved_bytes)(void *arg); /* that the server has moved so far */
    void *arg;
};

/* Checks a URL. Errors: TIERCE_E_CONFIG, -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__join_check(const char *url, char why[256]);

/* Errors: those of check, -EAGAIN (no thread). */
TIERCE_MUSTUSE int tierce__join_start(struct tierce__join **out,
                                      const struct tierce__join_opts *opts, char why[256]);
/* Begins to tell the leader that the node leaves; does not block. stop follows. */
void tierce__join_leave(struct tierce__join *join);
/* The same, and waits for the answer of the leader, at most a second. NULL is accepted. */
void tierce__join_stop(struct tierce__join *join);

struct tierce__join_state {
    bool is_joined; /* the last call was answered, and its lease lasts */
    uint64_t calls, failures;
    char why[256]; /* of the last failure, if it has not ended */
    struct {
        char storage[128]; /* the name that the manager gives the part; "" */
        const char *state; /* "serves", "emptying", "disabled", "rejected", "not registered" */
    } parts[TIERCE__PARTS_MAX];
};
void tierce__join_state(struct tierce__join *join, struct tierce__join_state *out);

#endif
