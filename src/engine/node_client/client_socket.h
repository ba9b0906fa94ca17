/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_SOCKET_H
#define TIERCE_ENGINE_CLIENT_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The sockets of clients of a node: calls that wait until a deadline and no longer.
 *
 * Errors of all: negative errno, TIERCE_E_DEADLINE, TIERCE_E_CLOSED (the other side has). A socket
 * is good for nothing after any of them. Thread: a socket belongs to one at a time.
 */

/* Connects to the Unix socket `path`, which must belong to our user, to root, or to `user` (a name
 * or number; "": no other user). Returns the descriptor. Does not wait: -EAGAIN if the other side
 * does not accept. Errors: -EACCES (the file is not open to us), -EPERM (it is of another user). */
TIERCE_MUSTUSE int tierce__client_connect(const char *path, const char *user);

void tierce__client_disconnect(int fd);

TIERCE_MUSTUSE int tierce__client_send(int fd, const uint8_t *bytes, size_t count,
                                       uint64_t deadline_ns);

/* Until there is something to receive. */
TIERCE_MUSTUSE int tierce__client_await(int fd, uint64_t deadline_ns);

/* passed: NULL, or gets the descriptor that came with the first byte, [transfer], or -1. */
TIERCE_MUSTUSE int tierce__client_receive(int fd, uint8_t *bytes, size_t count, int *passed,
                                          uint64_t deadline_ns);

/* Whether the other side has closed a connection on which nothing is under way. */
bool tierce__client_is_closed(int fd);

/* In a child of fork, before anything else: closes what it got of its parent's connections, so that
 * they end with the parent. */
void tierce__client_enter_child(void);

#endif
