/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_INDEX_PRIVATE_H
#define TIERCE_MANAGER_META_INDEX_PRIVATE_H

#include <stdatomic.h>

#include "base/threads/lock.h"
#include "manager/meta/meta_index.h"

/*
 * Two locks per shard. A thread that decides on a key holds `keys` of its shard from the read to
 * the write. Every write of a record also holds `children` of its shard; these locks are taken once
 * the whole batch is known, including the parents whose counts change. So a thread may change a
 * parent's count without holding its `keys`, and a thread that holds `keys` may have read an old
 * count. `version` detects this.
 */
struct tierce__meta_index_shard {
    struct tierce__lock keys;
    struct tierce__lock children;
    _Atomic uint32_t
        version; /* incremented when counts changed without `keys`; acquire and release, so that a
                    reader that sees a new version reads the counts again */
};

struct tierce__meta_cache;

struct tierce__meta_index {
    struct tierce__meta_space *space;
    struct tierce__meta_cache *cache; /* or NULL */
    struct tierce__meta_index_shard *shards;
    uint32_t shard_count;
    uint32_t batch_keys;
    uint64_t keys_max;
    bool keeps_child;
    _Atomic int64_t keys_claimed; /* the keys, and the keys that a running step may add */
    _Atomic int64_t counters[TIERCE__META_COUNTERS]; /* as in the store; relaxed: sums */
    _Atomic bool
        is_uncertain; /* the outcome of a write is unknown: the counts must be read again */
};

/* Reads the counts from the store. All `keys` locks are held, or no other thread knows the
 * index. */
TIERCE_MUSTUSE int tierce__meta_index_recount(struct tierce__meta_index *index);

#endif
