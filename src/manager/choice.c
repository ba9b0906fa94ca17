/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locator_private.h"

#include <string.h>

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

void tierce__choose_limits(struct tierce__quota_limits *out, const struct tierce__live *live,
                           const struct tierce__group *group, const struct tierce__storage *storage)
{
    *out = (struct tierce__quota_limits){
        .group = limit_of(group->capacity_bytes),
        .type = UINT64_MAX,
        .shared = UINT64_MAX,
        .storage = storage->capacity_bytes > 0 ? storage->capacity_bytes : UINT64_MAX,
    };
    enum tierce__storage_type type = tierce__storage_type_quota(storage->type);
    for (size_t i = 0; i < group->type_quota_count; i++) {
        if (tierce__storage_type_quota(group->type_quotas[i].type) == type)
            out->type = limit_of(group->type_quotas[i].capacity_bytes);
    }
    const struct tierce__locator_opts *opts = &live->locator->opts;
    for (size_t i = 0; i < opts->quota_group_count; i++) {
        if (strcmp(opts->quota_groups[i].name, live->shared) == 0)
            out->shared = opts->quota_groups[i].capacity_bytes;
    }
}

struct choosing {
    const struct tierce__storage_wish *wish;
    bool saw_available;
    const char *limit, *limited; /* what stopped the last try, and where */
};

/* 1: taken; 0: not this one. */
static int try_storage(struct choosing *c, const struct tierce__storage *storage, size_t *fit)
{
    struct tierce__quota_limits limits;
    struct tierce__locator *locator = c->wish->live->locator;
    struct tierce__quota_at at =
        tierce__live_quota_at(c->wish->live, (uint8_t)storage->type, storage->number);
    if (!tierce__storages_is_available(locator->opts.storages, storage))
        return 0;
    c->saw_available = true;
    tierce__choose_limits(&limits, c->wish->live, c->wish->group, storage);
    int rc = tierce__quota_reserve(locator->quota, &at, &limits, c->wish->bytes, c->wish->count,
                                   fit, &c->limit);
    c->limited = storage->name;
    return rc < 0 ? rc : *fit > 0;
}

/* The candidates in order; of one kind (`kind`), of any other, or of all (NONE). */
static int try_candidates(struct choosing *c, enum tierce__storage_type kind, bool other,
                          const struct tierce__storage **out, size_t *fit)
{
    for (size_t i = 0; i < c->wish->group->storage_candidate_count; i++) {
        const struct tierce__storage *storage =
            tierce__catalog_storage(c->wish->catalog, c->wish->group->storage_candidates[i]);
        bool fits =
            storage != NULL && (kind == TIERCE__STORAGE_NONE || (storage->type == kind) != other);
        int rc = fits ? try_storage(c, storage, fit) : 0;
        if (rc > 0)
            *out = storage;
        if (rc != 0)
            return rc;
    }
    return 0;
}

int tierce__choose_storage(const struct tierce__storage_wish *wish,
                           const struct tierce__storage **out, size_t *fit,
                           char why[TIERCE__WHY_BYTES])
{
    bool only;
    enum tierce__storage_type kind = preferred_type(wish->group->prefer_strategy, &only);
    struct choosing c = {.wish = wish};
    int rc = try_candidates(&c, kind, false, out, fit);
    if (rc == 0 && kind != TIERCE__STORAGE_NONE && !only)
        rc = try_candidates(&c, kind, true, out, fit);
    if (rc != 0)
        return rc < 0 ? tierce__why(why, rc, "no memory") : 0;
    if (!c.saw_available)
        return tierce__why(why, TIERCE_E_DOWN,
                           "no storage of group %.64s that may be written to is available",
                           wish->group->name);
    return tierce__why(why, TIERCE_E_FULL,
                       "the quota by %s leaves no room for a block in group %.64s, storage %.64s",
                       c.limit, wish->group->name, c.limited);
}

/* ---- to read --------------------------------------------------------------------------------- */

/* What stands between "://" and the next '/' or '?'. */
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

/* As the original weighs kinds: a shared file system is asked more often than a pool. */
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

const struct tierce__location *tierce__choose_location(struct tierce__chooser *chooser,
                                                       const struct tierce__record *record)
{
    uint64_t all = 0;
    for (size_t i = 0; i < record->location_count; i++)
        all += weigh(chooser, &record->locations[i]);
    if (all == 0)
        return NULL;
    if (record->location_count == 1)
        return &record->locations[0];
    uint64_t drawn = tierce__locator_random(chooser->locator) % all;
    const struct tierce__location *chosen = NULL;
    for (size_t i = 0; i < record->location_count; i++) {
        uint32_t weight = weigh(chooser, &record->locations[i]);
        if (weight == 0)
            continue; /* it may have fallen ill since the sum */
        chosen = &record->locations[i];
        if (drawn < weight)
            break;
        drawn -= weight;
    }
    return chosen;
}

bool tierce__record_serves(struct tierce__chooser *chooser, const struct tierce__record *record)
{
    for (size_t i = 0; i < record->location_count; i++) {
        if (weigh(chooser, &record->locations[i]) > 0)
            return true;
    }
    return false;
}
