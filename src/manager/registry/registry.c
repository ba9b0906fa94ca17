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

#define REGISTRY_MAGIC 0x74726567u

struct tierce__registry {
    uint32_t magic;
    struct tierce__lock changes;          /* serializes changes; guards the fields below */
    struct tierce__registry_store *store; /* NULL: memory only */
    uint64_t fence;
    bool is_loaded;
    bool is_staged; /* current is that of a restore that has not ended, and nothing is saved */

    struct tierce__lock current_lock; /* guards the pointer, not what it points at */
    struct tierce__catalog *current;  /* never NULL */
    struct tierce__catalog *empty;    /* the current catalog while nothing is loaded */
    struct tierce__catalog *kept;     /* without a store: the catalog that a drop removed */
    _Atomic uint64_t version;
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

int tierce__registry_open(struct tierce__registry **out, const struct tierce__registry_opts *opts,
                          char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__registry *registry = tierce__calloc(1, sizeof(*registry));
    if (registry == NULL)
        return -ENOMEM;
    int rc = tierce__catalog_create(&registry->empty);
    if (rc == 0)
        rc = open_store(&registry->store, opts, why);
    if (rc != 0) {
        tierce__catalog_put(registry->empty);
        tierce__free(registry);
        return rc;
    }
    registry->magic = REGISTRY_MAGIC;
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

int tierce__registry_change(struct tierce__registry *registry, tierce__registry_edit_fn *edit,
                            const void *arg, char why[256])
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
    if (rc == 0 && registry->store != NULL && !registry->is_staged)
        rc = registry->store->ops->save(registry->store, registry->fence, registry->current, after,
                                        why);
    if (rc == 0)
        publish(registry, after);
    else
        tierce__catalog_put(after);
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

/* Clients do not set these fields. `old`: NULL for a new storage. */
static void keep_state(struct tierce__storage *storage, const struct tierce__storage *old)
{
    TIERCE_DASSERT(old == NULL || strcmp(old->name, storage->name) == 0);
    storage->is_marked = old != NULL && old->is_marked;
    storage->contents = old != NULL ? old->contents : TIERCE__CONTENTS_KEPT;
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
        keep_state(&entry->storage, &old->storage);
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
        keep_state(&entry.storage, NULL);
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

static int identify(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    uint8_t random[TIERCE__STORAGE_ID_HEX / 2];
    char id[TIERCE__STORAGE_ID_HEX + 1];
    (void)arg;
    if (catalog->id[0] != '\0')
        return 1;
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        snprintf(why, 256, "no randomness for the id of the registry");
        return -EIO;
    }
    tierce__hex_encode(id, random, sizeof(random));
    return tierce__catalog_set_id(catalog, id, why);
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
    if (rc == 0)
        tierce__catalog_remove(catalog, edit->kind, edit->name);
    TIERCE_DASSERT(rc != 0 || tierce__catalog_find(catalog, edit->kind, edit->name) == NULL);
    return rc;
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

/* ---- all at once ----------------------------------------------------------------------------- */

int tierce__registry_snapshot(struct tierce__registry *registry, char **out)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    int rc = tierce__catalog_print_all(out, catalog);
    tierce__registry_release(registry, catalog);
    return rc;
}

/* Whether an imported entry is the one that has this name. */
static bool is_kept(enum tierce__registry_kind kind, const union tierce__entry *old,
                    const union tierce__entry *entry)
{
    char field[128];
    return old != NULL &&
           (kind != TIERCE__KIND_STORAGE || old->storage.type == entry->storage.type) &&
           (kind != TIERCE__KIND_INSTANCE ||
            tierce__instance_is_same(&old->instance, &entry->instance, field));
}

/* An import takes no invalidation back. */
static void keep_generation(struct tierce__instance *instance, const struct tierce__instance *old)
{
    TIERCE_ASSERT(strcmp(instance->id, old->id) == 0);
    if (instance->generation < old->generation)
        instance->generation = old->generation;
}

/* Imported numbers and marks are ignored: equal entries keep those that they have. */
static void keep_numbers(struct tierce__catalog *after, const struct tierce__catalog *before,
                         enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(after != before);
    const struct tierce__model_field *number = tierce__catalog_number_row(kind);
    for (size_t i = 0; number != NULL && i < after->lists[kind].count; i++) {
        void *entry = tierce__catalog_entry(after, kind, i);
        const void *old = tierce__catalog_find(before, kind, tierce__entry_name(entry, kind));
        bool keeps = is_kept(kind, old, entry);
        tierce__field_set_integer(entry, number, keeps ? tierce__field_integer(old, number) : 0);
        if (kind == TIERCE__KIND_STORAGE)
            keep_state(entry, keeps ? old : NULL);
        if (kind == TIERCE__KIND_INSTANCE && old != NULL)
            keep_generation(entry, old);
    }
}

static int check_all(struct tierce__catalog *catalog, char why[256])
{
    int rc = 0;
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        for (size_t i = 0; rc == 0 && i < catalog->lists[kind].count; i++)
            rc = tierce__entry_check(kind, tierce__catalog_entry(catalog, kind, i), why);
    }
    const struct tierce__instance *instances = catalog->lists[TIERCE__KIND_INSTANCE].items;
    for (size_t i = 0; rc == 0 && i < catalog->lists[TIERCE__KIND_INSTANCE].count; i++) {
        if (tierce__catalog_group(catalog, instances[i].group_name) == NULL) {
            snprintf(why, 256, "instance %.100s belongs to group %.100s, which does not exist",
                     instances[i].id, instances[i].group_name);
            rc = TIERCE_E_ARGUMENT;
        }
    }
    return rc;
}

static int restore(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const char *text = arg;
    struct tierce__catalog *read = NULL;
    int rc = tierce__catalog_create(&read);
    if (rc == 0)
        rc = tierce__catalog_read_all(read, text, strlen(text), why);
    if (rc == 0)
        rc = check_all(read, why);
    if (rc == 0) {
        for (unsigned kind = 0; kind < TIERCE__KINDS; kind++)
            keep_numbers(read, catalog, kind);
        read->next = catalog->next;
        rc = tierce__catalog_number(read, why);
    }
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++) {
        struct tierce__catalog_list list = catalog->lists[kind];
        catalog->lists[kind] = read->lists[kind];
        read->lists[kind] = list;
    }
    TIERCE_ASSERT(rc != 0 || (read->next.storage >= catalog->next.storage &&
                              read->next.group >= catalog->next.group &&
                              read->next.instance >= catalog->next.instance));
    if (rc == 0)
        catalog->next = read->next;
    tierce__catalog_put(read);
    return rc;
}

int tierce__registry_restore(struct tierce__registry *registry, const char *text, char why[256])
{
    return tierce__registry_change(registry, restore, text, why);
}

/* Numbers of instances that may have been assigned after a text was made are skipped. */
#define NUMBERS_SKIPPED 65536u

static int check_empty(const struct tierce__catalog *catalog, char why[256])
{
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        if (catalog->lists[kind].count == 0)
            continue;
        snprintf(why, 256, "the registry is not empty: it has %s %.150s",
                 tierce__catalog_fields(kind)->noun,
                 tierce__entry_name(tierce__catalog_entry(catalog, kind, 0), kind));
        return -EEXIST;
    }
    return 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Reads a text into an empty catalog; `before` has assigned numbers, too. */
static int take_over(struct tierce__catalog *catalog, const struct tierce__catalog *before,
                     const char *text, char why[256])
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    int rc = tierce__catalog_read_all(catalog, text, strlen(text), why);
    if (rc == 0)
        rc = check_all(catalog, why);
    struct tierce__catalog_numbers *next = &catalog->next;
    next->storage = larger(next->storage, before->next.storage);
    next->group = larger(next->group, before->next.group);
    next->instance = larger(next->instance, before->next.instance);
    next->instance = next->instance < UINT32_MAX - NUMBERS_SKIPPED
                         ? next->instance + NUMBERS_SKIPPED
                         : (uint64_t)UINT32_MAX + 1;
    return rc;
}

int tierce__registry_stage(struct tierce__registry *registry, const char *text, char why[256])
{
    TIERCE_CHECK_MAGIC(registry, REGISTRY_MAGIC);
    struct tierce__catalog *after = NULL;
    int rc = 0;
    tierce__lock_take(&registry->changes);
    if (!registry->is_loaded) {
        snprintf(why, 256, "the registry is not loaded");
        rc = TIERCE_E_CLOSED;
    }
    if (rc == 0 && (rc = tierce__catalog_create(&after)) == 0)
        rc = check_empty(registry->current, why);
    if (rc == 0)
        rc = take_over(after, registry->current, text, why);
    registry->is_staged = registry->is_staged || rc == 0;
    if (rc == 0)
        publish(registry, after);
    else
        tierce__catalog_put(after);
    tierce__lock_drop(&registry->changes);
    return rc;
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

/* ---- the first start ------------------------------------------------------------------------- */

/* An entry of a startup file, if it is there. */
static int start_with(struct tierce__catalog *catalog, const char *key,
                      enum tierce__registry_kind kind, struct tierce__text json, char why[256])
{
    struct tierce__text entry = tierce__json_get(json, key);
    char inner[256] = "";
    int rc = entry.length > 0 ? tierce__catalog_read(catalog, kind, entry, inner) : 0;
    if (rc != 0)
        snprintf(why, 256, "%s: %.200s", key, inner);
    return rc;
}

static int start(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const char *text = arg;
    TIERCE_DASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    struct tierce__json_doc doc = {0};
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++)
        if (catalog->lists[kind].count > 0)
            return 1;
    if (text == NULL) {
        snprintf(
            why, 256,
            "the registry is empty, and there is no folder for a first storage: set startup.file, "
            "or set STATE_DIRECTORY, XDG_STATE_HOME or HOME to an absolute path");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__model_parse_json(&doc, text, strlen(text), why);
    if (rc == 0)
        rc = start_with(catalog, "storage_config", TIERCE__KIND_STORAGE, doc.value, why);
    if (rc == 0)
        rc = start_with(catalog, "instance_group", TIERCE__KIND_GROUP, doc.value, why);
    if (rc == 0)
        rc = check_all(catalog, why);
    if (rc == 0)
        rc = tierce__catalog_number(catalog, why);
    tierce__json_doc_clear(&doc);
    return rc;
}

int tierce__registry_startup(struct tierce__registry *registry, const char *text, char why[256])
{
    int rc = tierce__registry_change(registry, start, text, why);
    return rc > 0 ? 0 : rc;
}

int tierce__registry_check_startup(const char *text, char why[256])
{
    struct tierce__catalog *catalog = NULL;
    int rc = tierce__catalog_create(&catalog);
    if (rc == 0)
        rc = start(catalog, text, why);
    tierce__catalog_put(catalog);
    return rc;
}
