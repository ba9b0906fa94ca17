/* SPDX-License-Identifier: Apache-2.0 */
#include "store/disk/disk.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "store/disk/disk_private.h"

#include <errno.h>

#define FILTER_SETS    16384u
#define FILTER_WAYS    4u
#define TOUCH_BATCH    128u  /* keys used at one time: their slots live on the stack */
#define CLEAR_PLACES   1024u /* slots under one hold of the lock */
#define CLOSE_GRACE_MS 2000u /* for calls into the kernel that are under way at the deadline */

static struct tierce__disk *disk_of(struct tierce__tier *tier)
{
    struct tierce__disk *d = (struct tierce__disk *)tier;
    TIERCE_CHECK_MAGIC(d, TIERCE__DISK_MAGIC);
    return d;
}

/* ---- submit ---------------------------------------------------------------------------------- */

/* A device that does not give transfers back is not given more. */
static bool is_down(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->abandoned <= 2 * d->io_depth + 2);
    return d->abandoned > 0 && d->abandoned >= (d->io_depth + 1) / 2;
}

static int lookup(struct tierce__disk *d, struct tierce__store_req *req)
{
    size_t found = 0;
    uint32_t slots[64];
    tierce__lock_assert_held(&d->lock);
    while (found < req->key_count) {
        size_t n = req->key_count - found < 64 ? req->key_count - found : 64;
        size_t got = tierce__index_find_prefix(d->table.index, slots, req->keys + found, n);
        TIERCE_DASSERT(got <= n);
        size_t seen = 0;
        while (seen < got && tierce__disk_is_served(d, slots[seen]) &&
               (!req->durable || d->table.chunks[slots[seen]].state == TIERCE__DISK_DURABLE))
            seen++;
        found += seen;
        if (seen < n)
            break;
    }
    TIERCE_DASSERT(found <= req->key_count);
    req->found = found;
    req->lacks_key = false;
    if (found < req->key_count && d->lacking_count > 0) {
        uint32_t slot = tierce__index_find(d->table.index, &req->keys[found]);
        req->lacks_key = slot != TIERCE__INDEX_NONE && d->table.chunks[slot].lacks_key;
    }
    if (req->key_count == 1 && found == 1) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[0]];
        req->object_bytes = tierce__disk_chunk_bytes(c);
        req->coded_bytes = c->raw_bytes > 0 ? c->object_bytes : 0;
        req->stored = c->seq;
    }
    return 0;
}

static int siblings(const struct tierce__disk *d, struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t slots[TIERCE__SIBLINGS_MAX];
    size_t got = tierce__siblings_find(d->siblings, slots, TIERCE__SIBLINGS_MAX, &req->keys[0]);
    TIERCE_DASSERT(req->found == 0);
    TIERCE_DASSERT(got <= TIERCE__SIBLINGS_MAX);
    for (size_t i = 0; i < got; i++) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[i]];
        TIERCE_DASSERT(tierce__disk_is_served(d, slots[i]));
        struct tierce__key key = *tierce__index_key(d->table.index, slots[i]), first = key;
        memcpy(first.hash, c->first_block, sizeof(first.hash));
        if (tierce__key_equal(&first, &req->keys[0]))
            req->siblings[req->found++] =
                (struct tierce__sibling){key, tierce__disk_chunk_bytes(c), c->block_count};
    }
    return 0;
}

/* Whether the key was asked for not long ago; it is remembered if not. A set forgets its oldest:
 * about the last 64k keys are known. */
static bool admit(struct tierce__disk *d, const struct tierce__key *key)
{
    tierce__lock_assert_held(&d->lock);
    uint64_t spread = tierce__key_spread(key) | 1; /* 0 is an empty place */
    uint64_t *set = d->admitted + (spread >> 1) % FILTER_SETS * FILTER_WAYS;
    TIERCE_DASSERT(set + FILTER_WAYS <= d->admitted + (size_t)FILTER_SETS * FILTER_WAYS);
    for (uint32_t i = 0; i < FILTER_WAYS; i++) {
        if (set[i] == spread) {
            set[i] = 0;
            return true;
        }
    }
    for (uint32_t i = FILTER_WAYS - 1; i > 0; i--)
        set[i] = set[i - 1];
    set[0] = spread;
    return false;
}

static struct tierce__list *bin_of(struct tierce__disk *d, const struct tierce__key *key)
{
    return &d->puts_by_key[tierce__key_spread(key) % TIERCE__DISK_PUT_BINS];
}

static struct tierce__store_req *put_of(struct tierce__list *by_key)
{
    return TIERCE__CONTAINER_OF(by_key, struct tierce__store_req, scratch[1]);
}

/* Waiting puts are not yet written, and their successors are useless without them: so the newest
 * put gets no room. One alone always has. */
static bool queue_is_full(const struct tierce__disk *d, uint64_t bytes)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__list_empty(&d->puts) == (d->queued_put_bytes == 0));
    return !tierce__list_empty(&d->puts) && d->queued_put_bytes + bytes > d->queue_bytes_max;
}

static bool is_queued(struct tierce__disk *d, const struct tierce__key *key)
{
    TIERCE__LIST_FOR_EACH (it, bin_of(d, key)) {
        if (tierce__key_equal(put_of(it)->keys, key))
            return true;
    }
    return false;
}

static bool put_is_sane(const struct tierce__store_req *req)
{
    uint64_t bytes = tierce__store_put_bytes(req);
    return req->buf != NULL && bytes > 0 && bytes % TIERCE__JOURNAL_PAGE == 0 &&
           bytes <= req->buf->bytes && req->object_bytes % TIERCE__JOURNAL_PAGE == 0 &&
           req->coded_bytes != req->object_bytes;
}

static bool get_is_sane(const struct tierce__store_req *req)
{
    uint64_t at = req->coded_bytes > 0 ? 0 : req->offset; /* in the buffer */
    return req->buf != NULL && req->offset % TIERCE__JOURNAL_PAGE == 0 &&
           req->length % TIERCE__JOURNAL_PAGE == 0 && at <= req->buf->bytes &&
           req->length <= req->buf->bytes - at;
}

/* The accepting part of a request that has to wait; its status is TIERCE_E_CANCELLED until then. */
static const int queued = TIERCE_E_CANCELLED;

static int accept_get(struct tierce__disk *d, struct tierce__store_req *req)
{
    if (!get_is_sane(req))
        return TIERCE_E_ARGUMENT;
    uint32_t slot = tierce__disk_find(d, req->keys);
    if (slot == TIERCE__INDEX_NONE || !tierce__disk_is_served(d, slot))
        return TIERCE_E_MISS;
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    tierce__list_push_back(&d->gets, &req->node);
    return queued;
}

static int accept_put(struct tierce__disk *d, struct tierce__store_req *req)
{
    if (!put_is_sane(req))
        return TIERCE_E_ARGUMENT;
    bool has_form;
    uint32_t slot = tierce__disk_find(d, req->keys);
    if (req->recodes) {
        int rc = tierce__disk_check_recode(d, req, &slot, &has_form);
        req->found = rc == 0 && has_form;
        if (rc < 0 || has_form)
            return rc;
    } else if (slot != TIERCE__INDEX_NONE && !d->table.chunks[slot].lacks_key) {
        return tierce__disk_is_served(d, slot) ? 0 : TIERCE_E_REFUSED;
    }
    if (slot == TIERCE__INDEX_NONE && d->admitted != NULL && !admit(d, req->keys))
        return TIERCE_E_REFUSED;
    if (queue_is_full(d, tierce__store_put_bytes(req))) {
        d->stats.dropped_puts++;
        if (slot == TIERCE__INDEX_NONE && d->admitted != NULL)
            (void)admit(d, req->keys); /* remembered again: the next put may find room */
        return TIERCE_E_FULL;
    }
    /* It is asked again when its turn comes; until then it would take the room of others. */
    if (!req->recodes && tierce__disk_lacks_parent(d, req) && !is_queued(d, req->parent))
        return TIERCE_E_REFUSED;
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    TIERCE_DASSERT(req->scratch[0] == 0);
    tierce__buf_acquire(req->buf);
    req->scratch[0] = TIERCE__DISK_HOLDS_BUF;
    d->queued_put_bytes += tierce__store_put_bytes(req);
    TIERCE_DASSERT(d->queued_put_bytes <= d->queue_bytes_max || tierce__list_empty(&d->puts));
    tierce__list_push_back(&d->puts, &req->node);
    tierce__list_push_back(bin_of(d, req->keys), tierce__disk_by_key(req));
    return queued;
}

static void cancel_queued(struct tierce__disk *d, const struct tierce__key *key,
                          struct tierce__list *finished)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, bin_of(d, key)) {
        struct tierce__store_req *put = put_of(it);
        TIERCE_DASSERT(put->op == TIERCE__STORE_PUT);
        if (!tierce__key_equal(put->keys, key))
            continue;
        tierce__list_remove(&put->node);
        tierce__disk_unqueued(d, put);
        tierce__disk_finish(finished, put, TIERCE_E_CANCELLED);
    }
}

static int accept_delete(struct tierce__disk *d, struct tierce__store_req *req,
                         struct tierce__list *finished)
{
    if (req->only_asks) {
        req->found = tierce__disk_may_return(d, req->keys);
        return 0;
    }
    cancel_queued(d, req->keys, finished);
    TIERCE_DASSERT(!is_queued(d, req->keys));
    uint32_t slot = tierce__index_find(d->table.index, req->keys);
    if (slot != TIERCE__INDEX_NONE && d->table.chunks[slot].state == TIERCE__DISK_WRITING)
        d->table.chunks[slot].cancelled = true;
    bool visible = slot != TIERCE__INDEX_NONE && tierce__disk_is_visible(d, slot);
    if (visible) {
        tierce__disk_doom(d, slot, req->left);
        tierce__disk_reap(d);
    }
    req->found = tierce__disk_may_return(d, req->keys);
    TIERCE_DASSERT(tierce__disk_find(d, req->keys) == TIERCE__INDEX_NONE);
    return visible ? 0 : TIERCE_E_MISS;
}

static int accept_hide(struct tierce__disk *d, struct tierce__store_req *req)
{
    uint32_t slot = tierce__disk_find(d, req->keys);
    bool for_key = req->left == TIERCE__LEFT_NO_KEY;
    if (slot == TIERCE__INDEX_NONE || (for_key && d->table.chunks[slot].seq != req->stored))
        return TIERCE_E_MISS;
    tierce__disk_hide(d, slot, for_key ? TIERCE__LEFT_NO_KEY : TIERCE__LEFT_VERSION);
    TIERCE_DASSERT(!tierce__disk_is_served(d, slot));
    return 0;
}

/* The lock is dropped on the way. */
static int accept_show(struct tierce__disk *d)
{
    for (uint32_t from = 0; from < d->table.slot_count && d->lacking_count > 0 && !d->closing;) {
        uint32_t left = d->table.slot_count - from;
        uint32_t to = from + (left < CLEAR_PLACES ? left : CLEAR_PLACES);
        tierce__disk_show(d, from, to);
        from = to;
        tierce__lock_drop(&d->lock);
        tierce__lock_take(&d->lock);
    }
    return d->closing ? TIERCE_E_CLOSED : 0;
}

/* The lock is dropped on the way. */
static int accept_clear(struct tierce__disk *d, struct tierce__store_req *req,
                        struct tierce__list *finished)
{
    const struct tierce__key *ns_of = req->key_count > 0 ? &req->keys[0] : NULL;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &d->puts) {
        struct tierce__store_req *put = tierce__disk_req_of(it);
        TIERCE_DASSERT(put->op == TIERCE__STORE_PUT);
        if (ns_of != NULL && put->keys[0].ns != ns_of->ns)
            continue;
        tierce__list_remove(it);
        tierce__disk_unqueued(d, put);
        tierce__disk_finish(finished, put, TIERCE_E_CANCELLED);
    }
    for (uint32_t from = 0; from < d->table.slot_count && !d->closing;) {
        uint32_t left = d->table.slot_count - from;
        uint32_t to = from + (left < CLEAR_PLACES ? left : CLEAR_PLACES);
        TIERCE_DASSERT(from < to && to <= d->table.slot_count);
        req->found += tierce__disk_clear(d, ns_of, from, to);
        tierce__disk_reap(d);
        from = to;
        tierce__lock_drop(&d->lock);
        tierce__lock_take(&d->lock);
    }
    return d->closing ? TIERCE_E_CLOSED : 0;
}

static int accept_flush(struct tierce__disk *d, struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    bool clean =
        d->limbo_head == d->limbo_tail && d->doomed == TIERCE__NO_SLOT && d->journal_error == 0;
    if (!req->removals)
        clean = clean && d->dirty.count == 0 && d->committing.count == 0 && d->unsaid_loss == 0;
    TIERCE_DASSERT(d->limbo_head <= d->limbo_tail);
    if (clean)
        return 0;
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    tierce__list_push_back(&d->flushes, &req->node);
    tierce__cond_signal(&d->journal_cond);
    return queued;
}

/* Answered by the next commit, which writes to the device for it. */
static int accept_ping(struct tierce__disk *d, struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    tierce__list_push_back(&d->flushes, &req->node);
    tierce__cond_signal(&d->journal_cond);
    return queued;
}

static int accept_request(struct tierce__disk *d, struct tierce__store_req *req,
                          struct tierce__list *finished)
{
    tierce__lock_assert_held(&d->lock);
    if (d->closing)
        return TIERCE_E_CLOSED;
    req->found = 0;
    bool wants_device = req->op == TIERCE__STORE_LOOKUP || req->op == TIERCE__STORE_SIBLINGS ||
                        req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT ||
                        req->op == TIERCE__STORE_PING;
    if (wants_device && is_down(d))
        return TIERCE_E_DOWN; /* a lookup too: it would promise chunks that cannot be loaded */
    tierce__disk_expire(d);
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        return lookup(d, req);
    case TIERCE__STORE_GET:
        return accept_get(d, req);
    case TIERCE__STORE_PUT:
        return accept_put(d, req);
    case TIERCE__STORE_DELETE:
        return accept_delete(d, req, finished);
    case TIERCE__STORE_HIDE:
        return accept_hide(d, req);
    case TIERCE__STORE_FLUSH:
        return accept_flush(d, req);
    case TIERCE__STORE_CLEAR:
        return accept_clear(d, req, finished);
    case TIERCE__STORE_SIBLINGS:
        return siblings(d, req);
    case TIERCE__STORE_SHOW:
        return accept_show(d);
    case TIERCE__STORE_PING:
        return accept_ping(d, req);
    case TIERCE__STORE_LIST:
        return TIERCE_E_UNSUPPORTED;
    }
    return TIERCE_E_ARGUMENT;
}

static void submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct tierce__disk *d = disk_of(tier);
    struct tierce__list finished;
    tierce__list_init(&finished);
    tierce__list_init(&req->node);
    memset(req->scratch, 0, sizeof(req->scratch));
    tierce__lock_take(&d->lock);
    int status = accept_request(d, req, &finished);
    bool waits = status == queued;
    TIERCE_DASSERT(!waits || !tierce__list_empty(&req->node));
    if (waits && req->deadline_ns < d->next_deadline)
        d->next_deadline = req->deadline_ns;
    bool wake = waits && d->polling;
    tierce__lock_drop(&d->lock);
    if (!waits)
        tierce__disk_finish(&finished, req, status);
    tierce__disk_wake_io(d, wake);
    tierce__disk_answer(&finished);
}

/* Uses [from, from + count) of the keys at one time, the last one first. */
static void touch_some(struct tierce__disk *d, const struct tierce__tier_uses *uses, size_t from,
                       size_t count, const struct tierce__policy_origin *origin)
{
    uint32_t slots[TOUCH_BATCH], heard = 0;
    const struct tierce__key *keys = uses->keys + from;
    TIERCE_DASSERT(count > 0 && count <= TOUCH_BATCH);
    tierce__lock_assert_held(&d->lock);
    for (size_t i = 0; i < count; i++) {
        uint32_t slot = tierce__disk_find(d, &keys[i]);
        if (slot != TIERCE__INDEX_NONE && tierce__disk_is_served(d, slot) &&
            tierce__policy_hears(d->policy, &d->table.chunks[slot].fresh, from + i < uses->used))
            slots[heard++] = slot;
    }
    if (heard == 0)
        return;
    tierce__policy_begin(
        d->policy,
        &(struct tierce__policy_request){
            .count = heard, .last_key = tierce__key_spread(&keys[count - 1]), .origin = *origin});
    while (heard-- > 0)
        d->policy->ops->touch(d->policy, slots[heard], tierce__now_ns());
}

static void touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    TIERCE_DASSERT(uses->used <= uses->count);
    struct tierce__policy_origin origin = uses->origin;
    struct tierce__disk *d = disk_of(tier);
    tierce__lock_take(&d->lock);
    for (size_t left = uses->count; left > 0; origin.ends = false) {
        size_t batch = left < TOUCH_BATCH ? left : TOUCH_BATCH;
        left -= batch;
        touch_some(d, uses, left, batch, &origin);
    }
    tierce__lock_drop(&d->lock);
}

static void stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct tierce__disk *d = disk_of(tier);
    tierce__lock_take(&d->lock);
    *out = d->stats;
    out->has_hints = tierce__policy_hints(d->policy, &out->hints);
    TIERCE_DASSERT(tierce__space_used(d->space) >= tierce__disk_blocked(d));
    out->full = tierce__disk_blocked(d) > 0;
    out->rejects = d->journal_error != 0;
    out->used_bytes = tierce__space_used(d->space) - tierce__disk_blocked(d) + d->journal_bytes +
                      d->text_bytes + TIERCE__JOURNAL_PAGE; /* the mark */
    out->used_slots = tierce__index_count(d->table.index);
    TIERCE_DASSERT(out->used_bytes <= out->cap_bytes);
    TIERCE_DASSERT(d->durable_count <= tierce__index_count(d->table.index));
    TIERCE_DASSERT((d->queued_put_bytes == 0) == tierce__list_empty(&d->puts));
    out->queued_bytes = d->queued_put_bytes + d->active_put_bytes;
    out->durable_chunks = d->durable_count;
    out->written_bytes_today = d->day == tierce__wall_s() / 86400 ? d->day_bytes : 0;
    tierce__lock_drop(&d->lock);
}

static void watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    struct tierce__disk *d = disk_of(tier);
    tierce__lock_take(&d->lock);
    TIERCE_ASSERT(d->watch == NULL && d->stats.put_chunks == 0);
    d->watch = fn;
    d->watch_arg = arg;
    tierce__lock_drop(&d->lock);
}

static bool scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg)
{
    struct tierce__disk *d = disk_of(tier);
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(*cursor <= d->table.slot_count);
    for (; *cursor < d->table.slot_count && places > 0; places--, (*cursor)++) {
        if (!tierce__index_has(d->table.index, *cursor) || !tierce__disk_is_served(d, *cursor))
            continue;
        struct tierce__tier_event event = tierce__disk_describe(d, *cursor);
        fn(arg, &event);
    }
    bool more = *cursor < d->table.slot_count;
    tierce__lock_drop(&d->lock);
    return more;
}

/* ---- close ----------------------------------------------------------------------------------- */

static uint64_t with_grace(uint64_t deadline_ns)
{
    uint64_t soonest = tierce__deadline_in_ms(CLOSE_GRACE_MS);
    return deadline_ns > soonest ? deadline_ns : soonest;
}

/* Waits until a flag is set, under the lock. */
static bool wait_for(struct tierce__disk *d, const bool *flag, uint64_t deadline_ns)
{
    tierce__lock_assert_held(&d->lock);
    while (!*flag && tierce__cond_wait(&d->ended_cond, &d->lock, deadline_ns))
        ;
    return *flag;
}

/*
 * Drains the queues, commits, ends the journal thread, then ends the I/O thread. Requests that are
 * not complete by the deadline are cancelled. A thread that does not return from the kernel is
 * leaked together with all memory it may still touch: a leak is better than a hang or a use after
 * free.
 */
static bool close_tier(struct tierce__tier *tier, uint64_t deadline_ns)
{
    struct tierce__disk *d = disk_of(tier);
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(!d->closing);
    d->closing = true;
    d->io_idle = false;
    d->vfs->ops->wake(d->vfs);
    if (!wait_for(d, &d->io_idle, deadline_ns)) {
        d->cancel = true;
        d->vfs->ops->wake(d->vfs);
    }
    d->journal_final = tierce__now_ns() < deadline_ns;
    d->journal_stop = !d->journal_final;
    tierce__cond_signal(&d->journal_cond);
    bool ended = wait_for(d, &d->journal_ended, deadline_ns);
    d->journal_stop = true; /* it may have many deletions to record, one batch after the other */
    tierce__cond_signal(&d->journal_cond);
    ended = ended || wait_for(d, &d->journal_ended, with_grace(deadline_ns));
    TIERCE_DASSERT(!ended || (d->committing.count == 0 && tierce__list_empty(&d->flushing)));
    d->cancel = true; /* flushes that no commit will answer any more */
    d->io_stop = true;
    TIERCE_DASSERT(d->closing && d->journal_stop);
    d->vfs->ops->wake(d->vfs);
    ended = wait_for(d, &d->io_ended, with_grace(deadline_ns)) && ended;
    TIERCE_DASSERT(!ended || (tierce__list_empty(&d->puts) && tierce__list_empty(&d->gets)));
    TIERCE_DASSERT(!ended || d->queued_put_bytes == 0);
    TIERCE_DASSERT(!ended || (tierce__list_empty(&d->flushes) && d->reading_count == 0));
    tierce__lock_drop(&d->lock);
    if (!ended) {
        tierce__log(TIERCE_LOG_ERROR, "disk_close_leaked", "path=%s", d->folder);
        pthread_detach(d->journal_thread);
        pthread_detach(d->io_thread);
        return false;
    }
    pthread_join(d->journal_thread, NULL);
    pthread_join(d->io_thread, NULL);
    tierce__disk_free(d);
    return true;
}

const struct tierce__tier_ops tierce__disk_ops = {
    .name = "disk",
    .caps = TIERCE__TIER_DURABLE,
    .submit = submit,
    .touch = touch,
    .stats = stats,
    .watch = watch,
    .scan = scan,
    .close = close_tier,
};
