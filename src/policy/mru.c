/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/order.h"
#include "policy/policy_private.h"

static int mru_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return tierce__ordered_create(out, sizeof(struct tierce__ordered), &tierce__policy_mru_ops,
                                  opts, 1, true);
}

const struct tierce__policy_ops tierce__policy_mru_ops = {
    .name = "mru",
    .summary = "most recently used: the entry whose last use is the latest leaves first",
    .create = mru_create,
    .destroy = tierce__ordered_destroy,
    .insert = tierce__ordered_insert,
    .touch = tierce__ordered_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = tierce__ordered_remove,
    .victim = tierce__ordered_victim,
    .prefetch = tierce__ordered_prefetch,
};
