/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/registry_rules.h"
#include "base/alloc.h"
#include "manager/registry/model_json.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_BYTES_MAX = 512,
    ROOT_BYTES_MAX = 2048, /* with its suffix it is a path of a file system */
    FILE_NAME_BYTES_MAX = 255,
    SPECS_MAX = 65535,
};

/* All parts of a block: sums of many, and offsets in a file of as many slots as there may be, stay
 * below 2^63. */
#define BLOCK_BYTES_MAX (INT64_MAX / TIERCE__PLACES_SLOTS_MAX)

static int complain(char why[256], const char *what, const char *expected)
{
    snprintf(why, 256, "%s: %s", what, expected);
    return TIERCE_E_ARGUMENT;
}

/* A name is not empty, not long, and has no control characters, nor any of `without`. */
static int check_name(const char *name, const char *what, const char *without, char why[256])
{
    size_t n = strlen(name);
    if (n == 0)
        return complain(why, what, "is empty");
    if (n > NAME_BYTES_MAX)
        return complain(why, what, "has more than 512 bytes");
    for (const char *p = name; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f || strchr(without, *p) != NULL)
            return complain(why, what, "has an invalid character");
    return 0;
}

/* Rejects values that cannot be read back (invalid UTF-8, NaN): one such value would make the whole
 * registry unreadable. */
static int check_readable(struct json_object *json, const char *what, char why[256])
{
    struct json_object *again = NULL;
    char inner[256];
    char *text = tierce__model_print(json);
    if (text == NULL)
        return -ENOMEM;
    int rc = tierce__model_parse(&again, text, strlen(text), inner);
    json_object_put(again);
    tierce__free(text);
    return rc == TIERCE_E_FORMAT ? complain(why, what, "has a text that is not UTF-8") : rc;
}

static bool has_files(const struct tierce__storage *storage)
{
    return storage->type == TIERCE__STORAGE_NFS || storage->type == TIERCE__STORAGE_3FS ||
           storage->type == TIERCE__STORAGE_VCNS_3FS;
}

/* A number: its field, its value, and the accepted range. */
struct number {
    const char *field;
    int64_t value, low, high; /* accepted */
};

static int check_numbers(const struct number *numbers, size_t count, const char *what,
                         const char *name, char why[256])
{
    for (size_t i = 0; i < count; i++) {
        const struct number *n = &numbers[i];
        if (n->value >= n->low && n->value <= n->high)
            continue;
        if (n->high == INT64_MAX || n->high == INT32_MAX)
            snprintf(why, 256, "%s of %s %.60s is %lld; accepted are numbers from %lld on",
                     n->field, what, name, (long long)n->value, (long long)n->low);
        else
            snprintf(why, 256, "%s of %s %.60s is %lld; accepted are %lld to %lld", n->field, what,
                     name, (long long)n->value, (long long)n->low, (long long)n->high);
        return TIERCE_E_ARGUMENT;
    }
    return 0;
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* An absolute path that does not go up. */
static int check_root(const char *path, const char *what, char why[256])
{
    if (path[0] != '/')
        return complain(why, what, "is not an absolute path");
    if (strlen(path) > ROOT_BYTES_MAX)
        return complain(why, what, "has more than 2048 bytes");
    for (const char *p = path; *p != '\0';) {
        size_t n = strcspn(p, "/");
        if (n > FILE_NAME_BYTES_MAX)
            return complain(why, what, "has a folder whose name has more than 255 bytes");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return complain(why, what, "has .. in it");
        p += n + (p[n] == '/');
    }
    return strpbrk(path, "?#") != NULL ? complain(why, what, "has ? or # in it") : 0;
}

static int check_files(struct tierce__storage *storage, char why[256])
{
    if (storage->key_count_per_file == 0)
        storage->key_count_per_file = 1;
    const struct number number = {"key_count_per_file", storage->key_count_per_file, 1,
                                  TIERCE__PLACES_SLOTS_MAX};
    int bad = check_numbers(&number, 1, "storage", storage->name, why);
    if (bad != 0)
        return bad;
    if (storage->type == TIERCE__STORAGE_NFS)
        return check_root(storage->root_path, "root_path", why);
    int rc = check_root(storage->mountpoint, "mountpoint", why);
    char *root = rc == 0 ? tierce__storage_root(storage) : NULL;
    if (rc == 0)
        rc = root != NULL ? check_root(root, "root_dir", why) : -ENOMEM;
    tierce__free(root);
    return rc;
}

int tierce__storage_check(struct tierce__storage *storage, char why[256])
{
    struct json_object *json = NULL;
    /* It is the host of URIs. */
    int rc = check_name(storage->name, "global_unique_name", "/?#&= \\", why);
    if (rc == 0 && *tierce__storage_type_name(storage->type) == '\0')
        rc = complain(why, "type", "is not known");
    const struct number numbers[] = {
        {"capacity_bytes", (int64_t)storage->capacity_bytes, 0, INT64_MAX},
        {"timeout", storage->timeout, 0, INT32_MAX},
        {"remote_port", storage->remote_port, 0, UINT16_MAX},
    };
    if (rc == 0)
        rc = check_numbers(numbers, COUNT_OF(numbers), "storage", storage->name, why);
    if (rc == 0 && has_files(storage))
        rc = check_files(storage, why);
    else if (rc == 0)
        storage->key_count_per_file = 1;
    if (rc == 0)
        rc = tierce__storage_to_json(&json, storage, TIERCE__JSON_STORED);
    if (rc == 0)
        rc = check_readable(json, "storage", why);
    json_object_put(json);
    return rc;
}

/* A watermark of 0 is the default. */
static int check_watermark(const struct tierce__group *group, char why[256])
{
    double share = group->trigger_used_share;
    if (share >= 0 && share <= 1)
        return 0;
    snprintf(why, 256,
             "used_percentage of instance group %.60s is %g; accepted are shares "
             "of the quota from 0 to 1 (0: 0.8), above which blocks are reclaimed",
             group->name, share);
    return TIERCE_E_ARGUMENT;
}

/* -1 means none; it is stored as 0. */
static int check_ttl(struct tierce__group *group, char why[256])
{
    if (group->ttl_s < -1 || group->ttl_s > TIERCE__TTL_S_MAX) {
        snprintf(why, 256,
                 "ttl_seconds of instance group %.60s is %lld; accepted are 1 to %lld, 0 for the "
                 "default time and -1 for none",
                 group->name, (long long)group->ttl_s, (long long)TIERCE__TTL_S_MAX);
        return TIERCE_E_ARGUMENT;
    }
    if (group->ttl_s == -1)
        group->ttl_s = 0;
    return 0;
}

static int check_quota_type(const struct tierce__group *group, enum tierce__storage_type type,
                            char why[256])
{
    if (*tierce__storage_type_name(type) != '\0')
        return 0;
    snprintf(why, 256,
             "quota_config.storage_type of instance group %.60s is %d; accepted are 1 to 5 and 100 "
             "to 102",
             group->name, (int)type);
    return TIERCE_E_ARGUMENT;
}

/* 0 is KVCM's "unspecified": as LRU. */
static int check_policy(const struct tierce__group *group, char why[256])
{
    switch (group->reclaim_policy) {
    case 0:
    case TIERCE__RECLAIM_LRU:
    case TIERCE__RECLAIM_LFU:
    case TIERCE__RECLAIM_TTL:
    case TIERCE__RECLAIM_LEAF_LRU:
        return 0;
    default:
        snprintf(why, 256,
                 "reclaim_policy of instance group %.60s is %d; accepted are 1 (LRU), 2 (LFU), "
                 "3 (TTL) and 100 (LRU, ends of chains only)",
                 group->name, group->reclaim_policy);
        return TIERCE_E_ARGUMENT;
    }
}

/* Missing numbers are 0, which every field accepts. */
static int check_group_numbers(const struct tierce__group *group, char why[256])
{
    enum { STRATEGIES = 8, SHARD_BITS_MAX = 20 };
    const struct number numbers[] = {
        {"max_instance_count", group->max_instance_count, 0, INT64_MAX},
        {"quota.capacity", group->capacity_bytes, 0, INT64_MAX},
        {"trigger_strategy.used_size", group->trigger_used_bytes, 0, INT64_MAX},
        {"trigger_period_seconds", group->trigger_period_s, 0, INT32_MAX},
        {"reclaim_step_size", group->reclaim_step, 0, INT32_MAX},
        {"reclaim_step_percentage", group->reclaim_step_percentage, 0, 100},
        {"delay_before_delete_ms", group->delay_before_delete_ms, 0, INT32_MAX},
        {"data_storage_strategy (cache_prefer_strategy)", group->prefer_strategy, 0, STRATEGIES},
        {"max_key_count", group->max_key_count, 0, INT64_MAX},
        {"mutex_shard_num", group->mutex_shard_count, 0, INT64_MAX},
        {"batch_key_size", group->batch_key_count, 0, INT64_MAX},
        {"persist_metadata_interval_time_ms", group->persist_interval_ms, 0, INT64_MAX},
        {"meta_cache_policy_config.capacity", group->search_cache_mib, 0, INT64_MAX >> 20},
        {"meta_cache_policy_config.cache_shard_bits", group->search_cache_shard_bits, 0,
         SHARD_BITS_MAX},
    };
    int rc = check_numbers(numbers, COUNT_OF(numbers), "instance group", group->name, why);
    for (size_t i = 0; rc == 0 && i < group->type_quota_count; i++) {
        const struct number quota = {"quota_config.capacity", group->type_quotas[i].capacity_bytes,
                                     0, INT64_MAX};
        rc = check_numbers(&quota, 1, "instance group", group->name, why);
    }
    return rc;
}

int tierce__group_check(struct tierce__group *group, char why[256])
{
    struct json_object *json = NULL;
    int rc = check_name(group->name, "name", "", why);
    for (size_t i = 0; rc == 0 && i < group->type_quota_count; i++)
        rc = check_quota_type(group, group->type_quotas[i].type, why);
    if (rc == 0)
        rc = check_policy(group, why);
    if (rc == 0)
        rc = check_group_numbers(group, why);
    if (rc == 0)
        rc = check_watermark(group, why);
    if (rc == 0)
        rc = check_ttl(group, why);
    if (rc == 0)
        rc = tierce__group_to_json(&json, group, TIERCE__JSON_STORED);
    if (rc == 0)
        rc = check_readable(json, "instance group", why);
    json_object_put(json);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* `names`: room for the names of all specs; sorted on return. */
static int check_specs(const struct tierce__instance *instance, const char **names, char why[256])
{
    const char *what = "location_spec_infos";
    int64_t left = BLOCK_BYTES_MAX;
    for (size_t i = 0; i < instance->spec_count; i++) {
        int rc = check_name(instance->specs[i].name, what, "", why);
        if (rc != 0)
            return rc;
        const struct number size = {"size", instance->specs[i].size, 0, INT64_MAX};
        rc = check_numbers(&size, 1, "location_spec_infos", instance->specs[i].name, why);
        if (rc != 0)
            return rc;
        if (instance->specs[i].size > left)
            return complain(why, what, "have a total size of more than 2^47 bytes");
        left -= instance->specs[i].size;
        names[i] = instance->specs[i].name;
    }
    qsort(names, instance->spec_count, sizeof(*names), compare_names);
    for (size_t i = 1; i < instance->spec_count; i++)
        if (strcmp(names[i], names[i - 1]) == 0)
            return complain(why, what, "have a name twice");
    return 0;
}

static int check_spec_groups(const struct tierce__instance *instance, const char **names,
                             char why[256])
{
    const char *what = "location_spec_groups";
    for (size_t i = 0; i < instance->spec_group_count; i++) {
        const struct tierce__spec_group *group = &instance->spec_groups[i];
        /* They are sorted. */
        if (i > 0 && strcmp(group->name, instance->spec_groups[i - 1].name) == 0)
            return complain(why, what, "have a name twice");
        for (size_t n = 0; n < group->spec_name_count; n++) {
            if (bsearch(&group->spec_names[n], names, instance->spec_count, sizeof(*names),
                        compare_names) == NULL)
                return complain(why, what, "name a spec that is not in location_spec_infos");
            if (n > 0 && strcmp(group->spec_names[n], group->spec_names[n - 1]) == 0)
                return complain(why, what, "name a spec twice");
        }
    }
    return 0;
}

/* The cost is that of sorting, because the registry is locked meanwhile. */
static int check_names(const struct tierce__instance *instance, char why[256])
{
    if (instance->spec_count > SPECS_MAX)
        return complain(why, "location_spec_infos", "are more than 65535");
    const char **names = tierce__alloc((instance->spec_count + 1) * sizeof(*names));
    if (names == NULL)
        return -ENOMEM;
    int rc = check_specs(instance, names, why);
    if (rc == 0)
        rc = check_spec_groups(instance, names, why);
    tierce__free(names);
    return rc;
}

int tierce__instance_check(struct tierce__instance *instance, char why[256])
{
    struct json_object *json = NULL;
    tierce__instance_sort(instance);
    int rc = check_name(instance->id, "instance_id", "", why);
    const struct number numbers[] = {
        {"block_size", instance->block_size, 0, INT32_MAX},
        {"model_deployment.tp_size", instance->model.tp_size, 0, INT32_MAX},
        {"model_deployment.dp_size", instance->model.dp_size, 0, INT32_MAX},
        {"model_deployment.pp_size", instance->model.pp_size, 0, INT32_MAX},
    };
    if (rc == 0)
        rc = check_numbers(numbers, COUNT_OF(numbers), "instance", instance->id, why);
    if (rc == 0)
        rc = check_names(instance, why);
    if (rc == 0)
        rc = tierce__instance_to_json(&json, instance, TIERCE__JSON_STORED);
    if (rc == 0)
        rc = check_readable(json, "instance", why);
    json_object_put(json);
    return rc;
}

int tierce__account_check(struct tierce__account *account, char why[256])
{
    struct json_object *json = NULL;
    /* HTTP's basic credentials end a name at a colon. */
    int rc = check_name(account->name, "user_name", ":", why);
    if (rc == 0 && account->role != TIERCE__ROLE_USER && account->role != TIERCE__ROLE_ADMIN)
        rc = complain(why, "role", "is not known");
    if (rc == 0)
        rc = tierce__account_to_json(&json, account);
    if (rc == 0)
        rc = check_readable(json, "account", why);
    json_object_put(json);
    return rc;
}
