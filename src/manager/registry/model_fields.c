/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/model_fields.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/text/utf8.h"
#include "manager/api/account.h"
#include "manager/registry/model.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the tables ------------------------------------------------------------------------------ */

#define BIT(type)  (1u << (type))
#define OWN_BIT(t) (1u << ((t)-TIERCE__STORAGE_NODE + 8))
#define MOONCAKE   BIT(TIERCE__STORAGE_MOONCAKE)
#define MEM_POOL   BIT(TIERCE__STORAGE_TAIRMEMPOOL)
#define NFS        BIT(TIERCE__STORAGE_NFS)
#define VCNS       BIT(TIERCE__STORAGE_VCNS_3FS)
#define NODE       OWN_BIT(TIERCE__STORAGE_NODE)
#define IS_3FS     (BIT(TIERCE__STORAGE_3FS) | VCNS)
#define IS_OURS    (NODE | OWN_BIT(TIERCE__STORAGE_REDIS) | OWN_BIT(TIERCE__STORAGE_S3))

#define OWN      .flags = TIERCE__FIELD_IS_OWN
#define NEEDED   .flags = TIERCE__FIELD_IS_NEEDED
#define SAME     .flags = TIERCE__FIELD_IS_SAME
#define NO_FIELD .message = ""
#define OF(bits) .types = (bits)
/* Inclusive. */
#define LIMITS(least, most) .low = (least), .high = (most)

#define KIND_OF(value)                                                                             \
    _Generic((value), char * : TIERCE__FIELD_TEXT, bool : TIERCE__FIELD_BOOL, \
             double : TIERCE__FIELD_DOUBLE, int32_t : TIERCE__FIELD_INT, int64_t : TIERCE__FIELD_INT, \
             uint16_t : TIERCE__FIELD_UINT, uint32_t : TIERCE__FIELD_UINT, \
             uint64_t : TIERCE__FIELD_UINT, char ** : TIERCE__FIELD_NAMES, \
             default : TIERCE__FIELD_LIST)
#define PLACE(type, member)                                                                        \
    .offset = offsetof(struct type, member), .bytes = sizeof(((struct type *)0)->member)

/* A member. The path of its key is `omitted` and the first further argument. */
#define ROW(type, member, omitted, ...)                                                            \
    {                                                                                              \
        .kind = KIND_OF(((struct type *)0)->member), PLACE(type, member),                          \
        .head = sizeof(omitted) - 1, .path = omitted __VA_ARGS__                                   \
    }
#define LIST(type, member, number, ...)                                                            \
    ROW(type, member, "", __VA_ARGS__, .count_offset = offsetof(struct type, number))
/* A storage type, whose C type is that of any enum. */
#define TYPE(type, member, ...)                                                                    \
    {                                                                                              \
        .kind = TIERCE__FIELD_TYPE, PLACE(type, member), .path = __VA_ARGS__                       \
    }
/* The registry's number of an entry. */
#define NUMBER(type, most)                                                                         \
    ROW(type, number, "", "number", NO_FIELD, LIMITS(1, most),                                     \
        .flags = TIERCE__FIELD_IS_STORED | TIERCE__FIELD_IS_CLOSED)
#define TABLE(table, type)                                                                         \
    .rows = (table), .count = sizeof(table) / sizeof((table)[0]), .size = sizeof(struct type)

#define S(member, ...)    ROW(tierce__storage, member, "", __VA_ARGS__)
#define SPEC(member, ...) ROW(tierce__storage, member, "storage_spec.", __VA_ARGS__)
static const struct tierce__model_field storage_rows[] = {
    TYPE(tierce__storage, type, "type", NO_FIELD),
    S(is_enabled, "is_available", NO_FIELD, .initial = true),
    S(name, "global_unique_name", NEEDED),
    S(check_when_open, "check_storage_available_when_open", OWN),
    S(capacity_bytes, "capacity", OWN, LIMITS(0, INT64_MAX), .message = "capacity_bytes",
      .label = "capacity_bytes"),
    S(watermark_percent, "watermark_percent", OWN, LIMITS(0, TIERCE__WATERMARK_PERCENT_MAX)),
    SPEC(root_path, "root_path", OF(NFS)),
    SPEC(cluster_name, "cluster_name", OF(IS_3FS)),
    SPEC(mountpoint, "mountpoint", OF(IS_3FS)),
    SPEC(root_dir, "root_dir", OF(IS_3FS)),
    SPEC(key_count_per_file, "key_count_per_file", OF(IS_3FS | NFS), .initial = 1,
         LIMITS(1, TIERCE__PLACES_SLOTS_MAX)),
    SPEC(touch_file_when_create, "touch_file_when_create", OWN, OF(IS_3FS)),
    SPEC(remote_host, "remote_host", OF(VCNS)),
    SPEC(remote_port, "remote_port", OF(VCNS), LIMITS(0, UINT16_MAX)),
    SPEC(meta_storage_uri, "meta_storage_uri", OF(VCNS)),
    SPEC(local_hostname, "local_hostname", OF(MOONCAKE)),
    SPEC(metadata_connstring, "metadata_connstring", OF(MOONCAKE)),
    SPEC(protocol, "protocol", OF(MOONCAKE)),
    SPEC(rdma_device, "rdma_device", OF(MOONCAKE)),
    SPEC(master_service_entry, "master_server_entry", OF(MOONCAKE),
         .message = "storage_spec.master_service_entry"),
    SPEC(enable_vipserver, "enable_vipserver", OF(MEM_POOL)),
    SPEC(domain, "domain", OF(MEM_POOL)),
    SPEC(timeout, "timeout", OF(MEM_POOL), LIMITS(0, INT32_MAX)),
    SPEC(uri, "uri", OF(IS_OURS), NO_FIELD),     /* of several fields: api_model.c */
    SPEC(pool, "pool", OWN, OF(NODE), NO_FIELD), /* and these: api_model.c */
    SPEC(node, "node", OWN, OF(NODE), NO_FIELD),
    SPEC(medium, "medium", OWN, OF(NODE), NO_FIELD),
    SPEC(incarnation, "incarnation", .flags = TIERCE__FIELD_IS_STORED, OF(NODE), NO_FIELD),
    SPEC(host_id, "host_id", .flags = TIERCE__FIELD_IS_STORED, OF(NODE), NO_FIELD),
    S(is_marked, "is_marked", NO_FIELD, .flags = TIERCE__FIELD_IS_STORED),
    S(contents, "contents", NO_FIELD, LIMITS(TIERCE__CONTENTS_KEPT, TIERCE__CONTENTS_GONE),
      .flags = TIERCE__FIELD_IS_STORED | TIERCE__FIELD_IS_CLOSED),
    S(draining, "draining", NO_FIELD, LIMITS(TIERCE__DRAINING_NOT, TIERCE__DRAINING_DROPS),
      .flags = TIERCE__FIELD_IS_STORED | TIERCE__FIELD_IS_CLOSED),
    S(scrub, "scrub", NO_FIELD, .flags = TIERCE__FIELD_IS_STORED),
    NUMBER(tierce__storage, UINT16_MAX),
};
const struct tierce__fields tierce__storage_fields = {
    TABLE(storage_rows, tierce__storage), .name = offsetof(struct tierce__storage, name),
    .noun = "storage", .is_of_a_type = true};

static const struct tierce__model_field name_rows[] = {
    {.kind = TIERCE__FIELD_TEXT, .path = "", .bytes = sizeof(char *)}};
static const struct tierce__fields name_fields = {
    .rows = name_rows, .count = 1, .size = sizeof(char *)};

static const struct tierce__model_field quota_rows[] = {
    TYPE(tierce__type_quota, type, "storage_type"),
    ROW(tierce__type_quota, capacity_bytes, "", "capacity", LIMITS(0, INT64_MAX)),
    ROW(tierce__type_quota, min_bytes, "", "min_bytes", OWN, LIMITS(0, INT64_MAX)),
    ROW(tierce__type_quota, max_bytes, "", "max_bytes", OWN, LIMITS(0, INT64_MAX)),
    ROW(tierce__type_quota, replicas, "", "replicas", OWN, LIMITS(0, TIERCE__REPLICAS_MAX)),
};
static const struct tierce__fields quota_fields = {TABLE(quota_rows, tierce__type_quota)};

#define T(member, ...) ROW(tierce__group_step, member, "", __VA_ARGS__)
static const struct tierce__model_field step_rows[] = {
    T(id, "id"),
    T(at_us, "at_us"),
    T(changed_us, "changed_us"),
    T(state, "state"),
    T(from, "from"),
    T(quota, "quota"),
    T(bytes, "bytes"),
    T(expected, "expected"),
    T(measured, "measured"),
    T(from_version, "from_version"),
    T(to_version, "to_version"),
    T(policy_from, "policy_from"),
    T(policy_to, "policy_to"),
    T(ttl_from_s, "ttl_from"),
    T(ttl_to_s, "ttl_to"),
};
static const struct tierce__fields step_fields = {TABLE(step_rows, tierce__group_step)};

enum { STRATEGY_MAX = 8, SHARD_BITS_MAX = 20 };

/* Requests may omit numbers; so limits include 0. */
#define COUNT          LIMITS(0, INT64_MAX)
#define COUNT32        LIMITS(0, INT32_MAX)
#define G(member, ...) ROW(tierce__group, member, "", __VA_ARGS__)
#define RECLAIM(member, ...)                                                                       \
    ROW(tierce__group, member, "cache_config.reclaim_strategy.", __VA_ARGS__)
#define INDEXER(member, ...)                                                                       \
    ROW(tierce__group, member, "cache_config.meta_indexer_config.", __VA_ARGS__)
static const struct tierce__model_field group_rows[] = {
    G(name, "name", NEEDED),
    G(global_quota_group_name, "global_quota_group_name", NEEDED),
    G(max_instance_count, "max_instance_count", COUNT),
    G(capacity_bytes, "quota.capacity", COUNT),
    G(min_bytes, "quota.min_bytes", OWN, COUNT),
    G(max_bytes, "quota.max_bytes", OWN, COUNT),
    LIST(tierce__group, type_quotas, type_quota_count, "quota.quota_config",
         .items = &quota_fields),
    RECLAIM(reclaim_storage_name, "storage_unique_name", NEEDED),
    RECLAIM(reclaim_policy, "reclaim_policy"),
    RECLAIM(trigger_used_bytes, "trigger_strategy.used_size", COUNT),
    RECLAIM(trigger_used_share, "trigger_strategy.used_percentage"),
    RECLAIM(trigger_period_s, "trigger_period_seconds", COUNT32),
    RECLAIM(reclaim_step, "reclaim_step_size", COUNT32),
    RECLAIM(reclaim_step_percentage, "reclaim_step_percentage", LIMITS(0, 100)),
    RECLAIM(delay_before_delete_ms, "delay_before_delete_ms", COUNT32),
    RECLAIM(ttl_s, "ttl_seconds", OWN),
    RECLAIM(demote, "demote", OWN, LIMITS(0, 1)),
    RECLAIM(promote_window_s, "promote_window_seconds", OWN, LIMITS(0, TIERCE__TTL_S_MAX)),
    RECLAIM(ttl_min_s, "ttl_min_seconds", OWN, LIMITS(0, TIERCE__TTL_S_MAX)),
    RECLAIM(ttl_max_s, "ttl_max_seconds", OWN, LIMITS(0, TIERCE__TTL_S_MAX)),
    ROW(tierce__group, prefer_strategy, "cache_config.", "cache_prefer_strategy", NEEDED,
        LIMITS(0, STRATEGY_MAX), .message = "cache_config.data_storage_strategy",
        .label = "data_storage_strategy (cache_prefer_strategy)"),
    INDEXER(max_key_count, "max_key_count", COUNT, .initial = INT64_MAX),
    INDEXER(mutex_shard_count, "mutex_shard_num", COUNT, .initial = 16),
    INDEXER(batch_key_count, "batch_key_size", COUNT, .initial = 16),
    INDEXER(meta_store_type, "meta_storage_backend_config.storage_type", NEEDED),
    INDEXER(meta_store_uri, "meta_storage_backend_config.storage_uri"),
    INDEXER(search_cache_type, "meta_cache_policy_config.type", NEEDED),
    INDEXER(search_cache_mib, "meta_cache_policy_config.capacity", .initial = 1024,
            LIMITS(0, INT64_MAX >> 20)),
    INDEXER(search_cache_shard_bits, "meta_cache_policy_config.cache_shard_bits", .initial = 6,
            LIMITS(0, SHARD_BITS_MAX)),
    INDEXER(search_cache_high_pri_ratio, "meta_cache_policy_config.high_pri_pool_ratio"),
    INDEXER(persist_interval_ms, "persist_metadata_interval_time_ms", COUNT, .initial = 1000,
            NO_FIELD),
    G(user_data, "user_data"),
    G(autopilot, "autopilot", OWN),
    G(autopilot_policies, "autopilot_policies", OWN),
    LIST(tierce__group, steps, step_count, "autopilot_steps", NO_FIELD, .items = &step_fields,
         .high = TIERCE__GROUP_STEPS_MAX, .flags = TIERCE__FIELD_IS_STORED),
    G(version, "version"),
    LIST(tierce__group, storage_candidates, storage_candidate_count, "storage_candidates", NEEDED,
         .items = &name_fields),
    NUMBER(tierce__group, UINT16_MAX),
};
const struct tierce__fields tierce__group_fields = {TABLE(group_rows, tierce__group),
                                                    .name = offsetof(struct tierce__group, name),
                                                    .noun = "instance group"};

static const struct tierce__model_field spec_rows[] = {
    ROW(tierce__spec_info, name, "", "name", NEEDED),
    ROW(tierce__spec_info, size, "", "size", COUNT),
};
static const struct tierce__fields spec_fields = {TABLE(spec_rows, tierce__spec_info),
                                                  .name = offsetof(struct tierce__spec_info, name),
                                                  .noun = "location_spec_infos"};

static const struct tierce__model_field spec_group_rows[] = {
    ROW(tierce__spec_group, name, "", "name"),
    LIST(tierce__spec_group, spec_names, spec_name_count, "spec_names", .items = &name_fields),
};
static const struct tierce__fields spec_group_fields = {
    TABLE(spec_group_rows, tierce__spec_group), .name = offsetof(struct tierce__spec_group, name),
    .noun = "location_spec_groups"};

#define OF_ATTENTION    .flags = TIERCE__FIELD_IS_OWN | TIERCE__FIELD_IS_SAME_IF_KNOWN
#define SAME_AND_NEEDED .flags = TIERCE__FIELD_IS_SAME | TIERCE__FIELD_IS_NEEDED
#define I(member, ...)  ROW(tierce__instance, member, "", __VA_ARGS__)
#define M(member, ...)                                                                             \
    ROW(tierce__instance, model.member, "", "model_deployment." #member, __VA_ARGS__)
static const struct tierce__model_field instance_rows[] = {
    I(quota_group_name, "quota_group_name"),
    I(group_name, "instance_group_name"),
    I(id, "instance_id", NEEDED),
    I(block_size, "block_size", SAME, COUNT32),
    I(is_kv, "is_kv", .flags = TIERCE__FIELD_IS_OWN | TIERCE__FIELD_IS_SAME, NO_FIELD),
    I(user_data, "user_data", OWN, NO_FIELD),
    LIST(tierce__instance, specs, spec_count, "location_spec_infos", SAME_AND_NEEDED,
         .items = &spec_fields),
    M(model_name, SAME_AND_NEEDED),
    M(dtype, SAME_AND_NEEDED),
    M(use_mla, SAME),
    M(tp_size, SAME, COUNT32),
    M(dp_size, SAME, COUNT32),
    M(lora_name, SAME),
    M(pp_size, SAME, COUNT32),
    M(extra, SAME),
    I(model.user_data, "model_deployment.user_data"),
    LIST(tierce__instance, spec_groups, spec_group_count, "location_spec_groups", SAME,
         .items = &spec_group_fields),
    I(attention.kind, "attention_kind", OF_ATTENTION),
    I(attention.window_tokens, "window_tokens", OF_ATTENTION, COUNT32),
    I(attention.every_tokens, "every_tokens", OF_ATTENTION, COUNT32),
    I(attention.family, "attention_family", OF_ATTENTION),
    I(attention.layers, "attention_layers", OF_ATTENTION),
    I(generation, "generation", NO_FIELD, LIMITS(0, TIERCE__GENERATION_MAX),
      .flags = TIERCE__FIELD_IS_STORED | TIERCE__FIELD_IS_CLOSED),
    NUMBER(tierce__instance, UINT32_MAX),
};

/* The order of lists that KVCM writes varies. */
static int finish_instance(void *object, struct tierce__text json, char why[256])
{
    (void)json;
    (void)why;
    tierce__instance_sort(object);
    return 0;
}

const struct tierce__fields tierce__instance_fields = {
    TABLE(instance_rows, tierce__instance), .name = offsetof(struct tierce__instance, id),
    .noun = "instance", .finish = finish_instance};

struct secret {
    char *password;
};
static const struct tierce__model_field secret_rows[] = {ROW(secret, password, "", "password")};
static const struct tierce__fields secret_fields = {TABLE(secret_rows, secret)};

/* KVCM stores plain passwords; here only their hashes are kept. */
static int finish_account(void *object, struct tierce__text json, char why[256])
{
    struct tierce__account *account = object;
    struct secret secret = {0};
    char *hash = NULL;
    if (account->password_hash[0] != '\0')
        return 0;
    int rc = tierce__model_take_json(&secret, &secret_fields, json, why);
    if (rc == 0 && secret.password[0] != '\0')
        rc = tierce__password_hash(&hash, secret.password);
    if (rc == 0 && hash != NULL) {
        tierce__free(account->password_hash);
        account->password_hash = hash;
    }
    tierce__password_free(secret.password);
    return rc;
}

static const struct tierce__model_field account_rows[] = {
    ROW(tierce__account, name, "", "user_name"),
    ROW(tierce__account, password_hash, "", "password_hash", NO_FIELD),
    ROW(tierce__account, role, "", "role", LIMITS(TIERCE__ROLE_USER, TIERCE__ROLE_ADMIN),
        .flags = TIERCE__FIELD_IS_CLOSED),
};
const struct tierce__fields tierce__account_fields = {
    TABLE(account_rows, tierce__account), .name = offsetof(struct tierce__account, name),
    .noun = "account", .finish = finish_account};

/* ---- values ---------------------------------------------------------------------------------- */

int64_t tierce__field_integer(const void *object, const struct tierce__model_field *field)
{
    TIERCE_DASSERT(field->kind != TIERCE__FIELD_DOUBLE);
    TIERCE_DASSERT(field->bytes <= sizeof(int64_t) && field->kind != TIERCE__FIELD_TEXT);
    int64_t value = 0;
    memcpy(&value, tierce__field_at(object, field), field->bytes);
    /* A type too, because a client may send a negative number. */
    bool is_signed = field->kind == TIERCE__FIELD_INT || field->kind == TIERCE__FIELD_TYPE;
    return is_signed && field->bytes == sizeof(int32_t) ? (int32_t)value : value;
}

void tierce__field_set_integer(void *object, const struct tierce__model_field *field, int64_t value)
{
    TIERCE_DASSERT(field->kind != TIERCE__FIELD_DOUBLE);
    memcpy(tierce__field_at(object, field), &value, field->bytes);
    TIERCE_DASSERT(tierce__field_integer(object, field) == value);
}

size_t tierce__field_list_max(const struct tierce__model_field *field)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    TIERCE_DASSERT(field->high >= 0);
    return field->high > 0 ? (size_t)field->high : UINT16_MAX;
}

uint32_t tierce__model_types(const void *object, const struct tierce__fields *fields)
{
    TIERCE_DASSERT(!fields->is_of_a_type || fields->rows[0].kind == TIERCE__FIELD_TYPE);
    return fields->is_of_a_type
               ? tierce__storage_type_bit(
                     (enum tierce__storage_type)tierce__field_integer(object, &fields->rows[0]))
               : UINT32_MAX;
}

/* ---- objects --------------------------------------------------------------------------------- */

void tierce__model_start(void *object, const struct tierce__fields *fields)
{
    static char none[] = "";
    memset(object, 0, fields->size);
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        TIERCE_DASSERT(field->offset + field->bytes <= fields->size);
        if (field->kind == TIERCE__FIELD_TEXT)
            *tierce__field_text(object, field) = none;
        else if (field->initial != 0)
            tierce__field_set_integer(object, field, field->initial);
    }
}

static int own(void *object, const struct tierce__fields *fields, int rc);

/* Replaces the list of a shallow copy by a copy; by an empty one if rc is an error. */
static int own_list(void *object, const struct tierce__model_field *field, int rc)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    char **list = tierce__field_at(object, field);
    size_t size = field->items->size, count = *tierce__field_count(object, field);
    const char *in = *list;
    *list = rc == 0 ? tierce__calloc(count, size) : NULL;
    *tierce__field_count(object, field) = 0;
    if (*list == NULL)
        return rc != 0 ? rc : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        memcpy(*list + i * size, in + i * size, size);
        *tierce__field_count(object, field) = i + 1;
        rc = own(*list + i * size, field->items, 0);
    }
    return rc;
}

/* Replaces what a shallow copy borrows by copies. On an error the rest becomes NULL. */
static int own(void *object, const struct tierce__fields *fields, int rc)
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        if (tierce__field_is_list(field)) {
            TIERCE_DASSERT(field->items->size > 0);
            rc = own_list(object, field, rc);
        } else if (field->kind == TIERCE__FIELD_TEXT) {
            char **text = tierce__field_text(object, field);
            *text = rc == 0 ? tierce__strdup(*text != NULL ? *text : "") : NULL;
            if (*text == NULL && rc == 0)
                rc = -ENOMEM;
        }
    }
    return rc;
}

int tierce__model_copy(void *out, const void *in, const struct tierce__fields *fields)
{
    union tierce__entry copy;
    TIERCE_ASSERT(fields->size <= sizeof(copy));
    memcpy(&copy, in, fields->size);
    int rc = own(&copy, fields, 0);
    if (rc == 0)
        memcpy(out, &copy, fields->size);
    else
        tierce__model_clear(&copy, fields);
    return rc;
}

void tierce__model_clear_list(void *object, const struct tierce__model_field *field)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    char **list = tierce__field_at(object, field);
    size_t *count = tierce__field_count(object, field);
    for (size_t i = 0; *list != NULL && i < *count; i++)
        tierce__model_clear(tierce__field_item(object, field, i), field->items);
    tierce__free(*list);
    *list = NULL;
    *count = 0;
}

void tierce__model_clear(void *object, const struct tierce__fields *fields)
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        if (tierce__field_is_list(field))
            tierce__model_clear_list(object, field);
        else if (field->kind == TIERCE__FIELD_TEXT)
            tierce__free(*tierce__field_text(object, field));
    }
    memset(object, 0, fields->size);
}

static bool is_same_list(const void *a, const void *b, const struct tierce__model_field *field)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    size_t count = *tierce__field_count(a, field);
    if (*tierce__field_count(b, field) != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (tierce__model_difference(tierce__field_item(a, field, i),
                                     tierce__field_item(b, field, i), field->items, 0) != NULL)
            return false;
    return true;
}

const struct tierce__model_field *tierce__model_difference(const void *a, const void *b,
                                                           const struct tierce__fields *fields,
                                                           unsigned flags)
{
    for (size_t i = 0; i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        bool is_same;
        if ((field->flags & flags) != flags)
            continue;
        if (tierce__field_is_list(field))
            is_same = is_same_list(a, b, field);
        else if (field->kind == TIERCE__FIELD_TEXT)
            is_same = strcmp(*tierce__field_text(a, field), *tierce__field_text(b, field)) == 0;
        else
            is_same =
                memcmp(tierce__field_at(a, field), tierce__field_at(b, field), field->bytes) == 0;
        if (!is_same)
            return field;
    }
    return NULL;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* An object that is checked, as messages name it. */
struct subject {
    const char *noun, *name;
    const char *list; /* that contains it; or "" */
    char *why;
};

static int complain(const struct subject *subject, const struct tierce__model_field *field,
                    int64_t value)
{
    char accepted[80];
    bool is_open = field->high == INT32_MAX || field->high == INT64_MAX;
    TIERCE_DASSERT(field->low <= field->high);
    snprintf(accepted, sizeof(accepted), is_open ? "numbers from %lld on" : "%lld to %lld",
             (long long)field->low, (long long)field->high);
    snprintf(subject->why, 256, "%s%s of %s %.60s is %lld; accepted are %s", subject->list,
             field->label != NULL ? field->label : field->path + field->head, subject->noun,
             subject->name, (long long)value, accepted);
    return TIERCE_E_ARGUMENT;
}

/* One such value would make the whole registry unreadable. */
static int complain_unreadable(const struct subject *subject)
{
    snprintf(subject->why, 256, "%s: holds a string that is not UTF-8", subject->noun);
    return TIERCE_E_ARGUMENT;
}

/* Such a list could not be read back either. */
static int complain_long(const struct subject *subject, const struct tierce__model_field *field,
                         size_t count)
{
    TIERCE_DASSERT(count > tierce__field_list_max(field));
    snprintf(subject->why, 256, "%s%s of %s %.60s has %zu entries; accepted are up to %zu",
             subject->list, field->path, subject->noun, subject->name, count,
             tierce__field_list_max(field));
    return TIERCE_E_ARGUMENT;
}

static int check(const void *object, const struct tierce__fields *fields,
                 const struct subject *outer);

static int check_list(const void *object, const struct tierce__model_field *field,
                      const struct subject *outer)
{
    TIERCE_DASSERT(tierce__field_is_list(field));
    char list[64];
    struct subject subject = *outer;
    size_t count = *tierce__field_count(object, field);
    if (count > tierce__field_list_max(field))
        return complain_long(outer, field, count);
    snprintf(list, sizeof(list), "%s.",
             strrchr(field->path, '.') != NULL ? strrchr(field->path, '.') + 1 : field->path);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const void *item = tierce__field_item(object, field, i);
        if (field->items->noun == NULL) {
            subject.list = list;
        } else {
            subject.noun = field->items->noun;
            subject.name = *(char *const *)(const void *)((const char *)item + field->items->name);
        }
        rc = check(item, field->items, &subject);
    }
    return rc;
}

static int check(const void *object, const struct tierce__fields *fields,
                 const struct subject *subject)
{
    uint32_t types = tierce__model_types(object, fields);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < fields->count; i++) {
        const struct tierce__model_field *field = &fields->rows[i];
        if (!tierce__field_is_of(field, types))
            continue;
        if (tierce__field_is_list(field)) {
            rc = check_list(object, field, subject);
        } else if (field->kind == TIERCE__FIELD_TEXT) {
            const char *text = *tierce__field_text(object, field);
            rc = tierce__is_utf8(text, strlen(text)) ? 0 : complain_unreadable(subject);
        } else if (field->kind == TIERCE__FIELD_DOUBLE) {
            double number;
            memcpy(&number, tierce__field_at(object, field), sizeof(number));
            rc = isfinite(number) ? 0 : complain_unreadable(subject);
        } else if (field->low != field->high && (field->flags & TIERCE__FIELD_IS_STORED) == 0) {
            int64_t value = tierce__field_integer(object, field);
            rc = value >= field->low && value <= field->high ? 0 : complain(subject, field, value);
        }
    }
    return rc;
}

int tierce__model_check(const void *object, const struct tierce__fields *fields, char why[256])
{
    TIERCE_DASSERT(fields->noun != NULL);
    const char *name = *(char *const *)(const void *)((const char *)object + fields->name);
    return check(object, fields,
                 &(struct subject){.noun = fields->noun, .name = name, .list = "", .why = why});
}
