/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_SHORT_LEASE_H
#define TIERCE_NODE_SHORT_LEASE_H

#include "engine/objects/objects.h"

/*
 * Short leases on values whose existence was reported to a client: the client then finds the value,
 * unless another client replaces or removes it. Their bytes are bounded; the oldest are released
 * first.
 *
 * Thread: any.
 */

struct tierce__short_leases;

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__short_leases_create(struct tierce__short_leases **out, uint32_t ms,
                                               uint64_t bytes_max);
/* NULL is accepted. */
void tierce__short_leases_destroy(struct tierce__short_leases *leases);

/* Leases a value until the time has passed. [transfer] object; a value above the bound, or without
 * memory for the lease, is released at once. */
void tierce__short_leases_keep(struct tierce__short_leases *leases, struct tierce__object *object);

/* Releases values whose lease has expired; must be called periodically. */
void tierce__short_leases_expire(struct tierce__short_leases *leases, uint64_t now_ns);

/* The bytes of all leased values. */
uint64_t tierce__short_leases_bytes(struct tierce__short_leases *leases);

#endif
