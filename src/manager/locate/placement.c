/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/storage_at.h"
#include "manager/locate/placement.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"

#include <string.h>

enum { SECOND_US = 1000000 };

/* ---- blocks that went to a colder candidate -------------------------------------------------- */

/* By a hash of instance and key: other bits of it, and the second. */
struct tierce__cooled {
    _Atomic uint64_t entries[65536]; /* relaxed: each is whole; a lost one costs a move */
};

static uint64_t cooled_hash(const struct tierce__live *live, int64_t key)
{
    return tierce__mix((uint64_t)key ^ tierce__spread(live->instance.number));
}

static uint32_t second_of(int64_t now_us)
{
    return now_us > 0 ? (uint32_t)(now_us / SECOND_US) : 0;
}

void tierce__placement_cooled(struct tierce__live *live, int64_t key, int64_t now_us)
{
    _Atomic(struct tierce__cooled *) *place = &live->locator->cooled;
    struct tierce__cooled *cooled = atomic_load_explicit(place, memory_order_acquire);
    if (cooled == NULL) {
        struct tierce__cooled *made = tierce__calloc(1, sizeof(*made));
        if (made == NULL)
            return;
        if (atomic_compare_exchange_strong_explicit(place, &cooled, made, memory_order_acq_rel,
                                                    memory_order_acquire))
            cooled = made;
        else
            tierce__free(made);
    }
    uint64_t hash = cooled_hash(live, key);
    atomic_store_explicit(&cooled->entries[hash % 65536],
                          (hash & ~(uint64_t)UINT32_MAX) | second_of(now_us), memory_order_relaxed);
}

/* Whether a block was not read again since it was moved. */
static bool is_cooled(const struct tierce__live *live, int64_t key, int64_t used_us)
{
    struct tierce__cooled *cooled =
        atomic_load_explicit(&live->locator->cooled, memory_order_acquire);
    if (cooled == NULL)
        return false;
    uint64_t hash = cooled_hash(live, key);
    uint64_t entry = atomic_load_explicit(&cooled->entries[hash % 65536], memory_order_relaxed);
    return (entry ^ hash) >> 32 == 0 && (uint32_t)entry != 0 &&
           second_of(used_us) <= (uint32_t)entry;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool has_all_parts(const struct tierce__location *other,
                          const struct tierce__location *location)
{
    size_t has = 0;
    for (size_t p = 0; p < location->place_count; p++) {
        for (size_t o = 0; o < other->place_count; o++)
            has += other->places[o].spec == location->places[p].spec;
    }
    return has == location->place_count;
}

bool tierce__location_stays(const struct tierce__locator *locator,
                            const struct tierce__catalog *catalog,
                            const struct tierce__location *location)
{
    const struct tierce__storage *storage = tierce__location_storage(catalog, location);
    return storage != NULL && storage->draining == TIERCE__DRAINING_NOT &&
           tierce__storages_is_available(locator->opts.storages, storage);
}

size_t tierce__record_copies(const struct tierce__record *record,
                             const struct tierce__location *location,
                             bool (*keeps)(void *arg, const struct tierce__location *other),
                             void *arg)
{
    size_t copies = 0;
    enum tierce__storage_type type =
        tierce__storage_type_quota((enum tierce__storage_type)location->type);
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *other = &record->locations[l];
        if (tierce__storage_type_quota((enum tierce__storage_type)other->type) != type)
            continue;
        copies += other == location ||
                  (other->storage != location->storage && (keeps == NULL || keeps(arg, other)) &&
                   has_all_parts(other, location));
    }
    return copies;
}

bool tierce__record_has_other(const struct tierce__record *record,
                              const struct tierce__location *location,
                              bool (*keeps)(void *arg, const struct tierce__location *other),
                              void *arg)
{
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *other = &record->locations[l];
        if (other != location && other->storage != location->storage && keeps(arg, other) &&
            has_all_parts(other, location))
            return true;
    }
    return false;
}

/* ---- the rules ------------------------------------------------------------------------------- */

void tierce__placement_begin(struct tierce__placement *out, struct tierce__live *live,
                             const struct tierce__catalog *catalog, int64_t now_us,
                             struct tierce__placement_pick *picks, size_t room)
{
    const struct tierce__group *group = tierce__catalog_group(catalog, live->instance.group_name);
    out->live = live;
    out->catalog = catalog;
    out->now_us = now_us;
    out->promote_us = group != NULL ? group->promote_window_s * SECOND_US : 0;
    out->has_replicas = false;
    out->last = 0;
    out->picks = picks;
    out->count = 0;
    out->room = room;
    for (size_t i = 0; group != NULL && i < group->type_quota_count; i++)
        out->has_replicas = out->has_replicas || group->type_quotas[i].replicas > 1;
    /* A mover cannot prove the bytes of clients that are no engines of Tierce. */
    bool moves = tierce__engine_extra_is(live->instance.model.extra);
    out->group = moves && (out->promote_us > 0 || out->has_replicas) ? group : NULL;
}

/* Blocks that follow each other lie in one storage, mostly. */
static bool turn_to(struct tierce__placement *p, const struct tierce__location *location)
{
    if (location->storage == 0 || location->storage == p->last)
        return location->storage != 0;
    const struct tierce__storage *storage =
        tierce__catalog_storage_numbered(p->catalog, location->storage);
    if (storage == NULL)
        return false;
    const struct tierce__type_quota *quota =
        tierce__group_type_quota(p->group, tierce__storage_type_quota(storage->type));
    p->last = location->storage;
    p->position = tierce__candidate_position(p->group, storage);
    p->replicas = quota != NULL && quota->replicas > 1 ? (uint32_t)quota->replicas : 1;
    return true;
}

static void pick(struct tierce__placement *p, enum tierce__move_reason reason, int64_t key,
                 const struct tierce__location *location)
{
    if (p->count == p->room)
        return;
    struct tierce__placement_pick *it = &p->picks[p->count++];
    it->reason = reason;
    it->from = location->storage;
    it->block.key = key;
    it->block.bytes = tierce__location_bytes(location);
    memcpy(it->block.location_id, location->id, sizeof(it->block.location_id));
}

/* Whether a hotter candidate has the block too. */
static bool has_hotter(const struct tierce__placement *p, const struct tierce__record *record,
                       const struct tierce__location *location)
{
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *other = &record->locations[l];
        const struct tierce__storage *storage =
            other->storage != 0 && other->storage != location->storage
                ? tierce__catalog_storage_numbered(p->catalog, other->storage)
                : NULL;
        if (storage != NULL && tierce__candidate_position(p->group, storage) < p->position &&
            has_all_parts(other, location))
            return true;
    }
    return false;
}

/* The first candidate with room, or SIZE_MAX. It is searched once a second for each instance: a
 * reader must not wait for a walk over the parts of a large pool. */
static size_t hottest(struct tierce__placement *p)
{
    enum { NONE = UINT16_MAX };
    uint64_t second = second_of(p->now_us);
    uint64_t known = atomic_load_explicit(&p->live->hottest, memory_order_relaxed);
    if (known >> 16 != second) {
        size_t at = 0, count = p->group->storage_candidate_count;
        while (at < count && at < NONE &&
               !tierce__candidate_has_quiet_room(p->live->locator, p->catalog, p->group, at))
            at++;
        known = second << 16 | (at < count ? at : NONE);
        atomic_store_explicit(&p->live->hottest, known, memory_order_relaxed);
    }
    size_t at = known & UINT16_MAX;
    return at == NONE ? SIZE_MAX : at;
}

void tierce__placement_read(struct tierce__placement *p, int64_t key,
                            const struct tierce__record *record,
                            const struct tierce__location *location)
{
    if (p->group == NULL || !turn_to(p, location))
        return;
    if (p->replicas > 1)
        tierce__placement_serves(p, key, location,
                                 tierce__record_copies(record, location, NULL, NULL));
    /* The record has the read before this one. */
    bool is_second = p->promote_us > 0 && p->position != SIZE_MAX && p->position > 0 &&
                     record->uses > 0 && p->now_us - record->used_us <= p->promote_us;
    if (is_second && !is_cooled(p->live, key, record->used_us) && hottest(p) < p->position &&
        !has_hotter(p, record, location))
        pick(p, TIERCE__MOVE_HOT, key, location);
}

void tierce__placement_serves(struct tierce__placement *p, int64_t key,
                              const struct tierce__location *location, size_t copies)
{
    TIERCE_DASSERT(copies > 0);
    if (p->group != NULL && turn_to(p, location) && copies < p->replicas)
        pick(p, TIERCE__MOVE_REPLICA, key, location);
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Queues the blocks of one lane, from `first` on, and marks them. */
static void want_lane(struct tierce__placement *p, size_t first)
{
    struct tierce__move_block blocks[TIERCE__PLACEMENT_PICKS];
    const struct tierce__placement_pick *it = &p->picks[first];
    bool is_copy = it->reason == TIERCE__MOVE_REPLICA;
    struct tierce__move_lane lane = {.instance_id = p->live->instance.id,
                                     .instance = p->live->instance.number,
                                     .from = it->from,
                                     .is_copy = is_copy,
                                     .to = is_copy ? TIERCE__MOVE_TO_SAME_TYPE
                                                   : TIERCE__MOVE_TO_HOTTER,
                                     .reason = it->reason};
    size_t count = 0;
    for (size_t i = first; i < p->count && count < TIERCE__PLACEMENT_PICKS; i++) {
        if (p->picks[i].from != lane.from || p->picks[i].reason != lane.reason)
            continue;
        blocks[count++] = p->picks[i].block;
        p->picks[i].from = 0;
    }
    (void)tierce__moves_want(p->live->locator->moves, &lane, blocks, count, p->now_us);
}

void tierce__placement_end(struct tierce__placement *p)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->picks[i].from != 0) /* else it went with an earlier one */
            want_lane(p, i);
    }
    p->count = 0;
}
