/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESOLVE_H
#define TIERCE_NET_RESOLVE_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The addresses of a host, without blocking: a literal address is known at once, and a name is
 * looked up by a thread of its own.
 *
 *     rc = tierce__resolve_begin(&resolve, host, port);
 *     while ((rc = tierce__resolve_poll(resolve, &list, why, sizeof(why))) == -EINPROGRESS)
 *         ...                          // until tierce__resolve_fd can be read
 *     tierce__resolve_end(resolve);    // the list goes with it
 *
 * Thread: one at a time.
 */

/* Names that are looked up at the same time in this process; further ones fail as if the name
 * server did not answer. */
#define TIERCE__RESOLVE_THREADS 32u

struct tierce__resolve;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resolve_begin(struct tierce__resolve **out, const char *host,
                                         uint16_t port);

/* 0: *list is set, [borrow until end]. -EINPROGRESS: later. Errors, `why` in words: -EHOSTUNREACH,
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__resolve_poll(struct tierce__resolve *resolve,
                                        const struct addrinfo **list, char *why, size_t why_room);

/* While tierce__resolve_poll returns -EINPROGRESS: a descriptor that can be read when it no longer
 * does so. Otherwise perhaps -1. [borrow until end] */
int tierce__resolve_fd(const struct tierce__resolve *resolve);

/* NULL is accepted. A lookup that still runs is left to its thread, which frees it. */
void tierce__resolve_end(struct tierce__resolve *resolve);

#endif
