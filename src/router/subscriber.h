/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_SUBSCRIBER_H
#define TIERCE_ROUTER_SUBSCRIBER_H

#include "router/follower.h"
#include "net/zmq_curve.h"
#include "net/tenant_words.h"

/*
 * The sockets of one publisher, for its follower: SUB for its batches, a DEALER for each replay,
 * HTTP for its snapshot.
 *
 * Thread: its owner, one at a time.
 */

#define TIERCE__SUBSCRIBER_URL_BYTES 256u
#define TIERCE__SUBSCRIBER_ITEMS     3u

struct tierce__subscriber_opts {
    void *context;                     /* of ZMQ */
    struct tierce__follower *follower; /* [borrow until close] */
    char endpoint[TIERCE__SUBSCRIBER_URL_BYTES];
    char replay[TIERCE__SUBSCRIBER_URL_BYTES];   /* "": none */
    char snapshot[TIERCE__SUBSCRIBER_URL_BYTES]; /* "": none */
    /* The public key of a publisher whose stream and replay are encrypted; "": they are not. */
    char server_key[TIERCE__ZMQ_CURVE_TEXT_BYTES];
    struct tierce__tenant_words *keys; /* the index's own; may be NULL. [borrow until close] */
    uint32_t replay_ms, snapshot_ms;
    /* Of snapshots; NULL: this publisher receives none. [borrow until close] */
    struct tierce__tenant_words *tokens;
    const char *tenant;
    const char *ca_file; /* "": the system's CAs */
};

struct tierce__subscriber;

/* Errors, `why` in words: -EINVAL (an endpoint), TIERCE_E_CONFIG (there is no key for server_key),
 * -ENOMEM, other negative errno. */
TIERCE_MUSTUSE int tierce__subscriber_open(struct tierce__subscriber **out,
                                           const struct tierce__subscriber_opts *opts,
                                           char why[256]);
/* NULL is accepted. */
void tierce__subscriber_close(struct tierce__subscriber *subscriber);

/* Begins what its follower needs. Fills up to TIERCE__SUBSCRIBER_ITEMS items to poll, of ZMQ, and
 * returns their number. *wait_ms is lowered to the time after which `work` is due without an event.
 */
int tierce__subscriber_items(struct tierce__subscriber *subscriber, void *items, long *wait_ms);

/* Receives what has arrived. Returns the number of batches. */
uint32_t tierce__subscriber_work(struct tierce__subscriber *subscriber);

#endif
