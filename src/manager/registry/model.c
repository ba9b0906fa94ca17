/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/model.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/meta/meta_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- policies -------------------------------------------------------------------------------- */

static const struct {
    int32_t policy;
    const char *name;
    bool may_choose; /* TTL is LRU with a time to live */
} policies[] = {
    {TIERCE__RECLAIM_LRU, "lru", true},
    {TIERCE__RECLAIM_LFU, "lfu", true},
    {TIERCE__RECLAIM_TTL, "ttl", false},
    {TIERCE__RECLAIM_LEAF_LRU, "leaf_lru", true},
};

/* 0 is KVCM's "unspecified": as LRU. */
const char *tierce__reclaim_policy_name(int32_t policy)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        if (policies[i].policy == policy)
            return policies[i].name;
    }
    return policies[0].name;
}

static int32_t find_policy(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        if (policies[i].may_choose && strlen(policies[i].name) == bytes &&
            memcmp(policies[i].name, name, bytes) == 0)
            return policies[i].policy;
    }
    return 0;
}

int tierce__policies_of(const char *list, int32_t out[TIERCE__POLICY_NAMES_MAX])
{
    int count = 0;
    while (*list != '\0') {
        size_t bytes = strcspn(list, ",");
        int32_t policy = find_policy(list, bytes);
        for (int i = 0; i < count; i++)
            policy = out[i] == policy ? 0 : policy; /* named twice */
        if (policy == 0 || (list[bytes] == ',' && list[bytes + 1] == '\0'))
            return -1;
        TIERCE_ASSERT(count < TIERCE__POLICY_NAMES_MAX);
        out[count++] = policy;
        list += bytes + (list[bytes] == ',');
    }
    return count;
}

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
