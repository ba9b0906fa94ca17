/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_MEMORY_PRIVATE_H
#define TIERCE_TIER_MEMORY_PRIVATE_H

#include "base/threads/lock.h"
#include "store/index.h"
#include "store/memory/memory.h"
#include "store/siblings.h"

/*
 * Evictability. An entry may be evicted if the tier's reference is the only one. A thread gets a
 * reference only by copying one that it holds, or from this tier under the lock. So an entry
 * without other references stays so until the lock is dropped, and evicting it frees its bytes at
 * once.
 *
 * An awaited entry is not evictable for the policy until the pool's idle hook reports that only the
 * tier's reference is left. A GET awaits its entry at once, as in a replay. A LOOKUP lends many
 * entries, which are awaited only when the policy names one of them: a lease that is returned while
 * no room was needed costs only an increment and a decrement. When nothing is left to evict, all
 * lent entries are awaited.
 *
 * A reserved buffer already has its slot, so that the policy attributes evictions to it in the
 * order of the requests. The index does not find it, and it is awaited. A PUT makes it an entry; if
 * all other references are released before, the hook removes it.
 */

/* The watcher's data about an entry, besides its key. */
struct tierce__memory_note {
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    bool has_parent;
    uint8_t parent[TIERCE_HASH_BYTES];
    uint8_t first_block[TIERCE_HASH_BYTES];
};

struct tierce__memory {
    struct tierce__tier base;
    uint32_t magic;
    uint32_t slot_count;
    struct tierce__pool *pool;
    _Atomic uint32_t inside; /* threads in a call; close waits for them before it frees the tier */

    struct tierce__lock lock;          /* class MEMORY: all below */
    struct tierce__index *index;       /* the value of a slot is its buffer */
    struct tierce__siblings *siblings; /* of slots that are in */
    struct tierce__policy *policy;
    struct tierce__memory_note *notes; /* [slot_count] of slots that are in */
    bool *fresh;                       /* [slot_count] for tierce__policy_hears */
    tierce__tier_watch_fn *watch;
    void *watch_arg;
    bool closed;
    struct tierce__slots slots;
    struct tierce__slots_news news; /* for the caller to log */
    struct tierce__tier_stats stats;
};

/* Entries of the tier (memory_entries.c). All but on_idle: under the lock. */

/* Of a slot that is in or reserved. */
static inline struct tierce__buf *tierce__memory_buf(const struct tierce__memory *memory,
                                                     uint32_t slot)
{
    return tierce__index_value(memory->index, slot);
}

/* An entry as one that was admitted. */
struct tierce__tier_event tierce__memory_describe(const struct tierce__memory *memory,
                                                  uint32_t slot);

/* Only a policy that lets entries expire looks at the time. */
uint64_t tierce__memory_policy_now(const struct tierce__memory *memory);

struct tierce__policy_entry tierce__memory_policy_entry(const struct tierce__memory *memory,
                                                        const struct tierce__key *key,
                                                        uint64_t bytes,
                                                        const struct tierce__policy_origin *origin);

/* The policy does not name this entry again until the hook reports that the tier holds the only
 * reference. */
void tierce__memory_await(struct tierce__memory *memory, uint32_t slot, struct tierce__buf *buf);

/* Gives a buffer that its caller holds a slot; the policy has expected the entry. */
uint32_t tierce__memory_reserve_slot(struct tierce__memory *memory, const struct tierce__key *key,
                                     const struct tierce__policy_entry *entry,
                                     struct tierce__buf *buf);

void tierce__memory_show(struct tierce__memory *memory, uint32_t slot,
                         const struct tierce__store_req *req);

/* Removes an entry, or a reservation; the caller must release the tier's reference on the
 * buffer. */
struct tierce__buf *tierce__memory_take(struct tierce__memory *memory, uint32_t slot,
                                        enum tierce__tier_left left);

/* Why there is no room for `bytes`: for lack of bytes, or only of a slot, which is counted. */
enum tierce__tier_left tierce__memory_note_lack(struct tierce__memory *memory, uint64_t bytes);

/* Evicts one entry by policy and returns the bytes it freed, 0 if there is none to evict.
 * keeps_prefixes: as of struct tierce__reserve. */
uint64_t tierce__memory_evict_one(struct tierce__memory *memory, enum tierce__tier_left left,
                                  bool keeps_prefixes);

void tierce__memory_drop_expired(struct tierce__memory *memory);

/* The pool's idle hook. */
void tierce__memory_on_idle(void *arg, struct tierce__buf *const *bufs, size_t count);

#endif
