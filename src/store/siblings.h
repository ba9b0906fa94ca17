/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_SIBLINGS_H
#define TIERCE_TIER_SIBLINGS_H

#include "core/key/key.h"

/*
 * Which slots hold chunks that begin with the same block: the second index of a tier.
 *
 * The hash of a block is chained over all blocks before it, so (namespace, shard, hash of the
 * first block) names the chunks that follow the same prefix and share at least one block. The
 * owner gives the slots of its index, and compares in full what is found: slots of one tag may
 * differ. 12 bytes a slot, and a head for each.
 *
 * Thread: one at a time; the owner locks. Nothing blocks, and only create can fail for memory.
 */

struct tierce__siblings;

/* For slots below `slot_count`. Errors: -ENOMEM, TIERCE_E_ARGUMENT (0, or above 2^31 - 1). */
TIERCE_MUSTUSE int tierce__siblings_create(struct tierce__siblings **out, uint32_t slot_count);
void tierce__siblings_destroy(struct tierce__siblings *siblings);

/* Adds an absent slot as the newest; [in] key: that of the chunk, of which only namespace and shard
 * matter. */
void tierce__siblings_add(struct tierce__siblings *siblings, uint32_t slot,
                          const struct tierce__key *key,
                          const uint8_t first_block[TIERCE_HASH_BYTES]);

/* Removes a slot; an absent slot is accepted. */
void tierce__siblings_remove(struct tierce__siblings *siblings, uint32_t slot);

/* Slots that may begin with the block whose hash is first->hash, the newest first: slots[0 ..
 * returned), `room` at most. Looks at 64 at most. */
size_t tierce__siblings_find(const struct tierce__siblings *siblings, uint32_t *slots, size_t room,
                             const struct tierce__key *first);

#endif
