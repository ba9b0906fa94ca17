/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_POLL_LOOP_H
#define TIERCE_NET_POLL_LOOP_H

#include <stdatomic.h>

#include "net/server/loop.h"

/*
 * An epoll loop on its own thread, for gRPC, Redis' protocol and lm://. A source is registered
 * once, edge triggered, for both directions. A reader or writer continues until the socket would
 * block, so no system call changes the registration.
 */

#define TIERCE__POLL_SCRATCH_BYTES (64u << 10)

struct tierce__poll_source {
    int fd;
    int epoll_fd; /* of the loop that watches it; the loop's */
    void (*ready)(struct tierce__poll_source *source, uint32_t events); /* EPOLLIN, ... */
    struct tierce__list again; /* of those that have more to do without an event */
};

struct tierce__poll_loop {
    struct tierce__loop base;
    int epoll_fd, event_fd;
    pthread_t thread;
    bool is_ending;
    struct tierce__list again;
    struct tierce__list members;   /* the loop's members: connections. Owner only */
    _Atomic uint32_t member_count; /* relaxed: to choose the loop of a new one, and to wait */
    uint8_t scratch[TIERCE__POLL_SCRATCH_BYTES], plain[TIERCE__POLL_SCRATCH_BYTES];
};

/* Errors: -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__poll_loop_start(struct tierce__poll_loop **out);

/* Ends the thread; nothing is watched any more. NULL is accepted. Not on the loop. */
void tierce__poll_loop_stop(struct tierce__poll_loop *loop);

/* Owner only. Errors: -ENOMEM, -ENOSPC. */
TIERCE_MUSTUSE int tierce__poll_watch(struct tierce__poll_loop *loop,
                                      struct tierce__poll_source *source);

/* Closes its descriptor; it is called no more. Owner only. */
void tierce__poll_close(struct tierce__poll_source *source);

/* Makes the loop call `ready` with 0 after all other sources had their turn. Owner only. */
void tierce__poll_again(struct tierce__poll_loop *loop, struct tierce__poll_source *source);

#endif
