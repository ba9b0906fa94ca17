/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the memory tier: their slots, and which of them are evicted. */
#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/memory/memory_private.h"

#define PAGE 4096u

static uint64_t cost_of(const struct tierce__buf *buf)
{
    TIERCE_DASSERT(buf->bytes > 0);
    return tierce__round_up(buf->bytes, PAGE);
}

struct tierce__tier_event tierce__memory_describe(const struct tierce__memory *memory,
                                                  uint32_t slot)
{
    tierce__lock_assert_held(&memory->lock);
    const struct tierce__memory_note *note = &memory->notes[slot];
    TIERCE_DASSERT(tierce__index_has(memory->index, slot));
    return (struct tierce__tier_event){.admitted = true,
                                       .key = tierce__index_key(memory->index, slot),
                                       .parent = note->has_parent ? note->parent : NULL,
                                       .first_block = note->first_block,
                                       .object_bytes = note->object_bytes,
                                       .token_start = note->token_start,
                                       .block_count = note->block_count};
}

static void tell_left(const struct tierce__memory *memory, uint32_t slot,
                      enum tierce__tier_left left)
{
    struct tierce__tier_event event = tierce__memory_describe(memory, slot);
    event.admitted = false;
    event.left = left;
    memory->watch(memory->watch_arg, &event);
}

static void note_entry(struct tierce__memory *memory, uint32_t slot,
                       const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->object_bytes > 0);
    struct tierce__memory_note *note = &memory->notes[slot];
    TIERCE_DASSERT(tierce__store_put_bytes(req) <= tierce__memory_buf(memory, slot)->bytes);
    *note = (struct tierce__memory_note){.object_bytes = req->object_bytes,
                                         .token_start = req->token_start,
                                         .block_count = req->block_count,
                                         .has_parent = req->parent != NULL};
    if (req->parent != NULL)
        memcpy(note->parent, req->parent->hash, sizeof(note->parent));
    if (req->first_block != NULL)
        memcpy(note->first_block, req->first_block, sizeof(note->first_block));
    tierce__siblings_add(memory->siblings, slot, &req->keys[0], note->first_block);
    if (memory->watch == NULL)
        return;
    struct tierce__tier_event event = tierce__memory_describe(memory, slot);
    memory->watch(memory->watch_arg, &event);
}

uint64_t tierce__memory_policy_now(const struct tierce__memory *memory)
{
    tierce__lock_assert_held(&memory->lock);
    return memory->policy->ops->expired != NULL ? tierce__now_ns() : 0;
}

struct tierce__policy_entry tierce__memory_policy_entry(const struct tierce__memory *memory,
                                                        const struct tierce__key *key,
                                                        uint64_t bytes,
                                                        const struct tierce__policy_origin *origin)
{
    TIERCE_DASSERT(bytes > 0);
    return (struct tierce__policy_entry){.key = tierce__key_spread(key),
                                         .bytes = tierce__round_up(bytes, PAGE),
                                         .now = tierce__memory_policy_now(memory),
                                         .parent = TIERCE__NO_SLOT,
                                         .origin = *origin};
}

void tierce__memory_await(struct tierce__memory *memory, uint32_t slot, struct tierce__buf *buf)
{
    TIERCE_DASSERT(tierce__memory_buf(memory, slot) == buf);
    tierce__lock_assert_held(&memory->lock);
    atomic_store(&buf->awaited, true);
    memory->policy->ops->set_evictable(memory->policy, slot, false);
}

static void end_await(struct tierce__memory *memory, uint32_t slot, struct tierce__buf *buf)
{
    TIERCE_DASSERT(tierce__memory_buf(memory, slot) == buf);
    tierce__lock_assert_held(&memory->lock);
    atomic_store(&buf->awaited, false);
    memory->policy->ops->set_evictable(memory->policy, slot, true);
}

uint32_t tierce__memory_reserve_slot(struct tierce__memory *memory, const struct tierce__key *key,
                                     const struct tierce__policy_entry *entry,
                                     struct tierce__buf *buf)
{
    TIERCE_DASSERT(buf->pool == memory->pool);
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(atomic_load_explicit(&buf->kept, memory_order_relaxed) == 0);
    uint32_t slot = tierce__index_take(memory->index, key);
    TIERCE_ASSERT(slot < memory->slot_count);
    tierce__index_set_value(memory->index, slot, buf);
    memory->fresh[slot] = true;
    atomic_store_explicit(&buf->kept, slot + 1, memory_order_relaxed);
    tierce__buf_acquire(buf);
    TIERCE_DASSERT(atomic_load_explicit(&buf->refs, memory_order_relaxed) >= 2);
    memory->policy->ops->insert(memory->policy, slot, entry);
    /* The caller holds a reference too; the hook comes when it goes. */
    tierce__memory_await(memory, slot, buf);
    return slot;
}

void tierce__memory_show(struct tierce__memory *memory, uint32_t slot,
                         const struct tierce__store_req *req)
{
    TIERCE_DASSERT(!tierce__index_has(memory->index, slot));
    tierce__lock_assert_held(&memory->lock);
    tierce__index_show(memory->index, slot);
    memory->stats.chunks++;
    memory->stats.used_bytes += cost_of(tierce__memory_buf(memory, slot));
    TIERCE_DASSERT(memory->stats.chunks <= tierce__index_count(memory->index));
    TIERCE_DASSERT(memory->stats.used_bytes <= memory->stats.cap_bytes);
    memory->stats.put_chunks++;
    memory->stats.put_bytes += req->object_bytes;
    note_entry(memory, slot, req);
}

struct tierce__buf *tierce__memory_take(struct tierce__memory *memory, uint32_t slot,
                                        enum tierce__tier_left left)
{
    struct tierce__buf *buf = tierce__memory_buf(memory, slot);
    tierce__lock_assert_held(&memory->lock);
    bool reserved = !tierce__index_has(memory->index, slot);
    bool evicted = left == TIERCE__LEFT_EVICTED || left == TIERCE__LEFT_EXPIRED ||
                   left == TIERCE__LEFT_NO_SLOT;
    TIERCE_DASSERT(atomic_load_explicit(&buf->kept, memory_order_relaxed) == slot + 1);
    if (!reserved && memory->watch != NULL && !memory->closed)
        tell_left(memory, slot, left);
    memory->policy->ops->remove(memory->policy, slot, evicted);
    tierce__siblings_remove(memory->siblings, slot);
    tierce__index_erase(memory->index, slot);
    atomic_store_explicit(&buf->kept, 0, memory_order_relaxed);
    atomic_store(&buf->awaited, false);
    if (!reserved) {
        TIERCE_DASSERT(memory->stats.chunks > 0);
        TIERCE_DASSERT(memory->stats.used_bytes >= cost_of(buf));
        memory->stats.chunks--;
        memory->stats.used_bytes -= cost_of(buf);
    }
    return buf;
}

/* Whether others hold an entry that the policy named; if so, it is awaited. */
static bool is_lent(struct tierce__memory *memory, uint32_t slot)
{
    struct tierce__buf *buf = tierce__memory_buf(memory, slot);
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(atomic_load(&buf->refs) >= 1);
    if (atomic_load(&buf->refs) == 1)
        return false;
    tierce__memory_await(memory, slot, buf);
    /* The last of them may have gone before it could see that it is awaited. */
    bool lent = atomic_load(&buf->refs) != 1;
    if (!lent)
        end_await(memory, slot, buf);
    return lent;
}

/* Evicts an entry without other references and returns the bytes that it freed. */
static uint64_t evict_slot(struct tierce__memory *memory, uint32_t slot,
                           enum tierce__tier_left left)
{
    tierce__lock_assert_held(&memory->lock);
    struct tierce__buf *buf = tierce__memory_take(memory, slot, left);
    TIERCE_ASSERT(atomic_load_explicit(&buf->refs, memory_order_relaxed) == 1);
    memory->stats.evicted_chunks++;
    uint64_t freed = cost_of(buf);
    TIERCE_DASSERT(freed > 0);
    /* Under the lock: it is the last reference, so no hook runs, and POOL comes after MEMORY. */
    tierce__buf_release(buf);
    return freed;
}

enum tierce__tier_left tierce__memory_note_lack(struct tierce__memory *memory, uint64_t bytes)
{
    struct tierce__pool_stats pool;
    tierce__lock_assert_held(&memory->lock);
    tierce__pool_stats(memory->pool, &pool);
    bool is_full =
        pool.bufs == pool.buf_count_max || tierce__index_count(memory->index) == memory->slot_count;
    bool fits = bytes <= pool.cap_bytes - pool.used_bytes; /* all in pages */
    if (!is_full || !fits)
        return TIERCE__LEFT_EVICTED;
    tierce__slots_note(&memory->slots, &memory->news, &memory->stats, pool.used_bytes);
    return TIERCE__LEFT_NO_SLOT;
}

static bool find_victim(struct tierce__memory *memory, uint32_t *slot, bool keeps_prefixes)
{
    uint64_t now = tierce__memory_policy_now(memory);
    return memory->policy->ops->victim(memory->policy, now, slot) ||
           (!keeps_prefixes && tierce__policy_inner(memory->policy, slot));
}

uint64_t tierce__memory_evict_one(struct tierce__memory *memory, enum tierce__tier_left left,
                                  bool keeps_prefixes)
{
    uint32_t slot;
    tierce__lock_assert_held(&memory->lock);
    while (find_victim(memory, &slot, keeps_prefixes)) {
        TIERCE_DASSERT(slot < memory->slot_count);
        if (!is_lent(memory, slot))
            return evict_slot(memory, slot, left);
    }
    return 0;
}

void tierce__memory_drop_expired(struct tierce__memory *memory)
{
    uint32_t slot;
    tierce__lock_assert_held(&memory->lock);
    if (memory->policy->ops->expired == NULL)
        return;
    while (tierce__policy_expired(memory->policy, tierce__now_ns(), &slot)) {
        TIERCE_DASSERT(slot < memory->slot_count);
        if (!is_lent(memory, slot))
            evict_slot(memory, slot, TIERCE__LEFT_EXPIRED);
    }
}

/* Whether a released buffer can be evicted now. Under the lock. */
static bool settle_idle(struct tierce__memory *memory, struct tierce__buf *buf)
{
    uint32_t kept = atomic_load_explicit(&buf->kept, memory_order_relaxed);
    tierce__lock_assert_held(&memory->lock);
    if (kept == 0 || memory->closed || atomic_load(&buf->refs) != 1)
        return false;
    TIERCE_ASSERT(tierce__memory_buf(memory, kept - 1) == buf);
    TIERCE_DASSERT(buf->pool == memory->pool);
    bool shown = tierce__index_has(memory->index, kept - 1);
    if (shown)
        end_await(memory, kept - 1, buf);
    else /* As evict_slot does; the entry was never visible, so the watcher is not called. */
        tierce__buf_release(tierce__memory_take(memory, kept - 1, TIERCE__LEFT_DELETED));
    return shown;
}

void tierce__memory_on_idle(void *arg, struct tierce__buf *const *bufs, size_t count)
{
    TIERCE_DASSERT(count > 0);
    struct tierce__memory *memory = (struct tierce__memory *)arg;
    bool room = false;
    tierce__lock_take(&memory->lock);
    for (size_t i = 0; i < count; i++)
        room |= settle_idle(memory, bufs[i]);
    if (room)
        tierce__pool_tell_room(memory->pool);
    tierce__lock_drop(&memory->lock);
}
