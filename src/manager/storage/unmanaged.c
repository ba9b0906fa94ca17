/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/unmanaged.h"

#include "base/assert.h"
#include "base/log/log.h"

#include <stdio.h>

#define STAYS                                                                                      \
    "reclaiming removes only index entries, and the bytes stay until their owner deletes them"

const char *tierce__storage_status(const struct tierce__storage_state *state)
{
    TIERCE_DASSERT(state->is_managed || !state->is_probed);
    if (!state->is_enabled)
        return "disabled";
    if (!state->is_managed)
        return "unmanaged";
    return state->is_well ? "well" : "unwell";
}

void tierce__storage_warning(char out[TIERCE__WARNING_BYTES],
                             const struct tierce__storages *storages,
                             const struct tierce__storage *storage)
{
    int used = 0;
    out[0] = '\0';
    if (tierce__storages_is_managed(storages, storage->type))
        return;
    if (storage->capacity_bytes != 0)
        used = snprintf(out, TIERCE__WARNING_BYTES,
                        "capacity_bytes of storage %.60s (%s) limits an unmanaged storage: " STAYS,
                        storage->name, tierce__storage_type_name(storage->type));
    TIERCE_ASSERT(used >= 0 && used < (int)TIERCE__WARNING_BYTES);
    if (storage->check_when_open)
        snprintf(out + used, TIERCE__WARNING_BYTES - (size_t)used,
                 "%scheck_storage_available_when_open has no effect, because an unmanaged storage "
                 "cannot be probed",
                 used > 0 ? "; " : "");
}

static bool has_type(const struct tierce__catalog *catalog, enum tierce__storage_type type)
{
    size_t count;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (all[i].type == type)
            return true;
    }
    return false;
}

/* Returns the kind of a type quota that covers unmanaged storages, or NULL. The quota of a type of
 * which there is no storage limits nothing: the default group has such quotas. */
static const char *find_kind(const struct tierce__storages *storages,
                             const struct tierce__catalog *catalog,
                             const struct tierce__group *group)
{
    for (size_t i = 0; i < group->type_quota_count; i++) {
        enum tierce__storage_type type = group->type_quotas[i].type;
        if (!tierce__storages_is_managed(storages, type) && has_type(catalog, type))
            return tierce__storage_type_name(type);
    }
    return NULL;
}

/* Returns the group's first unmanaged storage, or NULL. */
static const char *find_candidate(const struct tierce__storages *storages,
                                  const struct tierce__catalog *catalog,
                                  const struct tierce__group *group)
{
    for (size_t i = 0; i < group->storage_candidate_count; i++) {
        const struct tierce__storage *storage =
            tierce__catalog_storage(catalog, group->storage_candidates[i]);
        if (storage != NULL && !tierce__storages_is_managed(storages, storage->type))
            return storage->name;
    }
    return NULL;
}

void tierce__group_warning(char out[TIERCE__WARNING_BYTES], const struct tierce__storages *storages,
                           const struct tierce__catalog *catalog, const struct tierce__group *group)
{
    const char *kind = find_kind(storages, catalog, group);
    const char *candidate = find_candidate(storages, catalog, group);
    out[0] = '\0';
    if (kind != NULL)
        snprintf(out, TIERCE__WARNING_BYTES,
                 "quota_config of instance group %.60s limits unmanaged storages (%s): " STAYS,
                 group->name, kind);
    else if (candidate != NULL)
        snprintf(out, TIERCE__WARNING_BYTES,
                 "quota of instance group %.60s limits storage %.60s, which is unmanaged: " STAYS,
                 group->name, candidate);
}

void tierce__unmanaged_log(const struct tierce__storages *storages,
                           const struct tierce__catalog *catalog)
{
    char text[TIERCE__WARNING_BYTES];
    size_t count;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        tierce__storage_warning(text, storages, &all[i]);
        if (text[0] != '\0')
            tierce__log(TIERCE_LOG_WARN, "manager.quota_unmanaged", "%s", text);
    }
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        tierce__group_warning(text, storages, catalog, &groups[i]);
        if (text[0] != '\0')
            tierce__log(TIERCE_LOG_WARN, "manager.quota_unmanaged", "%s", text);
    }
}
