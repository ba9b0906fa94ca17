/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/life_nodes.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

#define NONE TIERCE__LIFE_NO_PARENT

struct tree {
    const struct tierce__life_blocks *blocks;
    uint32_t *depth;    /* [count] blocks before it */
    uint32_t *next;     /* [count] the block that goes on with its run; NONE */
    uint32_t *children; /* [count] */
    uint32_t *best;     /* [instances][nodes_max] first blocks of runs, the best first */
    uint32_t *found;    /* [instances] of those that are filled */
};

int tierce__life_blocks_init(struct tierce__life_blocks *blocks, uint32_t count)
{
    size_t room = (size_t)count + 1;
    *blocks = (struct tierce__life_blocks){.count = count};
    blocks->uses = tierce__calloc(room, sizeof(*blocks->uses));
    blocks->parent = tierce__alloc(room * sizeof(*blocks->parent));
    blocks->instance = tierce__alloc(room * sizeof(*blocks->instance));
    blocks->first_us = tierce__alloc(room * sizeof(*blocks->first_us));
    blocks->last_us = tierce__alloc(room * sizeof(*blocks->last_us));
    return blocks->uses == NULL || blocks->parent == NULL || blocks->instance == NULL ||
                   blocks->first_us == NULL || blocks->last_us == NULL
               ? -ENOMEM
               : 0;
}

void tierce__life_blocks_fini(struct tierce__life_blocks *blocks)
{
    tierce__free(blocks->uses);
    tierce__free(blocks->parent);
    tierce__free(blocks->instance);
    tierce__free(blocks->first_us);
    tierce__free(blocks->last_us);
    *blocks = (struct tierce__life_blocks){0};
}

/* A block's parent was numbered before it, so that one pass in the order of numbers suffices. */
static void link_blocks(struct tree *t)
{
    const struct tierce__life_blocks *blocks = t->blocks;
    for (uint32_t b = 0; b < blocks->count; b++) {
        uint32_t parent = blocks->parent[b];
        t->next[b] = NONE;
        t->depth[b] = 0;
        if (parent == NONE)
            continue;
        TIERCE_DASSERT(parent < b);
        t->depth[b] = t->depth[parent] + 1;
        t->children[parent]++;
        if (t->next[parent] == NONE && blocks->uses[b] == blocks->uses[parent])
            t->next[parent] = b;
    }
}

static bool begins_run(const struct tree *t, uint32_t block)
{
    uint32_t parent = t->blocks->parent[block];
    return parent == NONE || t->next[parent] != block;
}

static bool is_better(const struct tree *t, uint32_t a, uint32_t b)
{
    const uint32_t *uses = t->blocks->uses;
    if (uses[a] != uses[b])
        return uses[a] > uses[b];
    return t->depth[a] != t->depth[b] ? t->depth[a] < t->depth[b] : a < b;
}

/* Puts a block into its place among the best of its instance. */
static void offer(struct tree *t, uint32_t block, uint32_t nodes_max)
{
    uint32_t instance = t->blocks->instance[block];
    uint32_t *best = t->best + (size_t)instance * nodes_max, *found = &t->found[instance];
    TIERCE_DASSERT(*found <= nodes_max);
    if (*found == nodes_max && !is_better(t, block, best[nodes_max - 1]))
        return;
    uint32_t at = *found < nodes_max ? (*found)++ : nodes_max - 1;
    for (; at > 0 && is_better(t, block, best[at - 1]); at--)
        best[at] = best[at - 1];
    best[at] = block;
}

/* The index of the node of `first` among those from `from` to `to`, or NONE. */
static uint32_t find_node(const struct tierce__life_node *nodes, size_t from, size_t to,
                          uint32_t first)
{
    for (size_t i = from; i < to; i++) {
        if (nodes[i].block == first)
            return (uint32_t)i;
    }
    return NONE;
}

static void fill_node(struct tierce__life_node *node, const struct tree *t, uint32_t first,
                      uint64_t block_tokens)
{
    uint32_t last = first, length = 1;
    while (t->next[last] != NONE) {
        last = t->next[last];
        length++;
    }
    *node = (struct tierce__life_node){
        .parent = NONE,
        .instance = t->blocks->instance[first],
        .block = first,
        .depth = t->depth[first],
        .blocks = length,
        .children = t->children[last],
        .requests = t->blocks->uses[first],
        .first_us = t->blocks->first_us[first],
        .last_us = t->blocks->last_us[first],
        .tokens = length * block_tokens,
    };
}

static int list_nodes(struct tierce__life_node **nodes, size_t *node_count, const struct tree *t,
                      uint32_t instances, uint32_t nodes_max, uint64_t block_tokens)
{
    size_t count = 0, at = 0;
    for (uint32_t i = 0; i < instances; i++)
        count += t->found[i];
    struct tierce__life_node *list = tierce__calloc(count + 1, sizeof(*list));
    if (list == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < instances; i++) {
        size_t from = at;
        for (uint32_t k = 0; k < t->found[i]; k++, at++) {
            uint32_t first = t->best[(size_t)i * nodes_max + k], up = t->blocks->parent[first];
            fill_node(&list[at], t, first, block_tokens);
            while (up != NONE && !begins_run(t, up))
                up = t->blocks->parent[up];
            if (up != NONE)
                list[at].parent = find_node(list, from, at, up);
        }
    }
    TIERCE_ASSERT(at == count);
    *nodes = list;
    *node_count = count;
    return 0;
}

int tierce__life_nodes(struct tierce__life_node **nodes, size_t *node_count,
                       const struct tierce__life_blocks *blocks, uint32_t instances,
                       uint32_t nodes_max, uint64_t block_tokens)
{
    TIERCE_ASSERT(instances > 0 && nodes_max > 0);
    size_t room = (size_t)blocks->count + 1;
    struct tree t = {.blocks = blocks};
    t.depth = tierce__alloc(room * sizeof(*t.depth));
    t.next = tierce__alloc(room * sizeof(*t.next));
    t.children = tierce__calloc(room, sizeof(*t.children));
    t.best = tierce__alloc((size_t)instances * nodes_max * sizeof(*t.best));
    t.found = tierce__calloc(instances, sizeof(*t.found));
    int rc = -ENOMEM;
    if (t.depth != NULL && t.next != NULL && t.children != NULL && t.best != NULL &&
        t.found != NULL) {
        link_blocks(&t);
        for (uint32_t b = 0; b < blocks->count; b++) {
            if (blocks->uses[b] > 0 && begins_run(&t, b))
                offer(&t, b, nodes_max);
        }
        rc = list_nodes(nodes, node_count, &t, instances, nodes_max, block_tokens);
    }
    tierce__free(t.depth);
    tierce__free(t.next);
    tierce__free(t.children);
    tierce__free(t.best);
    tierce__free(t.found);
    return rc;
}
