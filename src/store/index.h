/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_INDEX_H
#define TIERCE_TIER_INDEX_H

#include "core/key/key.h"

/*
 * Keys to dense slots: the table under the memory tier and the disk tier.
 *
 * Open addressing with a tag per bucket; the full key is compared before a slot is returned. The
 * owner keeps what belongs to a slot in arrays of its own, or one pointer beside its key, and hands
 * the same slots to a policy. All memory is reserved at create, in pages that are touched on use.
 *
 * Thread: one at a time; the owner locks. Nothing blocks, and only create can fail for memory.
 */

struct tierce__index;

/* For at most `slot_count` keys. Errors: -ENOMEM, TIERCE_E_ARGUMENT (0, or above 2^31). */
TIERCE_MUSTUSE int tierce__index_create(struct tierce__index **out, uint32_t slot_count);
void tierce__index_destroy(struct tierce__index *index);

/* The slot of `key`, or TIERCE__INDEX_NONE. */
#define TIERCE__INDEX_NONE UINT32_MAX
uint32_t tierce__index_find(const struct tierce__index *index, const struct tierce__key *key);

/*
 * Slots of the leading keys that are present, up to the first absent one: slots[0 .. returned).
 * Memory latency is overlapped over the batch: 128 keys in a table of 512k cost about as much as
 * a handful of cache misses.
 */
size_t tierce__index_find_prefix(const struct tierce__index *index, uint32_t *slots,
                                 const struct tierce__key *keys, size_t count);

/* The slot of every key, or TIERCE__INDEX_NONE: slots[0 .. count). As fast as find_prefix. */
void tierce__index_find_each(const struct tierce__index *index, uint32_t *slots,
                             const struct tierce__key *keys, size_t count);

/* A slot for an absent key, or TIERCE__INDEX_NONE when all slots are in use. Slots are
 * reused last-given first. */
uint32_t tierce__index_insert(struct tierce__index *index, const struct tierce__key *key);

/* The two halves of insert. take: reserves a slot with its key, invisible to lookups; several slots
 * may be reserved for equal keys. show: makes the slot visible; the index must not hold its key. */
uint32_t tierce__index_take(struct tierce__index *index, const struct tierce__key *key);
void tierce__index_show(struct tierce__index *index, uint32_t slot);

/* Removes a slot that was inserted or only taken. */
void tierce__index_erase(struct tierce__index *index, uint32_t slot);

/* The key of a slot that is in or taken; [borrow until it is erased]. */
const struct tierce__key *tierce__index_key(const struct tierce__index *index, uint32_t slot);

/* The owner's value of a slot, stored beside its key in the cache line that a find has read. NULL
 * at first, and for a slot that is neither in nor taken. */
void tierce__index_set_value(struct tierce__index *index, uint32_t slot, void *value);
void *tierce__index_value(const struct tierce__index *index, uint32_t slot);

/* Whether the slot is in, and not only taken. */
bool tierce__index_has(const struct tierce__index *index, uint32_t slot);

/* Slots that are in or taken. */
uint32_t tierce__index_count(const struct tierce__index *index);

#endif
