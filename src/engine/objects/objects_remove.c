/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named values: taking old ones out of the slower tiers, durably. A remote store that cannot delete
 * a value now gets a tombstone (tombstones.h), and deletes it when it is back. Begin with
 * tierce__objects_remove_from.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/objects/objects_private.h"
#include "engine/objects/tombstones.h"

#define PURGES_MAX 64u /* of a store at a time */
/* How long a store may take to delete a value before that gets a tombstone, or keeps it. Meanwhile
 * the name cannot be changed. */
#define DELETE_MS 1000u

/* ---- tombstones ---- */

static bool has_level(const struct tierce_engine *engine, unsigned cap)
{
    for (size_t level = 1; level < engine->level_count; level++) {
        if ((engine->levels[level].tier->ops->caps & cap) != 0)
            return true;
    }
    return false;
}

static int open_file(struct tierce__tombstones **out, struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->disk_path[0] != '\0');
    tierce__lock_assert_held(&engine->lock);
    struct tierce__vfs *vfs;
    int rc = tierce__vfs_threads_create(&vfs, 1);
    if (rc < 0)
        return rc;
    rc = vfs->ops->enter(vfs, engine->disk_path);
    if (rc == 0)
        return tierce__tombstones_open(out, vfs, engine->namespaces);
    vfs->ops->destroy(vfs);
    return rc;
}

int tierce__objects_open_tombstones(struct tierce_engine *engine)
{
    if (!has_level(engine, TIERCE__TIER_DURABLE) || !has_level(engine, TIERCE__TIER_SHARED))
        return 0;
    struct tierce__tombstones *tombs = NULL;
    tierce__lock_take(&engine->lock);
    int rc = atomic_load(&engine->tombstones) == NULL ? open_file(&tombs, engine) : 0;
    if (rc == 0 && tombs != NULL)
        atomic_store(&engine->tombstones, tombs);
    tierce__lock_drop(&engine->lock);
    if (rc < 0)
        tierce__log(
            TIERCE_LOG_ERROR, "tombstones_unusable",
            "path=\"%s/%s\" reason=\"%s\" consequence=\"named values are not served, because "
            "remote stores may hold old ones\" remedy=\"delete the values in the remote "
            "stores, then this file\"",
            engine->disk_path, TIERCE__TOMBSTONES_FILE, tierce_strerror(rc));
    return rc;
}

static bool has_tombstone(struct tierce_engine *engine, size_t level, const struct tierce__key *key)
{
    TIERCE_DASSERT(engine->levels[level].health.shared);
    return tierce__tombstones_has(atomic_load(&engine->tombstones), engine->levels[level].store,
                                  key);
}

bool tierce__objects_may_ask(struct tierce_engine *engine, size_t level,
                             const struct tierce__key *key)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    if (!engine->levels[level].health.shared)
        return true;
    /* The folder may have tombstones, and could not be used. */
    if (engine->settings.has_disk && atomic_load(&engine->tombstones) == NULL)
        return false;
    return !has_tombstone(engine, level, key);
}

bool tierce__objects_level_has(struct tierce_engine *engine, size_t level,
                               const struct tierce__key *key, uint64_t deadline_ns)
{
    uint64_t lookup_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    struct tierce__search search = {.levels = 1u << level,
                                    .deadline_ns =
                                        lookup_ns < deadline_ns ? lookup_ns : deadline_ns,
                                    .asks_anew = true};
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    return tierce__objects_may_ask(engine, level, key) &&
           tierce__storage_search_until(engine, &search, key, 1) == 1;
}

/* ---- taking out ---- */

/* Whether the store may be asked to delete now. One that could not is left alone for breaker.retry,
 * so that not every change of a value waits for it. */
static bool may_delete(const struct tierce__level *level)
{
    TIERCE_DASSERT(level->health.shared);
    return tierce__health_serves(&level->health) &&
           atomic_load(&level->deletes_after_ns) <= tierce__now_ns();
}

static void note_deletion(struct tierce__level *level, int status)
{
    TIERCE_DASSERT(level->health.shared && status <= 1);
    bool good = status >= 0 || status == TIERCE_E_MISS;
    atomic_store(&level->deletes_after_ns,
                 good ? 0 : tierce__deadline_in_ms(level->health.limits.retry_ms));
}

/* Of a remote store: deletes the value, or adds a tombstone. Returns as tierce__storage_remove, and
 * 1 for a tombstone. *has_tomb: the store must not be given a new value before it has deleted. */
static int take_from_store(struct tierce_engine *engine, size_t level,
                           const struct tierce__key *key, uint64_t deadline_ns, bool *has_tomb)
{
    TIERCE_DASSERT(engine->levels[level].health.shared);
    TIERCE_DASSERT(level > 0);
    struct tierce__tombstones *tombs = atomic_load(&engine->tombstones);
    uint64_t store = engine->levels[level].store, soon_ns = tierce__deadline_in_ms(DELETE_MS);
    bool is_kept = false;
    *has_tomb = has_tombstone(engine, level, key);
    if (*has_tomb)
        return 1;
    if (tombs != NULL && soon_ns < deadline_ns)
        deadline_ns = soon_ns;
    int rc = TIERCE_E_DOWN;
    bool keeps = (engine->levels[level].tier->ops->caps & TIERCE__TIER_KEEPS) != 0;
    if (tombs == NULL && keeps && tierce__objects_level_has(engine, level, key, deadline_ns))
        return TIERCE__VALUE_IS_KEPT;
    if (tombs == NULL || may_delete(&engine->levels[level])) {
        rc = tierce__storage_remove_unsynced(engine, level, key, deadline_ns, &is_kept);
        note_deletion(&engine->levels[level], rc);
        if (rc >= 0 && is_kept)
            rc = TIERCE__VALUE_IS_KEPT; /* the tier hides it, for as long as there is room */
    }
    if (rc >= 0 || rc == TIERCE_E_CLOSED || tombs == NULL)
        return rc;
    rc = tierce__tombstones_add(tombs, store, key);
    *has_tomb = rc == 0;
    return *has_tomb ? 1 : rc;
}

int tierce__objects_remove_from(struct tierce_engine *engine, size_t level,
                                const struct tierce__key *key, struct tierce__taking *taking)
{
    bool own = false, has_tomb;
    TIERCE_ASSERT(level > 0 && level < engine->level_count);
    TIERCE_DASSERT((taking->levels >> level & 1) == 0);
    if (engine->levels[level].health.shared) {
        int rc = take_from_store(engine, level, key, taking->deadline_ns, &has_tomb);
        if (rc >= 0 && !has_tomb)
            taking->levels |= 1u << level;
        return rc;
    }
    int rc = tierce__storage_remove_unsynced(engine, level, key, taking->deadline_ns,
                                             taking->unsettled != NULL ? taking->unsettled : &own);
    taking->levels |= 1u << level;
    int settled = rc >= 0 && own ? tierce__storage_settle(engine, level, taking->deadline_ns) : 0;
    if (settled == 0)
        return rc;
    struct tierce__buf *old = tierce__storage_lease(engine, key);
    tierce__buf_release(old);
    if (old != NULL || tierce__smalls_has(engine->smalls, key, NULL))
        return settled;
    taking->late = settled;
    return 0;
}

/* ---- settling ---- */

int tierce__objects_settle(struct tierce__objects *space)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    int rc = 0;
    for (size_t level = 1; level < engine->level_count; level++) {
        int settled = tierce__storage_settle(engine, level, deadline_ns);
        rc = settled < 0 && rc == 0 ? settled : rc;
    }
    return rc;
}

struct removal_settling {
    struct tierce_engine *engine;
    size_t level; /* that is making its removals durable */
    struct tierce__store_req req;
};

_Static_assert(sizeof(struct removal_settling) <=
                   sizeof(((struct tierce__object_settle *)0)->scratch),
               "the writes fit into the caller's memory");

static void settle_levels(struct tierce__object_settle *settle);

static void level_settled(struct tierce__store_req *req)
{
    struct tierce__object_settle *settle = req->arg;
    struct removal_settling *s = (struct removal_settling *)(void *)settle->scratch;
    struct tierce_engine *engine = s->engine;
    TIERCE_DASSERT(s->level > 0 && s->level < engine->level_count);
    TIERCE_DASSERT(req == &s->req);
    atomic_fetch_add(&engine->calling, 1);
    tierce__storage_note(engine, s->level, req);
    settle->status = req->status < 0 ? req->status : settle->status;
    settle_levels(settle);
    atomic_fetch_sub(&engine->calling, 1);
}

/* Lets the next level make its removals durable, or answers the caller. */
static void settle_levels(struct tierce__object_settle *settle)
{
    struct removal_settling *s = (struct removal_settling *)(void *)settle->scratch;
    TIERCE_DASSERT(s->level < s->engine->level_count && settle->status <= 0);
    while (++s->level < s->engine->level_count) {
        if ((s->engine->levels[s->level].tier->ops->caps & TIERCE__TIER_DURABLE) == 0)
            continue;
        s->req = (struct tierce__store_req){.op = TIERCE__STORE_FLUSH,
                                            .removals = true,
                                            .deadline_ns =
                                                tierce__deadline_in_ms(s->engine->settings.load_ms),
                                            .done = level_settled,
                                            .arg = settle};
        if (tierce__storage_submit(s->engine, s->level, &s->req))
            return;
        settle->status = TIERCE_E_DOWN;
    }
    settle->done(settle);
}

void tierce__objects_settle_begin(struct tierce__objects *space,
                                  struct tierce__object_settle *settle)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct removal_settling *s = (struct removal_settling *)(void *)settle->scratch;
    *s = (struct removal_settling){.engine = space->engine};
    settle->status = 0;
    settle_levels(settle);
}

/* ---- forgetting ---- */

/* Whether some tier has a value that has not expired. */
static bool is_there(struct tierce__objects *space, const struct tierce__key *key,
                     uint64_t deadline_ns)
{
    struct tierce__object_form form;
    struct tierce__object *small = tierce__object_open_small(space, key, NULL, 0);
    if (small != NULL) {
        tierce__object_release(small);
        return true;
    }
    struct tierce__buf *buf = tierce__objects_accept(
        space, &form, tierce__storage_lease(space->engine, key), key, NULL, 0);
    for (size_t level = 1; level < space->engine->level_count && buf == NULL; level++) {
        if (tierce__objects_level_has(space->engine, level, key, deadline_ns) &&
            tierce__objects_peek(space, &form, &buf, level, key, deadline_ns) < 0)
            buf = NULL;
    }
    tierce__buf_release(buf);
    return buf != NULL;
}

/* Under the lock of the name. */
static int forget(struct tierce_engine *engine, const struct tierce__key *key, uint64_t deadline_ns)
{
    int rc = 0;
    for (size_t level = engine->level_count; level-- > 0;) {
        bool has_tomb;
        int removed = engine->levels[level].health.shared
                          ? take_from_store(engine, level, key, deadline_ns, &has_tomb)
                          : tierce__storage_remove(engine, level, key, deadline_ns);
        if (removed < 0 && rc == 0)
            rc = removed;
    }
    (void)tierce__smalls_remove(engine->smalls, key);
    return rc;
}

int tierce__object_remove(struct tierce__objects *space, const void *name, size_t name_bytes,
                          bool *was)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    uint64_t deadline_ns = tierce__deadline_in_ms(space->engine->settings.load_ms);
    return tierce__object_remove_by(space, name, name_bytes, deadline_ns, was);
}

int tierce__object_remove_by(struct tierce__objects *space, const void *name, size_t name_bytes,
                             uint64_t deadline_ns, bool *was)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    *was = false;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    struct tierce__key key = tierce__object_key(&space->space, name, name_bytes);
    struct tierce__object_name *turn;
    int rc = tierce__object_name_begin(&turn, &engine->object_names, &key, deadline_ns);
    if (rc < 0)
        return rc;
    *was = is_there(space, &key, deadline_ns);
    rc = forget(engine, &key, deadline_ns);
    tierce__object_name_end(turn);
    return rc;
}

int64_t tierce__objects_clear(struct tierce__objects *space)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    uint64_t count = tierce__objects_count(space);
    int64_t rc = tierce__engine_clear(engine, 0, &space->space.key);
    /* A value that was read from disk just before the clear may have reached memory since. */
    if (rc >= 0)
        rc = tierce__engine_clear_silently(engine, 1u << TIERCE_ORIGIN_MEMORY, &space->space.key);
    for (size_t level = 1; level < engine->level_count && rc >= 0; level++) {
        int settled = tierce__storage_settle(engine, level, deadline_ns);
        rc = settled < 0 ? settled : rc;
    }
    return rc < 0 ? rc : (int64_t)count;
}

/* ---- deleting what has a tombstone ---- */

struct purge {
    struct tierce_engine *engine;
    size_t level;
    struct tierce__key key;
    struct tierce__object_name *name;
    struct tierce__store_req req;
};

/* The last of those that were under way has the keeper go on with others at once. */
static void end_purge(struct tierce_engine *engine)
{
    TIERCE_DASSERT(atomic_load(&engine->purges) > 0);
    if (atomic_fetch_sub(&engine->purges, 1) != 1)
        return;
    tierce__lock_take(&engine->lock);
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
}

static void has_purged(struct tierce__store_req *req)
{
    struct purge *purge = req->arg;
    struct tierce_engine *engine = purge->engine;
    struct tierce__tombstones *tombs = atomic_load(&engine->tombstones);
    uint64_t store = engine->levels[purge->level].store;
    TIERCE_DASSERT(atomic_load(&engine->purges) > 0);
    TIERCE_DASSERT(req == &purge->req);
    atomic_fetch_add(&engine->calling, 1);
    note_deletion(&engine->levels[purge->level], req->status);
    if (req->status == 0 || req->status == TIERCE_E_MISS) {
        tierce__tombstones_lift(tombs, store, &purge->key);
        atomic_store(&engine->purges_more, true);
    } else {
        tierce__tombstones_defer(tombs, store, &purge->key);
    }
    tierce__object_name_end(purge->name);
    tierce__free(purge);
    end_purge(engine);
    atomic_fetch_sub(&engine->calling, 1);
}

/* Asks the store to delete a value, unless its name is being changed now. */
static void purge(struct tierce_engine *engine, size_t level, const struct tierce__key *key)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    struct purge *purge = tierce__calloc(1, sizeof(*purge));
    if (purge == NULL)
        return;
    if (tierce__object_name_begin(&purge->name, &engine->object_names, key, 0) < 0) {
        tierce__free(purge);
        return;
    }
    if (!has_tombstone(engine, level, key)) { /* lifted meanwhile: the store may hold a new value */
        tierce__object_name_end(purge->name);
        tierce__free(purge);
        return;
    }
    purge->engine = engine;
    purge->level = level;
    purge->key = *key;
    purge->req = (struct tierce__store_req){.op = TIERCE__STORE_DELETE,
                                            .deadline_ns = tierce__deadline_in_ms(DELETE_MS),
                                            .done = has_purged,
                                            .arg = purge,
                                            .keys = &purge->key,
                                            .key_count = 1,
                                            .left = TIERCE__LEFT_DELETED};
    atomic_fetch_add(&engine->purges, 1);
    bool passed = tierce__storage_submit(engine, level, &purge->req);
    TIERCE_ASSERT(passed); /* deletions are not held up by the breaker */
}

bool tierce__objects_purge_is_due(struct tierce_engine *engine)
{
    return atomic_load(&engine->purges) == 0 && atomic_load(&engine->purges_more);
}

void tierce__objects_purge(struct tierce_engine *engine)
{
    struct tierce__tombstones *tombs = atomic_load(&engine->tombstones);
    struct tierce__key keys[PURGES_MAX];
    if (tombs == NULL || atomic_load(&engine->purges) > 0)
        return;
    atomic_store(&engine->purges_more, false);
    for (size_t level = 1; level < engine->level_count; level++) {
        const struct tierce__level *r = &engine->levels[level];
        /* A store that keeps what it has would only hide it from this process. */
        if (!r->health.shared || (r->tier->ops->caps & TIERCE__TIER_KEEPS) != 0 || !may_delete(r))
            continue;
        size_t count = tierce__tombstones_list(tombs, r->store, keys, PURGES_MAX);
        TIERCE_DASSERT(count <= PURGES_MAX);
        for (size_t i = 0; i < count; i++)
            purge(engine, level, &keys[i]);
    }
    tierce__tombstones_flush(tombs);
}
