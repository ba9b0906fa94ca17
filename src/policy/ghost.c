/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/ghost.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

int tierce__ghost_init(struct tierce__ghost *ghost, uint32_t key_count)
{
    uint64_t cells = 2;
    while (cells < 2 * (uint64_t)key_count)
        cells *= 2;
    *ghost = (struct tierce__ghost){
        .nodes = tierce__calloc((size_t)key_count + TIERCE__GHOST_LISTS, sizeof(*ghost->nodes)),
        .cells = tierce__calloc(cells, sizeof(*ghost->cells)),
        .node_count = key_count,
        .mask = (uint32_t)(cells - 1),
        .nodes_free = key_count,
    };
    if (ghost->nodes == NULL || ghost->cells == NULL)
        return -ENOMEM;
    tierce__advise_huge(ghost->nodes, key_count * sizeof(*ghost->nodes));
    tierce__advise_huge(ghost->cells, cells * sizeof(*ghost->cells));
    for (uint32_t list = 0; list < TIERCE__GHOST_LISTS; list++) {
        uint32_t head = key_count + list;
        ghost->nodes[head].newer = head;
        ghost->nodes[head].older = head;
    }
    return 0;
}

void tierce__ghost_fini(struct tierce__ghost *ghost)
{
    tierce__free(ghost->cells);
    tierce__free(ghost->nodes);
    *ghost = (struct tierce__ghost){0};
}

/* ---- the table: linear probing, erased by moving up ------------------------------------------ */

/* The cell of a key, or the empty one where it would be. */
static uint32_t find_cell(const struct tierce__ghost *ghost, uint64_t key, uint32_t hash)
{
    uint32_t at = hash & ghost->mask;
    for (;; at = (at + 1) & ghost->mask) {
        const struct tierce__ghost_cell *cell = &ghost->cells[at];
        if (cell->node == 0 || (cell->hash == hash && ghost->nodes[cell->node - 1].key == key))
            return at;
    }
}

static void erase_cell(struct tierce__ghost *ghost, uint32_t hole)
{
    struct tierce__ghost_cell *cells = ghost->cells;
    for (uint32_t at = (hole + 1) & ghost->mask; cells[at].node != 0; at = (at + 1) & ghost->mask) {
        uint32_t home = cells[at].hash & ghost->mask;
        /* It may move up if its home is not between the hole and itself. */
        if (((at - home) & ghost->mask) >= ((at - hole) & ghost->mask)) {
            cells[hole] = cells[at];
            hole = at;
        }
    }
    cells[hole].node = 0;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static void drop_node(struct tierce__ghost *ghost, uint32_t at, uint32_t cell)
{
    struct tierce__ghost_node *node = &ghost->nodes[at];
    erase_cell(ghost, cell);
    ghost->nodes[node->newer].older = node->older;
    ghost->nodes[node->older].newer = node->newer;
    ghost->bytes[node->list] -= node->bytes;
    node->newer = ghost->nodes_free;
    ghost->nodes_free = at;
}

/* The cell of a node that is in. */
static uint32_t cell_of(const struct tierce__ghost *ghost, uint32_t node)
{
    uint32_t at = ghost->nodes[node].hash & ghost->mask;
    while (ghost->cells[at].node != node + 1)
        at = (at + 1) & ghost->mask;
    return at;
}

static uint32_t make_node(struct tierce__ghost *ghost, uint32_t list)
{
    uint32_t at = ghost->nodes_free;
    if (at == ghost->node_count && ghost->nodes_used < ghost->node_count)
        return ghost->nodes_used++;
    if (at == ghost->node_count) {
        bool dropped = tierce__ghost_drop_oldest(ghost, list) ||
                       tierce__ghost_drop_oldest(ghost, TIERCE__GHOST_LISTS - 1 - list);
        TIERCE_ASSERT(dropped);
        at = ghost->nodes_free;
    }
    ghost->nodes_free = ghost->nodes[at].newer;
    return at;
}

bool tierce__ghost_find(const struct tierce__ghost *ghost, uint64_t key, uint32_t *list)
{
    uint32_t cell = find_cell(ghost, key, tierce__ghost_hash(key));
    if (ghost->cells[cell].node == 0)
        return false;
    *list = ghost->nodes[ghost->cells[cell].node - 1].list;
    return true;
}

bool tierce__ghost_take(struct tierce__ghost *ghost, uint64_t key, uint32_t *list)
{
    uint32_t cell = find_cell(ghost, key, tierce__ghost_hash(key));
    if (ghost->cells[cell].node == 0)
        return false;
    uint32_t at = ghost->cells[cell].node - 1;
    *list = ghost->nodes[at].list;
    drop_node(ghost, at, cell);
    return true;
}

bool tierce__ghost_drop_oldest(struct tierce__ghost *ghost, uint32_t list)
{
    uint32_t head = ghost->node_count + list, oldest = ghost->nodes[head].newer;
    if (oldest == head)
        return false;
    drop_node(ghost, oldest, cell_of(ghost, oldest));
    /* The next one to go is known already; its cell is anywhere. */
    __builtin_prefetch(&ghost->cells[ghost->nodes[ghost->nodes[head].newer].hash & ghost->mask], 1);
    return true;
}

void tierce__ghost_push(struct tierce__ghost *ghost, uint32_t list, uint64_t key, uint64_t bytes)
{
    uint32_t hash = tierce__ghost_hash(key), known;
    tierce__ghost_take(ghost, key, &known);
    uint32_t at = make_node(ghost, list), head = ghost->node_count + list;
    uint32_t newest = ghost->nodes[head].older;
    ghost->nodes[at] = (struct tierce__ghost_node){
        .key = key, .bytes = bytes, .newer = head, .older = newest, .hash = hash, .list = list};
    ghost->nodes[newest].newer = at;
    ghost->nodes[head].older = at;
    ghost->cells[find_cell(ghost, key, hash)] =
        (struct tierce__ghost_cell){.hash = hash, .node = at + 1};
    ghost->bytes[list] += bytes;
}
