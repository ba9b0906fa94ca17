/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/invalidations.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/engine.h"
#include "engine/generations.h"
#include "engine/observe/operate.h"

#include <errno.h>

#define AGAIN_MS 1000u /* after a failure */

struct invalidation {
    struct tierce__list node;
    struct tierce__level *level;
    struct tierce__invalidated what;
    bool is_kept;    /* nothing is of another generation: this one is noted with the disk */
    bool has_failed; /* and that was logged */
};

static struct invalidation *invalidation_at(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct invalidation, node);
}

static bool has_disk(const struct tierce_engine *engine)
{
    for (size_t level = 0; level < engine->level_count; level++) {
        if (engine->levels[level].origin == TIERCE_ORIGIN_DISK)
            return true;
    }
    return false;
}

int tierce__invalidations_load(struct tierce_engine *engine)
{
    TIERCE_ASSERT(engine->generations == NULL && !engine->invalidator_runs);
    return has_disk(engine) ? tierce__generations_load(&engine->generations, engine->disk_path) : 0;
}

/* Nothing was invalidated ever, as far as it is known. */
static bool is_kept(const struct tierce__level *level, const struct tierce__invalidated *what)
{
    struct tierce__generations *generations = level->engine->generations;
    return what->is_first && what->generation == 1 &&
           (generations == NULL ||
            !tierce__generations_may_differ(generations, level->store, what));
}

/* Without memory the store serves nothing of the namespace any more, until the process ends. */
bool tierce__invalidations_note(void *arg, const struct tierce__invalidated *what)
{
    struct tierce__level *level = arg;
    struct tierce_engine *engine = level->engine;
    struct invalidation *it = tierce__calloc(1, sizeof(*it));
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (it == NULL) {
        tierce__log(TIERCE_LOG_ERROR, "invalidation_lost", "reason=\"no memory\"");
        return false;
    }
    it->level = level;
    it->what = *what;
    it->is_kept = is_kept(level, what);
    bool has_none = it->is_kept;
    tierce__list_init(&it->node);
    tierce__lock_take(&engine->lock);
    tierce__list_push_back(&engine->invalidations, &it->node);
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
    return has_none;
}

static struct invalidation *take(struct tierce_engine *engine)
{
    struct invalidation *it = NULL;
    tierce__lock_take(&engine->lock);
    if (!tierce__list_empty(&engine->invalidations)) {
        it = invalidation_at(engine->invalidations.next);
        tierce__list_remove(&it->node);
    }
    tierce__lock_drop(&engine->lock);
    return it;
}

/* An engine that has just started, with the chunks of this generation on its disk. */
static bool has_it_on_disk(const struct invalidation *it)
{
    const struct tierce_engine *engine = it->level->engine;
    return has_disk(engine) &&
           tierce__generations_has(engine->disk_path, it->level->store, &it->what);
}

/* If it cannot be noted, the next start clears the disk once more, or, of a first generation, would
 * not notice another registry. */
static int note_on_disk(const struct invalidation *it)
{
    const struct tierce_engine *engine = it->level->engine;
    if (!has_disk(engine))
        return 0;
    int rc = tierce__generations_set(engine->disk_path, it->level->store, &it->what);
    if (rc < 0 && !it->has_failed)
        tierce__log(TIERCE_LOG_WARN, "generation_not_noted", "folder=\"%s\" error=%s",
                    engine->disk_path, tierce_error_name(rc));
    return rc == -EEXIST ? rc : 0;
}

/* The file is replaced only if it does not have the generation. */
static int note_first(const struct invalidation *it)
{
    if (it->what.registry != 0 && !has_it_on_disk(it))
        (void)note_on_disk(it); /* it is adopted already */
    return 0;
}

/* 0: the namespace is clear, and the store knows it. */
static int carry_out(struct tierce_engine *engine, struct invalidation *it)
{
    struct tierce__key of = {.shard = it->what.shard};
    struct tierce__connector *connector = it->level->connector;
    int64_t id = tierce__namespaces_intern(engine->namespaces, it->what.ns_digest, NULL);
    TIERCE_ASSERT(connector != NULL && connector->ops->adopt != NULL);
    if (id < 0)
        return (int)id;
    of.ns = (uint32_t)id;
    if (it->is_kept) /* and adopted; the file is replaced only if it does not have it */
        return note_first(it);
    bool is_kept = has_it_on_disk(it);
    int64_t chunks = is_kept ? 0 : tierce__engine_clear_own(engine, &of);
    int rc = chunks < 0 ? (int)chunks : is_kept ? 0 : note_on_disk(it);
    if (rc == 0)
        rc = connector->ops->adopt(connector, &it->what);
    if (rc == 0 && is_kept)
        tierce__log(TIERCE_LOG_INFO, "namespace_kept", "generation=%llu",
                    (unsigned long long)it->what.generation);
    else if (rc == 0)
        tierce__log(TIERCE_LOG_WARN, "namespace_invalidated", "chunks=%lld generation=%llu",
                    (long long)chunks, (unsigned long long)it->what.generation);
    else if (!it->has_failed)
        tierce__log(
            TIERCE_LOG_ERROR, "invalidation_failed",
            "error=%s effect=\"the store is not used for the namespace; it is tried again\"",
            tierce_error_name(rc));
    it->has_failed = rc < 0;
    return rc;
}

/* False: one has failed. It stays the first: a later one of the same namespace, carried out before,
 * would be followed by the note of an older generation. */
static bool carry_out_all(struct tierce_engine *engine)
{
    struct invalidation *it;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while ((it = take(engine)) != NULL) {
        if (carry_out(engine, it) < 0) {
            tierce__lock_take(&engine->lock);
            tierce__list_push_front(&engine->invalidations, &it->node);
            tierce__lock_drop(&engine->lock);
            return false;
        }
        tierce__free(it);
    }
    return true;
}

static void *work(void *arg)
{
    struct tierce_engine *engine = arg;
    uint64_t again_ns = 0; /* after a failure: not before */
    tierce__lock_take(&engine->lock);
    while (!engine->closing) {
        bool waits = tierce__list_empty(&engine->invalidations);
        if (waits || tierce__now_ns() < again_ns) {
            (void)tierce__cond_wait(&engine->changed, &engine->lock,
                                    waits ? TIERCE__DEADLINE_NEVER : again_ns);
            continue;
        }
        tierce__lock_drop(&engine->lock);
        again_ns = carry_out_all(engine) ? 0 : tierce__deadline_in_ms(AGAIN_MS);
        tierce__lock_take(&engine->lock);
    }
    tierce__lock_drop(&engine->lock);
    return NULL;
}

static bool can_invalidate(const struct tierce__level *level)
{
    return level->connector != NULL && level->connector->ops->adopt != NULL;
}

int tierce__invalidations_start(struct tierce_engine *engine)
{
    bool is_needed = false;
    TIERCE_ASSERT(!engine->invalidator_runs);
    for (size_t level = 1; level < engine->level_count; level++)
        is_needed |= can_invalidate(&engine->levels[level]);
    int rc = is_needed ? -pthread_create(&engine->invalidator, NULL, work, engine) : 0;
    engine->invalidator_runs = is_needed && rc == 0;
    return rc;
}

void tierce__invalidations_stop(struct tierce_engine *engine)
{
    if (engine->invalidator_runs)
        pthread_join(engine->invalidator, NULL);
    engine->invalidator_runs = false;
}

void tierce__invalidations_ask(struct tierce_engine *engine, const struct tierce__key *key)
{
    for (size_t level = 1; has_disk(engine) && level < engine->level_count; level++) {
        if (can_invalidate(&engine->levels[level]))
            tierce__storage_ask(engine, level, key);
    }
}

void tierce__invalidations_fini(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->level_count == 0);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &engine->invalidations) {
        tierce__list_remove(node);
        tierce__free(invalidation_at(node));
    }
    tierce__generations_free(engine->generations);
    engine->generations = NULL;
}
