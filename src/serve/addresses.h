/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_ADDRESSES_H
#define TIERCE_SERVE_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <tierce/status.h>

/*
 * How many connections of a listener come from one address, with a limit. Of IPv6 an address is its
 * first 64 bits: who has one has all behind them. Thread: any.
 */

struct tierce__addresses;

struct tierce__address {
    uint8_t bytes[16]; /* IPv4 as IPv6 writes it */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__addresses_create(struct tierce__addresses **out, uint32_t max);
void tierce__addresses_destroy(struct tierce__addresses *addresses);

/* Another connection of `from`, whose address is left in *out for tierce__addresses_leave. False:
 * that address has as many as it may, or there is no memory; nothing is counted. */
TIERCE_MUSTUSE bool tierce__addresses_enter(struct tierce__addresses *addresses,
                                            struct tierce__address *out,
                                            const struct sockaddr *from);
void tierce__addresses_leave(struct tierce__addresses *addresses,
                             const struct tierce__address *address);

#endif
