/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_STREAM_H
#define TIERCE_NET_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <tierce/status.h>

#include "base/threads/lock.h"

/*
 * Bytes to and from a server, over TCP or a Unix socket, by plain calls that block until a deadline
 * (base/clock.h). Sockets do not block and belong to the caller. Thread: any, one at a time for
 * each socket.
 *
 * Errors of all: TIERCE_E_DEADLINE, -ECONNRESET for the end of the stream, other negative errno.
 * After a failed call the number of transferred bytes is unknown, so the socket must be closed.
 */

/* `host`: a name, an address, or the path of a Unix socket (it begins with '/'), which has no port.
 * The name is looked up without a deadline. `why` in words. */
TIERCE_MUSTUSE int tierce__stream_connect(int *fd, const char *host, uint16_t port,
                                          uint64_t deadline_ns, char *why, size_t why_room);

/*
 * Ends the calls of another thread on its socket, from the beginning of connecting until the socket
 * is closed. Thread: any; the socket's own thread watches and leaves.
 */
struct tierce__stopper {
    struct tierce__lock lock; /* STOPPER */
    int fd;                   /* -1: none */
    bool is_stopped;
};

void tierce__stopper_init(struct tierce__stopper *stopper);
void tierce__stopper_fini(struct tierce__stopper *stopper);
/* The call in progress fails soon (as for the end of the stream), and so do all later ones. */
void tierce__stopper_stop(struct tierce__stopper *stopper);
/* Before the first call that may block. False: it is stopped. NULL is accepted, and never stops. */
TIERCE_MUSTUSE bool tierce__stopper_watch(struct tierce__stopper *stopper, int fd);
/* Before the socket is closed. NULL is accepted. */
void tierce__stopper_leave(struct tierce__stopper *stopper);

/* As tierce__stream_connect, with more conditions. Also -ECANCELED: it is stopped; -ETIMEDOUT: no
 * address could be reached in connect_ms. */
struct tierce__stream_to {
    const char *host;
    uint16_t port;
    uint32_t connect_ms;             /* for each address; 0: until the deadline */
    struct tierce__stopper *stopper; /* watches the socket from its beginning; or NULL */
};
TIERCE_MUSTUSE int tierce__stream_connect_to(int *fd, const struct tierce__stream_to *to,
                                             uint64_t deadline_ns, char *why, size_t why_room);

/* Ends a TCP connection on which the network lets nothing pass for about `ms`, in either direction,
 * with -ETIMEDOUT; a process at the other end that is slow or stopped does not end it. Best effort;
 * other sockets are not affected. */
void tierce__stream_watch(int fd, uint32_t ms);

/* Connects to the Unix socket `path`. Does not wait: -EAGAIN if its listener's queue is full. */
TIERCE_MUSTUSE int tierce__stream_connect_unix(int *fd, const char *path);

/* The same to an address, in two steps that do not wait. 0: *fd is connected. -EINPROGRESS: it will
 * be writable when the outcome is known, and tierce__stream_connect_end tells it. Other errors, *fd
 * untouched: negative errno. */
TIERCE_MUSTUSE int tierce__stream_connect_begin(int *fd, const struct sockaddr *address,
                                                socklen_t bytes);
/* 0: connected; negative errno: the socket is of no use, and still the caller's to close. */
TIERCE_MUSTUSE int tierce__stream_connect_end(int fd);

/* Waits for `events` of poll; *got may be NULL. */
TIERCE_MUSTUSE int tierce__stream_wait(int fd, short events, short *got, uint64_t deadline_ns);

/* Sends all pieces, from where they lie; they are used up. */
TIERCE_MUSTUSE int tierce__stream_send(int fd, struct iovec *pieces, int count,
                                       uint64_t deadline_ns);

/* Receives into the pieces, in their order, `least` bytes or more. *got = the number of received
 * bytes. Acknowledges the received bytes at once, so that a peer without TCP_NODELAY continues. */
TIERCE_MUSTUSE int tierce__stream_receive(int fd, struct iovec *pieces, int count, size_t least,
                                          size_t *got, uint64_t deadline_ns);

/* The same over a Unix socket, for exactly the bytes of the piece. passed: NULL, or receives the
 * descriptor that came with the bytes, [transfer], or -1. */
TIERCE_MUSTUSE int tierce__stream_receive_passed(int fd, struct iovec piece, int *passed,
                                                 uint64_t deadline_ns);

/* Leaves out the first `bytes` of the pieces, and empty ones behind them. */
void tierce__stream_skip(struct iovec **pieces, int *count, size_t bytes);

/* Looks at a connection without waiting. 0: open, nothing to read; 1: there are bytes; negative
 * errno: closed, or broken. */
int tierce__stream_look(int fd);

#endif
