/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_ORDER_H
#define TIERCE_OPTIMIZER_TRACE_ORDER_H

#include "optimizer/trace/trace.h"

/*
 * Sorts requests by time, stable, within a bounded window. Requests in order wait in a ring at no
 * extra cost; only late ones go through a heap.
 *
 * The window is full when it holds its number of requests, or 256 MiB of blocks.
 */

struct tierce__trace_order;

/* A request in the window. {0} names none. */
struct tierce__order_ticket {
    uint64_t sequence;
    uint32_t slot;
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__order_create(struct tierce__trace_order **out, uint32_t requests_max);

/* NULL is accepted. */
void tierce__order_destroy(struct tierce__trace_order *order);

/*
 * Copies a request into the window. With `ticket` its time may still change: the ticket identifies
 * it for tierce__order_retime. Errors, nothing changed: TIERCE_E_LIMIT (its time is before that of
 * a request already returned), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__order_push(struct tierce__trace_order *order,
                                      const struct tierce__trace_request *request,
                                      struct tierce__order_ticket *ticket);

/*
 * Changes the time of a request; among equal times it is then the last. Errors, nothing changed:
 * TIERCE_E_MISS (it was returned already), TIERCE_E_LIMIT and -ENOMEM as above.
 */
TIERCE_MUSTUSE int tierce__order_retime(struct tierce__trace_order *order,
                                        struct tierce__order_ticket ticket, int64_t time_us);

/* Returns whether the request of a ticket still waits with its original time. */
bool tierce__order_waits(const struct tierce__trace_order *order,
                         struct tierce__order_ticket ticket);

/* Identifies the request that was pushed last without a ticket: its time is final, its content may
 * change. */
struct tierce__order_ticket tierce__order_pushed(const struct tierce__trace_order *order);

/* Returns a waiting request, [borrow]ed until the next call of any function; NULL: it was returned
 * already. */
const struct tierce__trace_request *tierce__order_look(const struct tierce__trace_order *order,
                                                       struct tierce__order_ticket ticket);

/*
 * Replaces the content of a waiting request by a copy; its time and order stay. Errors, nothing
 * changed: TIERCE_E_MISS (it was returned already), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__order_replace(struct tierce__trace_order *order,
                                         struct tierce__order_ticket ticket,
                                         const struct tierce__trace_request *request);

bool tierce__order_full(const struct tierce__trace_order *order);

/* Removes and returns the earliest request, its pointers [borrow]ed until the next call of this
 * function; false if the window is empty. */
bool tierce__order_pop(struct tierce__trace_order *order, struct tierce__trace_request *request);

/* The number of requests that followed one with a later time. */
uint64_t tierce__order_reordered(const struct tierce__trace_order *order);

/* The time of the request returned last; INT64_MIN if none was. */
int64_t tierce__order_last(const struct tierce__trace_order *order);

#endif
