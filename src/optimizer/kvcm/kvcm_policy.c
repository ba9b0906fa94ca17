/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/kvcm/kvcm_policy.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

#define SEED                0x12345678abcdef01ULL
#define SAMPLE_RATE_DEFAULT 0.1

/* ---- the list: from its end on `older` leads from the newest to the oldest ------------------- */

static uint32_t newest(const struct tierce__kvcm_policy *p)
{
    return p->tree->blocks[p->end].older;
}

static uint32_t oldest(const struct tierce__kvcm_policy *p)
{
    return p->tree->blocks[p->end].newer;
}

static bool is_listed(const struct tierce__kvcm_policy *p, uint32_t block)
{
    return p->tree->blocks[block].newer < TIERCE__KVCM_UNLISTED;
}

/* Puts a block on the older side of `newer`. */
static void list_behind(struct tierce__kvcm_policy *p, uint32_t newer, uint32_t block)
{
    struct tierce__kvcm_block *blocks = p->tree->blocks;
    uint32_t older = blocks[newer].older;
    blocks[block].newer = newer;
    blocks[block].older = older;
    blocks[newer].older = block;
    blocks[older].newer = block;
}

static void unlist(struct tierce__kvcm_policy *p, uint32_t block)
{
    struct tierce__kvcm_block *blocks = p->tree->blocks;
    TIERCE_DASSERT(is_listed(p, block));
    blocks[blocks[block].newer].older = blocks[block].older;
    blocks[blocks[block].older].newer = blocks[block].newer;
    blocks[block].newer = TIERCE__KVCM_UNLISTED;
}

static void evict_listed(struct tierce__kvcm_policy *p, uint32_t block)
{
    TIERCE_ASSERT(p->held_count > 0);
    unlist(p, block);
    tierce__kvcm_tree_evict(p->tree, block);
    p->held_count--;
}

static uint32_t evict_oldest(struct tierce__kvcm_policy *p, uint32_t count)
{
    uint32_t evicted = 0;
    for (; evicted < count && oldest(p) != p->end; evicted++)
        evict_listed(p, oldest(p));
    return evicted;
}

/* ---- leaf_aware_lru -------------------------------------------------------------------------- */

/* Returns whether the position of a time is searched from the newest block or from the oldest: from
 * the end that is nearer in time. */
static bool is_from_newest(const struct tierce__kvcm_policy *p, int64_t time)
{
    if (newest(p) == p->end)
        return true;
    int64_t newest_time = p->tree->blocks[newest(p)].time_us;
    int64_t oldest_time = p->tree->blocks[oldest(p)].time_us;
    return time >= newest_time || (time > oldest_time && newest_time - time < time - oldest_time);
}

/* The block, or the end, after which a time is inserted: before equal times if searched from the
 * newest, else after them. */
static uint32_t seek_time(const struct tierce__kvcm_policy *p, int64_t time, bool from_newest)
{
    const struct tierce__kvcm_block *blocks = p->tree->blocks;
    uint32_t at = p->end;
    if (from_newest) {
        while (blocks[at].older != p->end && time < blocks[blocks[at].older].time_us)
            at = blocks[at].older;
        return at;
    }
    do {
        at = blocks[at].newer;
    } while (at != p->end && blocks[at].time_us < time);
    return at;
}

/* A node has lost its last child with blocks: its own come back. */
static void list_node(struct tierce__kvcm_policy *p, uint32_t node)
{
    const struct tierce__kvcm_block *blocks = p->tree->blocks;
    uint32_t before = TIERCE__KVCM_NONE;
    bool from_newest = false;
    for (uint32_t block = p->tree->nodes[node].first; block != TIERCE__KVCM_NONE;
         block = blocks[block].next) {
        if (!tierce__kvcm_is_cached(p->tree, block) || is_listed(p, block))
            continue;
        int64_t time = blocks[block].time_us;
        if (before == TIERCE__KVCM_NONE || blocks[before].time_us != time) {
            from_newest = is_from_newest(p, time);
            list_behind(p, seek_time(p, time, from_newest), block);
        } else { /* several blocks of a run: searched from the same end, inserted beside the
                    previous one */
            list_behind(p, from_newest ? blocks[before].newer : before, block);
        }
        before = block;
    }
}

static uint32_t evict_leaves(struct tierce__kvcm_policy *p, uint32_t count)
{
    const struct tierce__kvcm_node *nodes = p->tree->nodes;
    uint32_t evicted = 0;
    while (evicted < count && oldest(p) != p->end) {
        uint32_t block = oldest(p), node = p->tree->blocks[block].node;
        TIERCE_DASSERT(tierce__kvcm_is_cached(p->tree, block));
        if (nodes[node].live_children > 0) {
            unlist(p, block);
            continue;
        }
        evict_listed(p, block);
        evicted++;
        if (nodes[nodes[node].parent].live_children == 0)
            list_node(p, nodes[node].parent);
    }
    return evicted;
}

/* ---- random_lru ------------------------------------------------------------------------------ */

static int reserve(uint32_t **array, uint32_t *room, uint64_t wanted)
{
    if (wanted <= *room)
        return 0;
    uint64_t grown = (uint64_t)*room + *room / 4 + 64;
    grown = grown > wanted ? grown : wanted;
    uint32_t *bigger = tierce__realloc(*array, (size_t)grown * sizeof(*bigger));
    if (bigger == NULL)
        return -ENOMEM;
    *array = bigger;
    *room = (uint32_t)(grown < UINT32_MAX ? grown : UINT32_MAX);
    return 0;
}

/* xorshift64 with the shifts 13, 7 and 17. */
static uint32_t draw(struct tierce__kvcm_policy *p)
{
    TIERCE_DASSERT(p->held_count > 0);
    p->state ^= p->state << 13;
    p->state ^= p->state >> 7;
    p->state ^= p->state << 17;
    return (uint32_t)(p->state % p->held_count);
}

static bool is_older(const struct tierce__kvcm_policy *p, uint32_t a, uint32_t b)
{
    const struct tierce__kvcm_block *blocks = p->tree->blocks;
    return blocks[p->held[a]].time_us < blocks[p->held[b]].time_us;
}

/*
 * Many blocks have the same time; their order follows from partial_sort of the C++ library that
 * KVCM is built with. It keeps a heap of the first `kept` values with the newest on top, inserts
 * values older than the top, and then sorts the heap. A vacated slot is filled from its children
 * down to a leaf, and then the value is sifted up to its position.
 */
static void sink(const struct tierce__kvcm_policy *p, uint32_t *heap, uint32_t length, uint32_t at,
                 uint32_t value)
{
    uint32_t top = at, child;
    while ((child = 2 * at + 2) < length) {
        TIERCE_DASSERT(at < length);
        if (is_older(p, heap[child], heap[child - 1]))
            child--;
        heap[at] = heap[child];
        at = child;
    }
    if (child == length) {
        heap[at] = heap[child - 1];
        at = child - 1;
    }
    while (at > top && is_older(p, heap[(at - 1) / 2], value)) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

static void sort_oldest(const struct tierce__kvcm_policy *p, uint32_t *drawn, uint32_t length,
                        uint32_t kept)
{
    TIERCE_DASSERT(kept > 0 && kept <= length);
    for (uint32_t at = kept / 2; at-- > 0;)
        sink(p, drawn, kept, at, drawn[at]);
    for (uint32_t i = kept; i < length; i++) {
        if (is_older(p, drawn[i], drawn[0])) {
            uint32_t value = drawn[i];
            drawn[i] = drawn[0];
            sink(p, drawn, kept, 0, value);
        }
    }
    for (uint32_t last = kept; last-- > 1;) {
        uint32_t value = drawn[last];
        drawn[last] = drawn[0];
        sink(p, drawn, last, 0, value);
    }
}

/* The last entry replaces the removed one. */
static void evict_held(struct tierce__kvcm_policy *p, uint32_t block)
{
    uint32_t place = p->tree->blocks[block].newer, last = p->held[--p->held_count];
    TIERCE_DASSERT(place < p->held_count + 1 && p->held[place] == block);
    p->held[place] = last;
    p->tree->blocks[last].newer = place;
    tierce__kvcm_tree_evict(p->tree, block);
}

static int64_t evict_drawn(struct tierce__kvcm_policy *p, uint32_t count)
{
    uint32_t length = p->samples < p->held_count ? (uint32_t)p->samples : p->held_count;
    uint32_t kept = count < length ? count : length, evicted = 0;
    if (kept == 0)
        return 0;
    int rc = reserve(&p->drawn, &p->drawn_room, length);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < length; i++)
        p->drawn[i] = draw(p);
    sort_oldest(p, p->drawn, length, kept);
    for (uint32_t i = 0; i < kept; i++)
        p->drawn[i] = p->held[p->drawn[i]]; /* before places change */
    for (uint32_t i = 0; i < kept; i++) {
        if (!tierce__kvcm_is_cached(p->tree, p->drawn[i]))
            continue; /* drawn twice */
        evict_held(p, p->drawn[i]);
        evicted++;
    }
    return evicted;
}

/* ---- common ---------------------------------------------------------------------------------- */

void tierce__kvcm_policy_init(struct tierce__kvcm_policy *out, enum tierce__kvcm_kind kind,
                              struct tierce__kvcm_tree *tree, uint32_t root, uint32_t batch,
                              double sample_rate)
{
    double samples = batch / (sample_rate > 0 ? sample_rate : SAMPLE_RATE_DEFAULT);
    *out = (struct tierce__kvcm_policy){.kind = kind,
                                        .tree = tree,
                                        .end = root,
                                        .state = SEED,
                                        .samples = samples < (double)UINT32_MAX ? (uint64_t)samples
                                                                                : UINT32_MAX};
}

void tierce__kvcm_policy_fini(struct tierce__kvcm_policy *policy)
{
    tierce__free(policy->held);
    tierce__free(policy->drawn);
    *policy = (struct tierce__kvcm_policy){0};
}

int tierce__kvcm_policy_store(struct tierce__kvcm_policy *policy, uint32_t block, int64_t time_us)
{
    struct tierce__kvcm_tree *tree = policy->tree;
    TIERCE_DASSERT(!tierce__kvcm_is_cached(tree, block));
    if (policy->kind == TIERCE__KVCM_RANDOM_LRU) {
        int rc = reserve(&policy->held, &policy->held_room, (uint64_t)policy->held_count + 1);
        if (rc < 0)
            return rc;
    }
    tierce__kvcm_tree_fill(tree, block);
    tree->blocks[block].time_us = time_us;
    if (policy->kind == TIERCE__KVCM_RANDOM_LRU) {
        tree->blocks[block].newer = policy->held_count;
        policy->held[policy->held_count] = block;
    } else if (policy->kind == TIERCE__KVCM_LRU ||
               tree->nodes[tree->blocks[block].node].children == 0) {
        list_behind(policy, policy->end, block);
    }
    policy->held_count++;
    return 0;
}

void tierce__kvcm_policy_touch(struct tierce__kvcm_policy *policy, uint32_t block, int64_t time_us)
{
    policy->tree->blocks[block].time_us = time_us;
    TIERCE_DASSERT(tierce__kvcm_is_cached(policy->tree, block));
    if (policy->kind == TIERCE__KVCM_RANDOM_LRU || !is_listed(policy, block))
        return;
    unlist(policy, block);
    list_behind(policy, policy->end, block);
}

int64_t tierce__kvcm_policy_evict(struct tierce__kvcm_policy *policy, uint32_t count)
{
    count = count < policy->held_count ? count : policy->held_count;
    int rc = tierce__kvcm_tree_expect(policy->tree, count);
    if (rc < 0)
        return rc;
    if (policy->kind == TIERCE__KVCM_RANDOM_LRU)
        return evict_drawn(policy, count);
    return policy->kind == TIERCE__KVCM_LRU ? evict_oldest(policy, count)
                                            : evict_leaves(policy, count);
}
