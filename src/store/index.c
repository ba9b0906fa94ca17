/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"

#include <errno.h>

/* A table of numbers over the slots. A search touches one line of its cells as a rule, and one line
 * of keys. */

#define INDEX_MAGIC    0x49445831u
#define INDEX_BATCH    64u
#define SLOT_COUNT_MAX (1u << 31)

/* Values of `links`, besides "the next free slot is n - LINK_FIRST". */
enum {
    LINK_FRESH = 0, /* never given out */
    LINK_LIVE = 1,
    LINK_TAKEN = 2, /* has a key that cannot be found yet */
    LINK_END = 3,   /* free, and the last of the free list */
    LINK_FIRST = 4,
};

/* A line of its own, so that a comparison costs one cache miss. */
struct index_key {
    struct tierce__key key;
    void *value; /* the owner's */
    uint8_t pad[8];
};

_Static_assert(sizeof(struct index_key) == 64, "one cache line");

struct tierce__index {
    uint32_t magic;
    uint32_t slot_count;
    uint32_t fresh; /* slots from here on were never given out */
    uint32_t count;
    uint32_t free_link;           /* as in `links`: the slot given back last */
    struct tierce__numbers table; /* the slots that can be found */
    struct index_key *keys;       /* [slot_count] aligned to their size */
    void *keys_memory;
    uint32_t *links; /* [slot_count] */
};

static uint32_t hash_of(const struct tierce__key *key)
{
    return (uint32_t)(tierce__spread(tierce__key_spread(key)) >> 32);
}

int tierce__index_create(struct tierce__index **out, uint32_t slot_count)
{
    if (slot_count < 1 || slot_count > SLOT_COUNT_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__index *index = tierce__calloc(1, sizeof(*index));
    if (index == NULL)
        return -ENOMEM;
    index->magic = INDEX_MAGIC;
    index->slot_count = slot_count;
    index->free_link = LINK_END;
    index->keys_memory = tierce__calloc((size_t)slot_count + 1, sizeof(struct index_key));
    index->links = tierce__calloc(slot_count, sizeof(uint32_t));
    if (tierce__numbers_init(&index->table, slot_count) < 0 || index->keys_memory == NULL ||
        index->links == NULL) {
        tierce__index_destroy(index);
        return -ENOMEM;
    }
    uintptr_t line = sizeof(struct index_key);
    index->keys = (void *)(((uintptr_t)index->keys_memory + line - 1) & ~(line - 1));
    TIERCE_DASSERT(((uintptr_t)index->keys & (line - 1)) == 0);
    tierce__advise_huge(index->keys, (size_t)slot_count * sizeof(struct index_key));
    *out = index;
    return 0;
}

void tierce__index_destroy(struct tierce__index *index)
{
    if (index == NULL)
        return;
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE_DASSERT(index->count <= index->fresh && index->fresh <= index->slot_count);
    TIERCE_DASSERT(index->table.count <= index->count);
    index->magic = 0;
    tierce__free(index->links);
    tierce__free(index->keys_memory);
    tierce__numbers_fini(&index->table);
    tierce__free(index);
}

/* Goes on from a slot that was found and may have another key with the same hash. */
static uint32_t confirm(const struct tierce__index *index, uint64_t place, uint32_t slot,
                        uint32_t hash, const struct tierce__key *key)
{
    while (slot != TIERCE__INDEX_NONE && !tierce__key_equal(&index->keys[slot].key, key))
        slot = tierce__numbers_next(&index->table, &place, hash);
    TIERCE_DASSERT(slot == TIERCE__INDEX_NONE || index->links[slot] == LINK_LIVE);
    return slot;
}

uint32_t tierce__index_find(const struct tierce__index *index, const struct tierce__key *key)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE__NUMBERS_FOR_EACH (it, &index->table, hash_of(key)) {
        TIERCE_DASSERT(it.number < index->slot_count);
        TIERCE_DASSERT(index->links[it.number] == LINK_LIVE);
        if (tierce__key_equal(&index->keys[it.number].key, key))
            return it.number;
    }
    return TIERCE__INDEX_NONE;
}

/*
 * Three passes over a batch of at most INDEX_BATCH keys: hash and fetch the cells, find
 * candidates and fetch their keys, compare. In each, the misses of the batch are in flight
 * together. If `prefix`, it ends at the first key that is not there. Returns the keys answered.
 */
static size_t find_batch(const struct tierce__index *index, uint32_t *slots,
                         const struct tierce__key *keys, size_t count, bool prefix)
{
    uint32_t hashes[INDEX_BATCH];
    uint64_t places[INDEX_BATCH];
    TIERCE_DASSERT(count <= INDEX_BATCH);
    for (size_t i = 0; i < count; i++) {
        hashes[i] = hash_of(&keys[i]);
        places[i] = tierce__numbers_home(&index->table, hashes[i]);
        tierce__numbers_prefetch(&index->table, hashes[i]);
    }
    size_t candidates = 0;
    for (; candidates < count; candidates++) {
        uint32_t slot =
            tierce__numbers_next(&index->table, &places[candidates], hashes[candidates]);
        TIERCE_DASSERT(slot == TIERCE__INDEX_NONE || slot < index->slot_count);
        if (slot != TIERCE__INDEX_NONE)
            __builtin_prefetch(&index->keys[slot]);
        else if (prefix)
            break;
        slots[candidates] = slot;
    }
    TIERCE_DASSERT(candidates <= count);
    for (size_t i = 0; i < candidates; i++) {
        slots[i] = confirm(index, places[i], slots[i], hashes[i], &keys[i]);
        if (prefix && slots[i] == TIERCE__INDEX_NONE)
            return i;
    }
    return candidates;
}

static size_t batch_of(size_t left)
{
    TIERCE_DASSERT(left > 0);
    return left < INDEX_BATCH ? left : INDEX_BATCH;
}

size_t tierce__index_find_prefix(const struct tierce__index *index, uint32_t *slots,
                                 const struct tierce__key *keys, size_t count)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    size_t found = 0;
    while (found < count) {
        size_t batch = batch_of(count - found);
        size_t got = find_batch(index, slots + found, keys + found, batch, true);
        found += got;
        TIERCE_DASSERT(found <= count);
        if (got < batch)
            break;
    }
    return found;
}

void tierce__index_find_each(const struct tierce__index *index, uint32_t *slots,
                             const struct tierce__key *keys, size_t count)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    for (size_t at = 0; at < count; at += INDEX_BATCH)
        find_batch(index, slots + at, keys + at, batch_of(count - at), false);
}

static bool is_taken(const struct tierce__index *index, uint32_t slot)
{
    return slot < index->slot_count &&
           (index->links[slot] == LINK_LIVE || index->links[slot] == LINK_TAKEN);
}

static uint32_t take_slot(struct tierce__index *index)
{
    uint32_t slot;
    if (index->free_link != LINK_END) {
        slot = index->free_link - LINK_FIRST;
        TIERCE_DASSERT(slot < index->slot_count);
        index->free_link = index->links[slot];
    } else if (index->fresh < index->slot_count) {
        slot = index->fresh++;
    } else {
        return TIERCE__INDEX_NONE;
    }
    TIERCE_DASSERT(!is_taken(index, slot));
    index->links[slot] = LINK_TAKEN;
    index->count++;
    TIERCE_DASSERT(index->count <= index->fresh);
    return slot;
}

static void give_slot(struct tierce__index *index, uint32_t slot)
{
    TIERCE_DASSERT(is_taken(index, slot));
    TIERCE_DASSERT(index->count > 0);
    index->keys[slot].value = NULL;
    index->links[slot] = index->free_link;
    index->free_link = slot + LINK_FIRST;
    index->count--;
}

uint32_t tierce__index_take(struct tierce__index *index, const struct tierce__key *key)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE_DASSERT(index->count < index->slot_count || index->free_link == LINK_END);
    uint32_t slot = take_slot(index);
    if (slot != TIERCE__INDEX_NONE)
        index->keys[slot].key = *key;
    return slot;
}

void tierce__index_show(struct tierce__index *index, uint32_t slot)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE_ASSERT(slot < index->slot_count && index->links[slot] == LINK_TAKEN);
    const struct tierce__key *key = &index->keys[slot].key;
    TIERCE_DASSERT(tierce__index_find(index, key) == TIERCE__INDEX_NONE);
    tierce__numbers_put(&index->table, hash_of(key), slot);
    index->links[slot] = LINK_LIVE;
    TIERCE_DASSERT(index->table.count <= index->count);
}

uint32_t tierce__index_insert(struct tierce__index *index, const struct tierce__key *key)
{
    uint32_t slot = tierce__index_take(index, key);
    if (slot != TIERCE__INDEX_NONE)
        tierce__index_show(index, slot);
    return slot;
}

void tierce__index_erase(struct tierce__index *index, uint32_t slot)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE_ASSERT(is_taken(index, slot));
    if (index->links[slot] == LINK_LIVE)
        tierce__numbers_erase(&index->table, hash_of(&index->keys[slot].key), slot);
    give_slot(index, slot);
    TIERCE_DASSERT(index->table.count <= index->count);
}

const struct tierce__key *tierce__index_key(const struct tierce__index *index, uint32_t slot)
{
    TIERCE_ASSERT(is_taken(index, slot));
    return &index->keys[slot].key;
}

void tierce__index_set_value(struct tierce__index *index, uint32_t slot, void *value)
{
    TIERCE_ASSERT(is_taken(index, slot));
    index->keys[slot].value = value;
}

void *tierce__index_value(const struct tierce__index *index, uint32_t slot)
{
    TIERCE_ASSERT(slot < index->slot_count);
    TIERCE_DASSERT(is_taken(index, slot) || index->keys[slot].value == NULL);
    return index->keys[slot].value;
}

bool tierce__index_has(const struct tierce__index *index, uint32_t slot)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    return slot < index->slot_count && index->links[slot] == LINK_LIVE;
}

uint32_t tierce__index_count(const struct tierce__index *index)
{
    TIERCE_CHECK_MAGIC(index, INDEX_MAGIC);
    TIERCE_DASSERT(index->count <= index->slot_count);
    return index->count;
}
