/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/ghost.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

#define NONE  UINT32_MAX
#define AHEAD 8u /* nodes fetched before they are dropped */

static int make_table(struct tierce__ghost *ghost, uint32_t key_count, uint32_t range)
{
    if (range > 0) {
        ghost->range = range;
        ghost->node_of = tierce__calloc(range, sizeof(*ghost->node_of));
        tierce__advise_huge(ghost->node_of, range * sizeof(*ghost->node_of));
        return ghost->node_of == NULL ? -ENOMEM : 0;
    }
    return tierce__numbers_init(&ghost->table, key_count);
}

int tierce__ghost_init(struct tierce__ghost *ghost, uint32_t key_count, uint32_t range)
{
    TIERCE_DASSERT(key_count >= 1 && key_count <= UINT32_MAX - TIERCE__GHOST_LISTS);
    *ghost = (struct tierce__ghost){
        .nodes = tierce__calloc((size_t)key_count + TIERCE__GHOST_LISTS, sizeof(*ghost->nodes)),
        .node_count = key_count,
        .nodes_free = key_count,
    };
    if (ghost->nodes == NULL)
        return -ENOMEM;
    tierce__advise_huge(ghost->nodes, key_count * sizeof(*ghost->nodes));
    for (uint32_t list = 0; list < TIERCE__GHOST_LISTS; list++) {
        uint32_t head = key_count + list;
        ghost->nodes[head].newer = head;
        ghost->nodes[head].older = head;
    }
    return make_table(ghost, key_count, range);
}

void tierce__ghost_fini(struct tierce__ghost *ghost)
{
    tierce__free(ghost->node_of);
    tierce__numbers_fini(&ghost->table);
    tierce__free(ghost->nodes);
    *ghost = (struct tierce__ghost){0};
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The node of a key, or NONE. */
static inline uint32_t find_node(const struct tierce__ghost *ghost, uint64_t key)
{
    if (ghost->node_of != NULL) {
        TIERCE_ASSERT(key < ghost->range);
        return ghost->node_of[key] - 1;
    }
    TIERCE__NUMBERS_FOR_EACH (it, &ghost->table, tierce__ghost_hash(key)) {
        if (ghost->nodes[it.number].key == key)
            return it.number;
    }
    return NONE;
}

static void erase_key(struct tierce__ghost *ghost, uint32_t node)
{
    TIERCE_DASSERT(find_node(ghost, ghost->nodes[node].key) == node);
    if (ghost->node_of != NULL)
        ghost->node_of[ghost->nodes[node].key] = 0;
    else
        tierce__numbers_erase(&ghost->table, ghost->nodes[node].hash, node);
}

static void enter_key(struct tierce__ghost *ghost, uint32_t node)
{
    const struct tierce__ghost_node *n = &ghost->nodes[node];
    TIERCE_DASSERT(find_node(ghost, n->key) == NONE);
    if (ghost->node_of != NULL)
        ghost->node_of[n->key] = node + 1;
    else
        tierce__numbers_put(&ghost->table, n->hash, node);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static void drop_node(struct tierce__ghost *ghost, uint32_t at)
{
    struct tierce__ghost_node *node = &ghost->nodes[at];
    TIERCE_DASSERT(at < ghost->node_count && ghost->bytes[node->list] >= node->bytes);
    TIERCE_DASSERT(ghost->nodes[node->newer].older == at && ghost->nodes[node->older].newer == at);
    erase_key(ghost, at);
    ghost->nodes[node->newer].older = node->older;
    ghost->nodes[node->older].newer = node->newer;
    ghost->bytes[node->list] -= node->bytes;
    node->newer = ghost->nodes_free;
    ghost->nodes_free = at;
}

static uint32_t make_node(struct tierce__ghost *ghost, uint32_t list)
{
    TIERCE_DASSERT(list < TIERCE__GHOST_LISTS);
    uint32_t at = ghost->nodes_free;
    if (at == ghost->node_count && ghost->nodes_used < ghost->node_count)
        return ghost->nodes_used++;
    if (at == ghost->node_count) {
        bool dropped = tierce__ghost_drop_oldest(ghost, list) ||
                       tierce__ghost_drop_oldest(ghost, TIERCE__GHOST_LISTS - 1 - list);
        TIERCE_ASSERT(dropped);
        at = ghost->nodes_free;
    }
    TIERCE_DASSERT(at < ghost->nodes_used);
    ghost->nodes_free = ghost->nodes[at].newer;
    return at;
}

bool tierce__ghost_find(const struct tierce__ghost *ghost, uint64_t key, uint32_t *list)
{
    uint32_t at = find_node(ghost, key);
    if (at == NONE)
        return false;
    *list = ghost->nodes[at].list;
    return true;
}

bool tierce__ghost_take(struct tierce__ghost *ghost, uint64_t key, uint32_t *list)
{
    uint32_t at = find_node(ghost, key);
    if (at == NONE)
        return false;
    *list = ghost->nodes[at].list;
    drop_node(ghost, at);
    return true;
}

bool tierce__ghost_drop_oldest(struct tierce__ghost *ghost, uint32_t list)
{
    TIERCE_DASSERT(list < TIERCE__GHOST_LISTS);
    uint32_t head = ghost->node_count + list, oldest = ghost->nodes[head].newer;
    if (oldest == head)
        return false;
    drop_node(ghost, oldest);
    /* The next one to go is known already; its place in the table is anywhere. */
    uint32_t next = ghost->nodes[head].newer;
    tierce__ghost_prefetch(ghost, ghost->nodes[next].key);
    /* Nodes lie mostly in the order of their age. */
    __builtin_prefetch(&ghost->nodes[next + AHEAD < ghost->node_count ? next + AHEAD : 0], 1);
    return true;
}

void tierce__ghost_push(struct tierce__ghost *ghost, uint32_t list, uint64_t key, uint64_t bytes)
{
    TIERCE_DASSERT(list < TIERCE__GHOST_LISTS);
    uint32_t known;
    tierce__ghost_take(ghost, key, &known);
    uint32_t at = make_node(ghost, list), head = ghost->node_count + list;
    uint32_t newest = ghost->nodes[head].older;
    ghost->nodes[at] = (struct tierce__ghost_node){.key = key,
                                                   .bytes = bytes,
                                                   .newer = head,
                                                   .older = newest,
                                                   .hash = tierce__ghost_hash(key),
                                                   .list = list};
    ghost->nodes[newest].newer = at;
    ghost->nodes[head].older = at;
    TIERCE_DASSERT(ghost->nodes[newest].list == list || newest == head);
    enter_key(ghost, at);
    ghost->bytes[list] += bytes;
}
