/* SPDX-License-Identifier: Apache-2.0 */
#include "store/memory/memory_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define MEMORY_MAGIC 0x4d454d31u
#define KEY_BATCH    128u  /* keys looked up at a time: slots live on the stack */
#define CLEAR_BATCH  64u   /* entries cleared under one hold of the lock */
#define CLEAR_PLACES 4096u /* and slots looked at */

/* ---- entering and leaving -------------------------------------------------------------------- */

static struct tierce__memory *enter(struct tierce__tier *tier)
{
    struct tierce__memory *memory = (struct tierce__memory *)(void *)tier;
    TIERCE_CHECK_MAGIC(memory, MEMORY_MAGIC);
    atomic_fetch_add(&memory->inside, 1);
    tierce__lock_take(&memory->lock);
    return memory;
}

/* The last access of a call to the tier. */
static void leave(struct tierce__memory *memory)
{
    struct tierce__slots_news news = memory->news;
    TIERCE_DASSERT(atomic_load(&memory->inside) > 0);
    memory->news.is_due = false;
    tierce__lock_drop(&memory->lock);
    tierce__slots_log(&memory->slots, &news);
    atomic_fetch_sub(&memory->inside, 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* `bytes`: of all of them. */
static void lend(struct tierce__memory *memory, struct tierce__buf *const *bufs, size_t count,
                 uint64_t bytes)
{
    tierce__lock_assert_held(&memory->lock);
    tierce__bufs_acquire(bufs, count);
    memory->stats.get_chunks += count;
    memory->stats.get_bytes += bytes;
}

/* Lends leading slots while *room has bytes for them. Their lines are fetched before they are
 * written, so that the misses of all are in flight together. */
static void lend_slots(struct tierce__memory *memory, struct tierce__store_req *req,
                       const uint32_t *slots, size_t count, uint64_t *room)
{
    struct tierce__buf **bufs = req->bufs + req->lent;
    uint64_t before = *room;
    size_t lent = 0;
    TIERCE_DASSERT(req->lent == req->found && req->lent + count <= req->key_count);
    for (size_t i = 0; i < count; i++) {
        bufs[i] = tierce__memory_buf(memory, slots[i]);
        __builtin_prefetch(bufs[i], 1);
    }
    for (; lent < count && bufs[lent]->bytes <= *room; lent++)
        *room -= bufs[lent]->bytes;
    TIERCE_DASSERT(*room <= before);
    lend(memory, bufs, lent, before - *room);
    req->lent += lent;
}

static bool hears(struct tierce__memory *memory, uint32_t slot, bool again)
{
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(tierce__index_has(memory->index, slot));
    TIERCE_DASSERT(slot < memory->slot_count);
    return tierce__policy_hears(memory->policy, &memory->fresh[slot], again);
}

/* Uses slots at one time, the last one first; NONE is passed over. */
static void touch_slots(struct tierce__memory *memory, uint32_t *slots,
                        const struct tierce__key *keys, size_t count, size_t used,
                        const struct tierce__policy_origin *origin)
{
    uint32_t heard = 0;
    uint64_t now = tierce__memory_policy_now(memory);
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

static int run_lookup(struct tierce__memory *memory, struct tierce__store_req *req)
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

static int run_get(struct tierce__memory *memory, struct tierce__store_req *req)
{
    uint32_t slot = tierce__index_find(memory->index, &req->keys[0]);
    if (slot == TIERCE__INDEX_NONE)
        return TIERCE_E_MISS;
    req->buf = tierce__memory_buf(memory, slot);
    TIERCE_DASSERT(atomic_load_explicit(&req->buf->kept, memory_order_relaxed) == slot + 1);
    TIERCE_DASSERT(atomic_load(&req->buf->refs) >= 1);
    lend(memory, &req->buf, 1, req->buf->bytes);
    tierce__memory_await(memory, slot, req->buf);
    return 0;
}

/* *dropped as of run_delete. */
static int run_put(struct tierce__memory *memory, struct tierce__store_req *req,
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
    TIERCE_DASSERT(slot == TIERCE__NO_SLOT || tierce__memory_buf(memory, slot) == req->buf);
    if (old != TIERCE__INDEX_NONE)
        *dropped = tierce__memory_take(memory, old, TIERCE__LEFT_DELETED);
    if (slot == TIERCE__NO_SLOT) {
        struct tierce__policy_entry entry =
            tierce__memory_policy_entry(memory, &req->keys[0], req->buf->bytes, &req->origin);
        tierce__policy_expect(memory->policy, &entry);
        if (tierce__index_count(memory->index) == memory->slot_count &&
            tierce__memory_evict_one(memory, tierce__memory_note_lack(memory, 0), false) == 0)
            return TIERCE_E_FULL;
        if (req->parent != NULL)
            entry.parent = tierce__index_find(memory->index, req->parent);
        slot = tierce__memory_reserve_slot(memory, &req->keys[0], &entry, req->buf);
    }
    TIERCE_DASSERT(tierce__memory_buf(memory, slot) == req->buf);
    tierce__memory_show(memory, slot, req);
    return 0;
}

static int run_siblings(const struct tierce__memory *memory, struct tierce__store_req *req)
{
    uint32_t slots[TIERCE__SIBLINGS_MAX];
    size_t got =
        tierce__siblings_find(memory->siblings, slots, TIERCE__SIBLINGS_MAX, &req->keys[0]);
    req->found = 0;
    for (size_t i = 0; i < got; i++) {
        TIERCE_DASSERT(tierce__index_has(memory->index, slots[i]));
        const struct tierce__memory_note *note = &memory->notes[slots[i]];
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
static int run_delete(struct tierce__memory *memory, struct tierce__store_req *req,
                      struct tierce__buf **dropped)
{
    uint32_t slot = tierce__index_find(memory->index, &req->keys[0]);
    if (slot == TIERCE__INDEX_NONE)
        return TIERCE_E_MISS;
    *dropped = tierce__memory_take(
        memory, slot, req->op == TIERCE__STORE_HIDE ? TIERCE__LEFT_VERSION : req->left);
    return 0;
}

/* Takes out entries from *cursor on, a bounded number per hold of the lock; false at the end.
 * Leases stay valid, and no hook runs for them, because the tier no longer holds the buffers. */
static bool clear_some(struct tierce__memory *memory, struct tierce__store_req *req,
                       uint32_t *cursor)
{
    uint32_t left = CLEAR_BATCH, places = CLEAR_PLACES;
    tierce__lock_assert_held(&memory->lock);
    TIERCE_DASSERT(*cursor <= memory->slot_count);
    for (; *cursor < memory->slot_count && left > 0 && places > 0; places--, (*cursor)++) {
        if (!tierce__index_has(memory->index, *cursor))
            continue;
        if (req->key_count > 0 && tierce__index_key(memory->index, *cursor)->ns != req->keys[0].ns)
            continue;
        struct tierce__buf *buf = tierce__memory_take(memory, *cursor, TIERCE__LEFT_CLEARED);
        atomic_store_explicit(&buf->cleared, true, memory_order_relaxed); /* it may be pinned */
        tierce__buf_release(buf);
        req->found++;
        left--;
    }
    return *cursor < memory->slot_count;
}

/* The lock is dropped on the way. */
static int run_clear(struct tierce__memory *memory, struct tierce__store_req *req)
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

static int run_request(struct tierce__memory *memory, struct tierce__store_req *req,
                       struct tierce__buf **dropped)
{
    tierce__lock_assert_held(&memory->lock);
    if (memory->closed)
        return TIERCE_E_CLOSED;
    bool needs_key = req->op != TIERCE__STORE_LOOKUP && req->op != TIERCE__STORE_FLUSH &&
                     req->op != TIERCE__STORE_CLEAR && req->op != TIERCE__STORE_PING;
    if (req->key_count == 0 && needs_key)
        return TIERCE_E_ARGUMENT;
    tierce__memory_drop_expired(memory);
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
    struct tierce__memory *memory = enter(tier);
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
    struct tierce__memory *memory = enter(tier);
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
static uint32_t find_parent(const struct tierce__memory *memory, const struct tierce__reserve *what)
{
    tierce__lock_assert_held(&memory->lock);
    if (what->before != NULL)
        return atomic_load_explicit(&what->before->kept, memory_order_relaxed) - 1;
    return what->parent != NULL ? tierce__index_find(memory->index, what->parent) : TIERCE__NO_SLOT;
}

/* Whether the policy refuses a chunk for which there is no room; it then knows that it was used. */
static bool refuse(struct tierce__memory *memory, const struct tierce__reserve *what,
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

static struct tierce__buf *reserve_buf(struct tierce__memory *memory,
                                       const struct tierce__reserve *what)
{
    TIERCE_DASSERT(what->bytes > 0);
    TIERCE_DASSERT(what->refused != NULL || !what->follows_refused);
    struct tierce__policy_entry entry =
        tierce__memory_policy_entry(memory, what->key, what->bytes, &what->origin);
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
            tierce__memory_evict_one(memory, tierce__memory_note_lack(memory, what->bytes),
                                     what->keeps_prefixes) == 0)
            return NULL;
        asks = false;
    }
    entry.parent = find_parent(memory, what); /* now, as it may have been evicted */
    TIERCE_DASSERT(buf->bytes >= what->bytes);
    TIERCE_DASSERT(entry.parent == TIERCE__NO_SLOT || entry.parent < memory->slot_count);
    tierce__memory_reserve_slot(memory, what->key, &entry, buf);
    return buf;
}

static struct tierce__buf *memory_reserve(struct tierce__tier *tier,
                                          const struct tierce__reserve *what)
{
    struct tierce__memory *memory = enter(tier);
    struct tierce__buf *buf = NULL;
    if (!memory->closed) {
        tierce__memory_drop_expired(memory);
        buf = reserve_buf(memory, what);
    }
    leave(memory);
    return buf;
}

static uint64_t memory_evict(struct tierce__tier *tier, uint64_t bytes)
{
    struct tierce__memory *memory = enter(tier);
    uint64_t freed = 0;
    while (!memory->closed && freed < bytes) {
        uint64_t more = tierce__memory_evict_one(
            memory, tierce__memory_note_lack(memory, bytes - freed), false);
        if (more == 0)
            break;
        freed += more;
    }
    leave(memory);
    return freed;
}

static void memory_stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct tierce__memory *memory = enter(tier);
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
    struct tierce__memory *memory = enter(tier);
    TIERCE_ASSERT(memory->watch == NULL && memory->stats.put_chunks == 0);
    TIERCE_DASSERT(tierce__index_count(memory->index) == 0);
    memory->watch = fn;
    memory->watch_arg = arg;
    leave(memory);
}

static bool memory_scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                        tierce__tier_watch_fn *fn, void *arg)
{
    struct tierce__memory *memory = enter(tier);
    TIERCE_DASSERT(*cursor <= memory->slot_count);
    for (; *cursor < memory->slot_count && places > 0; places--, (*cursor)++) {
        if (!tierce__index_has(memory->index, *cursor))
            continue;
        struct tierce__tier_event event = tierce__memory_describe(memory, *cursor);
        fn(arg, &event);
    }
    bool more = *cursor < memory->slot_count;
    leave(memory);
    return more;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy_parts(struct tierce__memory *memory)
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
    struct tierce__memory *memory = enter(tier);
    TIERCE_ASSERT(!memory->closed);
    memory->closed = true;
    for (uint32_t slot = 0; slot < memory->slot_count && tierce__index_count(memory->index) > 0;
         slot++) {
        /* No hook runs inside, because the entry is no longer marked as kept. */
        if (tierce__memory_buf(memory, slot) != NULL)
            tierce__buf_release(tierce__memory_take(memory, slot, TIERCE__LEFT_DELETED));
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

static int create_parts(struct tierce__memory *memory, const struct tierce__memory_opts *opts)
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
    return tierce__pool_set_keeper(opts->pool, tierce__memory_on_idle, memory);
}

int tierce__memory_open(struct tierce__tier **out, const struct tierce__memory_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->pool == NULL || opts->policy == NULL)
        return TIERCE_E_ARGUMENT;
    struct tierce__memory *memory = tierce__calloc(1, sizeof(*memory));
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
