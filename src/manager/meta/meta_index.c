/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_index.h"

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/meta/meta_cache.h"
#include "manager/meta/meta_index_private.h"
#include "manager/api/spans.h"

enum { BATCH_KEYS_DEFAULT = 16, SHARDS_MAX = 1 << 20 };

/* ---- life ----------------------------------------------------------------------------------- */

int tierce__meta_index_recount(struct tierce__meta_index *index)
{
    int64_t counters[TIERCE__META_COUNTERS];
    int rc = index->space->ops->counters(index->space, counters);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        atomic_store_explicit(&index->counters[i], counters[i], memory_order_relaxed);
    atomic_store_explicit(&index->keys_claimed, counters[TIERCE__META_KEYS], memory_order_relaxed);
    return 0;
}

static int make_shards(struct tierce__meta_index *index)
{
    TIERCE_DASSERT(index->shard_count > 0 && (index->shard_count & (index->shard_count - 1)) == 0);
    index->shards = tierce__calloc(index->shard_count, sizeof(*index->shards));
    if (index->shards == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < index->shard_count; i++) {
        tierce__lock_init(&index->shards[i].keys, TIERCE__LOCK_META_KEYS);
        tierce__lock_init(&index->shards[i].children, TIERCE__LOCK_META_CHILDREN);
    }
    return 0;
}

int tierce__meta_index_open(struct tierce__meta_index **out, struct tierce__meta_space *space,
                            const struct tierce__meta_index_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    uint32_t shards = opts->shards;
    if (shards == 0 || shards > SHARDS_MAX || (shards & (shards - 1)) != 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__meta_index *index = tierce__calloc(1, sizeof(*index));
    if (index == NULL)
        return -ENOMEM;
    index->space = space;
    index->shard_count = shards;
    index->batch_keys = opts->batch_keys > 0 ? opts->batch_keys : BATCH_KEYS_DEFAULT;
    index->keys_max = opts->keys_max > 0 ? opts->keys_max : INT64_MAX;
    index->keeps_child = opts->keeps_child;
    TIERCE_DASSERT(index->batch_keys > 0 && index->keys_max > 0);
    int rc = make_shards(index);
    if (rc == 0 && space->ops->blocks && opts->cache_bytes > 0)
        rc = tierce__meta_cache_create(&index->cache, opts->cache_bytes, opts->cache_shard_bits);
    if (rc == 0)
        rc = tierce__meta_index_recount(index);
    if (rc < 0)
        tierce__meta_index_close(index);
    else
        *out = index;
    return rc;
}

void tierce__meta_index_close(struct tierce__meta_index *index)
{
    if (index == NULL)
        return;
    for (uint32_t i = 0; index->shards != NULL && i < index->shard_count; i++) {
        tierce__lock_fini(&index->shards[i].keys);
        tierce__lock_fini(&index->shards[i].children);
    }
    tierce__free(index->shards);
    tierce__meta_cache_destroy(index->cache);
    tierce__free(index);
}

bool tierce__meta_index_blocks(const struct tierce__meta_index *index)
{
    return index->space->ops->blocks;
}

struct tierce__meta_space *tierce__meta_index_space(struct tierce__meta_index *index)
{
    return index->space;
}

/* ---- reads ---------------------------------------------------------------------------------- */

/* The keys that missed the cache. */
struct misses {
    int64_t *keys;
    size_t *at; /* their indexes among the requested keys */
    uint64_t *tickets;
    struct tierce__record *records;
    bool *found;
    size_t count;
};

static int alloc_misses(struct misses *misses, size_t count, struct tierce__arena *arena)
{
    TIERCE_DASSERT(count > 0);
    *misses = (struct misses){
        .keys = tierce__arena_alloc(arena, count * sizeof(*misses->keys)),
        .at = tierce__arena_alloc(arena, count * sizeof(*misses->at)),
        .tickets = tierce__arena_alloc(arena, count * sizeof(*misses->tickets)),
        .records = tierce__arena_alloc(arena, count * sizeof(*misses->records)),
        .found = tierce__arena_alloc(arena, count * sizeof(*misses->found)),
    };
    if (misses->keys == NULL || misses->at == NULL || misses->tickets == NULL ||
        misses->records == NULL || misses->found == NULL)
        return -ENOMEM;
    return 0;
}

static int get_cached(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                      struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    struct misses misses = {0};
    for (size_t i = 0; i < count; i++) {
        int rc = tierce__meta_cache_get(index->cache, keys[i], arena, &records[i], &found[i]);
        if (rc == 0 && misses.keys == NULL)
            rc = alloc_misses(&misses, count - i, arena);
        else if (rc > 0)
            continue;
        if (rc < 0)
            return rc;
        TIERCE_DASSERT(misses.count <= i);
        misses.keys[misses.count] = keys[i];
        misses.tickets[misses.count] = tierce__meta_cache_ticket(index->cache, keys[i]);
        misses.at[misses.count++] = i;
    }
    if (misses.count == 0)
        return 0;
    int rc = index->space->ops->get(index->space, misses.keys, misses.count, arena, misses.records,
                                    misses.found);
    for (size_t i = 0; rc == 0 && i < misses.count; i++) {
        TIERCE_DASSERT(misses.at[i] < count);
        bool there = misses.found[i];
        tierce__meta_cache_put(index->cache, misses.keys[i], misses.tickets[i],
                               there ? &misses.records[i] : NULL);
        found[misses.at[i]] = there;
        if (there)
            records[misses.at[i]] = misses.records[i];
    }
    return rc;
}

int tierce__meta_index_get(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                           struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    TIERCE_DASSERT(!index->space->ops->blocks || !tierce__lock_holds_any());
    int span = tierce__span_open("index:read");
    int rc = index->cache != NULL
                 ? get_cached(index, keys, count, arena, records, found)
                 : index->space->ops->get(index->space, keys, count, arena, records, found);
    tierce__span_close(span);
    return rc;
}

int64_t tierce__meta_index_prefix(struct tierce__meta_index *index, const int64_t *keys,
                                  size_t count,
                                  bool (*serves)(void *arg, const struct tierce__record *record),
                                  void *arg, struct tierce__arena *arena,
                                  struct tierce__record *records)
{
    enum { STEP_MIN = 32, STEP_MAX = 1024 };
    bool found[STEP_MAX];
    size_t step = STEP_MIN;
    for (size_t done = 0; done < count;) {
        size_t n = count - done < step ? count - done : step;
        TIERCE_ASSERT(n > 0 && n <= STEP_MAX);
        int rc = tierce__meta_index_get(index, keys + done, n, arena, records + done, found);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < n; i++)
            if (!found[i] || !serves(arg, &records[done + i]))
                return (int64_t)(done + i);
        done += n;
        step = step < STEP_MAX / 4 ? step * 4 : STEP_MAX;
    }
    return (int64_t)count;
}

/* ---- without a lock ------------------------------------------------------------------------- */

int tierce__meta_index_write_notes(struct tierce__meta_index *index,
                                   const struct tierce__meta_note *notes, size_t count)
{
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(!index->space->ops->blocks || !tierce__lock_holds_any());
    int span = tierce__span_open("index:note");
    int rc = index->space->ops->write(
        index->space, &(struct tierce__meta_batch){.notes = notes, .note_count = count});
    tierce__span_close(span);
    return rc;
}

void tierce__meta_index_touch(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                              const struct tierce__record_use *use)
{
    int span = tierce__span_open("index:use");
    index->space->ops->touch(index->space, keys, count, use);
    if (index->cache != NULL)
        tierce__meta_cache_touch(index->cache, keys, count, use);
    tierce__span_close(span);
}

void tierce__meta_index_stats(struct tierce__meta_index *index,
                              struct tierce__meta_index_stats *out)
{
    *out = (struct tierce__meta_index_stats){0};
    int64_t counters[TIERCE__META_COUNTERS];
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        counters[i] = atomic_load_explicit(&index->counters[i], memory_order_relaxed);
        if (counters[i] < 0)
            counters[i] = 0; /* a transient value while bytes move between counters */
    }
    out->keys = (uint64_t)counters[TIERCE__META_KEYS];
    for (unsigned i = 0; i < sizeof(out->bytes_by_type) / sizeof(out->bytes_by_type[0]); i++) {
        out->bytes_by_type[i] = (uint64_t)counters[TIERCE__META_BYTES_FIRST + i];
        out->bytes += out->bytes_by_type[i];
    }
    if (index->cache != NULL) {
        struct tierce__meta_cache_stats cache;
        tierce__meta_cache_stats(index->cache, &cache);
        out->cache_hits = cache.hits;
        out->cache_misses = cache.misses;
        out->cache_bytes = cache.bytes;
    }
    if (index->space->ops->memory != NULL)
        out->store_bytes = index->space->ops->memory(index->space);
    if (index->space->ops->write_error != NULL)
        out->write_error = index->space->ops->write_error(index->space);
}
