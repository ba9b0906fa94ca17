/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/reclaim/reclaimer.h"
#include "proto/kvcm/rpcs.h"

#include <errno.h>
#include <string.h>

#define FEW_STORAGES 64u /* whose order needs no memory */

/* ---- to write -------------------------------------------------------------------------------- */

/* KVCM's CachePreferStrategy: odd numbers allow one kind only, even ones prefer it. */
static enum tierce__storage_type preferred_type(int32_t strategy, bool *only)
{
    static const enum tierce__storage_type types[] = {TIERCE__STORAGE_3FS, TIERCE__STORAGE_MOONCAKE,
                                                      TIERCE__STORAGE_TAIRMEMPOOL,
                                                      TIERCE__STORAGE_VCNS_3FS};
    *only = strategy % 2 == 1;
    return strategy >= 1 && strategy <= 8 ? types[(strategy - 1) / 2] : TIERCE__STORAGE_NONE;
}

static uint64_t limit_of(int64_t capacity)
{
    return capacity > 0 ? (uint64_t)capacity : 0;
}

void tierce__choose_limits(struct tierce__quota_limits *out, const struct tierce__group *group,
                           const struct tierce__storage *storage)
{
    TIERCE_DASSERT(storage->number > 0);
    *out = (struct tierce__quota_limits){
        .group = limit_of(group->capacity_bytes),
        .type = UINT64_MAX,
        .storage = storage->capacity_bytes > 0 ? storage->capacity_bytes : UINT64_MAX,
    };
    const struct tierce__type_quota *quota =
        tierce__group_type_quota(group, tierce__storage_type_quota(storage->type));
    if (quota != NULL)
        out->type = limit_of(quota->capacity_bytes);
}

/* ---- limits ---------------------------------------------------------------------------------- */

void tierce__locator_storage_usage(struct tierce__locator *locator, uint16_t storage,
                                   struct tierce__usage *out)
{
    uint64_t by_state[TIERCE__QUOTA_STATES];
    tierce__quota_storage_use(locator->quota, storage, by_state, NULL);
    *out = (struct tierce__usage){.serving_bytes = by_state[TIERCE__QUOTA_SERVING],
                                  .writing_bytes = by_state[TIERCE__QUOTA_WRITING],
                                  .deleting_bytes = by_state[TIERCE__QUOTA_DELETING]};
}

int tierce__locator_prepare_quotas(struct tierce__locator *locator,
                                   const struct tierce__quota_group *groups, size_t count)
{
    return tierce__quota_prepare_shared(locator->quota, groups, count);
}

int tierce__locator_set_quotas(struct tierce__locator *locator,
                               const struct tierce__quota_group *groups, size_t count)
{
    return tierce__quota_set_shared(locator->quota, groups, count);
}

/* ---- the choice ------------------------------------------------------------------------------ */

struct choosing {
    const struct tierce__storage_choice_opts *opts;
    size_t position; /* of the candidate that is tried */
    bool saw_available;
    const char *limit, *limited;        /* the limit that stopped the last try, and the storage */
    bool is_whole;                      /* only a storage with room for all keys is taken */
    const struct tierce__storage *most; /* among those without: the first one with the most room */
    size_t most_keys;
};

static uint64_t at_most(uint64_t limit, double mark)
{
    return mark < (double)limit ? (uint64_t)mark : limit;
}

/* A move fills no storage and no type above its watermark: no block is evicted for it. */
static void limit_move(struct tierce__quota_limits *limits, const struct tierce__group *group,
                       const struct tierce__storage *storage)
{
    double share = tierce__reclaimer_watermark_share(group);
    limits->is_quiet = true;
    if (limits->type != UINT64_MAX)
        limits->type = at_most(limits->type, (double)limits->type * share);
    if (limits->storage != UINT64_MAX)
        limits->storage =
            at_most(limits->storage, tierce__reclaimer_storage_watermark_bytes(storage));
}

/* Returns 1 if room was reserved; 0 to try the next storage. */
static int try_storage(struct choosing *c, const struct tierce__storage *storage, size_t *fit)
{
    struct tierce__quota_limits limits;
    struct tierce__locator *locator = c->opts->live->locator;
    TIERCE_DASSERT((unsigned)storage->type <= UINT8_MAX);
    struct tierce__quota_at at =
        tierce__live_quota_at(c->opts->live, (uint8_t)storage->type, storage->number);
    if (storage->draining != TIERCE__DRAINING_NOT ||
        !tierce__storages_is_available(locator->opts.storages, storage) ||
        (c->opts->may_take != NULL &&
         !c->opts->may_take(c->opts->may_take_arg, storage, c->position)))
        return 0;
    c->saw_available = true;
    tierce__choose_limits(&limits, c->opts->group, storage);
    if (c->opts->may_take != NULL)
        limit_move(&limits, c->opts->group, storage);
    limits.is_whole = c->is_whole;
    int rc = tierce__quota_share(locator->quota, c->opts->group->name,
                                 c->opts->group->global_quota_group_name);
    if (rc == 0)
        rc = tierce__quota_reserve(locator->quota, &at, &limits, c->opts->bytes, c->opts->count,
                                   fit, &c->limit);
    TIERCE_DASSERT(rc < 0 || *fit <= c->opts->count);
    TIERCE_DASSERT(rc < 0 || *fit == c->opts->count || c->limit != NULL);
    c->limited = storage->name;
    if (rc < 0 || *fit == c->opts->count || !c->is_whole)
        return rc < 0 ? rc : *fit > 0;
    if (*fit > c->most_keys) {
        c->most = storage;
        c->most_keys = *fit;
    }
    return 0;
}

/* The parts of a pool are a heap: none suits better than the first. */

/* Parts that suit alike are tried by name. */
static bool suits_better(const struct tierce__node_suit *a, const struct tierce__node_suit *b)
{
    return a->suit > b->suit || (a->suit >= b->suit && a->part < b->part);
}

static void sift_down(struct tierce__node_suit *heap, size_t count, size_t at)
{
    for (size_t best = at;; at = best) {
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            best = suits_better(&heap[child], &heap[best]) ? child : best;
        if (best == at)
            return;
        struct tierce__node_suit lower = heap[at];
        heap[at] = heap[best];
        heap[best] = lower;
    }
}

/* The parts of a pool, as a heap. Returns how many. */
static size_t weigh_pool(const struct choosing *c, const char *pool, struct tierce__node_suit *heap)
{
    struct tierce__locator *locator = c->opts->live->locator;
    size_t count, parts = 0;
    const struct tierce__storage *all = tierce__catalog_storages(c->opts->catalog, &count);
    for (size_t i = 0; i < count; i++) {
        uint64_t used[TIERCE__QUOTA_STATES];
        if (!tierce__storage_is_in_pool(&all[i], pool))
            continue;
        tierce__quota_storage_use(locator->quota, all[i].number, used, NULL);
        uint64_t used_bytes = used[TIERCE__QUOTA_WRITING] + used[TIERCE__QUOTA_SERVING] +
                              used[TIERCE__QUOTA_DELETING];
        heap[parts++] = (struct tierce__node_suit){.part = &all[i], .used_bytes = used_bytes};
    }
    tierce__nodes_suit(locator->opts.nodes, heap, parts, c->opts->host_id);
    for (size_t at = parts / 2; at-- > 0;)
        sift_down(heap, parts, at);
    return parts;
}

/* Tries the parts of a pool, each once, in the order in which they suit now; as try_storage. */
static int try_pool(struct choosing *c, const char *pool, const struct tierce__storage **out,
                    size_t *fit)
{
    struct tierce__node_suit few[FEW_STORAGES], *heap = few;
    size_t count;
    int rc = 0;
    if (c->opts->live->locator->opts.nodes == NULL)
        return 0;
    (void)tierce__catalog_storages(c->opts->catalog, &count);
    if (count > FEW_STORAGES && (heap = tierce__alloc(count * sizeof(*heap))) == NULL)
        return -ENOMEM;
    for (count = weigh_pool(c, pool, heap); rc == 0 && count > 0; sift_down(heap, count, 0)) {
        const struct tierce__storage *part = heap[0].part;
        rc = try_storage(c, part, fit);
        *out = rc > 0 ? part : *out;
        heap[0] = heap[--count];
    }
    if (heap != few)
        tierce__free(heap);
    return rc;
}

/* Tries the candidates in order: those of one kind (`kind`), those of any other kind, or all
 * (NONE). */
static int try_candidates(struct choosing *c, enum tierce__storage_type kind, bool other,
                          const struct tierce__storage **out, size_t *fit)
{
    TIERCE_DASSERT(!other || kind != TIERCE__STORAGE_NONE);
    for (size_t i = 0; i < c->opts->group->storage_candidate_count; i++) {
        const struct tierce__storage *storage =
            tierce__catalog_storage(c->opts->catalog, c->opts->group->storage_candidates[i]);
        enum tierce__storage_type type = storage != NULL ? storage->type : TIERCE__STORAGE_NODE;
        c->position = i;
        bool fits = kind == TIERCE__STORAGE_NONE || (type == kind) != other;
        int rc = !fits             ? 0
                 : storage != NULL ? try_storage(c, storage, fit)
                                   : try_pool(c, c->opts->group->storage_candidates[i], out, fit);
        if (rc > 0 && storage != NULL)
            *out = storage;
        if (rc != 0)
            return rc;
    }
    return 0;
}

int tierce__choose_storage(const struct tierce__storage_choice_opts *opts,
                           const struct tierce__storage **out, size_t *fit,
                           char why[TIERCE__WHY_BYTES])
{
    TIERCE_DASSERT(opts->count > 0);
    bool only;
    enum tierce__storage_type kind = preferred_type(opts->group->prefer_strategy, &only);
    /* The rest of a move waits on. */
    struct choosing c = {.opts = opts, .is_whole = opts->may_take == NULL};
    int rc = try_candidates(&c, kind, false, out, fit);
    if (rc == 0 && kind != TIERCE__STORAGE_NONE && !only)
        rc = try_candidates(&c, kind, true, out, fit);
    c.is_whole = false;
    if (rc == 0 && c.most != NULL && (rc = try_storage(&c, c.most, fit)) > 0)
        *out = c.most;
    if (rc < 0)
        return tierce__why(why, rc, "no memory");
    TIERCE_DASSERT(rc == 0 || (*fit > 0 && *fit <= opts->count));
    size_t rejected = opts->may_take != NULL ? 0 : opts->count - (rc > 0 ? *fit : 0);
    tierce__live_count_limited(opts->live, c.limit, rejected);
    if (rc > 0)
        return 0;
    if (!c.saw_available) {
        tierce__live_count_rejected(opts->live, TIERCE__REJECTED_NO_STORAGE, rejected);
        return tierce__why(why, TIERCE_E_DOWN, "no writable storage of group %.64s is available",
                           opts->group->name);
    }
    TIERCE_DASSERT(c.limit != NULL && c.limited != NULL);
    return tierce__why(why, TIERCE_E_FULL,
                       "the quota by %s " TIERCE__RPC_NO_ROOM
                       " for a block in group %.64s, storage %.64s",
                       c.limit, opts->group->name, c.limited);
}

/* ---- for moves ------------------------------------------------------------------------------- */

size_t tierce__candidate_position(const struct tierce__group *group,
                                  const struct tierce__storage *storage)
{
    for (size_t i = 0; i < group->storage_candidate_count; i++) {
        if (strcmp(group->storage_candidates[i], storage->name) == 0 ||
            tierce__storage_is_in_pool(storage, group->storage_candidates[i]))
            return i;
    }
    return SIZE_MAX;
}

static uint64_t sum_of(const uint64_t by_state[TIERCE__QUOTA_STATES])
{
    return by_state[TIERCE__QUOTA_WRITING] + by_state[TIERCE__QUOTA_SERVING] +
           by_state[TIERCE__QUOTA_DELETING];
}

bool tierce__storage_has_quiet_room(const struct tierce__locator *locator,
                                    const struct tierce__group *group,
                                    const struct tierce__storage *storage)
{
    uint64_t by_state[TIERCE__QUOTA_STATES], type_used = 0;
    struct tierce__quota_limits limits;
    struct tierce__quota_use use;
    if (storage->draining != TIERCE__DRAINING_NOT ||
        !tierce__storages_is_available(locator->opts.storages, storage))
        return false;
    tierce__choose_limits(&limits, group, storage);
    limit_move(&limits, group, storage);
    tierce__quota_storage_use(locator->quota, storage->number, by_state, NULL);
    tierce__quota_group_use(locator->quota, group->name, &use);
    uint32_t slot = tierce__meta_type_slot((uint8_t)tierce__storage_type_quota(storage->type));
    for (int state = 0; state < TIERCE__QUOTA_STATES; state++)
        type_used += use.by_type[state][slot];
    return sum_of(by_state) < limits.storage && type_used < limits.type &&
           sum_of(use.by_state) < limits.group;
}

bool tierce__candidate_has_quiet_room(const struct tierce__locator *locator,
                                      const struct tierce__catalog *catalog,
                                      const struct tierce__group *group, size_t position)
{
    TIERCE_ASSERT(position < group->storage_candidate_count);
    const char *name = group->storage_candidates[position];
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    if (storage != NULL)
        return tierce__storage_has_quiet_room(locator, group, storage);
    size_t count;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (tierce__storage_is_in_pool(&all[i], name) &&
            tierce__storage_has_quiet_room(locator, group, &all[i]))
            return true;
    }
    return false;
}

/* ---- to read --------------------------------------------------------------------------------- */

/* The text between "://" and the next '/' or '?'. */
static const struct tierce__storage *storage_of_uri(const struct tierce__catalog *catalog,
                                                    const char *uri)
{
    char name[256];
    const char *host = strstr(uri, "://");
    if (host == NULL)
        return NULL;
    host += 3;
    size_t length = strcspn(host, "/?");
    if (length >= sizeof(name))
        return NULL;
    memcpy(name, host, length);
    name[length] = '\0';
    return tierce__catalog_storage(catalog, name);
}

const struct tierce__storage *tierce__location_storage(const struct tierce__catalog *catalog,
                                                       const struct tierce__location *location)
{
    if (location->storage != 0)
        return tierce__catalog_storage_numbered(catalog, location->storage);
    bool has_text = location->place_count > 0 && location->places[0].uri != NULL;
    return has_text ? storage_of_uri(catalog, location->places[0].uri) : NULL;
}

void tierce__chooser_begin(struct tierce__chooser *out, const struct tierce__live *live,
                           const struct tierce__catalog *catalog)
{
    *out = (struct tierce__chooser){
        .locator = live->locator,
        .catalog = catalog,
        .now_us = tierce__locator_now_us(live->locator),
        .ttl_us = tierce__live_ttl_us(live, catalog),
        .generation = tierce__live_generation(live),
        .spec_count = live->instance.spec_count,
    };
    TIERCE_DASSERT(out->ttl_us >= 0);
}

/* The weights of KVCM: a shared file system is preferred to a pool. */
static uint32_t weight_of(enum tierce__storage_type type)
{
    if (type == TIERCE__STORAGE_NFS)
        return 5;
    bool pool = type == TIERCE__STORAGE_3FS || type == TIERCE__STORAGE_MOONCAKE ||
                type == TIERCE__STORAGE_TAIRMEMPOOL || type == TIERCE__STORAGE_NODE;
    return pool ? 3 : 1;
}

static uint32_t weigh(struct tierce__chooser *chooser, const struct tierce__location *location)
{
    if (location->storage != 0 && location->storage == chooser->last)
        return chooser->weight;
    const struct tierce__storage *storage = tierce__location_storage(chooser->catalog, location);
    bool serves =
        storage != NULL && tierce__storages_is_available(chooser->locator->opts.storages, storage);
    chooser->last = location->storage;
    chooser->weight = serves ? weight_of(storage->type) : 0;
    return chooser->weight;
}

static const struct tierce__spec_place *find_part(const struct tierce__location *location,
                                                  size_t spec)
{
    for (size_t p = 0; p < location->place_count; p++) {
        if (location->places[p].spec == spec)
            return &location->places[p];
    }
    return NULL;
}

/* The number of requested specs that a location has. */
static size_t count_parts(const struct tierce__chooser *chooser,
                          const struct tierce__location *location)
{
    size_t count = 0;
    for (size_t spec = 0; spec < chooser->spec_count; spec++)
        count +=
            (chooser->specs == NULL || chooser->specs[spec]) && find_part(location, spec) != NULL;
    TIERCE_DASSERT(count <= location->place_count && count <= chooser->spec_count);
    return count;
}

/* Draws one of the available locations with the most parts, by the weights of their kinds; NULL:
 * there is none. */
static const struct tierce__location *choose_location(struct tierce__chooser *chooser,
                                                      const struct tierce__record *record)
{
    if (record->location_count == 1)
        return weigh(chooser, &record->locations[0]) > 0 ? &record->locations[0] : NULL;
    const struct tierce__location *chosen = NULL;
    uint64_t all = 0;
    size_t most = 0;
    for (size_t i = 0; i < record->location_count; i++) {
        const struct tierce__location *location = &record->locations[i];
        uint32_t weight = weigh(chooser, location);
        size_t parts = weight > 0 ? count_parts(chooser, location) : 0;
        if (weight == 0 || parts < most)
            continue;
        all = parts > most ? weight : all + weight;
        most = parts;
        TIERCE_DASSERT(all >= weight);
        /* Reservoir sampling: each location so far is kept with a probability proportional to its
         * weight. */
        if (chosen == NULL || tierce__locator_random(chooser->locator) % all < weight)
            chosen = location;
    }
    TIERCE_DASSERT((chosen == NULL) == (all == 0));
    return chosen;
}

/* An available location with that part; NULL: there is none. */
static const struct tierce__spec_place *find_available(struct tierce__chooser *chooser,
                                                       const struct tierce__record *record,
                                                       size_t spec,
                                                       const struct tierce__location **location)
{
    TIERCE_DASSERT(spec < chooser->spec_count);
    for (size_t i = 0; i < record->location_count; i++) {
        const struct tierce__spec_place *place = find_part(&record->locations[i], spec);
        if (place == NULL || weigh(chooser, &record->locations[i]) == 0)
            continue;
        *location = &record->locations[i];
        return place;
    }
    return NULL;
}

const struct tierce__location *tierce__choose_parts(struct tierce__chooser *chooser,
                                                    const struct tierce__record *record,
                                                    struct tierce__part *parts, size_t *count)
{
    const struct tierce__location *first = choose_location(chooser, record);
    *count = 0;
    for (size_t spec = 0; spec < chooser->spec_count && first != NULL; spec++) {
        parts[spec] = (struct tierce__part){first, find_part(first, spec)};
        if (parts[spec].place == NULL)
            parts[spec].place = find_available(chooser, record, spec, &parts[spec].location);
        *count += parts[spec].place != NULL;
    }
    TIERCE_DASSERT(*count <= chooser->spec_count);
    TIERCE_DASSERT(first != NULL || *count == 0);
    return first;
}

bool tierce__record_has_part(struct tierce__chooser *chooser, const struct tierce__record *record,
                             size_t spec)
{
    TIERCE_DASSERT(spec < chooser->spec_count);
    const struct tierce__location *location;
    return find_available(chooser, record, spec, &location) != NULL;
}

bool tierce__record_is_over(const struct tierce__chooser *chooser,
                            const struct tierce__record *record)
{
    return record->generation != chooser->generation ||
           tierce__record_due_us(record, chooser->ttl_us) <= chooser->now_us;
}

bool tierce__record_serves(struct tierce__chooser *chooser, const struct tierce__record *record)
{
    bool is_available = false;
    if (tierce__record_is_over(chooser, record))
        return false;
    for (size_t i = 0; i < record->location_count && !is_available; i++)
        is_available = weigh(chooser, &record->locations[i]) > 0;
    for (size_t spec = 0; spec < chooser->spec_count && is_available; spec++) {
        if (chooser->specs != NULL && chooser->specs[spec])
            is_available = tierce__record_has_part(chooser, record, spec);
    }
    return is_available;
}
