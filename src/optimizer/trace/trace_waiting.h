/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_WAITING_H
#define TIERCE_OPTIMIZER_TRACE_WAITING_H

#include "base/map.h"
#include "optimizer/trace/trace_order.h"

/*
 * An index of the window's requests by name, for formats in which a later line adds to an earlier
 * request. Names of requests that were returned are dropped when room is needed, so the index is
 * never much larger than the window.
 */

#define TIERCE__WAITING_NAME_MAX 64u /* bytes; at least 1 */

struct tierce__trace;

/* Zeroed: none. */
struct tierce__waiting {
    struct tierce__map names;
    size_t limit; /* of names, until those of returned requests are dropped */
};

/* Assigns the name to this request. -ENOMEM. */
TIERCE_MUSTUSE int tierce__waiting_put(struct tierce__waiting *waiting,
                                       const struct tierce__trace *trace, const void *name,
                                       size_t length, struct tierce__order_ticket ticket);

/* Finds a request by name. False, *out untouched: unknown name. The request may have been returned
 * already. */
bool tierce__waiting_find(const struct tierce__waiting *waiting, struct tierce__order_ticket *out,
                          const void *name, size_t length);

void tierce__waiting_forget(struct tierce__waiting *waiting, const void *name, size_t length);

void tierce__waiting_fini(struct tierce__waiting *waiting);

#endif
