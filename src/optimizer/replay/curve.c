/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/curve.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

#define GROUP_SLOTS 512u /* one cache line of bits */
#define GROUP_WORDS (GROUP_SLOTS / 64)
#define SLOTS_LEAST (1u << 16)
#define NEVER       UINT32_MAX
#define AHEAD       8u /* slots that are prefetched */

struct tierce__curve {
    enum tierce__touch_order order;
    size_t match_count;
    struct tierce__match matches[TIERCE__CURVE_MATCHES_MAX];
    uint64_t *histograms[TIERCE__CURVE_MATCHES_MAX];           /* [block_room + 1] each */
    struct tierce__curve_sum *sums[TIERCE__CURVE_MATCHES_MAX]; /* the same, or NULL */
    uint32_t block_tokens;                                     /* 0: tokens are not summed */
    tierce__curve_costs_fn *watch;                             /* or NULL */
    void *watch_arg;

    uint32_t *last; /* [block_room] a block's slot; NEVER */
    uint32_t block_room;
    uint32_t block_count; /* that have a slot */

    uint64_t *bits; /* [slot_room / 64] the slots that some block holds */
    uint32_t *tree; /* [slot_room / 512 + 1] Fenwick tree over full groups' counts */
    uint32_t slot_room;
    uint32_t next;   /* the next slot */
    uint32_t newest; /* count of the group that holds `next`, not in the tree yet */

    uint32_t *depth, *cost; /* [request_room] */
    uint32_t request_room;
};

/* ---- the line of slots ----------------------------------------------------------------------- */

static void tree_add(struct tierce__curve *c, uint32_t group, uint32_t amount)
{
    uint32_t groups = c->slot_room / GROUP_SLOTS;
    TIERCE_DASSERT(group < groups);
    for (uint32_t i = group + 1; i <= groups; i += i & -i)
        c->tree[i] += amount; /* may wrap: -1 is added as UINT32_MAX */
}

static uint32_t tree_before(const struct tierce__curve *c, uint32_t group)
{
    TIERCE_DASSERT(group <= c->slot_room / GROUP_SLOTS);
    uint32_t sum = 0;
    for (uint32_t i = group; i > 0; i -= i & -i)
        sum += c->tree[i];
    return sum;
}

/* Held slots that are not behind `slot`, itself included. */
static uint32_t held_up_to(const struct tierce__curve *c, uint32_t slot)
{
    TIERCE_DASSERT(slot < c->slot_room);
    uint32_t group = slot / GROUP_SLOTS, in_group = slot % GROUP_SLOTS;
    const uint64_t *words = c->bits + (size_t)group * GROUP_WORDS;
    uint32_t sum = tree_before(c, group);
    for (uint32_t i = 0; i < in_group / 64; i++)
        sum += (uint32_t)__builtin_popcountll(words[i]);
    return sum + (uint32_t)__builtin_popcountll(words[in_group / 64] << (63 - in_group % 64));
}

/* 1 for the block used last. */
static uint32_t position(const struct tierce__curve *c, uint32_t block)
{
    TIERCE_DASSERT(block < c->block_room);
    uint32_t slot = c->last[block];
    return slot == NEVER ? NEVER : c->block_count - held_up_to(c, slot) + 1;
}

static void take_slot(struct tierce__curve *c, uint32_t block)
{
    TIERCE_DASSERT(block < c->block_room);
    TIERCE_DASSERT(c->next < c->slot_room);
    TIERCE_DASSERT((c->bits[c->next / 64] >> (c->next % 64) & 1) == 0);
    c->last[block] = c->next;
    c->bits[c->next / 64] |= UINT64_C(1) << (c->next % 64);
    c->newest++;
    c->next++;
    if (c->next % GROUP_SLOTS == 0) {
        tree_add(c, c->next / GROUP_SLOTS - 1, c->newest);
        c->newest = 0;
    }
}

static void leave_slot(struct tierce__curve *c, uint32_t slot)
{
    TIERCE_DASSERT(slot < c->next);
    TIERCE_DASSERT((c->bits[slot / 64] >> (slot % 64) & 1) != 0);
    c->bits[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    if (slot / GROUP_SLOTS == c->next / GROUP_SLOTS)
        c->newest--;
    else
        tree_add(c, slot / GROUP_SLOTS, UINT32_MAX);
}

/* Compacts the line: the blocks keep their order and get the first slots. */
static void close_up(struct tierce__curve *c)
{
    TIERCE_DASSERT(c->block_count <= c->slot_room);
    for (uint32_t b = 0; b < c->block_room; b++) {
        if (c->last[b] != NEVER)
            c->last[b] = held_up_to(c, c->last[b]) - 1;
    }
    memset(c->bits, 0, c->slot_room / 8);
    memset(c->tree, 0, (c->slot_room / GROUP_SLOTS + 1) * sizeof(c->tree[0]));
    for (uint32_t i = 0; i < c->block_count / 64; i++)
        c->bits[i] = UINT64_MAX;
    if (c->block_count % 64 != 0)
        c->bits[c->block_count / 64] = (UINT64_C(1) << (c->block_count % 64)) - 1;
    for (uint32_t g = 0; g < c->block_count / GROUP_SLOTS; g++)
        tree_add(c, g, GROUP_SLOTS);
    c->next = c->block_count;
    c->newest = c->block_count % GROUP_SLOTS;
    TIERCE_DASSERT(c->next == 0 || held_up_to(c, c->next - 1) == c->block_count);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Extends the arrays by capacity from `had` to `room`, with zeros. */
static int grow_capacities(void **array, size_t size, size_t had, size_t room)
{
    TIERCE_DASSERT(had <= room);
    uint8_t *longer = tierce__realloc(*array, room * size);
    if (longer == NULL)
        return -ENOMEM;
    memset(longer + had * size, 0, (room - had) * size);
    *array = longer;
    return 0;
}

static int grow_match(struct tierce__curve *c, size_t match, size_t room)
{
    size_t had = c->block_room == 0 ? 0 : (size_t)c->block_room + 1;
    void *histogram = c->histograms[match], *sums = c->sums[match];
    int rc = grow_capacities(&histogram, sizeof(*c->histograms[0]), had, room);
    c->histograms[match] = histogram;
    if (rc == 0 && c->block_tokens > 0)
        rc = grow_capacities(&sums, sizeof(*c->sums[0]), had, room);
    c->sums[match] = sums;
    return rc;
}

static int grow_blocks(struct tierce__curve *c, uint32_t block)
{
    uint64_t room = c->block_room == 0 ? 1024 : c->block_room;
    while (room <= block)
        room *= 2;
    room = room < NEVER - 1 ? room : NEVER - 1;
    uint32_t *last = tierce__realloc(c->last, (size_t)room * sizeof(*last));
    if (last == NULL)
        return -ENOMEM;
    c->last = last;
    for (size_t i = 0; i < c->match_count; i++) {
        int rc = grow_match(c, i, (size_t)room + 1);
        if (rc < 0)
            return rc;
    }
    memset(last + c->block_room, 0xff, ((size_t)room - c->block_room) * sizeof(*last));
    c->block_room = (uint32_t)room;
    TIERCE_ASSERT(block < c->block_room);
    return 0;
}

/* Makes room for `count` touches: compacts the line, and extends it if most of its slots are
 * held. */
static int make_slots(struct tierce__curve *c, uint32_t count)
{
    uint64_t wanted = 2 * ((uint64_t)c->block_count + count);
    close_up(c);
    if (wanted <= c->slot_room)
        return 0;
    uint64_t room = c->slot_room;
    while (room < wanted)
        room *= 2;
    if (room > UINT32_MAX)
        return TIERCE_E_LIMIT;
    uint64_t *bits = tierce__realloc(c->bits, room / 8);
    if (bits == NULL)
        return -ENOMEM;
    c->bits = bits;
    memset((uint8_t *)bits + c->slot_room / 8, 0, (room - c->slot_room) / 8);
    size_t tree_bytes = (room / GROUP_SLOTS + 1) * sizeof(c->tree[0]);
    uint32_t *tree = tierce__realloc(c->tree, tree_bytes);
    if (tree == NULL)
        return -ENOMEM;
    c->tree = tree;
    c->slot_room = (uint32_t)room;
    close_up(c); /* makes the longer tree */
    TIERCE_ASSERT(wanted <= c->slot_room);
    return 0;
}

static int grow_request(struct tierce__curve *c, uint32_t count)
{
    TIERCE_ASSERT(count > c->request_room);
    uint32_t depth_room = c->request_room; /* of both arrays, once both have grown */
    int rc = TIERCE__GROW(c->depth, depth_room, count, 1024);
    return rc < 0 ? rc : TIERCE__GROW(c->cost, c->request_room, count, 1024);
}

static int make_room(struct tierce__curve *c, const uint32_t *blocks, uint32_t count)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < count; i++)
        largest = blocks[i] > largest ? blocks[i] : largest;
    int rc = count > c->request_room ? grow_request(c, count) : 0;
    if (rc == 0 && count > 0 && largest >= c->block_room)
        rc = largest < NEVER - 1 ? grow_blocks(c, largest) : TIERCE_E_LIMIT;
    if (rc == 0 && c->slot_room - c->next < count)
        rc = make_slots(c, count);
    TIERCE_ASSERT(rc != 0 || c->slot_room - c->next >= count);
    return rc;
}

/* ---- a request ------------------------------------------------------------------------------- */

/* Each block adds its tokens at the capacity at which it begins to hit. Costs do not decrease along
 * the prefix, so the sum at any capacity covers a whole leading part. */
static void sum_tokens(struct tierce__curve *c, size_t match, uint32_t count, uint64_t input_tokens)
{
    struct tierce__curve_sum *sums = c->sums[match];
    uint64_t most = input_tokens != 0 ? input_tokens : (uint64_t)count * c->block_tokens;
    double before = 0;
    for (uint32_t i = 0; i < count && c->cost[i] != NEVER; i++) {
        uint64_t whole = ((uint64_t)i + 1) * c->block_tokens;
        TIERCE_DASSERT(c->cost[i] <= c->block_room);
        TIERCE_DASSERT(i == 0 || c->cost[i] >= c->cost[i - 1]);
        double tokens = (double)(whole < most ? whole : most);
        sums[c->cost[i]].tokens += tokens - before;
        sums[c->cost[i]].squares += tokens * tokens - before * before;
        before = tokens;
    }
}

static void look_up(struct tierce__curve *c, const uint32_t *blocks, uint32_t count,
                    uint64_t input_tokens)
{
    TIERCE_DASSERT(count <= c->request_room);
    for (uint32_t i = 0; i < count; i++) {
        if (i + AHEAD < count && c->last[blocks[i + AHEAD]] != NEVER)
            __builtin_prefetch(c->bits + c->last[blocks[i + AHEAD]] / 64);
        c->depth[i] = position(c, blocks[i]);
    }
    for (size_t m = 0; m < c->match_count; m++) {
        if (c->matches[m].kind == TIERCE__MATCH_STREAM)
            continue;
        tierce__match_costs(&c->matches[m], c->depth, count, c->cost);
        for (uint32_t i = 0; i < count; i++) {
            if (c->cost[i] != NEVER)
                c->histograms[m][c->cost[i]]++;
        }
        if (c->block_tokens > 0 && tierce__match_is_leading(&c->matches[m]))
            sum_tokens(c, m, count, input_tokens);
        if (c->watch != NULL)
            c->watch(c->watch_arg, m, c->cost, count);
    }
}

static void touch(struct tierce__curve *c, uint32_t block, bool is_read)
{
    for (size_t m = 0; is_read && m < c->match_count; m++) {
        if (c->matches[m].kind != TIERCE__MATCH_STREAM)
            continue;
        uint32_t depth = position(c, block);
        if (depth != NEVER)
            c->histograms[m][depth]++;
    }
    if (c->last[block] != NEVER)
        leave_slot(c, c->last[block]);
    else
        c->block_count++;
    TIERCE_DASSERT(c->block_count <= c->block_room);
    take_slot(c, block);
}

int tierce__curve_request_tokens(struct tierce__curve *curve, const uint32_t *blocks,
                                 uint32_t count, uint32_t read_count, uint64_t input_tokens)
{
    TIERCE_ASSERT(read_count <= count);
    int rc = make_room(curve, blocks, count);
    if (rc < 0)
        return rc;
    look_up(curve, blocks, read_count, input_tokens);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = curve->order == TIERCE__TOUCH_REV ? count - 1 - i : i;
        touch(curve, blocks[at], at < read_count);
    }
    return 0;
}

int tierce__curve_request(struct tierce__curve *curve, const uint32_t *blocks, uint32_t count,
                          uint32_t read_count)
{
    return tierce__curve_request_tokens(curve, blocks, count, read_count, 0);
}

/* ---- create, destroy, read ------------------------------------------------------------------- */

int tierce__curve_create(struct tierce__curve **out, enum tierce__touch_order order,
                         const struct tierce__match *matches, size_t match_count)
{
    if (match_count == 0 || match_count > TIERCE__CURVE_MATCHES_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__curve *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->order = order;
    c->match_count = match_count;
    memcpy(c->matches, matches, match_count * sizeof(*matches));
    c->slot_room = SLOTS_LEAST;
    c->bits = tierce__calloc(SLOTS_LEAST / 64, sizeof(c->bits[0]));
    c->tree = tierce__calloc(SLOTS_LEAST / GROUP_SLOTS + 1, sizeof(c->tree[0]));
    if (c->bits == NULL || c->tree == NULL || grow_blocks(c, 0) < 0) {
        tierce__curve_destroy(c);
        return -ENOMEM;
    }
    *out = c;
    return 0;
}

int tierce__curve_sum_tokens(struct tierce__curve *curve, uint32_t block_tokens)
{
    TIERCE_ASSERT(block_tokens > 0 && curve->next == 0);
    curve->block_tokens = block_tokens;
    for (size_t i = 0; i < curve->match_count; i++) {
        curve->sums[i] = tierce__calloc((size_t)curve->block_room + 1, sizeof(*curve->sums[i]));
        if (curve->sums[i] == NULL)
            return -ENOMEM;
    }
    return 0;
}

void tierce__curve_watch(struct tierce__curve *curve, tierce__curve_costs_fn *fn, void *arg)
{
    curve->watch = fn;
    curve->watch_arg = arg;
}

void tierce__curve_destroy(struct tierce__curve *curve)
{
    if (curve == NULL)
        return;
    for (size_t i = 0; i < curve->match_count; i++) {
        tierce__free(curve->histograms[i]);
        tierce__free(curve->sums[i]);
    }
    tierce__free(curve->last);
    tierce__free(curve->bits);
    tierce__free(curve->tree);
    tierce__free(curve->depth);
    tierce__free(curve->cost);
    tierce__free(curve);
}

const uint64_t *tierce__curve_histogram(const struct tierce__curve *curve, size_t match,
                                        uint32_t *length)
{
    TIERCE_ASSERT(match < curve->match_count);
    *length = curve->block_count + 1;
    return curve->histograms[match];
}

const struct tierce__curve_sum *tierce__curve_sums(const struct tierce__curve *curve, size_t match)
{
    TIERCE_ASSERT(match < curve->match_count && curve->block_tokens > 0);
    return curve->sums[match];
}

uint64_t tierce__curve_hits(const struct tierce__curve *curve, size_t match, uint64_t capacity)
{
    uint32_t length;
    const uint64_t *histogram = tierce__curve_histogram(curve, match, &length);
    uint64_t hits = 0;
    for (uint32_t i = 0; i < length && i <= capacity; i++)
        hits += histogram[i];
    return hits;
}

uint32_t tierce__curve_blocks(const struct tierce__curve *curve)
{
    return curve->block_count;
}
