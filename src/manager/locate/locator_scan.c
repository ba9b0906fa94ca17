/* SPDX-License-Identifier: Apache-2.0 */
/* Scans of all instances for the locations in some storages, in rounds. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

#include <stdlib.h>

static const struct tierce__scan_rule *const rules[TIERCE__SCANS] = {
    [TIERCE__SCAN_FORGETS] = &tierce__scan_forgets,
    [TIERCE__SCAN_DRAINS] = &tierce__scan_drains,
};

static int compare_numbers(const void *a, const void *b)
{
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

size_t tierce__scan_find(const struct tierce__storage_scan *scan, uint16_t number)
{
    TIERCE_DASSERT(scan->count > 0);
    const uint16_t *found =
        bsearch(&number, scan->numbers, scan->count, sizeof(number), compare_numbers);
    return found != NULL ? (size_t)(found - scan->numbers) : SIZE_MAX;
}

size_t tierce__scan_find_location(const struct tierce__scan_round *round,
                                  const struct tierce__location *location)
{
    uint16_t number = location->storage;
    if (number == 0) {
        const struct tierce__storage *named = tierce__location_storage(round->catalog, location);
        number = named != NULL ? named->number : 0;
    }
    return number != 0 ? tierce__scan_find(round->scan, number) : SIZE_MAX;
}

/* Begins a scan for all storages that the rule wants. False: there are none, or no memory to note
 * them; the next round tries again. */
static bool begin_scan(struct tierce__locator *locator, enum tierce__scan kind,
                       const struct tierce__catalog *catalog)
{
    size_t count;
    struct tierce__storage_scan *scan = &locator->scans[kind];
    const struct tierce__scan_rule *rule = rules[kind];
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    TIERCE_ASSERT(scan->count == 0);
    for (size_t i = 0; i < count; i++) {
        if (!rule->wants(&storages[i]))
            continue;
        if (TIERCE__GROW(scan->numbers, scan->room, scan->count + 1, 16) < 0)
            break;
        scan->numbers[scan->count++] = storages[i].number;
        tierce__log(kind == TIERCE__SCAN_FORGETS ? TIERCE_LOG_INFO : TIERCE_LOG_DEBUG, rule->event,
                    "storage=%s state=begins", storages[i].name);
    }
    if (scan->count == 0)
        return false;
    qsort(scan->numbers, scan->count, sizeof(*scan->numbers), compare_numbers);
    scan->number++;
    scan->locations = scan->bytes = 0;
    if (rule->begin != NULL)
        rule->begin(locator);
    return true;
}

/* ---- an instance ----------------------------------------------------------------------------- */

struct scan_step {
    enum tierce__scan kind;
    struct tierce__scan_round round;
    bool goes_on; /* an instance has more keys */
    int error;
};

static int scan_page(struct tierce__live *live, struct scan_step *step)
{
    enum { PAGE_KEYS = 1024 };
    int64_t keys[PAGE_KEYS];
    size_t count;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    uint64_t cursor = live->scans[step->kind].cursor;
    int rc = space->ops->scan(space, &cursor, PAGE_KEYS, keys, &count);
    if (rc == 0)
        rc = rules[step->kind]->page(live, &step->round, keys, count);
    if (rc == 0)
        live->scans[step->kind].cursor = cursor;
    return rc;
}

/* Queued deletions lie in memory, so a round makes a limited number of them. */
static void scan_some(void *arg, struct tierce__live *live)
{
    enum { PAGES = 16, WAITING_MAX = 1024 };
    struct scan_step *step = arg;
    struct tierce__locator *locator = live->locator;
    const struct tierce__scan_rule *rule = rules[step->kind];
    uint64_t *number = &live->scans[step->kind].number;
    const uint64_t *cursor = &live->scans[step->kind].cursor;
    struct tierce__deleter_stats stats;
    bool is_new = *number != step->round.scan->number;
    int rc = 0;
    if (is_new) {
        rc = rule->enter != NULL ? rule->enter(live, &step->round) : 0;
        live->scans[step->kind].cursor = 0;
    }
    for (int i = 0; rc == 0 && i < PAGES && (is_new || *cursor != 0); i++) {
        rc = scan_page(live, step);
        if (rc == 0) {
            is_new = false;
            *number = step->round.scan->number;
        }
        tierce__deleter_stats(locator->deleter, &stats);
        if (stats.waiting > WAITING_MAX)
            tierce__deleter_step(locator->deleter, WAITING_MAX);
    }
    step->error = rc < 0 ? rc : step->error;
    step->goes_on = step->goes_on || is_new || *cursor != 0;
}

/* ---- a round --------------------------------------------------------------------------------- */

void tierce__locator_stop_scans(struct tierce__locator *locator)
{
    for (size_t kind = 0; kind < TIERCE__SCANS; kind++)
        locator->scans[kind].count = 0;
}

static int end_scan(struct tierce__locator *locator, enum tierce__scan kind, struct scan_step *step)
{
    char why[TIERCE__WHY_BYTES] = "";
    struct tierce__storage_scan *scan = &locator->scans[kind];
    int rc = rules[kind]->end(locator, &step->round, why);
    bool is_worth_it = rc < 0 || scan->locations > 0 || kind == TIERCE__SCAN_FORGETS;
    if (is_worth_it)
        tierce__log(rc < 0 ? TIERCE_LOG_WARN : TIERCE_LOG_INFO, rules[kind]->event,
                    "storages=%zu state=ends locations=%llu bytes=%llu why=\"%s\"", scan->count,
                    (unsigned long long)scan->locations, (unsigned long long)scan->bytes, why);
    scan->ended_us = tierce__locator_now_us(locator);
    return rc;
}

size_t tierce__locator_scan(struct tierce__locator *locator, enum tierce__scan kind,
                            const struct tierce__catalog *catalog, bool *goes_on)
{
    struct tierce__storage_scan *scan = &locator->scans[kind];
    struct scan_step step = {.kind = kind, .round = {.scan = scan, .catalog = catalog}};
    *goes_on = false;
    if (scan->count == 0 && !begin_scan(locator, kind, catalog))
        return 0;
    tierce__locator_each(locator, scan_some, &step);
    scan->locations += step.round.removed.locations;
    scan->bytes += step.round.removed.bytes;
    *goes_on = step.goes_on && step.error == 0;
    /* After an error the scan begins again with the next round that is due. */
    if (step.error == 0 && !step.goes_on)
        step.error = end_scan(locator, kind, &step);
    if (step.error < 0 || !step.goes_on)
        scan->count = 0;
    return (size_t)step.round.removed.keys;
}
