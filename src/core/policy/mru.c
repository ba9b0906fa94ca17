/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

static int mru_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return tierce__ordered_create(out, sizeof(struct tierce__ordered), &tierce__policy_mru_ops,
                                  opts, 1, true);
}

static bool mru_rank(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                     uint64_t now, uint64_t half_life)
{
    (void)now, (void)half_life;
    *out = (struct tierce__policy_rank){.time = UINT64_MAX - history->used};
    return true;
}

const struct tierce__policy_ops tierce__policy_mru_ops = {
    .name = "mru",
    .summary = "most recently used: evicts the entry with the latest use",
    .create = mru_create,
    .destroy = tierce__ordered_destroy,
    .insert = tierce__ordered_insert,
    .touch = tierce__ordered_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .rank = mru_rank,
    .prefetch = tierce__ordered_prefetch,
};
