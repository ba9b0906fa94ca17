/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_CACHE_H
#define TIERCE_MANAGER_META_CACHE_H

#include "base/arena.h"
#include "manager/meta/record.h"

/*
 * A cache of records that were read from a blocking store, and of keys that the store does not
 * have. It is bounded in bytes, evicts the least recently used entry first, and has shards with a
 * latch each.
 *
 * A reader draws a ticket for a key before it reads the store, and passes it with the record that
 * it read. A write invalidates its keys afterwards, which voids older tickets. So the cache never
 * keeps a record that was read before a write.
 *
 * Threads: any.
 */

struct tierce__meta_cache;

/* `bytes` of entries, bookkeeping included; 2^shard_bits shards, at most 1,024. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__meta_cache_create(struct tierce__meta_cache **out, uint64_t bytes,
                                             uint32_t shard_bits);
/* NULL is accepted. */
void tierce__meta_cache_destroy(struct tierce__meta_cache *cache);

/* Returns 1 on a hit: *found says whether the store has the key, *record is in the arena. Returns 0
 * on a miss: read the store. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__meta_cache_get(struct tierce__meta_cache *cache, int64_t key,
                                          struct tierce__arena *arena,
                                          struct tierce__record *record, bool *found);

uint64_t tierce__meta_cache_ticket(struct tierce__meta_cache *cache, int64_t key);

/* Inserts the store's answer; `record` NULL: the store does not have the key. Ignored if the key
 * was written since the ticket was drawn, or if memory runs out. */
void tierce__meta_cache_put(struct tierce__meta_cache *cache, int64_t key, uint64_t ticket,
                            const struct tierce__record *record);

/* Records a use of those keys that are cached. */
void tierce__meta_cache_touch(struct tierce__meta_cache *cache, const int64_t *keys, size_t count,
                              const struct tierce__record_use *use);

void tierce__meta_cache_invalidate(struct tierce__meta_cache *cache, int64_t key);

/* Inserts nothing until `until_ns`, because a write with an unknown outcome may still be
 * applied. */
void tierce__meta_cache_pause(struct tierce__meta_cache *cache, uint64_t until_ns);

struct tierce__meta_cache_stats {
    uint64_t hits, misses, bytes;
};
void tierce__meta_cache_stats(struct tierce__meta_cache *cache,
                              struct tierce__meta_cache_stats *out);

#endif
