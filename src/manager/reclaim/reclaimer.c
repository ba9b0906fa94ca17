/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/reclaimer.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/reclaim/expiry.h"
#include "manager/locate/locator_private.h"
#include "manager/reclaim/demote.h"
#include "manager/reclaim/victims.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    INTERVAL_MS = 100,
    SAMPLE_KEYS_MAX = 60000,
    PERCENT_FULL = TIERCE__WATERMARK_PERCENT_MAX,
    PERCENT_USUAL = 80,
};

struct tierce__reclaimer {
    struct tierce__reclaimer_opts opts;
    uint64_t random;
    /* State at the last round that removed nothing. */
    uint64_t quota_changes;
    bool is_scanning;                   /* the next round continues a scan */
    int64_t due_us;                     /* when the next block may expire, or a sweep continues */
    const struct tierce__catalog *seen; /* held, so that no other catalog gets the same address */
    struct tierce__lock lock;           /* RECLAIMER: guards the fields below */
    struct tierce__cond wake, idle;
    struct tierce__reclaimer_stats stats;
    bool is_paused, is_ending, is_working;
    bool has_thread;
    pthread_t thread;
};

/* ---- excess ---------------------------------------------------------------------------------- */

static uint64_t above(double used, double limit)
{
    TIERCE_DASSERT(used >= 0 && limit >= 0);
    return used > limit ? (uint64_t)ceil(used - limit) : 0;
}

double tierce__reclaimer_watermark_share(const struct tierce__group *group)
{
    const double most = PERCENT_FULL / 100.0, usual = PERCENT_USUAL / 100.0;
    double share = group->trigger_used_share;
    share = share <= 0 ? usual : share < most ? share : most;
    TIERCE_DASSERT(share > 0 && share <= most);
    return share;
}

/* Bytes that are not being deleted already. */
static uint64_t staying(const uint64_t by_state[TIERCE__QUOTA_STATES])
{
    return by_state[TIERCE__QUOTA_WRITING] + by_state[TIERCE__QUOTA_SERVING];
}

/* The bytes to evict so that at most `mark` remain and a block of `wanted` bytes fits below the
 * limit. */
static uint64_t excess(uint64_t used, double mark, double limit, uint64_t wanted)
{
    TIERCE_DASSERT(mark >= 0 && mark <= limit);
    uint64_t by_mark = above((double)used, mark);
    uint64_t by_want = wanted > 0 ? above((double)used + (double)wanted, limit) : 0;
    return by_mark > by_want ? by_mark : by_want;
}

static double capacity_of(const struct tierce__group *group)
{
    return group->capacity_bytes > 0 ? (double)group->capacity_bytes : 0;
}

double tierce__reclaimer_watermark_bytes(const struct tierce__group *group)
{
    double limit = capacity_of(group) * tierce__reclaimer_watermark_share(group);
    if (group->trigger_used_bytes > 0 && (double)group->trigger_used_bytes < limit)
        limit = (double)group->trigger_used_bytes;
    TIERCE_ASSERT(limit >= 0);
    return limit;
}

double tierce__reclaimer_storage_watermark_bytes(const struct tierce__storage *storage)
{
    int percent = storage->watermark_percent;
    percent = percent <= 0 || percent > PERCENT_FULL ? PERCENT_FULL : percent;
    double mark = (double)storage->capacity_bytes * percent / 100;
    TIERCE_ASSERT(mark >= 0 && mark <= (double)storage->capacity_bytes);
    return mark;
}

static size_t reclaim(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog,
                      const struct tierce__need *need)
{
    struct tierce__victims_stats stats = {0};
    if (need->bytes == 0 && need->keys == 0)
        return 0;
    TIERCE_DASSERT(need->shared == NULL || need->group == NULL);
    TIERCE_DASSERT(!need->of_slot || (need->slot < 16 && need->group != NULL));
    tierce__victims_take(&(struct tierce__victims_opts){.locator = reclaimer->opts.locator,
                                                        .catalog = catalog,
                                                        .need = need,
                                                        .sample_keys = reclaimer->opts.sample_keys,
                                                        .random = &reclaimer->random,
                                                        .submitted = reclaimer->opts.submitted,
                                                        .arg = reclaimer->opts.submitted_arg},
                         &stats);
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.submitted_blocks += stats.blocks;
    reclaimer->stats.submitted_locations += stats.locations;
    reclaimer->stats.submitted_bytes += stats.bytes;
    reclaimer->stats.sampled_keys += stats.sampled_keys;
    reclaimer->stats.used_again += stats.used_again;
    reclaimer->stats.demoted_blocks += stats.demoted;
    tierce__lock_drop(&reclaimer->lock);
    return (size_t)stats.blocks;
}

/* A limit of a type or a storage, and its use. */
struct limited {
    uint64_t used, wanted;
    double mark, limit;
};

/*
 * Keeps a limit by moving blocks to colder candidates, and evicts blocks halfway between the mark
 * and the limit: the moves do not keep up. Once the mark is passed, a fiftieth of the limit more is
 * moved, so that blocks that are read can move the other way.
 */
static size_t demote(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog,
                     struct tierce__need *need, const bool *groups, const struct limited *limited)
{
    double hard = limited->mark + (limited->limit - limited->mark) / 2;
    double target = limited->mark - limited->limit / 50;
    need->bytes = excess(limited->used, hard, limited->limit, limited->wanted);
    size_t removed = reclaim(reclaimer, catalog, need);
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.undemoted_blocks += removed;
    tierce__lock_drop(&reclaimer->lock);
    if ((double)limited->used <= limited->mark ||
        tierce__moves_room(tierce__locator_moves(reclaimer->opts.locator), TIERCE__MOVE_COLD) == 0)
        return removed;
    uint64_t leaving = tierce__demote_leaving(reclaimer->opts.locator, catalog, need) + need->bytes;
    uint64_t wanted = excess(limited->used, target > 0 ? target : 0, limited->limit, 0);
    need->demotes = groups;
    need->bytes = wanted > leaving ? wanted - leaving : 0;
    return removed + reclaim(reclaimer, catalog, need);
}

static size_t keep_limit(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog,
                         struct tierce__need *need, const struct limited *limited)
{
    need->bytes = excess(limited->used, limited->mark, limited->limit, limited->wanted);
    bool *groups =
        need->bytes > 0 ? tierce__demote_begin(reclaimer->opts.locator, catalog, need) : NULL;
    size_t removed = groups != NULL ? demote(reclaimer, catalog, need, groups, limited)
                                    : reclaim(reclaimer, catalog, need);
    tierce__free(groups);
    return removed;
}

/* ---- a round --------------------------------------------------------------------------------- */

static size_t reclaim_type(struct tierce__reclaimer *reclaimer,
                           const struct tierce__catalog *catalog, const struct tierce__group *group,
                           const struct tierce__quota_use *use,
                           const struct tierce__type_quota *quota)
{
    enum tierce__storage_type type = tierce__storage_type_quota(quota->type);
    uint32_t slot = tierce__meta_type_slot((uint8_t)type);
    double limit = (double)(quota->capacity_bytes > 0 ? quota->capacity_bytes : 0);
    uint64_t used =
        use->by_type[TIERCE__QUOTA_WRITING][slot] + use->by_type[TIERCE__QUOTA_SERVING][slot];
    TIERCE_DASSERT(quota->type != TIERCE__STORAGE_NONE);
    struct tierce__need need = {.group = group->name, .of_slot = true, .slot = slot};
    return keep_limit(reclaimer, catalog, &need,
                      &(struct limited){.used = used,
                                        .wanted = use->wanted_by_type[slot],
                                        .mark = limit * tierce__reclaimer_watermark_share(group),
                                        .limit = limit});
}

struct instances_round {
    struct tierce__reclaimer *reclaimer;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group;
    size_t removed;
};

/* max_key_count limits each instance separately. */
static void reclaim_instance(void *arg, struct tierce__live *live)
{
    struct instances_round *r = arg;
    struct tierce__meta_index_stats stats;
    if (strcmp(live->instance.group_name, r->group->name) != 0)
        return;
    tierce__meta_index_stats(live->index, &stats);
    TIERCE_DASSERT(live->instance.number > 0 && r->group->max_key_count > 0);
    struct tierce__need need = {
        .group = r->group->name,
        .instance = live->instance.number,
        .keys = above((double)stats.keys, (double)r->group->max_key_count * PERCENT_FULL / 100)};
    r->removed += reclaim(r->reclaimer, r->catalog, &need);
}

static size_t reclaim_group(struct tierce__reclaimer *reclaimer,
                            const struct tierce__catalog *catalog,
                            const struct tierce__group *group)
{
    struct tierce__quota *quota = reclaimer->opts.locator->quota;
    struct tierce__quota_use use;
    struct tierce__usage usage;
    size_t removed = 0;
    if (tierce__quota_share(quota, group->name, group->global_quota_group_name) < 0)
        return 0;
    for (size_t i = 0; i < group->type_quota_count; i++) {
        tierce__quota_group_use(quota, group->name, &use);
        removed += reclaim_type(reclaimer, catalog, group, &use, &group->type_quotas[i]);
    }
    tierce__quota_group_use(quota, group->name, &use);
    struct tierce__need need = {.group = group->name,
                                .bytes = excess(staying(use.by_state),
                                                tierce__reclaimer_watermark_bytes(group),
                                                capacity_of(group), use.wanted)};
    tierce__locator_group_usage(reclaimer->opts.locator, group->name, &usage);
    if (usage.keys_max > 0)
        need.keys = above((double)usage.keys,
                          (double)usage.keys_max * tierce__reclaimer_watermark_share(group));
    removed += reclaim(reclaimer, catalog, &need);
    struct instances_round r = {.reclaimer = reclaimer, .catalog = catalog, .group = group};
    if (group->max_key_count > 0)
        tierce__locator_each(reclaimer->opts.locator, reclaim_instance, &r);
    return removed + r.removed;
}

/* Limits that groups share; checked after the groups' own limits. */
static size_t reclaim_shared(struct tierce__reclaimer *reclaimer,
                             const struct tierce__catalog *catalog)
{
    enum { NAME_BYTES = 1024 };
    char name[NAME_BYTES];
    struct tierce__quota_shared shared;
    size_t removed = 0;
    for (size_t i = 0;
         tierce__quota_shared_at(reclaimer->opts.locator->quota, i, &shared, name, sizeof(name));
         i++) {
        double limit = (double)shared.limit;
        struct tierce__need need = {.bytes = shared.limit == UINT64_MAX
                                                 ? 0
                                                 : excess(staying(shared.by_state),
                                                          limit * PERCENT_FULL / 100, limit,
                                                          shared.wanted),
                                    .shared = shared.name};
        removed += reclaim(reclaimer, catalog, &need);
    }
    return removed;
}

static size_t reclaim_storage(struct tierce__reclaimer *reclaimer,
                              const struct tierce__catalog *catalog,
                              const struct tierce__storage *storage)
{
    uint64_t by_state[TIERCE__QUOTA_STATES], wanted;
    if (storage->capacity_bytes == 0)
        return 0;
    tierce__quota_storage_use(reclaimer->opts.locator->quota, storage->number, by_state, &wanted);
    TIERCE_DASSERT(storage->number > 0);
    struct tierce__need need = {.storage = storage->number};
    return keep_limit(reclaimer, catalog, &need,
                      &(struct limited){.used = staying(by_state),
                                        .wanted = wanted,
                                        .mark = tierce__reclaimer_storage_watermark_bytes(storage),
                                        .limit = (double)storage->capacity_bytes});
}

static size_t reclaim_all(struct tierce__reclaimer *reclaimer,
                          const struct tierce__catalog *catalog)
{
    size_t count, removed = 0;
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++)
        removed += reclaim_group(reclaimer, catalog, &groups[i]);
    removed += reclaim_shared(reclaimer, catalog);
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++)
        removed += reclaim_storage(reclaimer, catalog, &storages[i]);
    tierce__quota_clear_wanted(reclaimer->opts.locator->quota);
    return removed;
}

/* ---- expiry ---------------------------------------------------------------------------------- */

static int64_t delete_delay_us(const struct tierce__group *group)
{
    int32_t delay_ms = group->delay_before_delete_ms;
    return (int64_t)(delay_ms > 0 ? delay_ms : 0) * 1000;
}

struct expiry_round {
    struct tierce__reclaimer *reclaimer;
    const struct tierce__catalog *catalog;
    struct tierce__expired expired;
    int64_t next_us;
};

static void expire_one(void *arg, struct tierce__live *live)
{
    struct expiry_round *r = arg;
    const struct tierce__group *group =
        tierce__catalog_group(r->catalog, live->instance.group_name);
    if (group == NULL)
        return;
    TIERCE_DASSERT(r->next_us >= 0);
    tierce__live_expire_blocks(
        live,
        &(struct tierce__expiring){.ttl_us = tierce__live_ttl_us(live, r->catalog),
                                   .delay_us = delete_delay_us(group),
                                   .submitted = r->reclaimer->opts.submitted,
                                   .arg = r->reclaimer->opts.submitted_arg},
        &r->expired, &r->next_us);
}

static size_t expire_all(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog)
{
    struct expiry_round r = {.reclaimer = reclaimer, .catalog = catalog, .next_us = INT64_MAX};
    tierce__locator_each(reclaimer->opts.locator, expire_one, &r);
    reclaimer->due_us = r.next_us;
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.expired_blocks += r.expired.blocks;
    reclaimer->stats.submitted_locations += r.expired.locations;
    reclaimer->stats.submitted_bytes += r.expired.bytes;
    reclaimer->stats.submitted_blocks += r.expired.blocks;
    tierce__lock_drop(&reclaimer->lock);
    return (size_t)r.expired.blocks;
}

/* ---- invalidated blocks ---------------------------------------------------------------------- */

struct stale_round {
    const struct tierce__catalog *catalog;
    struct tierce__removed removed;
    int64_t next_us;
};

static void sweep_stale_one(void *arg, struct tierce__live *live)
{
    struct stale_round *r = arg;
    const struct tierce__group *group =
        tierce__catalog_group(r->catalog, live->instance.group_name);
    if (group != NULL)
        tierce__live_sweep_stale(live, delete_delay_us(group), &r->removed, &r->next_us);
    TIERCE_DASSERT(r->next_us >= 0);
}

static size_t sweep_stale_all(struct tierce__reclaimer *reclaimer,
                              const struct tierce__catalog *catalog)
{
    struct stale_round r = {.catalog = catalog, .next_us = INT64_MAX};
    tierce__locator_each(reclaimer->opts.locator, sweep_stale_one, &r);
    if (r.next_us < reclaimer->due_us)
        reclaimer->due_us = r.next_us;
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.submitted_blocks += r.removed.keys;
    reclaimer->stats.submitted_locations += r.removed.locations;
    reclaimer->stats.submitted_bytes += r.removed.bytes;
    reclaimer->stats.invalidated_blocks += r.removed.keys;
    tierce__lock_drop(&reclaimer->lock);
    return (size_t)r.removed.keys;
}

/* ---- unreachable blocks ---------------------------------------------------------------------- */

struct sweep_round {
    struct tierce__reclaimer *reclaimer;
    const struct tierce__catalog *catalog;
    struct tierce__removed swept;
    int64_t next_us;
};

static void sweep_one(void *arg, struct tierce__live *live)
{
    struct sweep_round *r = arg;
    const struct tierce__group *group =
        tierce__catalog_group(r->catalog, live->instance.group_name);
    if (group == NULL)
        return;
    tierce__live_sweep_orphans(
        live,
        &(struct tierce__orphan_sweeping){.delay_us = delete_delay_us(group),
                                          .submitted = r->reclaimer->opts.submitted,
                                          .arg = r->reclaimer->opts.submitted_arg},
        &r->swept, &r->next_us);
}

static size_t sweep_all(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog)
{
    struct sweep_round r = {.reclaimer = reclaimer, .catalog = catalog, .next_us = INT64_MAX};
    tierce__locator_each(reclaimer->opts.locator, sweep_one, &r);
    if (r.next_us < reclaimer->due_us)
        reclaimer->due_us = r.next_us;
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.orphaned_blocks += r.swept.keys;
    reclaimer->stats.submitted_blocks += r.swept.keys;
    reclaimer->stats.submitted_locations += r.swept.locations;
    reclaimer->stats.submitted_bytes += r.swept.bytes;
    tierce__lock_drop(&reclaimer->lock);
    return (size_t)r.swept.keys;
}

/* ---- storages that leave --------------------------------------------------------------------- */

/* Scans go on in the next round, or begin again later: after an error, or because some blocks could
 * not be moved yet. */
static size_t scan(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog)
{
    enum { AGAIN_US = 1000000, DRAIN_AGAIN_US = 10000000 };
    struct tierce__locator *locator = reclaimer->opts.locator;
    int64_t now_us = tierce__locator_now_us(locator);
    const struct tierce__storage_scan *drains = &locator->scans[TIERCE__SCAN_DRAINS];
    size_t count;
    bool goes_on = false;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    size_t removed =
        tierce__locator_scan(locator, TIERCE__SCAN_FORGETS, catalog, &reclaimer->is_scanning);
    bool is_changed = catalog != reclaimer->seen; /* perhaps a storage is drained from now on */
    if (drains->count > 0 || is_changed || drains->ended_us > now_us ||
        now_us - drains->ended_us >= DRAIN_AGAIN_US)
        removed += tierce__locator_scan(locator, TIERCE__SCAN_DRAINS, catalog, &goes_on);
    for (size_t i = 0; i < count; i++) {
        bool is_due = tierce__storage_is_forgetting(&storages[i]) ||
                      storages[i].draining != TIERCE__DRAINING_NOT;
        int64_t again_us = goes_on ? now_us : now_us + AGAIN_US;
        if (is_due && again_us < reclaimer->due_us)
            reclaimer->due_us = again_us;
    }
    return removed;
}

/* A round checks all limits, expiry times and holes, unless nothing is due and no number or limit
 * has changed since the last idle round. */
static size_t work(struct tierce__reclaimer *reclaimer, bool always)
{
    TIERCE_ASSERT(!reclaimer->has_thread || reclaimer->is_working);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    size_t removed = 0;
    struct tierce__registry *registry = reclaimer->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    uint64_t changes = tierce__quota_changes(reclaimer->opts.locator->quota);
    bool is_due = reclaimer->due_us <= tierce__locator_now_us(reclaimer->opts.locator);
    bool looks = always || is_due || reclaimer->is_scanning ||
                 changes != reclaimer->quota_changes || catalog != reclaimer->seen;
    if (looks) {
        removed = expire_all(reclaimer, catalog); /* before other blocks are evicted */
        removed += sweep_stale_all(reclaimer, catalog);
        removed += reclaim_all(reclaimer, catalog);
        removed += sweep_all(reclaimer, catalog);
        removed += scan(reclaimer, catalog);
        reclaimer->quota_changes = removed == 0 ? changes : UINT64_MAX;
        const struct tierce__catalog *before = reclaimer->seen;
        reclaimer->seen = catalog;
        catalog = before;
    }
    if (catalog != NULL)
        tierce__registry_release(registry, catalog);
    if (!looks)
        return 0;
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.rounds++;
    reclaimer->stats.triggered_rounds += removed > 0;
    tierce__lock_drop(&reclaimer->lock);
    return removed;
}

size_t tierce__reclaimer_step(struct tierce__reclaimer *reclaimer)
{
    TIERCE_ASSERT(!reclaimer->has_thread);
    return work(reclaimer, true);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct tierce__reclaimer *reclaimer = arg;
    tierce__lock_take(&reclaimer->lock);
    while (!reclaimer->is_ending) {
        size_t removed = 0;
        if (!reclaimer->is_paused) {
            TIERCE_ASSERT(!reclaimer->is_working);
            reclaimer->is_working = true;
            tierce__lock_drop(&reclaimer->lock);
            removed = work(reclaimer, false);
            tierce__lock_take(&reclaimer->lock);
            TIERCE_ASSERT(reclaimer->is_working);
            reclaimer->is_working = false;
            tierce__cond_broadcast(&reclaimer->idle);
        }
        if (removed == 0 && (!reclaimer->is_scanning || reclaimer->is_paused))
            (void)tierce__cond_wait(&reclaimer->wake, &reclaimer->lock,
                                    tierce__deadline_in_ms(reclaimer->opts.interval_ms));
    }
    tierce__lock_drop(&reclaimer->lock);
    return NULL;
}

int tierce__reclaimer_start(struct tierce__reclaimer **out,
                            const struct tierce__reclaimer_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__reclaimer *reclaimer = tierce__calloc(1, sizeof(*reclaimer));
    if (reclaimer == NULL)
        return -ENOMEM;
    reclaimer->opts = *opts;
    if (reclaimer->opts.interval_ms == 0)
        reclaimer->opts.interval_ms = INTERVAL_MS;
    if (reclaimer->opts.sample_keys == 0)
        reclaimer->opts.sample_keys = TIERCE__RECLAIM_SAMPLE_KEYS;
    if (reclaimer->opts.sample_keys > SAMPLE_KEYS_MAX)
        reclaimer->opts.sample_keys = SAMPLE_KEYS_MAX;
    TIERCE_DASSERT(reclaimer->opts.interval_ms > 0);
    reclaimer->random = opts->seed;
    reclaimer->is_paused = opts->has_thread;
    tierce__lock_init(&reclaimer->lock, TIERCE__LOCK_RECLAIMER);
    tierce__cond_init(&reclaimer->wake);
    tierce__cond_init(&reclaimer->idle);
    int rc = opts->has_thread ? -pthread_create(&reclaimer->thread, NULL, run, reclaimer) : 0;
    reclaimer->has_thread = rc == 0 && opts->has_thread;
    if (rc < 0)
        tierce__reclaimer_stop(reclaimer);
    else
        *out = reclaimer;
    return rc;
}

void tierce__reclaimer_stop(struct tierce__reclaimer *reclaimer)
{
    if (reclaimer == NULL)
        return;
    tierce__lock_take(&reclaimer->lock);
    TIERCE_ASSERT(!reclaimer->is_ending);
    reclaimer->is_ending = true;
    tierce__cond_broadcast(&reclaimer->wake);
    tierce__lock_drop(&reclaimer->lock);
    if (reclaimer->has_thread)
        pthread_join(reclaimer->thread, NULL);
    TIERCE_ASSERT(!reclaimer->is_working);
    if (reclaimer->seen != NULL)
        tierce__registry_release(reclaimer->opts.registry, reclaimer->seen);
    tierce__cond_fini(&reclaimer->idle);
    tierce__cond_fini(&reclaimer->wake);
    tierce__lock_fini(&reclaimer->lock);
    tierce__free(reclaimer);
}

void tierce__reclaimer_pause(struct tierce__reclaimer *reclaimer)
{
    tierce__lock_take(&reclaimer->lock);
    TIERCE_ASSERT(!reclaimer->is_ending);
    reclaimer->is_paused = true;
    while (reclaimer->is_working)
        (void)tierce__cond_wait(&reclaimer->idle, &reclaimer->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&reclaimer->lock);
}

void tierce__reclaimer_resume(struct tierce__reclaimer *reclaimer)
{
    tierce__lock_take(&reclaimer->lock);
    TIERCE_ASSERT(!reclaimer->is_ending);
    reclaimer->is_paused = false;
    tierce__cond_broadcast(&reclaimer->wake);
    tierce__lock_drop(&reclaimer->lock);
}

void tierce__reclaimer_stats(struct tierce__reclaimer *reclaimer,
                             struct tierce__reclaimer_stats *out)
{
    tierce__lock_take(&reclaimer->lock);
    *out = reclaimer->stats;
    tierce__lock_drop(&reclaimer->lock);
}
