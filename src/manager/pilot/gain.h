/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GAIN_H
#define TIERCE_MANAGER_GAIN_H

#include "manager/pilot/ghosts.h"
#include "manager/registry/catalog.h"

/*
 * The gain of another GiB for a group: the hit rate of its curve (ghosts.h) at the bytes that
 * it may hold, and with 1 GiB more.
 *
 * A group may hold bytes up to its watermark, where reclaim begins. If quotas by type limit all
 * types of its storages, and are smaller together, their watermarks count instead. Limits that
 * groups share (capacity_bytes of storages, quota.groups) are not considered.
 *
 * Threads: any.
 */

#define TIERCE__GAIN_BYTES 0x1p30

struct tierce__gain {
    double hit_ratio;      /* of the tokens looked up, at the bytes it may hold; -1: unknown */
    double more_hit_ratio; /* that another GiB would add; -1: unknown */
    double more_tokens_per_second; /* the same, of the tokens looked up a second; -1: unknown */
};

/* The bytes that a group may hold; 0: it has no quota. */
double tierce__gain_bytes(const struct tierce__group *group, const struct tierce__catalog *catalog);

/* The largest capacity for which the curve of a group with this quota is of interest: so that more
 * quota, and another GiB for a small one, lie below it. 0: none. */
double tierce__gain_reach(double quota);

/* Of a curve at some bytes. All are -1 if `bytes` is not above 0 or the window has no lookups. */
void tierce__gain_at(struct tierce__gain *out, const struct tierce__ghost_shape *shape,
                     double bytes);

/* Of a group, with the curve in *shape. False, and all are -1: the group has no curve. */
bool tierce__gain_of_group(struct tierce__gain *out, struct tierce__ghost_shape *shape,
                           struct tierce__ghosts *ghost, const struct tierce__group *group,
                           const struct tierce__catalog *catalog);

#endif
