/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_cache.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "manager/meta/meta_store_private.h"
#include "manager/meta/memory/meta_table.h"

enum {
    SHARD_BITS_MAX = 10, /* each shard has a kilobyte of tickets, which the limit does not count */
    TICKETS = 256, /* per shard: a write voids the tickets of all keys that share one of them */
    CACHE_LINE = 64,
};

/* An item is this head followed by the table's entry. An empty entry means that the store does not
 * have the key. */
struct item {
    struct tierce__list uses;
};

struct cache_shard {
    _Alignas(CACHE_LINE) struct tierce__lock latch;
    struct tierce__table table;
    struct tierce__list uses; /* the latest first */
    uint64_t bytes;           /* of items */
    uint64_t hits, misses;
    uint32_t tickets[TICKETS];
};

struct tierce__meta_cache {
    struct cache_shard *shards;
    uint32_t shard_bits;
    uint64_t shard_bytes_max;
    _Atomic uint64_t paused_until_ns; /* relaxed: the ticket check ensures the order */
};

static struct tierce__table_entry *entry_of(struct item *item)
{
    return (struct tierce__table_entry *)(void *)(item + 1);
}

static struct item *item_of(struct tierce__table_entry *entry)
{
    return (struct item *)(void *)entry - 1;
}

static uint64_t item_bytes(struct item *item)
{
    return malloc_usable_size(item) + sizeof(size_t);
}

static struct cache_shard *shard_of(struct tierce__meta_cache *cache, uint64_t mixed)
{
    TIERCE_DASSERT(cache->shard_bits <= SHARD_BITS_MAX);
    return &cache->shards[cache->shard_bits == 0 ? 0 : mixed >> (64 - cache->shard_bits)];
}

static uint32_t *ticket_of(struct cache_shard *shard, uint64_t mixed)
{
    tierce__lock_assert_held(&shard->latch);
    return &shard->tickets[mixed % TICKETS];
}

/* ---- life ----------------------------------------------------------------------------------- */

int tierce__meta_cache_create(struct tierce__meta_cache **out, uint64_t bytes, uint32_t shard_bits)
{
    if (shard_bits > SHARD_BITS_MAX)
        shard_bits = SHARD_BITS_MAX;
    size_t count = (size_t)1 << shard_bits;
    struct tierce__meta_cache *cache = tierce__calloc(1, sizeof(*cache));
    if (cache == NULL)
        return -ENOMEM;
    cache->shards = tierce__alloc_aligned(CACHE_LINE, count * sizeof(*cache->shards));
    if (cache->shards == NULL) {
        tierce__free(cache);
        return -ENOMEM;
    }
    cache->shard_bits = shard_bits;
    cache->shard_bytes_max = bytes / count;
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        struct cache_shard *shard = &cache->shards[i];
        *shard = (struct cache_shard){0};
        tierce__lock_init(&shard->latch, TIERCE__LOCK_META_CACHE);
        tierce__list_init(&shard->uses);
        if (rc == 0)
            rc = tierce__table_init(&shard->table, shard_bits);
    }
    if (rc < 0)
        tierce__meta_cache_destroy(cache);
    else
        *out = cache;
    return rc;
}

/* Removes an item; the caller frees it. */
static struct item *take_item(struct cache_shard *shard, uint64_t mixed)
{
    struct tierce__table_entry *entry = tierce__table_take(&shard->table, mixed);
    if (entry == NULL)
        return NULL;
    struct item *item = item_of(entry);
    TIERCE_DASSERT(entry->number == mixed);
    tierce__list_remove(&item->uses);
    TIERCE_DASSERT(shard->bytes >= item_bytes(item));
    shard->bytes -= item_bytes(item);
    return item;
}

static void drop_oldest(struct cache_shard *shard)
{
    TIERCE_DASSERT(!tierce__list_empty(&shard->uses));
    struct item *oldest = TIERCE__CONTAINER_OF(shard->uses.prev, struct item, uses);
    struct item *taken = take_item(shard, entry_of(oldest)->number);
    TIERCE_DASSERT(taken == oldest); /* table and list have the same items */
    tierce__free(taken);
}

void tierce__meta_cache_destroy(struct tierce__meta_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < (size_t)1 << cache->shard_bits; i++) {
        struct cache_shard *shard = &cache->shards[i];
        while (!tierce__list_empty(&shard->uses))
            drop_oldest(shard);
        TIERCE_ASSERT(shard->bytes == 0 && shard->table.count == 0);
        tierce__table_fini(&shard->table);
        tierce__lock_fini(&shard->latch);
    }
    tierce__free(cache->shards);
    tierce__free(cache);
}

/* ---- use ------------------------------------------------------------------------------------ */

int tierce__meta_cache_get(struct tierce__meta_cache *cache, int64_t key,
                           struct tierce__arena *arena, struct tierce__record *record, bool *found)
{
    uint64_t mixed = tierce__meta_mix(key);
    struct cache_shard *shard = shard_of(cache, mixed);
    int rc = 0;
    tierce__lock_take(&shard->latch);
    struct tierce__table_entry *entry = tierce__table_find(&shard->table, mixed);
    TIERCE_DASSERT((shard->table.count == 0) == tierce__list_empty(&shard->uses));
    if (entry == NULL) {
        shard->misses++;
    } else {
        shard->hits++;
        tierce__list_remove(&item_of(entry)->uses);
        tierce__list_push_front(&shard->uses, &item_of(entry)->uses);
        *found = entry->bytes > 0;
        if (*found)
            rc = tierce__record_read(record, arena, entry->data, entry->bytes);
    }
    tierce__lock_drop(&shard->latch);
    if (rc < 0)
        return rc;
    return entry != NULL;
}

uint64_t tierce__meta_cache_ticket(struct tierce__meta_cache *cache, int64_t key)
{
    uint64_t mixed = tierce__meta_mix(key);
    struct cache_shard *shard = shard_of(cache, mixed);
    tierce__lock_take(&shard->latch);
    uint64_t ticket = *ticket_of(shard, mixed);
    tierce__lock_drop(&shard->latch);
    return ticket;
}

static struct item *make_item(uint64_t mixed, const struct tierce__record *record)
{
    size_t bytes = record != NULL ? tierce__record_size(record) : 0;
    TIERCE_DASSERT(bytes <= UINT32_MAX);
    struct item *item =
        tierce__alloc(sizeof(*item) + offsetof(struct tierce__table_entry, data) + bytes);
    if (item == NULL)
        return NULL;
    tierce__list_init(&item->uses);
    struct tierce__table_entry *entry = entry_of(item);
    entry->next = NULL;
    entry->number = mixed;
    entry->bytes = (uint32_t)bytes;
    if (record != NULL)
        tierce__record_write(record, entry->data);
    return item;
}

void tierce__meta_cache_put(struct tierce__meta_cache *cache, int64_t key, uint64_t ticket,
                            const struct tierce__record *record)
{
    if (tierce__now_ns() < atomic_load_explicit(&cache->paused_until_ns, memory_order_relaxed))
        return;
    uint64_t mixed = tierce__meta_mix(key);
    struct cache_shard *shard = shard_of(cache, mixed);
    struct item *item = make_item(mixed, record), *replaced = NULL;
    if (item == NULL)
        return;
    tierce__lock_take(&shard->latch);
    if (*ticket_of(shard, mixed) == ticket) {
        replaced = take_item(shard, mixed);
        (void)tierce__table_put(&shard->table, entry_of(item));
        TIERCE_DASSERT(tierce__list_empty(&item->uses));
        tierce__list_push_front(&shard->uses, &item->uses);
        shard->bytes += item_bytes(item);
        item = NULL;
        while (shard->bytes + shard->table.memory > cache->shard_bytes_max &&
               !tierce__list_empty(&shard->uses))
            drop_oldest(shard);
        TIERCE_DASSERT((shard->bytes == 0) == tierce__list_empty(&shard->uses));
    }
    tierce__lock_drop(&shard->latch);
    tierce__free(item);
    tierce__free(replaced);
}

void tierce__meta_cache_touch(struct tierce__meta_cache *cache, const int64_t *keys, size_t count,
                              const struct tierce__record_use *use)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t mixed = tierce__meta_mix(keys[i]);
        struct cache_shard *shard = shard_of(cache, mixed);
        tierce__lock_take(&shard->latch);
        struct tierce__table_entry *entry = tierce__table_find(&shard->table, mixed);
        struct tierce__record_use own = tierce__meta_use(use, i);
        if (entry != NULL && entry->bytes > 0)
            tierce__record_touch(entry->data, entry->bytes, &own);
        tierce__lock_drop(&shard->latch);
    }
}

void tierce__meta_cache_invalidate(struct tierce__meta_cache *cache, int64_t key)
{
    uint64_t mixed = tierce__meta_mix(key);
    struct cache_shard *shard = shard_of(cache, mixed);
    tierce__lock_take(&shard->latch);
    ++*ticket_of(shard, mixed);
    struct item *item = take_item(shard, mixed);
    TIERCE_DASSERT((shard->bytes == 0) == tierce__list_empty(&shard->uses));
    tierce__lock_drop(&shard->latch);
    tierce__free(item);
}

void tierce__meta_cache_pause(struct tierce__meta_cache *cache, uint64_t until_ns)
{
    atomic_store_explicit(&cache->paused_until_ns, until_ns, memory_order_relaxed);
}

void tierce__meta_cache_stats(struct tierce__meta_cache *cache,
                              struct tierce__meta_cache_stats *out)
{
    *out = (struct tierce__meta_cache_stats){0};
    for (size_t i = 0; i < (size_t)1 << cache->shard_bits; i++) {
        struct cache_shard *shard = &cache->shards[i];
        tierce__lock_take(&shard->latch);
        out->hits += shard->hits;
        out->misses += shard->misses;
        TIERCE_DASSERT((shard->table.count == 0) == tierce__list_empty(&shard->uses));
        out->bytes += shard->bytes + shard->table.memory;
        TIERCE_DASSERT((shard->bytes == 0) == tierce__list_empty(&shard->uses));
        tierce__lock_drop(&shard->latch);
    }
}
