/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/restore_offline.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "manager/lease/elector.h"
#include "manager/locate/locator.h"
#include "manager/registry/registry.h"
#include "manager/storage/storages.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct offline {
    struct tierce__restore *restore;
    struct tierce__registry *registry;
    struct tierce__storages *storages;
    struct tierce__locator *locator;
    struct tierce__elector *elector;
    struct tierce__lock lock; /* TICKER: the members below */
    struct tierce__cond wake;
    bool is_begun, is_done;
    int rc;
    char why[256];
};

/* ---- callbacks of the elector ---------------------------------------------------------------- */

static int restore_now(void *arg, uint64_t fence)
{
    struct offline *o = arg;
    char why[256] = "";
    tierce__lock_take(&o->lock);
    bool is_late = o->is_done;
    o->is_begun = true;
    tierce__lock_drop(&o->lock);
    if (is_late)
        return -ECANCELED;
    int rc = tierce__registry_load(o->registry, fence, why);
    if (rc == 0)
        rc = tierce__restore_begin(o->restore, o->registry, o->locator, why);
    if (rc == 0)
        rc = tierce__restore_recover(o->restore, o->locator, fence, why);
    if (rc < 0)
        tierce__registry_drop(o->registry);
    tierce__lock_take(&o->lock);
    o->is_done = true;
    o->rc = rc;
    snprintf(o->why, sizeof(o->why), "%s", why[0] != '\0' ? why : tierce_strerror(rc));
    tierce__cond_broadcast(&o->wake);
    tierce__lock_drop(&o->lock);
    return rc;
}

static void stop_leading(void *arg)
{
    struct offline *o = arg;
    tierce__locator_drop(o->locator);
    tierce__registry_drop(o->registry);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int open_parts(struct offline *o, const struct tierce__manager_config *config,
                      const char *path, char why[256])
{
    int rc = tierce__restore_open(
        &o->restore,
        &(struct tierce__restore_opts){.size = sizeof(struct tierce__restore_opts),
                                       .path = path,
                                       .keep_slots = config->restores_slots,
                                       .keeps_id = config->restores_id,
                                       .is_lasting = true},
        why);
    if (rc == 0 && config->registry_uri[0] == '\0') {
        snprintf(why, 256,
                 "registry.uri is empty, so the registry is in memory and would be lost: give "
                 "--restore.file to the manager that is to serve");
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__registry_open(
            &o->registry,
            &(struct tierce__registry_opts){.size = sizeof(struct tierce__registry_opts),
                                            .uri = config->registry_uri},
            why);
    if (rc == 0)
        rc = tierce__storages_open(&o->storages, &(struct tierce__storages_opts){
                                                     .size = sizeof(struct tierce__storages_opts),
                                                     .registry = o->registry});
    if (rc == 0)
        rc = tierce__locator_open(
            &o->locator, &(struct tierce__locator_opts){.size = sizeof(struct tierce__locator_opts),
                                                        .registry = o->registry,
                                                        .storages = o->storages});
    return rc;
}

static void close_parts(struct offline *o)
{
    tierce__locator_close(o->locator);
    tierce__storages_close(o->storages);
    tierce__registry_close(o->registry);
    tierce__restore_close(o->restore);
}

/* ---- the lease ------------------------------------------------------------------------------- */

/* Whether the lease does not come. A manager that has ended without releasing it holds it until it
 * expires. */
static bool is_too_late(struct offline *o, uint32_t lease_ms, uint64_t began_ns)
{
    enum { HELD_MARGIN_MS = 2000, UNKNOWN_MARGIN_MS = 10000 };
    struct tierce__elector_state state;
    tierce__elector_state(o->elector, &state);
    uint64_t margin_ms = state.leader[0] != '\0' ? HELD_MARGIN_MS : UNKNOWN_MARGIN_MS;
    return tierce__now_ns() - began_ns > (lease_ms + margin_ms) * 1000000;
}

static int say_no_lease(struct offline *o, char why[256])
{
    struct tierce__elector_state state;
    tierce__elector_state(o->elector, &state);
    if (state.leader[0] != '\0') {
        snprintf(why, 256, "manager %.127s leads; stop all managers first", state.leader);
        return -EBUSY;
    }
    snprintf(why, 256, "the lease of elector.uri cannot be taken: %.127s", state.trouble);
    return TIERCE_E_DEADLINE;
}

/* Waits until the restore was tried. */
static int wait_for_lease(struct offline *o, uint32_t lease_ms, char why[256])
{
    enum { LOOK_MS = 100 };
    uint64_t began_ns = tierce__now_ns();
    tierce__lock_take(&o->lock);
    while (!o->is_done) {
        (void)tierce__cond_wait(&o->wake, &o->lock, tierce__deadline_in_ms(LOOK_MS));
        bool waits = !o->is_done && !o->is_begun;
        tierce__lock_drop(&o->lock);
        bool gives_up = waits && is_too_late(o, lease_ms, began_ns);
        tierce__lock_take(&o->lock);
        if (gives_up && !o->is_begun)
            break;
    }
    bool is_done = o->is_done;
    int rc = o->rc;
    o->is_done = true; /* a lease that comes later changes nothing */
    snprintf(why, 256, "%s", o->why);
    tierce__lock_drop(&o->lock);
    return is_done ? rc : say_no_lease(o, why);
}

static int lead_and_restore(struct offline *o, const struct tierce__manager_config *config,
                            char why[256])
{
    char name[64];
    snprintf(name, sizeof(name), "restore-%ld", (long)getpid());
    int rc = tierce__elector_start(&o->elector,
                                   &(struct tierce__elector_opts){
                                       .size = sizeof(struct tierce__elector_opts),
                                       .uri = config->elector_uri,
                                       .node_id = name,
                                       .lease_ms = config->elector_lease_ms,
                                       .interval_ms = config->elector_interval_ms,
                                       .promote = restore_now,
                                       .demote = stop_leading,
                                       .arg = o,
                                   },
                                   why);
    if (rc < 0)
        return rc;
    rc = wait_for_lease(o, config->elector_lease_ms, why);
    tierce__elector_stop(o->elector);
    return rc;
}

int tierce__restore_offline(struct tierce__restored *out,
                            const struct tierce__manager_config *config, const char *path,
                            char why[256])
{
    struct offline offline = {0};
    why[0] = '\0';
    tierce__lock_init(&offline.lock, TIERCE__LOCK_TICKER);
    tierce__cond_init(&offline.wake);
    int rc = open_parts(&offline, config, path, why);
    if (rc == 0)
        rc = lead_and_restore(&offline, config, why);
    if (rc == 0)
        tierce__restore_counts(offline.restore, out);
    else if (why[0] == '\0')
        snprintf(why, 256, "%s", tierce_strerror(rc));
    close_parts(&offline);
    tierce__cond_fini(&offline.wake);
    tierce__lock_fini(&offline.lock);
    return rc;
}
