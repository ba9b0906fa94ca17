/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/model.h"
#include "base/alloc.h"
#include "manager/meta/meta_store.h"
#include "manager/registry/model_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables ------------------------------------------------------------------------------ */

#define BIT(type)  (1u << (type))
#define OWN_BIT(t) (1u << ((t)-TIERCE__STORAGE_NODE + 8))
#define IS_3FS     (BIT(TIERCE__STORAGE_3FS) | BIT(TIERCE__STORAGE_VCNS_3FS))
#define HAS_FILES  (IS_3FS | BIT(TIERCE__STORAGE_NFS))
#define IS_OURS                                                                                    \
    (OWN_BIT(TIERCE__STORAGE_NODE) | OWN_BIT(TIERCE__STORAGE_REDIS) | OWN_BIT(TIERCE__STORAGE_S3))

#define ROW(type, kind, member, path, own, types)                                                  \
    {                                                                                              \
        path, TIERCE__FIELD_##kind, own, offsetof(struct type, member), types                      \
    }
#define TABLE(name, rows)                                                                          \
    const struct tierce__fields name = {rows, sizeof(rows) / sizeof((rows)[0])}

#define S(kind, member, path, own, types) ROW(tierce__storage, kind, member, path, own, types)
static const struct tierce__field storage_rows[] = {
    S(BOOL, is_enabled, "is_available", false, 0),
    S(TEXT, name, "global_unique_name", false, 0),
    S(BOOL, check_when_open, "check_storage_available_when_open", true, 0),
    S(UINT64, capacity_bytes, "capacity", true, 0),
    S(TEXT, root_path, "storage_spec.root_path", false, BIT(TIERCE__STORAGE_NFS)),
    S(TEXT, cluster_name, "storage_spec.cluster_name", false, IS_3FS),
    S(TEXT, mountpoint, "storage_spec.mountpoint", false, IS_3FS),
    S(TEXT, root_dir, "storage_spec.root_dir", false, IS_3FS),
    S(INT32, key_count_per_file, "storage_spec.key_count_per_file", false, HAS_FILES),
    S(BOOL, touch_file_when_create, "storage_spec.touch_file_when_create", true, IS_3FS),
    S(TEXT, remote_host, "storage_spec.remote_host", false, BIT(TIERCE__STORAGE_VCNS_3FS)),
    S(INT32, remote_port, "storage_spec.remote_port", false, BIT(TIERCE__STORAGE_VCNS_3FS)),
    S(TEXT, meta_storage_uri, "storage_spec.meta_storage_uri", false,
      BIT(TIERCE__STORAGE_VCNS_3FS)),
    S(TEXT, local_hostname, "storage_spec.local_hostname", false, BIT(TIERCE__STORAGE_MOONCAKE)),
    S(TEXT, metadata_connstring, "storage_spec.metadata_connstring", false,
      BIT(TIERCE__STORAGE_MOONCAKE)),
    S(TEXT, protocol, "storage_spec.protocol", false, BIT(TIERCE__STORAGE_MOONCAKE)),
    S(TEXT, rdma_device, "storage_spec.rdma_device", false, BIT(TIERCE__STORAGE_MOONCAKE)),
    S(TEXT, master_service_entry, "storage_spec.master_server_entry", false,
      BIT(TIERCE__STORAGE_MOONCAKE)),
    S(BOOL, enable_vipserver, "storage_spec.enable_vipserver", false,
      BIT(TIERCE__STORAGE_TAIRMEMPOOL)),
    S(TEXT, domain, "storage_spec.domain", false, BIT(TIERCE__STORAGE_TAIRMEMPOOL)),
    S(INT32, timeout, "storage_spec.timeout", false, BIT(TIERCE__STORAGE_TAIRMEMPOOL)),
    S(TEXT, uri, "storage_spec.uri", false, IS_OURS),
};
TABLE(tierce__storage_fields, storage_rows);

#define RECLAIM               "cache_config.reclaim_strategy."
#define INDEXER               "cache_config.meta_indexer_config."
#define G(kind, member, path) ROW(tierce__group, kind, member, path, false, 0)
static const struct tierce__field group_rows[] = {
    G(TEXT, name, "name"),
    G(TEXT, global_quota_group_name, "global_quota_group_name"),
    G(INT64, max_instance_count, "max_instance_count"),
    G(INT64, capacity_bytes, "quota.capacity"),
    G(TEXT, reclaim_storage_name, RECLAIM "storage_unique_name"),
    G(INT32, reclaim_policy, RECLAIM "reclaim_policy"),
    G(INT64, trigger_used_bytes, RECLAIM "trigger_strategy.used_size"),
    G(DOUBLE, trigger_used_share, RECLAIM "trigger_strategy.used_percentage"),
    G(INT32, trigger_period_s, RECLAIM "trigger_period_seconds"),
    G(INT32, reclaim_step, RECLAIM "reclaim_step_size"),
    G(INT32, reclaim_step_percentage, RECLAIM "reclaim_step_percentage"),
    G(INT32, delay_before_delete_ms, RECLAIM "delay_before_delete_ms"),
    ROW(tierce__group, INT64, ttl_s, RECLAIM "ttl_seconds", true, 0),
    G(INT32, prefer_strategy, "cache_config.cache_prefer_strategy"),
    G(INT64, max_key_count, INDEXER "max_key_count"),
    G(INT64, mutex_shard_count, INDEXER "mutex_shard_num"),
    G(INT64, batch_key_count, INDEXER "batch_key_size"),
    G(TEXT, meta_store_type, INDEXER "meta_storage_backend_config.storage_type"),
    G(TEXT, meta_store_uri, INDEXER "meta_storage_backend_config.storage_uri"),
    G(TEXT, search_cache_type, INDEXER "meta_cache_policy_config.type"),
    G(INT64, search_cache_mib, INDEXER "meta_cache_policy_config.capacity"),
    G(INT32, search_cache_shard_bits, INDEXER "meta_cache_policy_config.cache_shard_bits"),
    G(DOUBLE, search_cache_high_pri_ratio, INDEXER "meta_cache_policy_config.high_pri_pool_ratio"),
    G(INT64, persist_interval_ms, INDEXER "persist_metadata_interval_time_ms"),
    G(TEXT, user_data, "user_data"),
    G(INT64, version, "version"),
};
TABLE(tierce__group_fields, group_rows);

#define I(kind, member, path, own) ROW(tierce__instance, kind, member, path, own, 0)
static const struct tierce__field instance_rows[] = {
    I(TEXT, quota_group_name, "quota_group_name", false),
    I(TEXT, group_name, "instance_group_name", false),
    I(TEXT, id, "instance_id", false),
    I(INT32, block_size, "block_size", false),
    I(BOOL, is_kv, "is_kv", true),
    I(TEXT, user_data, "user_data", true),
};
TABLE(tierce__instance_fields, instance_rows);

#define M(kind, member) ROW(tierce__model, kind, member, #member, false, 0)
static const struct tierce__field model_rows[] = {
    M(TEXT, model_name), M(TEXT, dtype),    M(BOOL, use_mla), M(INT32, tp_size),  M(INT32, dp_size),
    M(TEXT, lora_name),  M(INT32, pp_size), M(TEXT, extra),   M(TEXT, user_data),
};
TABLE(tierce__model_fields, model_rows);

static const struct tierce__field account_rows[] = {
    ROW(tierce__account, TEXT, name, "user_name", false, 0),
    ROW(tierce__account, TEXT, password_hash, "password_hash", false, 0),
};
TABLE(tierce__account_fields, account_rows);

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
    for (size_t i = group->type_quota_count; i > 0; i--) {
        if (tierce__storage_type_quota(group->type_quotas[i - 1].type) == kind)
            return &group->type_quotas[i - 1];
    }
    return NULL;
}

uint32_t tierce__storage_type_bit(enum tierce__storage_type type)
{
    return 1u << tierce__meta_type_slot((uint8_t)type);
}

char *tierce__storage_root(const struct tierce__storage *storage)
{
    const char *parts[2] = {"", ""};
    if (storage->type == TIERCE__STORAGE_NFS) {
        parts[0] = storage->root_path;
    } else if (tierce__storage_type_bit(storage->type) & IS_3FS) {
        parts[0] = storage->mountpoint;
        parts[1] = storage->root_dir;
    }
    size_t size = strlen(parts[0]) + strlen(parts[1]) + 4, used = 0;
    char *root = tierce__alloc(size);
    if (root == NULL)
        return NULL;
    root[used++] = '/';
    for (size_t i = 0; i < 2; i++) {
        for (const char *p = parts[i]; *p != '\0'; p++)
            if (*p != '/' || root[used - 1] != '/')
                root[used++] = *p;
        if (root[used - 1] != '/')
            root[used++] = '/';
    }
    root[used] = '\0';
    return root;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static char **text_at(void *object, const struct tierce__field *field)
{
    return (char **)(void *)((char *)object + field->offset);
}

int tierce__fields_init(void *object, const struct tierce__fields *fields)
{
    for (size_t i = 0; i < fields->count; i++) {
        if (fields->rows[i].kind != TIERCE__FIELD_TEXT)
            continue;
        char **text = text_at(object, &fields->rows[i]);
        *text = tierce__strdup("");
        if (*text == NULL)
            return -ENOMEM;
    }
    return 0;
}

/* Replaces the borrowed texts of a shallow copy by copies. On an error the remaining ones become
 * NULL. */
static int own_texts(void *object, const struct tierce__fields *fields)
{
    int rc = 0;
    for (size_t i = 0; i < fields->count; i++) {
        if (fields->rows[i].kind != TIERCE__FIELD_TEXT)
            continue;
        char **text = text_at(object, &fields->rows[i]);
        if (rc == 0) {
            *text = tierce__strdup(*text != NULL ? *text : "");
            rc = *text != NULL ? 0 : -ENOMEM;
        } else {
            *text = NULL;
        }
    }
    return rc;
}

static void free_texts(void *object, const struct tierce__fields *fields)
{
    for (size_t i = 0; i < fields->count; i++)
        if (fields->rows[i].kind == TIERCE__FIELD_TEXT)
            tierce__free(*text_at(object, &fields->rows[i]));
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; names != NULL && i < count; i++)
        tierce__free(names[i]);
    tierce__free(names);
}

/* A copy of a list of names; NULL: no memory. */
static char **copy_names(char *const *names, size_t count)
{
    char **copy = tierce__calloc(count, sizeof(*copy));
    for (size_t i = 0; copy != NULL && i < count; i++) {
        copy[i] = tierce__strdup(names[i]);
        if (copy[i] == NULL) {
            free_names(copy, count);
            return NULL;
        }
    }
    return copy;
}

int tierce__storage_copy(struct tierce__storage *out, const struct tierce__storage *in)
{
    struct tierce__storage copy = *in;
    int rc = own_texts(&copy, &tierce__storage_fields);
    if (rc == 0)
        *out = copy;
    else
        tierce__storage_clear(&copy);
    return rc;
}

void tierce__storage_clear(struct tierce__storage *storage)
{
    free_texts(storage, &tierce__storage_fields);
    *storage = (struct tierce__storage){0};
}

int tierce__group_copy(struct tierce__group *out, const struct tierce__group *in)
{
    struct tierce__group copy = *in;
    int rc = own_texts(&copy, &tierce__group_fields);
    copy.storage_candidates = NULL;
    copy.type_quotas = NULL;
    if (rc == 0) {
        copy.storage_candidates = copy_names(in->storage_candidates, in->storage_candidate_count);
        copy.type_quotas = tierce__calloc(in->type_quota_count, sizeof(*copy.type_quotas));
        rc = copy.storage_candidates != NULL && copy.type_quotas != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        if (in->type_quota_count > 0)
            memcpy(copy.type_quotas, in->type_quotas,
                   in->type_quota_count * sizeof(*copy.type_quotas));
        *out = copy;
    } else {
        tierce__group_clear(&copy);
    }
    return rc;
}

void tierce__group_clear(struct tierce__group *group)
{
    free_texts(group, &tierce__group_fields);
    free_names(group->storage_candidates, group->storage_candidate_count);
    tierce__free(group->type_quotas);
    *group = (struct tierce__group){0};
}

static int copy_specs(struct tierce__instance *out, const struct tierce__instance *in)
{
    out->specs = tierce__calloc(in->spec_count, sizeof(*out->specs));
    if (out->specs == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < in->spec_count; i++) {
        out->specs[i].size = in->specs[i].size;
        out->specs[i].name = tierce__strdup(in->specs[i].name);
        if (out->specs[i].name == NULL)
            return -ENOMEM;
    }
    return 0;
}

static int copy_spec_groups(struct tierce__instance *out, const struct tierce__instance *in)
{
    out->spec_groups = tierce__calloc(in->spec_group_count, sizeof(*out->spec_groups));
    if (out->spec_groups == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < in->spec_group_count; i++) {
        const struct tierce__spec_group *from = &in->spec_groups[i];
        struct tierce__spec_group *to = &out->spec_groups[i];
        to->name = tierce__strdup(from->name);
        to->spec_names = copy_names(from->spec_names, from->spec_name_count);
        if (to->spec_names != NULL)
            to->spec_name_count = from->spec_name_count;
        if (to->name == NULL || to->spec_names == NULL)
            return -ENOMEM;
    }
    return 0;
}

int tierce__instance_copy(struct tierce__instance *out, const struct tierce__instance *in)
{
    struct tierce__instance copy = *in;
    int rc = own_texts(&copy, &tierce__instance_fields);
    int model_rc = own_texts(&copy.model, &tierce__model_fields);
    rc = rc != 0 ? rc : model_rc;
    copy.specs = NULL;
    copy.spec_groups = NULL;
    if (rc == 0)
        rc = copy_specs(&copy, in);
    if (rc == 0)
        rc = copy_spec_groups(&copy, in);
    if (rc == 0)
        *out = copy;
    else
        tierce__instance_clear(&copy);
    return rc;
}

void tierce__instance_clear(struct tierce__instance *instance)
{
    free_texts(instance, &tierce__instance_fields);
    free_texts(&instance->model, &tierce__model_fields);
    for (size_t i = 0; instance->specs != NULL && i < instance->spec_count; i++)
        tierce__free(instance->specs[i].name);
    for (size_t i = 0; instance->spec_groups != NULL && i < instance->spec_group_count; i++) {
        struct tierce__spec_group *group = &instance->spec_groups[i];
        tierce__free(group->name);
        free_names(group->spec_names, group->spec_name_count);
    }
    tierce__free(instance->specs);
    tierce__free(instance->spec_groups);
    *instance = (struct tierce__instance){0};
}

int tierce__account_copy(struct tierce__account *out, const struct tierce__account *in)
{
    struct tierce__account copy = *in;
    int rc = own_texts(&copy, &tierce__account_fields);
    if (rc == 0)
        *out = copy;
    else
        tierce__account_clear(&copy);
    return rc;
}

void tierce__account_clear(struct tierce__account *account)
{
    free_texts(account, &tierce__account_fields);
    *account = (struct tierce__account){0};
}

/* ---- comparison ------------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int compare_spec_groups(const void *a, const void *b)
{
    return strcmp(((const struct tierce__spec_group *)a)->name,
                  ((const struct tierce__spec_group *)b)->name);
}

void tierce__instance_sort(struct tierce__instance *instance)
{
    for (size_t i = 0; i < instance->spec_group_count; i++)
        qsort(instance->spec_groups[i].spec_names, instance->spec_groups[i].spec_name_count,
              sizeof(char *), compare_names);
    if (instance->spec_group_count > 0)
        qsort(instance->spec_groups, instance->spec_group_count, sizeof(*instance->spec_groups),
              compare_spec_groups);
}

static const struct tierce__spec_group *find_spec_group(const struct tierce__instance *instance,
                                                        const char *name)
{
    for (size_t i = 0; i < instance->spec_group_count; i++)
        if (strcmp(instance->spec_groups[i].name, name) == 0)
            return &instance->spec_groups[i];
    return NULL;
}

static bool has_name(const struct tierce__spec_group *group, const char *name)
{
    for (size_t i = 0; i < group->spec_name_count; i++)
        if (strcmp(group->spec_names[i], name) == 0)
            return true;
    return false;
}

/* Returns whether `b` has every spec group of `a`, with the same names. */
static bool has_spec_groups(const struct tierce__instance *a, const struct tierce__instance *b)
{
    for (size_t i = 0; i < a->spec_group_count; i++) {
        const struct tierce__spec_group *one = &a->spec_groups[i];
        const struct tierce__spec_group *other = find_spec_group(b, one->name);
        if (other == NULL || other->spec_name_count != one->spec_name_count)
            return false;
        for (size_t n = 0; n < one->spec_name_count; n++)
            if (!has_name(other, one->spec_names[n]) || !has_name(one, other->spec_names[n]))
                return false;
    }
    return true;
}

static bool is_same_field(const void *a, const void *b, const struct tierce__field *field)
{
    const char *one = (const char *)a + field->offset, *other = (const char *)b + field->offset;
    switch ((enum tierce__field_kind)field->kind) {
    case TIERCE__FIELD_TEXT:
        return strcmp(*(char *const *)(const void *)one, *(char *const *)(const void *)other) == 0;
    case TIERCE__FIELD_BOOL:
        return *(const bool *)one == *(const bool *)other;
    case TIERCE__FIELD_INT32:
        return memcmp(one, other, sizeof(int32_t)) == 0;
    case TIERCE__FIELD_INT64:
    case TIERCE__FIELD_UINT64:
    case TIERCE__FIELD_DOUBLE:
        break;
    }
    return memcmp(one, other, sizeof(int64_t)) == 0;
}

static bool is_same_specs(const struct tierce__instance *a, const struct tierce__instance *b)
{
    if (a->spec_count != b->spec_count)
        return false;
    for (size_t i = 0; i < a->spec_count; i++)
        if (a->specs[i].size != b->specs[i].size || strcmp(a->specs[i].name, b->specs[i].name) != 0)
            return false;
    return true;
}

bool tierce__instance_is_same(const struct tierce__instance *a, const struct tierce__instance *b,
                              char why[128])
{
    if (a->block_size != b->block_size) {
        snprintf(why, 128, "block_size");
        return false;
    }
    if (a->is_kv != b->is_kv) {
        snprintf(why, 128, "kind of service");
        return false;
    }
    if (!is_same_specs(a, b)) {
        snprintf(why, 128, "location_spec_infos");
        return false;
    }
    if (a->spec_group_count != b->spec_group_count || !has_spec_groups(a, b) ||
        !has_spec_groups(b, a)) {
        snprintf(why, 128, "location_spec_groups");
        return false;
    }
    for (size_t i = 0; i < tierce__model_fields.count; i++) {
        const struct tierce__field *field = &tierce__model_fields.rows[i];
        if (strcmp(field->path, "user_data") != 0 && !is_same_field(&a->model, &b->model, field)) {
            snprintf(why, 128, "model_deployment.%s", field->path);
            return false;
        }
    }
    return true;
}
