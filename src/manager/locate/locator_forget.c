/* SPDX-License-Identifier: Apache-2.0 */
/* Locations in storages that have lost their objects: a node that started again with an empty
 * memory, or an operator who says so. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/locate/locator_private.h"
#include "manager/registry/registry.h"

#include <string.h>

static bool is_lost(void *arg, const struct tierce__location *location)
{
    return tierce__scan_find_location(arg, location) != SIZE_MAX;
}

static bool is_left(void *arg, const struct tierce__location *location)
{
    return !is_lost(arg, location);
}

struct forget_page {
    struct tierce__scan_round *round;
    struct tierce__placement placement;
};

static bool is_lost_of_page(void *arg, const struct tierce__record *record,
                            const struct tierce__location *location)
{
    (void)record;
    const struct forget_page *page = arg;
    return is_lost(page->round, location);
}

/* A block that loses a copy and keeps another is copied again. Called under the key's lock. */
static bool ask_for_copy(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct forget_page *page = arg;
    const struct tierce__location *left = NULL;
    size_t copies = 0;
    (void)i;
    for (size_t l = 0; l < record->location_count && page->placement.has_replicas; l++) {
        const struct tierce__location *lost = &record->locations[l];
        if (!is_lost(page->round, lost) ||
            !tierce__record_has_other(record, lost, is_left, page->round))
            continue;
        for (size_t o = 0; o < record->location_count; o++) {
            if (is_left(page->round, &record->locations[o]) &&
                record->locations[o].type == lost->type) {
                left = &record->locations[o];
                copies++;
            }
        }
        break;
    }
    if (left != NULL)
        tierce__placement_serves(&page->placement, key, left, copies);
    return true;
}

/* Takes a session that writes to such a storage and that no call is ending; NULL: there is none. */
static struct tierce__write_session *take_session(struct tierce__live *live,
                                                  const struct tierce__storage_scan *scan)
{
    struct tierce__write_session *taken = NULL;
    tierce__lock_take(&live->lock);
    TIERCE__MAP_FOR_EACH (node, &live->sessions) {
        struct tierce__write_session *session =
            TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
        if (taken == NULL && !session->is_busy &&
            tierce__scan_find(scan, session->storage) != SIZE_MAX)
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
static int end_sessions(struct tierce__live *live, struct tierce__scan_round *round)
{
    int rc = 0;
    struct tierce__write_session *session;
    while (rc == 0 && (session = take_session(live, round->scan)) != NULL)
        rc = tierce__live_finish(live, session);
    return rc;
}

/* Their bytes are not deleted (deleter.c); the deletions return slots, and the bytes to the
 * quotas. */
static int forget_page(struct tierce__live *live, struct tierce__scan_round *round,
                       const int64_t *keys, size_t count)
{
    struct forget_page page = {.round = round};
    const struct tierce__removal how = {.due_us = tierce__locator_now_us(live->locator),
                                        .are_lost = true,
                                        .wanted = ask_for_copy,
                                        .wanted_location = is_lost_of_page,
                                        .wanted_arg = &page};
    struct tierce__placement_pick *picks = tierce__calloc(count, sizeof(*picks));
    tierce__placement_begin(&page.placement, live, round->catalog, how.due_us, picks,
                            picks != NULL ? count : 0);
    int rc = tierce__live_remove(live, keys, count, &how, &round->removed);
    tierce__placement_end(&page.placement);
    tierce__free(picks);
    return rc;
}

static int end_forgetting(struct tierce__locator *locator, struct tierce__scan_round *round,
                          char why[TIERCE__WHY_BYTES])
{
    return tierce__registry_settle_storages(locator->opts.registry, round->scan->numbers,
                                            round->scan->count, why);
}

const struct tierce__scan_rule tierce__scan_forgets = {.event = "storage_forgotten",
                                                       .wants = tierce__storage_is_forgetting,
                                                       .enter = end_sessions,
                                                       .page = forget_page,
                                                       .end = end_forgetting};
