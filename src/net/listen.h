/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_LISTEN_H
#define TIERCE_NET_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tierce/status.h>

/* A listening TCP socket, non-blocking, of the first address that `host` has; port 0: any, *port is
 * filled in. "::" takes IPv4 too. Errors: negative errno, `why` in words. */
TIERCE_MUSTUSE int tierce__listen_tcp(int *out_fd, uint16_t *port, const char *host, char why[256]);

/* Accepts the next connection, non-blocking, and its address. -EAGAIN: none waits. -EMFILE: no
 * descriptor is left; the connection was closed by means of *spare_fd, because it would otherwise
 * wake its loop forever. *spare_fd was opened again (-1: that failed). Others: negative errno. */
TIERCE_MUSTUSE int tierce__listen_accept(int fd, int *spare_fd, struct sockaddr_storage *peer);

/* Makes the kernel send small packets of an accepted connection at once, and probe a peer that is
 * silent for a minute. */
void tierce__listen_tune(int fd);

/* Opens the spare descriptor, or returns -1. */
int tierce__listen_spare(void);

/* Returns whether a listening socket can only be reached from this machine. */
bool tierce__listens_on_loopback(int fd);

/* "127.0.0.1:4711", "[::1]:4711"; IPv4 in IPv6 as IPv4. */
#define TIERCE__PEER_BYTES 64u
void tierce__peer_print(char text[TIERCE__PEER_BYTES], const struct sockaddr *address);

#endif
