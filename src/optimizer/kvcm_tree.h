/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_KVCM_TREE_H
#define TIERCE_OPTIMIZER_KVCM_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * KVCM's index: a radix tree for each instance, a node of which holds a run of blocks. What a chain
 * adds is appended to a leaf, or becomes a new leaf where chains part. An evicted block stays as a
 * hole, to be filled when it is written again; a node goes once it is a leaf and has holes only.
 *
 * Why a tree where ids name whole prefixes: in leaf_aware_lru it decides by node what may leave.
 *
 * At most 28 bytes a block, 20 a node and 11 a node for finding children: 59 for a block that has
 * a node of its own.
 *
 * Threads: one at a time.
 */

#define TIERCE__KVCM_NONE     UINT32_MAX
#define TIERCE__KVCM_HOLE     UINT32_MAX       /* `newer` of a block that is not cached */
#define TIERCE__KVCM_UNLISTED (UINT32_MAX - 1) /* `newer` of one that is cached, and in no list */

struct tierce__kvcm_block {
    int64_t time_us; /* of its last use */
    uint32_t key;
    uint32_t node;
    uint32_t next;         /* in the run, or NONE */
    uint32_t newer, older; /* the policy's */
} __attribute__((packed, aligned(4)));

struct tierce__kvcm_node {
    uint32_t first;         /* block of the run; roots have none */
    uint32_t parent;        /* NONE: a root */
    uint32_t children;      /* nodes */
    uint32_t live_children; /* of those, with a cached block of their own */
    uint32_t live : 31;     /* cached blocks of the run */
    uint32_t is_noted : 1;  /* in `noted` */
};

struct tierce__kvcm_tree {
    struct tierce__kvcm_block *blocks; /* the first `roots` are no blocks, but ends of lists */
    uint32_t block_count, block_room;
    uint32_t free_block;             /* a list through `next` */
    struct tierce__kvcm_node *nodes; /* the first `roots` are the roots */
    uint32_t node_count, node_room;
    uint32_t free_node; /* a list through `parent` */
    uint32_t *table;    /* (parent, key of its first block) -> node; 0 is a free place */
    size_t table_size;  /* a power of two */
    uint32_t table_count;
    uint32_t *noted; /* nodes that blocks were evicted of since the last clean */
    uint32_t noted_count, noted_room;
};

/* Trees without blocks, for about so many. Errors: -ENOMEM, TIERCE_E_LIMIT (over 2^31 blocks);
 * *out is then good for fini. */
TIERCE_MUSTUSE int tierce__kvcm_tree_init(struct tierce__kvcm_tree *out, uint32_t roots,
                                          uint32_t distinct);

/* Accepts a zeroed tree. */
void tierce__kvcm_tree_fini(struct tierce__kvcm_tree *tree);

/* How much of a chain is in the tree of that root, holes included; path[i] becomes the block. */
uint32_t tierce__kvcm_tree_walk(const struct tierce__kvcm_tree *tree, uint32_t root,
                                const uint32_t *keys, uint32_t count, uint32_t *path);

/*
 * Adds the rest of a chain, of which `found` blocks are in the tree and no holes, as holes behind
 * them; path[found .. count) becomes the new blocks. Errors: -ENOMEM, TIERCE_E_LIMIT; the tree is
 * then as it was, or good for fini alone.
 */
TIERCE_MUSTUSE int tierce__kvcm_tree_extend(struct tierce__kvcm_tree *tree, uint32_t root,
                                            const uint32_t *keys, uint32_t count, uint32_t found,
                                            uint32_t *path);

static inline bool tierce__kvcm_is_cached(const struct tierce__kvcm_tree *tree, uint32_t block)
{
    return tree->blocks[block].newer != TIERCE__KVCM_HOLE;
}

/* Fills a hole; the block is in no list yet. */
void tierce__kvcm_tree_fill(struct tierce__kvcm_tree *tree, uint32_t block);

/* Room for that many calls of evict until the next clean. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_tree_expect(struct tierce__kvcm_tree *tree, uint32_t evictions);

/* Makes a cached block, which is in no list any more, a hole. */
void tierce__kvcm_tree_evict(struct tierce__kvcm_tree *tree, uint32_t block);

/* Removes the leaves of holes alone, among the nodes that blocks were evicted of: also those that
 * become leaves by it. */
void tierce__kvcm_tree_clean(struct tierce__kvcm_tree *tree);

#endif
