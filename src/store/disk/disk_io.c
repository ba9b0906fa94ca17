/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <xxhash.h>

#define READS_IN_ROW 3u /* transfers; the next is a write if one waits */

/*
 * The I/O thread. Each turn of its loop does, in this order: take in the transfers that came back;
 * answer what is too late; plan as many new transfers as there is room for, mostly reads; then,
 * without the lock, submit them, answer requests, and sleep in poll until something happens.
 */

struct tierce__store_req *tierce__disk_req_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__store_req, node);
}

void tierce__disk_unqueued(struct tierce__disk *d, struct tierce__store_req *put)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(put->op == TIERCE__STORE_PUT && !tierce__list_empty(tierce__disk_by_key(put)));
    TIERCE_DASSERT(d->queued_put_bytes >= tierce__store_put_bytes(put));
    tierce__list_remove(tierce__disk_by_key(put));
    d->queued_put_bytes -= tierce__store_put_bytes(put);
}

void tierce__disk_finish(struct tierce__list *finished, struct tierce__store_req *req, int status)
{
    TIERCE_DASSERT(status <= 0);
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    req->status = status;
    tierce__list_push_back(finished, &req->node);
}

void tierce__disk_answer(struct tierce__list *finished)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (!tierce__list_empty(finished)) {
        struct tierce__store_req *req = tierce__disk_req_of(finished->next);
        tierce__list_remove(&req->node);
        if (req->op == TIERCE__STORE_PUT && (req->scratch[0] & TIERCE__DISK_HOLDS_BUF) != 0)
            tierce__buf_release(req->buf);
        req->done(req);
    }
}

void tierce__disk_wake_io(struct tierce__disk *d, bool polling)
{
    if (polling)
        d->vfs->ops->wake(d->vfs);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void xfer_done(struct tierce__vfs_io *io)
{
    struct tierce__disk *d = io->arg;
    TIERCE_DASSERT(tierce__disk_is_on_io(d));
    struct tierce__disk_xfer *x = TIERCE__CONTAINER_OF(io, struct tierce__disk_xfer, io);
    TIERCE_DASSERT(x->op->flying > 0 && tierce__list_empty(&x->node));
    tierce__list_push_back(&d->returned, &x->node);
}

int tierce__disk_io_init(struct tierce__disk *d)
{
    tierce__list_init(&d->free_ops);
    tierce__list_init(&d->active_ops);
    tierce__list_init(&d->free_xfers);
    tierce__list_init(&d->returned);
    /* A transfer each, two that have none yet, and those that ended in the same turn. */
    uint32_t op_count = 2 * d->io_depth + 2;
    d->ops = tierce__calloc(op_count, sizeof(*d->ops));
    d->xfers = tierce__calloc(d->io_depth, sizeof(*d->xfers));
    if (d->ops == NULL || d->xfers == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < op_count; i++) {
        tierce__list_init(&d->ops[i].followers);
        tierce__list_push_back(&d->free_ops, &d->ops[i].node);
    }
    for (uint32_t i = 0; i < d->io_depth; i++) {
        d->xfers[i].io.done = xfer_done;
        d->xfers[i].io.arg = d;
        tierce__list_push_back(&d->free_xfers, &d->xfers[i].node);
    }
    return 0;
}

void tierce__disk_io_fini(struct tierce__disk *d)
{
    tierce__free(d->ops);
    tierce__free(d->xfers);
}

/* ---- the end of an op ------------------------------------------------------------------------ */

/* The last transfer is back: settles the chunk and the requests; frees the op's buffer later. */
static void end_op(struct tierce__disk *d, struct tierce__disk_op *op,
                   struct tierce__list *finished, struct tierce__list *spent)
{
    TIERCE_DASSERT(tierce__disk_is_on_io(d));
    bool is_new = op->is_put && op->recode == NULL;
    TIERCE_DASSERT(!is_new || op->length == d->table.chunks[op->slot].object_bytes);
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(op->flying == 0 && op->issued == op->length);
    TIERCE_DASSERT(d->get_op != op && d->put_op != op);
    TIERCE_DASSERT(!is_new || d->table.chunks[op->slot].state == TIERCE__DISK_WRITING);
    if (op->is_put && op->status == 0 && op->sync_epoch != d->sync_epoch)
        op->status = -EIO; /* a sync failed while the bytes were on their way */
    if (is_new && op->status == 0 && d->table.chunks[op->slot].cancelled)
        op->status = TIERCE_E_CANCELLED;
    if (op->status == -ENODATA)
        op->status = -EIO; /* the file is shorter than the journal says */
    if (op->status < 0 && op->status > -5000)
        d->stats.errors++;
    if (op->is_put) {
        TIERCE_DASSERT(d->active_put_bytes >= op->length);
        d->active_put_bytes -= op->length;
        if (op->recode != NULL)
            op->status = tierce__disk_end_recode(d, op->recode, op->status);
        else if (op->status == 0)
            tierce__disk_publish(d, op->slot);
        else
            tierce__disk_abort(d, op->slot);
        if (tierce__disk_is_full_error(op->status))
            tierce__disk_write_found_full(d);
    } else {
        tierce__disk_unhold(d, op->slot);
    }
    TIERCE_DASSERT(op->req != NULL || d->abandoned > 0);
    if (op->req == NULL)
        d->abandoned--;
    if (op->req != NULL && !op->is_put && op->status == 0) {
        d->stats.get_chunks++;
        d->stats.get_bytes += op->length;
    }
    if (op->req != NULL)
        tierce__disk_finish(finished, op->req, op->status);
    while (!tierce__list_empty(&op->followers)) {
        struct tierce__store_req *req = tierce__disk_req_of(op->followers.next);
        tierce__list_remove(&req->node);
        tierce__disk_finish(finished, req, op->status);
    }
    tierce__list_remove(&op->node);
    tierce__list_push_back(spent, &op->node);
}

static void stop_issuing(struct tierce__disk *d, struct tierce__disk_op *op)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(op->issued <= op->length);
    if (d->get_op == op)
        d->get_op = NULL;
    if (d->put_op == op)
        d->put_op = NULL;
    op->issued = op->length;
}

static void take_in(struct tierce__disk *d, struct tierce__list *finished,
                    struct tierce__list *spent)
{
    tierce__lock_assert_held(&d->lock);
    while (!tierce__list_empty(&d->returned)) {
        struct tierce__disk_xfer *x =
            TIERCE__CONTAINER_OF(d->returned.next, struct tierce__disk_xfer, node);
        struct tierce__disk_op *op = x->op;
        TIERCE_DASSERT(op->flying > 0 && x->io.is_write == op->is_put);
        tierce__list_remove(&x->node);
        tierce__list_push_back(&d->free_xfers, &x->node);
        TIERCE_DASSERT(x->io.is_write ? d->writes_flying > 0 : d->reads_flying > 0);
        if (x->io.is_write)
            d->writes_flying--;
        else
            d->reads_flying--;
        if (x->io.is_write && x->io.result > 0)
            tierce__disk_count_written(d, (uint64_t)x->io.result);
        if (x->io.result < 0 && op->status == 0) {
            op->status = (int)x->io.result;
            stop_issuing(d, op);
        }
        op->flying--;
        if (op->flying == 0 && op->issued == op->length)
            end_op(d, op, finished, spent);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */

struct disk_sweep {
    struct tierce__list *finished;
    struct tierce__list *spent;
    uint64_t now;
    uint64_t next;
    bool cancel;
};

/* Answers a request that is too late, or that close has no time for; true if it did. */
static bool expire(struct disk_sweep *s, struct tierce__store_req *req)
{
    bool late = req->deadline_ns <= s->now;
    if (!late && !s->cancel) {
        if (req->deadline_ns < s->next)
            s->next = req->deadline_ns;
        return false;
    }
    tierce__list_remove(&req->node);
    tierce__disk_finish(s->finished, req, s->cancel ? TIERCE_E_CLOSED : TIERCE_E_DEADLINE);
    return true;
}

static void expire_list(struct disk_sweep *s, struct tierce__list *list)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, list)
        expire(s, tierce__disk_req_of(it));
}

/* The request of an op was answered at its deadline. The buffer stays ours until the device has
 * released it. A put continues, so that the work is not lost, unless the tier closes. */
static void abandon(struct tierce__disk *d, struct disk_sweep *s, struct tierce__disk_op *op)
{
    TIERCE_DASSERT(d->cancel == s->cancel && !tierce__list_empty(&op->node));
    tierce__lock_assert_held(&d->lock);
    op->req = NULL;
    d->abandoned++;
    TIERCE_DASSERT(d->abandoned <= 2 * d->io_depth + 2);
    if (op->is_put && !s->cancel)
        return;
    if (op->status == 0)
        op->status = s->cancel ? TIERCE_E_CLOSED : TIERCE_E_DEADLINE;
    stop_issuing(d, op);
    if (op->flying == 0)
        end_op(d, op, s->finished, s->spent);
}

static void sweep_late(struct tierce__disk *d, struct tierce__list *finished,
                       struct tierce__list *spent)
{
    struct disk_sweep s = {.finished = finished,
                           .spent = spent,
                           .now = tierce__now_ns(),
                           .next = TIERCE__DEADLINE_NEVER,
                           .cancel = d->cancel};
    tierce__lock_assert_held(&d->lock);
    if (s.now < d->next_deadline && !s.cancel)
        return;
    expire_list(&s, &d->gets);
    expire_list(&s, &d->flushes);
    expire_list(&s, &d->flushing);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &d->puts) {
        struct tierce__store_req *req = tierce__disk_req_of(it);
        if (expire(&s, req))
            tierce__disk_unqueued(d, req);
    }
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &d->active_ops) {
        struct tierce__disk_op *op = TIERCE__CONTAINER_OF(it, struct tierce__disk_op, node);
        expire_list(&s, &op->followers);
        if (op->req != NULL && expire(&s, op->req))
            abandon(d, &s, op);
    }
    TIERCE_DASSERT(!s.cancel || (tierce__list_empty(&d->gets) && tierce__list_empty(&d->puts)));
    TIERCE_DASSERT(s.next > s.now);
    d->next_deadline = s.next;
}

/* ---- planning -------------------------------------------------------------------------------- */

static struct tierce__disk_op *new_op(struct tierce__disk *d, struct tierce__store_req *req,
                                      uint32_t slot, uint64_t offset, uint64_t length)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(length > 0);
    TIERCE_DASSERT(slot < d->table.slot_count);
    TIERCE_ASSERT(!tierce__list_empty(&d->free_ops));
    uint64_t at = req->coded_bytes > 0 ? 0 : offset; /* in the buffer */
    TIERCE_ASSERT(at <= req->buf->bytes && length <= req->buf->bytes - at);
    TIERCE_ASSERT(req->recodes || offset + length <= d->table.chunks[slot].object_bytes);
    struct tierce__disk_op *op =
        TIERCE__CONTAINER_OF(d->free_ops.next, struct tierce__disk_op, node);
    tierce__list_remove(&op->node);
    *op = (struct tierce__disk_op){.req = req,
                                   .buf = req->buf,
                                   .data = req->buf->data + at,
                                   .file_offset = d->table.chunks[slot].offset + offset,
                                   .length = length,
                                   .sync_epoch = d->sync_epoch,
                                   .slot = slot,
                                   .is_put = req->op == TIERCE__STORE_PUT};
    tierce__list_init(&op->followers);
    tierce__list_push_back(&d->active_ops, &op->node);
    return op;
}

/* Whether the chunk in a slot is the object of which a GET wants a range. */
static bool is_wanted(const struct tierce__disk_chunk *c, const struct tierce__store_req *req)
{
    uint64_t end;
    if (!tierce__add_ok(&end, req->offset, req->length) || end > c->object_bytes)
        return false;
    return req->coded_bytes == 0 ? c->raw_bytes == 0 : c->raw_bytes > 0 && c->seq == req->stored;
}

static void start_get(struct tierce__disk *d, struct tierce__store_req *req,
                      struct tierce__list *finished)
{
    TIERCE_DASSERT(tierce__disk_is_on_io(d));
    uint32_t slot = tierce__disk_find(d, req->keys);
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(d->get_op == NULL && req->op == TIERCE__STORE_GET);
    if (slot == TIERCE__INDEX_NONE || !is_wanted(&d->table.chunks[slot], req)) {
        tierce__disk_finish(finished, req, TIERCE_E_MISS);
    } else if (req->length == 0) {
        tierce__disk_finish(finished, req, 0);
    } else {
        tierce__buf_acquire(req->buf);
        tierce__disk_hold(d, slot);
        d->get_op = new_op(d, req, slot, req->offset, req->length);
    }
}

/* Evicts before there is need, so that puts do not wait for the commit that frees the space. A
 * store that evicts in batches is at most one and a half of them short of full by it. bench disk,
 * writes: 0.88 to 0.91 of the bare loop, 2026-11. */
static void evict_ahead(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__space_used(d->space) <= d->data_cap);
    uint64_t left = d->data_cap - tierce__space_used(d->space);
    if (left < tierce__disk_evict_batch(d) / 2 && d->limbo_bytes == 0 &&
        tierce__disk_evict(d, 0, TIERCE__LEFT_EVICTED))
        tierce__disk_want_commit(d, true);
}

/* Why the full index has no place for a put: `bytes` are lacking too, or only a slot, which is
 * counted. */
static enum tierce__tier_left note_full(struct tierce__disk *d, uint64_t bytes)
{
    uint64_t used = tierce__space_used(d->space);
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(used <= d->data_cap && used >= tierce__disk_blocked(d));
    if (bytes > d->data_cap - used)
        return TIERCE__LEFT_EVICTED;
    tierce__slots_note(&d->slots, &d->slots_news, &d->stats, used - tierce__disk_blocked(d));
    return TIERCE__LEFT_NO_SLOT;
}

/* Finds space for a put. Nothing is evicted for a put that recodes. Errors: TIERCE_E_MISS (not now:
 * the journal thread will wake us); those that end the put. */
static int find_space(struct tierce__disk *d, uint64_t *offset, uint64_t bytes, bool is_new)
{
    TIERCE_DASSERT(bytes > 0 && bytes % TIERCE__JOURNAL_PAGE == 0);
    tierce__lock_assert_held(&d->lock);
    bool full = is_new && tierce__index_count(d->table.index) >= d->chunk_count_max;
    uint64_t blocked = tierce__disk_blocked(d);
    if (blocked > 0 && bytes > d->data_cap - blocked) {
        tierce__disk_want_growth(d, d->allocated);
        return -ENOSPC; /* all that there is would not be enough */
    }
    int rc = full ? TIERCE_E_FULL : tierce__space_take(d->space, offset, bytes);
    if (rc == TIERCE_E_FULL) {
        if (blocked > 0)
            tierce__disk_want_growth(d, d->allocated);
        enum tierce__tier_left left = full ? note_full(d, bytes) : TIERCE__LEFT_EVICTED;
        /* The space in limbo may suffice, or may be too scattered: wait for it first. Limbo holds
         * no free slots. */
        bool some =
            (!full && d->limbo_bytes >= bytes) || (is_new && tierce__disk_evict(d, bytes, left));
        if (some && full)
            return find_space(d, offset, bytes, is_new); /* a slot is free at once */
        if (!some && !(is_new && tierce__disk_will_free(d)))
            return TIERCE_E_FULL;
        tierce__disk_want_commit(d, true);
        return TIERCE_E_MISS;
    }
    if (rc < 0)
        return rc == TIERCE_E_LIMIT ? TIERCE_E_FULL : rc;
    uint64_t end = *offset + bytes;
    TIERCE_DASSERT(end <= d->data_cap);
    if (end <= d->allocated) {
        if (end + d->grow_bytes / 2 > d->allocated && blocked == 0)
            tierce__disk_want_growth(d, end);
        if (is_new)
            evict_ahead(d);
        return 0;
    }
    tierce__space_give(d->space, *offset, bytes);
    if (d->grow_error != 0) {
        rc = d->grow_error;
        d->grow_error = 0;
        return rc;
    }
    if (d->shrinking)
        tierce__disk_want_commit(d, true);
    else
        tierce__disk_want_growth(d, end);
    return TIERCE_E_MISS;
}

static struct tierce__policy_entry entry_of(const struct tierce__disk *d,
                                            const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t parent = TIERCE__NO_SLOT;
    if (req->parent != NULL)
        parent = tierce__index_find(d->table.index, req->parent);
    if (parent != TIERCE__NO_SLOT && d->table.chunks[parent].doomed)
        parent = TIERCE__NO_SLOT; /* the policy does not know it any more */
    return (struct tierce__policy_entry){.key = tierce__key_spread(req->keys),
                                         .bytes = tierce__store_put_bytes(req),
                                         .now = tierce__now_ns(),
                                         .parent = parent,
                                         .origin = req->origin};
}

/* Gives a put its slot and space. Results as of find_space. */
static int claim_place(struct tierce__disk *d, struct tierce__store_req *req, uint32_t *slot)
{
    tierce__lock_assert_held(&d->lock);
    uint64_t offset, bytes = tierce__store_put_bytes(req);
    if ((req->scratch[0] & TIERCE__DISK_EXPECTED) == 0) {
        struct tierce__policy_entry expected = entry_of(d, req);
        tierce__policy_expect(d->policy, &expected);
        req->scratch[0] |= TIERCE__DISK_EXPECTED;
    }
    int rc = find_space(d, &offset, bytes, true);
    if (rc < 0)
        return rc;
    *slot = tierce__index_insert(d->table.index, req->keys);
    TIERCE_DASSERT(*slot == TIERCE__INDEX_NONE || offset % TIERCE__JOURNAL_PAGE == 0);
    if (*slot == TIERCE__INDEX_NONE) {
        tierce__space_give(d->space, offset, bytes);
        return TIERCE_E_FULL;
    }
    TIERCE_DASSERT(d->table.chunks[*slot].state == TIERCE__DISK_NONE);
    struct tierce__disk_chunk *c = &d->table.chunks[*slot];
    *c = (struct tierce__disk_chunk){.offset = offset,
                                     .object_bytes = bytes,
                                     .raw_bytes = req->coded_bytes > 0 ? req->object_bytes : 0,
                                     .token_start = req->token_start,
                                     .block_count = req->block_count,
                                     .head_sum = XXH3_64bits(req->buf->data, TIERCE__JOURNAL_PAGE),
                                     .state = TIERCE__DISK_WRITING,
                                     .fresh = true};
    if (req->parent != NULL)
        memcpy(c->parent, req->parent->hash, sizeof(c->parent));
    if (req->first_block != NULL)
        memcpy(c->first_block, req->first_block, sizeof(c->first_block));
    struct tierce__policy_entry entry = entry_of(d, req); /* the parent may have been evicted */
    d->policy->ops->insert(d->policy, *slot, &entry);
    d->policy->ops->set_evictable(d->policy, *slot, false);
    return 0;
}

/* The op that is writing `slot`. */
static struct tierce__disk_op *writer_of(struct tierce__disk *d, uint32_t slot)
{
    TIERCE_DASSERT(d->table.chunks[slot].state != TIERCE__DISK_NONE);
    TIERCE__LIST_FOR_EACH (it, &d->active_ops) {
        struct tierce__disk_op *op = TIERCE__CONTAINER_OF(it, struct tierce__disk_op, node);
        if (op->is_put && op->recode == NULL && op->slot == slot)
            return op;
    }
    return NULL;
}

bool tierce__disk_lacks_parent(const struct tierce__disk *d, const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    if (!req->needs_parent || req->parent == NULL)
        return false;
    uint32_t slot = tierce__index_find(d->table.index, req->parent);
    return slot == TIERCE__INDEX_NONE || d->table.chunks[slot].doomed ||
           d->table.chunks[slot].cancelled;
}

static void unqueue(struct tierce__disk *d, struct tierce__store_req *put)
{
    tierce__list_remove(&put->node);
    tierce__disk_unqueued(d, put);
}

/* Starts a put that recodes. Returns false if the put must wait. */
static bool start_recode(struct tierce__disk *d, struct tierce__store_req *req,
                         struct tierce__list *finished)
{
    uint64_t offset, bytes = tierce__store_put_bytes(req);
    uint32_t slot;
    bool has_form;
    struct tierce__disk_recode *recode = NULL;
    int rc = tierce__disk_check_recode(d, req, &slot, &has_form);
    if (rc == 0 && !has_form) {
        rc = d->journal_error != 0 ? d->journal_error : find_space(d, &offset, bytes, false);
        if (rc == TIERCE_E_MISS)
            return false; /* space will be free later */
    }
    if (rc == 0 && !has_form) {
        recode = tierce__disk_begin_recode(d, slot, offset, req);
        if (recode == NULL) {
            tierce__space_give(d->space, offset, bytes);
            rc = TIERCE_E_REFUSED;
        }
    }
    unqueue(d, req);
    if (recode == NULL) {
        req->found = rc == 0;
        tierce__disk_finish(finished, req, rc);
        return true;
    }
    req->scratch[0] = 0; /* the reference is the op's now */
    d->active_put_bytes += bytes;
    d->put_op = new_op(d, req, slot, 0, bytes);
    d->put_op->recode = recode;
    d->put_op->file_offset = offset;
    return true;
}

/* A chunk that is hidden for its key leaves for a put that may be stored: the slot of the key from
 * then on. */
static uint32_t make_way(struct tierce__disk *d, const struct tierce__store_req *req, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    if (slot == TIERCE__INDEX_NONE || !d->table.chunks[slot].lacks_key)
        return slot;
    tierce__disk_doom(d, slot, TIERCE__LEFT_NO_KEY);
    tierce__disk_reap(d);
    return tierce__index_find(d->table.index, req->keys);
}

/* Takes the first put off the queue, unless it has to wait; false then. */
static bool start_put(struct tierce__disk *d, struct tierce__list *finished)
{
    TIERCE_DASSERT(tierce__disk_is_on_io(d));
    TIERCE_DASSERT(!tierce__list_empty(&d->puts));
    struct tierce__store_req *req = tierce__disk_req_of(d->puts.next);
    uint32_t slot = tierce__index_find(d->table.index, req->keys);
    int rc = d->journal_error;
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(req->op == TIERCE__STORE_PUT && d->put_op == NULL);
    if (req->recodes)
        return start_recode(d, req, finished);
    bool is_new = slot == TIERCE__INDEX_NONE || d->table.chunks[slot].lacks_key;
    if (is_new && rc == 0 && tierce__disk_lacks_parent(d, req))
        rc = TIERCE_E_REFUSED;
    if (rc == 0)
        slot = make_way(d, req, slot);
    if (slot != TIERCE__INDEX_NONE &&
        (d->table.chunks[slot].doomed || d->table.chunks[slot].cancelled))
        return false; /* the old one has to leave first */
    if (is_new && rc == 0) {
        rc = claim_place(d, req, &slot);
        if (rc == TIERCE_E_MISS)
            return false;
    } else if (!is_new) {
        struct tierce__disk_op *writer = writer_of(d, slot);
        TIERCE_DASSERT(writer != NULL || tierce__disk_is_visible(d, slot));
        unqueue(d, req);
        if (writer != NULL)
            tierce__list_push_back(&writer->followers, &req->node);
        else
            tierce__disk_finish(finished, req, 0);
        return true;
    }
    unqueue(d, req);
    if (rc < 0) {
        d->stats.errors += rc != TIERCE_E_FULL && rc != TIERCE_E_REFUSED;
        tierce__disk_finish(finished, req, rc);
        return true;
    }
    TIERCE_DASSERT(d->table.chunks[slot].state == TIERCE__DISK_WRITING);
    req->scratch[0] = 0; /* the reference is the op's now */
    d->active_put_bytes += tierce__store_put_bytes(req);
    d->put_op = new_op(d, req, slot, 0, tierce__store_put_bytes(req));
    return true;
}

static void issue(struct tierce__disk *d, struct tierce__disk_op *op, struct tierce__list *batch)
{
    TIERCE_DASSERT(tierce__disk_is_on_io(d));
    TIERCE_DASSERT(!tierce__list_empty(&d->free_xfers));
    struct tierce__disk_xfer *x =
        TIERCE__CONTAINER_OF(d->free_xfers.next, struct tierce__disk_xfer, node);
    tierce__list_remove(&x->node);
    uint64_t left = op->length - op->issued;
    TIERCE_DASSERT(left > 0);
    x->op = op;
    x->io.file = d->data;
    x->io.is_write = op->is_put;
    x->io.data = op->data + op->issued;
    x->io.offset = op->file_offset + op->issued;
    /* A remainder of a few pages, such as after a header, does not get its own transfer. */
    x->io.length = left < d->io_bytes + d->io_bytes / 8 ? (uint32_t)left : d->io_bytes;
    TIERCE_DASSERT(op->recode != NULL ||
                   op->file_offset + op->issued >= d->table.chunks[op->slot].offset);
    TIERCE_DASSERT(x->io.length > 0 && x->io.length <= left);
    TIERCE_ASSERT(!op->is_put || x->io.offset + x->io.length <= d->data_cap);
    op->issued += x->io.length;
    op->flying++;
    if (op->is_put)
        d->writes_flying++;
    else
        d->reads_flying++;
    TIERCE_DASSERT(d->reads_flying + d->writes_flying <= d->io_depth);
    d->reads_in_row = op->is_put ? 0 : d->reads_in_row + 1;
    if (op->issued == op->length)
        stop_issuing(d, op);
    tierce__list_push_back(batch, &x->node);
}

/* Writes may fill the device's queue while there are no reads, and half of it otherwise. */
static bool may_write(const struct tierce__disk *d)
{
    bool reads = d->get_op != NULL || d->reads_flying > 0 || !tierce__list_empty(&d->gets);
    TIERCE_DASSERT(d->writes_flying <= d->io_depth);
    return d->writes_flying < (reads ? (d->io_depth + 1) / 2 : d->io_depth);
}

/* Answers, starts or issues one step of a read; false if there is none. */
static bool plan_read(struct tierce__disk *d, struct tierce__list *finished,
                      struct tierce__list *batch)
{
    tierce__lock_assert_held(&d->lock);
    if (d->get_op != NULL) {
        issue(d, d->get_op, batch);
        return true;
    }
    if (tierce__list_empty(&d->gets))
        return false;
    struct tierce__store_req *req = tierce__disk_req_of(d->gets.next);
    tierce__list_remove(&req->node);
    start_get(d, req, finished);
    return true;
}

/* The same of a write; false also if it has to wait. */
static bool plan_write(struct tierce__disk *d, struct tierce__list *finished,
                       struct tierce__list *batch)
{
    tierce__lock_assert_held(&d->lock);
    if (!may_write(d))
        return false;
    if (d->put_op == NULL)
        return !tierce__list_empty(&d->puts) && start_put(d, finished);
    issue(d, d->put_op, batch);
    return true;
}

/* Reads come first, because callers wait for them; but while writes are pending, every fourth
 * transfer is a write. */
static void plan(struct tierce__disk *d, struct tierce__list *finished, struct tierce__list *batch)
{
    tierce__lock_assert_held(&d->lock);
    while (!tierce__list_empty(&d->free_xfers)) {
        bool write_is_due = d->reads_in_row >= READS_IN_ROW;
        bool went_on = write_is_due && plan_write(d, finished, batch);
        if (!went_on && !plan_read(d, finished, batch) && !plan_write(d, finished, batch))
            return;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void submit_batch(struct tierce__disk *d, struct tierce__list *batch)
{
    TIERCE_DASSERT(tierce__disk_is_on_io(d) && !tierce__lock_holds_any());
    while (!tierce__list_empty(batch)) {
        struct tierce__disk_xfer *x =
            TIERCE__CONTAINER_OF(batch->next, struct tierce__disk_xfer, node);
        TIERCE_DASSERT(x->op->flying > 0);
        tierce__list_remove(&x->node);
        d->vfs->ops->submit(d->vfs, &x->io);
    }
}

static void free_spent(struct tierce__disk *d, struct tierce__list *spent)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (!tierce__list_empty(spent)) {
        struct tierce__disk_op *op =
            TIERCE__CONTAINER_OF(spent->next, struct tierce__disk_op, node);
        TIERCE_DASSERT(op->flying == 0 && tierce__list_empty(&op->followers));
        tierce__list_remove(&op->node);
        tierce__buf_release(op->buf);
        tierce__list_push_back(&d->free_ops, &op->node);
    }
}

static bool is_idle(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    return tierce__list_empty(&d->gets) && tierce__list_empty(&d->puts) &&
           tierce__list_empty(&d->active_ops);
}

void *tierce__disk_io_main(void *arg)
{
    struct tierce__disk *d = arg;
    struct tierce__list finished, batch, spent;
    tierce__list_init(&finished);
    tierce__list_init(&batch);
    tierce__list_init(&spent);
    tierce__lock_take(&d->lock);
    for (;;) {
        take_in(d, &finished, &spent);
        sweep_late(d, &finished, &spent);
        tierce__disk_reap(d);
        plan(d, &finished, &batch);
        d->io_idle = is_idle(d);
        if (d->io_idle)
            tierce__cond_broadcast(&d->ended_cond);
        bool stop = d->io_stop && d->io_idle;
        TIERCE_DASSERT(!d->io_idle ||
                       (d->abandoned == 0 && d->active_put_bytes + d->queued_put_bytes == 0));
        TIERCE_DASSERT(!d->io_idle || d->reads_flying + d->writes_flying == 0);
        d->polling = true;
        uint64_t deadline = d->next_deadline, room = d->allocated;
        bool tells_full = d->full_is_untold;
        d->full_is_untold = false;
        struct tierce__slots_news news = d->slots_news;
        d->slots_news.is_due = false;
        tierce__lock_drop(&d->lock);
        if (tells_full)
            tierce__disk_tell_full(d, room);
        tierce__slots_log(&d->slots, &news);
        submit_batch(d, &batch);
        free_spent(d, &spent);
        tierce__disk_answer(&finished);
        if (!stop)
            d->vfs->ops->poll(d->vfs, deadline);
        tierce__lock_take(&d->lock);
        d->polling = false;
        if (stop)
            break;
    }
    d->io_ended = true;
    tierce__cond_broadcast(&d->ended_cond);
    tierce__lock_drop(&d->lock);
    return NULL;
}
