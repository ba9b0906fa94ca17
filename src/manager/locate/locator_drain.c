/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storages that an operator empties: nothing is written to them, and a scan after another finds
 * their locations. These are queued as moves, or removed. A location whose session began before the
 * draining is found by the next scan.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <string.h>

static bool is_draining(const struct tierce__storage *storage)
{
    return storage->draining != TIERCE__DRAINING_NOT && storage->contents == TIERCE__CONTENTS_KEPT;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* The counts of this scan; NULL: no memory, and nothing is counted. */
static struct tierce__drain_count *counts_of(struct tierce__locator *locator,
                                             const struct tierce__storage_scan *scan)
{
    if (locator->counting == NULL) {
        locator->counting = tierce__calloc(scan->count, sizeof(*locator->counting));
        for (size_t i = 0; i < scan->count && locator->counting != NULL; i++)
            locator->counting[i].storage = scan->numbers[i];
    }
    return locator->counting;
}

static void begin_draining(struct tierce__locator *locator)
{
    tierce__free(locator->counting); /* of a scan that was given up */
    locator->counting = NULL;
}

/* LOCATOR held. */
static bool was_told(const struct tierce__locator *locator, uint16_t storage)
{
    for (size_t i = 0; i < locator->drained_count; i++) {
        if (locator->drained[i].storage == storage)
            return locator->drained[i].is_told;
    }
    return false;
}

static void publish(struct tierce__locator *locator, const struct tierce__storage_scan *scan)
{
    tierce__lock_take(&locator->lock);
    struct tierce__drain_count *before = locator->drained;
    for (size_t i = 0; i < scan->count && locator->counting != NULL; i++)
        locator->counting[i].is_told = was_told(locator, scan->numbers[i]);
    locator->drained = locator->counting;
    locator->drained_count = locator->counting != NULL ? scan->count : 0;
    tierce__lock_drop(&locator->lock);
    locator->counting = NULL;
    tierce__free(before);
}

void tierce__locator_clear_drains(struct tierce__locator *locator)
{
    tierce__free(locator->counting);
    locator->counting = NULL;
    tierce__lock_take(&locator->lock);
    struct tierce__drain_count *drained = locator->drained;
    locator->drained = NULL;
    locator->drained_count = 0;
    tierce__lock_drop(&locator->lock);
    tierce__free(drained); /* a call that asks for the state holds no instance, only the lock */
}

void tierce__locator_storage_left(struct tierce__locator *locator, uint16_t storage,
                                  struct tierce__storage_left *out)
{
    struct tierce__usage usage;
    struct tierce__deleter_left left;
    /* The usage first: a location goes from there into a batch, which waits until its last deletion
     * is confirmed. The other way round, one that goes in between would be seen in neither. */
    tierce__locator_storage_usage(locator, storage, &usage);
    tierce__deleter_left_in(locator->deleter, storage, &left);
    *out = (struct tierce__storage_left){.bytes = usage.serving_bytes + usage.writing_bytes,
                                         .deleting_bytes = usage.deleting_bytes,
                                         .deleting_locations = left.locations,
                                         .due_in_us = left.due_in_us};
}

/* Adds the numbers of the last scan. */
static void add_counts(struct tierce__locator *locator, uint16_t storage,
                       struct tierce__drain_state *state)
{
    tierce__lock_take(&locator->lock);
    for (size_t i = 0; i < locator->drained_count; i++) {
        if (locator->drained[i].storage != storage)
            continue;
        state->is_scanned = true;
        state->left_locations = locator->drained[i].left;
        state->unverifiable_locations = locator->drained[i].unverifiable;
    }
    tierce__lock_drop(&locator->lock);
}

static void say_rest(struct tierce__drain_state *state)
{
    const struct tierce__storage_left *left = &state->left;
    if (state->why[0] != '\0')
        return;
    if (left->bytes == 0 && left->due_in_us > 0)
        snprintf(state->why, sizeof(state->why),
                 "%llu locations are still to be deleted; the last deletion is due in %lld s",
                 (unsigned long long)left->deleting_locations,
                 (long long)(left->due_in_us / 1000000 + 1));
    else if (left->bytes == 0)
        snprintf(state->why, sizeof(state->why),
                 "the storage has not confirmed the deletion of %llu locations",
                 (unsigned long long)left->deleting_locations);
    else if (state->unverifiable_locations > 0)
        snprintf(state->why, sizeof(state->why),
                 "%llu locations belong to clients other than engines of Tierce: no mover can "
                 "verify them, so only --drop removes them",
                 (unsigned long long)state->unverifiable_locations);
}

void tierce__locator_drain_state(struct tierce__locator *locator,
                                 const struct tierce__storage *storage,
                                 struct tierce__drain_state *out)
{
    *out = (struct tierce__drain_state){.name = ""};
    tierce__locator_storage_left(locator, storage->number, &out->left);
    if (storage->draining == TIERCE__DRAINING_NOT)
        return;
    bool is_deleting = out->left.deleting_bytes > 0 || out->left.deleting_locations > 0;
    add_counts(locator, storage->number, out);
    out->name = out->left.bytes > 0
                    ? storage->draining == TIERCE__DRAINING_DROPS ? "dropping" : "moving"
                : is_deleting ? "deleting"
                              : "drained";
    out->queued_blocks = tierce__moves_of(locator->moves, storage->number,
                                          tierce__locator_now_us(locator), out->why);
    if (out->left.bytes > 0 || is_deleting)
        say_rest(out);
    else
        out->why[0] = '\0';
}

/* ---- a page ---------------------------------------------------------------------------------- */

struct draining {
    struct tierce__live *live;
    struct tierce__scan_round *round;
    const struct tierce__group *group; /* of the instance; or NULL */
    bool drops;                        /* some locations of the page are removed */
    bool lasts; /* the location that is judged outlives a process of its storage */
};

static enum tierce__draining how_of(const struct tierce__scan_round *round, size_t index)
{
    const struct tierce__storage *storage =
        tierce__catalog_storage_numbered(round->catalog, round->scan->numbers[index]);
    return storage != NULL ? storage->draining : TIERCE__DRAINING_NOT;
}

/* A pool of nodes loses what was in a node's memory when the node ends. */
static bool lasts(uint8_t type)
{
    return type != TIERCE__STORAGE_NODE;
}

/* Whether a copy stays, can be read, and lasts as long as the one that is judged. */
static bool is_kept(void *arg, const struct tierce__location *location)
{
    const struct draining *d = arg;
    return (!d->lasts || lasts(location->type)) &&
           tierce__location_stays(d->live->locator, d->round->catalog, location);
}

/* Whether a block has so many copies elsewhere that this one need not be copied. */
static bool is_spare(struct draining *d, const struct tierce__record *record,
                     const struct tierce__location *location)
{
    enum tierce__storage_type type =
        tierce__storage_type_quota((enum tierce__storage_type)location->type);
    const struct tierce__type_quota *quota =
        d->group != NULL ? tierce__group_type_quota(d->group, type) : NULL;
    size_t replicas = quota != NULL && quota->replicas > 1 ? (size_t)quota->replicas : 1;
    d->lasts = lasts(location->type);
    return replicas > 1 ? tierce__record_copies(record, location, is_kept, d) > replicas
                        : tierce__record_has_other(record, location, is_kept, d);
}

/* Also called under the key's lock, by the record as it is then. */
static bool is_dropped(void *arg, const struct tierce__record *record,
                       const struct tierce__location *location)
{
    struct draining *d = arg;
    size_t index = tierce__scan_find_location(d->round, location);
    enum tierce__draining how = index != SIZE_MAX ? how_of(d->round, index) : TIERCE__DRAINING_NOT;
    return how == TIERCE__DRAINING_DROPS ||
           (how == TIERCE__DRAINING_MOVES && is_spare(d, record, location));
}

/* Queues a location, and counts it. */
static void want_move(struct draining *d, int64_t key, const struct tierce__location *location,
                      size_t index)
{
    struct tierce__live *live = d->live;
    struct tierce__locator *locator = live->locator;
    struct tierce__drain_count *counts = counts_of(locator, d->round->scan);
    bool is_verifiable = tierce__engine_extra_is(live->instance.model.extra);
    if (counts != NULL) {
        counts[index].left++;
        counts[index].unverifiable += !is_verifiable;
    }
    if (!is_verifiable || location->storage == 0)
        return;
    const struct tierce__move_lane lane = {.instance_id = live->instance.id,
                                           .instance = live->instance.number,
                                           .from = location->storage,
                                           .to = TIERCE__MOVE_TO_ANY,
                                           .reason = TIERCE__MOVE_DRAIN};
    struct tierce__move_block block = tierce__move_block_of(key, location);
    (void)tierce__moves_want(locator->moves, &lane, &block, 1, tierce__locator_now_us(locator));
}

static void look_at_record(struct draining *d, int64_t key, const struct tierce__record *record)
{
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        size_t index = tierce__scan_find_location(d->round, location);
        if (index == SIZE_MAX)
            continue;
        if (is_dropped(d, record, location))
            d->drops = true;
        else if (how_of(d->round, index) == TIERCE__DRAINING_MOVES)
            want_move(d, key, location, index);
    }
}

/* Blocks that cannot be queued now are counted, and found by the next scan. */
static int drain_page(struct tierce__live *live, struct tierce__scan_round *round,
                      const int64_t *keys, size_t count)
{
    struct draining d = {.live = live,
                         .round = round,
                         .group = tierce__catalog_group(round->catalog, live->instance.group_name)};
    struct tierce__arena arena = {0};
    struct tierce__record *records = tierce__arena_calloc(&arena, count + 1, sizeof(*records));
    bool *found = tierce__arena_calloc(&arena, count + 1, sizeof(*found));
    int rc = records != NULL && found != NULL ? 0 : -ENOMEM;
    if (rc == 0 && count > 0) {
        struct tierce__meta_space *space = tierce__meta_index_space(live->index);
        rc = space->ops->get(space, keys, count, &arena, records, found);
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (found[i])
            look_at_record(&d, keys[i], &records[i]);
    }
    tierce__arena_clear(&arena);
    if (rc == 0 && d.drops)
        rc = tierce__live_remove(
            live, keys, count,
            &(struct tierce__removal){.due_us = tierce__live_departure_due_us(live),
                                      .wanted_location = is_dropped,
                                      .wanted_arg = &d},
            &round->removed);
    return rc;
}

/* ---- its end --------------------------------------------------------------------------------- */

static void tell_one(const struct tierce__storage *storage, const struct tierce__drain_state *state)
{
    tierce__log(state->why[0] != '\0' || state->unverifiable_locations > 0 ? TIERCE_LOG_WARN
                                                                           : TIERCE_LOG_INFO,
                "storage_draining",
                "storage=%s state=%s left_locations=%llu unverifiable=%llu left_bytes=%llu "
                "deleting_bytes=%llu why=\"%s\"",
                storage->name, state->name, (unsigned long long)state->left_locations,
                (unsigned long long)state->unverifiable_locations,
                (unsigned long long)state->left.bytes,
                (unsigned long long)state->left.deleting_bytes, state->why);
}

/* Logs once that a storage is empty, and before that once a minute at most how far it is. */
static void tell(struct tierce__locator *locator, const struct tierce__scan_round *round)
{
    enum { EVERY_US = 60000000 };
    int64_t now_us = tierce__locator_now_us(locator);
    bool is_minute = locator->drain_logged_us == 0 || now_us - locator->drain_logged_us >= EVERY_US;
    struct tierce__drain_count *counts = locator->drained; /* only this thread replaces them */
    for (size_t i = 0; i < round->scan->count && counts != NULL; i++) {
        struct tierce__drain_state state;
        const struct tierce__storage *storage =
            tierce__catalog_storage_numbered(round->catalog, round->scan->numbers[i]);
        if (storage == NULL)
            continue;
        tierce__locator_drain_state(locator, storage, &state);
        bool is_drained = strcmp(state.name, "drained") == 0;
        if (is_drained && !counts[i].is_told)
            tierce__log(TIERCE_LOG_INFO, "storage_drained", "storage=%s: it can be removed",
                        storage->name);
        else if (!is_drained && is_minute)
            tell_one(storage, &state);
        if (!is_drained && is_minute)
            locator->drain_logged_us = now_us;
        counts[i].is_told = is_drained;
    }
}

static int end_draining(struct tierce__locator *locator, struct tierce__scan_round *round,
                        char why[TIERCE__WHY_BYTES])
{
    (void)why;
    (void)counts_of(locator, round->scan); /* nothing was left to count */
    publish(locator, round->scan);
    tell(locator, round);
    return 0;
}

const struct tierce__scan_rule tierce__scan_drains = {.event = "storage_draining",
                                                      .wants = is_draining,
                                                      .begin = begin_draining,
                                                      .page = drain_page,
                                                      .end = end_draining};
