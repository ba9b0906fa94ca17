/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * A time to live, which each use renews. One time for all, so that the order in which entries
 * expire is the order of their last use: the victim is the entry that expires first, and what has
 * expired is found at the same end.
 */

struct ttl {
    struct tierce__ordered ordered;
    uint64_t *used_at; /* [slot_count] */
    uint64_t ttl;      /* 0: for ever */
};

static struct ttl *ttl_of(struct tierce__policy *policy)
{
    (void)tierce__order_of(policy);
    return (struct ttl *)(void *)policy;
}

static void ttl_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    tierce__free(ttl_of(policy)->used_at);
    tierce__ordered_destroy(policy);
}

static int ttl_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    struct tierce__policy *policy;
    int rc = tierce__ordered_create(&policy, sizeof(struct ttl), &tierce__policy_ttl_ops, opts, 1,
                                    false);
    if (rc < 0)
        return rc;
    struct ttl *ttl = ttl_of(policy);
    ttl->ttl = opts->ttl;
    ttl->used_at = tierce__calloc(opts->slot_count, sizeof(*ttl->used_at));
    if (ttl->used_at == NULL) {
        ttl_destroy(policy);
        return -ENOMEM;
    }
    tierce__advise_huge(ttl->used_at, opts->slot_count * sizeof(*ttl->used_at));
    *out = policy;
    return 0;
}

/* Whether no listed entry was used after `now`: a clock that goes back would expire entries late.
 */
static inline bool is_later(const struct ttl *ttl, uint64_t now)
{
    const struct tierce__order *order = &ttl->ordered.order;
    uint32_t newest = order->nodes[order->slot_count].older;
    return newest == order->slot_count || ttl->used_at[newest] <= now;
}

static void ttl_insert(struct tierce__policy *policy, uint32_t slot,
                       const struct tierce__policy_entry *entry)
{
    struct ttl *ttl = ttl_of(policy);
    TIERCE_DASSERT(is_later(ttl, entry->now));
    tierce__order_push(&ttl->ordered.order, slot, 0);
    ttl->used_at[slot] = entry->now;
}

static void ttl_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct ttl *ttl = ttl_of(policy);
    TIERCE_DASSERT(is_later(ttl, now));
    tierce__order_move(&ttl->ordered.order, slot, 0);
    ttl->used_at[slot] = now;
}

static bool ttl_expired(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct ttl *ttl = ttl_of(policy);
    uint32_t first;
    if (!tierce__order_first(&ttl->ordered.order, 0, &first) ||
        !tierce__policy_outlived(ttl->used_at[first], ttl->ttl, now))
        return false;
    *slot = first;
    return true;
}

const struct tierce__policy_ops tierce__policy_ttl_ops = {
    .name = "ttl",
    .summary = "time to live: evicts an entry after this time without a use; if full, the entry "
               "that would expire next",
    .create = ttl_create,
    .destroy = ttl_destroy,
    .insert = ttl_insert,
    .touch = ttl_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .rank = tierce__policy_rank_by_use,
    .expired = ttl_expired,
    .prefetch = tierce__ordered_prefetch,
};
