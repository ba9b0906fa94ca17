/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start with tierce__tiers_request: find the cached blocks, load them, choose the blocks to store,
 * then let each tier use its blocks and put new ones. With write-all the first tier is processed
 * first, because the others get the blocks that it took. With a waterfall the slowest is first, so
 * that the request's blocks there are already used when a faster tier evicts into it.
 */
#include "optimizer/replay/tiers.h"
#include "optimizer/replay/tiers_time.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"

#include <errno.h>
#include <string.h>

#define NO_TIER UINT8_MAX

/* The action for a request's block. */
enum {
    STORE = 1,   /* no tier has it, and the first takes it */
    PROMOTE = 2, /* loaded from a slower tier, and kept in faster ones */
    LEASED = 4,  /* loaded from the first tier, which cannot evict it until the load is over */
};

/* The action for a block in one tier. */
enum {
    KEEP = 1, /* cached, and used */
    PUT = 2,
    LET_GO = 3, /* cached or put, and then evicted to make room */
};

/* The view of a tier during a request. */
struct tier_place {
    struct tierce__tiers *tiers;
    size_t tier;
};

struct tierce__tiers {
    struct tierce__tiers_opts opts;
    struct tierce__tier_spec specs[TIERCE__TIERS_MAX];
    struct tierce__flat stores[TIERCE__TIERS_MAX];
    struct tierce__flat_watch watches[TIERCE__TIERS_MAX];
    struct tier_place places[TIERCE__TIERS_MAX];
    uint64_t refused[TIERCE__TIERS_MAX]; /* before the store was asked */
    uint64_t now_ns;                     /* of the request at hand, since the first */
    struct tierce__tier_queue queues[TIERCE__TIERS_MAX];
    uint64_t written_before[TIERCE__TIERS_MAX]; /* bytes, when the request began */
    bool expiring;                              /* evicted blocks are not passed down */
    uint32_t *parent_of; /* [distinct] of a waterfall: the block before it; NO_SLOT */
    uint64_t *bytes_of;  /* [distinct] as last given; NULL until a request gives sizes */

    /* The index of a block's first mention in the last request that named it; `first` tells whether
     * that is the current request. */
    uint32_t *mention_of; /* [distinct] */

    uint32_t *first; /* [room] the first mention of the same block: an index, perhaps its own */
    uint8_t *place;  /* [room] the tier that a hit is read from */
    uint8_t *fate;   /* [room] STORE, PROMOTE, LEASED; of first mentions */
    uint8_t *act;    /* [room] KEEP, PUT; of first mentions, of one tier */
    size_t room;
    /* The first tier has evicted all it could and the block still did not fit. */
    bool load_drained, store_drained;

    struct tierce__load_times times; /* of each request that loaded something */
    struct tierce__tiers_result result;
};

/* ---- content of a tier ----------------------------------------------------------------------- */

static bool has(const struct tierce__flat *store, uint32_t block)
{
    return store->slot_of[block] != TIERCE__NO_SLOT;
}

/* The capacity that a cached block occupies. */
static uint64_t held_cost(const struct tierce__flat *store, uint32_t block)
{
    TIERCE_DASSERT(has(store, block));
    return store->bytes_in != NULL ? store->bytes_in[store->slot_of[block]] : 1;
}

static void touch(struct tierce__flat *store, uint32_t block)
{
    TIERCE_DASSERT(has(store, block));
    if (store->policy != NULL)
        store->policy->ops->touch(store->policy, store->slot_of[block], store->now);
}

static void hold(struct tierce__flat *store, uint32_t block, bool held)
{
    TIERCE_DASSERT(has(store, block));
    if (store->policy != NULL)
        store->policy->ops->set_evictable(store->policy, store->slot_of[block], !held);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct tierce__tiers *t, uint32_t block)
{
    TIERCE_DASSERT(block < t->opts.distinct);
    return t->bytes_of != NULL && t->bytes_of[block] > 0 ? t->bytes_of[block] : t->opts.block_bytes;
}

/* In the unit of the capacities. */
static uint64_t cost_of(const struct tierce__tiers *t, uint32_t block)
{
    uint64_t bytes = bytes_of(t, block);
    return t->opts.in_bytes && bytes > 0 ? bytes : 1;
}

static int note_sizes(struct tierce__tiers *t, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    const uint64_t *bytes = tierce__recorded_bytes(request);
    if (bytes != NULL && t->bytes_of == NULL) {
        t->bytes_of = tierce__calloc((size_t)t->opts.distinct + 1, sizeof(*t->bytes_of));
        if (t->bytes_of == NULL)
            return -ENOMEM;
    }
    for (uint32_t i = 0; i < request->count; i++) {
        if (bytes != NULL)
            t->bytes_of[blocks[i]] = bytes[i];
        if (t->parent_of != NULL && t->first[i] == i)
            t->parent_of[blocks[i]] = i > 0 ? blocks[i - 1] : TIERCE__NO_SLOT;
    }
    return 0;
}

static int make_room_for(struct tierce__tiers *t, uint32_t blocks)
{
    size_t count = (size_t)blocks + 1;            /* a request may be for nothing */
    size_t rooms[] = {t->room, t->room, t->room}; /* of all arrays, once all have grown */
    if (TIERCE__GROW(t->first, rooms[0], count, 1024) < 0 ||
        TIERCE__GROW(t->place, rooms[1], count, 1024) < 0 ||
        TIERCE__GROW(t->fate, rooms[2], count, 1024) < 0)
        return -ENOMEM;
    return TIERCE__GROW(t->act, t->room, count, 1024);
}

/* A request may repeat a block: it is looked up and read each time, and otherwise counts once. */
static void find_mentions(struct tierce__tiers *t, const uint32_t *blocks, uint32_t count)
{
    TIERCE_ASSERT(count <= t->room);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *mention = &t->mention_of[blocks[i]];
        if (*mention >= i || blocks[*mention] != blocks[i])
            *mention = i;
        t->first[i] = *mention;
    }
}

static bool is_again(const struct tierce__tiers *t, uint32_t i)
{
    TIERCE_DASSERT(t->first[i] <= i);
    return t->first[i] != i;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

/* As tierce__storage_find: asks the tiers in turn, repeatedly, each for a prefix of the rest;
 * blocks that the first tier has are read there. */
static uint32_t find(struct tierce__tiers *t, const uint32_t *blocks, uint32_t count)
{
    uint32_t at = 0, before;
    do {
        before = at;
        for (size_t tier = 0; tier < t->opts.tier_count; tier++) {
            for (; at < count && has(&t->stores[tier], blocks[at]); at++)
                t->place[at] = has(&t->stores[0], blocks[at]) ? 0 : (uint8_t)tier;
        }
    } while (t->opts.tier_count > 1 && at > before && at < count);
    TIERCE_DASSERT(at <= count);
    return at;
}

static bool any_has(const struct tierce__tiers *t, uint32_t block)
{
    for (size_t tier = 0; tier < t->opts.tier_count; tier++) {
        if (has(&t->stores[tier], block))
            return true;
    }
    return false;
}

/* ---- load ------------------------------------------------------------------------------------ */

/* Marks the promoted blocks. Returns the index at which loading ends: blocks from slower tiers must
 * fit into the first tier beside the blocks that are leased there. */
static uint32_t place_loads(struct tierce__tiers *t, const uint32_t *blocks,
                            const uint8_t *internal, uint32_t hits)
{
    uint64_t room = t->stores[0].capacity;
    if (t->opts.promote == TIERCE__TIERS_PROMOTE_NONE)
        return hits;
    for (uint32_t i = 0; i < hits; i++) {
        uint8_t *fate = &t->fate[t->first[i]];
        if (t->place[i] != 0 || (internal != NULL && internal[i] != 0) || (*fate & LEASED) != 0)
            continue;
        *fate |= LEASED;
        TIERCE_DASSERT(held_cost(&t->stores[0], blocks[i]) <= room);
        room -= held_cost(&t->stores[0], blocks[i]);
    }
    for (uint32_t i = 0; i < hits; i++) {
        uint64_t cost = cost_of(t, blocks[i]);
        uint8_t *fate = &t->fate[t->first[i]];
        if (t->place[i] == 0 || (internal != NULL && internal[i] != 0) || (*fate & PROMOTE) != 0)
            continue;
        if (cost > room) {
            t->load_drained = cost <= t->stores[0].capacity;
            return i;
        }
        room -= cost;
        *fate |= PROMOTE;
    }
    return hits;
}

static void count_hits(struct tierce__tiers *t, const struct tierce__recorded *request,
                       uint32_t loaded, struct tierce__tiers_answer *answer)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    const uint8_t *internal = tierce__recorded_internal(request);
    for (uint32_t i = 0; i < answer->hits; i++) {
        struct tierce__tier_result *tier = &t->result.tiers[t->place[i]];
        tier->hits++;
        if (internal != NULL && internal[i] != 0) {
            tier->internal_hits++;
            answer->internal_hits++;
        } else if (i >= loaded) {
            tier->failed++;
            answer->failed++;
        } else {
            answer->tier_blocks[t->place[i]]++;
            answer->tier_bytes[t->place[i]] += bytes_of(t, blocks[i]);
        }
    }
    t->result.hits += answer->hits;
    t->result.internal_hits += answer->internal_hits;
    t->result.failed += answer->failed;
    TIERCE_ASSERT(t->result.internal_hits + t->result.failed <= t->result.hits);
    t->result.blocks += request->read_count;
    for (uint32_t i = 0; internal != NULL && i < request->read_count; i++)
        t->result.internal_blocks += internal[i] != 0;
}

static int load(struct tierce__tiers *t, const struct tierce__recorded *request,
                struct tierce__tiers_answer *answer)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    bool any = false;
    answer->hits = find(t, blocks, request->read_count);
    uint32_t loaded = place_loads(t, blocks, tierce__recorded_internal(request), answer->hits);
    TIERCE_ASSERT(loaded <= answer->hits);
    count_hits(t, request, loaded, answer);
    if (t->opts.block_tokens > 0)
        tierce__recorded_saves(request, loaded, t->opts.block_tokens, &t->result.hit_tokens,
                               &t->result.hit_squares);
    for (size_t i = 0; i < t->opts.tier_count; i++) {
        struct tierce__tier_result *tier = &t->result.tiers[i];
        if (answer->tier_blocks[i] == 0)
            continue;
        uint64_t ns = tierce__tier_queue_load(&t->queues[i], &t->specs[i], t->now_ns,
                                              answer->tier_bytes[i], tier);
        tier->loads++;
        tier->read_blocks += answer->tier_blocks[i];
        tier->read_bytes += answer->tier_bytes[i];
        answer->load_ns = ns > answer->load_ns ? ns : answer->load_ns;
        any = true;
    }
    if (!any)
        return 0;
    t->result.loads++;
    tierce__histogram_add(&t->result.load_ns, answer->load_ns, 1);
    return tierce__load_times_add(&t->times, answer->load_ns);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* Marks the stored blocks: those that no tier has, from the first missing one on, as far as the
 * first tier has room. */
static void choose_stores(struct tierce__tiers *t, const struct tierce__recorded *request)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    uint64_t room = t->stores[0].capacity;
    bool full = false;
    for (uint32_t i = 0; t->opts.tier_count == 1 && i < request->count; i++) {
        if (!is_again(t, i) && has(&t->stores[0], blocks[i]))
            room -= held_cost(&t->stores[0], blocks[i]);
    }
    TIERCE_DASSERT(room <= t->stores[0].capacity);
    for (uint32_t i = 0; i < request->stored; i++) {
        uint64_t cost = cost_of(t, blocks[i]);
        if (is_again(t, i) || any_has(t, blocks[i]))
            continue;
        if (!full && cost > room) {
            t->store_drained = cost <= t->stores[0].capacity;
            full = true;
        }
        if (full) {
            t->result.not_stored++;
            continue;
        }
        TIERCE_DASSERT(cost <= room);
        room -= cost;
        t->fate[i] |= STORE;
    }
}

/* ---- one tier -------------------------------------------------------------------------------- */

/* False: there is no room. */
static bool put(struct tierce__tiers *t, size_t tier, uint32_t block, uint32_t parent)
{
    struct tierce__flat *store = &t->stores[tier];
    TIERCE_DASSERT(parent == TIERCE__NO_SLOT || parent < t->opts.distinct);
    return tierce__flat_store(store, store->policy != NULL ? store->policy->ops : NULL, block,
                              cost_of(t, block),
                              parent != TIERCE__NO_SLOT ? store->slot_of[parent] : parent);
}

static void note_write(struct tierce__tiers *t, size_t tier, uint32_t block)
{
    t->result.tiers[tier].written_blocks++;
    t->result.tiers[tier].written_bytes += bytes_of(t, block);
}

static void nothing_stored(void *arg, uint32_t block)
{
    (void)arg;
    (void)block;
}

/* Passes an evicted block down the waterfall. */
static void demote(void *arg, uint32_t block)
{
    const struct tier_place *place = arg;
    struct tierce__tiers *t = place->tiers;
    size_t next = place->tier + 1;
    TIERCE_ASSERT(next < t->opts.tier_count);
    if (t->expiring || has(&t->stores[next], block) || !put(t, next, block, t->parent_of[block]))
        return;
    t->result.tiers[next].demoted++;
    note_write(t, next, block);
}

/* All that may leave. */
static void drain(struct tierce__flat *store)
{
    uint32_t slot;
    while (store->policy->ops->victim(store->policy, store->now, &slot)) {
        tierce__flat_let_go(store, store->policy->ops, slot);
        store->evicted++;
    }
}

/* Returns whether this tier is asked to put the block. */
static bool is_wanted(const struct tierce__tiers *t, size_t tier, uint32_t block, uint32_t i)
{
    if (has(&t->stores[tier], block))
        return false;
    if ((t->fate[i] & STORE) != 0)
        return tier == 0 || t->opts.writes == TIERCE__TIERS_WRITE_ALL;
    return (t->fate[i] & PROMOTE) != 0 && tier < t->place[i] &&
           (tier == 0 || t->opts.promote == TIERCE__TIERS_PROMOTE_ALL);
}

/* Marks the blocks to put, and returns the room that remains after stores. A slower tier has no
 * suffix without its prefix. */
static uint64_t plan_puts(struct tierce__tiers *t, size_t tier, const uint32_t *blocks,
                          uint32_t count)
{
    const struct tierce__flat *store = &t->stores[tier];
    uint64_t store_room = store->capacity, promote_room = store_room;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t cost = cost_of(t, blocks[i]);
        bool stored = (t->fate[i] & STORE) != 0;
        uint64_t *room = stored ? &store_room : &promote_room;
        if (is_again(t, i) || !is_wanted(t, tier, blocks[i], i))
            continue;
        bool follows = i == 0 || t->act[t->first[i - 1]] == PUT || has(store, blocks[i - 1]);
        if ((tier > 0 && !follows) || cost > *room) {
            t->refused[tier]++;
            continue;
        }
        *room -= cost;
        t->act[i] = PUT;
    }
    return store_room;
}

/* Marks the tier's own blocks that remain after all promotions: the leased ones, and the leading
 * ones of the rest. */
static void plan_load(struct tierce__tiers *t, size_t tier, const uint32_t *blocks, uint32_t count)
{
    const struct tierce__flat *store = &t->stores[tier];
    uint64_t room = store->capacity;
    bool full = tier == 0 && t->load_drained;
    for (uint32_t i = 0; i < count; i++) {
        if (is_again(t, i))
            continue;
        if (tier == 0 && has(store, blocks[i]) && (t->fate[i] & LEASED) != 0)
            room -= held_cost(store, blocks[i]);
        else if (t->act[i] == PUT && (t->fate[i] & STORE) == 0)
            room -= cost_of(t, blocks[i]);
    }
    TIERCE_DASSERT(room <= store->capacity);
    for (uint32_t i = 0; i < count; i++) {
        if (is_again(t, i) || !has(store, blocks[i]))
            continue;
        if (tier > 0 || (t->fate[i] & LEASED) == 0) {
            uint64_t cost = held_cost(store, blocks[i]);
            full = full || cost > room;
            room -= full ? 0 : cost;
            t->act[i] = full ? LET_GO : KEEP;
        } else {
            t->act[i] = KEEP;
        }
    }
}

/*
 * Decides which blocks of a request the tier keeps and puts. Stored blocks take precedence, because
 * their buffers are held until all is written; of the remaining blocks the leading ones stay.
 */
static void plan_tier(struct tierce__tiers *t, size_t tier, const uint32_t *blocks, uint32_t count)
{
    TIERCE_ASSERT(count <= t->room);
    const struct tierce__flat *store = &t->stores[tier];
    memset(t->act, 0, count);
    uint64_t room = plan_puts(t, tier, blocks, count);
    plan_load(t, tier, blocks, count);
    bool full = tier == 0 && t->store_drained && t->opts.tier_count > 1;
    for (uint32_t i = 0; i < count; i++) {
        if (t->act[i] == 0 || t->act[i] == LET_GO || (t->fate[i] & STORE) != 0)
            continue;
        TIERCE_DASSERT(t->act[i] == KEEP || t->act[i] == PUT);
        uint64_t cost = t->act[i] == KEEP ? held_cost(store, blocks[i]) : cost_of(t, blocks[i]);
        full = full || cost > room;
        room -= full ? 0 : cost;
        t->act[i] = full ? LET_GO : t->act[i];
    }
    TIERCE_DASSERT(room <= store->capacity);
}

/* Puts a marked block. False: the policy found no victim for it. */
static bool put_marked(struct tierce__tiers *t, size_t tier, const uint32_t *blocks, uint32_t i)
{
    struct tierce__tier_result *result = &t->result.tiers[tier];
    bool stored = (t->fate[i] & STORE) != 0;
    TIERCE_DASSERT(t->act[i] == PUT || t->act[i] == LET_GO);
    TIERCE_DASSERT(!has(&t->stores[tier], blocks[i]));
    if (!put(t, tier, blocks[i], i > 0 ? blocks[i - 1] : TIERCE__NO_SLOT))
        return false;
    if (t->act[i] == PUT)
        hold(&t->stores[tier], blocks[i], true);
    result->stored += stored;
    result->promoted += !stored;
    note_write(t, tier, blocks[i]);
    return true;
}

/* Parents before children; blocks after one that found no victim are not stored. */
static void put_forward(struct tierce__tiers *t, size_t tier, const uint32_t *blocks,
                        uint32_t count)
{
    bool failed = false;
    for (uint32_t i = 0; i < count; i++) {
        bool stored = (t->fate[i] & STORE) != 0;
        if (t->act[i] != PUT || (!(failed && stored) && put_marked(t, tier, blocks, i)))
            continue;
        failed = failed || stored;
        if (tier == 0 && stored) {
            t->fate[i] = 0;
            t->result.not_stored++;
        }
    }
}

/* Restores the order after all puts, because new blocks were put after cached ones. */
static void touch_again(const struct tierce__tiers *t, struct tierce__flat *store,
                        const uint32_t *blocks, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        if ((t->act[i] == KEEP || t->act[i] == PUT) && has(store, blocks[i]))
            touch(store, blocks[i]);
    }
}

/* Touches from the last block to the first, or parents first if the policy requires it. */
static void use_tier(struct tierce__tiers *t, size_t tier, const uint32_t *blocks, uint32_t count)
{
    TIERCE_DASSERT(tier < t->opts.tier_count);
    struct tierce__flat *store = &t->stores[tier];
    bool by_parent = store->policy != NULL && store->policy->ops->by_parent;
    plan_tier(t, tier, blocks, count);
    for (uint32_t i = 0; i < count; i++) {
        if (t->act[i] == KEEP)
            hold(store, blocks[i], true);
    }
    for (uint32_t i = count; i-- > 0;) { /* blocks that may have to be evicted are evicted last */
        if (t->act[i] == LET_GO && has(store, blocks[i]))
            touch(store, blocks[i]);
        else if (t->act[i] == LET_GO && (t->fate[i] & PROMOTE) != 0)
            (void)put_marked(t, tier, blocks, i);
    }
    for (uint32_t i = count; i-- > 0;) {
        if (t->act[i] == KEEP)
            touch(store, blocks[i]);
        else if (t->act[i] == PUT && !by_parent)
            (void)put_marked(t, tier, blocks,
                             i); /* all blocks that are not held can be evicted for it */
    }
    if (by_parent) {
        put_forward(t, tier, blocks, count);
        touch_again(t, store, blocks, count);
    }
    if (tier == 0 && (t->load_drained || t->store_drained))
        drain(store);
    for (uint32_t i = 0; i < count; i++) {
        if (has(store, blocks[i]))
            hold(store, blocks[i], false);
    }
}

/* ---- a request ------------------------------------------------------------------------------- */

static void pass_time(struct tierce__tiers *t, int64_t time_us)
{
    t->expiring = true;
    for (size_t tier = 0; tier < t->opts.tier_count; tier++) {
        struct tierce__flat *store = &t->stores[tier];
        if (t->specs[tier].ttl_us > 0)
            store->now = time_us > 0 ? (uint64_t)time_us : 0;
        else
            store->now++;
        tierce__flat_expire(store);
    }
    t->expiring = false;
}

static void begin_times(struct tierce__tiers *t, int64_t time_us)
{
    t->now_ns = tierce__tier_now_ns(t->result.first_us, time_us);
    for (size_t i = 0; i < t->opts.tier_count; i++)
        t->written_before[i] = t->result.tiers[i].written_bytes;
}

/* The request's writes are queued after its loads. */
static void queue_writes(struct tierce__tiers *t)
{
    for (size_t i = 0; i < t->opts.tier_count; i++)
        tierce__tier_queue_write(&t->queues[i], &t->specs[i], t->now_ns,
                                 t->result.tiers[i].written_bytes - t->written_before[i],
                                 &t->result.tiers[i]);
}

int tierce__tiers_request(struct tierce__tiers *tiers, const struct tierce__recorded *request,
                          struct tierce__tiers_answer *answer)
{
    struct tierce__tiers *t = tiers;
    struct tierce__tiers_answer own = {0};
    const uint32_t *blocks = tierce__recorded_blocks(request);
    TIERCE_DASSERT(request->read_count <= request->count && request->stored <= request->count);
    int rc = make_room_for(t, request->count);
    if (rc < 0)
        return rc;
    find_mentions(t, blocks, request->count);
    rc = note_sizes(t, request);
    if (rc < 0)
        return rc;
    if (t->result.requests++ == 0)
        t->result.first_us = request->time_us;
    t->result.last_us = request->time_us;
    pass_time(t, request->time_us);
    begin_times(t, request->time_us);
    t->load_drained = t->store_drained = false;
    memset(t->fate, 0, request->count);
    memset(t->place, NO_TIER, request->count);
    if (request->kind != TIERCE__TRACE_WRITE)
        rc = load(t, request, &own);
    if (request->stored > 0)
        choose_stores(t, request);
    for (size_t i = 0; i < t->opts.tier_count; i++) {
        bool waterfall = t->opts.writes == TIERCE__TIERS_WATERFALL;
        use_tier(t, waterfall ? t->opts.tier_count - 1 - i : i, blocks, request->count);
    }
    queue_writes(t);
    if (answer != NULL)
        *answer = own;
    return rc;
}

/* ---- create, destroy, read ------------------------------------------------------------------- */

static bool are_good(const struct tierce__tiers_opts *opts)
{
    if (opts->tier_count == 0 || opts->tier_count > TIERCE__TIERS_MAX ||
        opts->distinct > TIERCE__POLICY_SLOTS_MAX)
        return false;
    for (size_t i = 0; i < opts->tier_count; i++) {
        const struct tierce__tier_spec *spec = &opts->tiers[i];
        if ((spec->policy != NULL && spec->capacity == 0) || !(spec->read_bytes_per_s >= 0) ||
            !(spec->write_bytes_per_s >= 0) || !(spec->endurance_bytes >= 0))
            return false;
    }
    return true;
}

static int create_stores(struct tierce__tiers *t)
{
    bool waterfall = t->opts.writes == TIERCE__TIERS_WATERFALL;
    for (size_t i = 0; i < t->opts.tier_count; i++) {
        const struct tierce__tier_spec *spec = &t->specs[i];
        int rc = tierce__flat_init(
            &t->stores[i], &(struct tierce__flat_opts){
                               .policy = spec->policy,
                               .key_count = t->opts.distinct > 0 ? t->opts.distinct : 1,
                               .capacity = spec->policy != NULL ? spec->capacity : UINT64_MAX,
                               .in_bytes = t->opts.in_bytes,
                               .evicts_inner = i == 0 && t->opts.tier_count > 1,
                               .seed = t->opts.seed,
                               .ttl = spec->ttl_us,
                           });
        if (rc < 0)
            return rc;
        if (!waterfall || i + 1 == t->opts.tier_count)
            continue;
        t->places[i] = (struct tier_place){t, i};
        t->watches[i] = (struct tierce__flat_watch){nothing_stored, demote, &t->places[i]};
        t->stores[i].watch = &t->watches[i];
    }
    if (!waterfall)
        return 0;
    t->parent_of = tierce__alloc(((size_t)t->opts.distinct + 1) * sizeof(*t->parent_of));
    return t->parent_of != NULL ? 0 : -ENOMEM;
}

int tierce__tiers_create(struct tierce__tiers **out, const struct tierce__tiers_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    if (!are_good(opts))
        return TIERCE_E_ARGUMENT;
    struct tierce__tiers *t = tierce__calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->opts = *opts;
    memcpy(t->specs, opts->tiers, opts->tier_count * sizeof(t->specs[0]));
    t->opts.tiers = t->specs;
    t->mention_of = tierce__calloc((size_t)opts->distinct + 1, sizeof(*t->mention_of));
    t->result.tier_count = opts->tier_count;
    int rc = t->mention_of != NULL ? create_stores(t) : -ENOMEM;
    if (rc < 0) {
        tierce__tiers_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tierce__tiers_destroy(struct tierce__tiers *tiers)
{
    if (tiers == NULL)
        return;
    for (size_t i = 0; i < tiers->opts.tier_count; i++)
        tierce__flat_fini(&tiers->stores[i]);
    tierce__free(tiers->parent_of);
    tierce__free(tiers->bytes_of);
    tierce__free(tiers->mention_of);
    tierce__free(tiers->first);
    tierce__free(tiers->place);
    tierce__free(tiers->fate);
    tierce__free(tiers->act);
    tierce__load_times_clear(&tiers->times);
    tierce__free(tiers);
}

const struct tierce__tiers_result *tierce__tiers_result(struct tierce__tiers *tiers)
{
    uint64_t asked = tiers->result.blocks;
    for (size_t i = 0; i < tiers->opts.tier_count; i++) {
        const struct tierce__tier_spec *spec = &tiers->specs[i];
        struct tierce__tier_result *r = &tiers->result.tiers[i];
        const struct tierce__flat *store = &tiers->stores[i];
        r->asked = asked;
        r->refused = tiers->refused[i] + store->refused;
        r->evicted = store->evicted;
        r->expired = store->expired;
        r->used = store->used;
        r->used_max = store->used_max;
        TIERCE_ASSERT(store->used <= store->used_max && r->hits <= asked);
        asked -= r->hits;
        r->read_s =
            (double)r->loads * (double)spec->latency_ns / 1e9 +
            (spec->read_bytes_per_s > 0 ? (double)r->read_bytes / spec->read_bytes_per_s : 0);
        r->write_s =
            spec->write_bytes_per_s > 0 ? (double)r->written_bytes / spec->write_bytes_per_s : 0;
        r->worn = spec->endurance_bytes > 0 ? (double)r->written_bytes / spec->endurance_bytes : 0;
    }
    return &tiers->result;
}

bool tierce__tiers_has(const struct tierce__tiers *tiers, size_t tier, uint32_t block)
{
    TIERCE_ASSERT(tier < tiers->opts.tier_count && block < tiers->opts.distinct);
    return has(&tiers->stores[tier], block);
}

uint64_t tierce__tiers_load_ns(struct tierce__tiers *tiers, double share)
{
    return tierce__load_times_at(&tiers->times, share);
}
