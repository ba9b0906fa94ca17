/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_HOST_PORT_H
#define TIERCE_BASE_HOST_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Addresses as text: HOST or HOST:PORT, with an IPv6 address in brackets before a port. The hosts
 * of URLs are parsed in url.h.
 *
 *     struct tierce__host_port at;
 *     if (!tierce__host_port_split(&at, text, strlen(text)) || at.port == 0)
 *         "'%s' is not an address; it must be HOST:PORT, with an IPv6 address in brackets"
 *
 * Thread: any.
 */

struct tierce__host_port {
    const char *host; /* in the text, without brackets; not terminated */
    size_t host_bytes;
    bool has_port;
    uint16_t port; /* 0 without one */
};

/* An IPv6 address without brackets is a host without a port. The characters of a host are not
 * checked. False, *out undefined: the host is empty, a bracket is missing, or the port is not a
 * number of at most 65535. */
bool tierce__host_port_split(struct tierce__host_port *out, const char *text, size_t bytes);

/* As above; the host is copied and terminated. False also: no port, port 0, or the host does not
 * fit. */
bool tierce__host_port_read(char *host, size_t room, uint16_t *port, const char *text);

/* Writes HOST:PORT, or [HOST]:PORT for an IPv6 address. Returns the length, or `room` or more if it
 * was cut, as snprintf. */
size_t tierce__host_port_format(char *out, size_t room, const char *host, uint16_t port);

#endif
