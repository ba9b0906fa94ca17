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

static void publish(struct tierce__locator *locator, const struct tierce__storage_scan *scan)
{
    tierce__lock_take(&locator->lock);
    struct tierce__drain_count *before = locator->drained;
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

const char *tierce__locator_drain_name(struct tierce__locator *locator,
                                       const struct tierce__storage *storage)
{
    struct tierce__usage usage;
    if (storage->draining == TIERCE__DRAINING_NOT)
        return "";
    tierce__locator_storage_usage(locator, storage->number, &usage);
    if (usage.serving_bytes + usage.writing_bytes == 0)
        return "drained";
    return storage->draining == TIERCE__DRAINING_DROPS ? "dropping" : "moving";
}

void tierce__locator_drain_state(struct tierce__locator *locator,
                                 const struct tierce__storage *storage,
                                 struct tierce__drain_state *out)
{
    struct tierce__usage usage;
    *out = (struct tierce__drain_state){0};
    tierce__locator_storage_usage(locator, storage->number, &usage);
    out->left_bytes = usage.serving_bytes + usage.writing_bytes;
    tierce__lock_take(&locator->lock);
    for (size_t i = 0; i < locator->drained_count; i++) {
        if (locator->drained[i].storage != storage->number)
            continue;
        out->is_scanned = true;
        out->left_locations = locator->drained[i].left;
        out->unverifiable_locations = locator->drained[i].unverifiable;
    }
    tierce__lock_drop(&locator->lock);
    out->queued_blocks = tierce__moves_of(locator->moves, storage->number,
                                          tierce__locator_now_us(locator), out->why);
}

/* ---- a page ---------------------------------------------------------------------------------- */

struct draining {
    struct tierce__live *live;
    struct tierce__scan_round *round;
    bool drops; /* some storages of the page are emptied by removal */
};

static enum tierce__draining how_of(const struct tierce__scan_round *round, size_t index)
{
    const struct tierce__storage *storage =
        tierce__catalog_storage_numbered(round->catalog, round->scan->numbers[index]);
    return storage != NULL ? storage->draining : TIERCE__DRAINING_NOT;
}

static bool is_dropped(void *arg, const struct tierce__location *location)
{
    const struct tierce__scan_round *round = arg;
    size_t index = tierce__scan_find_location(round, location);
    return index != SIZE_MAX && how_of(round, index) == TIERCE__DRAINING_DROPS;
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
        size_t index = tierce__scan_find_location(d->round, &record->locations[l]);
        if (index == SIZE_MAX)
            continue;
        enum tierce__draining how = how_of(d->round, index);
        d->drops = d->drops || how == TIERCE__DRAINING_DROPS;
        if (how == TIERCE__DRAINING_MOVES)
            want_move(d, key, &record->locations[l], index);
    }
}

/* Blocks that cannot be queued now are counted, and found by the next scan. */
static int drain_page(struct tierce__live *live, struct tierce__scan_round *round,
                      const int64_t *keys, size_t count)
{
    struct draining d = {.live = live, .round = round};
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
                                      .wanted_arg = round},
            &round->removed);
    return rc;
}

/* ---- its end --------------------------------------------------------------------------------- */

/* Says once a minute at most how far it is. */
static void tell(struct tierce__locator *locator, const struct tierce__scan_round *round)
{
    enum { EVERY_US = 60000000 };
    int64_t now_us = tierce__locator_now_us(locator);
    if (locator->drain_logged_us != 0 && now_us - locator->drain_logged_us < EVERY_US)
        return;
    locator->drain_logged_us = now_us;
    for (size_t i = 0; i < round->scan->count; i++) {
        struct tierce__drain_state state;
        const struct tierce__storage *storage =
            tierce__catalog_storage_numbered(round->catalog, round->scan->numbers[i]);
        if (storage == NULL)
            continue;
        tierce__locator_drain_state(locator, storage, &state);
        tierce__log(state.why[0] != '\0' || state.unverifiable_locations > 0 ? TIERCE_LOG_WARN
                                                                             : TIERCE_LOG_INFO,
                    "storage_drained",
                    "storage=%s state=%s left_locations=%llu unverifiable=%llu left_bytes=%llu "
                    "why=\"%s\"",
                    storage->name, state.left_bytes == 0 ? "empty" : "drains",
                    (unsigned long long)state.left_locations,
                    (unsigned long long)state.unverifiable_locations,
                    (unsigned long long)state.left_bytes, state.why);
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

const struct tierce__scan_rule tierce__scan_drains = {.event = "storage_drained",
                                                      .wants = is_draining,
                                                      .begin = begin_draining,
                                                      .page = drain_page,
                                                      .end = end_draining};
