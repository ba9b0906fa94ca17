/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_MAP_H
#define TIERCE_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Hash tables over entries that the caller owns, in two forms:
 *
 * - struct tierce__map links entries that have an address. A put cannot fail.
 * - struct tierce__numbers holds the numbers of entries in the caller's array, eight bytes for
 *   each. It is faster, and a table of fixed size never allocates after its creation.
 *
 * Neither knows the key of an entry. A search yields the entries with the same hash, and the caller
 * compares their keys. If the hash determines the key (tierce__spread and tierce__mix of a 64-bit
 * number do), the comparison is unnecessary. Entries with equal keys may be in a table.
 *
 * A hash must be evenly distributed in its upper bits. If clients choose the keys, mix them with a
 * secret seed.
 *
 *     struct item { struct tierce__map_node node; int64_t key; };
 *     tierce__map_put(&map, &item->node, tierce__spread((uint64_t)key));
 *     found = tierce__map_find(&map, tierce__spread((uint64_t)key));
 *     if (found != NULL)
 *         item = TIERCE__CONTAINER_OF(found, struct item, node);
 *
 * Thread: one at a time.
 */

/* ---- entries with addresses ------------------------------------------------------------------ */

struct tierce__map_node {
    struct tierce__map_node *next; /* in its bin */
    uint64_t hash;
};

/* Chains in bins, about one entry in each. A zeroed map is empty. */
struct tierce__map {
    struct tierce__map_node **bins; /* [1 << bits], by the first bits of the hash; NULL: `only` */
    struct tierce__map_node *only;
    size_t count;
    unsigned bits;
};

/* Makes bins for `count` entries, so that no put allocates before there are more. Errors:
 * -ENOMEM; the map is unchanged. */
TIERCE_MUSTUSE int tierce__map_reserve(struct tierce__map *map, size_t count);

/* Frees the bins, not the entries. */
void tierce__map_fini(struct tierce__map *map);

/* Adds a node that is in no map [borrow until remove]. It doubles the bins when there is an entry
 * for each; if memory runs out, the chains become longer instead. */
void tierce__map_put(struct tierce__map *map, struct tierce__map_node *node, uint64_t hash);

/* Removes a node of the map. */
void tierce__map_remove(struct tierce__map *map, struct tierce__map_node *node);

/* A node with the hash, and the next one with the hash of `node`. NULL: there is none. */
struct tierce__map_node *tierce__map_find(const struct tierce__map *map, uint64_t hash);
struct tierce__map_node *tierce__map_find_next(const struct tierce__map_node *node);

/* The node after `node` in the order of the bins; of NULL the first one. NULL: there is none. */
struct tierce__map_node *tierce__map_after(const struct tierce__map *map,
                                           const struct tierce__map_node *node);

/* The body may remove and free `it`, but put nothing. */
#define TIERCE__MAP_FOR_EACH(it, map)                                                              \
    for (struct tierce__map_node *it = tierce__map_after(map, NULL), *it##_after;                  \
         it != NULL && (it##_after = tierce__map_after(map, it), true); it = it##_after)

/* ---- entries with numbers -------------------------------------------------------------------- */

/*
 * Open addressing with linear probing. The upper bits of the 32-bit hash select the first cell, so
 * the table grows, and closes the gap behind an erased number, without reading an entry. There are
 * no tombstones. A zeroed table is empty.
 */
struct tierce__numbers {
    uint64_t *cells; /* [mask + 1]: hash << 32 | number + 1; 0: empty. NULL: none was ever put */
    uint64_t mask;
    uint32_t count;
    uint32_t shift; /* 32 - log2(cells) */
};

#define TIERCE__NUMBER_NONE UINT32_MAX

/* Makes an empty table that is at most half full with `count` numbers, for fast searches. Errors:
 * -ENOMEM, TIERCE_E_LIMIT (more than 2^31 numbers). */
TIERCE_MUSTUSE int tierce__numbers_init(struct tierce__numbers *numbers, size_t count);
void tierce__numbers_fini(struct tierce__numbers *numbers);

/* Doubles the table until it is at most three quarters full with `count` numbers in all. Errors as
 * above; the table is unchanged. */
TIERCE_MUSTUSE int tierce__numbers_reserve(struct tierce__numbers *numbers, size_t count);

/* Removes all numbers, and keeps the cells. */
void tierce__numbers_clear(struct tierce__numbers *numbers);

/* Adds a number below TIERCE__NUMBER_NONE. There must be room for it. */
void tierce__numbers_put(struct tierce__numbers *numbers, uint32_t hash, uint32_t number);

/* Whether the number is in the table with this hash. */
bool tierce__numbers_has(const struct tierce__numbers *numbers, uint32_t hash, uint32_t number);

/* Removes a number of the table, or puts another in its place. */
void tierce__numbers_erase(struct tierce__numbers *numbers, uint32_t hash, uint32_t number);
void tierce__numbers_replace(struct tierce__numbers *numbers, uint32_t hash, uint32_t number,
                             uint32_t by);

static inline uint64_t tierce__numbers_bytes(const struct tierce__numbers *numbers)
{
    return numbers->cells != NULL ? (numbers->mask + 1) * sizeof(*numbers->cells) : 0;
}

/* The first cell of a hash. */
static inline uint64_t tierce__numbers_home(const struct tierce__numbers *numbers, uint32_t hash)
{
    return (uint64_t)hash >> numbers->shift;
}

/* Brings the first cell of a hash into the processor's cache. There must be room for a number. */
static inline void tierce__numbers_prefetch(const struct tierce__numbers *numbers, uint32_t hash)
{
    __builtin_prefetch(&numbers->cells[tierce__numbers_home(numbers, hash)]);
}

/* The next number with the hash in the cells from *place on; *place moves past it.
 * TIERCE__NUMBER_NONE: there is none. The table must have cells. */
static inline uint32_t tierce__numbers_next(const struct tierce__numbers *numbers, uint64_t *place,
                                            uint32_t hash)
{
    for (uint64_t p = *place;; p = (p + 1) & numbers->mask) {
        uint64_t cell = numbers->cells[p];
        if (cell == 0)
            return TIERCE__NUMBER_NONE;
        if ((uint32_t)(cell >> 32) == hash) {
            *place = (p + 1) & numbers->mask;
            return (uint32_t)cell - 1;
        }
    }
}

/* A search: the number that was found, and the next cell. */
struct tierce__probe {
    uint64_t place;
    uint32_t hash, number;
};

static inline struct tierce__probe tierce__numbers_first(const struct tierce__numbers *numbers,
                                                         uint32_t hash)
{
    struct tierce__probe probe = {tierce__numbers_home(numbers, hash), hash, TIERCE__NUMBER_NONE};
    if (numbers->cells != NULL)
        probe.number = tierce__numbers_next(numbers, &probe.place, hash);
    return probe;
}

/* The body may not change the table, unless it leaves the loop.
 *
 *     TIERCE__NUMBERS_FOR_EACH (it, &numbers, hash) {
 *         if (entries[it.number].key == key)
 *             return it.number;
 *     }
 */
#define TIERCE__NUMBERS_FOR_EACH(it, numbers, of)                                                  \
    for (struct tierce__probe it = tierce__numbers_first(numbers, of);                             \
         it.number != TIERCE__NUMBER_NONE;                                                         \
         it.number = tierce__numbers_next(numbers, &it.place, it.hash))

#endif
