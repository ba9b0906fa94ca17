/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/model.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/meta/meta_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types of storages ----------------------------------------------------------------------- */

static const struct {
    enum tierce__storage_type type;
    const char *name;
} types[] = {
    {TIERCE__STORAGE_NFS, "file"},
    {TIERCE__STORAGE_3FS, "hf3fs"},
    {TIERCE__STORAGE_MOONCAKE, "mooncake"},
    {TIERCE__STORAGE_TAIRMEMPOOL, "pace"},
    {TIERCE__STORAGE_VCNS_3FS, "vcns_hf3fs"},
    {TIERCE__STORAGE_NODE, "tierce"},
    {TIERCE__STORAGE_REDIS, "redis"},
    {TIERCE__STORAGE_S3, "s3"},
};

const char *tierce__storage_type_name(enum tierce__storage_type type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].type == type)
            return types[i].name;
    return "";
}

bool tierce__storage_type_find(enum tierce__storage_type *out, const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, name) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    return false;
}

enum tierce__storage_type tierce__storage_type_quota(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_VCNS_3FS ? TIERCE__STORAGE_3FS : type;
}

enum tierce__storage_type tierce__storage_quota_kind(size_t index)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (tierce__storage_type_quota(types[i].type) == types[i].type && index-- == 0)
            return types[i].type;
    }
    return TIERCE__STORAGE_NONE;
}

const struct tierce__type_quota *tierce__group_type_quota(const struct tierce__group *group,
                                                          enum tierce__storage_type kind)
{
    TIERCE_DASSERT(kind == tierce__storage_type_quota(kind));
    for (size_t i = group->type_quota_count; i > 0; i--) {
        if (tierce__storage_type_quota(group->type_quotas[i - 1].type) == kind)
            return &group->type_quotas[i - 1];
    }
    return NULL;
}

uint32_t tierce__storage_type_bit(enum tierce__storage_type type)
{
    TIERCE_DASSERT(tierce__meta_type_slot((uint8_t)type) < 32);
    return 1u << tierce__meta_type_slot((uint8_t)type);
}

struct tierce__storage_at tierce__storage_at_of(const struct tierce__storage *storage)
{
    return (struct tierce__storage_at){.type = tierce__storage_type_name(storage->type),
                                       .root_path = storage->root_path,
                                       .mountpoint = storage->mountpoint,
                                       .root_dir = storage->root_dir,
                                       .uri = storage->uri,
                                       .master = storage->master_service_entry,
                                       .metadata = storage->metadata_connstring,
                                       .protocol = storage->protocol,
                                       .device = storage->rdma_device,
                                       .python = storage->mooncake_python};
}

char *tierce__storage_root(const struct tierce__storage *storage)
{
    const struct tierce__storage_at at = tierce__storage_at_of(storage);
    return tierce__storage_at_root(&at);
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Also of spec groups, which begin with their name. */
static int compare_names(const void *a, const void *b)
{
    _Static_assert(offsetof(struct tierce__spec_group, name) == 0, "a group begins with its name");
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void tierce__instance_sort(struct tierce__instance *instance)
{
    for (size_t i = 0; i < instance->spec_group_count; i++)
        qsort(instance->spec_groups[i].spec_names, instance->spec_groups[i].spec_name_count,
              sizeof(char *), compare_names);
    if (instance->spec_group_count > 0)
        qsort(instance->spec_groups, instance->spec_group_count, sizeof(*instance->spec_groups),
              compare_names);
}

bool tierce__instance_is_same(const struct tierce__instance *a, const struct tierce__instance *b,
                              char why[128])
{
    const struct tierce__model_field *field =
        tierce__model_difference(a, b, &tierce__instance_fields, TIERCE__FIELD_IS_SAME);
    if (field == NULL && a->attention.kind[0] != '\0' && b->attention.kind[0] != '\0')
        field = tierce__model_difference(a, b, &tierce__instance_fields,
                                         TIERCE__FIELD_IS_SAME_IF_KNOWN);
    if (field != NULL)
        snprintf(why, 128, "%s", field->path);
    return field == NULL;
}
