/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/flat.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

static int fifo_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return tierce__ordered_create(out, sizeof(struct tierce__ordered), &tierce__policy_fifo_ops,
                                  opts, 1, false);
}

static void fifo_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    (void)now;
    TIERCE_DASSERT(tierce__order_has(tierce__order_of(policy), slot));
}

static uint32_t fifo_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_fifo_ops, uses);
}

static bool fifo_rank(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                      uint64_t now, uint64_t half_life)
{
    (void)now, (void)half_life;
    *out = (struct tierce__policy_rank){.time = history->stored};
    return true;
}

const struct tierce__policy_ops tierce__policy_fifo_ops = {
    .name = "fifo",
    .summary = "first in, first out: evicts the entry stored longest ago",
    .create = fifo_create,
    .destroy = tierce__ordered_destroy,
    .insert = tierce__ordered_insert,
    .touch = fifo_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .rank = fifo_rank,
    .run = fifo_run,
};
