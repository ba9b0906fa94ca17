/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_INDEX_PRIVATE_H
#define TIERCE_MANAGER_META_INDEX_PRIVATE_H

#include <stdatomic.h>

#include "base/lock.h"
#include "manager/meta_index.h"

/*
 * Two locks a shard. Who decides on a key holds `keys` of its shard from the read to the write.
 * Every write of a record also holds `children` of its shard, taken when all that the batch will
 * write is known: the parents of its records too, whose counts change. So a parent's count can be
 * changed by those who do not hold its `keys`. Who holds `keys` may therefore have read a count
 * that is old; `version` tells.
 */
struct tierce__meta_index_shard {
    struct tierce__lock keys;
    struct tierce__lock children;
    _Atomic uint32_t version; /* counts changed without `keys`; acquire and release, so that who
                                 reads the old version reads the counts again if they differ */
};

struct tierce__meta_cache;

struct tierce__meta_index {
    struct tierce__meta_space *space;
    struct tierce__meta_cache *cache; /* or NULL */
    struct tierce__meta_index_shard *shards;
    uint32_t shard_count;
    uint32_t batch_keys;
    uint64_t keys_max;
    _Atomic int64_t keys_claimed;                    /* keys, and those that a step may yet add */
    _Atomic int64_t counters[TIERCE__META_COUNTERS]; /* as the store has them; relaxed: sums */
    _Atomic bool is_uncertain; /* a write may or may not have been: the counts are read again */
};

/* Counts from the store. All `keys` locks are held, or nobody else knows the index. */
TIERCE_MUSTUSE int tierce__meta_index_recount(struct tierce__meta_index *index);

#endif
