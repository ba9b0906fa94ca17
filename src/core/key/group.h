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

/* Whether a chunk can be used without the chunks before it. */
static inline bool tierce__group_is_sparse(enum tierce_group kind)
{
    return kind > TIERCE_GROUP_FULL;
}

/* *out = the kind of that name; false, *out untouched, if there is none. */
TIERCE_MUSTUSE bool tierce__group_parse(enum tierce_group *out, const char *name);

/* tierce_view_needs. */
uint64_t tierce__group_needs(const struct tierce__layer_group *group, uint64_t blocks);

/* The run of chunks that a sparse group requires so that the inference engine can continue after
 * `blocks` blocks. */
struct tierce__run {
    uint64_t blocks, need; /* the run holds blocks [need, blocks) */
    size_t from, count;    /* its chunks [from, from + count); count 0: no chunk is required */
};

/* Returns how many leading chunks of the run are held. */
typedef size_t tierce__run_held_fn(void *arg, const struct tierce__run *run);

/* The held run with the largest `blocks` in (from_block, to_block]. If there is none, `blocks` is
 * at most from_block. The first call of `held` is for the run of to_block. */
struct tierce__run tierce__run_find(const struct tierce__layer_group *group, uint64_t from_block,
                                    uint64_t to_block, tierce__run_held_fn *held, void *arg);

/*
 * Where lookups stop in the tree of prompts of a family: after a block that ends a chain or at
 * which chains part, or inside a chain (the last block that was found has one child). The more
 * prompts stop inside, because they are cut or edited there, the more the windows and states inside
 * are worth (docs/inside/design/008-reclaim.md, "Families").
 */
struct tierce__stops {
    uint64_t all, inside;
};

enum {
    TIERCE__STOPS_LEAST = 64,  /* fewer show nothing */
    TIERCE__STOPS_MOST = 1024, /* then both are halved, so that old ones fade */
    TIERCE__STOPS_FEW = 5,     /* one in so many stops inside, or more: not few */
    TIERCE__STOPS_MANY = 4,    /* one in so many: many */
};

/* Keys of a lookup. An engine asks for a longer prompt in several lookups. */
#define TIERCE__LOOKUP_ROW 4096u

/* Whether a lookup that found so many of its keys tells where its prompt stops. One key that is
 * there is a writer's question about a parent, and a full row goes on in the next one. */
static inline bool tierce__stops_count(size_t found, size_t asked)
{
    return found < asked || (asked > 1 && asked < TIERCE__LOOKUP_ROW);
}

/* Whether a window or state inside a chain, which was read or not, is worth less than others. */
static inline bool tierce__stops_spare(struct tierce__stops stops, bool was_read)
{
    if (stops.all < TIERCE__STOPS_LEAST || stops.inside * TIERCE__STOPS_FEW < stops.all)
        return true;
    return !was_read && stops.inside * TIERCE__STOPS_MANY < stops.all;
}

#endif
