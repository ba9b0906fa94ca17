/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_ORDER_H
#define TIERCE_OPTIMIZER_TRACE_ORDER_H

#include "optimizer/trace.h"

/*
 * Requests in the order of their times, equal times in the order in which they came, as far as a
 * bounded window reaches. What comes in order waits in a ring and costs nothing more; only what
 * comes late goes through a heap.
 *
 * The window is full when it holds its number of requests, or 256 MiB of blocks.
 */

struct tierce__order;

/* A request in the window. {0} names none. */
struct tierce__order_ticket {
    uint64_t sequence;
    uint32_t slot;
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__order_create(struct tierce__order **out, uint32_t requests_max);

/* NULL is accepted. */
void tierce__order_destroy(struct tierce__order *order);

/*
 * Copies a request into the window. With `ticket` its time is one that may still change: the ticket
 * names it for tierce__order_retime.
 * Errors, nothing changed: TIERCE_E_LIMIT (its time is before that of a request given out),
 * -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__order_push(struct tierce__order *order,
                                      const struct tierce__trace_request *request,
                                      struct tierce__order_ticket *ticket);

/*
 * Gives a request another time, and the place of one that came now. Errors, nothing changed:
 * TIERCE_E_MISS (it was given out already), TIERCE_E_LIMIT and -ENOMEM as above.
 */
TIERCE_MUSTUSE int tierce__order_retime(struct tierce__order *order,
                                        struct tierce__order_ticket ticket, int64_t time_us);

/* Whether the request of a ticket still waits at the time that it came with. */
bool tierce__order_waits(const struct tierce__order *order, struct tierce__order_ticket ticket);

/* The request that was pushed last without a ticket: its time is settled, its content may
 * change. */
struct tierce__order_ticket tierce__order_pushed(const struct tierce__order *order);

/* A request that waits, [borrow]ed until something else is called; NULL: it was given out. */
const struct tierce__trace_request *tierce__order_look(const struct tierce__order *order,
                                                       struct tierce__order_ticket ticket);

/*
 * Gives a request that waits another content, copied; its time and its place stay. Errors, nothing
 * changed: TIERCE_E_MISS (it was given out already), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__order_replace(struct tierce__order *order,
                                         struct tierce__order_ticket ticket,
                                         const struct tierce__trace_request *request);

bool tierce__order_full(const struct tierce__order *order);

/* Gives the earliest out, its pointers [borrow]ed until the next call of this; false if the window
 * is empty. */
bool tierce__order_pop(struct tierce__order *order, struct tierce__trace_request *request);

/* How many came after one with a later time. */
uint64_t tierce__order_reordered(const struct tierce__order *order);

/* The time of what was given out last; INT64_MIN before. */
int64_t tierce__order_last(const struct tierce__order *order);

#endif
