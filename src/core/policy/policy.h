/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_H
#define TIERCE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Eviction policies. The memory tier, the disk tier, a reclaimer and a simulator use one interface,
 * so the simulated policy is the one that runs.
 *
 * The owner numbers its entries with dense slots below slot_count and keeps the map from keys to
 * slots; the policy keeps order among the slots. A policy does no I/O, reads no clock (time is
 * passed in), holds no hidden randomness (a seed is passed in) and allocates only in create, so
 * that no call below can fail. Single owner: one thread at a time.
 *
 *     tierce__policy_expect(policy, &entry);     // if the owner knows the entry that needs room
 *     while (too_full && policy->ops->victim(policy, now, &slot))
 *         evict(slot);                           // calls ops->remove(policy, slot, true)
 *     policy->ops->insert(policy, slot, &entry);
 *     policy->ops->touch(policy, slot, now);
 *
 * After a request, its chunks are touched in reverse order, so that a prefix is newer than its
 * suffix; that is the owner's duty, not the policy's. A request is one use of a chunk: an insert or
 * a touch. Further touches of the same request, which only restore the order, are not passed to a
 * policy that counts uses (tierce__policy_hears).
 */

#define TIERCE__NO_SLOT          UINT32_MAX
#define TIERCE__POLICY_SLOTS_MAX (UINT32_MAX - 8) /* lists have heads */

/* A client's statement about the next use of a request's entries. A policy learns whether
 * statements of a kind come true. */
enum tierce__policy_hint {
    TIERCE__HINT_NONE,
    TIERCE__HINT_CLOSED, /* none: the session has ended */
    TIERCE__HINT_OPEN,   /* the session goes on */
    TIERCE__HINT_SOON,   /* it goes on within TIERCE__HINT_SOON_S */
    TIERCE__HINT_LATER,  /* it goes on after that */
    TIERCE__HINT_TTL,    /* if any, within a time to live */
    TIERCE__HINTS,
};

#define TIERCE__HINT_SOON_S 60u

/* As metrics have it: "closed", ... */
const char *tierce__policy_hint_name(enum tierce__policy_hint hint);

/* The owner's knowledge of the request that uses an entry; zeroed: none. */
struct tierce__policy_origin {
    uint64_t output_tokens; /* 0: unknown */
    bool ends;              /* the entry is the last of the request */
    bool is_new;            /* of a touch: the entry's content is new, so nothing was used again */
    uint8_t hint;           /* enum tierce__policy_hint */
};

/* Uses with a hint of a kind, and those of these entries that were used again, as far as the policy
 * remembers them. */
struct tierce__policy_hints {
    uint64_t used[TIERCE__HINTS], returned[TIERCE__HINTS];
};

struct tierce__policy_entry {
    uint64_t key; /* identity for ghost lists; a spread of the real key */
    uint64_t bytes;
    uint64_t now;                        /* time in any unit that does not decrease */
    uint32_t parent;                     /* slot of the entry whose suffix this is, or NO_SLOT */
    struct tierce__policy_origin origin; /* of a use outside of tierce__policy_begin */
};

/* A request, or a part of it: the uses that follow, of `count` different keys. */
struct tierce__policy_request {
    uint32_t count;
    uint64_t last_key; /* of the entry that `origin.ends` is about */
    struct tierce__policy_origin origin;
};

/* The history of an entry in its record, for owners that keep records but no order (a reclaimer
 * that ranks a sample). */
struct tierce__policy_history {
    uint64_t stored, used; /* times of the store and of the last use, in the unit of `now` */
    uint64_t uses;         /* since it was stored */
    bool has_children;     /* another entry has this entry as its parent */
};

/* Entries with the lowest worth are evicted first; among equals, those with the lowest time. */
struct tierce__policy_rank {
    double worth;
    uint64_t time;
};

struct tierce__policy;
struct tierce__flat;
struct tierce__flat_uses;

struct tierce__policy_opts {
    size_t size;         /* sizeof(struct tierce__policy_opts) */
    uint32_t slot_count; /* slots run from 0 to slot_count - 1; 1 .. TIERCE__POLICY_SLOTS_MAX */
    uint64_t capacity;   /* the owner's capacity, in the unit of `bytes`; for policies that split it
                            (0: not bounded) */
    uint64_t seed;       /* for policies that draw */
    uint64_t ttl;        /* for policies that expire, in the unit of `now`; 0 for never */
    uint32_t samples;    /* for policies that draw a sample: its size; 0 for 16 */
    uint32_t key_count;  /* all keys are below this number, so that per-key data is found without a
                            search; 0: any keys */
    const struct tierce__policy_ops *ops; /* whose create is called; required for plug-ins only */
};

struct tierce__policy_ops {
    const char *name;
    const char *summary; /* one line for help and docs */
    bool by_parent;      /* uses parents: a victim is never the parent of an entry */
    bool counts_uses;    /* the number of touches matters: an extra touch changes the victim */
    TIERCE_MUSTUSE int (*create)(struct tierce__policy **out,
                                 const struct tierce__policy_opts *opts); /* -ENOMEM, E_ARGUMENT */
    void (*destroy)(struct tierce__policy *policy);
    /* Optional, tierce__policy_expect: the next insert, if any, will be of this entry; evictions in
     * between make room for it. Policies that remember keys use it to choose. */
    void (*expect)(struct tierce__policy *policy, const struct tierce__policy_entry *entry);
    /* Optional, tierce__policy_begin: uses at one time. They are the touches, inserts and skips up
     * to the next call, or up to the request's count. Each use outside of a request is a request of
     * one use, with the origin of its entry. */
    void (*request)(struct tierce__policy *policy, const struct tierce__policy_request *request);
    /* Optional, tierce__policy_admits: whether an entry, or the last one of its request, is worth
     * at least as much as the next victim. Otherwise the owner should not evict for it, and not
     * store it, nor the entries after it. Changes nothing. */
    bool (*admits)(struct tierce__policy *policy, const struct tierce__policy_entry *entry);
    /* Optional, tierce__policy_skip: a use of an entry that is not in and is not stored. A policy
     * that remembers evicted keys remembers this one too. */
    void (*skip)(struct tierce__policy *policy, const struct tierce__policy_entry *entry);
    /* Adds a slot, evictable from the start. */
    void (*insert)(struct tierce__policy *policy, uint32_t slot,
                   const struct tierce__policy_entry *entry);
    /* Notes a use of a slot. */
    void (*touch)(struct tierce__policy *policy, uint32_t slot, uint64_t now);
    /* Pinned and leased entries are not evictable and never victims. Keeps the entry's place in
     * the order. Setting the present value has no effect. */
    void (*set_evictable)(struct tierce__policy *policy, uint32_t slot, bool evictable);
    /* Takes a slot out. `evicted` tells an eviction (which ghost lists remember) from a removal
     * for any other reason. */
    void (*remove)(struct tierce__policy *policy, uint32_t slot, bool evicted);
    /* *slot = the entry to evict now, which stays in until remove; false if none is evictable.
     * Repeated calls without a change in between return the same slot. */
    bool (*victim)(struct tierce__policy *policy, uint64_t now, uint32_t *slot);
    /* Optional, tierce__policy_inner: *slot = an evictable entry that is the parent of others;
     * false if there is none. For an owner that has no victim and must have room, such as for a
     * prompt that alone fills the cache, whose last entry is being written. It is the entry that
     * most recently got its first child or became evictable: of a prompt, mostly the last such
     * entry, so that the next victims are the entries before it. Its children stay, without a
     * parent. */
    bool (*inner)(struct tierce__policy *policy, uint32_t *slot);
    /* Optional, tierce__policy_expired: *slot = an evictable entry that has expired; it is removed
     * even if there is room. */
    bool (*expired)(struct tierce__policy *policy, uint64_t now, uint32_t *slot);
    /*
     * Optional: the rank of an entry from its history alone. Returns false if the entry must not be
     * evicted. If `half_life` is 0, the order by rank equals this policy's order of victims.
     * Otherwise a policy that counts uses halves an entry's frequency per half_life without a use.
     */
    bool (*rank)(struct tierce__policy_rank *out, const struct tierce__policy_history *history,
                 uint64_t now, uint64_t half_life);
    /* Optional, tierce__policy_prefetch: this key will be used, in this slot, or stored (NO_SLOT).
     * Called some uses ahead with `near` false, and again later with `near` true, when the data
     * fetched by the first call shows what else to fetch. Changes nothing. */
    void (*prefetch)(const struct tierce__policy *policy, uint64_t key, uint32_t slot, bool near);
    /* Optional, for policies with a hand that walks over all entries: the number of completed laps.
     * During the first lap the hand meets no entry twice. */
    uint64_t (*wraps)(const struct tierce__policy *policy);
    /* Optional: the outcomes of hints so far; [0] is 0. */
    void (*hints)(const struct tierce__policy *policy, struct tierce__policy_hints *out);
    /* Optional, tierce__flat_run: tierce__flat_use with these operations, compiled as one. */
    uint32_t (*run)(struct tierce__flat *flat, const struct tierce__flat_uses *uses);
};

/* First member of every implementation. */
struct tierce__policy {
    const struct tierce__policy_ops *ops;
};

static inline void tierce__policy_expect(struct tierce__policy *policy,
                                         const struct tierce__policy_entry *entry)
{
    if (policy->ops->expect != NULL)
        policy->ops->expect(policy, entry);
}

static inline void tierce__policy_begin(struct tierce__policy *policy,
                                        const struct tierce__policy_request *request)
{
    if (policy->ops->request != NULL)
        policy->ops->request(policy, request);
}

/* Asked by an owner without room, before it evicts. */
static inline bool tierce__policy_admits(struct tierce__policy *policy,
                                         const struct tierce__policy_entry *entry)
{
    return policy->ops->admits == NULL || policy->ops->admits(policy, entry);
}

static inline void tierce__policy_skip(struct tierce__policy *policy,
                                       const struct tierce__policy_entry *entry)
{
    if (policy->ops->skip != NULL)
        policy->ops->skip(policy, entry);
}

/*
 * Whether a touch must be passed to the policy. `again`: the request has used the entry before, so
 * the touch only restores the order. *fresh: the owner's note of an entry that was inserted and not
 * touched since; the first touch belongs to the request that inserted it.
 */
static inline bool tierce__policy_hears(const struct tierce__policy *policy, bool *fresh,
                                        bool again)
{
    bool used = again || *fresh;
    *fresh = false;
    return !used || !policy->ops->counts_uses;
}

static inline bool tierce__policy_inner(struct tierce__policy *policy, uint32_t *slot)
{
    return policy->ops->inner != NULL && policy->ops->inner(policy, slot);
}

static inline bool tierce__policy_expired(struct tierce__policy *policy, uint64_t now,
                                          uint32_t *slot)
{
    return policy->ops->expired != NULL && policy->ops->expired(policy, now, slot);
}

static inline void tierce__policy_prefetch(const struct tierce__policy *policy, uint64_t key,
                                           uint32_t slot, bool near)
{
    if (policy->ops->prefetch != NULL)
        policy->ops->prefetch(policy, key, slot, near);
}

/* False: the policy does not use hints; *out is untouched. */
static inline bool tierce__policy_hints(const struct tierce__policy *policy,
                                        struct tierce__policy_hints *out)
{
    if (policy->ops->hints == NULL)
        return false;
    policy->ops->hints(policy, out);
    return true;
}

static inline bool tierce__policy_rank_before(const struct tierce__policy_rank *a,
                                              const struct tierce__policy_rank *b)
{
    return a->worth < b->worth || (!(b->worth < a->worth) && a->time < b->time);
}

/* Whether an entry last used at `used` has expired; ttl 0: never. */
static inline bool tierce__policy_outlived(uint64_t used, uint64_t ttl, uint64_t now)
{
    return ttl > 0 && now >= used && now - used >= ttl;
}

/* The policies of this build in the order of policies.def; NULL past the end. */
const struct tierce__policy_ops *tierce__policy_at(size_t index);

/* The policy of that name, or NULL. */
const struct tierce__policy_ops *tierce__policy_find(const char *name);

#define TIERCE__POLICY_PLUGIN    "plugin://"
#define TIERCE__POLICY_WHY_BYTES 256u

/*
 * The policy of that name, or of a plugin:// URL (<tierce/plugin_policy.h>), which is loaded when
 * it is opened for the first time and stays loaded. *out: constant storage. Such a policy has no
 * rank. Errors, `why` in words: TIERCE_E_CONFIG, -ENOMEM.
 *
 * Thread: any; blocks on the file system while it loads.
 */
TIERCE_MUSTUSE int tierce__policy_open(const struct tierce__policy_ops **out, const char *name,
                                       char why[TIERCE__POLICY_WHY_BYTES]);

#endif
