/* SPDX-License-Identifier: Apache-2.0 */
#include "store/memory/memory.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "store/index.h"
#include "store/siblings.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

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

#define MEMORY_MAGIC 0x4d454d31u
#define KEY_BATCH    128u /* keys looked up at a time: slots live on the stack */
#define PAGE         4096u
#define CLEAR_BATCH  64u   /* entries cleared under one hold of the lock */
#define CLEAR_PLACES 4096u /* and slots looked at */

/* The watcher's data about an entry, besides its key. */
struct note {
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    bool has_parent;
    uint8_t parent[TIERCE_HASH_BYTES];
    uint8_t first_block[TIERCE_HASH_BYTES];
};

struct memory {
    struct tierce__tier base;
    uint32_t magic;
    uint32_t slot_count;
    struct tierce__pool *pool;
    _Atomic uint32_t inside; /* threads in a call; close waits for them before it frees the tier */

    struct tierce__lock lock;          /* class MEMORY: all below */
    struct tierce__index *index;       /* the value of a slot is its buffer */
    struct tierce__siblings *siblings; /* of slots that are in */
    struct tierce__policy *policy;
    struct note *notes; /* [slot_count] of slots that are in */
    bool *fresh;        /* [slot_count] for tierce__policy_hears */
    tierce__tier_watch_fn *watch;
    void *watch_arg;
    bool closed;
    struct tierce__slots slots;
    struct tierce__slots_news news; /* for the caller to log */
    struct tierce__tier_stats stats;
};

/* ---- entering and leaving -------------------------------------------------------------------- */

static struct memory *enter(struct tierce__tier *tier)
{
    struct memory *memory = (struct memory *)(void *)tier;
    TIERCE_CHECK_MAGIC(memory, MEMORY_MAGIC);
    atomic_fetch_add(&memory->inside, 1);
    tierce__lock_take(&memory->lock);
    return memory;
}

/* The last access of a call to the tier. */
static void leave(struct memory *memory)
{
    struct tierce__slots_news news = memory->news;
    TIERCE_DASSERT(atomic_load(&memory->inside) > 0);
    memory->news.is_due = false;
    tierce__lock_drop(&memory->lock);
    tierce__slots_log(&memory->slots, &news);
    atomic_fetch_sub(&memory->inside, 1);
}

/* ---- entries --------------------------------------------------------------------------------- */

static uint64_t cost_of(const struct tierce__buf *buf)
{
    TIERCE_DASSERT(buf->bytes > 0);
    return tierce__round_up(buf->bytes, PAGE);
}

/* Of a slot that is in or reserved. */
static struct tierce__buf *buf_of(const struct memory *memory, uint32_t slot)
{
    return tierce__index_value(memory->index, slot);
}

/* An entry as one that was admitted. */
static struct tierce__tier_event describe(const struct memory *memory, uint32_t slot)
{
    tierce__lock_assert_held(&memory->lock);
    const struct note *note = &memory->notes[slot];
    TIERCE_DASSERT(tierce__index_has(memory->index, slot));
    return (struct tierce__tier_event){.admitted = true,
                                       .key = tierce__index_key(memory->index, slot),
                                       .parent = note->has_parent ? note->parent : NULL,
                                       .first_block = note->first_block,
                                       .object_bytes = note->object_bytes,
                                       .token_start = note->token_start,
                                       .block_count = note->block_count};
}

static void tell_left(const struct memory *memory, uint32_t slot, enum tierce__tier_left left)
{
    struct tierce__tier_event event = describe(memory, slot);
    event.admitted = false;
    event.left = left;
    memory->watch(memory->watch_arg, &event);
}

static void note_entry(struct memory *memory, uint32_t slot, const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->object_bytes > 0);
    struct note *note = &memory->notes[slot];
    TIERCE_DASSERT(tierce__store_put_bytes(req) <= buf_of(memory, slot)->bytes);
    *note = (struct note){.object_bytes = req->object_bytes,
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
    struct tierce__tier_event event = describe(memory, slot);
    memory->watch(memory->watch_arg, &event);
}

/* Only a policy that lets entries expire looks at the time. */
static uint64_t policy_now(const struct memory *memory)
{
    tierce__lock_assert_held(&memory->lock);
    return memory->policy->ops->expired != NULL ? tierce__now_ns() : 0;
}

static struct tierce__policy_entry entry_of(const struct memory *memory,
                                            const struct tierce__key *key, uint64_t bytes,
                                            const struct tierce__policy_origin *origin)
{
    TIERCE_DASSERT(bytes > 0);
    return (struct tierce__policy_entry){.key = tierce__key_spread(key),
                                         .bytes = tierce__round_up(bytes, PAGE),
                                         .now = policy_now(memory),
                                         .parent = TIERCE__NO_SLOT,
                                         .origin = *origin};
}

/* The policy does not name this entry again until the hook reports that the tier holds the only
 * reference. */
static void await(struct memory *memory, uint32_t slot, struct tierce__buf *buf)
{
    TIERCE_DASSERT(buf_of(memory, slot) == buf);
    tierce__lock_assert_held(&memory->lock);
    atomic_store(&buf->awaited, true);
    memory->policy->ops->set_evictable(memory->policy, slot, false);
}

static void end_await(struct memory *memory, uint32_t slot, struct tierce__buf *buf)
{
    TIERCE_DASSERT(buf_of(memory, slot) == buf);
    tierce__lock_assert_held(&memory->lock);
    atomic_store(&buf->awaited, false);
    memory->policy->ops->set_evictable(memory->policy, slot, true);
}

/* Gives a buffer that its caller holds a slot; the policy has expected the entry. */
static uint32_t reserve_slot(struct memory *memory, const struct tierce__key *key,
                             const struct tierce__policy_entry *entry, struct tierce__buf *buf)
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
    await(memory, slot, buf);
    return slot;
}

static void show_entry(struct memory *memory, uint32_t slot, const struct tierce__store_req *req)
{
    TIERCE_DASSERT(!tierce__index_has(memory->index, slot));
    tierce__lock_assert_held(&memory->lock);
    tierce__index_show(memory->index, slot);
    memory->stats.chunks++;
    memory->stats.used_bytes += cost_of(buf_of(memory, slot));
    TIERCE_DASSERT(memory->stats.chunks <= tierce__index_count(memory->index));
    TIERCE_DASSERT(memory->stats.used_bytes <= memory->stats.cap_bytes);
    memory->stats.put_chunks++;
    memory->stats.put_bytes += req->object_bytes;
    note_entry(memory, slot, req);
}

/* Removes an entry, or a reservation; the caller must release the tier's reference on the
 * buffer. */
static struct tierce__buf *take_entry(struct memory *memory, uint32_t slot,
                                      enum tierce__tier_left left)
{
    struct tierce__buf *buf = buf_of(memory, slot);
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
static bool is_lent(struct memory *memory, uint32_t slot)
{
    struct tierce__buf *buf = buf_of(memory, slot);
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(atomic_load(&buf->refs) >= 1);
    if (atomic_load(&buf->refs) == 1)
        return false;
    await(memory, slot, buf);
    /* The last of them may have gone before it could see that it is awaited. */
    bool lent = atomic_load(&buf->refs) != 1;
    if (!lent)
        end_await(memory, slot, buf);
    return lent;
}

/* Evicts an entry without other references and returns the bytes that it freed. */
static uint64_t evict_slot(struct memory *memory, uint32_t slot, enum tierce__tier_left left)
{
    tierce__lock_assert_held(&memory->lock);
    struct tierce__buf *buf = take_entry(memory, slot, left);
    TIERCE_ASSERT(atomic_load_explicit(&buf->refs, memory_order_relaxed) == 1);
    memory->stats.evicted_chunks++;
    uint64_t freed = cost_of(buf);
    TIERCE_DASSERT(freed > 0);
    /* Under the lock: it is the last reference, so no hook runs, and POOL comes after MEMORY. */
    tierce__buf_release(buf);
    return freed;
}

/* Why there is no room for `bytes`: for lack of bytes, or only of a slot, which is counted. */
static enum tierce__tier_left note_lack(struct memory *memory, uint64_t bytes)
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

/* Evicts one entry by policy and returns the bytes it freed, 0 if there is none to evict. */
static uint64_t evict_one(struct memory *memory, enum tierce__tier_left left)
{
    uint32_t slot;
    tierce__lock_assert_held(&memory->lock);
    while (memory->policy->ops->victim(memory->policy, policy_now(memory), &slot)) {
        TIERCE_DASSERT(slot < memory->slot_count);
        if (!is_lent(memory, slot))
            return evict_slot(memory, slot, left);
    }
    return 0;
}

static void drop_expired(struct memory *memory)
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
static bool settle_idle(struct memory *memory, struct tierce__buf *buf)
{
    uint32_t kept = atomic_load_explicit(&buf->kept, memory_order_relaxed);
    tierce__lock_assert_held(&memory->lock);
    if (kept == 0 || memory->closed || atomic_load(&buf->refs) != 1)
        return false;
    TIERCE_ASSERT(buf_of(memory, kept - 1) == buf);
    TIERCE_DASSERT(buf->pool == memory->pool);
    bool shown = tierce__index_has(memory->index, kept - 1);
    if (shown)
        end_await(memory, kept - 1, buf);
    else /* As evict_slot does; the entry was never visible, so the watcher is not called. */
        tierce__buf_release(take_entry(memory, kept - 1, TIERCE__LEFT_DELETED));
    return shown;
}

/* The pool's idle hook. */
static void on_idle(void *arg, struct tierce__buf *const *bufs, size_t count)
{
    TIERCE_DASSERT(count > 0);
    struct memory *memory = (struct memory *)arg;
    bool room = false;
    tierce__lock_take(&memory->lock);
    for (size_t i = 0; i < count; i++)
        room |= settle_idle(memory, bufs[i]);
    if (room)
        tierce__pool_tell_room(memory->pool);
    tierce__lock_drop(&memory->lock);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* `bytes`: of all of them. */
static void lend(struct memory *memory, struct tierce__buf *const *bufs, size_t count,
                 uint64_t bytes)
{
    tierce__lock_assert_held(&memory->lock);
    tierce__bufs_acquire(bufs, count);
    memory->stats.get_chunks += count;
    memory->stats.get_bytes += bytes;
}

/* Lends leading slots while *room has bytes for them. Their lines are fetched before they are
 * written, so that the misses of all are in flight together. */
static void lend_slots(struct memory *memory, struct tierce__store_req *req, const uint32_t *slots,
                       size_t count, uint64_t *room)
{
    struct tierce__buf **bufs = req->bufs + req->lent;
    uint64_t before = *room;
    size_t lent = 0;
    TIERCE_DASSERT(req->lent == req->found && req->lent + count <= req->key_count);
    for (size_t i = 0; i < count; i++) {
        bufs[i] = buf_of(memory, slots[i]);
        __builtin_prefetch(bufs[i], 1);
    }
    for (; lent < count && bufs[lent]->bytes <= *room; lent++)
        *room -= bufs[lent]->bytes;
    TIERCE_DASSERT(*room <= before);
    lend(memory, bufs, lent, before - *room);
    req->lent += lent;
}

static bool hears(struct memory *memory, uint32_t slot, bool again)
{
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(tierce__index_has(memory->index, slot));
    TIERCE_DASSERT(slot < memory->slot_count);
    return tierce__policy_hears(memory->policy, &memory->fresh[slot], again);
}

/* Uses slots at one time, the last one first; NONE is passed over. */
static void touch_slots(struct memory *memory, uint32_t *slots, const struct tierce__key *keys,
                        size_t count, size_t used, const struct tierce__policy_origin *origin)
{
    uint32_t heard = 0;
    uint64_t now = policy_now(memory);
    TIERCE_DASSERT(count > 0);
    for (size_t i = 0; i < count; i++) {
        if (slots[i] != TIERCE__INDEX_NONE && !hears(memory, slots[i], i < used))
            slots[i] = TIERCE__INDEX_NONE;
        heard += slots[i] != TIERCE__INDEX_NONE;
    }
    if (heard == 0)
        return;
    tierce__policy_begin(
        memory->policy,
        &(struct tierce__policy_request){
            .count = heard, .last_key = tierce__key_spread(&keys[count - 1]), .origin = *origin});
    for (size_t i = count; i-- > 0;) {
        if (slots[i] != TIERCE__INDEX_NONE)
            memory->policy->ops->touch(memory->policy, slots[i], now);
    }
}

static int run_lookup(struct memory *memory, struct tierce__store_req *req)
{
    uint32_t slots[KEY_BATCH];
    uint64_t room = req->length;
    req->found = req->lent = 0;
    while (req->found < req->key_count) {
        size_t left = req->key_count - req->found;
        size_t batch = left < KEY_BATCH ? left : KEY_BATCH;
        size_t got = tierce__index_find_prefix(memory->index, slots, req->keys + req->found, batch);
        TIERCE_DASSERT(got <= batch);
        if (req->bufs != NULL && req->lent == req->found)
            lend_slots(memory, req, slots, got, &room);
        req->found += got;
        if (got < batch)
            break;
    }
    TIERCE_DASSERT(req->lent <= req->found && req->found <= req->key_count);
    return 0;
}

static int run_get(struct memory *memory, struct tierce__store_req *req)
{
    uint32_t slot = tierce__index_find(memory->index, &req->keys[0]);
    if (slot == TIERCE__INDEX_NONE)
        return TIERCE_E_MISS;
    req->buf = buf_of(memory, slot);
    TIERCE_DASSERT(atomic_load_explicit(&req->buf->kept, memory_order_relaxed) == slot + 1);
    TIERCE_DASSERT(atomic_load(&req->buf->refs) >= 1);
    lend(memory, &req->buf, 1, req->buf->bytes);
    await(memory, slot, req->buf);
    return 0;
}

/* *dropped as of run_delete. */
static int run_put(struct memory *memory, struct tierce__store_req *req,
                   struct tierce__buf **dropped)
{
    if (req->buf == NULL || req->buf->pool != memory->pool ||
        tierce__store_put_bytes(req) > req->buf->bytes)
        return TIERCE_E_ARGUMENT;
    uint32_t old = tierce__index_find(memory->index, &req->keys[0]);
    req->found = old != TIERCE__INDEX_NONE && !req->replaces;
    if (req->found > 0)
        return 0;
    uint32_t slot = atomic_load_explicit(&req->buf->kept, memory_order_relaxed) - 1;
    if (slot != TIERCE__NO_SLOT &&
        (tierce__index_has(memory->index, slot) ||
         !tierce__key_equal(tierce__index_key(memory->index, slot), &req->keys[0])))
        return TIERCE_E_ARGUMENT;
    TIERCE_DASSERT(slot == TIERCE__NO_SLOT || buf_of(memory, slot) == req->buf);
    if (old != TIERCE__INDEX_NONE)
        *dropped = take_entry(memory, old, TIERCE__LEFT_DELETED);
    if (slot == TIERCE__NO_SLOT) {
        struct tierce__policy_entry entry =
            entry_of(memory, &req->keys[0], req->buf->bytes, &req->origin);
        tierce__policy_expect(memory->policy, &entry);
        if (tierce__index_count(memory->index) == memory->slot_count &&
            evict_one(memory, note_lack(memory, 0)) == 0)
            return TIERCE_E_FULL;
        if (req->parent != NULL)
            entry.parent = tierce__index_find(memory->index, req->parent);
        slot = reserve_slot(memory, &req->keys[0], &entry, req->buf);
    }
    TIERCE_DASSERT(buf_of(memory, slot) == req->buf);
    show_entry(memory, slot, req);
    return 0;
}

static int run_siblings(const struct memory *memory, struct tierce__store_req *req)
{
    uint32_t slots[TIERCE__SIBLINGS_MAX];
    size_t got =
        tierce__siblings_find(memory->siblings, slots, TIERCE__SIBLINGS_MAX, &req->keys[0]);
    req->found = 0;
    for (size_t i = 0; i < got; i++) {
        TIERCE_DASSERT(tierce__index_has(memory->index, slots[i]));
        const struct note *note = &memory->notes[slots[i]];
        struct tierce__key key = *tierce__index_key(memory->index, slots[i]), first = key;
        memcpy(first.hash, note->first_block, sizeof(first.hash));
        if (tierce__key_equal(&first, &req->keys[0]))
            req->siblings[req->found++] =
                (struct tierce__sibling){key, note->object_bytes, note->block_count};
    }
    TIERCE_DASSERT(req->found <= TIERCE__SIBLINGS_MAX);
    return 0;
}

/* *dropped = the buffer to release once the lock is gone: others may hold it. */
static int run_delete(struct memory *memory, struct tierce__store_req *req,
                      struct tierce__buf **dropped)
{
    uint32_t slot = tierce__index_find(memory->index, &req->keys[0]);
    if (slot == TIERCE__INDEX_NONE)
        return TIERCE_E_MISS;
    *dropped =
        take_entry(memory, slot, req->op == TIERCE__STORE_HIDE ? TIERCE__LEFT_VERSION : req->left);
    return 0;
}

/* Takes out entries from *cursor on, a bounded number per hold of the lock; false at the end.
 * Leases stay valid, and no hook runs for them, because the tier no longer holds the buffers. */
static bool clear_some(struct memory *memory, struct tierce__store_req *req, uint32_t *cursor)
{
    uint32_t left = CLEAR_BATCH, places = CLEAR_PLACES;
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(*cursor <= memory->slot_count);
    for (; *cursor < memory->slot_count && left > 0 && places > 0; places--, (*cursor)++) {
        if (!tierce__index_has(memory->index, *cursor))
            continue;
        if (req->key_count > 0 && tierce__index_key(memory->index, *cursor)->ns != req->keys[0].ns)
            continue;
        struct tierce__buf *buf = take_entry(memory, *cursor, TIERCE__LEFT_CLEARED);
        atomic_store_explicit(&buf->cleared, true, memory_order_relaxed); /* it may be pinned */
        tierce__buf_release(buf);
        req->found++;
        left--;
    }
    return *cursor < memory->slot_count;
}

/* The lock is dropped on the way. */
static int run_clear(struct memory *memory, struct tierce__store_req *req)
{
    uint32_t cursor = 0;
    tierce__lock_assert_held(&memory->lock);
    req->found = 0;
    while (!memory->closed && clear_some(memory, req, &cursor)) {
        tierce__lock_drop(&memory->lock);
        tierce__lock_take(&memory->lock);
    }
    return memory->closed ? TIERCE_E_CLOSED : 0;
}

static int run_request(struct memory *memory, struct tierce__store_req *req,
                       struct tierce__buf **dropped)
{
    tierce__lock_assert_held(&memory->lock);
    if (memory->closed)
        return TIERCE_E_CLOSED;
    bool needs_key = req->op != TIERCE__STORE_LOOKUP && req->op != TIERCE__STORE_FLUSH &&
                     req->op != TIERCE__STORE_CLEAR && req->op != TIERCE__STORE_PING;
    if (req->key_count == 0 && needs_key)
        return TIERCE_E_ARGUMENT;
    drop_expired(memory);
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        return run_lookup(memory, req);
    case TIERCE__STORE_GET:
        return run_get(memory, req);
    case TIERCE__STORE_PUT:
        return run_put(memory, req, dropped);
    case TIERCE__STORE_DELETE:
    case TIERCE__STORE_HIDE: /* no other thread reads this memory */
        return run_delete(memory, req, dropped);
    case TIERCE__STORE_FLUSH:
        return 0;
    case TIERCE__STORE_CLEAR:
        return run_clear(memory, req);
    case TIERCE__STORE_SIBLINGS:
        return run_siblings(memory, req);
    case TIERCE__STORE_LIST:
    case TIERCE__STORE_PING:
    case TIERCE__STORE_SHOW:
        return TIERCE_E_UNSUPPORTED;
    }
    return TIERCE_E_ARGUMENT;
}

static void memory_submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct tierce__buf *dropped = NULL;
    struct memory *memory = enter(tier);
    req->status = run_request(memory, req, &dropped);
    leave(memory);
    tierce__buf_release(dropped);
    TIERCE_DASSERT(req->status <= 0 && !tierce__lock_holds_any());
    req->done(req);
}

static void memory_touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    uint32_t slots[KEY_BATCH];
    TIERCE_DASSERT(uses->used <= uses->count);
    struct tierce__policy_origin origin = uses->origin;
    struct memory *memory = enter(tier);
    for (size_t left = uses->count; !memory->closed && left > 0; origin.ends = false) {
        size_t batch = left < KEY_BATCH ? left : KEY_BATCH;
        left -= batch;
        tierce__index_find_each(memory->index, slots, uses->keys + left, batch);
        touch_slots(memory, slots, uses->keys + left, batch,
                    uses->used > left ? uses->used - left : 0, &origin);
    }
    leave(memory);
}

/* The slot of the chunk before, which may be reserved itself. Under the lock. */
static uint32_t find_parent(const struct memory *memory, const struct tierce__reserve *what)
{
    tierce__lock_assert_held(&memory->lock);
    if (what->before != NULL)
        return atomic_load_explicit(&what->before->kept, memory_order_relaxed) - 1;
    return what->parent != NULL ? tierce__index_find(memory->index, what->parent) : TIERCE__NO_SLOT;
}

/* Whether the policy refuses a chunk for which there is no room; it then knows that it was used. */
static bool refuse(struct memory *memory, const struct tierce__reserve *what,
                   const struct tierce__policy_entry *entry)
{
    tierce__lock_assert_held(&memory->lock);
    if (what->refused == NULL)
        return false;
    *what->refused = what->follows_refused || !tierce__policy_admits(memory->policy, entry);
    if (*what->refused && tierce__index_find(memory->index, what->key) == TIERCE__INDEX_NONE)
        tierce__policy_skip(memory->policy, entry);
    return *what->refused;
}

static struct tierce__buf *reserve_buf(struct memory *memory, const struct tierce__reserve *what)
{
    TIERCE_DASSERT(what->bytes > 0);
    TIERCE_DASSERT(what->refused != NULL || !what->follows_refused);
    struct tierce__policy_entry entry = entry_of(memory, what->key, what->bytes, &what->origin);
    struct tierce__buf *buf;
    if (what->follows_refused && refuse(memory, what, &entry))
        return NULL;
    tierce__policy_expect(memory->policy, &entry);
    bool asks = what->refused != NULL;
    if (asks)
        *what->refused = false;
    /* Each round frees something or ends the loop, so it is bounded by the chunks that are here. */
    for (;;) {
        bool full = tierce__index_count(memory->index) == memory->slot_count;
        int rc = full ? TIERCE_E_FULL : tierce__pool_alloc(memory->pool, &buf, what->bytes);
        if (rc == 0)
            break;
        if (rc != TIERCE_E_FULL || (asks && refuse(memory, what, &entry)) ||
            evict_one(memory, note_lack(memory, what->bytes)) == 0)
            return NULL;
        asks = false;
    }
    entry.parent = find_parent(memory, what); /* now, as it may have been evicted */
    TIERCE_DASSERT(buf->bytes >= what->bytes);
    TIERCE_DASSERT(entry.parent == TIERCE__NO_SLOT || entry.parent < memory->slot_count);
    reserve_slot(memory, what->key, &entry, buf);
    return buf;
}

static struct tierce__buf *memory_reserve(struct tierce__tier *tier,
                                          const struct tierce__reserve *what)
{
    struct memory *memory = enter(tier);
    struct tierce__buf *buf = NULL;
    if (!memory->closed) {
        drop_expired(memory);
        buf = reserve_buf(memory, what);
    }
    leave(memory);
    return buf;
}

static uint64_t memory_evict(struct tierce__tier *tier, uint64_t bytes)
{
    struct memory *memory = enter(tier);
    uint64_t freed = 0;
    while (!memory->closed && freed < bytes) {
        uint64_t more = evict_one(memory, note_lack(memory, bytes - freed));
        if (more == 0)
            break;
        freed += more;
    }
    leave(memory);
    return freed;
}

static void memory_stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct memory *memory = enter(tier);
    struct tierce__pool_stats pool;
    tierce__pool_stats(memory->pool, &pool);
    *out = memory->stats;
    /* Buffers of removed entries count as long as others hold them. */
    out->used_slots =
        memory->slot_count < pool.buf_count_max ? tierce__index_count(memory->index) : pool.bufs;
    out->has_hints = tierce__policy_hints(memory->policy, &out->hints);
    TIERCE_DASSERT(out->chunks <= memory->slot_count && out->used_bytes <= out->cap_bytes);
    TIERCE_DASSERT((out->chunks == 0) == (out->used_bytes == 0));
    leave(memory);
}

static void memory_watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    struct memory *memory = enter(tier);
    TIERCE_ASSERT(memory->watch == NULL && memory->stats.put_chunks == 0);
    TIERCE_DASSERT(tierce__index_count(memory->index) == 0);
    memory->watch = fn;
    memory->watch_arg = arg;
    leave(memory);
}

static bool memory_scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                        tierce__tier_watch_fn *fn, void *arg)
{
    struct memory *memory = enter(tier);
    TIERCE_DASSERT(*cursor <= memory->slot_count);
    for (; *cursor < memory->slot_count && places > 0; places--, (*cursor)++) {
        if (!tierce__index_has(memory->index, *cursor))
            continue;
        struct tierce__tier_event event = describe(memory, *cursor);
        fn(arg, &event);
    }
    bool more = *cursor < memory->slot_count;
    leave(memory);
    return more;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy_parts(struct memory *memory)
{
    TIERCE_DASSERT(atomic_load(&memory->inside) == 0);
    memory->magic = 0;
    if (memory->policy != NULL)
        memory->policy->ops->destroy(memory->policy);
    tierce__index_destroy(memory->index);
    tierce__siblings_destroy(memory->siblings);
    tierce__free(memory->fresh);
    tierce__free(memory->notes);
    tierce__lock_fini(&memory->lock);
    tierce__free(memory);
}

static bool memory_close(struct tierce__tier *tier, uint64_t deadline_ns)
{
    (void)deadline_ns;
    struct memory *memory = enter(tier);
    TIERCE_ASSERT(!memory->closed);
    memory->closed = true;
    for (uint32_t slot = 0; slot < memory->slot_count && tierce__index_count(memory->index) > 0;
         slot++) {
        /* No hook runs inside, because the entry is no longer marked as kept. */
        if (buf_of(memory, slot) != NULL)
            tierce__buf_release(take_entry(memory, slot, TIERCE__LEFT_DELETED));
    }
    TIERCE_DASSERT(tierce__index_count(memory->index) == 0);
    TIERCE_DASSERT(memory->stats.chunks == 0 && memory->stats.used_bytes == 0);
    leave(memory);
    tierce__pool_clear_keeper(memory->pool);
    while (atomic_load(&memory->inside) != 0)
        sched_yield();
    destroy_parts(memory);
    return true;
}

static const struct tierce__tier_ops memory_ops = {
    .name = "memory",
    .caps = TIERCE__TIER_LENDS,
    .submit = memory_submit,
    .touch = memory_touch,
    .evict = memory_evict,
    .reserve = memory_reserve,
    .stats = memory_stats,
    .watch = memory_watch,
    .scan = memory_scan,
    .close = memory_close,
};

static int create_parts(struct memory *memory, const struct tierce__memory_opts *opts)
{
    struct tierce__pool_stats pool;
    tierce__pool_stats(opts->pool, &pool);
    uint32_t slots = opts->chunk_count_max > 0 ? opts->chunk_count_max : pool.buf_count_max;
    TIERCE_DASSERT(slots > 0);
    memory->slot_count = slots;
    memory->stats.cap_bytes = pool.cap_bytes;
    memory->stats.slots = slots < pool.buf_count_max ? slots : pool.buf_count_max;
    memory->notes = tierce__calloc(slots, sizeof(*memory->notes));
    memory->fresh = tierce__calloc(slots, sizeof(*memory->fresh));
    if (memory->notes == NULL || memory->fresh == NULL)
        return -ENOMEM;
    int rc = tierce__index_create(&memory->index, slots);
    if (rc == 0)
        rc = tierce__siblings_create(&memory->siblings, slots);
    if (rc < 0)
        return rc;
    rc = opts->policy->create(
        &memory->policy, &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                       .slot_count = slots,
                                                       .capacity = pool.cap_bytes,
                                                       .seed = opts->seed,
                                                       .ttl = opts->ttl_ms * 1000000,
                                                       .ops = opts->policy});
    if (rc < 0)
        return rc;
    return tierce__pool_set_keeper(opts->pool, on_idle, memory);
}

int tierce__memory_open(struct tierce__tier **out, const struct tierce__memory_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->pool == NULL || opts->policy == NULL)
        return TIERCE_E_ARGUMENT;
    struct memory *memory = tierce__calloc(1, sizeof(*memory));
    if (memory == NULL)
        return -ENOMEM;
    memory->base.ops = &memory_ops;
    memory->magic = MEMORY_MAGIC;
    memory->pool = opts->pool;
    memory->slots.opts = opts->slots;
    tierce__lock_init(&memory->lock, TIERCE__LOCK_MEMORY);
    int rc = create_parts(memory, opts);
    if (rc < 0) {
        destroy_parts(memory);
        return rc;
    }
    *out = &memory->base;
    return 0;
}
