/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"
#include "manager/registry/catalog.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { REUSE_DELAY_MS = 60000, LATE_WRITE_MS = 600000 };

/* A store that some instances share. */
struct store_use {
    struct tierce__list node;
    const struct tierce__meta_store_ops *ops;
    char *uri;
    struct tierce__meta_store *store;
};

void tierce__say_why(char why[TIERCE__WHY_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, TIERCE__WHY_BYTES, format, arguments);
    va_end(arguments);
}

/* ---- time and chance ------------------------------------------------------------------------- */

static int64_t clock_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t tierce__locator_now_us(const struct tierce__locator *locator)
{
    if (locator->opts.now_us != NULL)
        return locator->opts.now_us(locator->opts.clock_arg);
    return clock_us(CLOCK_BOOTTIME) +
           atomic_load_explicit(&locator->wall_offset_us, memory_order_relaxed);
}

/* Captures the wall clock when this process begins to lead. Time advances from there by the boot
 * clock, so setting the wall clock neither ends nor extends sessions. */
static void take_wall_clock(struct tierce__locator *locator)
{
    int64_t boot_us = clock_us(CLOCK_BOOTTIME), wall_us = clock_us(CLOCK_REALTIME);
    atomic_store_explicit(&locator->wall_offset_us, wall_us - boot_us, memory_order_relaxed);
}

uint64_t tierce__locator_random(struct tierce__locator *locator)
{
    /* One kernel call per number took an eighth of a StartWrite of 128 keys. */
    static _Thread_local uint64_t drawn[32]; /* getrandom returns up to 256 bytes completely */
    static _Thread_local size_t left;
    TIERCE_DASSERT(left <= sizeof(drawn) / sizeof(drawn[0]));
    if (locator->opts.seed == 0 && left == 0 &&
        getrandom(drawn, sizeof(drawn), 0) == (ssize_t)sizeof(drawn))
        left = sizeof(drawn) / sizeof(drawn[0]);
    if (locator->opts.seed == 0 && left > 0)
        return drawn[--left];
    /* tierce__random_next, for several threads */
    return tierce__mix(
        atomic_fetch_add_explicit(&locator->random, TIERCE__MIX_GOLDEN, memory_order_relaxed));
}

void tierce__locator_name(struct tierce__locator *locator, char *out, size_t count)
{
    enum { LETTERS = 36, BY_DRAW = 8 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    _Static_assert(sizeof(letters) - 1 == LETTERS, "each letter is drawn");
    uint64_t drawn = 0;
    for (size_t i = 0; i < count; i++) {
        if (i % BY_DRAW == 0)
            drawn = tierce__locator_random(locator);
        out[i] = letters[drawn % LETTERS];
        drawn /= LETTERS;
    }
}

/* ---- opening and closing --------------------------------------------------------------------- */

int tierce__locator_open(struct tierce__locator **out, const struct tierce__locator_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__locator *locator = tierce__calloc(1, sizeof(*locator));
    if (locator == NULL)
        return -ENOMEM;
    locator->opts = *opts;
    if (locator->opts.reuse_delay_ms == 0)
        locator->opts.reuse_delay_ms = REUSE_DELAY_MS;
    if (locator->opts.late_write_ms == 0)
        locator->opts.late_write_ms = LATE_WRITE_MS;
    if (locator->opts.find_store == NULL)
        locator->opts.find_store = tierce__meta_store_find;
    locator->located.item_bytes = sizeof(_Atomic uint64_t);
    atomic_init(&locator->random, opts->seed);
    take_wall_clock(locator);
    tierce__lock_init(&locator->changing, TIERCE__LOCK_CHANGING);
    tierce__lock_init(&locator->lock, TIERCE__LOCK_LOCATOR);
    tierce__cond_init(&locator->idle);
    tierce__list_init(&locator->instances);
    tierce__list_init(&locator->stores);
    tierce__list_init(&locator->counters);
    int rc = tierce__quota_create(&locator->quota);
    if (rc == 0)
        rc = tierce__locator_set_quotas(locator, opts->quota_groups, opts->quota_group_count);
    if (rc == 0)
        rc = tierce__session_endings_create(&locator->endings);
    if (rc == 0)
        rc = tierce__moves_create(
            &locator->moves, &(struct tierce__moves_opts){.size = sizeof(struct tierce__moves_opts),
                                                          .rate = opts->move_rate});
    if (rc == 0)
        rc = tierce__deleter_create(&locator->deleter, locator, opts->delete_threads);
    if (rc < 0)
        tierce__locator_close(locator);
    else
        *out = locator;
    return rc;
}

void tierce__locator_close(struct tierce__locator *locator)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (locator == NULL)
        return;
    if (locator->deleter != NULL)
        tierce__locator_drop(locator);
    TIERCE_ASSERT(!locator->is_open);
    TIERCE_ASSERT(tierce__list_empty(&locator->instances) && locator->by_id.count == 0);
    TIERCE_ASSERT(tierce__list_empty(&locator->stores) && tierce__list_empty(&locator->counters));
    tierce__deleter_destroy(locator->deleter);
    tierce__moves_destroy(locator->moves);
    tierce__session_endings_destroy(locator->endings);
    tierce__quota_destroy(locator->quota);
    tierce__storage_table_clear(&locator->located);
    tierce__free(atomic_load_explicit(&locator->cooled, memory_order_relaxed));
    tierce__map_fini(&locator->by_id);
    for (size_t kind = 0; kind < TIERCE__SCANS; kind++)
        tierce__free(locator->scans[kind].numbers);
    tierce__cond_fini(&locator->idle);
    tierce__lock_fini(&locator->lock);
    tierce__lock_fini(&locator->changing);
    tierce__free(locator);
}

/* ---- instances in use ------------------------------------------------------------------------ */

/* Clients choose the ids, hence the seed. */
static uint64_t hash_of(const struct tierce__locator *locator, const char *id)
{
    return tierce__mix(tierce__hash_text(TIERCE__HASH_TEXT ^ locator->opts.seed, id));
}

static struct tierce__live *find_live(struct tierce__locator *locator, const char *id)
{
    tierce__lock_assert_held(&locator->lock);
    struct tierce__map_node *it = tierce__map_find(&locator->by_id, hash_of(locator, id));
    for (; it != NULL; it = tierce__map_find_next(it)) {
        struct tierce__live *live = TIERCE__CONTAINER_OF(it, struct tierce__live, by_id);
        if (strcmp(live->instance.id, id) == 0)
            return live;
    }
    return NULL;
}

int tierce__live_acquire(struct tierce__live **out, struct tierce__locator *locator, const char *id,
                         char why[TIERCE__WHY_BYTES])
{
    int rc = 0;
    tierce__lock_take(&locator->lock);
    struct tierce__live *live = find_live(locator, id);
    if (!locator->is_open)
        rc = tierce__why(why, TIERCE_E_CLOSED, "this manager does not lead");
    else if (live == NULL || live->is_going)
        rc = tierce__why(why, -ENOENT, "there is no instance %.100s", id);
    else
        tierce__live_hold(live);
    tierce__lock_drop(&locator->lock);
    if (rc == 0)
        *out = live;
    return rc;
}

void tierce__live_hold(struct tierce__live *live)
{
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) < UINT32_MAX);
    atomic_fetch_add_explicit(&live->users, 1, memory_order_relaxed);
}

void tierce__live_release(struct tierce__live *live)
{
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
    struct tierce__locator *locator = live->locator;
    /* Pairs with the acquire of the thread that waits for the last user. */
    if (atomic_fetch_sub_explicit(&live->users, 1, memory_order_release) > 1)
        return;
    tierce__lock_take(&locator->lock);
    tierce__cond_broadcast(&locator->idle);
    tierce__lock_drop(&locator->lock);
}

struct tierce__quota_at tierce__live_quota_at(const struct tierce__live *live, uint8_t type,
                                              uint16_t storage)
{
    return (struct tierce__quota_at){
        .group = live->instance.group_name, .type = type, .storage = storage};
}

bool tierce__locator_blocks(struct tierce__locator *locator, const char *instance_id)
{
    tierce__lock_take(&locator->lock);
    const struct tierce__live *live = find_live(locator, instance_id);
    bool blocks = live != NULL && live->blocks;
    tierce__lock_drop(&locator->lock);
    return blocks;
}

/* ---- stores ---------------------------------------------------------------------------------- */

static void close_store(struct store_use *use)
{
    if (use->store != NULL)
        use->ops->close(use->store);
    tierce__free(use->uri);
    tierce__free(use);
}

/* Returns the store of a group's instances; each URI is opened once. */
static int use_store(struct tierce__meta_store **out, struct tierce__locator *locator,
                     const struct tierce__group *group, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__meta_store_ops *ops =
        locator->opts.find_store(group->meta_store_type, group->meta_store_uri);
    if (ops == NULL)
        return tierce__why(
            why, TIERCE_E_CONFIG,
            "group %.64s: unknown meta storage type \"%.40s\"; accepted are local, rocksdb, redis",
            group->name, group->meta_store_type);
    TIERCE__LIST_FOR_EACH (it, &locator->stores) {
        struct store_use *use = TIERCE__CONTAINER_OF(it, struct store_use, node);
        if (use->ops == ops && strcmp(use->uri, group->meta_store_uri) == 0) {
            *out = use->store;
            return 0;
        }
    }
    struct store_use *use = tierce__calloc(1, sizeof(*use));
    if (use == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    use->ops = ops;
    use->uri = tierce__strdup(group->meta_store_uri);
    int rc = use->uri != NULL ? ops->open(&use->store, use->uri, why)
                              : tierce__why(why, -ENOMEM, "no memory");
    if (rc == 0 && ops->fence != NULL) {
        rc = ops->fence(use->store, locator->fence);
        if (rc < 0)
            tierce__say_why(why, "the index of group %.64s rejects this leader: %s", group->name,
                            tierce_strerror(rc));
    }
    if (rc < 0) {
        close_store(use);
        return rc;
    }
    tierce__list_push_back(&locator->stores, &use->node);
    *out = use->store;
    return 0;
}

/* ---- an instance's life ---------------------------------------------------------------------- */

static void destroy_live(struct tierce__live *live)
{
    if (live == NULL)
        return;
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_acquire) == 0);
    TIERCE_ASSERT(tierce__list_empty(&live->node));
    TIERCE_ASSERT(live->claims.count == 0 || live->sessions.count > 0);
    TIERCE_ASSERT(live->deadlines.count == live->sessions.count);
    TIERCE__MAP_FOR_EACH (node, &live->sessions)
        tierce__session_destroy(TIERCE__CONTAINER_OF(node, struct tierce__write_session, node));
    tierce__ghosts_close(live->locator->opts.ghost, live->tap);
    tierce__places_close(live->places);
    tierce__meta_index_close(live->index);
    if (live->space != NULL)
        live->space->ops->space_close(live->space);
    tierce__live_free_hints(live);
    tierce__deleting_clear(&live->deleting);
    tierce__calendar_clear(&live->calendar);
    tierce__orphan_sweep_clear(&live->sweep);
    tierce__holes_fini(&live->holes);
    tierce__deadlines_fini(&live->deadlines);
    tierce__map_fini(&live->sessions);
    tierce__map_fini(&live->claims);
    tierce__instance_clear(&live->instance);
    tierce__lock_fini(&live->lock);
    tierce__free(live);
}

/* Returns a power of two, bounded by SHARDS_MAX. */
static uint32_t shard_count(const struct tierce__group *group)
{
    enum { SHARDS_MAX = 65536, SHARDS_USUAL = 16 };
    uint32_t shards = 1;
    int64_t wanted = group->mutex_shard_count > 0 ? group->mutex_shard_count : SHARDS_USUAL;
    while (shards < wanted && shards < SHARDS_MAX)
        shards *= 2;
    TIERCE_DASSERT((shards & (shards - 1)) == 0 && shards <= SHARDS_MAX);
    return shards;
}

/* It is unknown which of the free slots a late writer or a reader may still use. */
static int64_t oldest_use(const struct tierce__live *live)
{
    const struct tierce__locator_opts *opts = &live->locator->opts;
    int64_t delay_ms =
        opts->late_write_ms > opts->reuse_delay_ms ? opts->late_write_ms : opts->reuse_delay_ms;
    TIERCE_DASSERT(delay_ms > 0);
    return tierce__locator_now_us(live->locator) + delay_ms * 1000;
}

void tierce__locator_set_filler(struct tierce__locator *locator, tierce__locator_fill_fn fill,
                                void *arg)
{
    TIERCE_ASSERT(fill == NULL || !locator->is_open);
    locator->fill = fill;
    locator->fill_arg = arg;
}

/* *is_said: `why` has the reason of the error. */
static int open_space(struct tierce__live *live, struct tierce__meta_store *store,
                      const struct tierce__catalog *catalog, char why[TIERCE__WHY_BYTES],
                      bool *is_said)
{
    const struct tierce__locator *locator = live->locator;
    int rc = store->ops->space_open(&live->space, store, live->instance.number, live->instance.id);
    if (rc == 0 && store->ops->space_names != NULL)
        rc = store->ops->space_names(live->space, locator->opts.registry, &live->instance);
    *is_said = rc == 0 && locator->fill != NULL;
    if (*is_said)
        rc = locator->fill(locator->fill_arg, live->space, &live->instance, catalog, why);
    return rc;
}

static int open_index(struct tierce__live *live, const struct tierce__catalog *catalog,
                      const struct tierce__group *group, char why[TIERCE__WHY_BYTES])
{
    bool is_said = false;
    struct tierce__meta_store *store = NULL;
    int rc = use_store(&store, live->locator, group, why);
    if (rc < 0)
        return rc;
    rc = open_space(live, store, catalog, why, &is_said);
    if (rc < 0 && is_said)
        return rc;
    if (rc == 0)
        rc = tierce__meta_index_open(
            &live->index, live->space,
            &(struct tierce__meta_index_opts){
                .size = sizeof(struct tierce__meta_index_opts),
                .shards = shard_count(group),
                .batch_keys = group->batch_key_count > 0 ? (uint32_t)group->batch_key_count : 0,
                .cache_bytes = (uint64_t)group->search_cache_mib << 20,
                .cache_shard_bits = (uint32_t)group->search_cache_shard_bits,
                .keeps_child = live->needs.run > 1,
            });
    if (rc == 0)
        rc = tierce__places_open(&live->places, live->space, &live->instance, oldest_use(live),
                                 tierce__locator_random(live->locator));
    if (rc < 0)
        return tierce__why(why, rc, "the index of instance %.64s cannot be opened: %s",
                           live->instance.id, tierce_strerror(rc));
    TIERCE_DASSERT(tierce__meta_index_space(live->index) == live->space);
    live->blocks = tierce__meta_index_blocks(live->index);
    return 0;
}

static int create_live(struct tierce__live **out, struct tierce__locator *locator,
                       const struct tierce__catalog *catalog,
                       const struct tierce__instance *instance, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__group *group = tierce__catalog_group(catalog, instance->group_name);
    if (group == NULL)
        return tierce__why(why, -ENOENT,
                           "instance %.64s belongs to group %.64s, which does not exist",
                           instance->id, instance->group_name);
    TIERCE_DASSERT(strcmp(group->name, instance->group_name) == 0);
    struct tierce__live *live = tierce__calloc(1, sizeof(*live));
    if (live == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    live->locator = locator;
    tierce__list_init(&live->node);
    tierce__lock_init(&live->lock, TIERCE__LOCK_SESSIONS);
    tierce__holes_init(&live->holes);
    live->calendar_ttl_us = -1;
    int rc = tierce__instance_copy(&live->instance, instance);
    live->needs = tierce__attention_needs(instance);
    atomic_init(&live->generation, instance->generation);
    rc = rc < 0 ? tierce__why(why, rc, "no memory") : open_index(live, catalog, group, why);
    if (rc < 0) {
        destroy_live(live);
        return rc;
    }
    live->tap = tierce__ghosts_open(locator->opts.ghost, instance);
    *out = live;
    return 0;
}

/* ---- recovery from notes --------------------------------------------------------------------- */

struct taking_up {
    struct tierce__live *live;
    struct tierce__quota_sums sums;
    struct tierce__deletion **list;
    size_t list_count, list_room;
    uint64_t unreadable;
};

/* Whether blocks of the instance may have no parts. */
static bool has_empty_group(const struct tierce__instance *instance)
{
    for (size_t g = 0; g < instance->spec_group_count; g++) {
        if (instance->spec_groups[g].spec_name_count == 0)
            return true;
    }
    return false;
}

/* Whether each key of a session that was read has the places of a block of the instance. */
static bool fits_instance(const struct tierce__write_session *session,
                          const struct tierce__instance *instance)
{
    bool needs_place = !has_empty_group(instance);
    for (size_t i = 0; i < session->count; i++) {
        const struct tierce__session_key *key = &session->keys[i];
        if (key->place_count == 0 && needs_place)
            return false;
        for (size_t p = 0; p < key->place_count; p++) {
            if (key->places[p].spec >= instance->spec_count)
                return false;
        }
    }
    return true;
}

/* A session continues under a new leader: its client may finish it until it times out. */
static int take_up_session(void *arg, const struct tierce__meta_note *note)
{
    TIERCE_DASSERT(note->kind == TIERCE__NOTE_SESSION);
    struct taking_up *t = arg;
    struct tierce__live *live = t->live;
    struct tierce__write_session *session;
    int rc = tierce__session_read(&session, live->locator, note->number, note->value, note->bytes);
    if (rc == -ENOMEM)
        return rc;
    if (rc == 0 && !fits_instance(session, &live->instance)) {
        tierce__session_destroy(session);
        rc = TIERCE_E_FORMAT;
    }
    if (rc < 0) {
        t->unreadable++;
        return 0;
    }
    TIERCE_DASSERT(session->note == note->number && session->count > 0);
    tierce__lock_take(&live->lock);
    TIERCE_ASSERT(!session->is_busy && !session->is_doubtful && !session->is_unsure);
    rc = tierce__live_put_session(live, session);
    for (size_t i = 0; rc == 0 && i < session->count; i++) {
        session->keys[i].claim.session = session;
        tierce__live_put_claim(live, &session->keys[i].claim);
    }
    tierce__lock_drop(&live->lock);
    if (rc < 0)
        tierce__session_destroy(session);
    return rc < 0 ? rc
                  : tierce__quota_sums_add(&t->sums, TIERCE__QUOTA_WRITING, session->type,
                                           session->storage, session->bytes);
}

/* The clock of the leader before may have been ahead: nothing waits for longer than if its location
 * were removed now. */
static void bound_times(struct tierce__deletion *deletion)
{
    int64_t due_us = tierce__live_departure_due_us(deletion->live);
    int64_t last_us = oldest_use(deletion->live);
    deletion->due_us = deletion->due_us < due_us ? deletion->due_us : due_us;
    deletion->reusable_us = deletion->reusable_us < last_us ? deletion->reusable_us : last_us;
    deletion->sweep_us = deletion->sweep_us < last_us ? deletion->sweep_us : last_us;
}

static int take_up_deletion(void *arg, const struct tierce__meta_note *note)
{
    TIERCE_DASSERT(note->kind == TIERCE__NOTE_DELETION);
    struct taking_up *t = arg;
    struct tierce__deletion *deletion;
    int rc = TIERCE__GROW(t->list, t->list_room, t->list_count + 1, 64);
    if (rc < 0)
        return rc;
    rc = tierce__deletion_read(&deletion, t->live, note);
    if (rc == -ENOMEM)
        return rc;
    if (rc < 0) {
        t->unreadable++;
        return 0;
    }
    TIERCE_DASSERT(t->list_count < t->list_room);
    TIERCE_ASSERT(deletion->live == t->live && !deletion->is_doubtful);
    bound_times(deletion);
    t->list[t->list_count++] = deletion;
    for (size_t i = 0; rc == 0 && i < deletion->count && !deletion->is_sweep; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        rc = tierce__quota_sums_add(&t->sums, TIERCE__QUOTA_DELETING, location->type,
                                    location->storage, tierce__location_bytes(location));
    }
    return rc;
}

/* Whether a storage of the registry has no counter of its own in an index. */
static bool has_shared_counter(const struct tierce__catalog *catalog)
{
    size_t count;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (storages[i].number >= TIERCE__META_STORAGE_SLOTS)
            return true;
    }
    return false;
}

/* The quotas count all bytes before the deleter begins to return them. */
static int take_up(struct tierce__live *live, const struct tierce__catalog *catalog)
{
    struct taking_up t = {.live = live, .sums.by_storage.item_bytes = TIERCE__QUOTA_SUMS_ITEM};
    bool has_shared = has_shared_counter(catalog);
    struct tierce__meta_space *space = live->space;
    TIERCE_ASSERT(tierce__list_empty(&live->node));
    TIERCE_ASSERT(live->sessions.count == 0 && live->claims.count == 0);
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) == 0);
    int rc = tierce__live_count_served(live, has_shared, &t.sums);
    rc = rc == 0 ? tierce__live_find_expiry(live) : rc;
    rc = rc == 0 ? tierce__live_find_holes(live) : rc;
    if (rc == 0)
        rc = space->ops->notes(space, TIERCE__NOTE_SESSION, take_up_session, &t);
    if (rc == 0)
        rc = space->ops->notes(space, TIERCE__NOTE_DELETION, take_up_deletion, &t);
    if (rc == 0)
        rc = tierce__quota_add(live->locator->quota, live->instance.group_name, &t.sums);
    tierce__quota_sums_clear(&t.sums);
    for (size_t i = 0; i < t.list_count; i++) {
        if (rc == 0)
            tierce__deleter_submit(live->locator->deleter, t.list[i]);
        else
            tierce__deletion_destroy(t.list[i]);
    }
    if (t.unreadable > 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.notes_unreadable",
                    "instance=%s notes=%llu: their sizes are lost", live->instance.id,
                    (unsigned long long)t.unreadable);
    tierce__free(t.list);
    return rc;
}

/* ---- recover and drop ------------------------------------------------------------------------ */

static int add_live(struct tierce__locator *locator, const struct tierce__catalog *catalog,
                    const struct tierce__instance *instance, char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live = NULL;
    const struct tierce__group *group = tierce__catalog_group(catalog, instance->group_name);
    int rc = create_live(&live, locator, catalog, instance, why);
    if (rc < 0)
        return rc;
    rc = tierce__quota_share(locator->quota, group->name, group->global_quota_group_name);
    if (rc == 0)
        rc = tierce__locator_add_counters(locator, catalog, group->name);
    if (rc == 0)
        rc = take_up(live, catalog);
    if (rc < 0) {
        destroy_live(live);
        return tierce__why(why, rc, "the notes of instance %.64s cannot be read: %s", instance->id,
                           tierce_strerror(rc));
    }
    tierce__live_hold(live); /* the list's reference, until unlist */
    tierce__lock_take(&locator->lock);
    TIERCE_DASSERT(find_live(locator, instance->id) == NULL && !live->is_going);
    tierce__list_push_back(&locator->instances, &live->node);
    tierce__map_put(&locator->by_id, &live->by_id, hash_of(locator, instance->id));
    tierce__lock_drop(&locator->lock);
    return 0;
}

int tierce__locator_recover(struct tierce__locator *locator, uint64_t fence,
                            char why[TIERCE__WHY_BYTES])
{
    size_t count;
    int rc = 0;
    TIERCE_ASSERT(!locator->is_open);
    TIERCE_ASSERT(tierce__list_empty(&locator->instances));
    TIERCE_ASSERT(tierce__list_empty(&locator->stores));
    take_wall_clock(locator);
    locator->fence = fence;
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &count);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = add_live(locator, catalog, &instances[i], why);
    tierce__registry_release(locator->opts.registry, catalog);
    if (rc < 0) {
        tierce__locator_drop(locator);
        return rc;
    }
    tierce__lock_take(&locator->lock);
    TIERCE_ASSERT(locator->by_id.count == count);
    locator->is_open = true; /* until now no instance is added or removed */
    tierce__lock_drop(&locator->lock);
    return 0;
}

/* Removes an instance from the list once it is unused. Drops deletions that keep the instance in
 * use: second ones of an instance that is being removed, or all if their notes stay. LOCATOR is
 * held, and dropped while waiting. */
static void unlist(struct tierce__live *live)
{
    enum { LOOK_MS = 10 };
    struct tierce__locator *locator = live->locator;
    tierce__lock_assert_held(&locator->lock);
    TIERCE_ASSERT(live->is_going || !locator->is_open);
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
    TIERCE_ASSERT(!tierce__list_empty(&live->node));
    atomic_fetch_sub_explicit(&live->users, 1, memory_order_relaxed); /* the list's */
    while (atomic_load_explicit(&live->users, memory_order_acquire) > 0) {
        tierce__lock_drop(&locator->lock);
        tierce__deleter_forget(locator->deleter, live);
        tierce__lock_take(&locator->lock);
        if (atomic_load_explicit(&live->users, memory_order_acquire) > 0)
            (void)tierce__cond_wait(&locator->idle, &locator->lock,
                                    tierce__deadline_in_ms(LOOK_MS));
    }
    TIERCE_ASSERT(!locator->is_open || live->claims.count == 0);
    tierce__live_keep_counters(live);
    tierce__map_remove(&locator->by_id, &live->by_id);
    tierce__list_remove(&live->node);
}

/* CHANGING held. */
static void drop(struct tierce__locator *locator)
{
    tierce__lock_assert_held(&locator->changing);
    tierce__lock_take(&locator->lock);
    locator->is_open = false;
    tierce__locator_reset_counters(locator);
    tierce__lock_drop(&locator->lock);
    tierce__deleter_drop(locator->deleter);
    tierce__lock_take(&locator->lock);
    while (!tierce__list_empty(&locator->instances)) {
        struct tierce__live *live =
            TIERCE__CONTAINER_OF(locator->instances.next, struct tierce__live, node);
        unlist(live);
        tierce__lock_drop(&locator->lock);
        destroy_live(live);
        tierce__lock_take(&locator->lock);
    }
    tierce__lock_drop(&locator->lock);
    while (!tierce__list_empty(&locator->stores)) {
        struct store_use *use = TIERCE__CONTAINER_OF(locator->stores.next, struct store_use, node);
        tierce__list_remove(&use->node);
        close_store(use);
    }
    TIERCE_ASSERT(locator->by_id.count == 0);
    tierce__locator_stop_scans(locator);
    tierce__locator_clear_drains(locator);
    tierce__moves_clear(locator->moves);
    tierce__quota_reset(locator->quota);
}

void tierce__locator_drop(struct tierce__locator *locator)
{
    tierce__lock_take(&locator->changing);
    drop(locator);
    tierce__lock_drop(&locator->changing);
}

/* ---- instances come and go ------------------------------------------------------------------- */

int tierce__locator_add_instance(struct tierce__locator *locator, const char *id,
                                 char why[TIERCE__WHY_BYTES])
{
    int rc = 0;
    tierce__lock_take(&locator->changing);
    tierce__lock_take(&locator->lock);
    bool is_open = locator->is_open, is_there = find_live(locator, id) != NULL;
    tierce__lock_drop(&locator->lock);
    if (!is_open)
        rc = tierce__why(why, TIERCE_E_CLOSED, "this manager does not lead");
    if (is_open && !is_there) {
        const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
        const struct tierce__instance *instance = tierce__catalog_instance(catalog, id);
        rc = instance != NULL ? add_live(locator, catalog, instance, why)
                              : tierce__why(why, -ENOENT, "the registry has no instance %.64s", id);
        tierce__registry_release(locator->opts.registry, catalog);
    }
    tierce__lock_drop(&locator->changing);
    return rc;
}

/* Removes an empty instance, or reopens it if `error` is set. If this process stopped leading
 * meanwhile, the instance is gone or another object. CHANGING held. */
static int take_out(struct tierce__locator *locator, const char *id, uint32_t number, int error,
                    char why[TIERCE__WHY_BYTES])
{
    tierce__lock_assert_held(&locator->changing);
    TIERCE_DASSERT(error <= 0);
    tierce__lock_take(&locator->lock);
    struct tierce__live *live = locator->is_open ? find_live(locator, id) : NULL;
    bool is_it = live != NULL && live->instance.number == number;
    TIERCE_ASSERT(!is_it || live->is_going);
    if (is_it && error < 0)
        live->is_going = false;
    tierce__lock_drop(&locator->lock);
    if (error < 0 || !is_it)
        return error < 0 ? error : tierce__why(why, TIERCE_E_CLOSED, "this manager does not lead");
    tierce__lock_take(&locator->lock);
    unlist(live);
    tierce__lock_drop(&locator->lock);
    int rc = live->space->ops->space_drop(live->space);
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.space_left", "instance=%s error=%s", id,
                    tierce_error_name(rc));
    destroy_live(live);
    return 0;
}

int tierce__locator_remove_instance(struct tierce__locator *locator, const char *id,
                                    char why[TIERCE__WHY_BYTES])
{
    enum { DELETE_MS = 10000 };
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, id, why);
    if (rc < 0)
        return rc;
    uint32_t number = live->instance.number;
    tierce__lock_take(&locator->lock);
    bool was_going = live->is_going; /* another call is removing it */
    live->is_going = true;
    tierce__lock_drop(&locator->lock);
    if (!was_going)
        rc = tierce__live_empty(live, tierce__deadline_in_ms(DELETE_MS), why);
    tierce__live_release(live);
    if (was_going)
        return tierce__why(why, -EBUSY, "instance %.64s is already being removed", id);
    tierce__lock_take(&locator->changing);
    rc = take_out(locator, id, number, rc, why);
    tierce__lock_drop(&locator->changing);
    return rc;
}

/* ---- time ------------------------------------------------------------------------------------ */

bool tierce__locator_is_open(struct tierce__locator *locator)
{
    tierce__lock_take(&locator->lock);
    bool is_open = locator->is_open;
    tierce__lock_drop(&locator->lock);
    return is_open;
}

void tierce__locator_each(struct tierce__locator *locator,
                          void (*each)(void *arg, struct tierce__live *live), void *arg)
{
    tierce__lock_take(&locator->lock);
    struct tierce__list *it = locator->is_open ? locator->instances.next : &locator->instances;
    while (it != &locator->instances) {
        struct tierce__live *live = TIERCE__CONTAINER_OF(it, struct tierce__live, node);
        tierce__live_hold(live); /* a held instance stays in the list */
        tierce__lock_drop(&locator->lock);
        TIERCE_DASSERT(!tierce__lock_holds_any());
        each(arg, live);
        tierce__lock_take(&locator->lock);
        TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
        TIERCE_ASSERT(!tierce__list_empty(&live->node));
        it = live->node.next;
        if (atomic_fetch_sub_explicit(&live->users, 1, memory_order_release) == 1)
            tierce__cond_broadcast(&locator->idle);
    }
    tierce__lock_drop(&locator->lock);
}
