/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_DEMOTE_H
#define TIERCE_MANAGER_DEMOTE_H

#include "manager/reclaim/victims_private.h"

/*
 * Demotion: victims of a limit of a type or a storage are moved to a colder candidate of their
 * group (`demote` of the group) instead of being evicted. Demotion begins at the watermark of the
 * limit. Halfway between the watermark and the limit blocks are evicted as without it, so that a
 * storage does not fill when no mover keeps up.
 *
 * Victims are taken in the order of their last use, whatever the policy, and whether blocks follow
 * them or not: a demoted block still serves. A location is dropped, and not moved, if another
 * location that stays has all its parts, or if no lookup can use the block.
 *
 * Thread: the reclaimer's.
 */

/* For each group of the catalog, whether its blocks that the need concerns can be demoted: it asks
 * for it, and has a candidate with room behind a storage of the need. It is for need->demotes, and
 * asked once for a need: the candidates of a group may be pools of many parts. NULL: no block of an
 * engine can be demoted, or there is no memory. [transfer: tierce__free] */
bool *tierce__demote_begin(struct tierce__locator *locator, const struct tierce__catalog *catalog,
                           const struct tierce__need *need);

/* The bytes that the need concerns and that wait to be moved or are being moved away. */
uint64_t tierce__demote_leaving(struct tierce__locator *locator,
                                const struct tierce__catalog *catalog,
                                const struct tierce__need *need);

/* Whether the blocks of an instance can be demoted, by need->demotes. */
bool tierce__demote_takes(const struct tierce__live *live, const struct tierce__catalog *catalog,
                          const struct tierce__group *group, const struct tierce__need *need);

/* Whether a block is being moved already, or written. */
bool tierce__demote_skips(struct tierce__live *live, int64_t key,
                          const struct tierce__record *record, int64_t now_us);

/* Whether a location of a candidate, whose record is given, is dropped and not moved. It is asked
 * again under the key's lock: the copy for which it is dropped may have left since the sample. */
bool tierce__demote_drops(struct tierce__taking *t, const struct tierce__candidate *c,
                          const struct tierce__record *record,
                          const struct tierce__location *location);

/* Queues the moves of a member's chosen blocks. Those that are to be dropped instead are put to the
 * front of `chosen`; returns their number. */
size_t tierce__demote(struct tierce__taking *t, const struct tierce__member *member,
                      struct tierce__candidate **chosen, size_t count);

#endif
