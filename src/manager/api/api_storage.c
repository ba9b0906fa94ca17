/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_model.h"

#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>

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
    uint64_t dropped = 0;
    char why[128] = "", ignored[128];
    const struct tierce__storage *storage = find_storage(api, request->storage_unique_name, doing);
    if (storage == NULL)
        return;
    int rc = tierce__storages_adopt_begin(manager->storages, storage, why);
    if (rc < 0) {
        say_failed(api, storage, rc, doing, why);
        return;
    }
    if (!request->keep_locations)
        rc = tierce__locator_drop_storage(manager->locator, storage, &dropped, api->why);
    int end_rc =
        tierce__storages_adopt_end(manager->storages, storage, rc == 0, rc == 0 ? why : ignored);
    ((Admin__AdoptStorageResponse *)api->reply)->dropped_locations = (int64_t)dropped;
    tierce__log(TIERCE_LOG_WARN, "manager.storage_adopted",
                "storage=%s dropped_locations=%llu error=%s", storage->name,
                (unsigned long long)dropped, tierce_error_name(rc < 0 ? rc : end_rc));
    if (rc < 0)
        tierce__api_fail(api, rc, doing);
    else if (end_rc < 0)
        say_failed(api, storage, end_rc, doing, why);
    else
        tierce__api_say(api, META__ERROR_CODE__OK, "Storage adopted successfully");
}

const struct tierce__api_row tierce__api_storage_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_admin_adopt_storage] = {adopt_storage, TIERCE__API_WAITS, {"storage_unique_name"}},
};
