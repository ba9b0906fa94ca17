/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_VICTIMS_PRIVATE_H
#define TIERCE_MANAGER_VICTIMS_PRIVATE_H

#include "base/map.h"
#include "core/policy/policy.h"
#include "manager/locate/locator_private.h"
#include "manager/reclaim/victims.h"

/*
 * The parts of a selection of victims.
 *
 *     victims.c    the sample, the order, the removal
 *     families.c   which blocks of a hybrid model can still be used, and how much they are worth
 */

/* An instance that the limit concerns. */
struct tierce__member {
    struct tierce__live *live; /* held */
    const struct tierce__group *group;
    uint64_t keys;
    uint32_t family; /* an index, or TIERCE__NUMBER_NONE: its blocks have no pairs */
    bool trusts_closed;
};

/* Blocks of a lower value are evicted first. */
enum tierce__value {
    TIERCE__VALUE_NONE, /* no lookup can use it */
    /* Used only by a prompt that diverges where no stored prompt has diverged; such prompts are
     * rare. */
    TIERCE__VALUE_INSIDE,
    TIERCE__VALUE_FULL,
};

/* A candidate, as it was when it was sampled. */
struct tierce__candidate {
    struct tierce__policy_rank rank;
    const struct tierce__record *record;
    int64_t key;
    uint64_t bytes; /* bytes that the need concerns */
    uint64_t loss;  /* among equal values, what its eviction costs: tokens times reads */
    enum tierce__value value;
    uint32_t member;
    uint32_t parent;    /* its index among the candidates, or NONE; of a sparse kind NONE */
    uint32_t followers; /* remaining blocks that follow it: it is evicted after them */
    uint32_t at;        /* its place in the heap + 1; 0: it is not there */
    bool is_whole;      /* all its locations are evicted */
    bool is_leaf_only;  /* it stays as long as a block follows it, whatever the need */
    bool is_held;       /* a block that follows it was used again, and stays */
    bool is_chosen;
    bool is_over;    /* by its client's hint it is not used again */
    bool climbs;     /* the blocks before it are candidates, too */
    bool is_counted; /* it is a leaf of the sample with a value: it counts for a slice */
    bool is_broken;  /* at its end, another group of the family cannot be restored */
};

/* A binary heap of evictable candidates; the next victim is on top. */
struct tierce__victims_heap {
    struct tierce__candidate **items;
    size_t count;
};

/* An instance of a family, whether the limit concerns it or not. */
struct tierce__kin {
    struct tierce__live *live; /* held */
    uint32_t member;           /* an index, or NONE */
    bool is_required;          /* a hit needs its blocks */
};

struct tierce__family {
    size_t first, count; /* among all kin */
    size_t tree;         /* the kin whose blocks are the tree of prompts: full attention */
    struct tierce__stops stops;
};

struct tierce__families {
    struct tierce__kin *kin; /* by group and family */
    size_t kin_count, kin_room;
    struct tierce__family *list;
    size_t count, room;
    uint32_t most; /* members of a family, at most */
};

struct tierce__taking {
    const struct tierce__victims_opts *opts;
    struct tierce__victims_stats *stats;
    struct tierce__member *members;
    size_t member_count, member_room;
    uint64_t keys; /* keys of all members */
    uint64_t bytes_left, keys_left;
    int64_t now_us;
    struct tierce__arena arena; /* of one pass */
    struct tierce__candidate *candidates;
    size_t count, room;
    struct tierce__numbers table; /* candidates by member and key */
    struct tierce__families families;
    bool is_exact; /* every key was sampled */
    int leafless;  /* consecutive passes whose sample had nothing to evict */
};

/* ---- victims.c ------------------------------------------------------------------------------- */

/* The index of a candidate, or NONE. */
uint32_t tierce__victims_find(const struct tierce__taking *t, uint32_t member, int64_t key);

/* Adds a block that the need concerns, unless it is there or there is no room. [borrow] the record
 * for the pass. */
void tierce__victims_add(struct tierce__taking *t, uint32_t member, int64_t key,
                         const struct tierce__record *record);

/* Lowers the value of a candidate, and moves it in the heap if it is there. */
void tierce__victims_lower(struct tierce__victims_heap *heap, struct tierce__candidate *c,
                           enum tierce__value value);

/* ---- families.c ------------------------------------------------------------------------------ */

/* Finds the families of the members. If memory runs out, there are none in this round. */
void tierce__families_find(struct tierce__taking *t);
void tierce__families_fini(struct tierce__families *families);

/*
 * Sets the value and the loss of the candidates from `from` on, and adds the blocks with equal keys
 * of other instances of the family. Costs for each block: a read in each instance of the family,
 * for a window one for each block of the window. Errors: -ENOMEM; blocks that cannot be read keep
 * their values.
 */
TIERCE_MUSTUSE int tierce__families_judge(struct tierce__taking *t, size_t from);

/* A candidate was chosen: blocks that can only be used together with it lose their value. */
void tierce__families_lose(struct tierce__taking *t, struct tierce__victims_heap *heap,
                           const struct tierce__candidate *chosen);

#endif
