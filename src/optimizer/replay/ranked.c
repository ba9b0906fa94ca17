/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/ranked.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "core/policy/heap.h"

#include <errno.h>
#include <string.h>

#define NONE UINT32_MAX

struct ranked_node {
    uint64_t stored, used;
    uint32_t uses;
    uint32_t parent, parent_life; /* they are of no meaning if the parent has left meanwhile */
    uint32_t life;                /* how often the node has left */
    uint32_t children;
    uint32_t newer, older; /* by last use */
    bool is_in;
};

struct tierce__ranked {
    struct tierce__ranked_opts opts;
    struct ranked_node *nodes; /* [keys] */
    struct tierce__heap heap;  /* nodes without children */
    uint32_t count, newest, oldest;
    uint64_t random;
    bool has_lost;
};

/* ---- order ----------------------------------------------------------------------------------- */

/* Doubles in their order, as numbers. */
static uint64_t number_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (bits >> 63) != 0 ? ~bits : bits | UINT64_C(1) << 63;
}

/* Ranks are those of the end of all uses: of two entries, the order is the same at any time. */
static void offer(struct tierce__ranked *c, uint32_t at)
{
    const struct ranked_node *node = &c->nodes[at];
    struct tierce__policy_history history = {
        .stored = node->stored, .used = node->used, .uses = node->uses};
    struct tierce__policy_rank rank = {0};
    TIERCE_DASSERT(node->is_in && node->children == 0);
    bool may = c->opts.policy->rank(&rank, &history, c->opts.end_us, c->opts.half_life_us);
    TIERCE_ASSERT(may);
    tierce__heap_insert(&c->heap, at, (struct tierce__rank){number_of(rank.worth), rank.time});
}

static void unlink_use(struct tierce__ranked *c, uint32_t at)
{
    const struct ranked_node *node = &c->nodes[at];
    *(node->newer != NONE ? &c->nodes[node->newer].older : &c->newest) = node->older;
    *(node->older != NONE ? &c->nodes[node->older].newer : &c->oldest) = node->newer;
}

static void link_newest(struct tierce__ranked *c, uint32_t at)
{
    c->nodes[at].newer = NONE;
    c->nodes[at].older = c->newest;
    *(c->newest != NONE ? &c->nodes[c->newest].newer : &c->oldest) = at;
    c->newest = at;
}

static void touch(struct tierce__ranked *c, uint32_t at, uint64_t now_us)
{
    struct ranked_node *node = &c->nodes[at];
    TIERCE_DASSERT(node->is_in && now_us >= node->used && now_us <= c->opts.end_us);
    node->used = now_us;
    node->uses += node->uses < UINT32_MAX;
    unlink_use(c, at);
    link_newest(c, at);
    if (node->children > 0)
        return;
    tierce__heap_remove(&c->heap, at);
    offer(c, at);
}

/* ---- entering and leaving -------------------------------------------------------------------- */

static uint32_t parent_of(const struct tierce__ranked *c, uint32_t at)
{
    const struct ranked_node *node = &c->nodes[at];
    bool has = node->parent != NONE && c->nodes[node->parent].is_in &&
               c->nodes[node->parent].life == node->parent_life;
    return has ? node->parent : NONE;
}

static void leave(struct tierce__ranked *c, uint32_t at)
{
    struct ranked_node *node = &c->nodes[at];
    uint32_t parent = parent_of(c, at);
    TIERCE_DASSERT(node->is_in && c->count > 0);
    if (node->children == 0)
        tierce__heap_remove(&c->heap, at);
    unlink_use(c, at);
    node->is_in = false;
    node->life++;
    node->children = 0;
    c->count--;
    c->has_lost = true;
    if (parent != NONE && --c->nodes[parent].children == 0)
        offer(c, parent);
}

/* A block follows another one, unless it follows one already. */
static void follow(struct tierce__ranked *c, uint32_t at, uint32_t parent)
{
    struct ranked_node *node = &c->nodes[at];
    if (at == parent || !c->nodes[parent].is_in || parent_of(c, at) != NONE)
        return;
    node->parent = parent;
    node->parent_life = c->nodes[parent].life;
    if (c->nodes[parent].children++ == 0)
        tierce__heap_remove(&c->heap, parent);
}

static void enter(struct tierce__ranked *c, uint32_t at, uint64_t now_us)
{
    struct ranked_node *node = &c->nodes[at];
    *node = (struct ranked_node){
        .stored = now_us, .used = now_us, .parent = NONE, .life = node->life, .is_in = true};
    c->count++;
    link_newest(c, at);
    offer(c, at);
}

static void expire(struct tierce__ranked *c, uint64_t now_us)
{
    while (c->oldest != NONE &&
           tierce__policy_outlived(c->nodes[c->oldest].used, c->opts.ttl_us, now_us))
        leave(c, c->oldest);
}

static const struct tierce__heap_item *draw(struct tierce__ranked *c)
{
    return &c->heap.items[tierce__random_next(&c->random) % c->heap.count];
}

static uint32_t choose(struct tierce__ranked *c)
{
    TIERCE_ASSERT(c->heap.count > 0);
    const struct tierce__heap_item *lowest = c->opts.drawn > 0 ? draw(c) : &c->heap.items[0];
    for (uint32_t i = 1; i < c->opts.drawn; i++) {
        const struct tierce__heap_item *item = draw(c);
        if (tierce__rank_is_lower(&item->rank, &lowest->rank))
            lowest = item;
    }
    return lowest->slot;
}

/* ---- requests -------------------------------------------------------------------------------- */

size_t tierce__ranked_read(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                           bool is_chain, uint64_t now_us, bool *hit)
{
    size_t hits = 0;
    bool ends = false;
    expire(cache, now_us);
    for (size_t i = 0; i < count; i++) {
        TIERCE_DASSERT(keys[i] < cache->opts.keys);
        ends = ends || (is_chain && !cache->nodes[keys[i]].is_in);
        hit[i] = !ends && cache->nodes[keys[i]].is_in;
        hits += hit[i];
        if (hit[i])
            touch(cache, keys[i], now_us);
    }
    return hits;
}

void tierce__ranked_use(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                        uint64_t now_us)
{
    expire(cache, now_us);
    for (size_t i = 0; i < count; i++) {
        if (cache->nodes[keys[i]].is_in)
            touch(cache, keys[i], now_us);
    }
}

void tierce__ranked_write(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                          uint64_t now_us)
{
    expire(cache, now_us);
    for (size_t i = 0; i < count; i++) {
        if (cache->nodes[keys[i]].is_in)
            continue;
        enter(cache, keys[i], now_us);
        /* Only a block that is new, which nothing follows: clients choose the keys, and blocks that
         * follow each other in a circle would never be leaves. */
        if (i > 0)
            follow(cache, keys[i], keys[i - 1]);
    }
    while (cache->count > cache->opts.capacity)
        leave(cache, choose(cache));
}

bool tierce__ranked_has_lost(const struct tierce__ranked *cache)
{
    return cache->has_lost;
}

/* ---- create, destroy ------------------------------------------------------------------------- */

int tierce__ranked_create(struct tierce__ranked **out, const struct tierce__ranked_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->capacity > 0);
    TIERCE_ASSERT(opts->policy != NULL && opts->policy->rank != NULL);
    struct tierce__ranked *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->opts = *opts;
    c->newest = c->oldest = NONE;
    c->random = opts->keys + 1;
    c->nodes = tierce__calloc((size_t)opts->keys + 1, sizeof(*c->nodes));
    if (c->nodes == NULL || tierce__heap_init(&c->heap, opts->keys + 1) < 0) {
        tierce__ranked_destroy(c);
        return -ENOMEM;
    }
    *out = c;
    return 0;
}

void tierce__ranked_destroy(struct tierce__ranked *cache)
{
    if (cache == NULL)
        return;
    tierce__heap_fini(&cache->heap);
    tierce__free(cache->nodes);
    tierce__free(cache);
}
