/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_ADDRESSES_H
#define TIERCE_NET_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tierce/status.h>

/*
 * Counts and limits a listener's connections per client address. For IPv6 the first 64 bits count
 * as the address, because a client usually controls the whole prefix. Thread: any.
 */

struct tierce__addresses;

struct tierce__address {
    uint8_t bytes[16]; /* IPv4 as IPv6 writes it */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__addresses_create(struct tierce__addresses **out, uint32_t max);
void tierce__addresses_destroy(struct tierce__addresses *addresses);

/* Counts a connection from `from`, and sets *out to its address for tierce__addresses_leave. False,
 * nothing counted: the address has reached its limit, or memory ran out. */
TIERCE_MUSTUSE bool tierce__addresses_enter(struct tierce__addresses *addresses,
                                            struct tierce__address *out,
                                            const struct sockaddr *from);
void tierce__addresses_leave(struct tierce__addresses *addresses,
                             const struct tierce__address *address);

#endif
