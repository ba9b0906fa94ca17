/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_PRIVATE_H
#define TIERCE_POLICY_PRIVATE_H

#include "core/policy/policy.h"

/* One table of operations per row; each is defined in the file of its policy. */
#define TIERCE_POLICY(name) extern const struct tierce__policy_ops tierce__policy_##name##_ops;
#include "core/policy/policies.def"
#undef TIERCE_POLICY

/* The checks common to every create function. */
static inline bool tierce__policy_opts_good(const struct tierce__policy_opts *opts)
{
    return opts->size == sizeof(*opts) && opts->slot_count >= 1 &&
           opts->slot_count <= TIERCE__POLICY_SLOTS_MAX;
}

/* Ranks by the time of the last use. */
static inline bool tierce__policy_rank_by_use(struct tierce__policy_rank *out,
                                              const struct tierce__policy_history *history,
                                              uint64_t now, uint64_t half_life)
{
    (void)now, (void)half_life;
    *out = (struct tierce__policy_rank){.time = history->used};
    return true;
}

#endif
