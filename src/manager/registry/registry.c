/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/registry.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/threads/lock.h"
#include "manager/api/account.h"
#include "manager/registry/catalog.h"
#include "manager/registry/registry_private.h"
#include "manager/registry/registry_rules.h"
#include "manager/registry/registry_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#define REGISTRY_MAGIC 0x74726567u

struct tierce__registry {
    uint32_t magic;
    struct tierce__lock changes;          /* serializes changes; guards the fields below */
    struct tierce__registry_store *store; /* NULL: memory only */
    uint64_t fence, bytes_max;
    bool is_loaded;
    bool is_staged; /* current is that of a restore that has not ended, and nothing is saved */

    struct tierce__lock current_lock; /* guards the pointer, not what it points at */
    struct tierce__catalog *current;  /* never NULL */
    struct tierce__catalog *empty;    /* the current catalog while nothing is loaded */
    struct tierce__catalog *kept;     /* without a store: the catalog that a drop removed */
    _Atomic uint64_t version;
    uint64_t own_number;     /* of a registry in memory; never 0 */
    _Atomic uint64_t number; /* relaxed: of the current catalog, a value of its own */
};

/* ---- snapshots ------------------------------------------------------------------------------- */

/* Adds a reference to a catalog that is already held: relaxed is enough. */
static struct tierce__catalog *share(struct tierce__catalog *catalog)
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) > 0);
    atomic_fetch_add_explicit(&catalog->references, 1, memory_order_relaxed);
    return catalog;
}

const struct tierce__catalog *tierce__registry_acquire(struct tierce__registry *registry)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    tierce__lock_take(&registry->current_lock);
    struct tierce__catalog *catalog = share(registry->current);
    tierce__lock_drop(&registry->current_lock);
    return catalog;
}

void tierce__registry_release(struct tierce__registry *registry,
                              const struct tierce__catalog *catalog)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    /* The counted object was not const when it was created. */
    union {
        const struct tierce__catalog *in;
        struct tierce__catalog *out;
    } own = {.in = catalog};
    tierce__catalog_put(own.out);
}

uint64_t tierce__registry_version(const struct tierce__registry *registry)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    return atomic_load_explicit(&registry->version, memory_order_acquire);
}

/* A registry in memory has an id only if a backup was restored with it. */
static uint64_t number_of(const struct tierce__registry *registry,
                          const struct tierce__catalog *catalog)
{
    TIERCE_DASSERT(catalog->id != NULL);
    if (catalog->id[0] != '\0')
        return XXH3_64bits(catalog->id, strlen(catalog->id));
    return registry->store == NULL ? registry->own_number : 0;
}

/* Makes a catalog [transfer] the current one. */
static void publish(struct tierce__registry *registry, struct tierce__catalog *catalog)
{
    tierce__lock_assert_held(&registry->changes);
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) > 0);
    TIERCE_ASSERT(registry->is_loaded || catalog == registry->empty);
    tierce__lock_take(&registry->current_lock);
    struct tierce__catalog *old = registry->current;
    registry->current = catalog;
    /* release: a thread that sees the version sees the catalog. */
    atomic_fetch_add_explicit(&registry->version, 1, memory_order_release);
    atomic_store_explicit(&registry->number, number_of(registry, catalog), memory_order_relaxed);
    tierce__lock_drop(&registry->current_lock);
    tierce__catalog_put(old);
}

/* ---- open, load, close ----------------------------------------------------------------------- */

static int open_store(struct tierce__registry_store **out, const struct tierce__registry_opts *opts,
                      char why[256])
{
    static const struct {
        const char *scheme;
        const struct tierce__registry_store_ops *ops;
    } all[] = {
        {"local://", &tierce__registry_local},
        {"redis://", &tierce__registry_redis},
        {"rediss://", &tierce__registry_redis},
        {"redis+unix://", &tierce__registry_redis},
        {"redis-cluster://", &tierce__registry_redis},
        {"rediss-cluster://", &tierce__registry_redis},
    };
    const char *uri = opts->uri != NULL ? opts->uri : "";
    if (*uri == '\0')
        return 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strncmp(uri, all[i].scheme, strlen(all[i].scheme)) == 0)
            return all[i].ops->open(out, uri, opts->vfs, why);
    /* The URI itself is not logged, because it may contain a password. */
    snprintf(why, 256,
             "registry.uri must begin with local://, redis://, rediss://, redis+unix://, "
             "redis-cluster:// or rediss-cluster://, or be empty");
    return TIERCE_E_CONFIG;
}

static int choose_number(struct tierce__registry *registry, char why[256])
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        snprintf(why, 256, "no randomness for the number of the registry");
        return -EIO;
    }
    registry->own_number = number | 1;
    return 0;
}

int tierce__registry_open(struct tierce__registry **out, const struct tierce__registry_opts *opts,
                          char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__registry *registry = tierce__calloc(1, sizeof(*registry));
    if (registry == NULL)
        return -ENOMEM;
    int rc = tierce__catalog_create(&registry->empty);
    if (rc == 0)
        rc = choose_number(registry, why);
    if (rc == 0)
        rc = open_store(&registry->store, opts, why);
    if (rc != 0) {
        tierce__catalog_put(registry->empty);
        tierce__free(registry);
        return rc;
    }
    registry->magic = REGISTRY_MAGIC;
    registry->bytes_max = opts->bytes_max != 0 ? opts->bytes_max : TIERCE__REGISTRY_BYTES_MAX;
    tierce__lock_init(&registry->changes, TIERCE__LOCK_CHANGES);
    tierce__lock_init(&registry->current_lock, TIERCE__LOCK_CATALOG);
    registry->current = share(registry->empty);
    *out = registry;
    return 0;
}

void tierce__registry_close(struct tierce__registry *registry)
{
    if (registry == NULL)
        return;
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    tierce__catalog_put(registry->current);
    tierce__catalog_put(registry->kept);
    TIERCE_DASSERT(atomic_load_explicit(&registry->empty->references, memory_order_relaxed) == 1);
    tierce__catalog_put(registry->empty);
    if (registry->store != NULL)
        registry->store->ops->close(registry->store);
    TIERCE_ASSERT(!registry->is_loaded || registry->kept == NULL);
    tierce__lock_fini(&registry->current_lock);
    tierce__lock_fini(&registry->changes);
    registry->magic = 0;
    tierce__free(registry);
}

int tierce__registry_load(struct tierce__registry *registry, uint64_t fence, char why[256])
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    struct tierce__catalog *catalog = NULL;
    int rc = 0;
    tierce__lock_take(&registry->changes);
    TIERCE_ASSERT(registry->kept == NULL || (registry->store == NULL && !registry->is_loaded));
    if (registry->store != NULL) {
        rc = tierce__catalog_create(&catalog);
        if (rc == 0)
            rc = registry->store->ops->load(registry->store, fence, catalog, why);
    } else if (!registry->is_loaded) {
        catalog = registry->kept != NULL ? registry->kept : share(registry->empty);
        registry->kept = NULL;
    }
    if (rc == 0) {
        TIERCE_ASSERT(registry->store == NULL || catalog != NULL);
        registry->fence = fence;
        registry->is_loaded = true;
        if (catalog != NULL)
            publish(registry, catalog);
    } else {
        tierce__catalog_put(catalog);
    }
    tierce__lock_drop(&registry->changes);
    return rc;
}

void tierce__registry_drop(struct tierce__registry *registry)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    tierce__lock_take(&registry->changes);
    TIERCE_ASSERT(!registry->is_loaded || registry->kept == NULL);
    if (registry->is_loaded && registry->store == NULL && !registry->is_staged)
        registry->kept = share(registry->current);
    registry->is_loaded = registry->is_staged = false;
    publish(registry, share(registry->empty));
    tierce__lock_drop(&registry->changes);
}

/* ---- changes --------------------------------------------------------------------------------- */

/* A registry that is too large already may be changed in all ways but one: it must not grow. Half
 * as much again is for changes that add no instance, so that those who register instances do not
 * keep nodes and operators out. */
static int check_bytes(const struct tierce__registry *registry, const struct tierce__catalog *after,
                       char why[256])
{
    tierce__lock_assert_held(&registry->changes);
    bool adds_instance = after->lists[TIERCE__KIND_INSTANCE].count >
                         registry->current->lists[TIERCE__KIND_INSTANCE].count;
    uint64_t max = registry->bytes_max + (adds_instance ? 0 : registry->bytes_max / 2);
    if (after->text_bytes <= max || after->text_bytes <= registry->current->text_bytes)
        return 0;
    snprintf(why, 256,
             "the registry would have %llu bytes, of at most %llu; remove instances, or register "
             "them with fewer or shorter names of specs",
             (unsigned long long)after->text_bytes, (unsigned long long)max);
    return TIERCE_E_LIMIT;
}

static int apply(struct tierce__registry *registry, tierce__registry_edit_fn *edit, const void *arg,
                 bool stages, char why[256])
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    struct tierce__catalog *after = NULL;
    int rc = 0;
    tierce__lock_take(&registry->changes);
    if (!registry->is_loaded) {
        snprintf(why, 256, "the registry is not loaded: this manager does not lead");
        rc = TIERCE_E_CLOSED;
    }
    /* Only the holder of `changes` replaces it. */
    if (rc == 0)
        rc = tierce__catalog_copy(&after, registry->current);
    TIERCE_ASSERT(rc != 0 || atomic_load_explicit(&after->references, memory_order_relaxed) == 1);
    if (rc == 0)
        rc = edit(after, arg, why);
    if (rc == 0)
        rc = check_bytes(registry, after, why);
    if (rc == 0 && registry->store != NULL && !registry->is_staged && !stages)
        rc = registry->store->ops->save(registry->store, registry->fence, registry->current, after,
                                        why);
    registry->is_staged = registry->is_staged || (stages && rc == 0);
    if (rc == 0)
        publish(registry, after);
    else
        tierce__catalog_put(after);
    tierce__lock_drop(&registry->changes);
    return rc;
}

int tierce__registry_change(struct tierce__registry *registry, tierce__registry_edit_fn *edit,
                            const void *arg, char why[256])
{
    return apply(registry, edit, arg, false, why);
}

int tierce__registry_change_unsaved(struct tierce__registry *registry,
                                    tierce__registry_edit_fn *edit, const void *arg, char why[256])
{
    return apply(registry, edit, arg, true, why);
}

int tierce__registry_keep(struct tierce__registry *registry, char why[256])
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    int rc = 0;
    tierce__lock_take(&registry->changes);
    TIERCE_ASSERT(registry->is_loaded);
    if (registry->store != NULL)
        rc = registry->store->ops->save(registry->store, registry->fence, registry->empty,
                                        registry->current, why);
    registry->is_staged = registry->is_staged && rc != 0;
    tierce__lock_drop(&registry->changes);
    return rc;
}

static int say_missing(enum tierce__registry_kind kind, const char *name, char why[256])
{
    TIERCE_ASSERT(kind < TIERCE__KINDS);
    snprintf(why, 256, "there is no %s %.200s", tierce__catalog_fields(kind)->noun, name);
    return -ENOENT;
}

/* ---- entries --------------------------------------------------------------------------------- */

struct edit {
    enum tierce__registry_kind kind;
    const void *entry;       /* to add, or to replace another one */
    const char *name;        /* to remove, or to change */
    int64_t current_version; /* of a group that is replaced */
    bool enable;
};

/* Returns the number of a group's instances, and *one of them. */
static int64_t count_instances(const struct tierce__catalog *catalog, const char *group,
                               const struct tierce__instance **one)
{
    size_t count;
    int64_t found = 0;
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(instances[i].group_name, group) == 0) {
            found++;
            *one = &instances[i];
        }
    }
    return found;
}

/* 1: an equal instance exists. */
static int check_room(const struct tierce__catalog *catalog,
                      const struct tierce__instance *instance, char why[256])
{
    const struct tierce__instance *old = tierce__catalog_instance(catalog, instance->id), *one;
    const struct tierce__group *group = tierce__catalog_group(catalog, instance->group_name);
    char field[128] = "";
    if (old != NULL) {
        if (tierce__instance_is_same(old, instance, field))
            return 1;
        snprintf(why, 256, "instance %.100s is registered with another %s", old->id, field);
        return -EEXIST;
    }
    if (group == NULL)
        return say_missing(TIERCE__KIND_GROUP, instance->group_name, why);
    if (group->max_instance_count > 0 &&
        count_instances(catalog, group->name, &one) >= group->max_instance_count) {
        snprintf(why, 256, "instance group %.100s has %lld instances, its maximum", group->name,
                 (long long)group->max_instance_count);
        return TIERCE_E_LIMIT;
    }
    return 0;
}

/* Whether an entry may be added; 1: an equal one exists. */
static int check_new(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                     const void *entry, char why[256])
{
    const char *name = tierce__entry_name(entry, kind);
    if (kind == TIERCE__KIND_INSTANCE)
        return check_room(catalog, entry, why);
    if (tierce__catalog_find(catalog, kind, name) == NULL)
        return kind == TIERCE__KIND_STORAGE ? tierce__registry_check_pool(catalog, entry, why) : 0;
    snprintf(why, 256, "%s %.200s already exists", tierce__catalog_fields(kind)->noun, name);
    return -EEXIST;
}

static int check_version(const struct tierce__group *old, const struct tierce__group *group,
                         int64_t current_version, char why[256])
{
    TIERCE_ASSERT(strcmp(old->name, group->name) == 0);
    if (old->version == current_version && group->version > old->version)
        return 0;
    snprintf(why, 256,
             "instance group %.100s has version %lld; current_version (%lld) must be equal to it, "
             "and the new version (%lld) larger",
             old->name, (long long)old->version, (long long)current_version,
             (long long)group->version);
    return -ESTALE;
}

void tierce__storage_keep_state(struct tierce__storage *storage, const struct tierce__storage *old)
{
    TIERCE_DASSERT(old == NULL || strcmp(old->name, storage->name) == 0);
    storage->is_marked = old != NULL && old->is_marked;
    storage->contents = old != NULL ? old->contents : TIERCE__CONTENTS_KEPT;
    storage->draining = old != NULL ? old->draining : TIERCE__DRAINING_NOT;
    if (storage->scrub != NULL && storage->scrub[0] != '\0')
        storage->scrub[0] = '\0'; /* a scrub that runs notes its position again */
}

/* Whether a checked entry may replace the one of its name, from which it takes the number. */
static int replace(struct tierce__catalog *catalog, const struct edit *edit,
                   union tierce__entry *entry, char why[256])
{
    const char *name = tierce__entry_name(entry, edit->kind);
    union tierce__entry *old = tierce__catalog_find(catalog, edit->kind, name);
    const struct tierce__model_field *number = tierce__catalog_number_row(edit->kind);
    int rc = 0;
    TIERCE_ASSERT(edit->kind == TIERCE__KIND_STORAGE || edit->kind == TIERCE__KIND_GROUP);
    if (old == NULL)
        return say_missing(edit->kind, name, why);
    TIERCE_DASSERT(tierce__field_integer(old, number) > 0);
    tierce__field_set_integer(entry, number, tierce__field_integer(old, number));
    if (edit->kind == TIERCE__KIND_STORAGE)
        tierce__storage_keep_state(&entry->storage, &old->storage);
    if (edit->kind == TIERCE__KIND_GROUP) {
        rc = check_version(&old->group, &entry->group, edit->current_version, why);
        if (rc == 0)
            rc = tierce__group_keep(&entry->group, edit->entry, &old->group);
        if (rc == 0) /* a bound that was kept may contradict one that was sent */
            rc = tierce__entry_check(edit->kind, entry, why);
    } else if (old->storage.type != entry->storage.type) {
        snprintf(why, 256, "the type of a storage cannot be changed: remove %.100s and add another",
                 name);
        rc = TIERCE_E_ARGUMENT;
    }
    return rc;
}

/* Adds a copy of an entry, or replaces the one of its name. */
static int set_entry(struct tierce__catalog *catalog, const struct edit *edit, bool is_new,
                     char why[256])
{
    const struct tierce__fields *fields = tierce__catalog_fields(edit->kind);
    union tierce__entry entry;
    int rc = tierce__model_copy(&entry, edit->entry, fields);
    if (rc != 0)
        return rc;
    rc = tierce__entry_check(edit->kind, &entry, why);
    if (rc == 0)
        rc = is_new ? check_new(catalog, edit->kind, &entry, why)
                    : replace(catalog, edit, &entry, why);
    if (edit->kind == TIERCE__KIND_STORAGE && is_new)
        tierce__storage_keep_state(&entry.storage, NULL);
    if (edit->kind == TIERCE__KIND_INSTANCE && is_new)
        entry.instance.generation = catalog->generation_floor;
    if (rc == 0 && is_new)
        rc = tierce__catalog_assign(catalog, edit->kind, &entry, why);
    TIERCE_DASSERT(rc != 0 || tierce__catalog_number_row(edit->kind) == NULL ||
                   tierce__field_integer(&entry, tierce__catalog_number_row(edit->kind)) > 0);
    if (rc == 0)
        rc = tierce__catalog_set(catalog, edit->kind, &entry);
    TIERCE_DASSERT(rc != 0 || tierce__catalog_find(catalog, edit->kind,
                                                   tierce__entry_name(&entry, edit->kind)) != NULL);
    if (rc != 0)
        tierce__model_clear(&entry, fields);
    return rc;
}

static int add(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    return set_entry(catalog, arg, true, why);
}

static int update(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    return set_entry(catalog, arg, false, why);
}

static int enable(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct edit *edit = arg;
    struct tierce__storage *storage = tierce__catalog_find(catalog, edit->kind, edit->name);
    TIERCE_ASSERT(edit->kind == TIERCE__KIND_STORAGE);
    if (storage == NULL)
        return say_missing(edit->kind, edit->name, why);
    storage->is_enabled = edit->enable;
    return 0;
}

static int mark(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    struct tierce__storage *storage = tierce__catalog_find(catalog, TIERCE__KIND_STORAGE, arg);
    if (storage == NULL)
        return say_missing(TIERCE__KIND_STORAGE, arg, why);
    if (storage->is_marked)
        return 1;
    storage->is_marked = true;
    return 0;
}

int tierce__registry_give_id(struct tierce__catalog *catalog, char why[256])
{
    uint8_t random[TIERCE__STORAGE_ID_HEX / 2];
    char id[TIERCE__STORAGE_ID_HEX + 1];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        snprintf(why, 256, "no randomness for the id of the registry");
        return -EIO;
    }
    tierce__hex_encode(id, random, sizeof(random));
    return tierce__catalog_set_id(catalog, id, why);
}

static int identify(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    (void)arg;
    return catalog->id[0] != '\0' ? 1 : tierce__registry_give_id(catalog, why);
}

static bool uses_storage(const struct tierce__group *group, const char *name)
{
    for (size_t i = 0; i < group->storage_candidate_count; i++)
        if (strcmp(group->storage_candidates[i], name) == 0)
            return true;
    return false;
}

static int check_unused(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                        const char *name, char why[256])
{
    const struct tierce__instance *one = NULL;
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; kind == TIERCE__KIND_STORAGE && i < count; i++) {
        if (uses_storage(&groups[i], name)) {
            snprintf(why, 256, "storage %.100s is a candidate of instance group %.100s", name,
                     groups[i].name);
            return -EBUSY;
        }
    }
    if (kind == TIERCE__KIND_GROUP && count_instances(catalog, name, &one) > 0) {
        snprintf(why, 256, "instance group %.100s has instance %.100s", name, one->id);
        return -EBUSY;
    }
    return 0;
}

static int remove_entry(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct edit *edit = arg;
    if (tierce__catalog_find(catalog, edit->kind, edit->name) == NULL)
        return say_missing(edit->kind, edit->name, why);
    int rc = check_unused(catalog, edit->kind, edit->name, why);
    if (rc == 0 && edit->kind == TIERCE__KIND_INSTANCE)
        tierce__registry_keep_generation(catalog, tierce__catalog_instance(catalog, edit->name));
    if (rc == 0)
        tierce__catalog_remove(catalog, edit->kind, edit->name);
    TIERCE_DASSERT(rc != 0 || tierce__catalog_find(catalog, edit->kind, edit->name) == NULL);
    return rc;
}

uint64_t tierce__registry_number(const struct tierce__registry *registry)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    return atomic_load_explicit(&registry->number, memory_order_relaxed);
}

bool tierce__registry_is_stored(const struct tierce__registry *registry)
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    return registry->store != NULL;
}

int tierce__registry_identify(struct tierce__registry *registry, char why[256])
{
    TIERCE_ASSERT(tierce__registry_is_stored(registry));
    int rc = tierce__registry_change(registry, identify, NULL, why);
    return rc > 0 ? 0 : rc;
}

int tierce__registry_mark_storage(struct tierce__registry *registry, const char *name,
                                  char why[256])
{
    int rc = tierce__registry_change(registry, mark, name, why);
    return rc > 0 ? 0 : rc;
}

#define ADD(type, kind_of)                                                                         \
    int tierce__registry_add_##type(struct tierce__registry *registry,                             \
                                    const struct tierce__##type *entry, char why[256])             \
    {                                                                                              \
        return tierce__registry_change(registry, add,                                              \
                                       &(struct edit){.kind = (kind_of), .entry = entry}, why);    \
    }
#define REMOVE(type, kind_of)                                                                      \
    int tierce__registry_remove_##type(struct tierce__registry *registry, const char *name,        \
                                       char why[256])                                              \
    {                                                                                              \
        return tierce__registry_change(registry, remove_entry,                                     \
                                       &(struct edit){.kind = (kind_of), .name = name}, why);      \
    }
ADD(storage, TIERCE__KIND_STORAGE)
ADD(group, TIERCE__KIND_GROUP)
ADD(instance, TIERCE__KIND_INSTANCE)
REMOVE(storage, TIERCE__KIND_STORAGE)
REMOVE(group, TIERCE__KIND_GROUP)
REMOVE(instance, TIERCE__KIND_INSTANCE)
REMOVE(account, TIERCE__KIND_ACCOUNT)

int tierce__registry_add_account(struct tierce__registry *registry, const char *name,
                                 const char *password, enum tierce__role role, char why[256])
{
    char *hash = NULL;
    int rc = tierce__password_hash(&hash, password);
    if (rc != 0)
        return rc;
    struct tierce__account account = {
        .name = (char *)(uintptr_t)name, .role = role, .password_hash = hash};
    rc = tierce__registry_change(
        registry, add, &(struct edit){.kind = TIERCE__KIND_ACCOUNT, .entry = &account}, why);
    tierce__free(hash);
    return rc;
}

int tierce__registry_update_storage(struct tierce__registry *registry,
                                    const struct tierce__storage *storage, char why[256])
{
    return tierce__registry_change(
        registry, update, &(struct edit){.kind = TIERCE__KIND_STORAGE, .entry = storage}, why);
}

int tierce__registry_update_group(struct tierce__registry *registry,
                                  const struct tierce__group *group, int64_t current_version,
                                  char why[256])
{
    struct edit edit = {
        .kind = TIERCE__KIND_GROUP, .entry = group, .current_version = current_version};
    return tierce__registry_change(registry, update, &edit, why);
}

int tierce__registry_enable_storage(struct tierce__registry *registry, const char *name,
                                    bool is_enabled, char why[256])
{
    struct edit edit = {.kind = TIERCE__KIND_STORAGE, .name = name, .enable = is_enabled};
    return tierce__registry_change(registry, enable, &edit, why);
}
