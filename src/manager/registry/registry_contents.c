/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that lost their objects, and storages that nodes register. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/registry/registry_private.h"

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
