/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/flat.h"
#include "policy/order.h"
#include "policy/policy_private.h"

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

const struct tierce__policy_ops tierce__policy_fifo_ops = {
    .name = "fifo",
    .summary = "first in, first out: the entry that was stored longest ago leaves first",
    .create = fifo_create,
    .destroy = tierce__ordered_destroy,
    .insert = tierce__ordered_insert,
    .touch = fifo_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .run = fifo_run,
};
