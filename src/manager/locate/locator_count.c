/* SPDX-License-Identifier: Apache-2.0 */
/* The serving bytes of an instance by type and storage, when a manager begins to lead. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

/* An index has a counter of its own for each storage up to number 63. The storages from 64 on share
 * counter 0 with the locations that name their storage in a text (number 0). */
enum { SHARED = 0, PAGE_KEYS = 1024 };

struct splitting {
    const struct tierce__live *live;
    struct tierce__quota_sums *sums;
    uint64_t shared; /* bytes of counter 0 that no storage was found for yet */
    uint64_t keys, lacking;
};

static int add_location(struct splitting *s, const struct tierce__location *location)
{
    uint64_t bytes = tierce__location_bytes(location);
    if (location->storage == 0 || tierce__meta_storage_slot(location->storage) != SHARED)
        return 0;
    s->lacking += bytes > s->shared ? bytes - s->shared : 0;
    s->shared -= bytes < s->shared ? bytes : s->shared;
    return tierce__quota_sums_add_storage(s->sums, TIERCE__QUOTA_SERVING, location->storage, bytes);
}

static int split_page(struct splitting *s, uint64_t *cursor, struct tierce__arena *arena)
{
    int64_t keys[PAGE_KEYS];
    bool found[PAGE_KEYS];
    size_t count = 0;
    struct tierce__meta_space *space = s->live->space;
    struct tierce__record *records = tierce__arena_alloc(arena, PAGE_KEYS * sizeof(*records));
    int rc = records != NULL ? space->ops->scan(space, cursor, PAGE_KEYS, keys, &count) : -ENOMEM;
    if (rc == 0 && count > 0)
        rc = space->ops->get(space, keys, count, arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        for (size_t l = 0; rc == 0 && found[i] && l < records[i].location_count; l++)
            rc = add_location(s, &records[i].locations[l]);
    }
    s->keys += count;
    return rc;
}

/* Reads all records of the index once, a page at a time. Bytes that no record has stay with number
 * 0: their records cannot be read. */
static int split_shared(const struct tierce__live *live, uint64_t shared,
                        struct tierce__quota_sums *sums)
{
    struct splitting s = {.live = live, .sums = sums, .shared = shared};
    uint64_t cursor = 0, began_ns = tierce__now_ns();
    int rc;
    do {
        struct tierce__arena arena = {0};
        rc = split_page(&s, &cursor, &arena);
        tierce__arena_clear(&arena);
    } while (rc == 0 && cursor != 0);
    if (rc == 0)
        rc = tierce__quota_sums_add_storage(sums, TIERCE__QUOTA_SERVING, 0, s.shared);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "manager.storages_counted",
                    "instance=%s keys=%llu ms=%llu lacking_bytes=%llu: the bytes of storages with "
                    "numbers from %d on were read from the index",
                    live->instance.id, (unsigned long long)s.keys,
                    (unsigned long long)((tierce__now_ns() - began_ns) / 1000000),
                    (unsigned long long)s.lacking, TIERCE__META_STORAGE_SLOTS);
    return rc;
}

int tierce__live_count_served(const struct tierce__live *live, bool has_shared,
                              struct tierce__quota_sums *sums)
{
    int64_t counters[TIERCE__META_COUNTERS];
    int rc = live->space->ops->counters(live->space, counters);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < 16; i++)
        sums->by_type[TIERCE__QUOTA_SERVING][i] = (uint64_t)counters[TIERCE__META_BYTES_FIRST + i];
    for (uint16_t slot = SHARED + 1; rc == 0 && slot < TIERCE__META_STORAGE_SLOTS; slot++) {
        int64_t bytes = counters[TIERCE__META_STORAGES_FIRST + slot];
        if (bytes != 0)
            rc = tierce__quota_sums_add_storage(sums, TIERCE__QUOTA_SERVING, slot, (uint64_t)bytes);
    }
    int64_t shared = counters[TIERCE__META_STORAGES_FIRST + SHARED];
    if (rc < 0 || shared <= 0)
        return rc;
    return has_shared ? split_shared(live, (uint64_t)shared, sums)
                      : tierce__quota_sums_add_storage(sums, TIERCE__QUOTA_SERVING, SHARED,
                                                       (uint64_t)shared);
}
