/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/observe/manager_metrics.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/storage/deleter.h"
#include "manager/lmcache/controller.h"
#include "manager/locate/locator_private.h"
#include "manager/pilot/autopilot.h"
#include "manager/pilot/gain.h"

#include <stdio.h>
#include <string.h>

typedef void (*each_fn)(void *arg, const struct tierce__metric *metric);

struct telling {
    struct tierce__manager *manager;
    const struct tierce__grant *grant;
    const struct tierce__catalog *catalog;
    each_fn each;
    void *arg;
};

static const char *tag_value(const struct tierce__metric *metric, const char *key)
{
    for (size_t i = 0; i < metric->tag_count; i++) {
        if (strcmp(metric->tags[i].key, key) == 0)
            return metric->tags[i].value;
    }
    return NULL;
}

/* A metric that names neither a group nor an instance of the scope is for a scope of all, except
 * these two. */
static bool is_seen(const struct telling *t, const struct tierce__metric *metric)
{
    const char *group = tag_value(metric, "instance_group");
    const char *instance = tag_value(metric, "instance_id");
    const char *storage = tag_value(metric, "unique_name");
    bool is_account = tag_value(metric, "account") != NULL; /* these are filtered by scope before */
    if (tierce__grant_has_all(t->grant) || is_account ||
        strcmp(metric->name, "manager.is_leader") == 0)
        return true;
    if (strcmp(metric->name, "data_storage.healthy_status") == 0)
        return storage != NULL && tierce__grant_has_storage(t->grant, t->catalog, storage);
    if (group == NULL)
        return false;
    return instance != NULL ? tierce__grant_has_instance(t->grant, group, instance)
                            : tierce__grant_has_group(t->grant, group);
}

static void tell(const struct telling *t, const char *name, const char *help, bool is_counter,
                 double value, const struct tierce__metric_tag *tags, size_t tag_count)
{
    TIERCE_DASSERT(value >= 0 || (!is_counter && value == -1));
    struct tierce__metric metric = {.name = name,
                                    .help = help,
                                    .is_counter = is_counter,
                                    .value = value,
                                    .tags = tags,
                                    .tag_count = tag_count};
    if (is_seen(t, &metric))
        t->each(t->arg, &metric);
}

/* ---- calls ----------------------------------------------------------------------------------- */

enum rpc_metric { QUERY_COUNTER, ERROR_COUNTER, ERROR_CODE, QUERY_RT, RPC_METRICS };

static double rpc_value(const struct tierce__rpc_stats *stats, enum rpc_metric metric)
{
    TIERCE_ASSERT(metric < RPC_METRICS);
    uint64_t calls = atomic_load_explicit(&stats->calls, memory_order_relaxed);
    switch (metric) {
    case QUERY_COUNTER:
        return (double)calls;
    case ERROR_COUNTER:
        return (double)atomic_load_explicit(&stats->errors, memory_order_relaxed);
    case ERROR_CODE:
        return atomic_load_explicit(&stats->last_code, memory_order_relaxed);
    case QUERY_RT:
        return (double)atomic_load_explicit(&stats->last_us, memory_order_relaxed);
    case RPC_METRICS:
        break;
    }
    return 0;
}

static void tell_calls(const struct telling *t)
{
    static const struct {
        const char *name, *help;
        bool is_counter;
    } metrics[RPC_METRICS] = {
        {"service.query_counter", "Calls of an API.", true},
        {"service.error_counter", "Calls answered with a code other than OK.", true},
        {"service.error_code", "The code of the last call.", false},
        {"service.query_rt_us", "Duration of the last call, in microseconds.", false},
    };
    for (int m = 0; m < RPC_METRICS; m++) {
        for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
            const struct tierce__rpc_stats *stats = &t->manager->rpcs[id];
            if (atomic_load_explicit(&stats->calls, memory_order_relaxed) == 0)
                continue;
            struct tierce__metric_tag tags[] = {
                {"api_name", tierce__rpcs[id].method},
                {"service", tierce__rpcs[id].service},
            };
            tell(t, metrics[m].name, metrics[m].help, metrics[m].is_counter,
                 rpc_value(stats, (enum rpc_metric)m), tags, 2);
        }
    }
}

/* ---- groups, instances, storages ------------------------------------------------------------- */

static void tell_groups(const struct telling *t, const struct tierce__catalog *catalog)
{
    static const struct {
        const char *name, *help;
    } metrics[] = {
        {"cache_manager_group.usage_ratio", "Bytes in use as a share of the group's quota."},
        {"cache_manager_group.serving_bytes", "Bytes of blocks that can be read."},
        {"cache_manager_group.writing_bytes", "Bytes of blocks that are being written."},
        {"cache_manager_group.deleting_bytes", "Bytes of blocks that are being deleted."},
        {"cache_manager_group.key_count", "Blocks that can be read."},
        {"cache_manager_group.write_sessions", "Write sessions that are open."},
        {"cache_manager.write_location_expire_size", "Write sessions that expired."},
    };
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        for (size_t i = 0; i < count; i++) {
            struct tierce__usage usage;
            struct tierce__metric_tag tag = {"instance_group", groups[i].name};
            tierce__locator_group_usage(t->manager->locator, groups[i].name, &usage);
            double all = (double)(usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes);
            double values[] = {
                groups[i].capacity_bytes > 0 ? all / (double)groups[i].capacity_bytes : 0,
                (double)usage.serving_bytes,
                (double)usage.writing_bytes,
                (double)usage.deleting_bytes,
                (double)usage.keys,
                (double)usage.sessions,
                (double)usage.expired_sessions,
            };
            _Static_assert(sizeof(values) / sizeof(values[0]) ==
                               sizeof(metrics) / sizeof(metrics[0]),
                           "each metric has a value");
            bool counter = m == sizeof(values) / sizeof(values[0]) - 1;
            tell(t, metrics[m].name, metrics[m].help, counter, values[m], &tag, 1);
        }
    }
}

static void tell_hints(const struct telling *t, const struct tierce__catalog *catalog, bool returns)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        struct tierce__usage usage;
        tierce__locator_group_usage(t->manager->locator, groups[i].name, &usage);
        for (size_t k = TIERCE__HINT_NONE + 1; k < TIERCE__HINTS; k++) {
            struct tierce__metric_tag tags[] = {
                {"instance_group", groups[i].name},
                {"hint", tierce__policy_hint_name((enum tierce__policy_hint)k)}};
            tell(t,
                 returns ? "cache_manager_group.hint_return_count"
                         : "cache_manager_group.hint_use_count",
                 returns ? "Uses of blocks whose use before had this hint."
                         : "Uses of blocks with a hint of a client.",
                 true, (double)(returns ? usage.hints.returned[k] : usage.hints.used[k]), tags, 2);
        }
    }
}

struct instance_numbers {
    const struct tierce__instance *instance;
    struct tierce__usage usage;
};

static void tell_instances(const struct telling *t, const struct instance_numbers *numbers,
                           size_t count)
{
    static const struct {
        const char *name, *help;
        bool is_counter;
    } metrics[] = {
        {"cache_manager_instance.key_count", "Blocks of an instance that can be read.", false},
        {"cache_manager_instance.byte_size", "Bytes of an instance's blocks that can be read.",
         false},
        {"cache_manager_instance.asked_key_count", "Keys requested.", true},
        {"cache_manager_instance.found_key_count", "Keys found.", true},
        {"meta_indexer.total_key_count", "Keys in an instance's index.", false},
        {"meta_indexer.total_cache_usage", "Bytes of an instance's search cache.", false},
        {"meta_indexer.search_cache_hit_count", "Records found in the search cache.", true},
        {"meta_indexer.search_cache_miss_count", "Records not found in the search cache.", true},
        {"meta_indexer.search_cache_hit_ratio", "Share of records found in the search cache.",
         false},
        {"meta_indexer.writes_rejected",
         "1 while the store of the index rejects writes (a full disk).", false},
        {"cache_manager_instance.reclaimed_key_count", "Blocks evicted to make room.", true},
        {"cache_manager_instance.reclaimed_idle_seconds",
         "Sum of the idle times of evicted blocks, at eviction.", true},
        {"cache_manager_instance.reclaim_age_seconds",
         "Idle time of the most recently used block of the last eviction.", false},
    };
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        for (size_t i = 0; i < count; i++) {
            const struct tierce__usage *usage = &numbers[i].usage;
            const struct tierce__instance *instance = numbers[i].instance;
            struct tierce__metric_tag tags[] = {{"instance_group", instance->group_name},
                                                {"instance_id", instance->id}};
            double hits = (double)usage->cache_hits, tries = hits + (double)usage->cache_misses;
            double values[] = {
                (double)usage->keys,
                (double)usage->serving_bytes,
                (double)usage->asked_keys,
                (double)usage->found_keys,
                (double)usage->keys,
                (double)usage->cache_bytes,
                hits,
                (double)usage->cache_misses,
                tries > 0 ? hits / tries : 0,
                usage->write_error != 0 ? 1 : 0,
                (double)usage->reclaimed_keys,
                (double)usage->reclaimed_idle_us / 1e6,
                (double)usage->reclaim_age_us / 1e6,
            };
            _Static_assert(sizeof(values) / sizeof(values[0]) ==
                               sizeof(metrics) / sizeof(metrics[0]),
                           "each metric has a value");
            tell(t, metrics[m].name, metrics[m].help, metrics[m].is_counter, values[m], tags, 2);
        }
    }
}

static void tell_rejected(const struct telling *t, const struct instance_numbers *numbers,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (int r = 0; r < TIERCE__REJECTIONS; r++) {
            struct tierce__metric_tag tags[] = {
                {"instance_group", numbers[i].instance->group_name},
                {"instance_id", numbers[i].instance->id},
                {"reason", tierce__rejection_name((enum tierce__rejection)r)}};
            tell(t, "cache_manager_instance.rejected_key_count",
                 "Blocks whose write was requested but not started, by reason.", true,
                 (double)numbers[i].usage.rejected_keys[r], tags, 3);
        }
    }
}

/* Each instance's numbers are read once. If memory runs out, instance metrics are omitted. */
static void tell_all_of_instances(const struct telling *t, const struct tierce__catalog *catalog)
{
    size_t all, count = 0;
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &all);
    struct instance_numbers *numbers = tierce__calloc(all + 1, sizeof(*numbers));
    for (size_t i = 0; i < all && numbers != NULL; i++) {
        numbers[count].instance = &instances[i];
        count += tierce__locator_instance_usage(t->manager->locator, instances[i].id,
                                                &numbers[count].usage) == 0;
    }
    TIERCE_ASSERT(count <= all);
    tell_instances(t, numbers, count);
    tell_rejected(t, numbers, count);
    tierce__free(numbers);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

enum quota_metric { QUOTA_BYTES, WATERMARK_BYTES, USED_BYTES, QUOTA_METRICS };

static double used_bytes(uint64_t serving, uint64_t writing, uint64_t deleting)
{
    return (double)serving + (double)writing + (double)deleting;
}

static double limit_bytes(int64_t capacity)
{
    return capacity > 0 ? (double)capacity : 0;
}

/* The value for one kind of storage; false if there is none. */
static bool kind_value(double *out, const struct tierce__group *group,
                       const struct tierce__usage *usage, enum tierce__storage_type kind,
                       enum quota_metric metric)
{
    const struct tierce__type_quota *quota = tierce__group_type_quota(group, kind);
    uint32_t slot = tierce__meta_type_slot((uint8_t)kind);
    TIERCE_ASSERT(metric < QUOTA_METRICS && slot < 16);
    double used = used_bytes(usage->serving_by_type[slot], usage->writing_by_type[slot],
                             usage->deleting_by_type[slot]);
    double limit = quota != NULL ? limit_bytes(quota->capacity_bytes) : 0;
    *out = metric == QUOTA_BYTES       ? limit
           : metric == WATERMARK_BYTES ? limit * tierce__reclaimer_watermark_share(group)
                                       : used;
    return quota != NULL || (metric == USED_BYTES && used > 0);
}

static void tell_quota(const struct telling *t, const char *name, const char *help,
                       enum quota_metric metric, const struct tierce__group *group)
{
    struct tierce__usage usage;
    struct tierce__metric_tag tags[] = {{"instance_group", group->name}, {"type", "all"}};
    tierce__locator_group_usage(t->manager->locator, group->name, &usage);
    double value = metric == QUOTA_BYTES ? limit_bytes(group->capacity_bytes)
                   : metric == WATERMARK_BYTES
                       ? tierce__reclaimer_watermark_bytes(group)
                       : used_bytes(usage.serving_bytes, usage.writing_bytes, usage.deleting_bytes);
    tell(t, name, help, false, value, tags, 2);
    enum tierce__storage_type kind;
    for (size_t i = 0; (kind = tierce__storage_quota_kind(i)) != TIERCE__STORAGE_NONE; i++) {
        tags[1].value = tierce__storage_type_name(kind);
        if (kind_value(&value, group, &usage, kind, metric))
            tell(t, name, help, false, value, tags, 2);
    }
}

static void tell_quotas(const struct telling *t, const struct tierce__catalog *catalog)
{
    static const struct {
        const char *name, *help;
    } metrics[QUOTA_METRICS] = {
        {"cache_manager_group.quota_bytes",
         "Quota of the group: in total, and for each storage type that has one."},
        {"cache_manager_group.watermark_bytes", "The bytes above which blocks are reclaimed."},
        {"cache_manager_group.used_bytes",
         "Bytes that count against the quota: read, being written, being deleted."},
    };
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (int m = 0; m < QUOTA_METRICS; m++) {
        for (size_t i = 0; i < count; i++)
            tell_quota(t, metrics[m].name, metrics[m].help, (enum quota_metric)m, &groups[i]);
    }
}

/* The limits that groups share by quota.groups. */
static void tell_global_quotas(const struct telling *t)
{
    enum { NAME_BYTES = 1024 };
    char name[NAME_BYTES];
    struct tierce__quota_shared shared;
    struct tierce__quota *quota = t->manager->locator->quota;
    for (int is_used = 0; is_used < 2; is_used++) {
        for (size_t i = 0; tierce__quota_shared_at(quota, i, &shared, name, sizeof(name)); i++) {
            const uint64_t *state = shared.by_state;
            struct tierce__metric_tag tag = {"global_quota_group", shared.name};
            if (is_used)
                tell(t, "cache_manager_global_quota.used_bytes",
                     "Bytes of the groups of one global_quota_group_name.", false,
                     used_bytes(state[TIERCE__QUOTA_SERVING], state[TIERCE__QUOTA_WRITING],
                                state[TIERCE__QUOTA_DELETING]),
                     &tag, 1);
            else if (shared.limit != UINT64_MAX)
                tell(t, "cache_manager_global_quota.quota_bytes", "The limit of quota.groups.",
                     false, (double)shared.limit, &tag, 1);
        }
    }
}

struct scrub_values {
    double age_s, found, fixed;
};

static struct scrub_values scrub_values(struct tierce__manager *manager, const char *storage)
{
    struct scrub_values values = {.age_s = -1};
    struct tierce__scrub_state state;
    if (!tierce__scrub_state(manager->scrub, storage, &state))
        return values;
    int64_t now_us = tierce__locator_now_us(manager->locator);
    if (state.whole_us != 0)
        values.age_s = now_us > state.whole_us ? (double)(now_us - state.whole_us) / 1e6 : 0;
    values.found = (double)(state.counts.missing + state.counts.orphans);
    values.fixed = (double)(state.counts.dropped_locations + state.counts.deleted_orphans);
    return values;
}

static void tell_storages(const struct telling *t, const struct tierce__catalog *catalog)
{
    static const char *const names[] = {
        "data_storage.healthy_status",    "data_storage.storage_usage_ratio",
        "data_storage.byte_size",         "data_storage.capacity_bytes",
        "data_storage.watermark_bytes",   "data_storage.managed_status",
        "data_storage.scrub_age_s",       "data_storage.scrub_found_count",
        "data_storage.scrub_fixed_count", "data_storage.located_count"};
    static const char *const helps[] = {
        "1: enabled, and no probe has failed of late; an unmanaged storage is not probed.",
        "Used share of the storage's medium; -1: unknown.",
        "Bytes of locations in the storage, in any state.",
        "The storage's capacity_bytes; 0: not bounded.",
        "The bytes of all groups above which blocks in the storage are reclaimed; 0: not bounded.",
        "1: the manager probes the storage and deletes in it; 0: unmanaged.",
        "Seconds since the last scrub of the storage that judged everything; -1: none yet.",
        "Missing files and orphans that the last scrub of the storage has found.",
        "Locations that the last scrub of the storage has dropped, and orphans that it has "
        "deleted.",
        "Places in the storage that readers were given.",
    };
    size_t count;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
        for (size_t i = 0; i < count; i++) {
            struct tierce__storage_state state;
            struct tierce__usage usage;
            struct tierce__metric_tag tags[] = {
                {"type", tierce__storage_type_name(storages[i].type)},
                {"unique_name", storages[i].name}};
            tierce__storages_state(t->manager->storages, storages[i].name, &state);
            tierce__locator_storage_usage(t->manager->locator, storages[i].number, &usage);
            const struct scrub_values scrub = scrub_values(t->manager, storages[i].name);
            double values[] = {
                state.is_enabled && state.is_well,
                state.used_share < 0 ? -1 : state.used_share,
                used_bytes(usage.serving_bytes, usage.writing_bytes, usage.deleting_bytes),
                (double)storages[i].capacity_bytes,
                tierce__reclaimer_storage_watermark_bytes(&storages[i]),
                state.is_managed,
                scrub.age_s,
                scrub.found,
                scrub.fixed,
                (double)tierce__locator_storage_located(t->manager->locator, storages[i].number)};
            _Static_assert(sizeof(values) / sizeof(values[0]) == sizeof(names) / sizeof(names[0]),
                           "each metric has a value");
            bool counts = m == sizeof(values) / sizeof(values[0]) - 1;
            tell(t, names[m], helps[m], counts, values[m], tags, 2);
        }
    }
}

/* ---- work in the background ------------------------------------------------------------------ */

static void tell_queues(const struct telling *t)
{
    const struct tierce__server *server =
        atomic_load_explicit(&t->manager->server, memory_order_acquire);
    uint32_t waiting[2] = {0, 0};
    if (server != NULL)
        tierce__server_waiting(server, &waiting[0], &waiting[1]);
    for (int i = 0; i < 2; i++) {
        struct tierce__metric_tag tag = {"queue", i == 0 ? "workers" : "passwords"};
        tell(t, "service.request_queue_size", "Calls queued for a worker thread.", false,
             waiting[i], &tag, 1);
    }
}

static void tell_reports(const struct telling *t)
{
    uint64_t counts[TIERCE__REPORT_REASONS];
    tierce__locator_reports(t->manager->locator, counts);
    for (size_t reason = 0; reason < TIERCE__REPORT_REASONS; reason++) {
        struct tierce__metric_tag tag = {
            "reason", tierce__report_reason_name((enum tierce__report_reason)reason)};
        tell(t, "cache_manager.reported_location_count",
             "Locations that clients found missing or damaged, or took back.", true,
             (double)counts[reason], &tag, 1);
    }
}

static void tell_background(const struct telling *t)
{
    struct tierce__reclaimer_stats reclaimer;
    struct tierce__deleter_stats deleter;
    uint64_t lines, dropped;
    tierce__reclaimer_stats(t->manager->reclaimer, &reclaimer);
    tierce__deleter_stats(t->manager->locator->deleter, &deleter);
    tell(t, "cache_reclaimer.block_submit_count", "Blocks that were reclaimed.", true,
         (double)reclaimer.submitted_blocks, NULL, 0);
    tell(t, "cache_reclaimer.expired_block_count",
         "Blocks reclaimed because their time to live expired.", true,
         (double)reclaimer.expired_blocks, NULL, 0);
    tell(t, "cache_reclaimer.demoted_block_count",
         "Blocks that were queued to be moved to a colder storage.", true,
         (double)reclaimer.demoted_blocks, NULL, 0);
    tell(t, "cache_reclaimer.undemoted_block_count",
         "Blocks that were evicted because such moves do not keep up.", true,
         (double)reclaimer.undemoted_blocks, NULL, 0);
    tell(t, "cache_reclaimer.location_submit_count", "Locations of the reclaimed blocks.", true,
         (double)reclaimer.submitted_locations, NULL, 0);
    tell(t, "cache_reclaimer.location_del_count", "Locations whose bytes are deleted.", true,
         (double)deleter.done_locations, NULL, 0);
    tell(t, "cache_reclaimer.orphaned_location_count",
         "Locations whose bytes can only be deleted by their storage's owner.", true,
         (double)deleter.orphaned_locations, NULL, 0);
    tell_reports(t);
    tell(t, "schedule_plan_executor.waiting_task_count", "Deletions that wait.", false,
         (double)deleter.waiting, NULL, 0);
    tell(t, "schedule_plan_executor.executing_task_count", "Deletions in progress.", false,
         (double)deleter.executing, NULL, 0);
    tell(t, "schedule_plan_executor.failed_try_count", "Deletions that are tried again.", true,
         (double)deleter.failed_tries, NULL, 0);
    if (t->manager->events != NULL) {
        tierce__line_log_counts(t->manager->events, &lines, &dropped);
        tell(t, "event_publisher.dropped_count", "Events that did not fit into the queue.", true,
             (double)dropped, NULL, 0);
    }
    tell(t, "manager.is_leader", "1: this manager leads.", false, tierce__manager_leads(t->manager),
         NULL, 0);
}

/* ---- moves ----------------------------------------------------------------------------------- */

static void tell_moves(const struct telling *t)
{
    struct tierce__moves_stats stats;
    tierce__moves_stats(tierce__locator_moves(t->manager->locator), &stats);
    const struct {
        const char *name, *help;
        bool is_counter;
        const uint64_t *values; /* by reason */
    } metrics[] = {
        {"moves.queued_count", "Blocks that wait to be copied to another storage.", false,
         stats.queued},
        {"moves.queued_bytes", "Bytes of them.", false, stats.queued_bytes},
        {"moves.refused_count", "Blocks that were not queued, because too many wait.", true,
         stats.refused},
        {"moves.moved_count", "Blocks that were copied or moved.", true, stats.moved},
        {"moves.moved_bytes", "Bytes of them.", true, stats.moved_bytes},
    };
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        for (size_t i = 0; i < TIERCE__MOVE_REASONS; i++) {
            struct tierce__metric_tag tag = {"reason",
                                             tierce__move_reason_name((enum tierce__move_reason)i)};
            tell(t, metrics[m].name, metrics[m].help, metrics[m].is_counter,
                 (double)metrics[m].values[i], &tag, 1);
        }
    }
    for (size_t i = 0; i < TIERCE__MOVE_RESULTS; i++) {
        struct tierce__metric_tag tag = {"result",
                                         tierce__move_result_name((enum tierce__move_result)i)};
        tell(t, "moves.ended_count", "Blocks whose move has ended, by its result.", true,
             (double)stats.ended[i], &tag, 1);
    }
    tell(t, "moves.running_count", "Blocks that movers copy now.", false,
         (double)tierce__locator_moving(t->manager->locator), NULL, 0);
    tell(t, "moves.resting_count", "Blocks that wait for another try after a failure.", false,
         (double)stats.resting, NULL, 0);
}

/* ---- the directory --------------------------------------------------------------------------- */

static void tell_directory(const struct telling *t)
{
    struct tierce__directory_stats stats;
    tierce__directory_stats(tierce__holdings_directory(t->manager->holdings), &stats);
    tell(t, "directory.worker_count", "Workers of the directory.", false, stats.workers, NULL, 0);
    tell(t, "directory.key_count", "Chunks that some worker holds.", false, (double)stats.keys,
         NULL, 0);
    tell(t, "directory.holder_count", "Pairs of a chunk and a worker that holds it.", false,
         (double)stats.holders, NULL, 0);
    struct tierce__holdings_stats senders;
    tierce__holdings_stats(t->manager->holdings, &senders);
    tell(t, "directory.displaced_count",
         "Workers that had to resend their contents, because others waited too long.", true,
         (double)senders.displaced, NULL, 0);
    tell(t, "directory.left_out_count",
         "Changes for which directory.memory had no room: their workers are incomplete.", true,
         (double)stats.left_out, NULL, 0);
    tell(t, "directory.bytes", "Memory of the directory's table.", false, (double)stats.bytes, NULL,
         0);
}

static void tell_lmcache(const struct telling *t)
{
    struct tierce__controller_stats stats;
    if (t->manager->lmcache.controller == NULL)
        return;
    tierce__controller_stats(t->manager->lmcache.controller, &stats);
    const struct {
        const char *name, *help;
        uint64_t value;
    } counters[] = {
        {"lmcache.message_count", "Messages of LMCache's workers.", stats.messages},
        {"lmcache.operation_count", "Changes that they have reported.", stats.operations},
        {"lmcache.lookup_count", "P2P lookups.", stats.lookups},
        {"lmcache.lookup_hit_count", "P2P lookups that found a peer.", stats.lookup_hits},
        {"lmcache.invalid_count", "Messages that were refused.", stats.invalid},
        {"lmcache.unknown_count", "Messages of workers that have not registered.", stats.unknown},
        {"lmcache.gap_count", "Gaps in the numbers of changes.", stats.gaps},
        {"lmcache.sync_count", "Complete contents that were sent.", stats.syncs},
        {"lmcache.full_count", "Workers and locations for which there was no room.", stats.full},
    };
    tell(t, "lmcache.worker_count", "Workers of LMCache that have registered.", false,
         stats.workers, NULL, 0);
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        tell(t, counters[i].name, counters[i].help, true, (double)counters[i].value, NULL, 0);
}

/* ---- ghost curves ---------------------------------------------------------------------------- */

static void tell_ghost(const struct telling *t)
{
    struct tierce__ghosts_stats stats;
    tierce__ghosts_stats(t->manager->ghost, &stats);
    tell(t, "ghost.cpu_seconds", "Processor time of the thread that maintains ghost curves.", true,
         (double)stats.cpu_ns / 1e9, NULL, 0);
    tell(t, "ghost.cpu_share",
         "Its share of the process's processor time over the last 10 s or more; -1: unknown.",
         false, stats.cpu_share, NULL, 0);
    tell(t, "ghost.request_count", "Requests with keys of a sample.", true, (double)stats.requests,
         NULL, 0);
    tell(t, "ghost.dropped_request_count", "Requests that did not fit into the ring.", true,
         (double)stats.dropped, NULL, 0);
    tell(t, "ghost.coarsened_count", "How often a sample was halved because of the load.", true,
         (double)stats.coarsened, NULL, 0);
    tell(t, "ghost.unfollowed_count", "Instances without a curve, and curves that were restarted.",
         true, (double)stats.unfollowed, NULL, 0);
}

/* By groups; -1: the group has no quota or no curve, or nothing was looked up. */
static void tell_gains(const struct telling *t, const struct tierce__catalog *catalog)
{
    static const struct {
        const char *name, *help;
    } metrics[] = {
        {"cache_manager_group.curve_hit_ratio",
         "Hit rate by tokens at the bytes the group may hold, by its curve; -1: unknown."},
        {"cache_manager_group.curve_next_gib_hit_ratio",
         "Hit rate that another GiB would add; -1: unknown."},
        {"cache_manager_group.curve_next_gib_tokens_per_second",
         "Tokens a second that another GiB would let hit; -1: unknown."},
    };
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    struct tierce__gain *gains = tierce__calloc(count + 1, sizeof(*gains));
    for (size_t i = 0; i < count && gains != NULL; i++) {
        struct tierce__ghost_shape shape;
        (void)tierce__gain_of_group(&gains[i], &shape, t->manager->ghost, &groups[i], catalog);
    }
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]) && gains != NULL; m++) {
        for (size_t i = 0; i < count; i++) {
            const double values[] = {gains[i].hit_ratio, gains[i].more_hit_ratio,
                                     gains[i].more_tokens_per_second};
            struct tierce__metric_tag tag = {"instance_group", groups[i].name};
            tell(t, metrics[m].name, metrics[m].help, false, values[m], &tag, 1);
        }
    }
    tierce__free(gains);
}

static void tell_autopilot(const struct telling *t)
{
    struct tierce__autopilot_stats stats;
    tierce__autopilot_stats(t->manager->autopilot, &stats);
    const struct {
        const char *state;
        uint64_t count;
    } counts[] = {{"made", stats.steps},      {"kept", stats.kept},
                  {"undone", stats.undone},   {"not_undone", stats.stays},
                  {"advised", stats.advised}, {"not_judged", stats.not_judged},
                  {"failed", stats.failed}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct tierce__metric_tag tag = {"state", counts[i].state};
        tell(t, "autopilot.step_count", "Steps of the autopilot, since this process began.", true,
             (double)counts[i].count, &tag, 1);
    }
}

/* ---- accounts -------------------------------------------------------------------------------- */

static uint64_t load(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static void tell_use(const struct telling *t, const struct tierce__meter *meter,
                     enum tierce__use use)
{
    struct tierce__metric_tag tags[] = {{"account", meter->name}, {"kind", tierce__use_name(use)}};
    tell(t, "manager_account.used",
         "Requests, keys and bytes of blocks of an account of the token file.", true,
         (double)load(&meter->used[use]), tags, 2);
}

static void tell_refused(const struct telling *t, const struct tierce__meter *meter,
                         enum tierce__use use)
{
    struct tierce__metric_tag tags[] = {{"account", meter->name}, {"kind", tierce__use_name(use)}};
    tell(t, "manager_account.limited_calls", "Calls refused because of a limit of the account.",
         true, (double)load(&meter->refused[use]), tags, 2);
}

static void tell_limit(const struct telling *t, const struct tierce__meter *meter,
                       enum tierce__use use)
{
    struct tierce__metric_tag tags[] = {{"account", meter->name}, {"kind", tierce__use_name(use)}};
    if (meter->limits.of[use] > 0)
        tell(t, "manager_account.limit", "Limit of the account, a second.", false,
             (double)meter->limits.of[use], tags, 2);
}

/* The accounts that lie within the scope. If memory runs out, they are omitted. */
static void tell_accounts(const struct telling *t)
{
    static void (*const tellers[])(const struct telling *, const struct tierce__meter *,
                                   enum tierce__use) = {tell_use, tell_refused, tell_limit};
    struct tierce__meter **meters;
    size_t count;
    if (tierce__auth_meters(t->manager->auth, t->grant, &meters, &count) < 0)
        return;
    for (size_t f = 0; f < sizeof(tellers) / sizeof(tellers[0]); f++) {
        for (size_t i = 0; i < count * TIERCE__USES; i++)
            tellers[f](t, meters[i / TIERCE__USES], (enum tierce__use)(i % TIERCE__USES));
    }
    for (size_t i = 0; i < count; i++)
        tierce__meter_drop(meters[i]);
    tierce__free(meters);
}

void tierce__metrics_each(struct tierce__manager *manager, const struct tierce__grant *grant,
                          each_fn each, void *arg)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    struct telling t = {
        .manager = manager, .grant = grant, .catalog = catalog, .each = each, .arg = arg};
    tell_calls(&t);
    tell_queues(&t);
    tell_background(&t);
    tell_moves(&t);
    tell_directory(&t);
    tell_lmcache(&t);
    tell_ghost(&t);
    tell_autopilot(&t);
    tell_accounts(&t);
    tell_groups(&t, catalog);
    tell_hints(&t, catalog, false);
    tell_hints(&t, catalog, true);
    tell_gains(&t, catalog);
    tell_quotas(&t, catalog);
    tell_global_quotas(&t);
    tell_all_of_instances(&t, catalog);
    tell_storages(&t, catalog);
    tierce__registry_release(manager->registry, catalog);
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

static void put_metric(void *arg, const struct tierce__metric *metric)
{
    tierce__prometheus_put(arg, metric);
}

/* GetMetrics has no form for histograms. */
static void put_latencies(struct tierce__prometheus *text, const struct tierce__manager *manager)
{
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__rpc_stats *stats = &manager->rpcs[id];
        if (atomic_load_explicit(&stats->calls, memory_order_relaxed) == 0)
            continue;
        struct tierce__metric_tag tags[] = {{"api_name", tierce__rpcs[id].method},
                                            {"service", tierce__rpcs[id].service}};
        tierce__prometheus_put_latency(
            text,
            &(struct tierce__metric){
                .name = "service.query_seconds",
                .help = "Duration of calls, from the first byte read to the answer.",
                .tags = tags,
                .tag_count = 2},
            &stats->latency);
    }
}

char *tierce__metrics_text(struct tierce__manager *manager, const struct tierce__grant *grant,
                           size_t *bytes)
{
    struct tierce__prometheus text = {0};
    tierce__metrics_each(manager, grant, put_metric, &text);
    if (tierce__grant_has_all(grant))
        put_latencies(&text, manager);
    return tierce__prometheus_end(&text, bytes);
}
