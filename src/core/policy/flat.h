/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_FLAT_H
#define TIERCE_POLICY_FLAT_H

#include "base/assert.h"
#include "core/policy/policy.h"

/*
 * A cache whose keys are dense numbers: the owner of a policy as simulators need it. The map from
 * keys to slots is an array, so that the cost of a use is the cost of the policy.
 *
 *     rc = tierce__flat_init(&flat, &(struct tierce__flat_opts){...});
 *     hits = tierce__flat_run(&flat, &(struct tierce__flat_uses){.keys = keys, .count = count,
 * ...}); tierce__flat_fini(&flat);
 *
 * tierce__flat_use is inline, so a policy that offers `run` (policy.h) compiles it with its own
 * operations instead of calls through pointers, which is twice as fast. The meaning is the same.
 *
 * Threads: one at a time.
 */

/* Receives the events of keys, in their order. */
struct tierce__flat_watch {
    void (*stored)(void *arg, uint32_t key);
    void (*left)(void *arg, uint32_t key); /* evicted or expired */
    void *arg;
};

struct tierce__flat {
    struct tierce__policy *policy; /* NULL: everything is kept */
    uint32_t *slot_of;             /* [key_count] of a key; NO_SLOT */
    uint32_t *key_in;   /* [slots] the key of a used slot; the next free slot of a free one */
    uint64_t *bytes_in; /* [slots], only if keys differ in size */
    uint32_t slots;
    uint32_t fresh;     /* slots from here on were never taken */
    uint32_t free_slot; /* a list through key_in; NO_SLOT */
    uint64_t capacity;
    bool evicts_inner;                   /* if there is no victim (tierce__policy_inner) */
    uint64_t now;                        /* of the policy */
    struct tierce__policy_origin origin; /* of the request whose keys are used; `ends`: of last */
    uint32_t last;                       /* its last key */
    uint64_t used, used_max;
    uint64_t stored, refused, evicted, expired; /* keys so far */
    const struct tierce__flat_watch *watch;     /* NULL, or set after init */
};

struct tierce__flat_opts {
    const struct tierce__policy_ops *policy; /* NULL: everything is kept */
    uint32_t key_count;                      /* keys are below; >= 1 */
    uint64_t capacity;                       /* keys, or bytes if `in_bytes`; >= 1 */
    bool in_bytes;
    bool evicts_inner; /* as of struct tierce__flat */
    uint64_t seed, ttl;
    uint32_t samples;
};

/* After -ENOMEM or TIERCE_E_ARGUMENT, fini may still be called; fini accepts a zeroed one. */
TIERCE_MUSTUSE int tierce__flat_init(struct tierce__flat *flat,
                                     const struct tierce__flat_opts *opts);
void tierce__flat_fini(struct tierce__flat *flat);

/* Keys that are used one after the other. */
struct tierce__flat_uses {
    const uint32_t *keys;  /* [count] */
    const uint64_t *bytes; /* [count], or NULL: each is 1 */
    bool *there;           /* [count] out: whether a use found its key; or NULL */
    uint32_t count;
    uint32_t counted; /* hits are counted for this many leading keys */
    bool backwards;   /* from the last to the first */
    bool stores;      /* an absent key is stored */
    bool ticks;       /* the policy's time is the number of uses */
};

/* Returns how many of the counted uses found their key. */
uint32_t tierce__flat_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses);

/* An absent key is used and not stored. */
void tierce__flat_skip(struct tierce__flat *flat, uint32_t key);

/* Evicts expired entries. */
void tierce__flat_expire(struct tierce__flat *flat);

/* ---- on the hot path: `ops` are those of flat->policy, or NULL if there is none -------------- */

#define TIERCE__FLAT_INLINE static inline __attribute__((always_inline))
#define TIERCE__FLAT_AHEAD  4u /* uses ahead of the second announcement */

TIERCE__FLAT_INLINE void tierce__flat_let_go(struct tierce__flat *flat,
                                             const struct tierce__policy_ops *ops, uint32_t slot)
{
    TIERCE_DASSERT(flat->slot_of[flat->key_in[slot]] == slot);
    TIERCE_DASSERT(slot < flat->fresh);
    if (flat->watch != NULL)
        flat->watch->left(flat->watch->arg, flat->key_in[slot]);
    ops->remove(flat->policy, slot, true);
    flat->slot_of[flat->key_in[slot]] = TIERCE__NO_SLOT;
    flat->key_in[slot] = flat->free_slot;
    flat->free_slot = slot;
    TIERCE_DASSERT(flat->used >= (flat->bytes_in != NULL ? flat->bytes_in[slot] : 1));
    flat->used -= flat->bytes_in != NULL ? flat->bytes_in[slot] : 1;
}

/* Evicts until `bytes` fit. False: nothing more can be evicted. */
TIERCE__FLAT_INLINE bool tierce__flat_make_room(struct tierce__flat *flat,
                                                const struct tierce__policy_ops *ops,
                                                uint64_t bytes)
{
    uint32_t slot;
    while (flat->used + bytes > flat->capacity) {
        if (!ops->victim(flat->policy, flat->now, &slot) &&
            !(flat->evicts_inner && tierce__policy_inner(flat->policy, &slot)))
            return false;
        tierce__flat_let_go(flat, ops, slot);
        flat->evicted++;
    }
    return true;
}

TIERCE__FLAT_INLINE struct tierce__policy_entry
tierce__flat_entry(const struct tierce__flat *flat, uint32_t key, uint64_t bytes, uint32_t parent)
{
    struct tierce__policy_entry entry = {
        .key = key, .bytes = bytes, .now = flat->now, .parent = parent, .origin = flat->origin};
    entry.origin.ends = flat->origin.ends && key == flat->last;
    return entry;
}

/* Stores an absent key. False: there is no room for it. */
TIERCE__FLAT_INLINE bool tierce__flat_store(struct tierce__flat *flat,
                                            const struct tierce__policy_ops *ops, uint32_t key,
                                            uint64_t bytes, uint32_t parent)
{
    TIERCE_DASSERT(flat->slot_of[key] == TIERCE__NO_SLOT);
    struct tierce__policy_entry entry = tierce__flat_entry(flat, key, bytes, parent);
    if (ops != NULL) {
        if (ops->expect != NULL)
            ops->expect(flat->policy, &entry);
        bool admits = flat->used + bytes <= flat->capacity || ops->admits == NULL ||
                      ops->admits(flat->policy, &entry);
        if (!admits || bytes > flat->capacity || !tierce__flat_make_room(flat, ops, bytes)) {
            if (ops->skip != NULL)
                ops->skip(flat->policy, &entry);
            flat->refused++;
            return false;
        }
    }
    uint32_t slot = flat->free_slot;
    if (slot != TIERCE__NO_SLOT)
        flat->free_slot = flat->key_in[slot];
    else
        slot = flat->fresh++;
    TIERCE_ASSERT(slot < flat->slots);
    flat->slot_of[key] = slot;
    flat->key_in[slot] = key;
    if (flat->bytes_in != NULL)
        flat->bytes_in[slot] = bytes;
    if (ops != NULL)
        ops->insert(flat->policy, slot, &entry);
    if (flat->watch != NULL)
        flat->watch->stored(flat->watch->arg, key);
    flat->stored++;
    flat->used += bytes;
    flat->used_max = flat->used > flat->used_max ? flat->used : flat->used_max;
    TIERCE_DASSERT(ops == NULL || flat->used <= flat->capacity);
    return true;
}

TIERCE__FLAT_INLINE uint32_t tierce__flat_use(struct tierce__flat *flat,
                                              const struct tierce__policy_ops *ops,
                                              const struct tierce__flat_uses *uses)
{
    const uint32_t *keys = uses->keys, count = uses->count;
    TIERCE_DASSERT(uses->counted <= count);
    uint32_t hits = 0;
    bool tells = ops != NULL && ops->prefetch != NULL;
    for (uint32_t i = 0; tells && i < count; i++)
        ops->prefetch(flat->policy, keys[i], flat->slot_of[keys[i]], false);
    for (uint32_t n = 0; n < count; n++) {
        uint32_t at = uses->backwards ? count - 1 - n : n;
        if (tells && n + TIERCE__FLAT_AHEAD < count) {
            uint32_t soon = keys[uses->backwards ? at - TIERCE__FLAT_AHEAD //
                                                 : at + TIERCE__FLAT_AHEAD];
            ops->prefetch(flat->policy, soon, flat->slot_of[soon], true);
        }
        uint32_t slot = flat->slot_of[keys[at]];
        bool there = slot != TIERCE__NO_SLOT;
        flat->now += uses->ticks;
        hits += there && at < uses->counted;
        if (uses->there != NULL)
            uses->there[at] = there;
        if (there && ops != NULL)
            ops->touch(flat->policy, slot, flat->now);
        else if (!there && uses->stores)
            tierce__flat_store(flat, ops, keys[at], uses->bytes != NULL ? uses->bytes[at] : 1,
                               TIERCE__NO_SLOT);
    }
    TIERCE_DASSERT(hits <= uses->counted);
    return hits;
}

#endif
