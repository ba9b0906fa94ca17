/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_REMOVALS_H
#define TIERCE_TESTS_SIM_REMOVALS_H

#include "sim_model.h"

/* Clients of a simulated manager remove blocks: by key, all of them, or by reporting a place. */

static uint64_t reported;

static size_t draw_keys(int64_t keys[KEYS])
{
    size_t count = 1 + below(8), first = below(KEYS);
    for (size_t i = 0; i < count; i++)
        keys[i] = 100 + (int64_t)((first + i) % KEYS);
    return count;
}

/* Blocks of these keys that no session writes are gone, and those that one writes will be. */
static void forget(int instance, const int64_t *keys, size_t count, bool is_sure)
{
    for (size_t i = 0; i < placed_count; i++) {
        struct placed *p = &placed[i];
        bool is_one = keys == NULL;
        for (size_t k = 0; k < count && !is_one; k++)
            is_one = keys[k] == p->key;
        if (!is_one || p->instance != instance || p->state == GONE)
            continue;
        removed++;
        if (p->state == WRITING || !is_sure)
            p->state = UNKNOWN;
        else
            set_state(p, GONE);
    }
}

static void remove_some(void)
{
    int64_t keys[KEYS];
    struct tierce__mask none = {0};
    int instance = (int)below(INSTANCES);
    size_t count = draw_keys(keys);
    int rc = tierce__locator_remove(h.locator, instance_ids[instance], keys, count, &none, h.why);
    REQUIRE(rc == 0 || rate > 0, "remove: %s", h.why);
    forget(instance, keys, count, rc == 0);
}

static void trim(void)
{
    int instance = (int)below(INSTANCES);
    int how = trims_meta && below(2) == 0 ? TIERCE__TRIM_META : TIERCE__TRIM_ALL;
    int rc = tierce__locator_trim(h.locator, instance_ids[instance], how, 0, 0, h.why);
    REQUIRE(rc == 0 || rate > 0, "trim: %s", h.why);
    forget(instance, NULL, 0, rc == 0);
}

/* ---- reports --------------------------------------------------------------------------------- */

enum { REPORTS_MAX = 4 };

/* A report of a place that a client was given; `is_true` false: of another key, spec or instance,
 * which must drop nothing. */
struct told_report {
    struct placed *of;
    bool is_true;
    char spec[2];
};

/* NULL: the place is another's by now. */
static struct placed *draw_placed(size_t *uri)
{
    struct placed *p = &placed[below((uint32_t)placed_count)];
    *uri = below((uint32_t)p->uri_count);
    return p->uris[*uri][0] != '\0' ? p : NULL;
}

static size_t draw_reports(struct tierce__location_report *reports, struct told_report *about,
                           int instance)
{
    size_t count = 0;
    for (size_t i = 0; i < REPORTS_MAX; i++) {
        size_t uri;
        struct placed *p = draw_placed(&uri);
        if (p == NULL)
            continue;
        uint32_t lie = below(8); /* about the key, or the spec */
        struct told_report *a = &about[count];
        *a = (struct told_report){.of = p, .spec = {p->specs[uri]}};
        a->is_true = lie > 1 && p->instance == instance;
        if (lie == 1)
            a->spec[0] = a->spec[0] == 'a' ? 'b' : 'a';
        reports[count++] = (struct tierce__location_report){
            .key = p->key + (lie == 0),
            .spec_name = a->spec,
            .uri = p->uris[uri],
            .reason = (enum tierce__report_reason)below(TIERCE__REPORT_REASONS)};
    }
    return count;
}

/* What serves at a reported place is gone. Returns the number of locations that were there for
 * sure, and adds to *doubtful those that may have been. */
static uint64_t see_reports(const struct told_report *about, size_t count, bool is_sure,
                            uint64_t *doubtful)
{
    uint64_t gone = 0;
    for (size_t i = 0; i < count; i++) {
        struct placed *p = about[i].of;
        if (!about[i].is_true)
            continue;
        *doubtful += p->state == UNKNOWN;
        if (p->state != SERVING)
            continue;
        gone++;
        if (is_sure)
            set_state(p, GONE);
        else
            p->state = UNKNOWN;
    }
    return gone;
}

/* `leads` false: an old leader, whose writes the store rejects. */
static void report_some(struct tierce__locator *locator, bool leads)
{
    struct tierce__location_report reports[REPORTS_MAX];
    struct told_report about[REPORTS_MAX];
    uint64_t dropped = 0, doubtful = 0;
    int instance = (int)below(INSTANCES);
    size_t count = placed_count > 0 ? draw_reports(reports, about, instance) : 0;
    int rc =
        tierce__locator_report(locator, instance_ids[instance], reports, count, &dropped, h.why);
    REQUIRE(rc == 0 || rate > 0 || !leads, "report: %s", h.why);
    if (!leads)
        return;
    uint64_t gone = see_reports(about, count, rc == 0, &doubtful);
    REQUIRE(rc != 0 || (dropped >= gone && dropped <= gone + doubtful),
            "%llu locations dropped, of %llu and %llu", (unsigned long long)dropped,
            (unsigned long long)gone, (unsigned long long)doubtful);
    reported += rc == 0 ? gone : 0;
}

#endif
