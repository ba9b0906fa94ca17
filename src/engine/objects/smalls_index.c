/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of small values: open addressing with linear probing, eight bytes per entry. The tag
 * determines the bucket for any table size, so growing and removing read no value.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/objects/smalls_private.h"

#define BUCKETS_FIRST 256u

static uint32_t next_of(const struct tierce__small_partition *p, uint32_t bucket)
{
    return (bucket + 1) & p->table_mask;
}

static void insert(struct tierce__small_partition *p, struct tierce__small_entry entry)
{
    uint32_t bucket = entry.tag & p->table_mask;
    while (p->table[bucket].place != TIERCE__SMALLS_NOWHERE)
        bucket = next_of(p, bucket);
    p->table[bucket] = entry;
}

int tierce__small_index_reserve(struct tierce__small_partition *p)
{
    uint64_t before = p->table != NULL ? (uint64_t)p->table_mask + 1 : 0;
    if (before > 0 && (uint64_t)p->entries + 1 <= before / 4 * 3)
        return 0;
    uint64_t buckets = before > 0 ? 2 * before : BUCKETS_FIRST;
    if (buckets > 1ULL << 31)
        return -ENOMEM;
    struct tierce__small_entry *old = p->table,
                               *table = tierce__alloc((size_t)buckets * sizeof(*table));
    if (table == NULL)
        return -ENOMEM;
    memset(table, 0xff, (size_t)buckets * sizeof(*table)); /* NOWHERE */
    p->table = table;
    p->table_mask = (uint32_t)(buckets - 1);
    for (uint64_t i = 0; i < before; i++) {
        if (old[i].place != TIERCE__SMALLS_NOWHERE)
            insert(p, old[i]);
    }
    tierce__free(old);
    return 0;
}

uint32_t tierce__small_index_find(const struct tierce__small_partition *p, uint64_t hash,
                                  uint32_t ns)
{
    uint32_t tag = (uint32_t)hash;
    if (p->table == NULL)
        return TIERCE__SMALLS_NOWHERE;
    for (uint32_t bucket = tag & p->table_mask; p->table[bucket].place != TIERCE__SMALLS_NOWHERE;
         bucket = next_of(p, bucket)) {
        if (p->table[bucket].tag != tag)
            continue;
        const struct tierce__small_record *record = tierce__small_at(p, p->table[bucket].place);
        if (record->hash == hash && record->ns == ns)
            return p->table[bucket].place;
    }
    return TIERCE__SMALLS_NOWHERE;
}

/* Where the entry of a place is. The hash may have been read from a page, in which it was damaged:
 * then all buckets are looked at. */
static uint32_t bucket_of(const struct tierce__small_partition *p, uint64_t hash, uint32_t place)
{
    uint32_t bucket = (uint32_t)hash & p->table_mask;
    while (p->table[bucket].place != place && p->table[bucket].place != TIERCE__SMALLS_NOWHERE)
        bucket = next_of(p, bucket);
    if (p->table[bucket].place == place)
        return bucket;
    for (bucket = 0; p->table[bucket].place != place; bucket++)
        TIERCE_ASSERT(bucket < p->table_mask);
    return bucket;
}

void tierce__small_index_add(struct tierce__small_partition *p, uint64_t hash, uint32_t place)
{
    insert(p, (struct tierce__small_entry){.place = place, .tag = (uint32_t)hash});
    p->entries++;
}

void tierce__small_index_move(struct tierce__small_partition *p, uint64_t hash, uint32_t from,
                              uint32_t to)
{
    p->table[bucket_of(p, hash, from)].place = to;
}

/* Moves the following entries up, so that no bucket between an entry and its home bucket is empty.
 */
void tierce__small_index_remove(struct tierce__small_partition *p, uint64_t hash, uint32_t place)
{
    uint32_t hole = bucket_of(p, hash, place);
    for (uint32_t at = next_of(p, hole); p->table[at].place != TIERCE__SMALLS_NOWHERE;
         at = next_of(p, at)) {
        uint32_t home = p->table[at].tag & p->table_mask;
        if (((at - home) & p->table_mask) < ((at - hole) & p->table_mask))
            continue;
        p->table[hole] = p->table[at];
        hole = at;
    }
    p->table[hole].place = TIERCE__SMALLS_NOWHERE;
    p->entries--;
}
