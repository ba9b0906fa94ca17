/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_model.h"

#include "manager/storage/unmanaged.h"

#include <stdio.h>
#include <string.h>

static char none[] = "";

/* ---- URIs of our own kinds ------------------------------------------------------------------- */

/*
 * These storages are stored as one URI: tierce://POOL?nodes=.., redis://..,
 * s3://BUCKET/PREFIX?endpoint=..; parameter values are percent-encoded if necessary.
 */

struct text {
    char *bytes;
    size_t used, room;
};

static void add(struct text *t, const char *text)
{
    size_t length = strlen(text);
    if (t->bytes == NULL || t->room - t->used <= length)
        return;
    memcpy(t->bytes + t->used, text, length + 1);
    t->used += length;
}

static void add_parameter(struct text *t, char first, const char *name, const char *value)
{
    char piece[4];
    if (value[0] == '\0')
        return;
    bool is_first = strchr(t->bytes != NULL ? t->bytes : none, '?') == NULL;
    snprintf(piece, sizeof(piece), "%c", is_first ? first : '&');
    add(t, piece);
    add(t, name);
    add(t, "=");
    for (; *value != '\0'; value++) {
        bool plain = strchr("%&=?#", *value) == NULL && (unsigned char)*value > ' ';
        snprintf(piece, sizeof(piece), plain ? "%c" : "%%%02X", (unsigned char)*value);
        add(t, piece);
    }
}

/* Encoded bytes take three characters. */
static struct text begin(struct tierce__api_call *api, size_t bytes)
{
    struct text t = {.room = bytes * 3 + 128};
    t.bytes = tierce__arena_calloc(&api->arena, 1, t.room);
    return t;
}

static char *node_uri(struct tierce__api_call *api, const Admin__TierceStorageSpec *spec)
{
    size_t bytes = strlen(spec->pool);
    for (size_t i = 0; i < spec->n_nodes; i++)
        bytes += strlen(spec->nodes[i]) + 1;
    struct text nodes = begin(api, bytes), t = begin(api, bytes * 3);
    for (size_t i = 0; i < spec->n_nodes; i++) {
        add(&nodes, i > 0 ? "," : "");
        add(&nodes, spec->nodes[i]);
    }
    add(&t, "tierce://");
    add(&t, spec->pool);
    add_parameter(&t, '?', "nodes", nodes.bytes != NULL ? nodes.bytes : none);
    return t.bytes;
}

static char *redis_uri(struct tierce__api_call *api, const Admin__RedisStorageSpec *spec)
{
    struct text t =
        begin(api, strlen(spec->uri) + strlen(spec->key_prefix) + strlen(spec->credentials_file));
    add(&t, spec->uri);
    add_parameter(&t, '?', "key_prefix", spec->key_prefix);
    add_parameter(&t, '?', "credentials_file", spec->credentials_file);
    add_parameter(&t, '?', "cluster", spec->is_cluster ? "1" : "");
    return t.bytes;
}

static char *s3_uri(struct tierce__api_call *api, const Admin__S3StorageSpec *spec)
{
    struct text t =
        begin(api, strlen(spec->bucket) + strlen(spec->prefix) + strlen(spec->endpoint) +
                       strlen(spec->region) + strlen(spec->credentials_file));
    add(&t, "s3://");
    add(&t, spec->bucket);
    add(&t, "/");
    add(&t, spec->prefix);
    add_parameter(&t, '?', "endpoint", spec->endpoint);
    add_parameter(&t, '?', "region", spec->region);
    add_parameter(&t, '?', "credentials_file", spec->credentials_file);
    add_parameter(&t, '?', "path_style", spec->is_path_style ? "1" : "");
    return t.bytes;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The decoded value of a parameter; "" if it is missing. NULL: no memory. */
static char *parameter(struct tierce__api_call *api, const char *uri, const char *name)
{
    const char *at = strchr(uri, '?');
    size_t length = strlen(name);
    while (at != NULL && !(strncmp(at + 1, name, length) == 0 && at[1 + length] == '='))
        at = strchr(at + 1, '&');
    if (at == NULL)
        return none;
    at += length + 2;
    char *out = tierce__api_alloc(api, strcspn(at, "&") + 1, 1);
    for (size_t n = 0; out != NULL && *at != '\0' && *at != '&'; at++) {
        bool encoded = *at == '%' && hex_digit(at[1]) >= 0 && hex_digit(at[2]) >= 0;
        out[n++] = encoded ? (char)(hex_digit(at[1]) * 16 + hex_digit(at[2])) : *at;
        at += encoded ? 2 : 0;
    }
    return out;
}

static char *piece(struct tierce__api_call *api, const char *from, size_t length)
{
    char *out = tierce__api_alloc(api, length + 1, 1);
    if (out != NULL)
        memcpy(out, from, length);
    return out;
}

/* ---- storages -------------------------------------------------------------------------------- */

static void read_3fs(const Admin__ThreeFSStorageSpec *spec, struct tierce__storage *out)
{
    out->cluster_name = spec->cluster_name;
    out->mountpoint = spec->mountpoint;
    out->root_dir = spec->root_dir;
    out->key_count_per_file = spec->key_count_per_file;
    out->touch_file_when_create = spec->touch_file_when_create != 0;
}

static void read_vcns(const Admin__VcnsThreeFSStorageSpec *spec, struct tierce__storage *out)
{
    out->cluster_name = spec->cluster_name;
    out->mountpoint = spec->mountpoint;
    out->root_dir = spec->root_dir;
    out->key_count_per_file = spec->key_count_per_file;
    out->touch_file_when_create = spec->touch_file_when_create != 0;
    out->remote_host = spec->remote_host;
    out->remote_port = spec->remote_port;
    out->meta_storage_uri = spec->meta_storage_uri;
}

static void read_mooncake(const Admin__MooncakeStorageSpec *spec, struct tierce__storage *out)
{
    out->local_hostname = spec->local_hostname;
    out->metadata_connstring = spec->metadata_connstring;
    out->protocol = spec->protocol;
    out->rdma_device = spec->rdma_device;
    out->master_service_entry = spec->master_service_entry;
}

static void read_pool(const Admin__TairMemPoolStorageSpec *spec, struct tierce__storage *out)
{
    out->domain = spec->domain;
    out->timeout = spec->timeout;
    out->enable_vipserver = spec->enable_vipserver != 0;
}

static void read_nfs(const Admin__NfsStorageSpec *spec, struct tierce__storage *out)
{
    out->root_path = spec->root_path;
    out->key_count_per_file = spec->key_count_per_file;
}

static const enum tierce__storage_type types_by_case[] = {
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_THREEFS] = TIERCE__STORAGE_3FS,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_MOONCAKE] = TIERCE__STORAGE_MOONCAKE,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TAIR_MEM_POOL] = TIERCE__STORAGE_TAIRMEMPOOL,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_NFS] = TIERCE__STORAGE_NFS,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_VCNSTHREEFS] = TIERCE__STORAGE_VCNS_3FS,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TIERCE] = TIERCE__STORAGE_NODE,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_REDIS] = TIERCE__STORAGE_REDIS,
    [ADMIN__STORAGE_CONFIG__STORAGE_SPEC_S3] = TIERCE__STORAGE_S3,
};

/* A storage of a type, with "" for every text. */
static struct tierce__storage empty_storage(void)
{
    return (struct tierce__storage){.name = none,
                                    .is_enabled = true,
                                    .root_path = none,
                                    .cluster_name = none,
                                    .mountpoint = none,
                                    .root_dir = none,
                                    .key_count_per_file = 1,
                                    .remote_host = none,
                                    .meta_storage_uri = none,
                                    .local_hostname = none,
                                    .metadata_connstring = none,
                                    .protocol = none,
                                    .rdma_device = none,
                                    .master_service_entry = none,
                                    .domain = none,
                                    .uri = none};
}

static void read_spec(struct tierce__api_call *api, const Admin__StorageConfig *message,
                      struct tierce__storage *out)
{
    switch (out->type) {
    case TIERCE__STORAGE_3FS:
        read_3fs(message->threefs, out);
        break;
    case TIERCE__STORAGE_MOONCAKE:
        read_mooncake(message->mooncake, out);
        break;
    case TIERCE__STORAGE_TAIRMEMPOOL:
        read_pool(message->tair_mem_pool, out);
        break;
    case TIERCE__STORAGE_NFS:
        read_nfs(message->nfs, out);
        break;
    case TIERCE__STORAGE_VCNS_3FS:
        read_vcns(message->vcnsthreefs, out);
        break;
    case TIERCE__STORAGE_NODE:
        out->uri = node_uri(api, message->tierce);
        break;
    case TIERCE__STORAGE_REDIS:
        out->uri = redis_uri(api, message->redis);
        break;
    case TIERCE__STORAGE_S3:
        out->uri = s3_uri(api, message->s3);
        break;
    case TIERCE__STORAGE_NONE:
        break;
    }
}

bool tierce__api_read_storage(struct tierce__api_call *api, const Admin__StorageConfig *message,
                              struct tierce__storage *out, const char **missing)
{
    size_t which = message != NULL ? (size_t)message->storage_spec_case : 0;
    *out = empty_storage();
    *missing = NULL;
    if (message == NULL)
        *missing = "storage";
    else if (message->global_unique_name[0] == '\0')
        *missing = "storage: {global_unique_name}";
    else if (which >= sizeof(types_by_case) / sizeof(types_by_case[0]) ||
             types_by_case[which] == TIERCE__STORAGE_NONE)
        *missing = "storage: {storage_spec}";
    if (*missing != NULL)
        return false;
    out->name = message->global_unique_name;
    out->type = types_by_case[which];
    out->check_when_open = message->check_storage_available_when_open != 0;
    out->capacity_bytes =
        (uint64_t)message->capacity_bytes; /* the registry rejects values below 0 */
    read_spec(api, message, out);
    return out->uri != NULL;
}

static bool show_3fs(struct tierce__api_call *api, const struct tierce__storage *storage,
                     Admin__StorageConfig *out)
{
    Admin__ThreeFSStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    if (spec == NULL)
        return false;
    admin__three_fsstorage_spec__init(spec);
    spec->cluster_name = storage->cluster_name;
    spec->mountpoint = storage->mountpoint;
    spec->root_dir = storage->root_dir;
    spec->key_count_per_file = storage->key_count_per_file;
    spec->touch_file_when_create = storage->touch_file_when_create;
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_THREEFS;
    out->threefs = spec;
    return true;
}

static bool show_vcns(struct tierce__api_call *api, const struct tierce__storage *storage,
                      Admin__StorageConfig *out)
{
    Admin__VcnsThreeFSStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    if (spec == NULL)
        return false;
    admin__vcns_three_fsstorage_spec__init(spec);
    spec->cluster_name = storage->cluster_name;
    spec->mountpoint = storage->mountpoint;
    spec->root_dir = storage->root_dir;
    spec->key_count_per_file = storage->key_count_per_file;
    spec->touch_file_when_create = storage->touch_file_when_create;
    spec->remote_host = storage->remote_host;
    spec->remote_port = storage->remote_port;
    spec->meta_storage_uri = storage->meta_storage_uri;
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_VCNSTHREEFS;
    out->vcnsthreefs = spec;
    return true;
}

static bool show_mooncake(struct tierce__api_call *api, const struct tierce__storage *storage,
                          Admin__StorageConfig *out)
{
    Admin__MooncakeStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    if (spec == NULL)
        return false;
    admin__mooncake_storage_spec__init(spec);
    spec->local_hostname = storage->local_hostname;
    spec->metadata_connstring = storage->metadata_connstring;
    spec->protocol = storage->protocol;
    spec->rdma_device = storage->rdma_device;
    spec->master_service_entry = storage->master_service_entry;
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_MOONCAKE;
    out->mooncake = spec;
    return true;
}

static bool show_pool(struct tierce__api_call *api, const struct tierce__storage *storage,
                      Admin__StorageConfig *out)
{
    Admin__TairMemPoolStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    if (spec == NULL)
        return false;
    admin__tair_mem_pool_storage_spec__init(spec);
    spec->domain = storage->domain;
    spec->timeout = storage->timeout;
    spec->enable_vipserver = storage->enable_vipserver;
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TAIR_MEM_POOL;
    out->tair_mem_pool = spec;
    return true;
}

static bool show_nfs(struct tierce__api_call *api, const struct tierce__storage *storage,
                     Admin__StorageConfig *out)
{
    Admin__NfsStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    if (spec == NULL)
        return false;
    admin__nfs_storage_spec__init(spec);
    spec->root_path = storage->root_path;
    spec->key_count_per_file = storage->key_count_per_file;
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_NFS;
    out->nfs = spec;
    return true;
}

static bool show_node(struct tierce__api_call *api, const struct tierce__storage *storage,
                      Admin__StorageConfig *out)
{
    const char *pool = strncmp(storage->uri, "tierce://", 9) == 0 ? storage->uri + 9 : storage->uri;
    Admin__TierceStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    char *nodes = parameter(api, storage->uri, "nodes");
    char **list = nodes != NULL ? tierce__api_alloc(api, strlen(nodes) + 1, sizeof(*list)) : NULL;
    if (spec == NULL || list == NULL)
        return false;
    admin__tierce_storage_spec__init(spec);
    spec->pool = piece(api, pool, strcspn(pool, "?"));
    spec->nodes = list;
    for (char *next = nodes[0] != '\0' ? nodes : NULL; next != NULL;) {
        list[spec->n_nodes++] = next;
        next = strchr(next, ',');
        if (next != NULL)
            *next++ = '\0';
    }
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_TIERCE;
    out->tierce = spec;
    return spec->pool != NULL;
}

static bool show_redis(struct tierce__api_call *api, const struct tierce__storage *storage,
                       Admin__StorageConfig *out)
{
    Admin__RedisStorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    char *cluster = parameter(api, storage->uri, "cluster");
    if (spec == NULL || cluster == NULL)
        return false;
    admin__redis_storage_spec__init(spec);
    spec->uri = piece(api, storage->uri, strcspn(storage->uri, "?"));
    spec->key_prefix = parameter(api, storage->uri, "key_prefix");
    spec->credentials_file = parameter(api, storage->uri, "credentials_file");
    spec->is_cluster = cluster[0] == '1';
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_REDIS;
    out->redis = spec;
    return spec->uri != NULL && spec->key_prefix != NULL && spec->credentials_file != NULL;
}

static bool show_s3(struct tierce__api_call *api, const struct tierce__storage *storage,
                    Admin__StorageConfig *out)
{
    const char *bucket = strncmp(storage->uri, "s3://", 5) == 0 ? storage->uri + 5 : storage->uri;
    const char *prefix = bucket + strcspn(bucket, "/?");
    size_t bucket_length = (size_t)(prefix - bucket);
    prefix += *prefix == '/';
    Admin__S3StorageSpec *spec = tierce__api_alloc(api, 1, sizeof(*spec));
    char *path_style = parameter(api, storage->uri, "path_style");
    if (spec == NULL || path_style == NULL)
        return false;
    admin__s3_storage_spec__init(spec);
    spec->bucket = piece(api, bucket, bucket_length);
    spec->prefix = piece(api, prefix, strcspn(prefix, "?"));
    spec->endpoint = parameter(api, storage->uri, "endpoint");
    spec->region = parameter(api, storage->uri, "region");
    spec->credentials_file = parameter(api, storage->uri, "credentials_file");
    spec->is_path_style = path_style[0] == '1';
    out->storage_spec_case = ADMIN__STORAGE_CONFIG__STORAGE_SPEC_S3;
    out->s3 = spec;
    return spec->bucket != NULL && spec->prefix != NULL && spec->endpoint != NULL &&
           spec->region != NULL && spec->credentials_file != NULL;
}

static char *copy_text(struct tierce__api_call *api, const char *text)
{
    return piece(api, text, strlen(text));
}

static bool show_state(struct tierce__api_call *api, const struct tierce__storage *storage,
                       Admin__StorageConfig *out)
{
    struct tierce__storage_state state;
    char warning[TIERCE__WARNING_BYTES];
    tierce__storages_state(api->manager->storages, storage->name, &state);
    tierce__storage_warning(warning, api->manager->storages, storage);
    out->status = tierce__api_text(tierce__storage_status(&state));
    out->warning = copy_text(api, warning);
    return out->warning != NULL;
}

Admin__StorageConfig *tierce__api_show_storage(struct tierce__api_call *api,
                                               const struct tierce__storage *storage)
{
    Admin__StorageConfig *out = tierce__api_alloc(api, 1, sizeof(*out));
    bool good = out != NULL;
    if (!good)
        return NULL;
    admin__storage_config__init(out);
    out->global_unique_name = storage->name;
    out->check_storage_available_when_open = storage->check_when_open;
    out->capacity_bytes = (int64_t)storage->capacity_bytes;
    switch (storage->type) {
    case TIERCE__STORAGE_3FS:
        good = show_3fs(api, storage, out);
        break;
    case TIERCE__STORAGE_VCNS_3FS:
        good = show_vcns(api, storage, out);
        break;
    case TIERCE__STORAGE_MOONCAKE:
        good = show_mooncake(api, storage, out);
        break;
    case TIERCE__STORAGE_TAIRMEMPOOL:
        good = show_pool(api, storage, out);
        break;
    case TIERCE__STORAGE_NFS:
        good = show_nfs(api, storage, out);
        break;
    case TIERCE__STORAGE_NODE:
        good = show_node(api, storage, out);
        break;
    case TIERCE__STORAGE_REDIS:
        good = show_redis(api, storage, out);
        break;
    case TIERCE__STORAGE_S3:
        good = show_s3(api, storage, out);
        break;
    case TIERCE__STORAGE_NONE:
        break;
    }
    return good && show_state(api, storage, out) ? out : NULL;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static const char *missing_in_group(const Admin__InstanceGroup *group)
{
    const Admin__CacheConfig *cache = group != NULL ? group->cache_config : NULL;
    const Admin__MetaIndexerConfig *indexer = cache != NULL ? cache->meta_indexer_config : NULL;
    if (group == NULL)
        return "instance_group";
    if (group->name[0] == '\0')
        return "instance_group: {name}";
    if (group->n_storage_candidates == 0)
        return "instance_group: {storage_candidates}";
    if (group->global_quota_group_name[0] == '\0')
        return "instance_group: {global_quota_group_name}";
    if (cache == NULL)
        return "instance_group: {cache_config}";
    if (cache->data_storage_strategy == ADMIN__CACHE_PREFER_STRATEGY__CPS_UNSPECIFIED)
        return "instance_group: {cache_config: {data_storage_strategy}}";
    if (cache->reclaim_strategy == NULL || cache->reclaim_strategy->storage_unique_name[0] == '\0')
        return "instance_group: {cache_config: {reclaim_strategy: {storage_unique_name}}}";
    if (indexer == NULL || indexer->meta_storage_backend_config == NULL ||
        indexer->meta_storage_backend_config->storage_type[0] == '\0')
        return "instance_group: {cache_config: {meta_indexer_config: "
               "{meta_storage_backend_config: {storage_type}}}}";
    if (indexer->meta_cache_policy_config == NULL ||
        indexer->meta_cache_policy_config->type[0] == '\0')
        return "instance_group: {cache_config: {meta_indexer_config: "
               "{meta_cache_policy_config: {type}}}}";
    return NULL;
}

static void read_cache_config(const Admin__CacheConfig *cache, struct tierce__group *out)
{
    const Admin__CacheReclaimStrategy *reclaim = cache->reclaim_strategy;
    const Admin__MetaIndexerConfig *indexer = cache->meta_indexer_config;
    out->prefer_strategy = (int32_t)cache->data_storage_strategy;
    out->reclaim_storage_name = reclaim->storage_unique_name;
    out->reclaim_policy = (int32_t)reclaim->reclaim_policy;
    if (reclaim->trigger_strategy != NULL) {
        out->trigger_used_bytes = reclaim->trigger_strategy->used_size;
        out->trigger_used_share = reclaim->trigger_strategy->used_percentage;
    }
    out->trigger_period_s = reclaim->trigger_period_seconds;
    out->reclaim_step = reclaim->reclaim_step_size;
    out->reclaim_step_percentage = reclaim->reclaim_step_percentage;
    out->delay_before_delete_ms = reclaim->delay_before_delete_ms;
    out->ttl_s = reclaim->ttl_seconds;
    out->max_key_count = indexer->max_key_count;
    out->mutex_shard_count = indexer->mutex_shard_num;
    out->batch_key_count = indexer->batch_key_size;
    out->meta_store_type = indexer->meta_storage_backend_config->storage_type;
    out->meta_store_uri = indexer->meta_storage_backend_config->storage_uri;
    out->search_cache_type = indexer->meta_cache_policy_config->type;
    out->search_cache_mib = indexer->meta_cache_policy_config->capacity;
    out->search_cache_shard_bits = indexer->meta_cache_policy_config->cache_shard_bits;
    out->search_cache_high_pri_ratio = indexer->meta_cache_policy_config->high_pri_pool_ratio;
}

bool tierce__api_read_group(struct tierce__api_call *api, const Admin__InstanceGroup *message,
                            struct tierce__group *out, const char **missing)
{
    *missing = missing_in_group(message);
    if (*missing != NULL)
        return false;
    const Admin__InstanceGroupQuota *quota = message->quota;
    size_t quotas = quota != NULL ? quota->n_quota_config : 0;
    *out = (struct tierce__group){
        .name = message->name,
        .storage_candidates = message->storage_candidates,
        .storage_candidate_count = message->n_storage_candidates,
        .global_quota_group_name = message->global_quota_group_name,
        .max_instance_count = message->max_instance_count,
        .capacity_bytes = quota != NULL ? quota->capacity : 0,
        .type_quotas = tierce__arena_calloc(&api->arena, quotas + 1, sizeof(*out->type_quotas)),
        .type_quota_count = quotas,
        .user_data = message->user_data,
        .version = message->version,
        .persist_interval_ms = 1000,
    };
    if (out->type_quotas == NULL)
        return false;
    for (size_t i = 0; i < quotas; i++) {
        out->type_quotas[i] = (struct tierce__type_quota){
            .type = (enum tierce__storage_type)quota->quota_config[i]->storage_type,
            .capacity_bytes = quota->quota_config[i]->capacity};
    }
    read_cache_config(message->cache_config, out);
    return true;
}

static Admin__InstanceGroupQuota *show_quota(struct tierce__api_call *api,
                                             const struct tierce__group *group)
{
    size_t count = group->type_quota_count;
    Admin__InstanceGroupQuota *quota = tierce__api_alloc(api, 1, sizeof(*quota));
    Admin__QuotaConfig *configs = tierce__api_alloc(api, count + 1, sizeof(*configs));
    if (quota == NULL || configs == NULL)
        return NULL;
    admin__instance_group_quota__init(quota);
    quota->capacity = group->capacity_bytes;
    quota->quota_config = tierce__api_alloc(api, count + 1, sizeof(*quota->quota_config));
    if (quota->quota_config == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        admin__quota_config__init(&configs[i]);
        configs[i].storage_type = (Admin__StorageType)group->type_quotas[i].type;
        configs[i].capacity = group->type_quotas[i].capacity_bytes;
        quota->quota_config[i] = &configs[i];
    }
    quota->n_quota_config = count;
    return quota;
}

static Admin__CacheReclaimStrategy *show_reclaim(struct tierce__api_call *api,
                                                 const struct tierce__group *group)
{
    Admin__CacheReclaimStrategy *reclaim = tierce__api_alloc(api, 1, sizeof(*reclaim));
    Admin__TriggerStrategy *trigger = tierce__api_alloc(api, 1, sizeof(*trigger));
    if (reclaim == NULL || trigger == NULL)
        return NULL;
    admin__cache_reclaim_strategy__init(reclaim);
    admin__trigger_strategy__init(trigger);
    trigger->used_size = group->trigger_used_bytes;
    trigger->used_percentage = group->trigger_used_share;
    reclaim->storage_unique_name = group->reclaim_storage_name;
    reclaim->reclaim_policy = (Admin__ReclaimPolicy)group->reclaim_policy;
    reclaim->trigger_strategy = trigger;
    reclaim->trigger_period_seconds = group->trigger_period_s;
    reclaim->reclaim_step_size = group->reclaim_step;
    reclaim->reclaim_step_percentage = group->reclaim_step_percentage;
    reclaim->delay_before_delete_ms = group->delay_before_delete_ms;
    reclaim->ttl_seconds = group->ttl_s;
    return reclaim;
}

static Admin__MetaIndexerConfig *show_indexer(struct tierce__api_call *api,
                                              const struct tierce__group *group)
{
    Admin__MetaIndexerConfig *indexer = tierce__api_alloc(api, 1, sizeof(*indexer));
    Admin__MetaStorageBackendConfig *store = tierce__api_alloc(api, 1, sizeof(*store));
    Admin__MetaCachePolicyConfig *cache = tierce__api_alloc(api, 1, sizeof(*cache));
    if (indexer == NULL || store == NULL || cache == NULL)
        return NULL;
    admin__meta_indexer_config__init(indexer);
    admin__meta_storage_backend_config__init(store);
    admin__meta_cache_policy_config__init(cache);
    store->storage_type = group->meta_store_type;
    store->storage_uri = group->meta_store_uri;
    cache->type = group->search_cache_type;
    cache->capacity = group->search_cache_mib;
    cache->cache_shard_bits = group->search_cache_shard_bits;
    cache->high_pri_pool_ratio = group->search_cache_high_pri_ratio;
    indexer->max_key_count = group->max_key_count;
    indexer->mutex_shard_num = group->mutex_shard_count;
    indexer->batch_key_size = group->batch_key_count;
    indexer->meta_storage_backend_config = store;
    indexer->meta_cache_policy_config = cache;
    return indexer;
}

Admin__InstanceGroup *tierce__api_show_group(struct tierce__api_call *api,
                                             const struct tierce__group *group)
{
    Admin__InstanceGroup *out = tierce__api_alloc(api, 1, sizeof(*out));
    Admin__CacheConfig *cache = tierce__api_alloc(api, 1, sizeof(*cache));
    if (out == NULL || cache == NULL)
        return NULL;
    admin__instance_group__init(out);
    admin__cache_config__init(cache);
    cache->data_storage_strategy = (Admin__CachePreferStrategy)group->prefer_strategy;
    cache->reclaim_strategy = show_reclaim(api, group);
    cache->meta_indexer_config = show_indexer(api, group);
    out->name = group->name;
    out->storage_candidates = group->storage_candidates;
    out->n_storage_candidates = group->storage_candidate_count;
    out->global_quota_group_name = group->global_quota_group_name;
    out->max_instance_count = group->max_instance_count;
    out->quota = show_quota(api, group);
    out->cache_config = cache;
    out->user_data = group->user_data;
    out->version = group->version;
    char warning[TIERCE__WARNING_BYTES];
    tierce__group_warning(warning, api->manager->storages, tierce__api_catalog(api), group);
    out->warning = copy_text(api, warning);
    bool good = out->warning != NULL && out->quota != NULL && cache->reclaim_strategy != NULL &&
                cache->meta_indexer_config != NULL;
    return good ? out : NULL;
}
