/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESOLVE_H
#define TIERCE_NET_RESOLVE_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The addresses of a host, without blocking: a literal address is known at once, and a name is
 * looked up by a thread of the C library (getaddrinfo_a).
 *
 *     rc = tierce__resolve_begin(&resolve, host, port);
 *     while ((rc = tierce__resolve_poll(resolve, &list, why, sizeof(why))) == -EINPROGRESS)
 *         ...                          // some milliseconds
 *     tierce__resolve_end(resolve);    // the list goes with it
 *
 * Thread: one at a time.
 */

struct tierce__resolve;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resolve_begin(struct tierce__resolve **out, const char *host,
                                         uint16_t port);

/* 0: *list is set, [borrow until end]. -EINPROGRESS: later. Errors, `why` in words: -EHOSTUNREACH,
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__resolve_poll(struct tierce__resolve *resolve,
                                        const struct addrinfo **list, char *why, size_t why_room);

/* NULL is accepted. A lookup that cannot be cancelled any more is left to the C library, with its
 * memory. */
void tierce__resolve_end(struct tierce__resolve *resolve);

#endif
