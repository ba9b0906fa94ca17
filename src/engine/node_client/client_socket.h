/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CLIENT_SOCKET_H
#define TIERCE_ENGINE_CLIENT_SOCKET_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The sockets of clients of a node (net/stream.h): they trust its user, and a child of fork closes
 * them. Each call blocks until its deadline at most.
 *
 * Errors of all: negative errno, TIERCE_E_DEADLINE, TIERCE_E_CLOSED (the node closed the
 * connection). After an error the socket must be disconnected. Thread: any, one at a time for each
 * socket.
 */

/* Connects to the Unix socket `path`. The process that listens there must belong to this user, to
 * root, or to `user` (a name or number; "": no other user). Returns the descriptor. Does not wait:
 * -EAGAIN if the node does not accept. Other errors: -EACCES (no permission for the file), -EPERM
 * (another user listens there). */
TIERCE_MUSTUSE int tierce__client_connect(const char *path, const char *user);

void tierce__client_disconnect(int fd);

TIERCE_MUSTUSE int tierce__client_send(int fd, const uint8_t *bytes, size_t count,
                                       uint64_t deadline_ns);

/* Waits until there are bytes to receive. */
TIERCE_MUSTUSE int tierce__client_await(int fd, uint64_t deadline_ns);

/* passed: NULL, or receives the descriptor that came with the bytes, [transfer], or -1. */
TIERCE_MUSTUSE int tierce__client_receive(int fd, uint8_t *bytes, size_t count, int *passed,
                                          uint64_t deadline_ns);

/* Maps a node's pool, which children of fork do not inherit. The descriptor must have a fixed
 * length; otherwise an access could kill the process. Errors: TIERCE_E_FORMAT (it has none, or is
 * shorter), negative errno. */
TIERCE_MUSTUSE int tierce__client_map(uint8_t **out, int fd, uint64_t bytes);

/* For a child of fork, before any other call: closes its copies of the parent's connections, so
 * that they end with the parent. */
void tierce__client_enter_child(void);

#endif
