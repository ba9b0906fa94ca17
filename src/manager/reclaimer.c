/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaimer.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "manager/locator_private.h"
#include "policy/policy.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    INTERVAL_MS = 100,
    SAMPLE_KEYS = 1000,
    SAMPLE_KEYS_MAX = 60000,
    USES_TOLD = 64, /* to the policy that counts */
    TTL_USUAL_S = 3600,
};

struct tierce__reclaimer {
    struct tierce__reclaimer_opts opts;
    uint64_t random;
    struct tierce__lock lock; /* RECLAIMER: what follows */
    struct tierce__cond wake, idle;
    struct tierce__reclaimer_stats stats;
    bool is_paused, is_ending, is_working;
    bool has_thread;
    pthread_t thread;
};

/* ---- what is too much ------------------------------------------------------------------------ */

/* What has to leave, and of which blocks. */
struct need {
    uint64_t bytes, keys; /* either */
    bool of_slot;         /* only of this kind of storage (type slot of quotas) */
    uint32_t slot;
    uint16_t storage; /* only of this storage; 0: any */
};

static uint64_t above(uint64_t used, double limit)
{
    return (double)used > limit ? (uint64_t)ceil((double)used - limit) : 0;
}

double tierce__reclaimer_watermark_share(const struct tierce__group *group)
{
    double share = group->trigger_used_share;
    return share > 0 && share < 1 ? share : 1;
}

/* Bytes that are not on their way out already. */
static uint64_t staying(const uint64_t by_state[TIERCE__QUOTA_STATES])
{
    return by_state[TIERCE__QUOTA_WRITING] + by_state[TIERCE__QUOTA_SERVING];
}

double tierce__reclaimer_watermark_bytes(const struct tierce__group *group)
{
    double limit = (double)(group->capacity_bytes > 0 ? group->capacity_bytes : 0);
    limit *= tierce__reclaimer_watermark_share(group);
    if (group->trigger_used_bytes > 0 && (double)group->trigger_used_bytes < limit)
        limit = (double)group->trigger_used_bytes;
    return limit;
}

static struct need need_of_group(const struct tierce__group *group,
                                 const struct tierce__quota_use *use)
{
    double limit = tierce__reclaimer_watermark_bytes(group);
    return (struct need){.bytes = above(staying(use->by_state), limit)};
}

static struct need need_of_type(const struct tierce__group *group,
                                const struct tierce__quota_use *use,
                                const struct tierce__type_quota *quota)
{
    enum tierce__storage_type type = tierce__storage_type_quota(quota->type);
    uint32_t slot = tierce__meta_type_slot((uint8_t)type);
    double limit = (double)(quota->capacity_bytes > 0 ? quota->capacity_bytes : 0);
    uint64_t used =
        use->by_type[TIERCE__QUOTA_WRITING][slot] + use->by_type[TIERCE__QUOTA_SERVING][slot];
    return (struct need){.bytes = above(used, limit * tierce__reclaimer_watermark_share(group)),
                         .of_slot = true,
                         .slot = slot};
}

/* ---- an instance's share --------------------------------------------------------------------- */

/* Of one kind: bytes or keys. */
struct part {
    double held;
    double unit;  /* about what one block has of it */
    double share; /* that is to leave */
};

struct share {
    uint32_t instance; /* its number */
    struct part bytes, keys;
};

struct round {
    struct tierce__reclaimer *reclaimer;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group; /* NULL: all groups */
    const struct need *need;
    struct share *shares;
    size_t share_count, share_room;
    double bytes_ahead, keys_ahead; /* that left above the shares of the instances so far */
    size_t removed;
    int64_t now_us;
};

static void holdings(const struct round *r, struct tierce__live *live, double *bytes, double *keys)
{
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(live->index, &stats);
    *keys = (double)stats.keys;
    *bytes = (double)stats.bytes;
    if (r->need->storage != 0)
        *bytes = (double)stats.bytes_by_storage[tierce__meta_storage_slot(r->need->storage)];
    else if (r->need->of_slot)
        *bytes = (double)stats.bytes_by_type[r->need->slot];
}

static bool is_of_group(const struct round *r, const struct tierce__live *live)
{
    return r->group == NULL || strcmp(live->instance.group_name, r->group->name) == 0;
}

/* Without memory an instance gives nothing in this round. */
static void add_up(void *arg, struct tierce__live *live)
{
    struct round *r = arg;
    double bytes, keys;
    if (!is_of_group(r, live))
        return;
    holdings(r, live, &bytes, &keys);
    if (keys <= 0)
        return;
    if (r->share_count == r->share_room) {
        size_t room = r->share_room == 0 ? 16 : r->share_room * 2;
        struct share *grown = tierce__realloc(r->shares, room * sizeof(*grown));
        if (grown == NULL)
            return;
        r->shares = grown;
        r->share_room = room;
    }
    r->shares[r->share_count++] = (struct share){
        .instance = live->instance.number,
        .bytes = {.held = bytes, .unit = bytes / keys},
        .keys = {.held = keys, .unit = 1},
    };
}

/* What a part's share has above whole blocks, in blocks. */
static double remainder_of(const struct part *part)
{
    return part->unit > 0 ? fmod(part->share, part->unit) / part->unit : 0;
}

static int by_remainder(const void *a, const void *b)
{
    double x = remainder_of(*(struct part *const *)a), y = remainder_of(*(struct part *const *)b);
    return x > y ? -1 : x < y;
}

/* Divides a need in proportion to what is held, in whole blocks: those with the largest remainders
 * give one more until it is enough. */
static void deal(struct part **parts, size_t count, double need)
{
    double held = 0, left = need;
    for (size_t i = 0; i < count; i++)
        held += parts[i]->held;
    for (size_t i = 0; i < count; i++)
        parts[i]->share = held > 0 ? need * parts[i]->held / held : 0;
    qsort(parts, count, sizeof(struct part *), by_remainder);
    for (size_t i = 0; i < count; i++) {
        double whole = parts[i]->unit > 0 ? floor(parts[i]->share / parts[i]->unit) : 0;
        parts[i]->share = whole * parts[i]->unit;
        left -= parts[i]->share;
    }
    for (size_t i = 0; i < count && left > 0; i++) {
        parts[i]->share += parts[i]->unit;
        left -= parts[i]->unit;
    }
}

static int deal_shares(struct round *r)
{
    struct part **parts = tierce__calloc(r->share_count, sizeof(struct part *));
    if (parts == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < r->share_count; i++)
        parts[i] = &r->shares[i].bytes;
    deal(parts, r->share_count, (double)r->need->bytes);
    for (size_t i = 0; i < r->share_count; i++)
        parts[i] = &r->shares[i].keys;
    deal(parts, r->share_count, (double)r->need->keys);
    tierce__free(parts);
    return 0;
}

/* ---- who leaves ------------------------------------------------------------------------------ */

/* Some keys of an instance, as they were when they were drawn. */
struct sample {
    int64_t *keys;
    struct tierce__record *records;
    uint32_t *order; /* of those that may leave, by time of use */
    size_t count;
    struct tierce__arena arena;
};

static int draw(struct round *r, struct tierce__live *live, struct sample *sample)
{
    size_t room = r->reclaimer->opts.sample_keys;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    sample->keys = tierce__arena_alloc(&sample->arena, room * sizeof(*sample->keys));
    sample->records = tierce__arena_calloc(&sample->arena, room, sizeof(*sample->records));
    sample->order = tierce__arena_alloc(&sample->arena, room * sizeof(*sample->order));
    bool *found = tierce__arena_calloc(&sample->arena, room, sizeof(*found));
    if (sample->keys == NULL || sample->records == NULL || sample->order == NULL || found == NULL)
        return -ENOMEM;
    size_t drawn = 0;
    int rc = space->ops->sample(space, &r->reclaimer->random, room, sample->keys, &drawn);
    if (rc == 0 && drawn > 0)
        rc = space->ops->get(space, sample->keys, drawn, &sample->arena, sample->records, found);
    for (size_t i = 0; rc == 0 && i < drawn; i++) {
        if (!found[i])
            continue;
        sample->keys[sample->count] = sample->keys[i];
        sample->records[sample->count++] = sample->records[i];
    }
    return rc;
}

static bool is_wanted(const struct need *need, const struct tierce__record *record)
{
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        uint32_t slot = tierce__meta_type_slot(
            (uint8_t)tierce__storage_type_quota((enum tierce__storage_type)location->type));
        if ((need->storage == 0 || location->storage == need->storage) &&
            (!need->of_slot || slot == need->slot))
            return true;
    }
    return false;
}

static int by_use(const void *a, const void *b, void *arg)
{
    const struct tierce__record *records = arg;
    int64_t x = records[*(const uint32_t *)a].used_us, y = records[*(const uint32_t *)b].used_us;
    return x < y ? -1 : x > y;
}

static const char *policy_name(const struct tierce__group *group)
{
    switch (group->reclaim_policy) {
    case TIERCE__RECLAIM_LFU:
        return "lfu";
    case TIERCE__RECLAIM_TTL:
        return "ttl";
    default:
        return "lru";
    }
}

static uint64_t ttl_us(const struct tierce__group *group)
{
    return (uint64_t)(group->ttl_s > 0 ? group->ttl_s : TTL_USUAL_S) * 1000000;
}

/* The policy of production, fed with the sample in the order of its uses. */
static int feed(const struct tierce__group *group, const struct need *need, struct sample *sample,
                struct tierce__policy **out)
{
    const struct tierce__policy_ops *ops = tierce__policy_find(policy_name(group));
    bool leaves_only = group->reclaim_policy == TIERCE__RECLAIM_LEAF_LRU;
    size_t count = 0;
    for (uint32_t i = 0; i < sample->count; i++) {
        if (is_wanted(need, &sample->records[i]) &&
            !(leaves_only && sample->records[i].children > 0))
            sample->order[count++] = i;
    }
    qsort_r(sample->order, count, sizeof(*sample->order), by_use, sample->records);
    struct tierce__policy *policy;
    int rc = ops->create(&policy, &(struct tierce__policy_opts){
                                      .size = sizeof(struct tierce__policy_opts),
                                      .slot_count = (uint32_t)sample->count + 1,
                                      .ttl = ttl_us(group),
                                  });
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct tierce__record *record = &sample->records[sample->order[i]];
        uint64_t now = record->used_us > 0 ? (uint64_t)record->used_us : 0;
        ops->insert(policy, sample->order[i],
                    &(struct tierce__policy_entry){.key = (uint64_t)sample->keys[sample->order[i]],
                                                   .bytes = tierce__record_bytes(record),
                                                   .now = now,
                                                   .parent = TIERCE__NO_SLOT});
        bool counts = group->reclaim_policy == TIERCE__RECLAIM_LFU;
        for (uint32_t use = 1; counts && use < record->uses && use < USES_TOLD; use++)
            ops->touch(policy, sample->order[i], now);
    }
    if (rc == 0)
        *out = policy;
    return rc;
}

struct leaving {
    struct sample *sample;
    const struct tierce__removed *removed;
    const uint32_t *chosen;
    uint64_t used_again;
    struct tierce__reclaimed *gone;
    size_t gone_count, gone_max;
};

/* Under the key's lock: not what was used since it was drawn. */
static bool is_unused(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct leaving *l = arg;
    const struct tierce__record *drawn = &l->sample->records[l->chosen[l->removed->offset + i]];
    bool unused = record->used_us <= drawn->used_us && record->uses <= drawn->uses;
    l->used_again += !unused;
    for (size_t at = 0; unused && at < record->location_count; at++) {
        if (l->gone_count == l->gone_max)
            break; /* it got another location since it was drawn */
        struct tierce__reclaimed *gone = &l->gone[l->gone_count++];
        gone->key = key;
        memcpy(gone->location_id, record->locations[at].id, sizeof(gone->location_id));
    }
    return unused;
}

static void submit(struct round *r, struct tierce__live *live, struct sample *sample,
                   const struct tierce__group *group, const uint32_t *chosen, size_t count)
{
    struct tierce__reclaimer *reclaimer = r->reclaimer;
    struct tierce__removed removed = {0};
    struct leaving leaving = {.sample = sample, .removed = &removed, .chosen = chosen};
    int64_t delay_us =
        (int64_t)(group->delay_before_delete_ms > 0 ? group->delay_before_delete_ms : 0) * 1000;
    int64_t *keys = tierce__arena_alloc(&sample->arena, (count + 1) * sizeof(*keys));
    if (keys == NULL || count == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        keys[i] = sample->keys[chosen[i]];
        leaving.gone_max += sample->records[chosen[i]].location_count;
    }
    leaving.gone =
        tierce__arena_alloc(&sample->arena, (leaving.gone_max + 1) * sizeof(*leaving.gone));
    if (leaving.gone == NULL)
        return;
    struct tierce__removal how = {
        .due_us = r->now_us + delay_us, .wanted = is_unused, .wanted_arg = &leaving};
    int rc = tierce__live_remove(live, keys, count, &how, &removed);
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.reclaim_failed", "instance=%s error=%s",
                    live->instance.id, tierce_error_name(rc));
    r->removed += removed.keys;
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.submitted_blocks += removed.keys;
    reclaimer->stats.submitted_locations += removed.locations;
    reclaimer->stats.submitted_bytes += removed.bytes;
    reclaimer->stats.used_again += leaving.used_again;
    tierce__lock_drop(&reclaimer->lock);
    /* After an error those of the last step stayed. */
    size_t told = removed.locations < leaving.gone_count ? removed.locations : leaving.gone_count;
    if (told > 0 && reclaimer->opts.submitted != NULL)
        reclaimer->opts.submitted(reclaimer->opts.submitted_arg, live->instance.id, leaving.gone,
                                  told, delay_us);
}

/* Takes out of one instance what is asked of it, and counts that down: what the policy gives up
 * first, and of TTL whatever is too old. */
static void reclaim_from(struct round *r, struct tierce__live *live,
                         const struct tierce__group *group, double *bytes, double *keys)
{
    struct sample sample = {0};
    struct tierce__policy *policy = NULL;
    uint32_t slot, count = 0;
    int rc = draw(r, live, &sample);
    tierce__lock_take(&r->reclaimer->lock);
    r->reclaimer->stats.sampled_keys += sample.count;
    tierce__lock_drop(&r->reclaimer->lock);
    if (rc == 0 && sample.count > 0)
        rc = feed(group, r->need, &sample, &policy);
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.sample_failed", "instance=%s error=%s",
                    live->instance.id, tierce_error_name(rc));
    uint32_t *chosen = tierce__arena_alloc(&sample.arena, (sample.count + 1) * sizeof(*chosen));
    uint64_t now = (uint64_t)r->now_us;
    while (policy != NULL && chosen != NULL) {
        bool old = tierce__policy_expired(policy, now, &slot);
        if (!old && ((*bytes <= 0 && *keys <= 0) || !policy->ops->victim(policy, now, &slot)))
            break;
        policy->ops->remove(policy, slot, true);
        chosen[count++] = slot;
        *bytes -= (double)tierce__record_bytes(&sample.records[slot]);
        *keys -= 1;
    }
    if (chosen != NULL)
        submit(r, live, &sample, group, chosen, count);
    if (policy != NULL)
        policy->ops->destroy(policy);
    tierce__arena_clear(&sample.arena);
}

static struct share *share_of(const struct round *r, const struct tierce__live *live)
{
    for (size_t i = 0; i < r->share_count; i++) {
        if (r->shares[i].instance == live->instance.number)
            return &r->shares[i];
    }
    return NULL;
}

/* Blocks differ in size: what one instance gave above its share, the next need not give. */
static void reclaim_share(void *arg, struct tierce__live *live)
{
    struct round *r = arg;
    const struct share *share = share_of(r, live);
    const struct tierce__group *group =
        r->group != NULL ? r->group : tierce__catalog_group(r->catalog, live->instance.group_name);
    if (share == NULL || group == NULL)
        return;
    double bytes = share->bytes.share - r->bytes_ahead, keys = share->keys.share - r->keys_ahead;
    reclaim_from(r, live, group, &bytes, &keys);
    r->bytes_ahead = bytes < 0 ? -bytes : 0;
    r->keys_ahead = keys < 0 ? -keys : 0;
}

static size_t reclaim(struct tierce__reclaimer *reclaimer, const struct tierce__catalog *catalog,
                      const struct tierce__group *group, const struct need *need)
{
    struct round round = {
        .reclaimer = reclaimer,
        .catalog = catalog,
        .group = group,
        .need = need,
        .now_us = tierce__locator_now_us(reclaimer->opts.locator),
    };
    bool expires = group != NULL && group->reclaim_policy == TIERCE__RECLAIM_TTL;
    if (need->bytes == 0 && need->keys == 0 && !expires)
        return 0;
    tierce__locator_each(reclaimer->opts.locator, add_up, &round);
    if (round.share_count > 0 && deal_shares(&round) == 0)
        tierce__locator_each(reclaimer->opts.locator, reclaim_share, &round);
    tierce__free(round.shares);
    return round.removed;
}

/* ---- a round --------------------------------------------------------------------------------- */

static size_t reclaim_group(struct tierce__reclaimer *reclaimer,
                            const struct tierce__catalog *catalog,
                            const struct tierce__group *group)
{
    struct tierce__quota *quota = reclaimer->opts.locator->quota;
    struct tierce__quota_use use;
    struct tierce__usage usage;
    size_t removed = 0;
    for (size_t i = 0; i < group->type_quota_count; i++) {
        tierce__quota_group_use(quota, group->name, &use);
        struct need need = need_of_type(group, &use, &group->type_quotas[i]);
        removed += need.bytes > 0 ? reclaim(reclaimer, catalog, group, &need) : 0;
    }
    tierce__quota_group_use(quota, group->name, &use);
    struct need need = need_of_group(group, &use);
    tierce__locator_group_usage(reclaimer->opts.locator, group->name, &usage);
    if (usage.keys_max > 0)
        need.keys =
            above(usage.keys, (double)usage.keys_max * tierce__reclaimer_watermark_share(group));
    return removed + reclaim(reclaimer, catalog, group, &need);
}

static size_t reclaim_storage(struct tierce__reclaimer *reclaimer,
                              const struct tierce__catalog *catalog,
                              const struct tierce__storage *storage)
{
    enum { PERCENT_FULL = 95 };
    uint64_t by_state[TIERCE__QUOTA_STATES];
    if (storage->capacity_bytes == 0)
        return 0;
    tierce__quota_storage_use(reclaimer->opts.locator->quota, storage->number, by_state);
    struct need need = {
        .bytes = above(staying(by_state), (double)storage->capacity_bytes * PERCENT_FULL / 100),
        .storage = storage->number};
    return reclaim(reclaimer, catalog, NULL, &need);
}

static size_t work(struct tierce__reclaimer *reclaimer)
{
    size_t count, removed = 0;
    struct tierce__registry *registry = reclaimer->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++)
        removed += reclaim_group(reclaimer, catalog, &groups[i]);
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++)
        removed += reclaim_storage(reclaimer, catalog, &storages[i]);
    tierce__registry_release(registry, catalog);
    tierce__lock_take(&reclaimer->lock);
    reclaimer->stats.rounds++;
    reclaimer->stats.triggered_rounds += removed > 0;
    tierce__lock_drop(&reclaimer->lock);
    return removed;
}

size_t tierce__reclaimer_step(struct tierce__reclaimer *reclaimer)
{
    return work(reclaimer);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct tierce__reclaimer *reclaimer = arg;
    tierce__lock_take(&reclaimer->lock);
    while (!reclaimer->is_ending) {
        size_t removed = 0;
        if (!reclaimer->is_paused) {
            reclaimer->is_working = true;
            tierce__lock_drop(&reclaimer->lock);
            removed = work(reclaimer);
            tierce__lock_take(&reclaimer->lock);
            reclaimer->is_working = false;
            tierce__cond_broadcast(&reclaimer->idle);
        }
        if (removed == 0)
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
        reclaimer->opts.sample_keys = SAMPLE_KEYS;
    if (reclaimer->opts.sample_keys > SAMPLE_KEYS_MAX)
        reclaimer->opts.sample_keys = SAMPLE_KEYS_MAX;
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
    reclaimer->is_ending = true;
    tierce__cond_broadcast(&reclaimer->wake);
    tierce__lock_drop(&reclaimer->lock);
    if (reclaimer->has_thread)
        pthread_join(reclaimer->thread, NULL);
    tierce__cond_fini(&reclaimer->idle);
    tierce__cond_fini(&reclaimer->wake);
    tierce__lock_fini(&reclaimer->lock);
    tierce__free(reclaimer);
}

void tierce__reclaimer_pause(struct tierce__reclaimer *reclaimer)
{
    tierce__lock_take(&reclaimer->lock);
    reclaimer->is_paused = true;
    while (reclaimer->is_working)
        (void)tierce__cond_wait(&reclaimer->idle, &reclaimer->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&reclaimer->lock);
}

void tierce__reclaimer_resume(struct tierce__reclaimer *reclaimer)
{
    tierce__lock_take(&reclaimer->lock);
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
