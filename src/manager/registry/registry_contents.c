/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that lost their objects, and storages that nodes register. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/registry/registry_private.h"
#include "manager/registry/registry_rules.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- contents -------------------------------------------------------------------------------- */

struct contents_edit {
    const char *name;
    enum tierce__contents contents; /* the new state */
};

static int set_contents(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct contents_edit *edit = arg;
    struct tierce__storage *storage =
        tierce__catalog_find(catalog, TIERCE__KIND_STORAGE, edit->name);
    if (storage == NULL) {
        snprintf(why, 256, "there is no storage %.200s", edit->name);
        return -ENOENT;
    }
    if (storage->contents == edit->contents)
        return 1;
    storage->contents = edit->contents;
    return 0;
}

static int change_contents(struct tierce__registry *registry, const char *name,
                           enum tierce__contents contents, char why[256])
{
    int rc = tierce__registry_change(
        registry, set_contents, &(struct contents_edit){.name = name, .contents = contents}, why);
    return rc > 0 ? 0 : rc;
}

int tierce__registry_empty_storage(struct tierce__registry *registry, const char *name,
                                   char why[256])
{
    return change_contents(registry, name, TIERCE__CONTENTS_LOST, why);
}

int tierce__registry_forget_storage(struct tierce__registry *registry, const char *name,
                                    char why[256])
{
    return change_contents(registry, name, TIERCE__CONTENTS_FORGOTTEN, why);
}

struct forgotten {
    const uint16_t *numbers;
    size_t count;
};

static int settle(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct forgotten *forgotten = arg;
    size_t count, changed = 0;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    (void)why;
    for (size_t i = 0; i < count; i++) {
        struct tierce__storage *storage = tierce__catalog_entry(catalog, TIERCE__KIND_STORAGE, i);
        bool is_in = false;
        for (size_t n = 0; n < forgotten->count && !is_in; n++)
            is_in = forgotten->numbers[n] == storages[i].number;
        if (!is_in || !tierce__storage_is_forgetting(storage))
            continue;
        storage->contents = storage->contents == TIERCE__CONTENTS_LOST ? TIERCE__CONTENTS_KEPT
                                                                       : TIERCE__CONTENTS_GONE;
        changed++;
    }
    return changed > 0 ? 0 : 1;
}

int tierce__registry_settle_storages(struct tierce__registry *registry, const uint16_t *numbers,
                                     size_t count, char why[256])
{
    int rc = tierce__registry_change(registry, settle,
                                     &(struct forgotten){.numbers = numbers, .count = count}, why);
    return rc > 0 ? 0 : rc;
}

/* ---- draining -------------------------------------------------------------------------------- */

struct draining_edit {
    const char *name;
    enum tierce__draining draining;
};

static int set_draining(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct draining_edit *edit = arg;
    struct tierce__storage *storage =
        tierce__catalog_find(catalog, TIERCE__KIND_STORAGE, edit->name);
    if (storage == NULL) {
        snprintf(why, 256, "there is no storage %.200s", edit->name);
        return -ENOENT;
    }
    if (storage->draining == edit->draining)
        return 1;
    storage->draining = edit->draining;
    return 0;
}

int tierce__registry_drain_storage(struct tierce__registry *registry, const char *name,
                                   enum tierce__draining draining, char why[256])
{
    int rc = tierce__registry_change(
        registry, set_draining, &(struct draining_edit){.name = name, .draining = draining}, why);
    return rc > 0 ? 0 : rc;
}

/* ---- scrub ----------------------------------------------------------------------------------- */

struct scrub_edit {
    const char *name, *position;
    uint16_t number;
};

static int set_scrub(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct scrub_edit *edit = arg;
    struct tierce__storage *storage =
        tierce__catalog_find(catalog, TIERCE__KIND_STORAGE, edit->name);
    if (storage == NULL || storage->number != edit->number) {
        snprintf(why, 256, "storage %.200s was removed", edit->name);
        return -ENOENT;
    }
    if (strcmp(storage->scrub, edit->position) == 0)
        return 1;
    char *copy = tierce__strdup(edit->position);
    if (copy == NULL)
        return -ENOMEM;
    tierce__free(storage->scrub);
    storage->scrub = copy;
    return 0;
}

int tierce__registry_note_scrub(struct tierce__registry *registry, const char *name,
                                uint16_t number, const char *position, char why[256])
{
    int rc = tierce__registry_change(
        registry, set_scrub,
        &(struct scrub_edit){.name = name, .position = position, .number = number}, why);
    return rc > 0 ? 0 : rc;
}

/* ---- parts of nodes -------------------------------------------------------------------------- */

int tierce__registry_check_pool(const struct tierce__catalog *catalog,
                                const struct tierce__storage *storage, char why[256])
{
    size_t count;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    bool is_part = storage->type == TIERCE__STORAGE_NODE && storage->pool != NULL;
    if (is_part && tierce__catalog_storage(catalog, storage->pool) != NULL) {
        snprintf(why, 256, "pool %.100s has the name of a storage; give the pool another name",
                 storage->pool);
        return -EEXIST;
    }
    for (size_t i = 0; i < count; i++) {
        if (all[i].type != TIERCE__STORAGE_NODE || strcmp(all[i].pool, storage->name) != 0)
            continue;
        snprintf(why, 256, "storage %.100s has the name of a pool of nodes", storage->name);
        return -EEXIST;
    }
    return 0;
}

struct part_edit {
    const struct tierce__storage *part;
    bool has_objects;
};

/* The state of a part that was in the registry already. */
static enum tierce__contents contents_of(const struct tierce__storage *old,
                                         const struct tierce__storage *part)
{
    if (strcmp(old->incarnation, part->incarnation) == 0)
        return old->contents;
    return old->contents == TIERCE__CONTENTS_GONE ? TIERCE__CONTENTS_KEPT : TIERCE__CONTENTS_LOST;
}

/* The operator's settings stay. */
static int take_old(struct tierce__storage *entry, const struct tierce__storage *old, char why[256])
{
    if (old->type != TIERCE__STORAGE_NODE || strcmp(old->pool, entry->pool) != 0 ||
        strcmp(old->node, entry->node) != 0) {
        snprintf(why, 256,
                 "storage %.100s exists and is not a part of this node; give the node or the pool "
                 "another name",
                 old->name);
        return -EEXIST;
    }
    entry->number = old->number;
    entry->is_enabled = old->is_enabled;
    entry->draining = old->draining;
    entry->watermark_percent = old->watermark_percent;
    entry->contents = contents_of(old, entry);
    return 0;
}

static int put_part(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct part_edit *edit = arg;
    const struct tierce__storage *old = tierce__catalog_storage(catalog, edit->part->name);
    union tierce__entry entry;
    int rc = tierce__storage_copy(&entry.storage, edit->part);
    if (rc != 0)
        return rc;
    rc = tierce__entry_check(TIERCE__KIND_STORAGE, &entry, why);
    if (rc == 0)
        rc = tierce__registry_check_pool(catalog, &entry.storage, why);
    if (rc == 0 && old != NULL)
        rc = take_old(&entry.storage, old, why);
    else if (rc == 0) {
        rc = tierce__catalog_assign(catalog, TIERCE__KIND_STORAGE, &entry, why);
        entry.storage.contents = edit->has_objects ? TIERCE__CONTENTS_GONE : TIERCE__CONTENTS_KEPT;
    }
    TIERCE_DASSERT(rc != 0 || entry.storage.number > 0);
    if (rc == 0)
        rc = tierce__catalog_set(catalog, TIERCE__KIND_STORAGE, &entry);
    if (rc != 0)
        tierce__storage_clear(&entry.storage);
    return rc;
}

int tierce__registry_put_part(struct tierce__registry *registry, const struct tierce__storage *part,
                              bool has_objects, char why[256])
{
    TIERCE_ASSERT(part->type == TIERCE__STORAGE_NODE);
    return tierce__registry_change(
        registry, put_part, &(struct part_edit){.part = part, .has_objects = has_objects}, why);
}
