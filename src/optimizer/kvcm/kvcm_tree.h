/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_KVCM_TREE_H
#define TIERCE_OPTIMIZER_KVCM_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/map.h"

/*
 * KVCM's index: a radix tree per instance; each node holds a run of blocks. New blocks of a chain
 * are appended to a leaf, or become a new leaf where chains diverge. An evicted block stays as a
 * hole, which is filled when the block is written again; a leaf with only holes is removed.
 *
 * A tree is necessary although ids identify prefixes, because leaf_aware_lru decides per node which
 * blocks it may evict.
 *
 * At most 28 bytes a block, 20 a node and 22 a node for finding children: 70 for a block that has
 * a node of its own.
 *
 * Threads: one at a time.
 */

#define TIERCE__KVCM_NONE     UINT32_MAX
#define TIERCE__KVCM_HOLE     UINT32_MAX       /* `newer` of a block that is not cached */
#define TIERCE__KVCM_UNLISTED (UINT32_MAX - 1) /* `newer` of a cached block that is in no list */

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
    struct tierce__kvcm_block *blocks; /* the first `roots` are not blocks, but ends of lists */
    uint32_t block_count, block_room;
    uint32_t free_block;             /* a list through `next` */
    struct tierce__kvcm_node *nodes; /* the first `roots` are the roots */
    uint32_t node_count, node_room;
    uint32_t free_node;           /* a list through `parent` */
    struct tierce__numbers table; /* nodes by parent and the key of their first block */
    uint32_t *noted;              /* nodes with evicted blocks since the last clean */
    uint32_t noted_count, noted_room;
};

/* Creates empty trees with room for about that many blocks. Errors: -ENOMEM, TIERCE_E_LIMIT (over
 * 2^31 blocks); afterwards *out can only be passed to fini. */
TIERCE_MUSTUSE int tierce__kvcm_tree_init(struct tierce__kvcm_tree *out, uint32_t roots,
                                          uint32_t distinct);

/* Accepts a zeroed tree. */
void tierce__kvcm_tree_fini(struct tierce__kvcm_tree *tree);

/* Returns how many leading blocks of a chain are in the root's tree, including holes; sets path[i]
 * to the blocks. */
uint32_t tierce__kvcm_tree_walk(const struct tierce__kvcm_tree *tree, uint32_t root,
                                const uint32_t *keys, uint32_t count, uint32_t *path);

/*
 * Adds the rest of a chain as holes after its first `found` blocks, which are in the tree and are
 * no holes; sets path[found .. count) to the new blocks. Errors: -ENOMEM, TIERCE_E_LIMIT; the tree
 * is then unchanged, or can only be passed to fini.
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

/* Reserves room for that many calls of evict until the next clean. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_tree_expect(struct tierce__kvcm_tree *tree, uint32_t evictions);

/* Turns a cached block, which is no longer in a list, into a hole. */
void tierce__kvcm_tree_evict(struct tierce__kvcm_tree *tree, uint32_t block);

/* Removes leaves that have only holes, among the nodes with evicted blocks, including nodes that
 * become leaves thereby. */
void tierce__kvcm_tree_clean(struct tierce__kvcm_tree *tree);

#endif
