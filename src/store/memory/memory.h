/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_MEMORY_H
#define TIERCE_TIER_MEMORY_H

#include "core/policy/policy.h"
#include "store/slots.h"
#include "store/tier.h"

/*
 * The memory tier: an index over pool buffers, and a policy that chooses the victims.
 *
 * It lends: GET and LOOKUP give references on the buffers, nothing is copied. A buffer with
 * references other than the tier's own (leases, pins, a disk queue) is not evictable. PUT takes a
 * reference on the sealed buffer and completes inside submit, as does everything else here;
 * deadlines therefore never pass. A buffer serves one key: a PUT of a buffer that is kept or
 * reserved already under another key is TIERCE_E_ARGUMENT. FLUSH has nothing to do and answers 0.
 *
 * `evict` drops by policy; a PUT into a full index evicts one chunk. The bytes of a removed entry
 * stay with the holders of references; the last release returns them to the pool. Closing waits
 * only for threads that are inside a call at that moment.
 *
 * Thread: any; one lock of class MEMORY, taken for microseconds. The tier is the pool's keeper.
 */

struct tierce__memory_opts {
    size_t size;               /* sizeof(struct tierce__memory_opts) */
    struct tierce__pool *pool; /* [borrow until close] */
    const struct tierce__policy_ops *policy;
    uint32_t chunk_count_max; /* 0: as many as the pool has buffers */
    struct tierce__slots_opts slots;
    uint64_t seed;
    uint64_t ttl_ms; /* for a policy that expires: the next request drops expired entries */
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT, -EBUSY (the pool has a keeper already). */
TIERCE_MUSTUSE int tierce__memory_open(struct tierce__tier **out,
                                       const struct tierce__memory_opts *opts);

#endif
