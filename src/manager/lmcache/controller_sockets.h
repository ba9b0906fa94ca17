/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_SOCKETS_H
#define TIERCE_MANAGER_CONTROLLER_SOCKETS_H

#include "manager/lmcache/controller.h"

/*
 * The ZMQ sockets of LMCache's controller, on a thread of their own: PULL for reports, and a ROUTER
 * each for requests and heartbeats. Everything that arrives is given to the controller, which this
 * thread also ticks.
 *
 * Thread: one at a time for start and stop.
 */

struct tierce__controller_sockets;

struct tierce__controller_sockets_opts {
    size_t size;
    struct tierce__controller *controller;          /* [borrow until stop] */
    const char *host;                               /* an address or name of this machine */
    uint16_t pull_port, reply_port, heartbeat_port; /* 0: none */
    uint32_t silence_ms; /* of the directory, whose workers are kept by ticks; 0: more than 4 s */
    bool (*leads)(void *arg); /* whether this manager leads */
    void *arg;
};

/* Binds and begins. Errors, `why` in words: negative errno (a port in use, an unknown host),
 * -ENOMEM. */
TIERCE_MUSTUSE int
tierce__controller_sockets_start(struct tierce__controller_sockets **out,
                                 const struct tierce__controller_sockets_opts *opts, char why[256]);
/* NULL is accepted. */
void tierce__controller_sockets_stop(struct tierce__controller_sockets *sockets);

#endif
