/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_MEMORY_H
#define TIERCE_TIER_MEMORY_H

#include "policy/policy.h"
#include "tier/tier.h"

/*
 * The memory tier: an index over pool buffers and a policy that says which one leaves.
 *
 * It lends: GET gives a reference on the buffer, nothing is copied. A buffer with references other
 * than the tier's own (leases, pins, a disk queue) is not evictable. PUT takes a reference on the
 * sealed buffer and completes inside submit, as does everything else here.
 */

struct tierce__memory_opts {
    size_t size;               /* sizeof(struct tierce__memory_opts) */
    struct tierce__pool *pool; /* [borrow until close] */
    const struct tierce__policy_ops *policy;
    uint32_t chunk_count_max; /* 0: as many as the pool has buffers */
    uint64_t seed;
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__memory_open(struct tierce__tier **out,
                                       const struct tierce__memory_opts *opts);

#endif
