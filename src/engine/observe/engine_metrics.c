/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/engine_metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_write.h"
#include "base/text/prometheus.h"
#include "engine/engine_config.h"
#include "engine/engine.h"
#include "engine/observe/inbox_metrics.h"
#include "engine/observe/operate.h"
#include "engine/observe/operate_page.h"
#include "engine/observe/codec_metrics.h"
#include "engine/observe/peers_metrics.h"
#include "engine/why/why_answer.h"

#include <tierce/version.h>

/* ---- the numbers of the engine --------------------------------------------------------------- */

struct metric_row {
    const char *name, *text;
    size_t offset; /* in struct tierce_engine_stats */
};

static const struct metric_row rows[] = {
#define TIERCE_STAT(name, text) {#name, text, offsetof(struct tierce_engine_stats, name)},
#include <tierce/stats.def>
#undef TIERCE_STAT
};

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);
    return n > e && strcmp(name + n - e, end) == 0;
}

static int64_t value_of(const struct tierce_engine_stats *stats, const struct metric_row *row)
{
    TIERCE_DASSERT(row->offset + sizeof(int64_t) <= sizeof(*stats));
    int64_t value;
    memcpy(&value, (const char *)stats + row->offset, sizeof(value));
    return value;
}

static void tell_engine(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(engine, &stats);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool is_level = ends_with(rows[i].name, "_now") || ends_with(rows[i].name, "_cap_bytes") ||
                        ends_with(rows[i].name, "_status") || ends_with(rows[i].name, "_today");
        tierce__prometheus_put(
            text, &(struct tierce__metric){.name = rows[i].name,
                                           .help = rows[i].text,
                                           .is_counter = !is_level,
                                           .value = (double)value_of(&stats, &rows[i])});
    }
}

/* ---- the directory --------------------------------------------------------------------------- */

static void tell_directory(const struct tierce_engine *engine, struct tierce__prometheus *text)
{
    if (!atomic_load_explicit(&engine->reports.is_there, memory_order_relaxed))
        return;
    tierce__prometheus_put(
        text,
        &(struct tierce__metric){
            .name = "directory_resync_count",
            .help = "How often all contents had to be sent to the directory again",
            .is_counter = true,
            .value = (double)atomic_load_explicit(&engine->reports.resyncs, memory_order_relaxed)});
    tierce__prometheus_put(
        text,
        &(struct tierce__metric){
            .name = "directory_complete_status",
            .help = "1: all contents were sent to the directory; 0: they are being sent",
            .value = atomic_load_explicit(&engine->reports.is_complete, memory_order_relaxed)});
}

/* ---- the numbers of each tier ---------------------------------------------------------------- */

static const struct tier_row {
    const char *name, *help;
    size_t offset; /* of a uint64_t in struct tierce__tier_stats */
    bool is_counter, by_policy;
} tier_rows[] = {
#define ROW(name, field, is_counter, help)                                                         \
    {                                                                                              \
        "tier." name, help, offsetof(struct tierce__tier_stats, field), is_counter, false          \
    }
    ROW("chunks", chunks, false, "Chunks that can be found."),
    ROW("used_bytes", used_bytes, false,
        "Bytes that count against the cap, padding and index included."),
    ROW("cap_bytes", cap_bytes, false, "Maximum bytes of the tier."),
    ROW("queued_bytes", queued_bytes, false, "Bytes waiting to be written."),
    ROW("durable_chunks", durable_chunks, false, "Chunks that survive a crash."),
    ROW("put_chunks", put_chunks, true, "Chunks put."),
    ROW("put_bytes", put_bytes, true, "Bytes put."),
    ROW("reads", get_chunks, true, "Reads served."),
    ROW("read_bytes", get_bytes, true, "Bytes read."),
    {"tier.evicted_chunks", "Chunks evicted.", offsetof(struct tierce__tier_stats, evicted_chunks),
     true, true},
    ROW("dropped_puts", dropped_puts, true, "Chunks not written because the queue was full."),
    ROW("slots", slots, false, "Maximum number of chunks (memory.chunks, disk.chunks)."),
    ROW("used_slots", used_slots, false, "Chunks that count against it, unfinished ones included."),
    ROW("out_of_slots", out_of_slots, true,
        "Times that chunks were evicted, or a chunk rejected, for their number and not their "
        "bytes."),
    ROW("had_chunks", had_chunks, true,
        "Chunks not sent because the remote store had them already."),
    ROW("errors", errors, true, "Errors of the device."),
    ROW("connections", connections, false, "Connections to a remote store."),
    ROW("connects", connects, true, "Connections made to a remote store."),
    ROW("waiting", waiting, false, "Requests that wait for a connection to a remote store."),
    ROW("calls_hanging", calls_hanging, false,
        "Calls to a remote store that did not return by their deadline."),
#undef ROW
};

/* A snapshot, so that the lines of a page belong together. */
struct tier_numbers {
    const char *name;
    const char *policy;
    bool in_service;
    bool shared;       /* remote: no chunks, cap or evictions known */
    const char *state; /* of its breaker */
    struct tierce__tier_stats stats;
    bool has_unsent; /* a remote store or the disk */
    struct tierce__unsent_report unsent;
};

static const char *state_name(const struct tierce__health *health)
{
    switch (tierce__health_state(health)) {
    case TIERCE__HEALTH_CLOSED:
        return "closed";
    case TIERCE__HEALTH_OPEN:
        return "open";
    case TIERCE__HEALTH_HALF_OPEN:
        return "half_open";
    }
    return "";
}

static size_t read_tiers(struct tierce_engine *engine, struct tier_numbers out[TIERCE__TIERS_MAX])
{
    TIERCE_DASSERT(engine->level_count <= TIERCE__TIERS_MAX);
    for (size_t i = 0; i < engine->level_count; i++) {
        struct tierce__level *level = &engine->levels[i];
        out[i].name = level->tier->ops->name;
        out[i].policy = level->policy;
        out[i].in_service = tierce__health_serves(&level->health);
        out[i].shared = level->health.shared;
        out[i].state = state_name(&level->health);
        tierce__storage_stats(level, &out[i].stats);
        out[i].has_unsent = level->unsent.chunks != NULL;
        if (out[i].has_unsent)
            tierce__unsent_report(level, &out[i].unsent);
    }
    return engine->level_count;
}

static uint64_t tier_value(const struct tier_numbers *tier, const struct tier_row *row)
{
    TIERCE_DASSERT(row->offset + sizeof(uint64_t) <= sizeof(tier->stats));
    uint64_t value;
    memcpy(&value, (const char *)&tier->stats + row->offset, sizeof(value));
    return value;
}

/* Of tiers whose policy uses hints. */
static void tell_hints(const struct tier_numbers *tiers, size_t count, bool returns,
                       struct tierce__prometheus *text)
{
    for (size_t i = 0; i < count; i++) {
        const struct tierce__policy_hints *hints = &tiers[i].stats.hints;
        for (size_t k = 1; tiers[i].stats.has_hints && k < TIERCE__HINTS; k++) {
            struct tierce__metric_tag tags[] = {
                {"tier", tiers[i].name},
                {"hint", tierce__policy_hint_name((enum tierce__policy_hint)k)}};
            tierce__prometheus_put(
                text, &(struct tierce__metric){
                          .name = returns ? "tier.hint_returns" : "tier.hint_uses",
                          .help = returns ? "Uses of chunks whose use before had this hint."
                                          : "Uses of chunks with a hint of a client.",
                          .is_counter = true,
                          .value = (double)(returns ? hints->returned[k] : hints->used[k]),
                          .tags = tags,
                          .tag_count = 2});
        }
    }
}

static const struct unsent_row {
    const char *name, *help;
    size_t offset; /* of a uint64_t in struct tierce__unsent_report */
    bool is_counter;
} unsent_rows[] = {
#define ROW(name, field, is_counter, help)                                                         \
    {                                                                                              \
        "tier." name, help, offsetof(struct tierce__unsent_report, field), is_counter              \
    }
    ROW("sent_late_chunks", sent_late, true,
        "Chunks that a tier did not get when they were stored, and that were sent later."),
    ROW("lost_chunks", lost, true,
        "Chunks that a tier did not get, and that are not sent until they are stored again."),
    ROW("unsent_waiting", waiting, false,
        "Chunks that a tier did not get, and that are sent later if they are still held."),
#undef ROW
};

static uint64_t unsent_value(const struct tier_numbers *tier, const struct unsent_row *row)
{
    TIERCE_DASSERT(row->offset + sizeof(uint64_t) <= sizeof(tier->unsent));
    uint64_t value;
    memcpy(&value, (const char *)&tier->unsent + row->offset, sizeof(value));
    return value;
}

static void tell_unsent(const struct tier_numbers *tiers, size_t count,
                        struct tierce__prometheus *text)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t r = 0; r < (tiers[i].has_unsent ? TIERCE__UNSENT_REASONS : 0); r++) {
            struct tierce__metric_tag tags[] = {{"tier", tiers[i].name},
                                                {"reason", tierce__unsent_reason_name(r)}};
            tierce__prometheus_put(
                text, &(struct tierce__metric){
                          .name = "tier.unsent_chunks",
                          .help = "Chunks that a tier did not get when they were stored.",
                          .is_counter = true,
                          .value = (double)tiers[i].unsent.skipped[r],
                          .tags = tags,
                          .tag_count = 2});
        }
    }
    for (size_t r = 0; r < sizeof(unsent_rows) / sizeof(unsent_rows[0]); r++) {
        for (size_t i = 0; i < count; i++) {
            struct tierce__metric_tag tag = {"tier", tiers[i].name};
            if (tiers[i].has_unsent)
                tierce__prometheus_put(
                    text, &(struct tierce__metric){
                              .name = unsent_rows[r].name,
                              .help = unsent_rows[r].help,
                              .is_counter = unsent_rows[r].is_counter,
                              .value = (double)unsent_value(&tiers[i], &unsent_rows[r]),
                              .tags = &tag,
                              .tag_count = 1});
        }
    }
}

static void tell_tiers(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    struct tier_numbers tiers[TIERCE__TIERS_MAX];
    size_t count = read_tiers(engine, tiers);
    for (size_t r = 0; r < sizeof(tier_rows) / sizeof(tier_rows[0]); r++) {
        for (size_t i = 0; i < count; i++) {
            struct tierce__metric_tag tags[] = {{"tier", tiers[i].name},
                                                {"policy", tiers[i].policy}};
            tierce__prometheus_put(text, &(struct tierce__metric){
                                             .name = tier_rows[r].name,
                                             .help = tier_rows[r].help,
                                             .is_counter = tier_rows[r].is_counter,
                                             .value = (double)tier_value(&tiers[i], &tier_rows[r]),
                                             .tags = tags,
                                             .tag_count = tier_rows[r].by_policy ? 2 : 1});
        }
    }
    tell_hints(tiers, count, false, text);
    tell_hints(tiers, count, true, text);
    for (size_t i = 0; i < count; i++) {
        struct tierce__metric_tag tag = {"tier", tiers[i].name};
        tierce__prometheus_put(
            text,
            &(struct tierce__metric){
                .name = "tier.in_service",
                .help =
                    "1 while the tier is in service, 0 while it is out of service after failures.",
                .value = tiers[i].in_service,
                .tags = &tag,
                .tag_count = 1});
    }
    tell_unsent(tiers, count, text);
}

/* Memory answers at once. */
static void tell_latencies(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    static const struct {
        const char *name, *help;
        bool writes;
    } kinds[] = {
        {"tier.read_seconds", "Duration of reads of any length.", false},
        {"tier.write_seconds", "Duration of writes of chunks, queueing included.", true},
    };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (size_t i = 1; i < engine->level_count; i++) {
            struct tierce__level *level = &engine->levels[i];
            struct tierce__metric_tag tag = {"tier", level->tier->ops->name};
            tierce__prometheus_put_latency(
                text,
                &(struct tierce__metric){
                    .name = kinds[k].name, .help = kinds[k].help, .tags = &tag, .tag_count = 1},
                kinds[k].writes ? &level->health.writes : &level->health.reads);
        }
    }
}

static void put_gpu_direct(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    if (engine->direct.bytes == 0)
        return;
    uint64_t chunks = atomic_load_explicit(&engine->direct.chunks, memory_order_relaxed);
    tierce__prometheus_put(
        text, &(struct tierce__metric){.name = "gpu_direct.chunks",
                                       .help = "Chunks that loads have read from disk into the "
                                               "memory of a GPU (disk.gpu_direct).",
                                       .is_counter = true,
                                       .value = (double)chunks});
}

char *tierce__engine_metrics(struct tierce_engine *engine, size_t *bytes)
{
    struct tierce__prometheus text = {0};
    struct tierce__metric_tag version = {"version", tierce_version()};
    tierce__prometheus_put(
        &text,
        &(struct tierce__metric){
            .name = "build_info", .help = "1.", .value = 1, .tags = &version, .tag_count = 1});
    tell_engine(engine, &text);
    tell_directory(engine, &text);
    tierce__peers_metrics(engine, &text);
    tierce__inbox_metrics(engine, &text);
    tierce__codec_metrics(engine, &text);
    put_gpu_direct(engine, &text);
    tell_tiers(engine, &text);
    tell_latencies(engine, &text);
    return tierce__prometheus_end(&text, bytes);
}

/* ---- condition ------------------------------------------------------------------------------- */

enum tierce__engine_condition tierce__engine_condition(const struct tierce_engine_stats *stats)
{
    return stats->memory_only_now != 0                          ? TIERCE__ENGINE_MEMORY_ONLY
           : stats->remotes_in_service_now < stats->remotes_now ? TIERCE__ENGINE_DEGRADED
           : stats->disk_full_now != 0                          ? TIERCE__ENGINE_DISK_FULL
                                                                : TIERCE__ENGINE_OK;
}

const char *tierce__engine_condition_name(enum tierce__engine_condition state)
{
    switch (state) {
    case TIERCE__ENGINE_OK:
        return "ok";
    case TIERCE__ENGINE_DISK_FULL:
        return "disk full";
    case TIERCE__ENGINE_DEGRADED:
        return "degraded";
    case TIERCE__ENGINE_MEMORY_ONLY:
        return "memory only";
    }
    return "";
}

/* "out of service: " and the names of the remote stores that are. */
static void name_stores_out(struct tierce_engine *engine, char text[TIERCE__ENGINE_REASON_BYTES])
{
    size_t used = (size_t)snprintf(text, TIERCE__ENGINE_REASON_BYTES, "out of service:");
    const char *separator = " ";
    for (size_t i = 1; i < engine->level_count; i++) {
        const struct tierce__level *level = &engine->levels[i];
        if (!level->health.shared || tierce__health_serves(&level->health))
            continue;
        int bytes = snprintf(text + used, TIERCE__ENGINE_REASON_BYTES - used, "%s%s", separator,
                             level->tier->ops->name);
        used += (size_t)bytes;
        TIERCE_ASSERT(used < TIERCE__ENGINE_REASON_BYTES);
        separator = ", ";
    }
}

void tierce__engine_condition_reason(struct tierce_engine *engine,
                                     enum tierce__engine_condition state,
                                     char text[TIERCE__ENGINE_REASON_BYTES])
{
    text[0] = '\0';
    switch (state) {
    case TIERCE__ENGINE_OK:
        break;
    case TIERCE__ENGINE_DISK_FULL:
        snprintf(text, TIERCE__ENGINE_REASON_BYTES,
                 "the file system of disk.path has no room for new chunks");
        break;
    case TIERCE__ENGINE_DEGRADED:
        name_stores_out(engine, text);
        break;
    case TIERCE__ENGINE_MEMORY_ONLY:
        snprintf(text, TIERCE__ENGINE_REASON_BYTES,
                 "disk.path cannot be used, or is out of service after errors");
        break;
    }
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static void put_unsent(const struct tier_numbers *tier, struct tierce__json_write *json)
{
    tierce__json_write_open(json, "unsent_chunks", '{');
    for (size_t r = 0; r < TIERCE__UNSENT_REASONS; r++)
        tierce__json_write_signed(json, tierce__unsent_reason_name(r),
                                  (int64_t)tier->unsent.skipped[r]);
    tierce__json_write_close(json, '}');
    for (size_t r = 0; r < sizeof(unsent_rows) / sizeof(unsent_rows[0]); r++)
        tierce__json_write_signed(json, unsent_rows[r].name + strlen("tier."),
                                  (int64_t)unsent_value(tier, &unsent_rows[r]));
}

static void put_tiers(struct tierce_engine *engine, struct tierce__json_write *json)
{
    struct tier_numbers tiers[TIERCE__TIERS_MAX];
    size_t count = read_tiers(engine, tiers);
    tierce__json_write_open(json, "tiers", '[');
    for (size_t i = 0; i < count; i++) {
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "name", tiers[i].name);
        tierce__json_write_bool(json, "in_service", tiers[i].in_service);
        tierce__json_write_bool(json, "shared", tiers[i].shared);
        tierce__json_write_text(json, "breaker", tiers[i].state);
        for (size_t r = 0; r < sizeof(tier_rows) / sizeof(tier_rows[0]); r++)
            tierce__json_write_signed(json, tier_rows[r].name + strlen("tier."),
                                      (int64_t)tier_value(&tiers[i], &tier_rows[r]));
        if (tiers[i].has_unsent)
            put_unsent(&tiers[i], json);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

void tierce__engine_status(struct tierce_engine *engine, struct tierce__line *out)
{
    struct tierce__json_write json = {.line = out};
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(engine, &stats);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "version", tierce_version());
    tierce__json_write_signed(&json, "pid", getpid());
    char role[sizeof(engine->role)];
    tierce__lock_take(&engine->lock);
    memcpy(role, engine->role, sizeof(role));
    tierce__lock_drop(&engine->lock);
    tierce__json_write_text(&json, "role", role);
    char reason[TIERCE__ENGINE_REASON_BYTES];
    enum tierce__engine_condition state = tierce__engine_condition(&stats);
    tierce__engine_condition_reason(engine, state, reason);
    tierce__json_write_text(&json, "state", tierce__engine_condition_name(state));
    tierce__json_write_text(&json, "state_reason", reason);
    tierce__json_write_text(&json, "disk_path", engine->disk_path);
    tierce__json_write_signed(&json, "uptime_ms",
                              (int64_t)((tierce__now_ns() - engine->opened_ns) / TIERCE__MS_NS));
    tierce__json_write_text(&json, "mode", tierce_mode_name(tierce_engine_mode(engine)));
    tierce__json_write_open(&json, "stats", '{');
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tierce__json_write_signed(&json, rows[i].name, value_of(&stats, &rows[i]));
    tierce__json_write_close(&json, '}');
    put_tiers(engine, &json);
    tierce__peers_status(engine, &json);
    tierce__inbox_status(engine, &json);
    tierce__codec_status(engine, &json);
    tierce__json_write_name(&json, "namespaces");
    tierce__put_namespaces(engine, out);
    tierce__json_write_close(&json, '}');
    tierce__line_put(out, "\n");
}

/* ---- the pages ------------------------------------------------------------------------------- */

static void show_metrics(void *arg, const struct tierce__control_query *query,
                         struct tierce__control_answer *answer)
{
    (void)query;
    size_t bytes;
    char *page = tierce__engine_metrics(arg, &bytes);
    answer->type = "text/plain; version=0.0.4; charset=utf-8";
    answer->body =
        (struct tierce__line){.text = page, .bytes = bytes, .room = bytes, .failed = page == NULL};
}

static void show_status(void *arg, const struct tierce__control_query *query,
                        struct tierce__control_answer *answer)
{
    (void)query;
    answer->type = "application/json";
    tierce__engine_status(arg, &answer->body);
}

const struct tierce__control_route tierce__engine_pages[] = {
    {TIERCE__CONTROL_GET, "/metrics", true, show_metrics},
    {TIERCE__CONTROL_GET, "/status", false, show_status},
    {TIERCE__CONTROL_POST, "/why", false, tierce__why_page},
    {TIERCE__CONTROL_POST, "/mode", false, tierce__mode_page},
    {TIERCE__CONTROL_POST, "/clear", false, tierce__clear_page},
    {TIERCE__CONTROL_POST, "/backfill", false, tierce__backfill_page},
};
const size_t tierce__engine_page_count =
    sizeof(tierce__engine_pages) / sizeof(tierce__engine_pages[0]);
