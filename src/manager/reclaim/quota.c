/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/quota.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "manager/meta/meta_store.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* The account of a group, or of a limit that groups share. */
struct account {
    struct account *next;
    char *name;
    struct tierce__quota_use use;
    struct account *shared; /* for groups: the shared limit's account, or NULL */
    uint64_t limit;         /* for shared limits; UINT64_MAX: none */
};

struct storage_use {
    uint64_t by_state[TIERCE__QUOTA_STATES];
    uint64_t wanted;
};

struct tierce__quota {
    struct tierce__lock lock;
    _Atomic uint64_t changes; /* relaxed: a reader of an old value reads it again soon */
    struct account *groups, *shared;
    struct tierce__storage_table storages; /* of struct storage_use */
    struct storage_use lost;               /* of storages that nothing was counted in before */
};

int tierce__quota_create(struct tierce__quota **out)
{
    struct tierce__quota *quota = tierce__calloc(1, sizeof(*quota));
    if (quota == NULL)
        return -ENOMEM;
    tierce__lock_init(&quota->lock, TIERCE__LOCK_QUOTA);
    quota->storages.item_bytes = sizeof(struct storage_use);
    *out = quota;
    return 0;
}

static void note_change(struct tierce__quota *quota)
{
    tierce__lock_assert_held(&quota->lock);
    atomic_fetch_add_explicit(&quota->changes, 1, memory_order_relaxed);
}

static void free_accounts(struct account *account)
{
    while (account != NULL) {
        struct account *next = account->next;
        tierce__free(account->name);
        tierce__free(account);
        account = next;
    }
}

void tierce__quota_reset(struct tierce__quota *quota)
{
    tierce__lock_take(&quota->lock);
    free_accounts(quota->groups);
    quota->groups = NULL;
    /* Limits are configuration and stay. */
    for (struct account *shared = quota->shared; shared != NULL; shared = shared->next)
        shared->use = (struct tierce__quota_use){0};
    tierce__storage_table_clear(&quota->storages);
    quota->lost = (struct storage_use){0};
    note_change(quota);
    tierce__lock_drop(&quota->lock);
}

void tierce__quota_destroy(struct tierce__quota *quota)
{
    if (quota == NULL)
        return;
    tierce__quota_reset(quota);
    TIERCE_DASSERT(quota->groups == NULL);
    free_accounts(quota->shared);
    tierce__lock_fini(&quota->lock);
    tierce__free(quota);
}

static struct account *find_account(struct account *first, const char *name)
{
    while (first != NULL && strcmp(first->name, name) != 0)
        first = first->next;
    return first;
}

static struct account *make_account(struct account **first, const char *name)
{
    struct account *account = find_account(*first, name);
    if (account != NULL)
        return account;
    account = tierce__calloc(1, sizeof(*account));
    if (account == NULL)
        return NULL;
    account->name = tierce__strdup(name);
    if (account->name == NULL) {
        tierce__free(account);
        return NULL;
    }
    account->limit = UINT64_MAX;
    TIERCE_DASSERT(find_account(*first, name) == NULL);
    account->next = *first;
    *first = account;
    return account;
}

/* ---- shared quotas --------------------------------------------------------------------------- */

static int make_shared(struct tierce__quota *quota, const struct tierce__quota_group *limits,
                       size_t count)
{
    tierce__lock_assert_held(&quota->lock);
    for (size_t i = 0; i < count; i++) {
        if (make_account(&quota->shared, limits[i].name) == NULL)
            return -ENOMEM;
    }
    return 0;
}

int tierce__quota_prepare_shared(struct tierce__quota *quota,
                                 const struct tierce__quota_group *limits, size_t count)
{
    tierce__lock_take(&quota->lock);
    int rc = make_shared(quota, limits, count);
    tierce__lock_drop(&quota->lock);
    return rc;
}

int tierce__quota_set_shared(struct tierce__quota *quota, const struct tierce__quota_group *limits,
                             size_t count)
{
    tierce__lock_take(&quota->lock);
    int rc = make_shared(quota, limits, count);
    for (struct account *shared = quota->shared; rc == 0 && shared != NULL; shared = shared->next) {
        shared->limit = UINT64_MAX;
        for (size_t i = 0; i < count; i++)
            shared->limit = strcmp(limits[i].name, shared->name) == 0 ? limits[i].capacity_bytes
                                                                      : shared->limit;
    }
    note_change(quota);
    tierce__lock_drop(&quota->lock);
    return rc;
}

int tierce__quota_share(struct tierce__quota *quota, const char *group, const char *shared)
{
    tierce__lock_take(&quota->lock);
    struct account *of = make_account(&quota->groups, group);
    struct account *to =
        of != NULL && shared[0] != '\0' ? make_account(&quota->shared, shared) : NULL;
    bool good = of != NULL && (shared[0] == '\0' || to != NULL);
    struct account *from = good ? of->shared : NULL;
    for (int state = 0; good && from != to && state < TIERCE__QUOTA_STATES; state++) {
        uint64_t bytes = of->use.by_state[state];
        if (from != NULL)
            from->use.by_state[state] -=
                bytes < from->use.by_state[state] ? bytes : from->use.by_state[state];
        if (to != NULL)
            to->use.by_state[state] += bytes;
    }
    if (good && from != to) {
        TIERCE_DASSERT(to == NULL || strcmp(to->name, shared) == 0);
        of->shared = to;
        note_change(quota);
    }
    tierce__lock_drop(&quota->lock);
    return good ? 0 : -ENOMEM;
}

bool tierce__quota_shared_at(struct tierce__quota *quota, size_t index,
                             struct tierce__quota_shared *out, char *space, size_t space_bytes)
{
    tierce__lock_take(&quota->lock);
    const struct account *shared = quota->shared;
    for (size_t i = 0; i < index && shared != NULL; i++)
        shared = shared->next;
    if (shared != NULL) {
        snprintf(space, space_bytes, "%s", shared->name);
        *out = (struct tierce__quota_shared){
            .name = space, .limit = shared->limit, .wanted = shared->use.wanted};
        memcpy(out->by_state, shared->use.by_state, sizeof(out->by_state));
    }
    tierce__lock_drop(&quota->lock);
    return shared != NULL;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The three sums in which a place counts. */
struct sums {
    struct account *group, *shared; /* shared: NULL for none */
    struct storage_use *storage;
    uint32_t slot;
};

static int find_sums(struct sums *out, struct tierce__quota *quota,
                     const struct tierce__quota_at *at)
{
    tierce__lock_assert_held(&quota->lock);
    enum tierce__storage_type type =
        tierce__storage_type_quota((enum tierce__storage_type)at->type);
    out->slot = tierce__meta_type_slot((uint8_t)type);
    TIERCE_ASSERT(out->slot < 16);
    out->group = make_account(&quota->groups, at->group);
    out->shared = out->group != NULL ? out->group->shared : NULL;
    out->storage = tierce__storage_table_make(&quota->storages, at->storage);
    note_change(quota);
    return out->group != NULL && out->storage != NULL ? 0 : -ENOMEM;
}

/* More bytes may be subtracted than were added, because a block's size is read from a store that
 * may be damaged. The sum then becomes 0, and the difference is logged. */
static void count(struct sums *sums, enum tierce__quota_state state, uint64_t bytes, bool add)
{
    TIERCE_ASSERT(state < TIERCE__QUOTA_STATES);
    uint64_t lacking = 0;
    uint64_t *all[] = {
        &sums->group->use.by_state[state],
        &sums->group->use.by_type[state][sums->slot],
        &sums->storage->by_state[state],
        sums->shared != NULL ? &sums->shared->use.by_state[state] : NULL,
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] == NULL)
            continue;
        uint64_t gone = *all[i] < bytes ? *all[i] : bytes;
        lacking = !add && bytes - gone > lacking ? bytes - gone : lacking;
        *all[i] = add ? *all[i] + bytes : *all[i] - gone;
    }
    if (lacking > 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.quota_drift",
                    "bytes=%llu reason=\"more bytes were subtracted than had been counted: a "
                    "record of the index is damaged\"",
                    (unsigned long long)lacking);
}

static uint64_t over_states(const uint64_t by_state[TIERCE__QUOTA_STATES])
{
    return by_state[TIERCE__QUOTA_WRITING] + by_state[TIERCE__QUOTA_SERVING] +
           by_state[TIERCE__QUOTA_DELETING];
}

static uint64_t room_below(uint64_t limit, uint64_t used)
{
    return limit > used ? limit - used : 0;
}

/* Remembers the bytes of a block that did not fit. A block larger than the limit is ignored: no
 * eviction would make room for it. */
static void want(struct sums *sums, size_t limit, uint64_t most, uint64_t bytes)
{
    uint64_t *const places[] = {
        &sums->group->use.wanted,
        &sums->group->use.wanted_by_type[sums->slot],
        sums->shared != NULL ? &sums->shared->use.wanted : NULL,
        &sums->storage->wanted,
    };
    TIERCE_ASSERT(limit < sizeof(places) / sizeof(places[0]));
    TIERCE_DASSERT(bytes > 0);
    if (places[limit] != NULL && bytes <= most && *places[limit] < bytes)
        *places[limit] = bytes;
}

int tierce__quota_reserve(struct tierce__quota *quota, const struct tierce__quota_at *at,
                          const struct tierce__quota_limits *limits, const uint64_t *bytes,
                          size_t amounts, size_t *reserved, const char **limit)
{
    static const char *const names[] = {"group", "type", "shared", "storage"};
    struct sums sums;
    tierce__lock_take(&quota->lock);
    int rc = find_sums(&sums, quota, at);
    if (rc < 0)
        goto out;
    const struct tierce__quota_use *use = &sums.group->use;
    uint64_t type_used = 0;
    for (int state = 0; state < TIERCE__QUOTA_STATES; state++)
        type_used += use->by_type[state][sums.slot];
    uint64_t most[] = {limits->group, limits->type,
                       sums.shared != NULL ? sums.shared->limit : UINT64_MAX, limits->storage};
    uint64_t room[] = {
        room_below(most[0], over_states(use->by_state)),
        room_below(most[1], type_used),
        sums.shared != NULL ? room_below(most[2], over_states(sums.shared->use.by_state))
                            : UINT64_MAX,
        room_below(most[3], over_states(sums.storage->by_state)),
    };
    size_t least = 0;
    for (size_t i = 1; i < 4; i++)
        least = room[i] < room[least] ? i : least;
    uint64_t all = 0;
    size_t n = 0;
    while (n < amounts && bytes[n] <= room[least] - all)
        all += bytes[n++];
    TIERCE_ASSERT(all <= room[least] && n <= amounts);
    TIERCE_DASSERT(all <= most[least]);
    if (n == amounts || !limits->is_whole)
        count(&sums, TIERCE__QUOTA_WRITING, all, true);
    *reserved = n;
    *limit = n < amounts ? names[least] : NULL;
    if (n < amounts && !limits->is_quiet)
        want(&sums, least, most[least], bytes[n]);
out:
    tierce__lock_drop(&quota->lock);
    return rc;
}

/* Maps the index's type slot to the quota's type slot. */
static uint32_t quota_slot(uint32_t slot)
{
    TIERCE_ASSERT(slot < 16);
    return slot == tierce__meta_type_slot(TIERCE__STORAGE_VCNS_3FS)
               ? tierce__meta_type_slot(
                     (uint8_t)tierce__storage_type_quota(TIERCE__STORAGE_VCNS_3FS))
               : slot;
}

int tierce__quota_sums_add_storage(struct tierce__quota_sums *sums, enum tierce__quota_state state,
                                   uint16_t storage, uint64_t bytes)
{
    TIERCE_ASSERT(state < TIERCE__QUOTA_STATES);
    TIERCE_DASSERT(sums->by_storage.item_bytes == TIERCE__QUOTA_SUMS_ITEM);
    uint64_t *by_state = tierce__storage_table_make(&sums->by_storage, storage);
    if (by_state == NULL)
        return -ENOMEM;
    by_state[state] += bytes;
    return 0;
}

int tierce__quota_sums_add(struct tierce__quota_sums *sums, enum tierce__quota_state state,
                           uint8_t type, uint16_t storage, uint64_t bytes)
{
    uint32_t slot = tierce__meta_type_slot(type);
    TIERCE_ASSERT(slot < 16);
    int rc = tierce__quota_sums_add_storage(sums, state, storage, bytes);
    if (rc == 0)
        sums->by_type[state][slot] += bytes;
    return rc;
}

void tierce__quota_sums_clear(struct tierce__quota_sums *sums)
{
    tierce__storage_table_clear(&sums->by_storage);
    memset(sums->by_type, 0, sizeof(sums->by_type));
}

/* Calls nothing that can fail if the quota has all pages of the sums. */
static int add_storages(struct tierce__quota *quota, const struct tierce__quota_sums *sums,
                        bool makes_pages)
{
    uint32_t number = 0;
    const uint64_t *added;
    for (; (added = tierce__storage_table_next(&sums->by_storage, &number)) != NULL; number++) {
        struct storage_use *use = tierce__storage_table_make(&quota->storages, (uint16_t)number);
        if (use == NULL)
            return -ENOMEM;
        for (int state = 0; !makes_pages && state < TIERCE__QUOTA_STATES; state++)
            use->by_state[state] += added[state];
    }
    return 0;
}

int tierce__quota_add(struct tierce__quota *quota, const char *group,
                      const struct tierce__quota_sums *sums)
{
    tierce__lock_take(&quota->lock);
    struct account *of = make_account(&quota->groups, group);
    int rc = of != NULL ? add_storages(quota, sums, true) : -ENOMEM;
    for (int state = 0; rc == 0 && state < TIERCE__QUOTA_STATES; state++) {
        for (uint32_t slot = 0; slot < 16; slot++) {
            uint64_t bytes = sums->by_type[state][slot];
            of->use.by_state[state] += bytes;
            of->use.by_type[state][quota_slot(slot)] += bytes;
            if (of->shared != NULL)
                of->shared->use.by_state[state] += bytes;
        }
    }
    if (rc == 0)
        rc = add_storages(quota, sums, false);
    note_change(quota);
    tierce__lock_drop(&quota->lock);
    return rc;
}

void tierce__quota_move(struct tierce__quota *quota, const struct tierce__quota_at *at,
                        enum tierce__quota_state from, enum tierce__quota_state to, uint64_t bytes)
{
    TIERCE_ASSERT(from < TIERCE__QUOTA_STATES && to <= TIERCE__QUOTA_STATES && from != to);
    struct sums sums;
    tierce__lock_take(&quota->lock);
    int rc = find_sums(&sums, quota, at);
    /* The accounts exist, so nothing is allocated. A record that is damaged may name a storage that
     * has none; if there is no memory for it, the difference is logged as for too many bytes. */
    TIERCE_ASSERT(rc == 0 || (sums.group != NULL && sums.storage == NULL));
    if (sums.storage == NULL)
        sums.storage = &quota->lost;
    TIERCE_DASSERT(sums.shared == sums.group->shared);
    count(&sums, from, bytes, false);
    if (to != TIERCE__QUOTA_STATES)
        count(&sums, to, bytes, true);
    tierce__lock_drop(&quota->lock);
}

void tierce__quota_group_use(struct tierce__quota *quota, const char *group,
                             struct tierce__quota_use *out)
{
    tierce__lock_take(&quota->lock);
    const struct account *account = find_account(quota->groups, group);
    *out = account != NULL ? account->use : (struct tierce__quota_use){0};
    tierce__lock_drop(&quota->lock);
}

void tierce__quota_storage_use(struct tierce__quota *quota, uint16_t storage,
                               uint64_t out[TIERCE__QUOTA_STATES], uint64_t *wanted)
{
    tierce__lock_take(&quota->lock);
    static const struct storage_use nothing;
    const struct storage_use *use = tierce__storage_table_find(&quota->storages, storage);
    use = use != NULL ? use : &nothing;
    memcpy(out, use->by_state, sizeof(use->by_state));
    if (wanted != NULL)
        *wanted = use->wanted;
    tierce__lock_drop(&quota->lock);
}

static void clear_wanted(struct tierce__quota_use *use)
{
    use->wanted = 0;
    memset(use->wanted_by_type, 0, sizeof(use->wanted_by_type));
}

void tierce__quota_clear_wanted(struct tierce__quota *quota)
{
    tierce__lock_take(&quota->lock);
    for (struct account *group = quota->groups; group != NULL; group = group->next)
        clear_wanted(&group->use);
    for (struct account *shared = quota->shared; shared != NULL; shared = shared->next)
        clear_wanted(&shared->use);
    uint32_t number = 0;
    struct storage_use *use;
    for (; (use = tierce__storage_table_next(&quota->storages, &number)) != NULL; number++)
        use->wanted = 0;
    tierce__lock_drop(&quota->lock);
}

uint64_t tierce__quota_changes(const struct tierce__quota *quota)
{
    return atomic_load_explicit(&quota->changes, memory_order_relaxed);
}
