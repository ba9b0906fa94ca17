/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#define BITS_MIN 4u

/* ---- entries with addresses ------------------------------------------------------------------ */

static size_t bin_count(const struct tierce__map *map)
{
    return map->bins != NULL ? (size_t)1 << map->bits : 1;
}

static size_t bin_index(const struct tierce__map *map, uint64_t hash)
{
    TIERCE_DASSERT(map->bins == NULL || (map->bits > 0 && map->bits < 64));
    return map->bins != NULL ? (size_t)(hash >> (64 - map->bits)) : 0;
}

static struct tierce__map_node **bin_at(struct tierce__map *map, size_t bin)
{
    TIERCE_DASSERT(bin < bin_count(map));
    return map->bins != NULL ? &map->bins[bin] : &map->only;
}

static void push(struct tierce__map *map, struct tierce__map_node *node)
{
    struct tierce__map_node **head = bin_at(map, bin_index(map, node->hash));
    node->next = *head;
    *head = node;
    map->count++;
}

int tierce__map_reserve(struct tierce__map *map, size_t count)
{
    struct tierce__map grown = {.bits = BITS_MIN};
    while ((size_t)1 << grown.bits < count)
        grown.bits++;
    TIERCE_DASSERT(grown.bits < 64);
    if (map->bins != NULL && grown.bits <= map->bits)
        return 0;
    grown.bins = tierce__calloc((size_t)1 << grown.bits, sizeof(*grown.bins));
    if (grown.bins == NULL)
        return -ENOMEM;
    TIERCE__MAP_FOR_EACH (node, map)
        push(&grown, node);
    TIERCE_ASSERT(grown.count == map->count);
    tierce__free((void *)map->bins);
    *map = grown;
    return 0;
}

void tierce__map_fini(struct tierce__map *map)
{
    tierce__free((void *)map->bins);
    *map = (struct tierce__map){0};
}

void tierce__map_put(struct tierce__map *map, struct tierce__map_node *node, uint64_t hash)
{
    if (map->bins == NULL || map->count >= bin_count(map))
        (void)!tierce__map_reserve(map, map->count + 1);
    node->hash = hash;
    push(map, node);
}

void tierce__map_remove(struct tierce__map *map, struct tierce__map_node *node)
{
    struct tierce__map_node **at = bin_at(map, bin_index(map, node->hash));
    while (*at != node) {
        TIERCE_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    TIERCE_DASSERT(map->count > 0);
    *at = node->next;
    node->next = NULL;
    map->count--;
}

static struct tierce__map_node *skip_others(struct tierce__map_node *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash)
        node = node->next;
    return node;
}

struct tierce__map_node *tierce__map_find(const struct tierce__map *map, uint64_t hash)
{
    return skip_others(map->bins != NULL ? map->bins[bin_index(map, hash)] : map->only, hash);
}

struct tierce__map_node *tierce__map_find_next(const struct tierce__map_node *node)
{
    return skip_others(node->next, node->hash);
}

struct tierce__map_node *tierce__map_after(const struct tierce__map *map,
                                           const struct tierce__map_node *node)
{
    TIERCE_DASSERT(node == NULL || map->count > 0);
    if (node != NULL && node->next != NULL)
        return node->next;
    if (map->bins == NULL)
        return node == NULL ? map->only : NULL;
    size_t bin = node != NULL ? bin_index(map, node->hash) + 1 : 0;
    while (bin < bin_count(map) && map->bins[bin] == NULL)
        bin++;
    return bin < bin_count(map) ? map->bins[bin] : NULL;
}

/* ---- entries with numbers -------------------------------------------------------------------- */

static uint64_t cell_of(uint32_t hash, uint32_t number)
{
    TIERCE_DASSERT(number != TIERCE__NUMBER_NONE);
    return (uint64_t)hash << 32 | (number + 1);
}

static uint64_t cell_count(const struct tierce__numbers *numbers)
{
    return numbers->cells != NULL ? numbers->mask + 1 : 0;
}

/* Puts a cell at the first empty place from its home on. */
static void put_cell(struct tierce__numbers *numbers, uint64_t cell)
{
    TIERCE_DASSERT(numbers->count <= numbers->mask);
    uint64_t p = tierce__numbers_home(numbers, (uint32_t)(cell >> 32));
    TIERCE_DASSERT(p <= numbers->mask);
    while (numbers->cells[p] != 0)
        p = (p + 1) & numbers->mask;
    numbers->cells[p] = cell;
    numbers->count++;
}

/* Moves all numbers to at least `wanted` cells. */
static int resize(struct tierce__numbers *numbers, uint64_t wanted)
{
    unsigned bits = BITS_MIN;
    while (1ULL << bits < wanted)
        bits++;
    if (bits > 32)
        return TIERCE_E_LIMIT;
    TIERCE_DASSERT(numbers->count < 1ULL << bits);
    struct tierce__numbers grown = {.mask = (1ULL << bits) - 1, .shift = 32 - bits};
    grown.cells = tierce__calloc((size_t)1 << bits, sizeof(*grown.cells));
    if (grown.cells == NULL)
        return -ENOMEM;
    tierce__advise_huge(grown.cells, sizeof(*grown.cells) << bits);
    for (uint64_t p = 0; p < cell_count(numbers); p++) {
        if (numbers->cells[p] != 0)
            put_cell(&grown, numbers->cells[p]);
    }
    TIERCE_ASSERT(grown.count == numbers->count);
    tierce__free(numbers->cells);
    *numbers = grown;
    return 0;
}

int tierce__numbers_init(struct tierce__numbers *numbers, size_t count)
{
    *numbers = (struct tierce__numbers){0};
    return count <= UINT32_MAX ? resize(numbers, 2 * (uint64_t)count) : TIERCE_E_LIMIT;
}

void tierce__numbers_fini(struct tierce__numbers *numbers)
{
    tierce__free(numbers->cells);
    *numbers = (struct tierce__numbers){0};
}

int tierce__numbers_reserve(struct tierce__numbers *numbers, size_t count)
{
    TIERCE_DASSERT(count >= numbers->count);
    if (count > UINT32_MAX)
        return TIERCE_E_LIMIT;
    if (count <= cell_count(numbers) / 4 * 3)
        return 0;
    return resize(numbers, (uint64_t)count + count / 3 + 1);
}

void tierce__numbers_clear(struct tierce__numbers *numbers)
{
    if (numbers->cells != NULL)
        memset(numbers->cells, 0, cell_count(numbers) * sizeof(*numbers->cells));
    numbers->count = 0;
}

void tierce__numbers_put(struct tierce__numbers *numbers, uint32_t hash, uint32_t number)
{
    TIERCE_DASSERT(numbers->count < numbers->mask); /* a search ends at an empty cell */
    put_cell(numbers, cell_of(hash, number));
}

/* The place of a cell, or of the empty one at the end of its run. */
static uint64_t place_of(const struct tierce__numbers *numbers, uint64_t cell)
{
    TIERCE_DASSERT(numbers->count <= numbers->mask);
    uint64_t p = tierce__numbers_home(numbers, (uint32_t)(cell >> 32));
    TIERCE_DASSERT(p <= numbers->mask);
    while (numbers->cells[p] != 0 && numbers->cells[p] != cell)
        p = (p + 1) & numbers->mask;
    return p;
}

bool tierce__numbers_has(const struct tierce__numbers *numbers, uint32_t hash, uint32_t number)
{
    uint64_t cell = cell_of(hash, number);
    return numbers->cells != NULL && numbers->cells[place_of(numbers, cell)] == cell;
}

void tierce__numbers_erase(struct tierce__numbers *numbers, uint32_t hash, uint32_t number)
{
    uint64_t *cells = numbers->cells, mask = numbers->mask;
    TIERCE_DASSERT(numbers->count > 0);
    uint64_t gap = place_of(numbers, cell_of(hash, number));
    TIERCE_ASSERT(cells[gap] != 0);
    for (uint64_t p = (gap + 1) & mask; cells[p] != 0; p = (p + 1) & mask) {
        uint64_t home = tierce__numbers_home(numbers, (uint32_t)(cells[p] >> 32));
        /* Its probe sequence crosses the gap, unless its home is between the gap and itself. */
        if (((p - home) & mask) >= ((p - gap) & mask)) {
            cells[gap] = cells[p];
            gap = p;
        }
    }
    cells[gap] = 0;
    numbers->count--;
}

void tierce__numbers_replace(struct tierce__numbers *numbers, uint32_t hash, uint32_t number,
                             uint32_t by)
{
    uint64_t place = place_of(numbers, cell_of(hash, number));
    TIERCE_ASSERT(numbers->cells[place] != 0);
    numbers->cells[place] = cell_of(hash, by);
}
