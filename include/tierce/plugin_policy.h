/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PLUGIN_POLICY_H
#define TIERCE_PLUGIN_POLICY_H

#include <tierce/plugin.h>

/*
 * An eviction policy of your own, in a shared object.
 *
 *     memory.policy: "plugin:///usr/lib/tierce/mypolicy.so?uses=3"
 *     disk.policy:   "plugin:///usr/lib/tierce/mypolicy.so"
 *     tierce optimize --policy plugin:///usr/lib/tierce/mypolicy.so TRACE
 *
 * The tier numbers its entries with slots below slot_count and keeps the map from keys to slots.
 * The policy keeps an order among the slots and names the next victim. A complete example is
 * examples/plugin_policy.
 *
 *     static const struct tierce_plugin_policy policy = {
 *         .version = TIERCE_PLUGIN_POLICY_VERSION, .size = sizeof(policy), .name = "mine", ...};
 *
 *     const struct tierce_plugin_policy *tierce_plugin_policy(void)
 *     {
 *         return &policy;
 *     }
 *
 * A shared object may also export the symbols of other kinds of plug-ins. The rules for the file
 * are those of <tierce/plugin.h>. The object is loaded once for each URL, when the first engine of
 * the process requires it, and stays loaded until the process ends.
 *
 * Rules for the functions:
 *
 * - Only create may allocate memory, block, or fail. The other functions run under a lock of the
 *   tier, for each chunk that is used: they must return within microseconds on average, and must
 *   not call Tierce.
 * - The choice depends on nothing but the calls and the seed: no clock, no randomness of its own.
 *   Equal calls then have equal victims, and a simulation shows the behaviour of the engine.
 * - Calls for one policy never overlap. They come from different threads.
 *
 * Tierce checks each result. If victim returns a slot that is free or not evictable, or no slot
 * while an entry is evictable, Tierce chooses another entry, and logs policy_plugin_wrong once.
 */

#ifdef __cplusplus
extern "C" {
#endif

#define TIERCE_PLUGIN_POLICY_VERSION 1u

/* touch is called once for each request that uses an entry. Without it, touch is also called to
 * restore the order of a request's entries after other calls. */
#define TIERCE_PLUGIN_COUNTS_USES 1u

#define TIERCE_PLUGIN_POLICY_NAME_MAX 31u
#define TIERCE_PLUGIN_NO_SLOT         UINT32_MAX

struct tierce_plugin_policy_opts {
    size_t size; /* sizeof(struct tierce_plugin_policy_opts) */
    const struct tierce_plugin_param *params;
    size_t param_count;
    uint32_t slot_count; /* at least 1 */
    uint64_t capacity;   /* of the tier, in the unit of an entry's bytes; 0: unknown */
    uint64_t seed;
    uint64_t ttl; /* memory.ttl or disk.ttl, in the unit of `now`; 0: none */
};

struct tierce_plugin_policy_entry {
    uint64_t key;    /* equal for equal chunks, also after an eviction; for ghost lists */
    uint64_t bytes;  /* tierce optimize: 1, unless it simulates capacities in bytes */
    uint64_t now;    /* as of victim */
    uint32_t parent; /* the slot of the chunk before, or TIERCE_PLUGIN_NO_SLOT: none, or unknown */
};

/* A function may be NULL only where its comment says so. The table and its texts are constant. */
struct tierce_plugin_policy {
    uint32_t version; /* TIERCE_PLUGIN_POLICY_VERSION */
    uint32_t size;    /* sizeof(struct tierce_plugin_policy) */
    /* For metrics and logs: lower-case letters, digits and '_', at most
     * TIERCE_PLUGIN_POLICY_NAME_MAX of them; not the name of a policy of Tierce. */
    const char *name;
    unsigned caps; /* TIERCE_PLUGIN_COUNTS_USES, or 0 */

    /* Creates a policy without entries. An unknown parameter must be rejected, so that a misspelt
     * one is noticed. On failure: returns a negative status, and sets `why` to a sentence. It is
     * called once to check the parameters, and then for each tier. */
    int (*create)(void **policy, const struct tierce_plugin_policy_opts *opts, char *why,
                  size_t why_room);
    void (*destroy)(void *policy);

    /* Adds a free slot. It is evictable. */
    void (*insert)(void *policy, uint32_t slot, const struct tierce_plugin_policy_entry *entry);
    /* A use of a slot. */
    void (*touch)(void *policy, uint32_t slot, uint64_t now);
    /* An entry that is being read or written is not evictable. Called only if the value changes. */
    void (*set_evictable)(void *policy, uint32_t slot, int evictable);
    /* Frees a slot: evicted, or removed for another reason. */
    void (*remove)(void *policy, uint32_t slot, int evicted);
    /* Returns the slot to evict next; TIERCE_PLUGIN_NO_SLOT only if no entry is evictable. The
     * entry stays until remove. `now` is in nanoseconds if `expired` is not NULL, and may be 0
     * otherwise; tierce optimize passes the time of the trace. */
    uint32_t (*victim)(void *policy, uint64_t now);

    /* The functions below may be NULL. */

    /* The next insert, if any, will be of this entry; evictions before it make room for it. */
    void (*expect)(void *policy, const struct tierce_plugin_policy_entry *entry);
    /* Returns an evictable slot that has expired and is removed even if there is room, or
     * TIERCE_PLUGIN_NO_SLOT. */
    uint32_t (*expired)(void *policy, uint64_t now);
};

/* The symbol that the shared object exports. Called once for each URL. */
TIERCE_API const struct tierce_plugin_policy *tierce_plugin_policy(void);

#ifdef __cplusplus
}
#endif

#endif
