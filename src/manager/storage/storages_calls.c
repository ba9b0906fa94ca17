/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to the drivers of storages, on their threads. */
#include "base/assert.h"
#include "manager/storage/storages_private.h"

#include <errno.h>
#include <stdio.h>

static int set_all(int *status, size_t count, int rc)
{
    for (size_t i = 0; i < count; i++)
        status[i] = rc;
    return 0;
}

/* A node without a sign of life: a call would wait for a connection. */
static bool is_silent(const struct tierce__storages *storages,
                      const struct tierce__storage *storage)
{
    return (tierce__storages_troubles(storages, storage->number) & TIERCE__STORAGE_SILENT) != 0;
}

/* The mark that a storage must have; without an id while the registry has none. */
static struct tierce__storage_mark mark_of(const struct tierce__storages *storages,
                                           const struct tierce__storage *storage)
{
    struct tierce__storage_mark mark = {.is_marked = storage->is_marked};
    const struct tierce__catalog *catalog = tierce__registry_acquire(storages->opts.registry);
    snprintf(mark.id, sizeof(mark.id), "%s", tierce__catalog_id(catalog));
    tierce__registry_release(storages->opts.registry, catalog);
    return mark;
}

int tierce__storages_delete(struct tierce__storages *storages,
                            const struct tierce__storage *storage, const char *const *paths,
                            size_t count, int *status)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    if (tierce__storages_has_wrong_mark(storages, storage) || is_silent(storages, storage))
        return set_all(status, count, TIERCE_E_DOWN);
    int rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (worker == NULL)
        return rc < 0 ? rc : set_all(status, count, TIERCE_E_UNSUPPORTED);
    const struct tierce__storage_mark mark = mark_of(storages, storage);
    rc = tierce__storage_worker_remove(worker, &mark, paths, count, status);
    tierce__storage_worker_release(worker);
    bool has_failed = rc < 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        has_failed |= status[i] < 0 && status[i] != TIERCE_E_ARGUMENT;
    if (has_failed)
        tierce__storages_doubt(storages, storage->number);
    return rc;
}

int tierce__storages_measure(struct tierce__storages *storages,
                             const struct tierce__storage *storage, const char *const *paths,
                             size_t count, uint64_t *bytes, int *status)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    int rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (worker == NULL)
        return rc < 0 ? rc : set_all(status, count, TIERCE_E_UNSUPPORTED);
    rc = tierce__storage_worker_measure(worker, NULL, paths, count, bytes, status);
    tierce__storage_worker_release(worker);
    return rc;
}

int tierce__storages_measure_again(struct tierce__storages *storages,
                                   const struct tierce__storage *storage, const char *const *paths,
                                   size_t count, uint64_t *bytes, int *status, char why[128])
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    int rc = tierce__storages_check_own(storages, storage, why);
    if (rc == 0)
        rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(worker != NULL);
    const struct tierce__storage_mark mark = mark_of(storages, storage);
    rc = tierce__storage_worker_measure(worker, &mark, paths, count, bytes, status);
    tierce__storage_worker_release(worker);
    return rc;
}

size_t tierce__storages_read_max(const struct tierce__storages *storages,
                                 enum tierce__storage_type type)
{
    const struct tierce__storage_ops *ops = storages->opts.find_ops(type);
    return ops != NULL && ops->read != NULL ? ops->read_max : 0;
}

int tierce__storages_read(struct tierce__storages *storages, const struct tierce__storage *storage,
                          const char *path, uint64_t offset, void *out, uint64_t bytes)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    uint64_t most = tierce__storages_read_max(storages, storage->type);
    if (most == 0)
        return TIERCE_E_UNSUPPORTED;
    int rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(worker != NULL);
    for (uint64_t at = 0, n = 0; rc == 0 && at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        rc = tierce__storage_worker_read(worker, path, offset + at, (uint8_t *)out + at, (size_t)n);
    }
    tierce__storage_worker_release(worker);
    return rc;
}

bool tierce__storages_has_list(const struct tierce__storages *storages,
                               enum tierce__storage_type type)
{
    const struct tierce__storage_ops *ops = tierce__storages_ops(storages, type);
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    return ops != NULL && ops->list != NULL;
}

int tierce__storages_list(struct tierce__storages *storages, const struct tierce__storage *storage,
                          bool is_first, struct tierce__storage_page **page, char why[128])
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    if (!tierce__storages_has_list(storages, storage->type))
        return TIERCE_E_UNSUPPORTED;
    int rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(worker != NULL);
    rc = tierce__storage_worker_list(worker, is_first, page, why);
    tierce__storage_worker_release(worker);
    return rc;
}

void tierce__storages_end_list(struct tierce__storages *storages,
                               const struct tierce__storage *storage)
{
    struct tierce__storage_worker *worker;
    if (tierce__storages_hold_worker(&worker, storages, storage) < 0 || worker == NULL)
        return;
    tierce__storage_worker_end_list(worker);
    tierce__storage_worker_release(worker);
}

int tierce__storages_delete_listed(struct tierce__storages *storages,
                                   const struct tierce__storage *storage, const char *const *paths,
                                   const int64_t *changed_us, size_t count, int *status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_worker *worker;
    if (tierce__storages_has_wrong_mark(storages, storage))
        return set_all(status, count, TIERCE_E_DOWN);
    if (!tierce__storages_has_list(storages, storage->type))
        return TIERCE_E_UNSUPPORTED;
    if (is_silent(storages, storage))
        return set_all(status, count, TIERCE_E_DOWN);
    int rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(worker != NULL);
    const struct tierce__storage_mark mark = mark_of(storages, storage);
    rc = tierce__storage_worker_remove_listed(worker, &mark, paths, changed_us, count, status);
    tierce__storage_worker_release(worker);
    return rc;
}

/* ---- adoption -------------------------------------------------------------------------------- */

/* Marks the unit as being adopted, or not any more. -EBUSY: it is already; TIERCE_E_CLOSED: there
 * is none. */
static int set_adopting(struct tierce__storages *storages, uint16_t number, bool is_adopting,
                        char why[128])
{
    tierce__lock_take(&storages->lock);
    struct storages_unit *unit = *tierce__storages_find(storages, number);
    int rc = unit == NULL ? TIERCE_E_CLOSED : unit->is_adopting && is_adopting ? -EBUSY : 0;
    if (rc == 0)
        unit->is_adopting = is_adopting;
    tierce__lock_drop(&storages->lock);
    if (rc != 0)
        snprintf(why, 128, "%s",
                 rc == -EBUSY ? "another call is adopting it; retry when that has ended"
                              : "its configuration was changed during the call; retry");
    return rc;
}

/* With an id, if the registry is stored: a probe may not have given it one yet. */
static int stored_mark_of(struct tierce__storages *storages, const struct tierce__storage *storage,
                          struct tierce__storage_mark *mark, char why[128])
{
    char reason[256] = "";
    *mark = mark_of(storages, storage);
    if (mark->id[0] != '\0' || !tierce__registry_is_stored(storages->opts.registry))
        return 0;
    int rc = tierce__registry_identify(storages->opts.registry, reason);
    if (rc < 0)
        snprintf(why, 128, "%.127s", reason[0] != '\0' ? reason : tierce_strerror(rc));
    *mark = mark_of(storages, storage);
    return rc;
}

/* Reads or writes the mark. */
static int call_mark(struct tierce__storages *storages, const struct tierce__storage *storage,
                     bool replaces, enum tierce__mark_state *state, char why[128])
{
    struct tierce__storage_worker *worker;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__storage_mark mark;
    const struct tierce__storage_ops *ops = tierce__storages_ops(storages, storage->type);
    int rc = stored_mark_of(storages, storage, &mark, why);
    if (rc < 0)
        return rc;
    if (mark.id[0] == '\0' || ops == NULL || ops->read_mark == NULL) {
        snprintf(why, 128, "%s",
                 mark.id[0] == '\0'
                     ? "the registry is in memory, so it marks no storage; set registry.uri"
                     : "storages of its type carry no mark, so none can be adopted");
        return TIERCE_E_UNSUPPORTED;
    }
    rc = tierce__storages_hold_worker(&worker, storages, storage);
    if (rc < 0) {
        snprintf(why, 128, "%s", tierce_strerror(rc));
        return rc;
    }
    TIERCE_ASSERT(worker != NULL);
    rc = tierce__storage_worker_mark(worker, &mark, replaces, state, why);
    tierce__storage_worker_release(worker);
    return rc;
}

int tierce__storages_adopt_begin(struct tierce__storages *storages,
                                 const struct tierce__storage *storage, char why[128])
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    enum tierce__mark_state state = TIERCE__MARK_UNKNOWN;
    int rc = call_mark(storages, storage, false, &state, why);
    if (rc < 0)
        return rc;
    if (state == TIERCE__MARK_UNKNOWN)
        return TIERCE_E_DOWN; /* `why` says why it cannot be read */
    if (!tierce__mark_is_wrong(state)) {
        snprintf(why, 128, "%s",
                 state == TIERCE__MARK_OURS
                     ? "it has the mark of this registry already"
                     : "it has no mark yet; the manager writes one after a successful probe");
        return -EEXIST;
    }
    return set_adopting(storages, storage->number, true, why);
}

int tierce__storages_adopt_end(struct tierce__storages *storages,
                               const struct tierce__storage *storage, bool is_accepted,
                               char why[128])
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    enum tierce__mark_state state = TIERCE__MARK_UNKNOWN;
    char ignored[128];
    int rc = is_accepted ? call_mark(storages, storage, true, &state, why) : 0;
    TIERCE_DASSERT(!is_accepted || rc != 0 || state == TIERCE__MARK_OURS);
    (void)set_adopting(storages, storage->number, false, ignored);
    return rc;
}

int tierce__storages_check_own(struct tierce__storages *storages,
                               const struct tierce__storage *storage, char why[128])
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    enum tierce__mark_state state = TIERCE__MARK_UNKNOWN;
    if (storage->type == TIERCE__STORAGE_NODE) {
        if (!is_silent(storages, storage))
            return 0;
        snprintf(why, 128, "no sign of life of its node; start the node");
        return TIERCE_E_DOWN;
    }
    int rc = call_mark(storages, storage, false, &state, why);
    if (rc < 0 || state == TIERCE__MARK_OURS)
        return rc;
    if (state == TIERCE__MARK_ABSENT)
        snprintf(why, 128, "it has no mark yet; the manager writes one after a successful probe");
    return TIERCE_E_DOWN;
}
