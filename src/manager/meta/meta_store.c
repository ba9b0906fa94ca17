/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_store.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"
#include "manager/meta/meta_store_private.h"
#include "manager/registry/model.h"

uint32_t tierce__meta_type_slot(uint8_t storage_type)
{
    enum { OWN_FIRST = 100, OWN_SLOT_FIRST = 8, OTHERS = 15 };
    _Static_assert(OTHERS + 1 == TIERCE__META_STORAGES_FIRST - TIERCE__META_BYTES_FIRST,
                   "each slot has a counter");
    if (storage_type < OWN_SLOT_FIRST)
        return storage_type;
    if (storage_type >= OWN_FIRST && storage_type < OWN_FIRST + OTHERS - OWN_SLOT_FIRST)
        return OWN_SLOT_FIRST + storage_type - OWN_FIRST;
    return OTHERS;
}

const struct tierce__meta_store_ops *tierce__meta_store_find(const char *type, const char *uri)
{
    if (strcmp(type, "local") == 0)
        return uri[0] == '\0' ? &tierce__meta_memory : &tierce__meta_rocksdb;
    if (strcmp(type, "rocksdb") == 0)
        return &tierce__meta_rocksdb;
    if (strcmp(type, "redis") == 0)
        return &tierce__meta_redis;
    return NULL;
}

uint64_t tierce__meta_mix(int64_t key)
{
    return tierce__mix((uint64_t)key);
}

int64_t tierce__meta_unmix(uint64_t mixed)
{
    return (int64_t)tierce__unmix(mixed);
}

int tierce__meta_confirm(struct tierce__meta_space *space)
{
    struct tierce__meta_note none = {.kind = TIERCE__NOTE_SESSION}; /* no session has number 0 */
    struct tierce__meta_batch batch = {.notes = &none, .note_count = 1};
    return space->ops->write(space, &batch);
}

bool tierce__meta_batch_is_valid(const struct tierce__meta_batch *batch)
{
    for (size_t i = 0; i < batch->note_count; i++)
        if (batch->notes[i].kind == 0 || batch->notes[i].kind >= TIERCE__NOTE_KINDS)
            return false;
    return true;
}

/* ---- samples -------------------------------------------------------------------------------- */

/* Whether the key is not among the drawn ones; its index, which is their count, is added. */
static bool add_drawn(struct tierce__numbers *drawn, const int64_t *keys, int64_t key)
{
    uint32_t hash = (uint32_t)(tierce__meta_mix(key) >> 32);
    TIERCE__NUMBERS_FOR_EACH (it, drawn, hash) {
        TIERCE_DASSERT(it.number < drawn->count);
        if (keys[it.number] == key)
            return false;
    }
    tierce__numbers_put(drawn, hash, drawn->count);
    return true;
}

static int sample_by_draws(uint64_t *random, size_t count, int64_t *out, size_t *found,
                           tierce__meta_draw_fn draw, void *arg)
{
    enum { DRAWS_A_KEY = 16 };
    struct tierce__numbers drawn;
    int rc = tierce__numbers_init(&drawn, count);
    size_t n = 0;
    for (size_t draws = 0; rc >= 0 && n < count && draws < DRAWS_A_KEY * count; draws++) {
        rc = draw(arg, tierce__random_next(random), &out[n]);
        n += rc > 0 && add_drawn(&drawn, out, out[n]);
    }
    tierce__numbers_fini(&drawn);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(n <= count);
    *found = n;
    return 0;
}

/* All keys, of which a partial shuffle selects the first ones. */
static int sample_by_scan(struct tierce__meta_space *space, size_t limit, uint64_t *random,
                          size_t count, int64_t *out, size_t *found)
{
    int64_t *all = tierce__calloc(limit, sizeof(*all));
    if (all == NULL)
        return -ENOMEM;
    uint64_t cursor = 0;
    size_t n = 0;
    int rc = space->ops->scan(space, &cursor, limit, all, &n);
    if (rc == 0) {
        TIERCE_ASSERT(n <= limit);
        for (*found = 0; *found < count && *found < n; ++*found) {
            size_t other = *found + (size_t)(tierce__random_next(random) % (n - *found));
            out[*found] = all[other];
            all[other] = all[*found];
        }
        TIERCE_DASSERT(*found <= count && *found <= n);
    }
    tierce__free(all);
    return rc;
}

int tierce__meta_sample(struct tierce__meta_space *space, const struct tierce__meta_draws *draws,
                        uint64_t *random, size_t count, int64_t *out, size_t *found)
{
    enum { SCANNED_MIN = 512, SAMPLE_MAX = 1 << 20 };
    if (count > SAMPLE_MAX)
        count = SAMPLE_MAX;
    size_t scanned = 2 * count > SCANNED_MIN ? 2 * count : SCANNED_MIN;
    if (draws->keys <= scanned)
        return sample_by_scan(space, scanned, random, count, out, found);
    return sample_by_draws(random, count, out, found, draws->draw, draws->arg);
}

void tierce__meta_count_bytes(int64_t counters[TIERCE__META_COUNTERS],
                              const struct tierce__record *record, bool is_added)
{
    for (size_t i = 0; i < record->location_count; i++) {
        const struct tierce__location *location = &record->locations[i];
        int64_t bytes = (int64_t)tierce__location_bytes(location);
        bytes = is_added ? bytes : -bytes;
        counters[TIERCE__META_BYTES_FIRST + tierce__meta_type_slot(location->type)] += bytes;
        counters[TIERCE__META_STORAGES_FIRST + tierce__meta_storage_slot(location->storage)] +=
            bytes;
    }
}
