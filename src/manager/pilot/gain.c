/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/gain.h"

#include "base/assert.h"
#include "manager/reclaim/reclaimer.h"

#include <math.h>

/* The quotas of the types of the group's storages; infinite if one of them has none. */
static double sum_of_types(const struct tierce__group *group, const struct tierce__catalog *catalog)
{
    double sum = 0;
    uint32_t seen = 0;
    for (size_t i = 0; i < group->storage_candidate_count; i++) {
        enum tierce__storage_type kind = tierce__storage_type_quota(
            tierce__catalog_candidate_type(catalog, group->storage_candidates[i]));
        const struct tierce__type_quota *quota = tierce__group_type_quota(group, kind);
        if (quota == NULL)
            return INFINITY;
        if ((seen & tierce__storage_type_bit(kind)) == 0 && quota->capacity_bytes > 0)
            sum += (double)quota->capacity_bytes;
        seen |= tierce__storage_type_bit(kind);
    }
    return seen != 0 ? sum : INFINITY;
}

double tierce__gain_bytes(const struct tierce__group *group, const struct tierce__catalog *catalog)
{
    double share = tierce__reclaimer_watermark_share(group);
    double bytes =
        fmin(tierce__reclaimer_watermark_bytes(group), share * sum_of_types(group, catalog));
    TIERCE_ASSERT(bytes >= 0);
    return bytes;
}

double tierce__gain_reach(double quota)
{
    enum { REACH_QUOTAS = 4 };
    return quota > 0 ? fmax(REACH_QUOTAS * quota, quota + 2 * TIERCE__GAIN_BYTES) : 0;
}

void tierce__gain_at(struct tierce__gain *out, const struct tierce__ghost_shape *shape,
                     double bytes)
{
    *out = (struct tierce__gain){-1, -1, -1};
    if (!(bytes > 0) || !(shape->asked > 0))
        return;
    double now = tierce__ghost_hits(shape, bytes);
    double more = tierce__ghost_hits(shape, bytes + TIERCE__GAIN_BYTES) - now;
    /* Differences of sums that were rounded in another order. */
    more = more > 0 ? more : 0;
    out->hit_ratio = now / shape->asked;
    out->more_hit_ratio = more / shape->asked;
    out->more_tokens_per_second = shape->seconds > 0 ? more / shape->seconds : -1;
    TIERCE_DASSERT(out->hit_ratio >= 0);
}

bool tierce__gain_of_group(struct tierce__gain *out, struct tierce__ghost_shape *shape,
                           struct tierce__ghosts *ghost, const struct tierce__group *group,
                           const struct tierce__catalog *catalog)
{
    *out = (struct tierce__gain){-1, -1, -1};
    if (ghost == NULL || !tierce__ghosts_group(ghost, group->name, shape))
        return false;
    tierce__gain_at(out, shape, tierce__gain_bytes(group, catalog));
    return true;
}
