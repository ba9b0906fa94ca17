/* SPDX-License-Identifier: Apache-2.0 */
/* The index of small values: their places in a table of numbers, by the low half of the hash. */
#include "base/assert.h"
#include "engine/objects/smalls_private.h"

uint32_t tierce__small_index_find(const struct tierce__small_partition *p, uint64_t hash,
                                  uint32_t ns)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(ns != TIERCE__SMALLS_NS);
    TIERCE__NUMBERS_FOR_EACH (it, &p->table, (uint32_t)hash) {
        const struct tierce__small_record *record = tierce__small_at(p, it.number);
        if (record->hash == hash && record->ns == ns)
            return it.number;
    }
    return TIERCE__SMALLS_NOWHERE;
}

/* The hash under which a place is in the table. `hash` may have been read from a page, in which it
 * was damaged: then all cells are searched. */
static uint32_t hash_of(const struct tierce__small_partition *p, uint64_t hash, uint32_t place)
{
    const struct tierce__numbers *table = &p->table;
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(place >> TIERCE__SMALLS_SLOT_BITS < p->page_count);
    if (tierce__numbers_has(table, (uint32_t)hash, place))
        return (uint32_t)hash;
    uint64_t cell = 0;
    while ((uint32_t)table->cells[cell] != place + 1) {
        TIERCE_ASSERT(cell < table->mask);
        cell++;
    }
    return (uint32_t)(table->cells[cell] >> 32);
}

void tierce__small_index_move(struct tierce__small_partition *p, uint64_t hash, uint32_t from,
                              uint32_t to)
{
    TIERCE_DASSERT(from != to);
    tierce__numbers_replace(&p->table, hash_of(p, hash, from), from, to);
}

void tierce__small_index_remove(struct tierce__small_partition *p, uint64_t hash, uint32_t place)
{
    tierce__numbers_erase(&p->table, hash_of(p, hash, place), place);
}
