/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_POLL_DOOR_H
#define TIERCE_NET_POLL_DOOR_H

#include <sys/socket.h>

#include "net/server/poll_loop.h"

/*
 * A listening socket on a loop, which passes accepted connections to its owner. One loop accepts
 * for all: with one listening socket for each loop, a few connections often land on the same one.
 */

struct tierce__poll_door {
    struct tierce__poll_source source;
    struct tierce__deadline pause; /* after an error; then it accepts again */
    struct tierce__poll_loop *loop;
    /* On the loop. [transfer] fd, non-blocking */
    void (*accepted)(struct tierce__poll_door *door, int fd, const struct sockaddr_storage *peer);
    const char *shortage; /* event that is logged while connections cannot be accepted */
    uint16_t port;
    int spare_fd, watch_rc;
};

/* The caller has set loop, accepted, shortage and port (0: any, it is filled in). Errors: negative
 * errno, `why` in words. Not on the loop. */
TIERCE_MUSTUSE int tierce__poll_door_open(struct tierce__poll_door *door, const char *host,
                                          char why[256]);

/* Stops accepting; returns when that is done. Only an open door. Not on the loop. */
void tierce__poll_door_close(struct tierce__poll_door *door);

/* The loop with the fewest members. Thread: any. */
struct tierce__poll_loop *tierce__poll_emptiest(struct tierce__poll_loop *const *loops,
                                                size_t count);

#endif
