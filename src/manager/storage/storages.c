/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/storages_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    TIMEOUT_MS = 2000,
    FAILURES = 2,
    TICK_MS_MIN = 5,
    TICK_MS_MAX = 250,
};

const struct tierce__storage_ops *tierce__storages_ops(const struct tierce__storages *storages,
                                                       enum tierce__storage_type type)
{
    const char *python = storages->opts.mooncake_python;
    bool lacks = type == TIERCE__STORAGE_MOONCAKE && (python == NULL || python[0] == '\0');
    return lacks ? NULL : storages->opts.find_ops(type);
}

static int start_worker(struct tierce__storage_worker **out,
                        const struct tierce__storages *storages,
                        const struct tierce__storage *storage,
                        const struct tierce__storage_ops *ops, char why[128])
{
    struct tierce__storage reached = *storage;
    reached.mooncake_python = storages->opts.mooncake_python;
    return tierce__storage_worker_start(out, &reached, ops, storages->opts.probe_timeout_ms, why);
}

/* ---- units ----------------------------------------------------------------------------------- */

/* NULL: no memory. */
static char *config_of(const struct tierce__storage *storage)
{
    struct tierce__storage alike = *storage;
    char *text = NULL, none[] = "";
    alike.is_enabled = true; /* fields that do not affect the driver */
    alike.capacity_bytes = 0;
    alike.is_marked = false;
    alike.contents = TIERCE__CONTENTS_KEPT;
    alike.draining = TIERCE__DRAINING_NOT;
    alike.scrub = none;
    int rc = tierce__storage_to_json(&text, &alike, TIERCE__JSON_STORED);
    return rc == 0 ? text : NULL;
}

static void free_unit(struct storages_unit *unit)
{
    tierce__free(unit->name);
    tierce__free(unit->config);
    tierce__free(unit);
}

/* Errors: of the driver and its thread, -ENOMEM. */
static int make_unit(struct storages_unit **out, const struct tierce__storages *storages,
                     const struct tierce__storage *storage, const struct tierce__storage_ops *ops,
                     char why[128])
{
    TIERCE_DASSERT(storage->number > 0);
    struct storages_unit *unit = tierce__calloc(1, sizeof(*unit));
    if (unit == NULL)
        return -ENOMEM;
    unit->number = storage->number;
    unit->is_part = storage->type == TIERCE__STORAGE_NODE && storage->pool[0] != '\0';
    unit->is_well = true;
    unit->name = tierce__strdup(storage->name);
    unit->config = config_of(storage);
    int rc = unit->name != NULL && unit->config != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = start_worker(&unit->worker, storages, storage, ops, why);
    if (rc == 0) {
        *out = unit;
        return 0;
    }
    free_unit(unit);
    return rc;
}

struct storages_unit **tierce__storages_find(struct tierce__storages *storages, uint16_t number)
{
    tierce__lock_assert_held(&storages->lock);
    struct storages_unit **at = &storages->units;
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

/* Whether a storage is used only when it has the mark of this registry: one without a mark may hold
 * the blocks of a registry that was lost. */
static bool must_be_marked(const struct tierce__storages *storages,
                           const struct tierce__storage *storage)
{
    const struct tierce__storage_ops *ops = tierce__storages_ops(storages, storage->type);
    return ops != NULL && ops->has_blocks != NULL && !storage->is_marked &&
           storages->opts.probe_interval_ms > 0 &&
           tierce__registry_is_stored(storages->opts.registry);
}

unsigned tierce__storages_troubles(const struct tierce__storages *storages, uint16_t number)
{
    return atomic_load_explicit(&storages->troubles[number], memory_order_relaxed) &
           ~(unsigned)TIERCE__STORAGE_SEEN;
}

void tierce__storages_set_troubles(struct tierce__storages *storages, uint16_t number,
                                   unsigned troubles)
{
    tierce__lock_assert_held(&storages->lock);
    TIERCE_DASSERT(number > 0 && (troubles & TIERCE__STORAGE_SILENT) == 0);
    uint8_t was = atomic_load_explicit(&storages->troubles[number], memory_order_relaxed), is;
    do
        is = (uint8_t)(troubles | TIERCE__STORAGE_SEEN | (was & TIERCE__STORAGE_SILENT));
    while (!atomic_compare_exchange_weak_explicit(&storages->troubles[number], &was, is,
                                                  memory_order_relaxed, memory_order_relaxed));
}

void tierce__storages_set_silent(struct tierce__storages *storages, uint16_t number, bool is_silent)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    if (((tierce__storages_troubles(storages, number) & TIERCE__STORAGE_SILENT) != 0) == is_silent)
        return;
    if (is_silent)
        atomic_fetch_or_explicit(&storages->troubles[number], TIERCE__STORAGE_SILENT,
                                 memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&storages->troubles[number], (uint8_t)~TIERCE__STORAGE_SILENT,
                                  memory_order_relaxed);
}

/* Removes a unit from the list and ends its worker. */
static void retire(struct tierce__storages *storages, struct storages_unit **at)
{
    tierce__lock_assert_held(&storages->lock);
    struct storages_unit *unit = *at;
    TIERCE_DASSERT(*tierce__storages_find(storages, unit->number) == unit);
    *at = unit->next;
    unit->next = storages->retired;
    storages->retired = unit;
    tierce__storages_set_troubles(storages, unit->number, 0);
    atomic_fetch_and_explicit(&storages->troubles[unit->number], (uint8_t)~TIERCE__STORAGE_SEEN,
                              memory_order_relaxed);
    tierce__storage_worker_end(unit->worker);
}

/* Joins the units that have ended. */
static void reap(struct tierce__storages *storages)
{
    tierce__lock_assert_held(&storages->lock);
    for (struct storages_unit **at = &storages->retired; *at != NULL;) {
        struct storages_unit *unit = *at;
        if (!tierce__storage_worker_has_ended(unit->worker, false)) {
            at = &unit->next;
            continue;
        }
        *at = unit->next;
        TIERCE_DASSERT(*tierce__storages_find(storages, unit->number) != unit);
        tierce__storage_worker_forget(unit->worker);
        free_unit(unit);
    }
}

/* Waits for the end of units, and detaches those that hang. No lock is held: calls of drivers take
 * their time. */
static void reap_all(struct storages_unit *retired)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (retired != NULL) {
        struct storages_unit *unit = retired;
        retired = unit->next;
        (void)tierce__storage_worker_has_ended(unit->worker, true);
        tierce__storage_worker_forget(unit->worker);
        free_unit(unit);
    }
}

static bool is_registered(const struct tierce__storages *storages,
                          const struct tierce__storage *storage)
{
    struct tierce__registry *registry = storages->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    bool is = tierce__catalog_storage_numbered(catalog, storage->number) != NULL;
    tierce__registry_release(registry, catalog);
    return is;
}

/* Returns the unit of a storage, created if necessary; NULL and 0 if it is unmanaged. A storage
 * from the registry's current catalog (`is_current`) gets a new unit if its configuration has
 * changed. TIERCE_E_CLOSED: the storage was removed since the caller's catalog, and the unit would
 * stay until the next change of the registry. */
static int take_unit(struct storages_unit **out, struct tierce__storages *storages,
                     const struct tierce__storage *storage, bool is_current, char why[128])
{
    tierce__lock_assert_held(&storages->lock);
    const struct tierce__storage_ops *ops = tierce__storages_ops(storages, storage->type);
    struct storages_unit **at = tierce__storages_find(storages, storage->number), *unit = NULL;
    if (*at != NULL && is_current) {
        char *config = config_of(storage);
        if (config == NULL)
            return -ENOMEM;
        if (strcmp(config, (*at)->config) != 0)
            retire(storages, at);
        tierce__free(config);
        at = tierce__storages_find(storages, storage->number);
    }
    if (ops == NULL) {
        TIERCE_ASSERT(*at == NULL || !is_current); /* the type is part of the configuration */
        *out = NULL;
        return 0;
    }
    if (*at == NULL && !is_current && !is_registered(storages, storage))
        return TIERCE_E_CLOSED;
    if (*at == NULL) {
        int rc = make_unit(&unit, storages, storage, ops, why);
        if (rc != 0)
            return rc;
        unit->next = storages->units;
        storages->units = unit;
        unit->needs_mark = must_be_marked(storages, storage);
        tierce__storages_set_troubles(storages, unit->number,
                                      unit->needs_mark ? TIERCE__STORAGE_UNWELL : 0);
        at = &storages->units;
    }
    TIERCE_ASSERT((*at)->number == storage->number);
    *out = *at;
    return 0;
}

/* ---- the prober ------------------------------------------------------------------------------ */

static bool is_in(const struct tierce__catalog *catalog, const struct storages_unit *unit)
{
    return tierce__catalog_storage_numbered(catalog, unit->number) != NULL;
}

/* A managed storage without a unit is unavailable; that is logged when it begins. */
static void say_unmade(struct tierce__storages *storages, const struct tierce__storage *storage,
                       int rc, const char *why)
{
    tierce__lock_assert_held(&storages->lock);
    TIERCE_DASSERT(rc < 0);
    const char *reason = *why != '\0' ? why : tierce_strerror(rc);
    if (tierce__storages_troubles(storages, storage->number) == 0)
        tierce__log(TIERCE_LOG_WARN, "storage_unusable", "storage=%s why=\"%s\"", storage->name,
                    reason);
    if (storages->unmade_count < UNMADE_MAX) {
        struct storages_unmade *unmade = &storages->unmade[storages->unmade_count++];
        unmade->number = storage->number;
        snprintf(unmade->why, sizeof(unmade->why), "%s", reason);
    }
    tierce__storages_set_troubles(storages, storage->number, TIERCE__STORAGE_UNWELL);
}

/* Updates the units from the registry. If memory runs out, the rest follows later. */
static void refresh(struct tierce__storages *storages)
{
    tierce__lock_assert_held(&storages->lock);
    uint64_t version = tierce__registry_version(storages->opts.registry);
    if (version == storages->version)
        return;
    size_t count;
    bool is_whole = true;
    storages->unmade_count = 0;
    const struct tierce__catalog *catalog = tierce__registry_acquire(storages->opts.registry);
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    for (struct storages_unit **at = &storages->units; *at != NULL;) {
        if (is_in(catalog, *at))
            at = &(*at)->next;
        else
            retire(storages, at);
    }
    for (size_t i = 0; i < count; i++) {
        struct storages_unit *unit = NULL;
        char why[128] = "";
        int rc = take_unit(&unit, storages, &all[i], true, why);
        if (rc != 0) {
            is_whole = false;
            say_unmade(storages, &all[i], rc, why);
            continue;
        }
        if (unit == NULL)
            continue;
        /* A storage that is enabled again starts without failures. */
        if (all[i].is_enabled != unit->is_enabled)
            tierce__storage_worker_reset(unit->worker);
        TIERCE_DASSERT(unit->number == all[i].number);
        unit->is_enabled = all[i].is_enabled;
        unit->is_marked = all[i].is_marked;
    }
    snprintf(storages->id, sizeof(storages->id), "%s", tierce__catalog_id(catalog));
    tierce__registry_release(storages->opts.registry, catalog);
    if (is_whole)
        storages->version = version;
}

/* News of a unit, to be passed on when no lock is held. */
struct change {
    char name[256];
    char why[128];
    bool is_health, is_well; /* the health has changed */
    bool is_mark;            /* the registry does not know that it has the mark */
};

/* The mark that the next probe looks for. */
static struct tierce__storage_mark mark_of(const struct tierce__storages *storages,
                                           const struct storages_unit *unit)
{
    struct tierce__storage_mark mark = {.is_marked = unit->is_marked};
    tierce__lock_assert_held(&storages->lock);
    snprintf(mark.id, sizeof(mark.id), "%s", storages->id);
    return mark;
}

/* A node that reports is alive, so its part is probed less often, unless there is a doubt. A probe
 * that was under way when the doubt arose may have passed before. */
static bool is_vouched_for(struct tierce__storages *storages, struct storages_unit *unit,
                           const struct tierce__storage_report *report)
{
    tierce__lock_assert_held(&storages->lock);
    if (unit->is_doubted && report->is_probed && report->failures == 0 &&
        report->probed_ns - report->took_ns > unit->doubted_ns)
        unit->is_doubted = false;
    return unit->is_part && !unit->is_doubted && report->failures == 0 &&
           tierce__storages_troubles(storages, unit->number) == 0;
}

void tierce__storages_doubt(struct tierce__storages *storages, uint16_t number)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    tierce__lock_take(&storages->lock);
    struct storages_unit *unit = *tierce__storages_find(storages, number);
    if (unit != NULL) {
        unit->is_doubted = true;
        unit->doubted_ns = tierce__now_ns();
    }
    tierce__lock_drop(&storages->lock);
}

/* Requests a probe if it is due, and reads the last result; true if there are news. */
static bool look_after(struct tierce__storages *storages, struct storages_unit *unit,
                       struct change *out)
{
    tierce__lock_assert_held(&storages->lock);
    struct tierce__storage_report report;
    const struct tierce__storage_mark mark = mark_of(storages, unit);
    tierce__storage_worker_report(unit->worker, &report);
    uint64_t interval_ns = storages->opts.probe_interval_ms * TIERCE__MS_NS;
    if (is_vouched_for(storages, unit, &report))
        interval_ns *= TIERCE__STORAGES_PART_INTERVALS;
    if (unit->is_enabled && !report.is_probing && !report.hangs &&
        (!report.is_probed || tierce__now_ns() - report.probed_ns >= interval_ns))
        tierce__storage_worker_probe(unit->worker, &mark);
    bool is_wrong = tierce__mark_is_wrong(report.mark);
    bool is_well = !report.hangs && report.failures < storages->opts.failures && !is_wrong;
    unit->needs_mark = unit->needs_mark && !unit->is_marked && report.mark != TIERCE__MARK_OURS;
    TIERCE_DASSERT(storages->opts.failures > 0);
    tierce__storages_set_troubles(storages, unit->number,
                                  (is_well && !unit->needs_mark ? 0 : TIERCE__STORAGE_UNWELL) |
                                      (is_wrong ? TIERCE__STORAGE_WRONG_MARK : 0));
    out->is_mark =
        report.mark == TIERCE__MARK_OURS && !unit->is_marked && unit->marked_ns != report.probed_ns;
    out->is_health = is_well != unit->is_well;
    if (!out->is_mark && !out->is_health)
        return false;
    unit->marked_ns = out->is_mark ? report.probed_ns : unit->marked_ns;
    unit->is_well = out->is_well = is_well;
    snprintf(out->name, sizeof(out->name), "%s", unit->name);
    snprintf(out->why, sizeof(out->why), "%s",
             is_well        ? ""
             : report.hangs ? "it does not answer"
                            : report.why);
    return true;
}

static void tell(const struct tierce__storages *storages, const struct change *change)
{
    char why[256] = "";
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (change->is_mark &&
        tierce__registry_mark_storage(storages->opts.registry, change->name, why) < 0)
        tierce__log(TIERCE_LOG_WARN, "storage_mark", "storage=%s why=\"%s\"", change->name, why);
    if (!change->is_health)
        return;
    tierce__log(change->is_well ? TIERCE_LOG_INFO : TIERCE_LOG_WARN, "storage_health",
                "storage=%s well=%d why=\"%s\"", change->name, change->is_well, change->why);
    if (storages->opts.changed != NULL)
        storages->opts.changed(storages->opts.changed_arg, change->name, change->is_well,
                               change->why);
}

/* Returns the n-th unit, or NULL. The list may change while the lock is not held. */
static struct storages_unit *unit_at(struct tierce__storages *storages, size_t n)
{
    tierce__lock_assert_held(&storages->lock);
    struct storages_unit *unit = storages->units;
    while (unit != NULL && n-- > 0)
        unit = unit->next;
    return unit;
}

static uint32_t tick_ms(const struct tierce__storages_opts *opts)
{
    uint32_t tick = (opts->probe_interval_ms < opts->probe_timeout_ms ? opts->probe_interval_ms
                                                                      : opts->probe_timeout_ms) /
                    4;
    TIERCE_ASSERT(opts->probe_interval_ms > 0 && opts->probe_timeout_ms > 0);
    TIERCE_DASSERT(tick <= opts->probe_interval_ms);
    return tick < TICK_MS_MIN ? TICK_MS_MIN : tick > TICK_MS_MAX ? TICK_MS_MAX : tick;
}

/* Gives a registry that is stored an id, before its storages are probed. */
static void identify(struct tierce__storages *storages)
{
    struct tierce__registry *registry = storages->opts.registry;
    uint64_t now_ns = tierce__now_ns();
    char why[256] = "";
    tierce__lock_assert_held(&storages->lock);
    if (storages->id[0] != '\0' || storages->units == NULL ||
        !tierce__registry_is_stored(registry) ||
        (storages->identified_ns != 0 &&
         now_ns - storages->identified_ns < storages->opts.probe_interval_ms * TIERCE__MS_NS))
        return;
    storages->identified_ns = now_ns;
    tierce__lock_drop(&storages->lock);
    int rc = tierce__registry_identify(registry, why);
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "registry_id", "why=\"%s\"",
                    why[0] != '\0' ? why : tierce_strerror(rc));
    tierce__lock_take(&storages->lock);
    refresh(storages);
}

static void *probe_all(void *arg)
{
    struct tierce__storages *storages = arg;
    struct change change;
    tierce__lock_take(&storages->lock);
    while (!storages->is_ending) {
        TIERCE_DASSERT(storages->opts.probe_interval_ms > 0);
        refresh(storages);
        identify(storages);
        reap(storages);
        struct storages_unit *unit = storages->units;
        for (size_t i = 1; unit != NULL; i++) {
            if (!look_after(storages, unit, &change)) {
                unit = unit->next;
                continue;
            }
            tierce__lock_drop(&storages->lock);
            tell(storages, &change);
            tierce__lock_take(&storages->lock);
            unit = unit_at(storages, i); /* the list may have changed */
        }
        if (!storages->is_ending)
            (void)tierce__cond_wait(&storages->ending, &storages->lock,
                                    tierce__deadline_in_ms(tick_ms(&storages->opts)));
    }
    tierce__lock_drop(&storages->lock);
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

int tierce__storages_open(struct tierce__storages **out, const struct tierce__storages_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__storages *storages = tierce__calloc(1, sizeof(*storages));
    if (storages == NULL)
        return -ENOMEM;
    storages->magic = TIERCE__STORAGES_MAGIC;
    storages->opts = *opts;
    if (storages->opts.probe_timeout_ms == 0)
        storages->opts.probe_timeout_ms = TIMEOUT_MS;
    if (storages->opts.failures == 0)
        storages->opts.failures = FAILURES;
    if (storages->opts.find_ops == NULL)
        storages->opts.find_ops = tierce__storage_ops_find;
    storages->version = UINT64_MAX;
    tierce__lock_init(&storages->lock, TIERCE__LOCK_STORAGES);
    tierce__cond_init(&storages->ending);
    int rc = 0;
    if (opts->probe_interval_ms > 0)
        rc = -pthread_create(&storages->prober, NULL, probe_all, storages);
    if (rc != 0) {
        tierce__cond_fini(&storages->ending);
        tierce__lock_fini(&storages->lock);
        tierce__free(storages);
        return rc;
    }
    storages->has_prober = opts->probe_interval_ms > 0;
    *out = storages;
    return 0;
}

void tierce__storages_close(struct tierce__storages *storages)
{
    if (storages == NULL)
        return;
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    tierce__lock_take(&storages->lock);
    storages->is_ending = true;
    tierce__cond_signal(&storages->ending);
    tierce__lock_drop(&storages->lock);
    if (storages->has_prober)
        pthread_join(storages->prober, NULL);
    tierce__lock_take(&storages->lock);
    TIERCE_ASSERT(storages->is_ending);
    while (storages->units != NULL)
        retire(storages, &storages->units);
    struct storages_unit *retired = storages->retired;
    storages->retired = NULL;
    tierce__lock_drop(&storages->lock);
    reap_all(retired);
    TIERCE_ASSERT(storages->units == NULL && storages->retired == NULL);
    tierce__cond_fini(&storages->ending);
    tierce__lock_fini(&storages->lock);
    storages->magic = 0;
    tierce__free(storages);
}

/* ---- queries --------------------------------------------------------------------------------- */

bool tierce__storages_is_available(struct tierce__storages *storages,
                                   const struct tierce__storage *storage)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    TIERCE_DASSERT(storage->number > 0);
    unsigned bits =
        atomic_load_explicit(&storages->troubles[storage->number], memory_order_relaxed);
    if (bits == 0 && must_be_marked(storages, storage))
        return false; /* its first probe is not over */
    return storage->is_enabled && storage->contents == TIERCE__CONTENTS_KEPT &&
           (bits & ~(unsigned)TIERCE__STORAGE_SEEN) == 0;
}

bool tierce__storages_has_wrong_mark(struct tierce__storages *storages,
                                     const struct tierce__storage *storage)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    return (tierce__storages_troubles(storages, storage->number) & TIERCE__STORAGE_WRONG_MARK) != 0;
}

int tierce__storages_try(const struct tierce__storages *storages,
                         const struct tierce__storage *storage, char why[128])
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    const struct tierce__storage_ops *ops = tierce__storages_ops(storages, storage->type);
    struct tierce__storage_worker *worker;
    why[0] = '\0';
    if (ops == NULL)
        return 0;
    int rc = start_worker(&worker, storages, storage, ops, why);
    if (rc != 0)
        return rc;
    rc = tierce__storage_worker_try(worker, why);
    tierce__storage_worker_end(worker);
    (void)tierce__storage_worker_has_ended(worker, true);
    tierce__storage_worker_forget(worker);
    return rc;
}

bool tierce__storages_is_managed(const struct tierce__storages *storages,
                                 enum tierce__storage_type type)
{
    return tierce__storages_ops(storages, type) != NULL;
}

/* The reason why a storage has no unit; "": it has one, or is not known yet. */
static const char *why_unmade(const struct tierce__storages *storages, uint16_t number)
{
    tierce__lock_assert_held(&storages->lock);
    for (uint32_t i = 0; i < storages->unmade_count; i++) {
        if (storages->unmade[i].number == number)
            return storages->unmade[i].why;
    }
    return "";
}

void tierce__storages_state(struct tierce__storages *storages, const char *name,
                            struct tierce__storage_state *out)
{
    TIERCE_CHECK_MAGIC(storages, TIERCE__STORAGES_MAGIC);
    const struct tierce__catalog *catalog = tierce__registry_acquire(storages->opts.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    struct tierce__storage_report report = {.used_share = -1};
    bool needs_mark = false;
    *out = (struct tierce__storage_state){.used_share = -1};
    if (storage != NULL) {
        tierce__lock_take(&storages->lock);
        struct storages_unit *unit = *tierce__storages_find(storages, storage->number);
        if (unit != NULL)
            tierce__storage_worker_report(unit->worker, &report);
        else
            snprintf(report.why, sizeof(report.why), "%s", why_unmade(storages, storage->number));
        needs_mark = unit != NULL && unit->needs_mark && report.why[0] == '\0';
        tierce__lock_drop(&storages->lock);
        out->is_enabled = storage->is_enabled;
        out->is_managed = tierce__storages_is_managed(storages, storage->type);
        bool is_kept =
            storage->contents == TIERCE__CONTENTS_KEPT || storage->type == TIERCE__STORAGE_NODE;
        out->is_well = tierce__storages_troubles(storages, storage->number) == 0 && is_kept;
        out->is_probed = report.is_probed;
        out->used_share = report.used_share;
        if (report.is_probed) {
            out->probe_age_ms = (tierce__now_ns() - report.probed_ns) / TIERCE__MS_NS;
            TIERCE_DASSERT(report.probed_ns > 0);
            out->probe_took_us = report.took_ns / 1000;
        }
        snprintf(out->why, sizeof(out->why), "%s",
                 (tierce__storages_troubles(storages, storage->number) & TIERCE__STORAGE_SILENT) !=
                         0
                     ? "no sign of life of its node"
                 : report.hangs ? "it does not answer"
                 : !is_kept     ? "its locations are being dropped"
                 : needs_mark   ? "it gets its mark with its first probe, and is used then"
                                : report.why);
    }
    tierce__registry_release(storages->opts.registry, catalog);
}

int tierce__storages_hold_worker(struct tierce__storage_worker **out,
                                 struct tierce__storages *storages,
                                 const struct tierce__storage *storage)
{
    struct storages_unit *unit = NULL;
    char why[128] = "";
    tierce__lock_take(&storages->lock);
    int rc = take_unit(&unit, storages, storage, false, why);
    if (unit != NULL)
        tierce__storage_worker_hold(unit->worker);
    TIERCE_DASSERT(unit == NULL || unit->number == storage->number);
    *out = unit != NULL ? unit->worker : NULL;
    tierce__lock_drop(&storages->lock);
    return rc;
}
