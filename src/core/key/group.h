/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE__CORE_KEY_GROUP_H
#define TIERCE__CORE_KEY_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <tierce/key.h>

/*
 * Which blocks of a group of layers an inference engine needs (docs/inside/design/
 * 011-groups-and-devices.md). Thread: any.
 */

struct tierce__layer_group {
    enum tierce_group kind;
    uint32_t window; /* tokens, > 0 for WINDOW and CHUNKED */
    uint32_t block_tokens, chunk_blocks;
};

/* Whether chunks can be used without those before them. */
static inline bool tierce__group_is_sparse(enum tierce_group kind)
{
    return kind > TIERCE_GROUP_FULL;
}

/* *out = the kind of that name; false, *out untouched, if there is none. */
TIERCE_MUSTUSE bool tierce__group_parse(enum tierce_group *out, const char *name);

/* tierce_view_needs. */
uint64_t tierce__group_needs(const struct tierce__layer_group *group, uint64_t blocks);

/* In a sparse group, a number of blocks after which the engine can continue needs a run of chunks.
 */
struct tierce__run {
    uint64_t blocks, need; /* `blocks` blocks need the blocks from `need` on */
    size_t from, count;    /* its chunks; count 0: nothing is needed */
};

/* How many leading ones of the chunks [from, from + count) are held; `blocks` as in the run. */
typedef size_t tierce__run_held_fn(void *arg, const struct tierce__run *run);

/* The run of the most blocks, above from_block and up to to_block, that is held; `blocks` is
 * from_block or less if there is none. `held` is called for the run of to_block first. */
struct tierce__run tierce__run_find(const struct tierce__layer_group *group, uint64_t from_block,
                                    uint64_t to_block, tierce__run_held_fn *held, void *arg);

#endif
