/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIFE_NODES_H
#define TIERCE_OPTIMIZER_LIFE_NODES_H

#include "optimizer/analysis/life.h"

/* The tree of the most used prefixes, for life.c. */

/* Data per block after all requests were read. A parent has a smaller number than its children. */
struct tierce__life_blocks {
    uint32_t count;
    uint32_t *uses;
    uint32_t *parent; /* TIERCE__LIFE_NO_PARENT */
    uint32_t *instance;
    int64_t *first_us, *last_us;
};

TIERCE_MUSTUSE int tierce__life_blocks_init(struct tierce__life_blocks *blocks, uint32_t count);
void tierce__life_blocks_fini(struct tierce__life_blocks *blocks);

/* Fills *nodes (heap) as life.h says, at most nodes_max of each instance. -ENOMEM. */
TIERCE_MUSTUSE int tierce__life_nodes(struct tierce__life_node **nodes, size_t *node_count,
                                      const struct tierce__life_blocks *blocks, uint32_t instances,
                                      uint32_t nodes_max, uint64_t block_tokens);

#endif
