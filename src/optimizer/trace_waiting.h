/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_WAITING_H
#define TIERCE_OPTIMIZER_TRACE_WAITING_H

#include "optimizer/trace_order.h"

/*
 * Requests in the window by a name of theirs, for formats in which a later line says more about
 * them. Names of requests that were given out are dropped when room is needed, so that there are
 * never many more than the window holds.
 */

#define TIERCE__WAITING_NAME_MAX 64u /* bytes; at least 1 */

struct tierce__trace;
struct tierce__waiting_place;

/* Zeroed: none. */
struct tierce__waiting {
    struct tierce__waiting_place *places; /* [capacity], at most half of them taken */
    size_t capacity, count;
};

/* The name is this request's from now on. -ENOMEM. */
TIERCE_MUSTUSE int tierce__waiting_put(struct tierce__waiting *waiting,
                                       const struct tierce__trace *trace, const void *name,
                                       size_t length, struct tierce__order_ticket ticket);

/* False, *out untouched: there is none of this name. The request may have been given out. */
bool tierce__waiting_find(const struct tierce__waiting *waiting, struct tierce__order_ticket *out,
                          const void *name, size_t length);

void tierce__waiting_forget(struct tierce__waiting *waiting, const void *name, size_t length);

void tierce__waiting_fini(struct tierce__waiting *waiting);

#endif
