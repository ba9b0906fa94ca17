/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/page.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "manager/api/admin_http.h"
#include "manager/storage/deleter.h"
#include "manager/locate/locator_private.h"
#include "manager/observe/pilot_page.h"
#include "manager/observe/workers_page.h"
#include "manager/pilot/gain.h"
#include "manager/storage/unmanaged.h"

#include <stdlib.h>
#include <string.h>

/*
 * GET /api/page gives one JSON document:
 *
 *   {"now_us", "started_us",          wall clock
 *    "node", "leader",                node ids; "": nobody is known to lead
 *    "state"                          "starts", "follows", "loads" or "leads"
 *    "groups":    [{"number", "name", "quota_bytes", "watermark_bytes", "instances", "keys",
 *                   "keys_max" (0: not bounded), "sessions", "expired_sessions", BYTES,
 *                   "warning" (of a limit that cannot be kept),
 *                   "curve": null or {"hit_ratio", "next_gib_hit_ratio",
 *                             "next_gib_tokens_per_second", "is_warm"} (curves.c),
 *                   "kinds": [{"kind", "quota_bytes" and "watermark_bytes" (null: none of its own),
 *                              BYTES}]}]
 *    "pilot":     {"groups", "steps"}  of the autopilot (pilot_page.c)
 *    "storages":  [{"name", "kind", "status", "warning", "is_enabled", "is_well",
 *                   "drain" ("moving", "dropping", "deleting", "drained"; "": it is not
 *                   drained), "drain_why" (why that does not end yet),
 *                   "probe_age_ms" and "probe_took_us" (null: not probed yet),
 *                   "why" (of the last failure), "used_share" (null: not known),
 *                   "capacity_bytes" and "watermark_bytes" (0: not bounded), BYTES,
 *                   "scrub": null or {"state", "reason", "repairs", "began_us", "ended_us" (0: it
 *                             runs), "checked_files", "missing_files", "dropped_locations",
 *                             "listed_objects", "orphans", "deleted_orphans"}}]
 *    "instances": [{"id", "group", "keys", "keys_max", "serving_bytes", "asked_keys", "found_keys",
 *                   "sessions", "expired_sessions"}]; the first 1,000 by name, of "instance_count";
 *                   with "attention_kind", "window_tokens", "every_tokens", "attention_family" and
 *                   "attention_layers" if the kind is known
 *    "workers":   [{"name", "group", "models", "transfer_address" ("": it serves nobody),
 *                   "transfer_tls", "zone", "keys", "tier_keys" (of each tier, the fastest first),
 *                   "load" (thousandths), "heard_ms" (since its last report), "gaps", "left_out",
 *                   "is_synced", "is_complete"}] of the directory; the first 1,000, of
 *                   "worker_count" (workers_page.c)
 *    "reclaim":   {"rounds", "triggered_rounds", "blocks", "locations", "bytes"}
 *    "deletions": {"waiting", "executing" (batches), "failed_tries", "done_locations",
 *                   "orphaned_locations"}
 *    "moves":     {"running", "resting", "moved", "moved_bytes", "failed" and, of these,
 *                   "unverifiable" (blocks, since the start), "queued": {REASON: blocks that wait}}
 *    "reports":   {REASON: number of places that clients reported for it} since the start
 *    "calls":     [{"service", "method", "calls", "errors", "p50_us", "p90_us", "p99_us"}]
 *    "interval_ms": between samples, "last": the newest one's number
 *    "samples":   [{"at_us", "calls", "errors", "asked_keys", "found_keys", "reclaimed_blocks",
 *                   "deleted_locations", "groups": [[number, serving, writing, deleting], ...]}]}
 *
 * It shows the part that the caller's scope holds; "has_all": the scope is all groups. For others,
 * numbers of all groups together are missing: "reclaim", "deletions", "calls", the bytes of
 * storages and their "scrub" ("used_share" is null), and the samples' numbers besides "groups".
 *
 * BYTES are "serving_bytes", "writing_bytes" and "deleting_bytes". The samples are those after the
 * number in the query ("/api/page?since=17"), so that a page asks for each of them once.
 */

enum { INSTANCES_MAX = 1000, GROUPS_MAX = TIERCE__HISTORY_GROUPS_MAX };

/* Six digits. */
static void put_double(struct tierce__json_write *json, const char *name, double value)
{
    tierce__json_write_name(json, name);
    tierce__line_put_double(json->line, value);
}

static void put_bytes(struct tierce__json_write *json, uint64_t serving, uint64_t writing,
                      uint64_t deleting)
{
    tierce__json_write_count(json, "serving_bytes", serving);
    tierce__json_write_count(json, "writing_bytes", writing);
    tierce__json_write_count(json, "deleting_bytes", deleting);
}

/* The part that a caller sees. */
struct shown {
    struct tierce__manager *manager;
    const struct tierce__catalog *catalog;
    const struct tierce__grant *grant;
};

/* ---- this manager ---------------------------------------------------------------------------- */

static void put_node(struct tierce__json_write *json, struct tierce__manager *manager)
{
    static const char *const states[] = {"starts", "follows", "loads", "leads"};
    struct tierce__elector_state elector = {0};
    int state = atomic_load_explicit(&manager->state, memory_order_acquire);
    TIERCE_ASSERT(state >= 0 && (size_t)state < sizeof(states) / sizeof(states[0]));
    /* Before that the elector and the name may not exist yet. */
    if (state != TIERCE__MANAGER_STARTS)
        tierce__elector_state(manager->elector, &elector);
    tierce__json_write_count(json, "now_us", (uint64_t)tierce__manager_now_us(manager));
    tierce__json_write_count(json, "started_us", (uint64_t)manager->started_us);
    tierce__json_write_text(json, "state", states[state]);
    tierce__json_write_text(json, "node", state != TIERCE__MANAGER_STARTS ? manager->node_id : "");
    tierce__json_write_text(json, "leader", elector.leader);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The kinds of storage that the group uses or has a quota for. */
static void put_kinds(struct tierce__json_write *json, const struct tierce__group *group,
                      const struct tierce__usage *usage)
{
    tierce__json_write_open(json, "kinds", '[');
    enum tierce__storage_type kind;
    for (size_t i = 0; (kind = tierce__storage_quota_kind(i)) != TIERCE__STORAGE_NONE; i++) {
        uint32_t slot = tierce__meta_type_slot((uint8_t)kind);
        TIERCE_ASSERT(slot < 16);
        const struct tierce__type_quota *quota = tierce__group_type_quota(group, kind);
        uint64_t serving = usage->serving_by_type[slot], writing = usage->writing_by_type[slot],
                 deleting = usage->deleting_by_type[slot];
        if (quota == NULL && serving + writing + deleting == 0)
            continue;
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "kind", tierce__storage_type_name(kind));
        if (quota != NULL) {
            uint64_t bytes = quota->capacity_bytes > 0 ? (uint64_t)quota->capacity_bytes : 0;
            double share = tierce__reclaimer_watermark_share(group);
            tierce__json_write_count(json, "quota_bytes", bytes);
            tierce__json_write_count(json, "watermark_bytes", (uint64_t)((double)bytes * share));
        } else {
            tierce__json_write_text(json, "quota_bytes", NULL);
            tierce__json_write_text(json, "watermark_bytes", NULL);
        }
        put_bytes(json, serving, writing, deleting);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

/* Of another GiB. */
static void put_gain(struct tierce__json_write *json, const struct shown *shown,
                     const struct tierce__group *group)
{
    struct tierce__ghost_shape shape;
    struct tierce__gain gain;
    if (!tierce__gain_of_group(&gain, &shape, shown->manager->ghost, group, shown->catalog) ||
        gain.hit_ratio < 0) {
        tierce__json_write_text(json, "curve", NULL);
        return;
    }
    tierce__json_write_open(json, "curve", '{');
    put_double(json, "hit_ratio", gain.hit_ratio);
    put_double(json, "next_gib_hit_ratio", gain.more_hit_ratio);
    put_double(json, "next_gib_tokens_per_second", gain.more_tokens_per_second);
    tierce__json_write_bool(json, "is_warm", shape.is_warm);
    tierce__json_write_close(json, '}');
}

static void put_groups(struct tierce__json_write *json, const struct shown *shown)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(shown->catalog, &count);
    tierce__json_write_open(json, "groups", '[');
    for (size_t i = 0; i < count; i++) {
        const struct tierce__group *group = &groups[i];
        struct tierce__usage usage;
        if (!tierce__grant_has_group(shown->grant, group->name))
            continue;
        tierce__locator_group_usage(shown->manager->locator, group->name, &usage);
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_count(json, "number", group->number);
        tierce__json_write_text(json, "name", group->name);
        tierce__json_write_count(json, "quota_bytes",
                                 group->capacity_bytes > 0 ? (uint64_t)group->capacity_bytes : 0);
        tierce__json_write_count(json, "watermark_bytes",
                                 (uint64_t)tierce__reclaimer_watermark_bytes(group));
        tierce__json_write_count(json, "instances", usage.instances);
        tierce__json_write_count(json, "keys", usage.keys);
        tierce__json_write_count(json, "keys_max", usage.keys_max);
        tierce__json_write_count(json, "sessions", usage.sessions);
        tierce__json_write_count(json, "expired_sessions", usage.expired_sessions);
        put_bytes(json, usage.serving_bytes, usage.writing_bytes, usage.deleting_bytes);
        char warning[TIERCE__WARNING_BYTES];
        tierce__group_warning(warning, shown->manager->storages, shown->catalog, group);
        tierce__json_write_text(json, "warning", warning);
        put_gain(json, shown, group);
        put_kinds(json, group, &usage);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

/* ---- storages and instances ------------------------------------------------------------------ */

/* How full a storage is, all groups together, is shown to callers of all groups. */
static void put_health(struct tierce__json_write *json, const struct tierce__storage_state *state,
                       bool has_all)
{
    tierce__json_write_bool(json, "is_enabled", state->is_enabled);
    tierce__json_write_bool(json, "is_well", state->is_well);
    if (state->is_probed) {
        tierce__json_write_count(json, "probe_age_ms", state->probe_age_ms);
        tierce__json_write_count(json, "probe_took_us", state->probe_took_us);
    } else {
        tierce__json_write_text(json, "probe_age_ms", NULL);
        tierce__json_write_text(json, "probe_took_us", NULL);
    }
    tierce__json_write_text(json, "why", state->why);
    if (state->used_share >= 0 && has_all)
        put_double(json, "used_share", state->used_share);
    else
        tierce__json_write_text(json, "used_share", NULL);
}

static void put_scrub(struct tierce__json_write *json, struct tierce__manager *manager,
                      const char *storage)
{
    struct tierce__scrub_state state;
    const struct tierce__scrub_counts *counts = &state.counts;
    if (!tierce__scrub_state(manager->scrub, storage, &state)) {
        tierce__json_write_text(json, "scrub", NULL);
        return;
    }
    tierce__json_write_open(json, "scrub", '{');
    tierce__json_write_text(json, "state", tierce__scrub_phase_name(state.phase));
    tierce__json_write_text(json, "reason", state.why);
    tierce__json_write_bool(json, "repairs", state.repairs);
    tierce__json_write_signed(json, "began_us", state.began_us);
    tierce__json_write_signed(json, "ended_us", state.ended_us);
    tierce__json_write_count(json, "checked_files", counts->checked);
    tierce__json_write_count(json, "missing_files", counts->missing);
    tierce__json_write_count(json, "dropped_locations", counts->dropped_locations);
    tierce__json_write_count(json, "listed_objects", counts->listed);
    tierce__json_write_count(json, "orphans", counts->orphans);
    tierce__json_write_count(json, "deleted_orphans", counts->deleted_orphans);
    tierce__json_write_close(json, '}');
}

static void put_storage(struct tierce__json_write *json, const struct shown *shown,
                        const struct tierce__storage *storage)
{
    struct tierce__storage_state state;
    struct tierce__usage usage;
    char warning[TIERCE__WARNING_BYTES];
    bool has_all = tierce__grant_has_all(shown->grant);
    tierce__storages_state(shown->manager->storages, storage->name, &state);
    tierce__locator_storage_usage(shown->manager->locator, storage->number, &usage);
    tierce__storage_warning(warning, shown->manager->storages, storage);
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "name", storage->name);
    tierce__json_write_text(json, "kind", tierce__storage_type_name(storage->type));
    tierce__json_write_text(json, "status", tierce__storage_status(&state));
    tierce__json_write_text(json, "warning", warning);
    struct tierce__drain_state drain = {.name = ""};
    if (storage->draining != TIERCE__DRAINING_NOT)
        tierce__locator_drain_state(shown->manager->locator, storage, &drain);
    tierce__json_write_text(json, "drain", drain.name);
    tierce__json_write_text(json, "drain_why", drain.why);
    put_health(json, &state, has_all);
    tierce__json_write_count(json, "capacity_bytes", storage->capacity_bytes);
    tierce__json_write_count(json, "watermark_bytes",
                             (uint64_t)tierce__reclaimer_storage_watermark_bytes(storage));
    if (has_all)
        put_bytes(json, usage.serving_bytes, usage.writing_bytes, usage.deleting_bytes);
    if (has_all)
        put_scrub(json, shown->manager, storage->name);
    tierce__json_write_close(json, '}');
}

static void put_storages(struct tierce__json_write *json, const struct shown *shown)
{
    size_t count;
    const struct tierce__storage *storages = tierce__catalog_storages(shown->catalog, &count);
    tierce__json_write_open(json, "storages", '[');
    for (size_t i = 0; i < count; i++) {
        if (tierce__grant_has_storage(shown->grant, shown->catalog, storages[i].name))
            put_storage(json, shown, &storages[i]);
    }
    tierce__json_write_close(json, ']');
}

static void put_attention(struct tierce__json_write *json,
                          const struct tierce__attention *attention)
{
    if (attention->kind[0] == '\0')
        return;
    tierce__json_write_text(json, "attention_kind", attention->kind);
    tierce__json_write_signed(json, "window_tokens", attention->window_tokens);
    tierce__json_write_signed(json, "every_tokens", attention->every_tokens);
    tierce__json_write_text(json, "attention_family", attention->family);
    tierce__json_write_text(json, "attention_layers", attention->layers);
}

static void put_instances(struct tierce__json_write *json, const struct shown *shown)
{
    size_t all, count = 0;
    const struct tierce__instance *instances = tierce__catalog_instances(shown->catalog, &all);
    tierce__json_write_open(json, "instances", '[');
    for (size_t i = 0; i < all; i++) {
        struct tierce__usage usage;
        if (!tierce__grant_has_instance(shown->grant, instances[i].group_name, instances[i].id))
            continue;
        if (count++ >= INSTANCES_MAX ||
            tierce__locator_instance_usage(shown->manager->locator, instances[i].id, &usage) < 0)
            continue;
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "id", instances[i].id);
        tierce__json_write_text(json, "group", instances[i].group_name);
        put_attention(json, &instances[i].attention);
        tierce__json_write_count(json, "keys", usage.keys);
        tierce__json_write_count(json, "keys_max", usage.keys_max);
        tierce__json_write_count(json, "serving_bytes", usage.serving_bytes);
        tierce__json_write_count(json, "asked_keys", usage.asked_keys);
        tierce__json_write_count(json, "found_keys", usage.found_keys);
        tierce__json_write_count(json, "sessions", usage.sessions);
        tierce__json_write_count(json, "expired_sessions", usage.expired_sessions);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_count(json, "instance_count", count);
}

/* ---- work in the background, and calls ------------------------------------------------------- */

static void put_reports(struct tierce__json_write *json, struct tierce__manager *manager)
{
    uint64_t counts[TIERCE__REPORT_REASONS];
    tierce__locator_reports(manager->locator, counts);
    tierce__json_write_open(json, "reports", '{');
    for (int reason = 0; reason < TIERCE__REPORT_REASONS; reason++)
        tierce__json_write_count(
            json, tierce__report_reason_name((enum tierce__report_reason)reason), counts[reason]);
    tierce__json_write_close(json, '}');
}

static void put_moves(struct tierce__json_write *json, struct tierce__manager *manager)
{
    struct tierce__moves_stats stats;
    uint64_t moved = 0, moved_bytes = 0, failed = 0;
    tierce__moves_stats(tierce__locator_moves(manager->locator), &stats);
    for (size_t i = 0; i < TIERCE__MOVE_REASONS; i++) {
        moved += stats.moved[i];
        moved_bytes += stats.moved_bytes[i];
    }
    for (size_t i = 0; i < TIERCE__MOVE_RESULTS; i++)
        failed += i != TIERCE__MOVED && i != TIERCE__MOVE_OVERTAKEN ? stats.ended[i] : 0;
    tierce__json_write_open(json, "moves", '{');
    tierce__json_write_count(json, "running", tierce__locator_moving(manager->locator));
    tierce__json_write_count(json, "resting", stats.resting);
    tierce__json_write_count(json, "moved", moved);
    tierce__json_write_count(json, "moved_bytes", moved_bytes);
    tierce__json_write_count(json, "failed", failed);
    tierce__json_write_count(json, "unverifiable", stats.ended[TIERCE__MOVE_UNVERIFIABLE]);
    tierce__json_write_open(json, "queued", '{');
    for (size_t i = 0; i < TIERCE__MOVE_REASONS; i++)
        tierce__json_write_count(json, tierce__move_reason_name((enum tierce__move_reason)i),
                                 stats.queued[i]);
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

static void put_background(struct tierce__json_write *json, struct tierce__manager *manager)
{
    struct tierce__reclaimer_stats reclaimer;
    struct tierce__deleter_stats deleter;
    tierce__reclaimer_stats(manager->reclaimer, &reclaimer);
    tierce__deleter_stats(manager->locator->deleter, &deleter);
    tierce__json_write_open(json, "reclaim", '{');
    tierce__json_write_count(json, "rounds", reclaimer.rounds);
    tierce__json_write_count(json, "triggered_rounds", reclaimer.triggered_rounds);
    tierce__json_write_count(json, "blocks", reclaimer.submitted_blocks);
    tierce__json_write_count(json, "locations", reclaimer.submitted_locations);
    tierce__json_write_count(json, "bytes", reclaimer.submitted_bytes);
    tierce__json_write_close(json, '}');
    tierce__json_write_open(json, "deletions", '{');
    tierce__json_write_count(json, "waiting", deleter.waiting);
    tierce__json_write_count(json, "executing", deleter.executing);
    tierce__json_write_count(json, "failed_tries", deleter.failed_tries);
    tierce__json_write_count(json, "done_locations", deleter.done_locations);
    tierce__json_write_count(json, "orphaned_locations", deleter.orphaned_locations);
    tierce__json_write_close(json, '}');
    put_moves(json, manager);
    put_reports(json, manager);
}

/* The value below which that share of the calls lies, interpolated within the bucket; for the last,
 * unbounded bucket its lower bound. */
static double percentile_us(const struct tierce__latency *latency, double share)
{
    TIERCE_ASSERT(share >= 0 && share <= 1);
    enum { BOUNDED = TIERCE__LATENCY_BUCKETS - 1 };
    uint64_t counts[TIERCE__LATENCY_BUCKETS], sum = 0;
    for (size_t i = 0; i <= BOUNDED; i++) {
        counts[i] = atomic_load_explicit(&latency->counts[i], memory_order_relaxed);
        sum += counts[i];
    }
    double rank = share * (double)sum, low = 0;
    for (size_t i = 0; i < BOUNDED; i++) {
        double high = (double)tierce__latency_bound_ns(i) / 1000;
        if (counts[i] > 0 && rank <= (double)counts[i])
            return low + (high - low) * rank / (double)counts[i];
        rank -= (double)counts[i];
        low = high;
    }
    return sum > 0 ? low : 0;
}

static void put_calls(struct tierce__json_write *json, const struct tierce__manager *manager)
{
    static const struct {
        const char *name;
        double share;
    } percentiles[] = {{"p50_us", 0.5}, {"p90_us", 0.9}, {"p99_us", 0.99}};
    tierce__json_write_open(json, "calls", '[');
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__rpc_stats *stats = &manager->rpcs[id];
        uint64_t calls = atomic_load_explicit(&stats->calls, memory_order_relaxed);
        if (calls == 0)
            continue;
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "service", tierce__rpcs[id].service);
        tierce__json_write_text(json, "method", tierce__rpcs[id].method);
        tierce__json_write_count(json, "calls", calls);
        tierce__json_write_count(json, "errors",
                                 atomic_load_explicit(&stats->errors, memory_order_relaxed));
        for (size_t p = 0; p < sizeof(percentiles) / sizeof(percentiles[0]); p++)
            put_double(json, percentiles[p].name,
                       percentile_us(&stats->latency, percentiles[p].share));
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

/* ---- over time ------------------------------------------------------------------------------- */

static void sample_calls(const struct tierce__manager *manager, struct tierce__history_sample *out)
{
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__rpc_stats *stats = &manager->rpcs[id];
        out->calls += atomic_load_explicit(&stats->calls, memory_order_relaxed);
        out->errors += atomic_load_explicit(&stats->errors, memory_order_relaxed);
    }
}

static void sample_groups(struct tierce__manager *manager, struct tierce__history_sample *out,
                          struct tierce__history_group groups[GROUPS_MAX])
{
    size_t count;
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    const struct tierce__group *all = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        struct tierce__usage usage;
        tierce__locator_group_usage(manager->locator, all[i].name, &usage);
        out->asked_keys += usage.asked_keys;
        out->found_keys += usage.found_keys;
        if (i >= GROUPS_MAX)
            continue;
        groups[out->group_count++] =
            (struct tierce__history_group){.number = all[i].number,
                                           .serving_bytes = usage.serving_bytes,
                                           .writing_bytes = usage.writing_bytes,
                                           .deleting_bytes = usage.deleting_bytes};
    }
    TIERCE_ASSERT(out->group_count <= GROUPS_MAX);
    tierce__registry_release(manager->registry, catalog);
}

void tierce__page_sample(struct tierce__manager *manager)
{
    struct tierce__history_group groups[GROUPS_MAX];
    struct tierce__reclaimer_stats reclaimer;
    struct tierce__deleter_stats deleter;
    tierce__reclaimer_stats(manager->reclaimer, &reclaimer);
    tierce__deleter_stats(manager->locator->deleter, &deleter);
    struct tierce__history_sample sample = {.at_us = tierce__manager_now_us(manager),
                                            .reclaimed_blocks = reclaimer.submitted_blocks,
                                            .deleted_locations = deleter.done_locations,
                                            .groups = groups};
    sample_calls(manager, &sample);
    sample_groups(manager, &sample, groups);
    /* If memory runs out, the plots have a gap. */
    int rc = tierce__history_add(manager->history, &sample);
    (void)rc;
}

struct put_samples {
    struct tierce__json_write *json;
    const struct shown *shown;
};

/* Whether the scope holds the group of a number. */
static bool has_number(const struct shown *shown, uint64_t number)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(shown->catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (groups[i].number == number)
            return tierce__grant_has_group(shown->grant, groups[i].name);
    }
    return tierce__grant_has_all(shown->grant);
}

static void put_sample_totals(struct tierce__json_write *json,
                              const struct tierce__history_sample *sample)
{
    tierce__json_write_count(json, "calls", sample->calls);
    tierce__json_write_count(json, "errors", sample->errors);
    tierce__json_write_count(json, "asked_keys", sample->asked_keys);
    tierce__json_write_count(json, "found_keys", sample->found_keys);
    tierce__json_write_count(json, "reclaimed_blocks", sample->reclaimed_blocks);
    tierce__json_write_count(json, "deleted_locations", sample->deleted_locations);
}

static void put_sample(void *arg, const struct tierce__history_sample *sample)
{
    const struct put_samples *put = arg;
    struct tierce__json_write *json = put->json;
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_count(json, "at_us", (uint64_t)sample->at_us);
    if (tierce__grant_has_all(put->shown->grant))
        put_sample_totals(json, sample);
    tierce__json_write_open(json, "groups", '[');
    for (size_t i = 0; i < sample->group_count; i++) {
        const struct tierce__history_group *group = &sample->groups[i];
        const uint64_t values[] = {group->number, group->serving_bytes, group->writing_bytes,
                                   group->deleting_bytes};
        if (!has_number(put->shown, group->number))
            continue;
        tierce__json_write_open(json, NULL, '[');
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++)
            tierce__json_write_count(json, NULL, values[v]);
        tierce__json_write_close(json, ']');
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

static void put_samples(struct tierce__json_write *json, const struct shown *shown, uint64_t since)
{
    struct put_samples put = {.json = json, .shown = shown};
    tierce__json_write_count(json, "interval_ms", TIERCE__HISTORY_INTERVAL_MS);
    tierce__json_write_open(json, "samples", '[');
    uint64_t last = tierce__history_each(shown->manager->history, since, put_sample, &put);
    tierce__json_write_close(json, ']');
    tierce__json_write_count(json, "last", last);
}

/* ---- serving --------------------------------------------------------------------------------- */

static void release(void *body)
{
    tierce__free(body);
}

static uint64_t since_of(const char *query)
{
    static const char name[] = "since=";
    if (strncmp(query, name, sizeof(name) - 1) != 0)
        return 0;
    return strtoull(query + sizeof(name) - 1, NULL, 10);
}

static void serve_numbers(struct tierce__manager *manager, struct tierce__call *call,
                          const struct tierce__caller *caller)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    bool has_all = tierce__grant_has_all(caller->grant);
    tierce__json_write_open(&json, NULL, '{');
    put_node(&json, manager);
    tierce__json_write_bool(&json, "has_all", has_all);
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    struct shown shown = {.manager = manager, .catalog = catalog, .grant = caller->grant};
    put_groups(&json, &shown);
    tierce__json_write_open(&json, "pilot", '{');
    tierce__pilot_page_put(&json, manager, catalog, caller->grant);
    tierce__json_write_close(&json, '}');
    put_storages(&json, &shown);
    put_instances(&json, &shown);
    tierce__workers_page_put(&json, manager, caller->grant);
    if (has_all) {
        put_background(&json, manager);
        put_calls(&json, manager);
    }
    put_samples(&json, &shown, since_of(tierce__call_info(call)->query));
    tierce__registry_release(manager->registry, catalog);
    tierce__json_write_close(&json, '}');
    TIERCE_DASSERT(line.failed || json.depth == 0);
    struct tierce__reply reply = {.status = 200,
                                  .header_name = "Cache-Control",
                                  .header_value = "no-store",
                                  .body = line.text,
                                  .bytes = line.bytes,
                                  .release = release};
    if (line.failed) {
        tierce__line_clear(&line);
        reply = (struct tierce__reply){.status = 500, .body = "{}", .bytes = 2};
    }
    tierce__call_reply(call, &reply);
}

static void serve_file(struct tierce__call *call, const char *type, const unsigned char *bytes,
                       size_t count)
{
    /* The page loads only its own two files and its numbers; injected content cannot load anything
     * else. */
    static const char policy[] =
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    tierce__call_reply(call, &(struct tierce__reply){.status = 200,
                                                     .type = type,
                                                     .header_name = "Content-Security-Policy",
                                                     .header_value = policy,
                                                     .body = bytes,
                                                     .bytes = count});
}

static void serve_html(struct tierce__manager *manager, struct tierce__call *call,
                       const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_file(call, "text/html; charset=utf-8", tierce__manager_page_html,
               tierce__manager_page_html_size);
}

static void serve_css(struct tierce__manager *manager, struct tierce__call *call,
                      const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_file(call, "text/css; charset=utf-8", tierce__manager_page_css,
               tierce__manager_page_css_size);
}

static void serve_js(struct tierce__manager *manager, struct tierce__call *call,
                     const struct tierce__caller *caller)
{
    (void)manager;
    (void)caller;
    serve_file(call, "text/javascript; charset=utf-8", tierce__manager_page_js,
               tierce__manager_page_js_size);
}

const struct tierce__http_route *tierce__page_routes(size_t *count)
{
    static const struct tierce__http_route routes[] = {{"/", "GET", serve_html},
                                                       {"/page.css", "GET", serve_css},
                                                       {"/page.js", "GET", serve_js},
                                                       {"/api/page", "GET", serve_numbers}};
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
