/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/registry_rules.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_BYTES_MAX = 512,
    ROOT_BYTES_MAX = 2048, /* with its suffix it is a path of a file system */
    FILE_NAME_BYTES_MAX = 255,
    SPECS_MAX = 65535,
    INSTANCE_BYTES_MAX = 2 << 20, /* as JSON */
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
        return complain(why, what, "the name is empty");
    if (n > NAME_BYTES_MAX)
        return complain(why, what, "the name exceeds 512 bytes");
    for (const char *p = name; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f || strchr(without, *p) != NULL) {
            snprintf(why, 256,
                     "%s: the name contains an invalid character at position %zu; it must have no "
                     "control characters%s%s",
                     what, (size_t)(p - name) + 1, without[0] != '\0' ? " and none of " : "",
                     without);
            return TIERCE_E_ARGUMENT;
        }
    return 0;
}

static bool has_files(const struct tierce__storage *storage)
{
    enum tierce__storage_type type = tierce__storage_type_quota(storage->type);
    return type == TIERCE__STORAGE_NFS || type == TIERCE__STORAGE_3FS;
}

/* An absolute path that does not go up. */
static int check_root(const char *path, const char *what, char why[256])
{
    if (path[0] != '/')
        return complain(why, what, "must be an absolute path");
    if (strlen(path) > ROOT_BYTES_MAX)
        return complain(why, what, "must not exceed 2048 bytes");
    for (const char *p = path; *p != '\0';) {
        size_t n = strcspn(p, "/");
        if (n > FILE_NAME_BYTES_MAX)
            return complain(why, what, "folder names must not exceed 255 bytes");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return complain(why, what, "must not contain ..");
        p += n + (p[n] == '/');
    }
    return strpbrk(path, "?#") != NULL ? complain(why, what, "must not contain ? or #") : 0;
}

static int check_files(const struct tierce__storage *storage, char why[256])
{
    if (storage->type == TIERCE__STORAGE_NFS)
        return check_root(storage->root_path, "root_path", why);
    int rc = check_root(storage->mountpoint, "mountpoint", why);
    char *root = rc == 0 ? tierce__storage_root(storage) : NULL;
    if (rc == 0)
        rc = root != NULL ? check_root(root, "root_dir", why) : -ENOMEM;
    tierce__free(root);
    return rc;
}

/* A watermark is a share of the storage's own capacity, without which it would limit nothing. */
static int check_storage_watermark(const struct tierce__storage *storage, char why[256])
{
    bool is_in_range = storage->watermark_percent > 0 &&
                       storage->watermark_percent <= TIERCE__WATERMARK_PERCENT_MAX;
    if (!is_in_range || storage->capacity_bytes > 0) /* other values are rejected by their limits */
        return 0;
    snprintf(why, 256,
             "watermark_percent of storage %.60s is %d, but capacity_bytes is 0; a watermark is a "
             "percentage of capacity_bytes, so set both or none",
             storage->name, (int)storage->watermark_percent);
    return TIERCE_E_ARGUMENT;
}

static int check_storage(void *entry, char why[256])
{
    struct tierce__storage *storage = entry;
    if (storage->key_count_per_file == 0 || !has_files(storage))
        storage->key_count_per_file = 1;
    /* The name is the host of URIs. */
    int rc = check_name(storage->name, "global_unique_name", "/?#&= \\", why);
    if (rc == 0 && *tierce__storage_type_name(storage->type) == '\0')
        rc = complain(why, "type", "unknown storage type");
    TIERCE_DASSERT(storage->key_count_per_file != 0);
    if (rc == 0)
        rc = check_storage_watermark(storage, why);
    return rc == 0 && has_files(storage) ? check_files(storage, why) : rc;
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

/* "default" means no mode of its own. */
static int check_autopilot(struct tierce__group *group, char why[256])
{
    static const char *const modes[] = {"", "off", "advise", "act"};
    if (strcmp(group->autopilot, "default") == 0)
        group->autopilot[0] = '\0';
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(group->autopilot, modes[i]) == 0)
            return 0;
    }
    snprintf(why, 256,
             "autopilot of instance group %.60s is \"%.40s\"; accepted are off, advise, act and "
             "default",
             group->name, group->autopilot);
    return TIERCE_E_ARGUMENT;
}

/* "none" is stored as "". */
static int check_policies(struct tierce__group *group, char why[256])
{
    int32_t policies[TIERCE__POLICY_NAMES_MAX];
    if (strcmp(group->autopilot_policies, "none") == 0)
        group->autopilot_policies[0] = '\0';
    if (tierce__policies_of(group->autopilot_policies, policies) >= 0)
        return 0;
    snprintf(why, 256,
             "autopilot_policies of instance group %.60s is \"%.40s\"; accepted are lru, lfu and "
             "leaf_lru, separated by commas, and none",
             group->name, group->autopilot_policies);
    return TIERCE_E_ARGUMENT;
}

static int check_ttl_bounds(struct tierce__group *group, char why[256])
{
    int64_t *least = &group->ttl_min_s, *most = &group->ttl_max_s;
    *least = *least == -1 ? 0 : *least;
    *most = *most == -1 ? 0 : *most;
    if (*least == 0 || *most == 0 || *least <= *most)
        return 0;
    snprintf(why, 256,
             "ttl_min_seconds of instance group %.60s is %lld, and ttl_max_seconds %lld; "
             "ttl_min_seconds must not be larger (0: as before, -1: none)",
             group->name, (long long)*least, (long long)*most);
    return TIERCE_E_ARGUMENT;
}

/* -1 means none; it is stored as 0. A quota that is set may lie outside its bounds: the autopilot
 * then only moves it towards them. */
static int check_bounds(const char *name, int64_t *least, int64_t *most, char why[256])
{
    *least = *least == -1 ? 0 : *least;
    *most = *most == -1 ? 0 : *most;
    if (*least < 0 || *most < 0 || *most == 0 || *least <= *most)
        return 0; /* negative ones are rejected by their limits */
    snprintf(why, 256,
             "min_bytes of instance group %.60s is %lld, and max_bytes %lld; min_bytes must not be "
             "larger (0: as before, -1: none)",
             name, (long long)*least, (long long)*most);
    return TIERCE_E_ARGUMENT;
}

static int check_pilot(struct tierce__group *group, char why[256])
{
    int rc = check_autopilot(group, why);
    if (rc == 0)
        rc = check_policies(group, why);
    if (rc == 0)
        rc = check_ttl_bounds(group, why);
    if (rc == 0)
        rc = check_bounds(group->name, &group->min_bytes, &group->max_bytes, why);
    for (size_t i = 0; rc == 0 && i < group->type_quota_count; i++)
        rc = check_bounds(group->name, &group->type_quotas[i].min_bytes,
                          &group->type_quotas[i].max_bytes, why);
    return rc;
}

/* -1 means none; it is stored as 0. Other numbers below 0 are rejected by their limits. */
static void settle_rules(struct tierce__group *group)
{
    group->demote = group->demote == -1 ? 0 : group->demote;
    group->promote_window_s = group->promote_window_s == -1 ? 0 : group->promote_window_s;
    for (size_t i = 0; i < group->type_quota_count; i++)
        group->type_quotas[i].replicas =
            group->type_quotas[i].replicas == -1 ? 0 : group->type_quotas[i].replicas;
}

static int check_group(void *entry, char why[256])
{
    struct tierce__group *group = entry;
    int rc = check_name(group->name, "name", "", why);
    for (size_t i = 0; rc == 0 && i < group->type_quota_count; i++)
        rc = check_quota_type(group, group->type_quotas[i].type, why);
    if (rc == 0)
        rc = check_policy(group, why);
    if (rc == 0)
        rc = check_watermark(group, why);
    if (rc == 0)
        rc = check_pilot(group, why);
    settle_rules(group);
    return rc == 0 ? check_ttl(group, why) : rc;
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
        if (instance->specs[i].size > left)
            return complain(why, what, "the total size exceeds 2^47 bytes");
        if (instance->specs[i].size > 0) /* limits are checked later */
            left -= instance->specs[i].size;
        TIERCE_DASSERT(left >= 0);
        names[i] = instance->specs[i].name;
    }
    qsort(names, instance->spec_count, sizeof(*names), compare_names);
    for (size_t i = 1; i < instance->spec_count; i++)
        if (strcmp(names[i], names[i - 1]) == 0)
            return complain(why, what, "two specs have the same name");
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
            return complain(why, what, "two groups have the same name");
        for (size_t n = 0; n < group->spec_name_count; n++) {
            TIERCE_DASSERT(instance->spec_count == 0 || i == 0 ||
                           strcmp(group->name, instance->spec_groups[i - 1].name) > 0);
            if (bsearch(&group->spec_names[n], names, instance->spec_count, sizeof(*names),
                        compare_names) == NULL)
                return complain(why, what,
                                "a group lists a spec that is not in location_spec_infos");
            if (n > 0 && strcmp(group->spec_names[n], group->spec_names[n - 1]) == 0)
                return complain(why, what, "a group lists a spec twice");
        }
    }
    return 0;
}

/* The cost is that of sorting, because the registry is locked meanwhile. */
static int check_names(const struct tierce__instance *instance, char why[256])
{
    if (instance->spec_count > SPECS_MAX)
        return complain(why, "location_spec_infos", "more than 65535 entries");
    const char **names = tierce__alloc((instance->spec_count + 1) * sizeof(*names));
    if (names == NULL)
        return -ENOMEM;
    int rc = check_specs(instance, names, why);
    if (rc == 0)
        rc = check_spec_groups(instance, names, why);
    tierce__free(names);
    return rc;
}

/* A kind that this version does not know would be reclaimed by another rule in each version. */
static int check_attention(const struct tierce__instance *instance, char why[256])
{
    const struct tierce__attention *attention = &instance->attention;
    static const char *const kinds[] = {"", "all", "full", "window", "chunked", "linear"};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    size_t kind = 0;
    while (kind < KINDS && strcmp(kinds[kind], attention->kind) != 0)
        kind++;
    if (kind == KINDS) {
        snprintf(why, 256,
                 "attention_kind of instance %.60s is %.40s; accepted are all, full, window, "
                 "chunked, linear and nothing",
                 instance->id, attention->kind);
        return TIERCE_E_ARGUMENT;
    }
    bool has_window =
        strcmp(attention->kind, "window") == 0 || strcmp(attention->kind, "chunked") == 0;
    if (has_window != (attention->window_tokens > 0))
        return complain(why, "window_tokens",
                        has_window ? "window and chunked attention need it"
                                   : "only window and chunked attention have it");
    if (attention->every_tokens > 0 && strcmp(attention->kind, "linear") != 0)
        return complain(why, "every_tokens", "only linear attention has it");
    if (attention->family[0] != '\0' && attention->kind[0] == '\0')
        return complain(why, "attention_family", "it needs an attention_kind");
    return 0;
}

/* So that a few instances do not fill the registry. */
static int check_bytes(const struct tierce__instance *instance, char why[256])
{
    char *text = NULL;
    int rc = tierce__model_to_json(&text, instance, tierce__catalog_fields(TIERCE__KIND_INSTANCE),
                                   TIERCE__JSON_STORED);
    size_t bytes = rc == 0 ? strlen(text) : 0;
    tierce__free(text);
    if (bytes <= INSTANCE_BYTES_MAX)
        return rc;
    snprintf(why, 256,
             "instance %.100s has %zu bytes as JSON, of at most %d; register it with fewer or "
             "shorter names of specs, and shorter texts",
             instance->id, bytes, INSTANCE_BYTES_MAX);
    return TIERCE_E_ARGUMENT;
}

static int check_instance(void *entry, char why[256])
{
    struct tierce__instance *instance = entry;
    tierce__instance_sort(instance);
    int rc = check_name(instance->id, "instance_id", "", why);
    if (rc == 0)
        rc = check_attention(instance, why);
    if (rc == 0)
        rc = check_names(instance, why);
    return rc == 0 ? check_bytes(instance, why) : rc;
}

static int check_account(void *entry, char why[256])
{
    /* HTTP's basic credentials end a name at a colon. */
    return check_name(((struct tierce__account *)entry)->name, "user_name", ":", why);
}

int tierce__entry_check(enum tierce__registry_kind kind, void *entry, char why[256])
{
    TIERCE_ASSERT(kind < TIERCE__KINDS);
    static int (*const rules[TIERCE__KINDS])(void *entry, char *why) = {
        [TIERCE__KIND_STORAGE] = check_storage,
        [TIERCE__KIND_GROUP] = check_group,
        [TIERCE__KIND_INSTANCE] = check_instance,
        [TIERCE__KIND_ACCOUNT] = check_account,
    };
    int rc = rules[kind](entry, why);
    return rc == 0 ? tierce__model_check(entry, tierce__catalog_fields(kind), why) : rc;
}
