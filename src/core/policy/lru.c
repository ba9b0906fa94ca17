/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/flat.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

static int lru_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return tierce__ordered_create(out, sizeof(struct tierce__ordered), &tierce__policy_lru_ops,
                                  opts, 1, false);
}

static uint32_t lru_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_lru_ops, uses);
}

const struct tierce__policy_ops tierce__policy_lru_ops = {
    .name = "lru",
    .summary = "least recently used: evicts the entry whose last use is longest ago",
    .create = lru_create,
    .destroy = tierce__ordered_destroy,
    .insert = tierce__ordered_insert,
    .touch = tierce__ordered_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .rank = tierce__policy_rank_by_use,
    .prefetch = tierce__ordered_prefetch,
    .run = lru_run,
};
