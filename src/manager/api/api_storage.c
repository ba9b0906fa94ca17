/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_model.h"

#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>
#include <string.h>

/* Calls about the content of a storage. */

/* NULL: there is none, and the status says so. */
static const struct tierce__storage *find_storage(struct tierce__api_call *api, const char *name,
                                                  const char *doing)
{
    const struct tierce__storage *storage = tierce__catalog_storage(tierce__api_catalog(api), name);
    if (storage == NULL)
        tierce__api_say(api, META__ERROR_CODE__INTERNAL_ERROR,
                        "Failed to %s: there is no storage %.100s", doing, name);
    return storage;
}

/* The status of a failure of a storage; `why` is about it. */
static void say_failed(struct tierce__api_call *api, const struct tierce__storage *storage, int rc,
                       const char *doing, const char *why)
{
    bool is_wrong_call = rc == -EEXIST || rc == TIERCE_E_UNSUPPORTED;
    TIERCE_DASSERT(rc < 0);
    tierce__api_say(
        api, is_wrong_call ? META__ERROR_CODE__INVALID_ARGUMENT : META__ERROR_CODE__INTERNAL_ERROR,
        "Failed to %s: storage %.100s: %s", doing, storage->name,
        why[0] != '\0' ? why : tierce_strerror(rc));
}

static void adopt_storage(struct tierce__api_call *api)
{
    static const char doing[] = "adopt storage";
    const Admin__AdoptStorageRequest *request = (const Admin__AdoptStorageRequest *)api->request;
    struct tierce__manager *manager = api->manager;
    char why[128] = "", ignored[128];
    const struct tierce__storage *storage = find_storage(api, request->storage_unique_name, doing);
    if (storage == NULL)
        return;
    int rc = tierce__storages_adopt_begin(manager->storages, storage, why);
    if (rc < 0) {
        say_failed(api, storage, rc, doing, why);
        return;
    }
    /* Before the mark, so that no location of the old objects serves when it is there. */
    if (!request->keep_locations)
        rc = tierce__registry_empty_storage(manager->registry, storage->name, api->why);
    int end_rc =
        tierce__storages_adopt_end(manager->storages, storage, rc == 0, rc == 0 ? why : ignored);
    tierce__log(TIERCE_LOG_WARN, "manager.storage_adopted",
                "storage=%s keeps_locations=%d error=%s", storage->name, request->keep_locations,
                tierce_error_name(rc < 0 ? rc : end_rc));
    if (rc < 0)
        tierce__api_fail(api, rc, doing);
    else if (end_rc < 0)
        say_failed(api, storage, end_rc, doing, why);
    else
        tierce__api_say(api, META__ERROR_CODE__OK, "Storage adopted successfully%s",
                        request->keep_locations ? ""
                                                : "; its locations are dropped after this call");
}

/* Fills the reply. */
static void show_scrub(struct tierce__api_call *api, const char *storage)
{
    Admin__ScrubStorageResponse *reply = (Admin__ScrubStorageResponse *)api->reply;
    struct tierce__scrub_state state;
    if (!tierce__scrub_state(api->manager->scrub, storage, &state)) {
        reply->state = tierce__api_text("none");
        return;
    }
    const struct tierce__scrub_counts *counts = &state.counts;
    reply->state = tierce__api_text(tierce__scrub_phase_name(state.phase));
    char *reason = tierce__api_copy(api, state.why, strlen(state.why));
    if (reason != NULL)
        reply->reason = reason;
    reply->repairs = state.repairs;
    reply->lists_objects = state.lists;
    reply->began_us = state.began_us;
    reply->ended_us = state.ended_us;
    reply->checked_files = (int64_t)counts->checked;
    reply->missing_files = (int64_t)counts->missing;
    reply->short_files = (int64_t)counts->too_short;
    reply->unreadable_files = (int64_t)counts->unreadable;
    reply->fresh_files = (int64_t)counts->fresh;
    reply->dropped_locations = (int64_t)counts->dropped_locations;
    reply->listed_objects = (int64_t)counts->listed;
    reply->listed_bytes = (int64_t)counts->listed_bytes;
    reply->young_objects = (int64_t)counts->young;
    reply->other_objects = (int64_t)counts->others;
    reply->orphans = (int64_t)counts->orphans;
    reply->orphan_bytes = (int64_t)counts->orphan_bytes;
    reply->deleted_orphans = (int64_t)counts->deleted_orphans;
    reply->deleted_bytes = (int64_t)counts->deleted_bytes;
    reply->long_files = (int64_t)counts->too_long;
    reply->unread_objects = (int64_t)counts->unread;
    reply->verified_blocks = (int64_t)counts->verified;
    reply->verified_bytes = (int64_t)counts->verified_bytes;
    reply->damaged_blocks = (int64_t)counts->damaged;
    reply->unprovable_blocks = (int64_t)counts->unprovable;
}

static void scrub_storage(struct tierce__api_call *api)
{
    static const char doing[] = "scrub storage";
    const Admin__ScrubStorageRequest *request = (const Admin__ScrubStorageRequest *)api->request;
    const struct tierce__storage *storage = find_storage(api, request->storage_unique_name, doing);
    struct tierce__scrub *scrub = api->manager->scrub;
    char why[TIERCE__WHY_BYTES] = "";
    int rc = 0;
    if (storage == NULL)
        return;
    if (request->rate_per_second < 0) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "rate_per_second must be at least 0, not %d", request->rate_per_second);
        return;
    }
    if (!(request->verify_share >= 0 && request->verify_share <= 1) ||
        request->bytes_per_second < 0) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "verify_share must be 0 to 1, and is %g; bytes_per_second must be at least "
                        "0, and is %lld",
                        request->verify_share, (long long)request->bytes_per_second);
        return;
    }
    if (request->action == ADMIN__SCRUB_ACTION__SCRUB_START)
        rc = tierce__scrub_start(
            scrub,
            &(struct tierce__scrub_request){.storage = storage->name,
                                            .repairs = request->repair,
                                            .rate = (uint32_t)request->rate_per_second,
                                            .verify_share = request->verify_share,
                                            .byte_rate = (uint64_t)request->bytes_per_second},
            why);
    else if (request->action == ADMIN__SCRUB_ACTION__SCRUB_STOP)
        rc = tierce__scrub_stop(scrub, storage, why);
    show_scrub(api, storage->name);
    if (rc < 0)
        say_failed(api, storage, rc, doing, why);
    else
        tierce__api_say(api, META__ERROR_CODE__OK, "Scrub of the storage %s",
                        request->action == ADMIN__SCRUB_ACTION__SCRUB_START  ? "started"
                        : request->action == ADMIN__SCRUB_ACTION__SCRUB_STOP ? "stopped"
                                                                             : "shown");
}

/* Fills the reply with the state of a storage. */
static void show_drain(struct tierce__api_call *api, const struct tierce__storage *storage)
{
    Admin__DrainStorageResponse *reply = (Admin__DrainStorageResponse *)api->reply;
    struct tierce__drain_state state;
    tierce__locator_drain_state(api->manager->locator, storage, &state);
    reply->state = tierce__api_text(state.name);
    reply->left_bytes = (int64_t)state.left.bytes;
    reply->deleting_bytes = (int64_t)state.left.deleting_bytes;
    reply->deleting_locations = (int64_t)state.left.deleting_locations;
    reply->left_locations = state.is_scanned ? (int64_t)state.left_locations : -1;
    reply->unverifiable_locations = (int64_t)state.unverifiable_locations;
    reply->queued_blocks = (int64_t)state.queued_blocks;
    char *reason = tierce__api_copy(api, state.why, strlen(state.why));
    if (reason != NULL)
        reply->reason = reason;
}

static void drain_storage(struct tierce__api_call *api)
{
    static const char *const done[] = {"shown", "started", "stopped"};
    const Admin__DrainStorageRequest *request = (const Admin__DrainStorageRequest *)api->request;
    struct tierce__registry *registry = api->manager->registry;
    const char *doing =
        request->action == ADMIN__DRAIN_ACTION__DRAIN_SHOW   ? "show the draining of a storage"
        : request->action == ADMIN__DRAIN_ACTION__DRAIN_STOP ? "end the draining of a storage"
                                                             : "drain storage";
    const struct tierce__storage *storage = find_storage(api, request->storage_unique_name, doing);
    char why[256] = "";
    int rc = 0;
    if (storage == NULL)
        return;
    enum tierce__draining draining = request->action == ADMIN__DRAIN_ACTION__DRAIN_STOP
                                         ? TIERCE__DRAINING_NOT
                                     : request->drop ? TIERCE__DRAINING_DROPS
                                                     : TIERCE__DRAINING_MOVES;
    if ((unsigned)request->action >= sizeof(done) / sizeof(done[0])) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "action is %d; accepted are 0 (DRAIN_SHOW), 1 (DRAIN_START) and 2 "
                        "(DRAIN_STOP)",
                        (int)request->action);
        return;
    }
    if (request->action != ADMIN__DRAIN_ACTION__DRAIN_SHOW)
        rc = tierce__registry_drain_storage(registry, storage->name, draining, why);
    if (rc < 0) {
        say_failed(api, storage, rc, doing, why);
        return;
    }
    if (request->action != ADMIN__DRAIN_ACTION__DRAIN_SHOW)
        tierce__log(TIERCE_LOG_INFO, "manager.storage_draining", "storage=%s state=%s drop=%d",
                    storage->name, done[request->action], request->drop);
    const struct tierce__catalog *now = tierce__registry_acquire(registry);
    const struct tierce__storage *changed = tierce__catalog_storage(now, storage->name);
    if (changed != NULL)
        show_drain(api, changed);
    tierce__registry_release(registry, now);
    tierce__api_say(api, META__ERROR_CODE__OK, "Draining of the storage %s", done[request->action]);
}

const struct tierce__api_row tierce__api_storage_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_admin_adopt_storage] = {adopt_storage, TIERCE__API_WAITS, {"storage_unique_name"}},
    [TIERCE__RPC_admin_drain_storage] = {drain_storage, TIERCE__API_WAITS, {"storage_unique_name"}},
    [TIERCE__RPC_admin_scrub_storage] = {scrub_storage, TIERCE__API_WAITS, {"storage_unique_name"}},
};
