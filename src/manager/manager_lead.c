/* SPDX-License-Identifier: Apache-2.0 */
/* A manager begins and ceases to lead. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/manager_whole.h"
#include "manager/registry/startup.h"
#include "manager/storage/nodes.h"
#include "manager/storage/unmanaged.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void tierce__manager_set_state(struct tierce__manager *manager, enum tierce__manager_state state)
{
    TIERCE_ASSERT(state == TIERCE__MANAGER_FOLLOWS ||
                  (int)state == atomic_load_explicit(&manager->state, memory_order_relaxed) + 1);
    atomic_store_explicit(&manager->state, (int)state, memory_order_release);
}

static void set_trouble(struct tierce__manager *manager, const char *why)
{
    tierce__lock_take(&manager->trouble_lock);
    snprintf(manager->trouble, sizeof(manager->trouble), "%s", why);
    tierce__lock_drop(&manager->trouble_lock);
}

void tierce__manager_trouble(struct tierce__manager *manager, char out[256])
{
    struct tierce__elector_state state;
    out[0] = '\0';
    tierce__elector_state(manager->elector, &state);
    if (state.leader[0] != '\0' && strcmp(state.leader, manager->node_id) != 0)
        return;
    tierce__lock_take(&manager->trouble_lock);
    snprintf(out, 256, "%s", manager->trouble);
    tierce__lock_drop(&manager->trouble_lock);
    if (out[0] == '\0' && state.trouble[0] != '\0')
        snprintf(out, 256, "%s", state.trouble);
}

bool tierce__manager_knows_leader(const struct tierce__manager *manager, char leader[128])
{
    struct tierce__elector_state state;
    tierce__elector_state(manager->elector, &state);
    bool is_own = strcmp(state.leader, manager->node_id) == 0;
    snprintf(leader, 128, "%s", state.leads || is_own ? "" : state.leader);
    return state.leads || is_own || leader[0] != '\0';
}

/* Appends what to do about the reason, if that is known. */
static void add_remedy(char why[256], int rc)
{
    static const char remedy[] = "; free space there, and this manager leads within elector.lease";
    size_t bytes = strlen(why);
    if (rc == -ENOSPC || rc == -EDQUOT) {
        bytes = bytes < 256 - sizeof(remedy) ? bytes : 256 - sizeof(remedy);
        snprintf(why + bytes, 256 - bytes, "%s", remedy);
    }
}

/* The elector's thread may run before the thread that starts it continues. */
static void wait_for_elector(struct tierce__manager_whole *whole)
{
    tierce__lock_take(&whole->lock);
    while (!whole->has_elector && !whole->is_ending)
        (void)tierce__cond_wait(&whole->wake, &whole->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&whole->lock);
}

/* Creates the folder of the built-in storage. The manager leads even if that fails: the storage is
 * then unavailable and reports the reason, and there may be others. */
static void make_state_folder(const struct tierce__manager_whole *whole)
{
    const char *folder = whole->state_folder;
    const struct tierce__catalog *catalog = tierce__registry_acquire(whole->manager.registry);
    const struct tierce__storage *storage =
        tierce__catalog_storage(catalog, TIERCE__STARTUP_STORAGE);
    bool is_used = folder != NULL && storage != NULL && storage->type == TIERCE__STORAGE_NFS &&
                   strncmp(storage->root_path, folder, strlen(folder)) == 0;
    int rc = is_used ? tierce__state_folder_make(folder) : 0;
    if (rc < 0)
        tierce__log(
            TIERCE_LOG_ERROR, "manager.state_folder",
            "path=\"%s\" error=\"%s\" consequence=\"storage " TIERCE__STARTUP_STORAGE
            " is unavailable\" hint=\"set STATE_DIRECTORY to a folder that this user may write\"",
            folder, tierce_strerror(rc));
    tierce__registry_release(whole->manager.registry, catalog);
}

/* Another manager cannot take over an index in memory: it begins with an empty one, and the bytes
 * of the blocks stay in the storages. */
static void warn_of_indexes(const struct tierce__manager_whole *whole,
                            const struct tierce__catalog *catalog)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; whole->has_standbys && i < count; i++) {
        if (strcmp(groups[i].meta_store_type, "local") == 0 && groups[i].meta_store_uri[0] == '\0')
            tierce__log(
                TIERCE_LOG_WARN, "manager.index_in_memory",
                "group=%s consequence=\"another leader does not know its blocks\" hint=\"set "
                "meta_storage_backend_config of the group to redis\"",
                groups[i].name);
    }
}

int tierce__manager_promote(void *arg, uint64_t fence)
{
    struct tierce__manager_whole *whole = arg;
    struct tierce__manager *manager = &whole->manager;
    char why[256] = "";
    wait_for_elector(whole);
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_FOLLOWS);
    tierce__manager_set_state(manager, TIERCE__MANAGER_LOADS);
    int rc = tierce__registry_load(manager->registry, fence, why);
    if (rc >= 0 && whole->restore != NULL)
        rc = tierce__restore_begin(whole->restore, manager->registry, manager->locator, why);
    if (rc >= 0)
        rc = tierce__registry_startup(manager->registry, whole->startup, why);
    if (rc >= 0)
        make_state_folder(whole);
    if (rc >= 0)
        rc = tierce__restore_recover(whole->restore, manager->locator, fence, why);
    if (rc < 0) {
        tierce__manager_set_state(manager, TIERCE__MANAGER_FOLLOWS);
        tierce__restore_abandon(whole->restore);
        tierce__registry_drop(manager->registry);
        if (why[0] == '\0')
            snprintf(why, sizeof(why), "%s", tierce_strerror(rc));
        add_remedy(why, rc);
        tierce__log(TIERCE_LOG_ERROR, "manager.cannot_lead", "%s", why);
        set_trouble(manager, why);
        return rc;
    }
    if (tierce__auth_lets_nobody_in(manager->auth))
        tierce__log(TIERCE_LOG_ERROR, "manager.nobody_may_enter",
                    "auth.required is on, and there is neither a token in auth.token_file nor an "
                    "account in the registry");
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    tierce__unmanaged_log(manager->storages, catalog);
    warn_of_indexes(whole, catalog);
    tierce__registry_release(manager->registry, catalog);
    tierce__nodes_lead(manager->nodes);
    tierce__holdings_clear(manager->holdings); /* a call may have come late, after the last term */
    tierce__reclaimer_resume(manager->reclaimer);
    set_trouble(manager, "");
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_LOADS);
    tierce__manager_set_state(manager, TIERCE__MANAGER_LEADS);
    tierce__log(TIERCE_LOG_INFO, "manager.leads", "fence=%llu", (unsigned long long)fence);
    tierce__scrub_resume(manager->scrub);
    tierce__events_other(manager->events, tierce__manager_now_us(manager), manager->node_id,
                         "leader_elector", "LeaderPromoted", "");
    return 0;
}

void tierce__manager_demote(void *arg)
{
    struct tierce__manager_whole *whole = arg;
    struct tierce__manager *manager = &whole->manager;
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_LEADS);
    tierce__manager_set_state(manager, TIERCE__MANAGER_FOLLOWS);
    tierce__scrub_leave(manager->scrub);
    tierce__scrub_wait(manager->scrub);
    tierce__reclaimer_pause(manager->reclaimer);
    tierce__holdings_clear(manager->holdings);
    tierce__locator_drop(manager->locator);
    tierce__registry_drop(manager->registry);
    tierce__log(TIERCE_LOG_INFO, "manager.follows", "node=%s", manager->node_id);
    tierce__events_other(manager->events, tierce__manager_now_us(manager), manager->node_id,
                         "leader_elector", "LeaderDemoted", "");
}
