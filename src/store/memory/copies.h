/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_COPIES_H
#define TIERCE_STORE_COPIES_H

#include "core/policy/policy.h"
#include "store/slots.h"

/*
 * A slower tier in memory. It has a separate pool, holds a copy of each chunk there, and lends
 * nothing: GET copies a range into the reader's buffer, as a disk does. The copies have the length
 * of the stored object, so that coded chunks need less memory (coded/coded_tier.h is to be put
 * around this tier). Index, policy and pool are those of a memory tier (memory.h).
 *
 * Every request is answered inside submit: a PUT and a GET take as long as the copy. Nothing is
 * durable. Recoding in place is not supported.
 *
 * Thread: any; one lock of class CODED, under which nothing is copied.
 */

struct tierce__copies_opts {
    size_t size;        /* sizeof(struct tierce__copies_opts) */
    uint64_t cap_bytes; /* hard cap over the copies, rounding included; >= 1 MiB */
    const struct tierce__policy_ops *policy;
    uint32_t chunk_count_max; /* 0: one for every 64 KiB, at least 1024 */
    struct tierce__slots_opts slots;
    uint64_t seed;
    uint64_t ttl_ms; /* as of a memory tier */
    bool no_touch;   /* as of a pool */
};

/* Errors: those of a pool and of a memory tier. */
TIERCE_MUSTUSE int tierce__copies_open(struct tierce__tier **out,
                                       const struct tierce__copies_opts *opts);

#endif
