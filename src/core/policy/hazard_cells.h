/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_HAZARD_CELLS_H
#define TIERCE_POLICY_HAZARD_CELLS_H

#include "base/assert.h"
#include "core/policy/hazard_ghosts.h"
#include "core/policy/hazard_index.h"
#include "core/policy/policy.h"
#include "core/policy/ring.h"

/*
 * The state of the policy `hazard`, and the cells of its leaves: for hazard.c alone, which explains
 * them and includes this file so that the functions are compiled as a part of it.
 */

#define CLASSES TIERCE__HAZARD_CLASSES
#define BUCKETS TIERCE__HAZARD_BUCKETS
#define CELLS   TIERCE__HAZARD_CELLS

enum {
    TICKS = 128, /* per capacity */
    SPAN = 32,
    NEAR_SPANS = 8,
    NEAR = NEAR_SPANS * SPAN, /* ticks */
    NEAR_BUCKETS = 14,
    FAR = 512, /* spans */
    SAMPLE = 8,
    LISTS = (NEAR + FAR + 1) * CLASSES,
    OLDEST = (NEAR + FAR) * CLASSES, /* the first list of entries older than FAR */
    INNER = LISTS,                   /* evictable entries that are no leaves, in no cell */
    UNIT_MIN = 16,                   /* uses: bounds the ticks per use */
    GHOSTS_PER_ENTRY = 4,
    GHOSTS_MAX = 1 << 30,
    USES_PER_REFRESH = 512, /* at least */
    TICKS_PER_REFRESH = 2,  /* at least */
    CELL_WORDS = (CELLS + 63) / 64,
    LIST_WORDS = (NEAR + FAR) / 64,
};

/* The first ages of the buckets, a factor of the square root of 2 apart: in ticks for the
 * NEAR_BUCKETS, in spans for the others. */
static const uint32_t starts[BUCKETS] = {0,  3,  4,  5,   7,   10,  14,  20,  29,
                                         41, 58, 82, 116, 164, 8,   11,  16,  23,
                                         32, 45, 64, 91,  128, 181, 256, 362, 480};

/* Data about an entry, also of a ghost. */
struct hazard_past {
    uint32_t tick;     /* of the last use, modulo 2^32 */
    uint8_t klass;     /* 0 .. CLASSES - 1 */
    uint8_t frequency; /* uses after the first one, at most FREQUENCY_MAX */
    uint8_t flags;     /* IS_*, of an entry */
};

#define FREQUENCY_MAX 4u

/* The layout of a ghost's data: from the lowest bit. */
enum { GHOST_IS = 1, GHOST_FREQUENCY = 1, GHOST_CLASS = 4, GHOST_TICK = 10 };
#define GHOST_TICKS (1u << (32 - GHOST_TICK))

_Static_assert(TIERCE__HAZARD_HINTS == TIERCE__HINTS - 1, "a part of the class for each hint");
_Static_assert(CLASSES == 1 << (GHOST_TICK - GHOST_CLASS), "the class of a ghost has its bits");

enum { IS_IN = 1, IS_PINNED = 2, IS_LISTED = 4, IS_SAMPLED = 8, IS_INNER = 16 };

/* As much as a use of a leaf needs: 16 bytes. */
struct hazard_node {
    struct hazard_past past;
    struct tierce__ring_link link; /* in its list, if IS_LISTED or IS_INNER */
};

/* The part of a class that a request knows. */
struct hazard_use {
    uint32_t part; /* its hint, or else the size of its output */
    bool ends;     /* a use of its last entry */
    bool is_new;   /* a first use, of an entry that was in before */
};

struct hazard_entry {
    uint64_t key;
    uint32_t parent, parent_life; /* as in leaf_lru.c */
    uint32_t life, children;
};

struct hazard {
    struct tierce__policy base;
    uint32_t magic;
    uint32_t slot_count, count;
    bool adapts;    /* capacities are counted in bytes: the unit is the number of entries */
    uint64_t unit;  /* uses in a capacity */
    uint64_t phase; /* uses * TICKS since the last tick */
    uint32_t tick;
    uint64_t unfaded;  /* uses since the last refresh */
    uint32_t use_tick; /* when the present request began; `tick` is when it ends */
    uint32_t left;     /* its uses that are still to come */
    uint64_t last_key;
    struct hazard_use use; /* its uses; `ends`: of last_key */
    struct tierce__policy_hints hints;
    struct hazard_node *nodes;    /* [slot_count] */
    struct hazard_entry *entries; /* [slot_count] */
    struct tierce__hazard_ghosts ghosts;
    struct tierce__hazard_index index;
    uint64_t occupied[CELL_WORDS];                /* by rank: cells with lists */
    uint32_t cells[CELLS];                        /* lists that are not empty */
    uint64_t list_bits[CLASSES][LIST_WORDS];      /* near, then far lists that are not empty */
    uint32_t lists[LISTS + 1];                    /* the oldest slot, or NO_SLOT */
    uint32_t near_counts[NEAR][CLASSES];          /* entries and ghosts last used at a tick */
    uint64_t near_classes[NEAR];                  /* a bit for each class used at the tick */
    uint32_t far_counts[FAR][CLASSES];            /* of the sample, last used in a span */
    uint8_t near_buckets[NEAR], far_buckets[FAR]; /* of an age in ticks, in spans */
};

/* ---- ages ------------------------------------------------------------------------------------ */

static inline uint32_t span_of(uint32_t tick)
{
    return tick / SPAN;
}

/* Spans from one tick to a later one. Ticks wrap around at a multiple of SPAN. */
static inline uint32_t spans_between(uint32_t from, uint32_t to)
{
    return (span_of(to) - span_of(from)) & (UINT32_MAX / SPAN);
}

static inline uint32_t span_age(const struct hazard *h, uint32_t tick)
{
    return spans_between(tick, h->tick);
}

static inline bool is_near(const struct hazard *h, uint32_t tick)
{
    return span_age(h, tick) < NEAR_SPANS;
}

/* The bucket of an entry at tick `at` that was used at `tick`. */
static inline uint32_t bucket_at(const struct hazard *h, uint32_t at, uint32_t tick)
{
    uint32_t spans = spans_between(tick, at);
    if (spans < NEAR_SPANS)
        return h->near_buckets[at - tick];
    return spans < FAR ? h->far_buckets[spans] : BUCKETS - 1;
}

static inline uint32_t bucket_of(const struct hazard *h, uint32_t tick)
{
    return bucket_at(h, h->tick, tick);
}

static inline uint32_t list_of(const struct hazard *h, const struct hazard_past *past)
{
    uint32_t spans = span_age(h, past->tick), row = NEAR + FAR;
    if (spans < NEAR_SPANS)
        row = past->tick % NEAR;
    else if (spans < FAR)
        row = NEAR + span_of(past->tick) % FAR;
    return row * CLASSES + past->klass;
}

static inline void fill_buckets(struct hazard *h)
{
    for (uint32_t age = 0, b = 0; age < NEAR; age++) {
        while (b + 1 < NEAR_BUCKETS && age >= starts[b + 1])
            b++;
        h->near_buckets[age] = (uint8_t)b;
    }
    for (uint32_t age = 0, b = NEAR_BUCKETS; age < FAR; age++) {
        while (b + 1 < BUCKETS && age >= starts[b + 1])
            b++;
        h->far_buckets[age] = (uint8_t)b;
    }
}

/* ---- lists and cells ------------------------------------------------------------------------- */

static inline void add_list(struct hazard *h, uint32_t cell)
{
    uint32_t rank = h->index.ranks[cell];
    h->cells[cell]++;
    h->occupied[rank / 64] |= 1ULL << (rank % 64);
}

static inline void drop_list(struct hazard *h, uint32_t cell)
{
    uint32_t rank = h->index.ranks[cell];
    TIERCE_DASSERT(h->cells[cell] > 0);
    if (--h->cells[cell] == 0)
        h->occupied[rank / 64] &= ~(1ULL << (rank % 64));
}

/* Lists of the row OLDEST have no bit: there is only one for each class. */
static inline void flip_list_bit(struct hazard *h, uint32_t list)
{
    if (list < OLDEST)
        h->list_bits[list % CLASSES][list / CLASSES / 64] ^= 1ULL << (list / CLASSES % 64);
}

static inline struct tierce__ring_links links_of(const struct hazard *h)
{
    return (struct tierce__ring_links){&h->nodes[0].link, sizeof(h->nodes[0])};
}

/* Puts a slot at the end of its list: the older one is the next victim. */
static inline void link_slot(struct hazard *h, uint32_t slot, bool older)
{
    struct hazard_past *past = &h->nodes[slot].past;
    uint32_t list = list_of(h, past);
    TIERCE_DASSERT((past->flags & (IS_LISTED | IS_INNER)) == 0);
    past->flags |= IS_LISTED;
    if (!tierce__ring_add(links_of(h), &h->lists[list], slot, older))
        return;
    flip_list_bit(h, list);
    add_list(h, past->klass * BUCKETS + bucket_of(h, past->tick));
}

static inline void unlink_slot(struct hazard *h, uint32_t slot)
{
    struct hazard_past *past = &h->nodes[slot].past;
    uint32_t list = list_of(h, past);
    TIERCE_DASSERT((past->flags & IS_LISTED) != 0);
    past->flags &= (uint8_t)~IS_LISTED;
    if (!tierce__ring_remove(links_of(h), &h->lists[list], slot))
        return;
    flip_list_bit(h, list);
    drop_list(h, past->klass * BUCKETS + bucket_of(h, past->tick));
}

/* Appends a list that is not empty to an older list, and moves it from cell to cell. */
static inline void append_list(struct hazard *h, uint32_t from, uint32_t to, uint32_t from_cell,
                               uint32_t to_cell)
{
    struct hazard_node *nodes = h->nodes;
    uint32_t first = h->lists[from], target = h->lists[to];
    TIERCE_DASSERT(first != TIERCE__NO_SLOT && from % CLASSES == to % CLASSES);
    h->lists[from] = TIERCE__NO_SLOT;
    flip_list_bit(h, from);
    drop_list(h, from_cell);
    if (target == TIERCE__NO_SLOT) {
        h->lists[to] = first;
        flip_list_bit(h, to);
        add_list(h, to_cell);
        return;
    }
    uint32_t last = nodes[first].link.older, target_last = nodes[target].link.older;
    nodes[target_last].link.newer = first;
    nodes[first].link.older = target_last;
    nodes[last].link.newer = target;
    nodes[target].link.older = last;
}

/* Takes a slot out of the list that it is in, if any. */
static inline void unlist(struct hazard *h, uint32_t slot)
{
    struct hazard_past *past = &h->nodes[slot].past;
    if ((past->flags & IS_LISTED) != 0)
        unlink_slot(h, slot);
    else if ((past->flags & IS_INNER) != 0)
        (void)tierce__ring_remove(links_of(h), &h->lists[INNER], slot);
    past->flags &= (uint8_t)~IS_INNER;
}

/* After a change of its pin or its children. `older`: as of link_slot. */
static inline void update_listed(struct hazard *h, uint32_t slot, bool older)
{
    struct hazard_past *past = &h->nodes[slot].past;
    uint8_t is = past->flags & (IS_LISTED | IS_INNER), should = 0;
    if ((past->flags & IS_PINNED) == 0)
        should = h->entries[slot].children == 0 ? IS_LISTED : IS_INNER;
    if (is == should)
        return;
    unlist(h, slot);
    if (should == IS_LISTED)
        link_slot(h, slot, older);
    if (should != IS_INNER)
        return;
    past->flags |= IS_INNER;
    (void)tierce__ring_add(links_of(h), &h->lists[INNER], slot, false);
}

#endif
