/* SPDX-License-Identifier: Apache-2.0 */
/* Locations in storages that have lost their objects: a node that started again with an empty
 * memory, or an operator who says so. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"
#include "manager/registry/registry.h"

#include <stdlib.h>
#include <string.h>

static int compare_numbers(const void *a, const void *b)
{
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

static bool is_forgotten(const struct tierce__locator *locator, uint16_t number)
{
    const struct tierce__forgetting *scan = &locator->forgetting;
    TIERCE_DASSERT(scan->count > 0);
    return bsearch(&number, scan->numbers, scan->count, sizeof(number), compare_numbers) != NULL;
}

/* Begins a scan for all storages whose objects are to be forgotten. False: there are none, or no
 * memory to note them; the next round tries again. */
static bool begin_scan(struct tierce__locator *locator, const struct tierce__catalog *catalog)
{
    struct tierce__forgetting *scan = &locator->forgetting;
    size_t count;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    TIERCE_ASSERT(scan->count == 0);
    for (size_t i = 0; i < count; i++) {
        if (!tierce__storage_is_forgetting(&storages[i]))
            continue;
        if (TIERCE__GROW(scan->numbers, scan->room, scan->count + 1, 16) < 0)
            break;
        scan->numbers[scan->count++] = storages[i].number;
        tierce__log(TIERCE_LOG_INFO, "storage_forgotten", "storage=%s state=begins",
                    storages[i].name);
    }
    if (scan->count == 0)
        return false;
    qsort(scan->numbers, scan->count, sizeof(*scan->numbers), compare_numbers);
    scan->number++;
    return true;
}

/* ---- an instance ----------------------------------------------------------------------------- */

struct forget_round {
    const struct tierce__catalog *catalog;
    struct tierce__removed removed;
    bool goes_on; /* an instance has more keys */
    int error;
};

struct forget_some {
    const struct tierce__live *live;
    const struct tierce__catalog *catalog;
};

static bool is_lost(void *arg, const struct tierce__location *location)
{
    const struct forget_some *some = arg;
    uint16_t number = location->storage;
    if (number == 0) {
        const struct tierce__storage *named = tierce__location_storage(some->catalog, location);
        number = named != NULL ? named->number : 0;
    }
    return number != 0 && is_forgotten(some->live->locator, number);
}

/* Takes a session that writes to such a storage and that no call is ending; NULL: there is none. */
static struct tierce__write_session *take_session(struct tierce__live *live)
{
    struct tierce__write_session *taken = NULL;
    tierce__lock_take(&live->lock);
    TIERCE__MAP_FOR_EACH (node, &live->sessions) {
        struct tierce__write_session *session =
            TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
        if (taken == NULL && !session->is_busy && is_forgotten(live->locator, session->storage))
            taken = session;
    }
    if (taken != NULL) {
        TIERCE_ASSERT(!taken->is_doubtful);
        taken->is_late = true;
        taken->is_busy = true;
        memset(taken->written, 0, taken->count * sizeof(*taken->written));
    }
    tierce__lock_drop(&live->lock);
    return taken;
}

/* Ends the sessions whose bytes may have been written before the storage lost its objects. A call
 * that is ending one drops its blocks itself (tierce__live_finish). */
static int end_sessions(struct tierce__live *live)
{
    int rc = 0;
    struct tierce__write_session *session;
    while (rc == 0 && (session = take_session(live)) != NULL)
        rc = tierce__live_finish(live, session);
    return rc;
}

static int forget_page(struct tierce__live *live, const struct tierce__removal *how,
                       struct tierce__removed *removed)
{
    enum { PAGE_KEYS = 1024 };
    int64_t keys[PAGE_KEYS];
    size_t count;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    uint64_t cursor = live->forget_cursor;
    int rc = space->ops->scan(space, &cursor, PAGE_KEYS, keys, &count);
    if (rc == 0)
        rc = tierce__live_remove(live, keys, count, how, removed);
    if (rc == 0)
        live->forget_cursor = cursor;
    return rc;
}

/* Queued deletions lie in memory, so a round makes a limited number of them. Their bytes are not
 * deleted (deleter.c); they return slots, and the bytes to the quotas. */
static void forget_some(void *arg, struct tierce__live *live)
{
    enum { PAGES = 16, WAITING_MAX = 1024 };
    struct forget_round *round = arg;
    struct tierce__locator *locator = live->locator;
    struct forget_some some = {.live = live, .catalog = round->catalog};
    struct tierce__deleter_stats stats;
    bool is_new = live->forget_scan != locator->forgetting.number;
    int rc = 0;
    if (is_new) {
        rc = end_sessions(live);
        live->forget_scan = rc == 0 ? locator->forgetting.number : live->forget_scan;
        live->forget_cursor = 0;
    }
    for (int i = 0; rc == 0 && i < PAGES && (is_new || live->forget_cursor != 0); i++) {
        const struct tierce__removal how = {.due_us = tierce__locator_now_us(locator),
                                            .are_lost = true,
                                            .wanted_location = is_lost,
                                            .wanted_arg = &some};
        is_new = false;
        rc = forget_page(live, &how, &round->removed);
        tierce__deleter_stats(locator->deleter, &stats);
        if (stats.waiting > WAITING_MAX)
            tierce__deleter_step(locator->deleter, WAITING_MAX);
    }
    round->error = rc < 0 ? rc : round->error;
    round->goes_on = round->goes_on || live->forget_cursor != 0;
}

/* ---- a round --------------------------------------------------------------------------------- */

void tierce__locator_stop_forgetting(struct tierce__locator *locator)
{
    locator->forgetting.count = 0;
}

static int end_scan(struct tierce__locator *locator)
{
    char why[256] = "";
    struct tierce__forgetting *scan = &locator->forgetting;
    int rc =
        tierce__registry_settle_storages(locator->opts.registry, scan->numbers, scan->count, why);
    tierce__log(rc < 0 ? TIERCE_LOG_WARN : TIERCE_LOG_INFO, "storage_forgotten",
                "storages=%zu state=ends locations=%llu bytes=%llu why=\"%s\"", scan->count,
                (unsigned long long)scan->locations, (unsigned long long)scan->bytes, why);
    return rc;
}

size_t tierce__locator_forget(struct tierce__locator *locator,
                              const struct tierce__catalog *catalog, bool *goes_on)
{
    struct tierce__forgetting *scan = &locator->forgetting;
    struct forget_round round = {.catalog = catalog};
    *goes_on = false;
    if (scan->count == 0) {
        if (!begin_scan(locator, catalog))
            return 0;
        scan->locations = scan->bytes = 0;
    }
    tierce__locator_each(locator, forget_some, &round);
    scan->locations += round.removed.locations;
    scan->bytes += round.removed.bytes;
    *goes_on = round.goes_on && round.error == 0;
    /* After an error the scan begins again with the next round that is due. */
    if (round.error == 0 && !round.goes_on)
        round.error = end_scan(locator);
    if (round.error < 0 || !round.goes_on)
        tierce__locator_stop_forgetting(locator);
    return (size_t)round.removed.keys;
}
