/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <string.h>

/* ---- writes that were rejected, blocks that left --------------------------------------------- */

/* Names in metrics; `limit` is the name that tierce__quota_reserve returns, or NULL. */
static const struct {
    const char *name, *limit;
} rejections[TIERCE__REJECTIONS] = {
    [TIERCE__REJECTED_BY_GROUP] = {"group_quota", "group"},
    [TIERCE__REJECTED_BY_TYPE] = {"type_quota", "type"},
    [TIERCE__REJECTED_BY_SHARED] = {"global_quota", "shared"},
    [TIERCE__REJECTED_BY_STORAGE] = {"storage_capacity", "storage"},
    [TIERCE__REJECTED_BY_KEYS] = {"max_key_count", NULL},
    [TIERCE__REJECTED_BY_SESSIONS] = {"open_writes", NULL},
    [TIERCE__REJECTED_NO_STORAGE] = {"no_storage", NULL},
    [TIERCE__REJECTED_BY_INDEX] = {"index", NULL},
};

const char *tierce__rejection_name(enum tierce__rejection reason)
{
    TIERCE_DASSERT(reason < TIERCE__REJECTIONS);
    return rejections[reason].name;
}

void tierce__live_count_rejected(struct tierce__live *live, enum tierce__rejection reason,
                                 size_t keys)
{
    TIERCE_DASSERT(reason < TIERCE__REJECTIONS);
    atomic_fetch_add_explicit(&live->rejected_keys[reason], keys, memory_order_relaxed);
}

void tierce__live_count_limited(struct tierce__live *live, const char *limit, size_t keys)
{
    int i = 0;
    if (limit == NULL)
        return;
    while (i < TIERCE__REJECTIONS &&
           (rejections[i].limit == NULL || strcmp(rejections[i].limit, limit) != 0))
        i++;
    TIERCE_DASSERT(i < TIERCE__REJECTIONS); /* each limit of the quota has a row */
    if (i < TIERCE__REJECTIONS)
        tierce__live_count_rejected(live, (enum tierce__rejection)i, keys);
}

void tierce__live_count_reclaimed(struct tierce__live *live, const int64_t *idle_us, size_t count)
{
    uint64_t sum_us = 0;
    int64_t least_us = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        sum_us += idle_us[i] > 0 ? (uint64_t)idle_us[i] : 0;
        least_us = idle_us[i] < least_us ? idle_us[i] : least_us;
    }
    if (count == 0)
        return;
    atomic_fetch_add_explicit(&live->reclaimed_keys, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&live->reclaimed_idle_us, sum_us, memory_order_relaxed);
    atomic_store_explicit(&live->reclaim_age_us, least_us > 0 ? least_us : 0, memory_order_relaxed);
}

/* ---- numbers --------------------------------------------------------------------------------- */

struct summing {
    const char *group; /* NULL: one instance */
    struct tierce__usage *out;
};

/* Adds the counters of an instance: the numbers that only rise. */
static void add_counters(struct tierce__usage *out, struct tierce__live *live,
                         const struct tierce__meta_index_stats *stats)
{
    out->asked_keys += atomic_load_explicit(&live->asked_keys, memory_order_relaxed);
    out->found_keys += atomic_load_explicit(&live->found_keys, memory_order_relaxed);
    for (int i = 0; i < TIERCE__REJECTIONS; i++)
        out->rejected_keys[i] +=
            atomic_load_explicit(&live->rejected_keys[i], memory_order_relaxed);
    out->reclaimed_keys += atomic_load_explicit(&live->reclaimed_keys, memory_order_relaxed);
    out->reclaimed_idle_us += atomic_load_explicit(&live->reclaimed_idle_us, memory_order_relaxed);
    tierce__live_add_hints(live, &out->hints);
    out->cache_hits += stats->cache_hits;
    out->cache_misses += stats->cache_misses;
    tierce__lock_take(&live->lock);
    out->expired_sessions += live->expired_sessions;
    tierce__lock_drop(&live->lock);
}

static void sum_live(void *arg, struct tierce__live *live)
{
    struct summing *s = arg;
    struct tierce__meta_index_stats stats;
    if (s->group != NULL && strcmp(live->instance.group_name, s->group) != 0)
        return;
    tierce__meta_index_stats(live->index, &stats);
    add_counters(s->out, live, &stats);
    s->out->instances++;
    s->out->keys += stats.keys;
    s->out->serving_bytes += stats.bytes;
    s->out->cache_bytes += stats.cache_bytes;
    s->out->write_error = stats.write_error != 0 ? stats.write_error : s->out->write_error;
    for (size_t i = 0; i < 16; i++)
        s->out->serving_by_type[i] += stats.bytes_by_type[i];
    tierce__lock_take(&live->lock);
    TIERCE_DASSERT(live->sessions.count == live->deadlines.count);
    s->out->sessions += live->sessions.count;
    for (size_t i = 0; i < 16; i++) {
        s->out->writing_bytes += live->writing_by_slot[i];
        s->out->writing_by_type[i] += live->writing_by_slot[i];
    }
    tierce__lock_drop(&live->lock);
}

/* ---- the counters of removed instances ------------------------------------------------------- */

struct group_counters {
    struct tierce__list node;
    char *group;
    struct tierce__usage sums; /* only the counters */
};

static struct group_counters *find_counters(struct tierce__locator *locator, const char *group)
{
    tierce__lock_assert_held(&locator->lock);
    TIERCE__LIST_FOR_EACH (it, &locator->counters) {
        struct group_counters *counters = TIERCE__CONTAINER_OF(it, struct group_counters, node);
        if (strcmp(counters->group, group) == 0)
            return counters;
    }
    return NULL;
}

/* Drops the counters of all groups that the catalog does not have; NULL: of all groups. */
static void drop_counters(struct tierce__locator *locator, const struct tierce__catalog *catalog)
{
    TIERCE_DASSERT(catalog != NULL || !locator->is_open);
    tierce__lock_assert_held(&locator->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &locator->counters) {
        struct group_counters *counters = TIERCE__CONTAINER_OF(it, struct group_counters, node);
        if (catalog != NULL && tierce__catalog_group(catalog, counters->group) != NULL)
            continue;
        tierce__list_remove(&counters->node);
        tierce__free(counters->group);
        tierce__free(counters);
    }
}

int tierce__locator_add_counters(struct tierce__locator *locator,
                                 const struct tierce__catalog *catalog, const char *group)
{
    int rc = 0;
    tierce__lock_take(&locator->lock);
    drop_counters(locator, catalog);
    if (find_counters(locator, group) == NULL) {
        struct group_counters *counters = tierce__calloc(1, sizeof(*counters));
        char *name = tierce__strdup(group);
        rc = counters != NULL && name != NULL ? 0 : -ENOMEM;
        if (rc == 0) {
            counters->group = name;
            tierce__list_push_back(&locator->counters, &counters->node);
        } else {
            tierce__free(name);
            tierce__free(counters);
        }
    }
    tierce__lock_drop(&locator->lock);
    return rc;
}

void tierce__live_count_stop(struct tierce__live *live, const struct tierce__record *last,
                             size_t found, size_t asked)
{
    TIERCE_DASSERT(found > 0 && found <= asked);
    if (live->needs.is_sparse || !tierce__stops_count(found, asked))
        return;
    atomic_fetch_add_explicit(&live->stops_inside, last->children == 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&live->stops, 1, memory_order_relaxed);
}

struct tierce__stops tierce__live_stops(struct tierce__live *live)
{
    struct tierce__stops stops = {
        .all = atomic_load_explicit(&live->stops, memory_order_relaxed),
        .inside = atomic_load_explicit(&live->stops_inside, memory_order_relaxed)};
    if (stops.all >= TIERCE__STOPS_MOST) {
        atomic_fetch_sub_explicit(&live->stops, stops.all / 2, memory_order_relaxed);
        atomic_fetch_sub_explicit(&live->stops_inside, stops.inside / 2, memory_order_relaxed);
    }
    return stops;
}

void tierce__live_keep_counters(struct tierce__live *live)
{
    tierce__lock_assert_held(&live->locator->lock);
    struct tierce__locator *locator = live->locator;
    TIERCE_DASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) == 0);
    struct group_counters *counters = find_counters(locator, live->instance.group_name);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(live->index, &stats);
    if (counters != NULL) /* NULL: the group was removed */
        add_counters(&counters->sums, live, &stats);
    locator->departures++;
}

void tierce__locator_reset_counters(struct tierce__locator *locator)
{
    tierce__lock_assert_held(&locator->lock);
    TIERCE_ASSERT(!locator->is_open);
    drop_counters(locator, NULL);
    locator->departures++;
}

/* Sums a group's instances and its removed instances. Returns false if an instance was removed
 * meanwhile: it may have been counted twice, or not at all. */
static bool sum_group(struct tierce__locator *locator, const char *group, struct tierce__usage *out)
{
    tierce__lock_take(&locator->lock);
    const struct group_counters *counters = find_counters(locator, group);
    uint64_t departures = locator->departures;
    *out = counters != NULL ? counters->sums : (struct tierce__usage){0};
    tierce__lock_drop(&locator->lock);
    tierce__locator_each(locator, sum_live, &(struct summing){.group = group, .out = out});
    tierce__lock_take(&locator->lock);
    bool is_whole = departures == locator->departures;
    tierce__lock_drop(&locator->lock);
    return is_whole;
}

/* ---- usage ----------------------------------------------------------------------------------- */

int tierce__locator_instance_usage(struct tierce__locator *locator, const char *id,
                                   struct tierce__usage *out)
{
    char why[TIERCE__WHY_BYTES];
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, id, why);
    if (rc < 0)
        return rc;
    *out = (struct tierce__usage){0};
    sum_live(&(struct summing){.out = out}, live);
    out->reclaim_age_us = atomic_load_explicit(&live->reclaim_age_us, memory_order_relaxed);
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    const struct tierce__group *group = tierce__catalog_group(catalog, live->instance.group_name);
    out->keys_max = group != NULL && group->max_key_count > 0 ? (uint64_t)group->max_key_count : 0;
    tierce__registry_release(locator->opts.registry, catalog);
    tierce__live_release(live);
    return 0;
}

void tierce__locator_group_usage(struct tierce__locator *locator, const char *group,
                                 struct tierce__usage *out)
{
    struct tierce__quota_use use;
    while (!sum_group(locator, group, out))
        continue;
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    const struct tierce__group *found = tierce__catalog_group(catalog, group);
    if (found != NULL && found->max_key_count > 0)
        out->keys_max = (uint64_t)found->max_key_count * out->instances;
    tierce__registry_release(locator->opts.registry, catalog);
    /* The quotas' own numbers also count reserved bytes and bytes being deleted. */
    tierce__quota_group_use(locator->quota, group, &use);
    out->serving_bytes = use.by_state[TIERCE__QUOTA_SERVING];
    out->writing_bytes = use.by_state[TIERCE__QUOTA_WRITING];
    out->deleting_bytes = use.by_state[TIERCE__QUOTA_DELETING];
    memcpy(out->serving_by_type, use.by_type[TIERCE__QUOTA_SERVING], sizeof(out->serving_by_type));
    memcpy(out->writing_by_type, use.by_type[TIERCE__QUOTA_WRITING], sizeof(out->writing_by_type));
    memcpy(out->deleting_by_type, use.by_type[TIERCE__QUOTA_DELETING],
           sizeof(out->deleting_by_type));
}

uint64_t tierce__locator_storage_located(const struct tierce__locator *locator, uint16_t storage)
{
    const _Atomic uint64_t *located = tierce__storage_table_find(&locator->located, storage);
    return located != NULL ? atomic_load_explicit(located, memory_order_relaxed) : 0;
}
