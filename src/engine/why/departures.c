/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/departures.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"

#include <tierce/why.h>

#define WAYS 4u

struct departure {
    uint64_t spread;
    struct tierce__departure what; /* reason NONE: an empty slot */
};

_Static_assert(sizeof(struct departure) == 16, "four entries are one cache line");

/* Newest first; empty entries come last. */
struct set {
    struct departure ways[WAYS];
};

struct tierce__departures {
    struct tierce__lock lock; /* DEPARTURES: below */
    uint32_t set_count;
    struct set *sets;
};

int tierce__departures_create(struct tierce__departures **out, uint32_t count)
{
    *out = NULL;
    if (count == 0)
        return 0;
    struct tierce__departures *table = tierce__calloc(1, sizeof(*table));
    if (table == NULL)
        return -ENOMEM;
    table->set_count = count / WAYS + (count % WAYS > 0);
    table->sets = tierce__calloc(table->set_count, sizeof(*table->sets));
    if (table->sets == NULL) {
        tierce__free(table);
        return -ENOMEM;
    }
    tierce__advise_huge(table->sets, table->set_count * sizeof(*table->sets));
    tierce__lock_init(&table->lock, TIERCE__LOCK_DEPARTURES);
    *out = table;
    TIERCE_DASSERT((uint64_t)table->set_count * WAYS >= count);
    return 0;
}

void tierce__departures_destroy(struct tierce__departures *table)
{
    if (table == NULL)
        return;
    tierce__lock_fini(&table->lock);
    tierce__free(table->sets);
    tierce__free(table);
}

static struct set *set_of(const struct tierce__departures *table, uint64_t spread)
{
    TIERCE_DASSERT(table->set_count > 0);
    return &table->sets[(spread >> 32) * table->set_count >> 32];
}

/* The slot of a chunk, or WAYS. */
static uint32_t place_of(const struct set *set, uint64_t spread)
{
    uint32_t i = 0;
    while (i < WAYS && (set->ways[i].spread != spread || set->ways[i].what.reason == 0))
        i++;
    return i;
}

/* A faster level may evict a chunk that a slower level should have kept. */
static bool stays(const struct tierce__departure *known, const struct tierce__departure *next)
{
    TIERCE_DASSERT(next->reason != TIERCE_MISS_NONE);
    bool by_policy = next->reason == TIERCE_MISS_EVICTED || next->reason == TIERCE_MISS_EXPIRED;
    return known->reason == TIERCE_MISS_NOT_WRITTEN && by_policy && next->level < known->level;
}

void tierce__departures_note(struct tierce__departures *table, uint64_t spread,
                             const struct tierce__departure *departure)
{
    TIERCE_ASSERT(departure->reason != TIERCE_MISS_NONE);
    if (table == NULL)
        return;
    struct set *set = set_of(table, spread);
    tierce__lock_take(&table->lock);
    uint32_t place = place_of(set, spread);
    if (place == WAYS || !stays(&set->ways[place].what, departure)) {
        uint32_t newer = place < WAYS ? place : WAYS - 1;
        TIERCE_DASSERT(newer < WAYS);
        memmove(&set->ways[1], &set->ways[0], newer * sizeof(set->ways[0]));
        set->ways[0] = (struct departure){.spread = spread, .what = *departure};
    }
    tierce__lock_drop(&table->lock);
}

void tierce__departures_forget(struct tierce__departures *table, uint64_t spread)
{
    if (table == NULL)
        return;
    struct set *set = set_of(table, spread);
    tierce__lock_take(&table->lock);
    uint32_t place = place_of(set, spread);
    if (place < WAYS) {
        memmove(&set->ways[place], &set->ways[place + 1],
                (WAYS - 1 - place) * sizeof(set->ways[0]));
        set->ways[WAYS - 1] = (struct departure){0};
    }
    tierce__lock_drop(&table->lock);
}

void tierce__departures_prefetch(const struct tierce__departures *table, uint64_t spread)
{
    if (table != NULL)
        __builtin_prefetch(set_of(table, spread));
}

bool tierce__departures_find(struct tierce__departures *table, uint64_t spread,
                             struct tierce__departure *out)
{
    if (table == NULL)
        return false;
    const struct set *set = set_of(table, spread);
    tierce__lock_take(&table->lock);
    uint32_t place = place_of(set, spread);
    if (place < WAYS)
        *out = set->ways[place].what;
    tierce__lock_drop(&table->lock);
    TIERCE_DASSERT(place == WAYS || out->reason != TIERCE_MISS_NONE);
    return place < WAYS;
}
