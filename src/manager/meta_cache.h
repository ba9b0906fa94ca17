/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_CACHE_H
#define TIERCE_MANAGER_META_CACHE_H

#include "base/arena.h"
#include "manager/record.h"

/*
 * Records that were read from a store that blocks, and which keys it does not have: by bytes, the
 * least recently used leaves first, in shards with a latch each.
 *
 * A reader draws a ticket for a key before it reads the store, and hands it in with what it read;
 * a write invalidates its keys after it, which makes older tickets worthless. So what was read
 * before a write is never kept after it.
 *
 * Threads: any.
 */

struct tierce__meta_cache;

/* `bytes` of entries, bookkeeping included; 2^shard_bits shards, at most 1,024. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__meta_cache_create(struct tierce__meta_cache **out, uint64_t bytes,
                                             uint32_t shard_bits);
/* NULL is accepted. */
void tierce__meta_cache_destroy(struct tierce__meta_cache *cache);

/* 1: *found says whether the store has it, and *record is in the arena; 0: ask the store.
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__meta_cache_get(struct tierce__meta_cache *cache, int64_t key,
                                          struct tierce__arena *arena,
                                          struct tierce__record *record, bool *found);

uint64_t tierce__meta_cache_ticket(struct tierce__meta_cache *cache, int64_t key);

/* What the store said; `record` NULL: it has none. Kept if nothing was written since the ticket
 * and if there is memory. */
void tierce__meta_cache_put(struct tierce__meta_cache *cache, int64_t key, uint64_t ticket,
                            const struct tierce__record *record);

void tierce__meta_cache_invalidate(struct tierce__meta_cache *cache, int64_t key);

/* Nothing is kept until then: a write of which nobody knows whether it happens may yet happen. */
void tierce__meta_cache_pause(struct tierce__meta_cache *cache, uint64_t until_ns);

struct tierce__meta_cache_stats {
    uint64_t hits, misses, bytes;
};
void tierce__meta_cache_stats(struct tierce__meta_cache *cache,
                              struct tierce__meta_cache_stats *out);

#endif
