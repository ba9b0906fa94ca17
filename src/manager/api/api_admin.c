/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_model.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/registry/registry_rules.h"
#include "manager/storage/nodes.h"
#include "manager/storage/unmanaged.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Storages, groups, instances, accounts, snapshots: a function for each RPC of the admin service
 * that changes or shows them. The others are in api_cluster.c. */

#define OK             META__ERROR_CODE__OK
#define INTERNAL_ERROR META__ERROR_CODE__INTERNAL_ERROR

/* Sets the status of a change: like KVCM's admin service, INTERNAL_ERROR for every failure. */
static void say(struct tierce__api_call *api, int rc, const char *done, const char *doing)
{
    if (rc >= 0)
        tierce__api_say(api, OK, "%s", done);
    else if (rc == -ENOENT) /* not instances */
        tierce__api_say(api, INTERNAL_ERROR, "Failed to %s: %s", doing, api->why);
    else
        tierce__api_fail(api, rc, doing);
}

/* The same for a valid change whose limit has no effect: the reply and the log have a warning. */
static void say_warned(struct tierce__api_call *api, int rc, const char *done, const char *doing,
                       const char *warning)
{
    if (rc < 0 || warning[0] == '\0') {
        say(api, rc, done, doing);
        return;
    }
    tierce__log(TIERCE_LOG_WARN, "manager.quota_unmanaged", "%s", warning);
    tierce__api_say(api, OK, "%s; warning: %s", done, warning);
}

/* A message that shows an entry. NULL: no memory. */
static void *show(struct tierce__api_call *api, enum tierce__registry_kind kind, const void *entry)
{
    switch (kind) {
    case TIERCE__KIND_STORAGE:
        return tierce__api_show_storage(api, entry);
    case TIERCE__KIND_GROUP:
        return tierce__api_show_group(api, entry);
    case TIERCE__KIND_INSTANCE:
        return tierce__api_show(api, &admin__instance_info__descriptor, &tierce__instance_fields,
                                entry);
    case TIERCE__KIND_ACCOUNT:
    case TIERCE__KINDS:
        break;
    }
    TIERCE_ASSERT(kind == TIERCE__KIND_ACCOUNT);
    return tierce__api_show(api, &admin__account__descriptor, &tierce__account_fields, entry);
}

/* Whether the caller's scope holds an entry. */
static bool is_seen(const struct tierce__api_call *api, const struct tierce__catalog *catalog,
                    enum tierce__registry_kind kind, const void *entry)
{
    const struct tierce__grant *grant = api->caller->grant;
    const struct tierce__instance *instance = entry;
    switch (kind) {
    case TIERCE__KIND_STORAGE:
        return tierce__grant_has_storage(grant, catalog, tierce__entry_name(entry, kind));
    case TIERCE__KIND_GROUP:
        return tierce__grant_has_group(grant, tierce__entry_name(entry, kind));
    case TIERCE__KIND_INSTANCE:
        return tierce__grant_has_instance(grant, instance->group_name, instance->id);
    case TIERCE__KIND_ACCOUNT:
    case TIERCE__KINDS:
        break;
    }
    TIERCE_ASSERT(kind == TIERCE__KIND_ACCOUNT);
    return tierce__grant_has_all(grant);
}

/* Sets a repeated field of the reply, whose address is `list`, to the entries of a kind that the
 * caller's scope holds; `group`: to the instances of this group. Errors: -ENOMEM. */
static int list(struct tierce__api_call *api, enum tierce__registry_kind kind, void *list,
                size_t *shown, const char *group)
{
    TIERCE_ASSERT(kind < TIERCE__KINDS);
    const struct tierce__catalog *catalog = tierce__api_catalog(api);
    size_t count = catalog->lists[kind].count;
    void **messages = tierce__api_alloc(api, count + 1, sizeof(*messages));
    TIERCE_ASSERT(group == NULL || kind == TIERCE__KIND_INSTANCE);
    TIERCE_ASSERT(*shown == 0);
    if (messages == NULL)
        return -ENOMEM;
    memcpy(list, &messages, sizeof(messages));
    for (size_t i = 0; i < count; i++) {
        const void *entry = tierce__catalog_entry(catalog, kind, i);
        if (!is_seen(api, catalog, kind, entry) ||
            (group != NULL &&
             strcmp(((const struct tierce__instance *)entry)->group_name, group) != 0))
            continue;
        messages[*shown] = show(api, kind, entry);
        if (messages[*shown] == NULL)
            return -ENOMEM;
        TIERCE_ASSERT(*shown < count);
        ++*shown;
    }
    return 0;
}

/* ---- storages -------------------------------------------------------------------------------- */

/* Makes the probe that the storage asks for. It is checked first, because the registry would reject
 * it after the work. */
static int try_storage(struct tierce__api_call *api, struct tierce__storage *storage)
{
    char why[128];
    TIERCE_ASSERT(storage->check_when_open);
    int rc = tierce__entry_check(TIERCE__KIND_STORAGE, storage, api->why);
    if (rc != 0)
        return rc;
    rc = tierce__storages_try(api->manager->storages, storage, why);
    if (rc != 0)
        snprintf(
            api->why, sizeof(api->why),
            "storage %.70s is not available, and check_storage_available_when_open is set: %.100s",
            storage->name, why[0] != '\0' ? why : tierce_strerror(rc));
    return rc;
}

/* Parts of nodes are not the operator's. False: the status says so. */
static bool may_set(struct tierce__api_call *api, const struct tierce__storage *storage)
{
    if (storage->type != TIERCE__STORAGE_NODE)
        return true;
    snprintf(api->why, sizeof(api->why),
             "storage %.60s is of type tierce; a node registers its parts itself "
             "(tierce node, pool.manager), so add the name of its pool to a group",
             storage->name);
    return false;
}

static void add_storage(struct tierce__api_call *api)
{
    const Admin__AddStorageRequest *request = (const Admin__AddStorageRequest *)api->request;
    struct tierce__storage storage;
    char warning[TIERCE__WARNING_BYTES];
    if (!tierce__api_read_storage(api, request->storage, &storage))
        return;
    bool is_new = tierce__catalog_storage(tierce__api_catalog(api), storage.name) == NULL;
    int rc = may_set(api, &storage) ? 0 : TIERCE_E_ARGUMENT;
    if (rc == 0 && is_new && storage.check_when_open)
        rc = try_storage(api, &storage);
    if (rc == 0)
        rc = tierce__registry_add_storage(api->manager->registry, &storage, api->why);
    tierce__storage_warning(warning, api->manager->storages, &storage);
    say_warned(api, rc, "Storage added successfully", "add storage", warning);
}

static bool is_elsewhere(const struct tierce__storage *now, const struct tierce__storage *storage)
{
    return strcmp(now->root_path, storage->root_path) != 0 ||
           strcmp(now->mountpoint, storage->mountpoint) != 0 ||
           strcmp(now->root_dir, storage->root_dir) != 0 || strcmp(now->uri, storage->uri) != 0;
}

/* Stored blocks would be looked up and deleted in the wrong place. */
static int check_moved(struct tierce__api_call *api, const struct tierce__storage *now,
                       const struct tierce__storage *storage)
{
    struct tierce__usage usage;
    TIERCE_DASSERT(now->number > 0);
    tierce__locator_storage_usage(api->manager->locator, now->number, &usage);
    uint64_t bytes = usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes;
    if (bytes == 0)
        return 0;
    snprintf(api->why, sizeof(api->why),
             "storage %.100s holds %llu bytes of blocks, which would no longer be found; add "
             "another storage",
             storage->name, (unsigned long long)bytes);
    return -EBUSY;
}

static void update_storage(struct tierce__api_call *api)
{
    const Admin__UpdateStorageRequest *request = (const Admin__UpdateStorageRequest *)api->request;
    struct tierce__storage storage;
    char warning[TIERCE__WARNING_BYTES];
    int rc = 0;
    if (!tierce__api_read_storage(api, request->storage, &storage))
        return;
    const struct tierce__storage *now =
        tierce__catalog_storage(tierce__api_catalog(api), storage.name);
    if (!may_set(api, &storage))
        rc = TIERCE_E_ARGUMENT;
    else if (now != NULL && is_elsewhere(now, &storage)) {
        rc = check_moved(api, now, &storage);
        if (rc == 0 && storage.check_when_open)
            rc = try_storage(api, &storage);
    }
    if (rc == 0)
        rc = tierce__registry_update_storage(api->manager->registry, &storage, api->why);
    tierce__storage_warning(warning, api->manager->storages, &storage);
    say_warned(api, rc, "Storage updated successfully", "update storage", warning);
}

/* Both calls have the same request. */
static void enable_storage(struct tierce__api_call *api)
{
    const Admin__EnableStorageRequest *request = (const Admin__EnableStorageRequest *)api->request;
    _Static_assert(sizeof(*request) == sizeof(Admin__DisableStorageRequest) &&
                       offsetof(Admin__EnableStorageRequest, storage_unique_name) ==
                           offsetof(Admin__DisableStorageRequest, storage_unique_name),
                   "the two messages have the same layout");
    TIERCE_ASSERT(api->id == TIERCE__RPC_admin_enable_storage ||
                  api->id == TIERCE__RPC_admin_disable_storage);
    bool enables = api->id == TIERCE__RPC_admin_enable_storage;
    int rc = tierce__registry_enable_storage(api->manager->registry, request->storage_unique_name,
                                             enables, api->why);
    say(api, rc, enables ? "Storage enabled successfully" : "Storage disabled successfully",
        enables ? "enable storage" : "disable storage");
}

/* The index would name blocks in a storage that nobody knows, and nothing would delete their bytes.
 * A storage that does not answer any more confirms no deletion: then the operator abandons them. */
static int check_empty(struct tierce__api_call *api, const struct tierce__storage *storage,
                       bool abandons)
{
    struct tierce__storage_left left;
    char due[64] = "the storage has not confirmed it yet";
    tierce__locator_storage_left(api->manager->locator, storage->number, &left);
    if (left.bytes == 0 && (abandons || left.deleting_bytes + left.deleting_locations == 0))
        return 0;
    if (left.due_in_us > 0)
        snprintf(due, sizeof(due), "the last deletion is due in %lld s",
                 (long long)(left.due_in_us / 1000000 + 1));
    if (left.bytes > 0)
        snprintf(api->why, sizeof(api->why),
                 "storage %.60s still holds %llu bytes of blocks; empty it first: tierce storage "
                 "drain %.60s (--drop removes the blocks)",
                 storage->name, (unsigned long long)left.bytes, storage->name);
    else
        snprintf(api->why, sizeof(api->why),
                 "storage %.60s still has %llu deleted locations (%llu bytes): %s; wait, or leave "
                 "the objects there: tierce storage remove %.60s --abandon",
                 storage->name, (unsigned long long)left.deleting_locations,
                 (unsigned long long)left.deleting_bytes, due, storage->name);
    return -EBUSY;
}

static void remove_storage(struct tierce__api_call *api)
{
    const Admin__RemoveStorageRequest *request = (const Admin__RemoveStorageRequest *)api->request;
    const struct tierce__storage *storage =
        tierce__catalog_storage(tierce__api_catalog(api), request->storage_unique_name);
    struct tierce__node_seen seen;
    int rc = 0;
    if (storage != NULL && storage->type == TIERCE__STORAGE_NODE &&
        tierce__nodes_seen(api->manager->nodes, storage->number, &seen) && seen.is_live) {
        snprintf(api->why, sizeof(api->why),
                 "storage %.60s is a part of a node that is alive and would register it again; "
                 "stop the node first, or disable the storage",
                 storage->name);
        rc = -EBUSY;
    }
    if (rc == 0 && storage != NULL)
        rc = check_empty(api, storage, request->abandon_deletions);
    if (rc == 0)
        rc = tierce__registry_remove_storage(api->manager->registry, request->storage_unique_name,
                                             api->why);
    say(api, rc, "Storage removed successfully", "remove storage");
}

static void list_storage(struct tierce__api_call *api)
{
    Admin__ListStorageResponse *reply = (Admin__ListStorageResponse *)api->reply;
    int rc = list(api, TIERCE__KIND_STORAGE, &reply->storage, &reply->n_storage, NULL);
    say(api, rc, "Storage listed successfully", "list storage");
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* `current_version` NULL: the group is new. */
static void set_group(struct tierce__api_call *api, const Admin__InstanceGroup *message,
                      const int64_t *current_version)
{
    struct tierce__registry *registry = api->manager->registry;
    struct tierce__group group;
    char warning[TIERCE__WARNING_BYTES];
    if (!tierce__api_read(api, "instance_group", (const ProtobufCMessage *)message,
                          &tierce__group_fields, &group))
        return;
    bool is_new = current_version == NULL;
    int rc = is_new ? tierce__registry_add_group(registry, &group, api->why)
                    : tierce__registry_update_group(registry, &group, *current_version, api->why);
    tierce__group_warning(warning, api->manager->storages, tierce__api_catalog(api), &group);
    say_warned(api, rc,
               is_new ? "Instance group created successfully"
                      : "Instance group updated successfully",
               is_new ? "create instance group" : "update instance group", warning);
}

static void create_instance_group(struct tierce__api_call *api)
{
    set_group(api, ((const Admin__CreateInstanceGroupRequest *)api->request)->instance_group, NULL);
}

static void update_instance_group(struct tierce__api_call *api)
{
    const Admin__UpdateInstanceGroupRequest *request =
        (const Admin__UpdateInstanceGroupRequest *)api->request;
    set_group(api, request->instance_group, &request->current_version);
}

static void remove_instance_group(struct tierce__api_call *api)
{
    const Admin__RemoveInstanceGroupRequest *request =
        (const Admin__RemoveInstanceGroupRequest *)api->request;
    int rc = tierce__registry_remove_group(api->manager->registry, request->name, api->why);
    say(api, rc, "Instance group removed successfully", "remove instance group");
}

static void get_instance_group(struct tierce__api_call *api)
{
    const Admin__GetInstanceGroupRequest *request =
        (const Admin__GetInstanceGroupRequest *)api->request;
    Admin__GetInstanceGroupResponse *reply = (Admin__GetInstanceGroupResponse *)api->reply;
    const struct tierce__group *group =
        tierce__catalog_group(tierce__api_catalog(api), request->name);
    if (group == NULL) {
        tierce__api_say(api, INTERNAL_ERROR, "there is no instance group %.100s", request->name);
        return;
    }
    reply->instance_group = tierce__api_show_group(api, group);
    say(api, reply->instance_group != NULL ? 0 : -ENOMEM, "Instance group retrieved successfully",
        "get instance group");
}

static void list_instance_group(struct tierce__api_call *api)
{
    Admin__ListInstanceGroupResponse *reply = (Admin__ListInstanceGroupResponse *)api->reply;
    int rc = list(api, TIERCE__KIND_GROUP, &reply->instance_group, &reply->n_instance_group, NULL);
    say(api, rc, "Instance groups listed successfully", "list instance groups");
}

/* ---- instances ------------------------------------------------------------------------------- */

static void register_instance(struct tierce__api_call *api)
{
    char *unused = NULL;
    tierce__api_register_request(api, &unused);
    tierce__api_as_admin(api);
}

static void get_cache_meta(struct tierce__api_call *api)
{
    tierce__api_run_as_meta(api, TIERCE__RPC_meta_get_cache_meta);
}

/* If the instance does not exist, there is nothing to remove. */
static void remove_cache(struct tierce__api_call *api)
{
    if (tierce__api_run_as_meta(api, TIERCE__RPC_meta_remove_cache) ==
        META__ERROR_CODE__INSTANCE_NOT_EXIST)
        tierce__api_say(api, OK, "Cache removed successfully");
}

static void remove_instance(struct tierce__api_call *api)
{
    const Admin__RemoveInstanceRequest *request =
        (const Admin__RemoveInstanceRequest *)api->request;
    const struct tierce__instance *instance =
        tierce__catalog_instance(tierce__api_catalog(api), request->instance_id);
    if (instance != NULL && request->instance_group[0] != '\0' &&
        strcmp(instance->group_name, request->instance_group) != 0) {
        tierce__api_say(
            api, INTERNAL_ERROR,
            "Failed to remove instance: %.100s belongs to instance group %.100s, not %.100s",
            instance->id, instance->group_name, request->instance_group);
        return;
    }
    int rc = tierce__locator_remove_instance(api->manager->locator, request->instance_id, api->why);
    if (rc == 0)
        rc = tierce__registry_remove_instance(api->manager->registry, request->instance_id,
                                              api->why);
    say(api, rc, "Instance removed successfully", "remove instance");
}

static void get_instance_info(struct tierce__api_call *api)
{
    const Admin__GetInstanceInfoRequest *request =
        (const Admin__GetInstanceInfoRequest *)api->request;
    Admin__GetInstanceInfoResponse *reply = (Admin__GetInstanceInfoResponse *)api->reply;
    const struct tierce__instance *instance =
        tierce__catalog_instance(tierce__api_catalog(api), request->instance_id);
    if (instance == NULL) {
        tierce__api_say(api, INTERNAL_ERROR, "there is no instance %.100s", request->instance_id);
        return;
    }
    reply->instance_info = show(api, TIERCE__KIND_INSTANCE, instance);
    say(api, reply->instance_info != NULL ? 0 : -ENOMEM, "Instance info retrieved successfully",
        "get instance info");
}

static void list_instance_info(struct tierce__api_call *api)
{
    const Admin__ListInstanceInfoRequest *request =
        (const Admin__ListInstanceInfoRequest *)api->request;
    Admin__ListInstanceInfoResponse *reply = (Admin__ListInstanceInfoResponse *)api->reply;
    int rc = list(api, TIERCE__KIND_INSTANCE, &reply->instance_info, &reply->n_instance_info,
                  request->instance_group_name);
    say(api, rc, "Instance info listed successfully", "list instance info");
}

/* ---- accounts -------------------------------------------------------------------------------- */

static void add_account(struct tierce__api_call *api)
{
    const Admin__AddAccountRequest *request = (const Admin__AddAccountRequest *)api->request;
    int rc =
        tierce__registry_add_account(api->manager->registry, request->user_name, request->password,
                                     (enum tierce__role)request->role, api->why);
    say(api, rc, "Account added successfully", "add account");
}

static void delete_account(struct tierce__api_call *api)
{
    const Admin__DeleteAccountRequest *request = (const Admin__DeleteAccountRequest *)api->request;
    int rc = tierce__registry_remove_account(api->manager->registry, request->user_name, api->why);
    say(api, rc, "Account deleted successfully", "delete account");
}

static void list_account(struct tierce__api_call *api)
{
    Admin__ListAccountResponse *reply = (Admin__ListAccountResponse *)api->reply;
    int rc = list(api, TIERCE__KIND_ACCOUNT, &reply->accounts, &reply->n_accounts, NULL);
    say(api, rc, "list account successfully", "list account");
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static void gen_config_snapshot(struct tierce__api_call *api)
{
    Admin__ConfigSnapShotResponse *reply = (Admin__ConfigSnapShotResponse *)api->reply;
    char *text = NULL;
    int rc = tierce__registry_snapshot(api->manager->registry, &text);
    char *copy = rc == 0 ? tierce__api_copy(api, text, strlen(text)) : NULL;
    if (rc == 0 && copy == NULL)
        rc = -ENOMEM;
    if (rc == 0)
        reply->config_snapshot = copy;
    tierce__free(text);
    say(api, rc, "Config snapshot generated successfully", "generate config snapshot");
}

/* Opens the instances that the snapshot added. A snapshot that removes instances was rejected
 * before. */
static int open_instances(struct tierce__api_call *api)
{
    size_t count;
    int rc = 0;
    const struct tierce__catalog *catalog = tierce__api_catalog(api);
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &count);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = tierce__locator_add_instance(api->manager->locator, instances[i].id, api->why);
    return rc;
}

static void load_config_snapshot(struct tierce__api_call *api)
{
    const Admin__LoadConfigSnapshotRequest *request =
        (const Admin__LoadConfigSnapshotRequest *)api->request;
    int rc = tierce__registry_restore(api->manager->registry, request->config_snapshot, api->why);
    if (rc >= 0)
        rc = open_instances(api);
    say(api, rc, "Config snapshot loaded successfully", "load config snapshot");
}

const struct tierce__api_row tierce__api_admin_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_admin_add_storage] = {add_storage, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_enable_storage] = {enable_storage,
                                          TIERCE__API_WAITS,
                                          {"storage_unique_name"}},
    [TIERCE__RPC_admin_disable_storage] = {enable_storage,
                                           TIERCE__API_WAITS,
                                           {"storage_unique_name"}},
    [TIERCE__RPC_admin_remove_storage] = {remove_storage,
                                          TIERCE__API_WAITS,
                                          {"storage_unique_name"}},
    [TIERCE__RPC_admin_update_storage] = {update_storage, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_list_storage] = {list_storage, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_create_instance_group] = {create_instance_group, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_update_instance_group] = {update_instance_group, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_remove_instance_group] = {remove_instance_group,
                                                 TIERCE__API_WAITS,
                                                 {"name"}},
    [TIERCE__RPC_admin_get_instance_group] = {get_instance_group,
                                              TIERCE__API_NEVER_WAITS,
                                              {"name"}},
    [TIERCE__RPC_admin_list_instance_group] = {list_instance_group, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_get_cache_meta] = {get_cache_meta, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_admin_remove_cache] = {remove_cache,
                                        TIERCE__API_WAITS_AS_INSTANCE,
                                        {"instance_id"}},
    [TIERCE__RPC_admin_register_instance] = {register_instance,
                                             TIERCE__API_WAITS,
                                             {"instance_group"}},
    [TIERCE__RPC_admin_remove_instance] = {remove_instance, TIERCE__API_WAITS, {"instance_id"}},
    [TIERCE__RPC_admin_get_instance_info] = {get_instance_info,
                                             TIERCE__API_NEVER_WAITS,
                                             {"instance_id"}},
    [TIERCE__RPC_admin_list_instance_info] = {list_instance_info,
                                              TIERCE__API_NEVER_WAITS,
                                              {"instance_group_name"}},
    [TIERCE__RPC_admin_add_account] = {add_account, TIERCE__API_WAITS, {"user_name", "password"}},
    [TIERCE__RPC_admin_delete_account] = {delete_account, TIERCE__API_WAITS, {"user_name"}},
    [TIERCE__RPC_admin_list_account] = {list_account, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_gen_config_snapshot] = {gen_config_snapshot, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_load_config_snapshot] = {load_config_snapshot,
                                                TIERCE__API_WAITS,
                                                {"config_snapshot"}},
};
