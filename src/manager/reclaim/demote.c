/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/storage_at.h"
#include "manager/reclaim/demote.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/locate/placement.h"

#include <string.h>

/* ---- the groups of a need -------------------------------------------------------------------- */

static bool is_of(const struct tierce__need *need, const struct tierce__storage *storage)
{
    return tierce__need_concerns(need, (uint8_t)storage->type, storage->number);
}

/* Whether a group asks for demotion and has a candidate with room behind a storage of the need. */
static bool can_demote(const struct tierce__locator *locator, const struct tierce__catalog *catalog,
                       const struct tierce__group *group, const struct tierce__need *need)
{
    size_t count, first = SIZE_MAX;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    if (group->demote != 1 || (need->group != NULL && strcmp(group->name, need->group) != 0))
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t at = is_of(need, &all[i]) ? tierce__candidate_position(group, &all[i]) : SIZE_MAX;
        first = at < first ? at : first;
    }
    for (size_t at = first; at != SIZE_MAX && at + 1 < group->storage_candidate_count; at++) {
        if (tierce__candidate_has_quiet_room(locator, catalog, group, at + 1))
            return true;
    }
    return false;
}

bool tierce__demote_takes(const struct tierce__live *live, const struct tierce__catalog *catalog,
                          const struct tierce__group *group, const struct tierce__need *need)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    TIERCE_ASSERT(group >= groups && group < groups + count);
    /* A mover cannot prove the bytes of other clients. */
    return need->demotes[group - groups] && tierce__engine_extra_is(live->instance.model.extra);
}

struct applying {
    const struct tierce__catalog *catalog;
    const struct tierce__need *need;
    bool applies;
};

static void look_at(void *arg, struct tierce__live *live)
{
    struct applying *a = arg;
    const struct tierce__group *group =
        a->applies ? NULL : tierce__catalog_group(a->catalog, live->instance.group_name);
    if (group != NULL)
        a->applies = tierce__demote_takes(live, a->catalog, group, a->need);
}

bool *tierce__demote_begin(struct tierce__locator *locator, const struct tierce__catalog *catalog,
                           const struct tierce__need *need)
{
    size_t count;
    bool any = false, *groups = NULL;
    const struct tierce__group *all = tierce__catalog_groups(catalog, &count);
    TIERCE_DASSERT(need->demotes == NULL && (need->storage != 0 || need->of_slot));
    for (size_t i = 0; i < count; i++)
        any = any || all[i].demote == 1;
    if (any)
        groups = tierce__calloc(count, sizeof(*groups));
    for (size_t i = 0; i < count && groups != NULL; i++)
        groups[i] = can_demote(locator, catalog, &all[i], need);
    if (groups == NULL)
        return NULL;
    struct tierce__need asked = *need;
    asked.demotes = groups;
    struct applying a = {.catalog = catalog, .need = &asked};
    tierce__locator_each(locator, look_at, &a);
    if (!a.applies) {
        tierce__free(groups);
        return NULL;
    }
    return groups;
}

/* ---- bytes on their way ---------------------------------------------------------------------- */

struct leaving_bytes {
    const struct tierce__catalog *catalog;
    const struct tierce__need *need;
    uint64_t bytes;
};

static bool leaves_need(const struct leaving_bytes *l, const char *group, uint16_t from)
{
    const struct tierce__storage *storage = tierce__catalog_storage_numbered(l->catalog, from);
    return storage != NULL && is_of(l->need, storage) &&
           (l->need->group == NULL || strcmp(group, l->need->group) == 0);
}

static bool is_lane_of(void *arg, const struct tierce__move_lane *lane)
{
    const struct leaving_bytes *l = arg;
    const struct tierce__instance *instance =
        tierce__catalog_instance(l->catalog, lane->instance_id);
    return instance != NULL && leaves_need(l, instance->group_name, lane->from);
}

static void add_sessions(void *arg, struct tierce__live *live)
{
    struct leaving_bytes *l = arg;
    tierce__lock_take(&live->lock);
    if (live->moving_keys > 0) {
        TIERCE__MAP_FOR_EACH (node, &live->sessions) {
            const struct tierce__write_session *session =
                TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
            if (session->is_move && !session->keeps_source &&
                session->reason == TIERCE__MOVE_COLD && session->from != 0 &&
                leaves_need(l, live->instance.group_name, session->from))
                l->bytes += session->bytes;
        }
    }
    tierce__lock_drop(&live->lock);
}

uint64_t tierce__demote_leaving(struct tierce__locator *locator,
                                const struct tierce__catalog *catalog,
                                const struct tierce__need *need)
{
    struct leaving_bytes l = {.catalog = catalog, .need = need};
    l.bytes = tierce__moves_waiting(locator->moves, TIERCE__MOVE_COLD, is_lane_of, &l);
    tierce__locator_each(locator, add_sessions, &l);
    return l.bytes;
}

/* ---- victims --------------------------------------------------------------------------------- */

bool tierce__demote_skips(struct tierce__live *live, int64_t key,
                          const struct tierce__record *record, int64_t now_us)
{
    tierce__lock_take(&live->lock);
    bool is_claimed = tierce__live_claim(live, key) != NULL;
    tierce__lock_drop(&live->lock);
    for (size_t l = 0; l < record->location_count && !is_claimed; l++) {
        struct tierce__move_block block = tierce__move_block_of(key, &record->locations[l]);
        is_claimed =
            tierce__moves_knows(live->locator->moves, live->instance.number, &block, now_us);
    }
    return is_claimed;
}

/* The last copy that stays is not dropped. */
static bool is_elsewhere(void *arg, const struct tierce__location *location)
{
    const struct tierce__taking *t = arg;
    return !tierce__need_concerns(t->opts->need, location->type, location->storage) &&
           tierce__location_stays(t->opts->locator, t->opts->catalog, location);
}

bool tierce__demote_drops(struct tierce__taking *t, const struct tierce__candidate *c,
                          const struct tierce__record *record,
                          const struct tierce__location *location)
{
    bool is_useless = c->value == TIERCE__VALUE_NONE && record->children == 0;
    return is_useless || tierce__record_has_other(record, location, is_elsewhere, t);
}

/* The location to move; NULL: all that the need concerns can be dropped. */
static const struct tierce__location *source_of(struct tierce__taking *t,
                                                const struct tierce__candidate *c)
{
    for (size_t l = 0; l < c->record->location_count; l++) {
        const struct tierce__location *location = &c->record->locations[l];
        if (tierce__need_concerns(t->opts->need, location->type, location->storage) &&
            !tierce__demote_drops(t, c, c->record, location))
            return location;
    }
    return NULL;
}

/* Queues a block of one storage; blocks of a need lie in few storages. */
static bool want(struct tierce__taking *t, const struct tierce__member *member,
                 const struct tierce__candidate *c, const struct tierce__location *location)
{
    struct tierce__live *live = member->live;
    struct tierce__move_block block = tierce__move_block_of(c->key, location);
    const struct tierce__move_lane lane = {.instance_id = live->instance.id,
                                           .instance = live->instance.number,
                                           .from = location->storage,
                                           .to = TIERCE__MOVE_TO_COLDER,
                                           .reason = TIERCE__MOVE_COLD};
    if (location->storage == 0)
        return true; /* a record of an older form: it waits until it is evicted */
    if (tierce__moves_want(live->locator->moves, &lane, &block, 1, t->now_us) == 0)
        return false;
    tierce__placement_cooled(live, c->key, t->now_us);
    t->stats->demoted++;
    t->bytes_left -= block.bytes < t->bytes_left ? block.bytes : t->bytes_left;
    return true;
}

size_t tierce__demote(struct tierce__taking *t, const struct tierce__member *member,
                      struct tierce__candidate **chosen, size_t count)
{
    size_t dropped = 0;
    TIERCE_DASSERT(t->opts->need->demotes != NULL);
    for (size_t i = 0; i < count; i++) {
        const struct tierce__location *location = source_of(t, chosen[i]);
        if (location == NULL)
            chosen[dropped++] = chosen[i];
        else if (t->bytes_left > 0 && !want(t, member, chosen[i], location))
            break; /* the queue is full */
    }
    return dropped;
}
