/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_LISTEN_H
#define TIERCE_SERVE_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tierce/status.h>

/* A listening TCP socket, non-blocking, of the first address that `host` has; port 0: any, *port is
 * filled in. "::" takes IPv4 too. Errors: negative errno, `why` in words. */
TIERCE_MUSTUSE int tierce__listen_tcp(int *out_fd, uint16_t *port, const char *host, char why[256]);

/* Whether a host to listen on is this machine's alone: 127.x.y.z, ::1 or localhost. */
bool tierce__is_loopback_host(const char *host);

/* Whether only this machine reaches a listening socket. */
bool tierce__listens_on_loopback(int fd);

/* "127.0.0.1:4711", "[::1]:4711"; IPv4 in IPv6 as IPv4. */
#define TIERCE__PEER_BYTES 64u
void tierce__peer_print(char text[TIERCE__PEER_BYTES], const struct sockaddr *address);

#endif
