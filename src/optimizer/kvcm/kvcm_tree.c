/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/kvcm/kvcm_tree.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"

#include <errno.h>
#include <string.h>

#define BLOCKS_MAX (1u << 31)

/* ---- the table of children ------------------------------------------------------------------- */

static uint32_t hash_of(uint32_t parent, uint32_t key)
{
    return (uint32_t)tierce__mix((uint64_t)parent << 32 | key);
}

static uint32_t key_of(const struct tierce__kvcm_tree *t, uint32_t node)
{
    return t->blocks[t->nodes[node].first].key;
}

static uint32_t hash_of_child(const struct tierce__kvcm_tree *t, uint32_t child)
{
    return hash_of(t->nodes[child].parent, key_of(t, child));
}

/* The child, or KVCM_NONE. */
static uint32_t find_child(const struct tierce__kvcm_tree *t, uint32_t parent, uint32_t key)
{
    TIERCE__NUMBERS_FOR_EACH (it, &t->table, hash_of(parent, key)) {
        if (t->nodes[it.number].parent == parent && key_of(t, it.number) == key)
            return it.number;
    }
    return TIERCE__KVCM_NONE;
}

static void add_child(struct tierce__kvcm_tree *t, uint32_t child)
{
    TIERCE_DASSERT(find_child(t, t->nodes[child].parent, key_of(t, child)) == TIERCE__KVCM_NONE);
    tierce__numbers_put(&t->table, hash_of_child(t, child), child);
}

/* ---- room ------------------------------------------------------------------------------------ */

static int grow(void **array, uint32_t *room, uint64_t wanted, size_t item_bytes)
{
    if (wanted <= *room)
        return 0;
    if (wanted > BLOCKS_MAX)
        return TIERCE_E_LIMIT;
    uint64_t grown = *room + *room / 4 + 16;
    grown = grown > wanted ? grown : wanted;
    void *bigger = tierce__realloc(*array, (size_t)grown * item_bytes);
    if (bigger == NULL)
        return -ENOMEM;
    *array = bigger;
    *room = (uint32_t)grown;
    return 0;
}

/* Ids that are no prefix ids may occur several times in a tree, so there may be more blocks than
 * distinct ids. */
static int reserve_blocks(struct tierce__kvcm_tree *t, uint32_t blocks)
{
    void *array = t->blocks;
    int rc = grow(&array, &t->block_room, (uint64_t)t->block_count + blocks, sizeof(*t->blocks));
    t->blocks = array;
    return rc;
}

static int reserve_nodes(struct tierce__kvcm_tree *t, uint32_t nodes)
{
    void *array = t->nodes;
    int rc = grow(&array, &t->node_room, (uint64_t)t->node_count + nodes, sizeof(*t->nodes));
    t->nodes = array;
    return rc < 0 ? rc : tierce__numbers_reserve(&t->table, (size_t)t->table.count + nodes);
}

int tierce__kvcm_tree_init(struct tierce__kvcm_tree *out, uint32_t roots, uint32_t distinct)
{
    size_t wanted = (size_t)roots + distinct;
    *out =
        (struct tierce__kvcm_tree){.free_block = TIERCE__KVCM_NONE, .free_node = TIERCE__KVCM_NONE};
    if (wanted > BLOCKS_MAX)
        return TIERCE_E_LIMIT;
    /* Unused parts cost address space, not memory. */
    out->blocks = tierce__alloc(wanted * sizeof(*out->blocks));
    out->nodes = tierce__alloc(wanted * sizeof(*out->nodes));
    if (out->blocks == NULL || out->nodes == NULL ||
        tierce__numbers_reserve(&out->table, wanted) < 0)
        return -ENOMEM;
    out->block_room = out->node_room = (uint32_t)wanted;
    for (uint32_t i = 0; i < roots; i++) {
        out->blocks[i] =
            (struct tierce__kvcm_block){.next = TIERCE__KVCM_NONE, .newer = i, .older = i};
        out->nodes[i] =
            (struct tierce__kvcm_node){.first = TIERCE__KVCM_NONE, .parent = TIERCE__KVCM_NONE};
    }
    out->block_count = out->node_count = roots;
    return 0;
}

void tierce__kvcm_tree_fini(struct tierce__kvcm_tree *tree)
{
    tierce__free(tree->blocks);
    tierce__free(tree->nodes);
    tierce__numbers_fini(&tree->table);
    tierce__free(tree->noted);
    *tree = (struct tierce__kvcm_tree){0};
}

/* ---- finding and adding ---------------------------------------------------------------------- */

uint32_t tierce__kvcm_tree_walk(const struct tierce__kvcm_tree *tree, uint32_t root,
                                const uint32_t *keys, uint32_t count, uint32_t *path)
{
    uint32_t found = 0, node = root;
    while (found < count) {
        node = find_child(tree, node, keys[found]);
        if (node == TIERCE__KVCM_NONE)
            break;
        uint32_t block = tree->nodes[node].first;
        while (block != TIERCE__KVCM_NONE && found < count &&
               tree->blocks[block].key == keys[found]) {
            path[found++] = block;
            block = tree->blocks[block].next;
        }
        if (block != TIERCE__KVCM_NONE)
            break;
    }
    return found;
}

static uint32_t take_block(struct tierce__kvcm_tree *t)
{
    uint32_t block = t->free_block;
    TIERCE_DASSERT(block != TIERCE__KVCM_NONE || t->block_count < t->block_room);
    if (block == TIERCE__KVCM_NONE)
        return t->block_count++;
    t->free_block = t->blocks[block].next;
    return block;
}

static uint32_t take_node(struct tierce__kvcm_tree *t, uint32_t parent, uint32_t first)
{
    uint32_t node = t->free_node;
    TIERCE_DASSERT(node != TIERCE__KVCM_NONE || t->node_count < t->node_room);
    if (node == TIERCE__KVCM_NONE)
        node = t->node_count++;
    else
        t->free_node = t->nodes[node].parent;
    t->nodes[node] = (struct tierce__kvcm_node){.first = first, .parent = parent};
    return node;
}

/*
 * Splits a run after one of its blocks. The new node is the upper one, so the children need no
 * update. Returns the new node.
 */
static uint32_t split(struct tierce__kvcm_tree *t, uint32_t last)
{
    uint32_t lower = t->blocks[last].node, rest = t->blocks[last].next;
    uint32_t parent = t->nodes[lower].parent;
    uint32_t upper = take_node(t, parent, t->nodes[lower].first);
    TIERCE_ASSERT(rest != TIERCE__KVCM_NONE);
    tierce__numbers_replace(&t->table, hash_of_child(t, lower), lower, upper);
    struct tierce__kvcm_node *above = &t->nodes[upper], *below = &t->nodes[lower];
    for (uint32_t b = above->first; b != rest; b = t->blocks[b].next) {
        t->blocks[b].node = upper;
        TIERCE_DASSERT(tierce__kvcm_is_cached(t, b));
        above->live++;
    }
    below->live -= above->live;
    t->blocks[last].next = TIERCE__KVCM_NONE;
    below->first = rest;
    below->parent = upper;
    above->children = 1;
    above->live_children = below->live > 0;
    add_child(t, lower);
    return upper;
}

int tierce__kvcm_tree_extend(struct tierce__kvcm_tree *tree, uint32_t root, const uint32_t *keys,
                             uint32_t count, uint32_t found, uint32_t *path)
{
    TIERCE_ASSERT(found <= count);
    if (found == count)
        return 0;
    int rc = reserve_blocks(tree, count - found);
    if (rc == 0)
        rc = reserve_nodes(tree, 2);
    if (rc < 0)
        return rc;
    uint32_t last = found > 0 ? path[found - 1] : TIERCE__KVCM_NONE;
    uint32_t node = found > 0 ? tree->blocks[last].node : root;
    if (found > 0 && tree->blocks[last].next != TIERCE__KVCM_NONE)
        node = split(tree, last);
    bool is_appended = found > 0 && tree->nodes[node].children == 0;
    uint32_t first = take_block(tree);
    if (is_appended)
        tree->blocks[last].next = first;
    else {
        tree->nodes[node].children++;
        node = take_node(tree, node, first);
    }
    for (uint32_t i = found, block = first; i < count; i++) {
        uint32_t next = i + 1 < count ? take_block(tree) : TIERCE__KVCM_NONE;
        tree->blocks[block] = (struct tierce__kvcm_block){
            .key = keys[i], .node = node, .next = next, .newer = TIERCE__KVCM_HOLE};
        path[i] = block;
        block = next;
    }
    if (!is_appended)
        add_child(tree, node);
    return 0;
}

/* ---- holes ----------------------------------------------------------------------------------- */

void tierce__kvcm_tree_fill(struct tierce__kvcm_tree *tree, uint32_t block)
{
    TIERCE_DASSERT(!tierce__kvcm_is_cached(tree, block));
    struct tierce__kvcm_node *node = &tree->nodes[tree->blocks[block].node];
    tree->blocks[block].newer = TIERCE__KVCM_UNLISTED;
    if (node->live++ == 0)
        tree->nodes[node->parent].live_children++;
}

int tierce__kvcm_tree_expect(struct tierce__kvcm_tree *tree, uint32_t evictions)
{
    void *array = tree->noted;
    int rc = grow(&array, &tree->noted_room, (uint64_t)tree->noted_count + evictions,
                  sizeof(*tree->noted));
    tree->noted = array;
    return rc;
}

void tierce__kvcm_tree_evict(struct tierce__kvcm_tree *tree, uint32_t block)
{
    uint32_t at = tree->blocks[block].node;
    struct tierce__kvcm_node *node = &tree->nodes[at];
    TIERCE_DASSERT(tierce__kvcm_is_cached(tree, block));
    TIERCE_DASSERT(node->live > 0 && tree->nodes[node->parent].live_children > 0);
    tree->blocks[block].newer = TIERCE__KVCM_HOLE;
    if (--node->live == 0)
        tree->nodes[node->parent].live_children--;
    if (node->is_noted)
        return;
    TIERCE_ASSERT(tree->noted_count < tree->noted_room);
    node->is_noted = true;
    tree->noted[tree->noted_count++] = at;
}

static void remove_leaf(struct tierce__kvcm_tree *t, uint32_t leaf)
{
    struct tierce__kvcm_node *node = &t->nodes[leaf];
    TIERCE_ASSERT(node->live == 0 && node->children == 0 && t->nodes[node->parent].children > 0);
    tierce__numbers_erase(&t->table, hash_of_child(t, leaf), leaf);
    t->nodes[node->parent].children--;
    for (uint32_t block = node->first, next; block != TIERCE__KVCM_NONE; block = next) {
        next = t->blocks[block].next;
        t->blocks[block].next = t->free_block;
        t->free_block = block;
    }
    node->is_noted = false;
    node->parent = t->free_node;
    t->free_node = leaf;
}

void tierce__kvcm_tree_clean(struct tierce__kvcm_tree *tree)
{
    for (uint32_t i = 0; i < tree->noted_count; i++) {
        uint32_t at = tree->noted[i];
        while (tree->nodes[at].is_noted && tree->nodes[at].live == 0 &&
               tree->nodes[at].children == 0) {
            uint32_t parent = tree->nodes[at].parent;
            remove_leaf(tree, at);
            at = parent;
        }
    }
    for (uint32_t i = 0; i < tree->noted_count; i++)
        tree->nodes[tree->noted[i]].is_noted = false;
    tree->noted_count = 0;
}
