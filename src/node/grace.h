/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_GRACE_H
#define TIERCE_NODE_GRACE_H

#include "engine/objects.h"

/*
 * Leases on values whose existence was answered with yes, for a moment each: whoever was told so
 * finds the value, unless somebody replaced or removed it. Bounded in bytes; the oldest go first.
 *
 * Thread: any.
 */

struct tierce__grace;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grace_create(struct tierce__grace **out, uint32_t ms,
                                        uint64_t bytes_max);
/* NULL is accepted. */
void tierce__grace_destroy(struct tierce__grace *grace);

/* [transfer] object */
void tierce__grace_keep(struct tierce__grace *grace, struct tierce__object *object);

/* Lets go of those whose moment is over; to be called now and then. */
void tierce__grace_expire(struct tierce__grace *grace, uint64_t now_ns);

/* Bytes that are kept. */
uint64_t tierce__grace_bytes(struct tierce__grace *grace);

#endif
