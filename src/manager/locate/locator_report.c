/* SPDX-License-Identifier: Apache-2.0 */
/* Locations that a client found to be missing or damaged. */
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/api/spans.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <string.h>

#define LOG_INTERVAL_US 60000000

/* A removal of reported locations. Keys are removed in steps, each under its lock; `index` is the
 * key that is being looked at. */
struct reporting {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__location_report *reports;
    size_t count, index;
    const struct tierce__removed *removed;
    struct tierce__arena arena; /* of the URIs */
    bool no_memory;
};

static bool note_index(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct reporting *r = arg;
    (void)record;
    r->index = r->removed->offset + i;
    TIERCE_ASSERT(r->index < r->count && r->reports[r->index].key == key);
    return true;
}

/* Whether a place has this URI. A writer may know it without the sum that it passed. */
static bool is_uri(const char *uri, const char *reported)
{
    size_t bytes = strlen(reported);
    return strncmp(uri, reported, bytes) == 0 &&
           (uri[bytes] == '\0' ||
            (strchr("?&", uri[bytes]) != NULL && strncmp(uri + bytes + 1, "sum=", 4) == 0));
}

/* Whether the location has this very place. A place that was given to another block meanwhile
 * belongs to another key, or has another URI. */
static bool is_reported(void *arg, const struct tierce__record *record,
                        const struct tierce__location *location)
{
    (void)record;
    struct reporting *r = arg;
    const struct tierce__location_report *report = &r->reports[r->index];
    const struct tierce__instance *instance = &r->live->instance;
    const struct tierce__storage *storage = tierce__location_storage(r->catalog, location);
    if (storage != NULL && report->reason != TIERCE__REPORT_RETRACTED &&
        tierce__storages_has_wrong_mark(r->live->locator->opts.storages, storage))
        return false;
    for (size_t p = 0; storage != NULL && p < location->place_count; p++) {
        const struct tierce__spec_place *place = &location->places[p];
        if (place->spec >= instance->spec_count ||
            strcmp(instance->specs[place->spec].name, report->spec_name) != 0)
            continue;
        const char *uri = tierce__place_uri(storage, instance, place, &r->arena);
        r->no_memory = r->no_memory || uri == NULL;
        if (uri != NULL && is_uri(uri, report->uri))
            return true;
    }
    return false;
}

static int drop(struct reporting *r, struct tierce__removed *removed, char why[TIERCE__WHY_BYTES])
{
    struct tierce__removal at_once = {.due_us = tierce__locator_now_us(r->live->locator),
                                      .wanted = note_index,
                                      .wanted_location = is_reported,
                                      .wanted_arg = r};
    int64_t *keys = tierce__arena_alloc(&r->arena, (r->count + 1) * sizeof(*keys));
    if (keys == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    for (size_t i = 0; i < r->count; i++)
        keys[i] = r->reports[i].key;
    r->removed = removed;
    int rc = tierce__live_remove(r->live, keys, r->count, &at_once, removed);
    if (rc == 0 && r->no_memory)
        rc = -ENOMEM;
    return rc < 0 ? tierce__why(why, rc, "the index cannot be written: %s", tierce_strerror(rc))
                  : 0;
}

const char *tierce__report_reason_name(enum tierce__report_reason reason)
{
    static const char *const names[TIERCE__REPORT_REASONS] = {
        [TIERCE__REPORT_MISSING] = "missing",     [TIERCE__REPORT_SHORT] = "short",
        [TIERCE__REPORT_DAMAGED] = "damaged",     [TIERCE__REPORT_IDENTITY] = "identity",
        [TIERCE__REPORT_RETRACTED] = "retracted",
    };
    TIERCE_ASSERT((size_t)reason < TIERCE__REPORT_REASONS && names[reason] != NULL);
    return names[reason];
}

/* One line a minute and instance; the metrics count all. */
static bool may_log(struct tierce__live *live)
{
    int64_t now_us = tierce__locator_now_us(live->locator);
    int64_t last_us = atomic_load_explicit(&live->report_logged_us, memory_order_relaxed);
    if (last_us != 0 && now_us - last_us < LOG_INTERVAL_US)
        return false;
    return atomic_compare_exchange_strong_explicit(&live->report_logged_us, &last_us, now_us,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Retractions are only counted: they are no faults of a storage. */
static void count_reports(const struct reporting *r, const struct tierce__removed *removed)
{
    const struct tierce__location_report *worst = NULL;
    for (size_t i = 0; i < r->count; i++) {
        const struct tierce__location_report *report = &r->reports[i];
        TIERCE_ASSERT((size_t)report->reason < TIERCE__REPORT_REASONS);
        atomic_fetch_add_explicit(&r->live->locator->reports[report->reason], 1,
                                  memory_order_relaxed);
        if (report->reason != TIERCE__REPORT_RETRACTED)
            worst = worst == NULL || report->reason > worst->reason ? report : worst;
    }
    if (worst != NULL && may_log(r->live))
        tierce__log(TIERCE_LOG_WARN, "cache_reported",
                    "instance=%.64s reports=%zu dropped_locations=%llu reason=%s uri=\"%.200s\" "
                    "hint=\"the storage may have lost or damaged it; further reports of this "
                    "minute are only counted\"",
                    r->live->instance.id, r->count, (unsigned long long)removed->locations,
                    tierce__report_reason_name(worst->reason), worst->uri);
}

int tierce__locator_report(struct tierce__locator *locator, const char *instance_id,
                           const struct tierce__location_report *reports, size_t count,
                           uint64_t *dropped, char why[TIERCE__WHY_BYTES])
{
    struct reporting r = {.reports = reports, .count = count};
    struct tierce__removed removed = {0};
    int rc = tierce__live_acquire(&r.live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:report");
    r.catalog = tierce__registry_acquire(locator->opts.registry);
    rc = drop(&r, &removed, why);
    tierce__registry_release(locator->opts.registry, r.catalog);
    count_reports(&r, &removed);
    tierce__span_close(span);
    tierce__arena_clear(&r.arena);
    tierce__live_release(r.live);
    *dropped = removed.locations;
    return rc;
}

void tierce__locator_reports(const struct tierce__locator *locator,
                             uint64_t counts[TIERCE__REPORT_REASONS])
{
    for (size_t reason = 0; reason < TIERCE__REPORT_REASONS; reason++)
        counts[reason] = atomic_load_explicit(&locator->reports[reason], memory_order_relaxed);
}
