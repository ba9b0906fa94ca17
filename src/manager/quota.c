/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/quota.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/lock.h"
#include "base/log.h"
#include "manager/meta_store.h"

#include <errno.h>
#include <string.h>

/* Of a group, or of what groups share. */
struct account {
    struct account *next;
    char *name;
    struct tierce__quota_use use;
};

struct storage_use {
    uint64_t by_state[TIERCE__QUOTA_STATES];
};

struct tierce__quota {
    struct tierce__lock lock;
    struct account *groups, *shared;
    struct storage_use storages[TIERCE__META_STORAGE_SLOTS];
};

int tierce__quota_create(struct tierce__quota **out)
{
    struct tierce__quota *quota = tierce__calloc(1, sizeof(*quota));
    if (quota == NULL)
        return -ENOMEM;
    tierce__lock_init(&quota->lock, TIERCE__LOCK_QUOTA);
    *out = quota;
    return 0;
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
    free_accounts(quota->shared);
    quota->groups = quota->shared = NULL;
    memset(quota->storages, 0, sizeof(quota->storages));
    tierce__lock_drop(&quota->lock);
}

void tierce__quota_destroy(struct tierce__quota *quota)
{
    if (quota == NULL)
        return;
    tierce__quota_reset(quota);
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
    account->next = *first;
    *first = account;
    return account;
}

/* The three sums that one place counts in. */
struct sums {
    struct account *group, *shared; /* shared: NULL for none */
    struct storage_use *storage;
    uint32_t slot;
};

static int find_sums(struct sums *out, struct tierce__quota *quota,
                     const struct tierce__quota_at *at)
{
    enum tierce__storage_type type =
        tierce__storage_type_quota((enum tierce__storage_type)at->type);
    out->slot = tierce__meta_type_slot((uint8_t)type);
    out->group = make_account(&quota->groups, at->group);
    out->shared = at->shared[0] != '\0' ? make_account(&quota->shared, at->shared) : NULL;
    out->storage = &quota->storages[tierce__meta_storage_slot(at->storage)];
    bool good = out->group != NULL && (at->shared[0] == '\0' || out->shared != NULL);
    return good ? 0 : -ENOMEM;
}

/* What is taken off may be more than was ever added: how many bytes a block has is read from a
 * store, whose records somebody may have damaged. Then the sum is too small by as much as is
 * said. */
static void count(struct sums *sums, enum tierce__quota_state state, uint64_t bytes, bool add)
{
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
        tierce__log(
            TIERCE_LOG_ERROR, "manager.quota_drift",
            "bytes=%llu reason=\"more was taken off than was counted: a record of the index "
            "is damaged\"",
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
    uint64_t room[] = {
        room_below(limits->group, over_states(use->by_state)),
        room_below(limits->type, type_used),
        sums.shared != NULL ? room_below(limits->shared, over_states(sums.shared->use.by_state))
                            : UINT64_MAX,
        room_below(limits->storage, over_states(sums.storage->by_state)),
    };
    size_t least = 0;
    for (size_t i = 1; i < 4; i++)
        least = room[i] < room[least] ? i : least;
    uint64_t all = 0;
    size_t n = 0;
    while (n < amounts && bytes[n] <= room[least] - all)
        all += bytes[n++];
    count(&sums, TIERCE__QUOTA_WRITING, all, true);
    *reserved = n;
    *limit = n < amounts ? names[least] : NULL;
out:
    tierce__lock_drop(&quota->lock);
    return rc;
}

/* The slot that a type's bytes count in, by the slot that the index counts them in. */
static uint32_t quota_slot(uint32_t slot)
{
    return slot == tierce__meta_type_slot(TIERCE__STORAGE_VCNS_3FS)
               ? tierce__meta_type_slot(
                     (uint8_t)tierce__storage_type_quota(TIERCE__STORAGE_VCNS_3FS))
               : slot;
}

int tierce__quota_add(struct tierce__quota *quota, const char *group, const char *shared,
                      enum tierce__quota_state state, const uint64_t by_type[16],
                      const uint64_t by_storage[TIERCE__META_STORAGE_SLOTS])
{
    struct sums sums;
    struct tierce__quota_at at = {.group = group, .shared = shared};
    tierce__lock_take(&quota->lock);
    int rc = find_sums(&sums, quota, &at);
    for (uint32_t slot = 0; rc == 0 && slot < 16; slot++) {
        sums.group->use.by_state[state] += by_type[slot];
        sums.group->use.by_type[state][quota_slot(slot)] += by_type[slot];
        if (sums.shared != NULL)
            sums.shared->use.by_state[state] += by_type[slot];
    }
    for (size_t slot = 0; rc == 0 && slot < TIERCE__META_STORAGE_SLOTS; slot++)
        quota->storages[slot].by_state[state] += by_storage[slot];
    tierce__lock_drop(&quota->lock);
    return rc;
}

void tierce__quota_move(struct tierce__quota *quota, const struct tierce__quota_at *at,
                        enum tierce__quota_state from, enum tierce__quota_state to, uint64_t bytes)
{
    struct sums sums;
    tierce__lock_take(&quota->lock);
    int rc = find_sums(&sums, quota, at);
    TIERCE_ASSERT(rc == 0); /* they are there, so that nothing is made */
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
                               uint64_t out[TIERCE__QUOTA_STATES])
{
    tierce__lock_take(&quota->lock);
    memcpy(out, quota->storages[tierce__meta_storage_slot(storage)].by_state,
           sizeof(quota->storages[0].by_state));
    tierce__lock_drop(&quota->lock);
}
