/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_GRACE_H
#define TIERCE_NODE_GRACE_H

#include "engine/objects/objects.h"

/*
 * Short leases on values whose existence was reported to a client: the client then finds the value,
 * unless another client replaces or removes it. Bounded in bytes; the oldest go first.
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

/* Releases values whose time is over; must be called periodically. */
void tierce__grace_expire(struct tierce__grace *grace, uint64_t now_ns);

/* Bytes that are kept. */
uint64_t tierce__grace_bytes(struct tierce__grace *grace);

#endif
