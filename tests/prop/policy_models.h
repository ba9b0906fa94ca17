/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_POLICY_MODELS_H
#define TIERCE_TESTS_POLICY_MODELS_H

#include "core/policy/policy.h"
#include "hazard_model.h"

/*
 * Every policy once more, as slow and as plain as can be: arrays, searched and shifted. Pinned
 * entries keep their position and are skipped.
 */

enum { MODEL_SLOTS_MAX = 64, MODEL_GHOSTS_MAX = 256 };

struct model_item {
    bool in, pinned;
    bool used; /* sieve */
    uint64_t key, bytes;
    uint64_t stored_at, used_at; /* numbers of operations */
    uint64_t used_time;          /* as set by the owner */
    uint64_t uses;               /* 1 when stored */
    uint32_t parent;             /* slot, or NO_SLOT */
    uint64_t parent_stored_at;   /* distinguishes the parent from the present owner of its slot */
    uint64_t inner_since;        /* evictable and with children since; 0: it is not */
    struct tierce__policy_origin origin; /* of its insert */
};

/* Slots, oldest first. */
struct model_list {
    uint32_t slots[MODEL_SLOTS_MAX];
    uint32_t count;
};

struct model_ghost {
    uint64_t key, bytes;
    uint32_t list;
};

struct model {
    const struct model_ops *ops;
    uint32_t slots;
    uint64_t capacity, ttl;
    uint64_t clock; /* counts operations */
    uint64_t time;
    struct model_item items[MODEL_SLOTS_MAX];
    struct model_list lists[2];
    struct model_ghost ghosts[MODEL_GHOSTS_MAX]; /* oldest first */
    uint32_t ghost_count;
    uint64_t expected_key;
    bool expects, expects_known, expects_again;
    bool has_evicted;
    uint32_t chosen; /* s3fifo: a victim, asked for and unchanged since */
    double share;    /* arc */
    uint32_t hand;   /* sieve: slot, or NO_SLOT for the oldest */
    struct model_list aside;
    struct hazard_model hazard;
};

struct model_ops {
    const char *name;
    void (*expect)(struct model *m, uint64_t key, uint64_t bytes); /* NULL: nothing */
    void (*insert)(struct model *m, uint32_t slot);                /* "" */
    void (*touch)(struct model *m, uint32_t slot);                 /* "" */
    void (*remove)(struct model *m, uint32_t slot, bool evicted);  /* "" */
    uint32_t (*victim)(struct model *m);
    void (*start)(struct model *m, const struct tierce__policy_opts *opts); /* NULL: nothing */
    void (*stop)(struct model *m);                                          /* "" */
    void (*pin)(struct model *m, uint32_t slot); /* it was pinned or unpinned; "" */
    /* As of tierce__policy_ops; NULL: nothing, or true. */
    void (*request)(struct model *m, const struct tierce__policy_request *request);
    bool (*admits)(struct model *m, const struct tierce__policy_entry *entry);
    void (*skip)(struct model *m, const struct tierce__policy_entry *entry);
};

/* NULL past the end. */
const struct model_ops *model_ops_at(size_t index);

/* After each change of a policy by parent. */
void model_note_inner(struct model *m);

/* The slot that is evictable and has had children for the shortest time, or NO_SLOT. */
uint32_t model_inner(const struct model *m);

/* The slot that has expired first, or NO_SLOT. */
uint32_t model_expired(const struct model *m);

#endif
