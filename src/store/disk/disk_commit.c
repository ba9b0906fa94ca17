/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log_repeat.h"
#include "base/mix.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RETRY_MS 1000u

/*
 * The journal thread. A commit makes durable all chunks that were visible when it began: sync of
 * the data, records, sync of the journal, in that order. Space of evicted chunks is given back
 * after it.
 *
 * A commit that only has to make removals durable leaves the chunks that are dirty to a later one,
 * and so the sync of the data: values that replace others wait for such a commit.
 *
 * After a sync that failed nothing that it should have covered is believed in again:
 * - of the data: the chunks concerned are dropped;
 * - of the journal: the file is never appended to again, and a new one is written from the index.
 *   Until that works nothing is evicted for good, nothing becomes durable and puts are rejected.
 */

/* ---- records --------------------------------------------------------------------------------- */

/* Adds a record whose key.ns is an id of the process. */
static int add_record(struct tierce__disk *d, struct tierce__journal *journal,
                      struct tierce__journal_record *record)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    uint32_t id = record->key.ns;
    TIERCE_DASSERT(id < TIERCE__DISK_NS_MAX);
    if (d->ns_numbers[id] == 0 && d->ns_count == TIERCE__DISK_NS_MAX)
        return TIERCE_E_LIMIT; /* a compaction renumbers them */
    if (d->ns_numbers[id] == 0)
        d->ns_numbers[id] = ++d->ns_count;
    TIERCE_DASSERT(d->ns_count <= TIERCE__DISK_NS_MAX);
    if (record->kind == TIERCE__JOURNAL_PUT)
        tierce__disk_publish_text(d, id);
    record->key.ns = d->ns_numbers[id] - 1;
    TIERCE_DASSERT(record->key.ns < d->ns_count);
    return tierce__journal_add(journal, record, tierce__namespaces_digest(d->namespaces, id));
}

static int add_records(struct tierce__disk *d, struct tierce__journal *journal, uint32_t count)
{
    int rc = 0;
    TIERCE_DASSERT(count <= TIERCE__DISK_BATCH);
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = add_record(d, journal, &d->records[i]);
    return rc;
}

static void put_record(const struct tierce__disk *d, struct tierce__journal_record *out,
                       uint32_t slot)
{
    const struct tierce__disk_chunk *c = &d->table.chunks[slot];
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(slot < d->table.slot_count && tierce__index_has(d->table.index, slot));
    TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE || c->state == TIERCE__DISK_COMMITTING ||
                   c->recode > 0);
    TIERCE_DASSERT(c->offset % TIERCE__JOURNAL_PAGE == 0 &&
                   c->offset + c->object_bytes <= d->data_cap);
    TIERCE_DASSERT(c->seq < d->next_seq);
    *out = (struct tierce__journal_record){.kind = TIERCE__JOURNAL_PUT,
                                           .seq = c->seq,
                                           .key = *tierce__index_key(d->table.index, slot),
                                           .offset = c->offset,
                                           .object_bytes = c->object_bytes,
                                           .raw_bytes = c->raw_bytes,
                                           .token_start = c->token_start,
                                           .stored_s = c->stored_s,
                                           .head_sum = c->head_sum,
                                           .block_count = c->block_count};
    memcpy(out->parent, c->parent, sizeof(out->parent));
    memcpy(out->first_block, c->first_block, sizeof(out->first_block));
}

/* Pages in the file and in the buffer, the one in hand included. */
static uint64_t pages_begun(const struct tierce__journal *journal)
{
    return journal->pages + journal->filled + 1;
}

/* Adds the bytes written today, those of this batch (which began at page `before`), of the mark and
 * of so many pages of zeroes included. The last of these records in a journal is right. */
static int add_day(struct tierce__disk *d, struct tierce__journal *journal, uint64_t before,
                   uint64_t zeroes)
{
    struct tierce__journal_record day = {.kind = TIERCE__JOURNAL_DAY};
    uint64_t pages = pages_begun(journal) - before + zeroes + 1;
    TIERCE_DASSERT(pages_begun(journal) >= before);
    tierce__lock_take(&d->lock);
    tierce__disk_count_written(d, pages * TIERCE__JOURNAL_PAGE);
    day.day = d->day;
    day.bytes = d->day_bytes;
    tierce__lock_drop(&d->lock);
    return tierce__journal_add(journal, &day, NULL);
}

/* ---- the mark -------------------------------------------------------------------------------- */

/* Failing costs only that a later loss of the journal's end is not noticed. */
void tierce__disk_mark_synced(struct tierce__disk *d)
{
    struct tierce__journal_mark mark = {.epoch = d->journal.epoch, .pages = d->journal.pages};
    int rc = 0;
    TIERCE_DASSERT(mark.pages <= d->journal.length);
    TIERCE_DASSERT(mark.pages > 0 && d->journal.filled == 0 && d->journal.used == 0);
    if (d->mark_failed)
        return;
    if (d->mark == NULL)
        rc = d->vfs->ops->open(d->vfs, &d->mark, TIERCE__JOURNAL_MARK_NAME, TIERCE__VFS_CREATE);
    if (rc == 0)
        rc = tierce__journal_mark_write(&mark, d->vfs, d->mark);
    d->mark_failed = rc < 0;
    if (rc < 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "disk_mark_failed",
                             "path=%s/" TIERCE__JOURNAL_MARK_NAME " err=%s", d->folder,
                             tierce_error_name(rc));
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Removals first: at no point of the journal are there more chunks than slots. */
static int append_removals(struct tierce__disk *d, uint64_t limbo_mark)
{
    int rc = 0;
    TIERCE_DASSERT(limbo_mark - d->limbo_head <= d->limbo_room);
    TIERCE_DASSERT(limbo_mark >= d->limbo_head);
    /* Entries before the mark are only freed by this thread, so they may be read unlocked. */
    for (uint64_t i = d->limbo_head; i < limbo_mark && rc == 0; i++) {
        const struct tierce__disk_limbo *l = &d->limbo[i % d->limbo_room];
        struct tierce__journal_record record = {
            .kind = TIERCE__JOURNAL_DEL, .seq = l->seq, .key = l->key};
        rc = add_record(d, &d->journal, &record);
    }
    return rc;
}

static int append_committing(struct tierce__disk *d)
{
    int rc = 0;
    tierce__lock_take(&d->lock);
    uint32_t left = d->committing.count, slot = d->committing.head;
    while (left > 0 && rc == 0) {
        uint32_t n = 0;
        for (; n < TIERCE__DISK_BATCH && left > 0; n++, left--) {
            put_record(d, &d->records[n], slot);
            slot = d->table.chunks[slot].next;
        }
        tierce__lock_drop(&d->lock);
        rc = add_records(d, &d->journal, n);
        tierce__lock_take(&d->lock);
    }
    TIERCE_DASSERT(d->committing.count == 0 || rc < 0 || slot == TIERCE__NO_SLOT);
    tierce__lock_drop(&d->lock);
    return rc;
}

static int append(struct tierce__disk *d, uint64_t limbo_mark)
{
    TIERCE_DASSERT(tierce__disk_is_on_journal(d));
    uint64_t before = d->journal.pages;
    int rc = append_removals(d, limbo_mark);
    if (rc == 0)
        rc = append_committing(d);
    int zeroes = rc == 0 ? tierce__journal_extend(&d->journal, d->journal_pages_max) : rc;
    rc = zeroes < 0 ? zeroes : add_day(d, &d->journal, before, (uint64_t)zeroes);
    if (rc == 0)
        rc = tierce__journal_commit(&d->journal);
    if (rc == 0)
        tierce__disk_mark_synced(d);
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(before <= d->journal.pages && d->journal.pages <= d->journal.length);
    TIERCE_DASSERT(d->journal_error == 0);
    d->journal_bytes = d->journal.length * TIERCE__JOURNAL_PAGE;
    tierce__lock_drop(&d->lock);
    return rc;
}

/* ---- compaction ------------------------------------------------------------------------------ */

static bool belongs_in_journal(const struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    uint8_t state = d->table.chunks[slot].state;
    return state == TIERCE__DISK_DURABLE || state == TIERCE__DISK_COMMITTING;
}

/* The record that the journal has of a chunk, if it must stay: of a chunk whose new form is not
 * durable yet, that of the old one. False: none. */
static bool present_record(const struct tierce__disk *d, struct tierce__journal_record *out,
                           uint32_t slot)
{
    const struct tierce__disk_chunk *c = &d->table.chunks[slot];
    const struct tierce__disk_recode *old =
        c->recode > 0 && d->recodes[c->recode - 1].is_swapped ? &d->recodes[c->recode - 1] : NULL;
    bool is_old = c->state == TIERCE__DISK_DIRTY && old != NULL && !c->doomed;
    if (!is_old && !belongs_in_journal(d, slot))
        return false;
    put_record(d, out, slot);
    if (is_old) {
        out->seq = old->seq;
        out->offset = old->offset;
        out->object_bytes = old->object_bytes;
        out->raw_bytes = old->raw_bytes;
        out->head_sum = old->head_sum;
    }
    return true;
}

static int copy_index(struct tierce__disk *d)
{
    int rc = 0;
    for (uint32_t slot = 0; slot < d->table.slot_count && rc == 0;) {
        uint32_t n = 0;
        tierce__lock_take(&d->lock);
        for (uint32_t seen = 0; seen < 4096 && slot < d->table.slot_count; seen++, slot++) {
            if (n == TIERCE__DISK_BATCH)
                break;
            n += present_record(d, &d->records[n], slot);
        }
        TIERCE_DASSERT(n <= TIERCE__DISK_BATCH);
        d->journal_bytes = (d->journal.length + d->journal_new.pages + d->journal_new.filled + 1) *
                           TIERCE__JOURNAL_PAGE;
        tierce__lock_drop(&d->lock);
        rc = add_records(d, &d->journal_new, n);
    }
    return rc;
}

static void forget_ns_numbers(struct tierce__disk *d)
{
    memset(d->ns_numbers, 0, TIERCE__DISK_NS_MAX * sizeof(*d->ns_numbers));
    d->ns_count = 0;
}

/* Swaps the writers; the old file has lost its name. */
static void adopt_new(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->journal_new.pages > 0);
    TIERCE_DASSERT(d->journal_new.used == 0 && d->journal_new.filled == 0);
    struct tierce__journal old = d->journal;
    d->journal = d->journal_new;
    d->journal_new = old;
    tierce__journal_close(&d->journal_new);
    d->journal_new.pages = 0;
}

/* Removes a journal.new that an earlier try left. */
static int remove_own_new(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->journal_new.filled == 0 && d->journal_new.used == 0);
    if (!d->has_leftover)
        return 0;
    int rc = d->vfs->ops->unlink(d->vfs, TIERCE__DISK_JOURNAL_NEW);
    rc = rc == -ENOENT ? 0 : rc;
    d->has_leftover = rc < 0;
    return rc;
}

int tierce__disk_compact(struct tierce__disk *d)
{
    uint64_t epoch = tierce__mix(d->journal.epoch + (d->seed ^ tierce__now_ns()) + 1);
    bool renamed = false;
    TIERCE_DASSERT(d->journal_new.pages == 0 && d->journal_new.filled == 0);
    forget_ns_numbers(d);
    int rc = remove_own_new(d);
    if (rc == 0) {
        rc = tierce__journal_start(&d->journal_new, TIERCE__DISK_JOURNAL_NEW, epoch,
                                   d->table.slot_count);
        d->has_leftover = rc == 0;
    }
    if (rc == 0)
        rc = copy_index(d);
    if (rc == 0)
        rc = add_day(d, &d->journal_new, 0, 0);
    if (rc == 0)
        rc = tierce__journal_commit(&d->journal_new);
    if (rc == 0) {
        rc = d->vfs->ops->rename(d->vfs, TIERCE__DISK_JOURNAL_NEW, TIERCE__DISK_JOURNAL);
        renamed = rc == 0;
    }
    if (rc == 0)
        rc = d->vfs->ops->sync_folder(d->vfs, ".");
    if (renamed) {
        adopt_new(d);
        d->has_leftover = false;
    } else {
        tierce__journal_close(&d->journal_new);
        d->journal_new.pages = 0;
        int ignored = remove_own_new(d);
        (void)ignored; /* it is removed by the next try, or at the next open */
    }
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(rc < 0 || (!d->has_leftover && d->journal.epoch == epoch));
    /* The numbers of namespaces are the new file's now; without it, the old one is closed. */
    bool had_failed = d->journal_error != 0;
    d->journal_error = rc;
    d->journal_bytes = d->journal.length * TIERCE__JOURNAL_PAGE;
    tierce__lock_drop(&d->lock);
    if (rc == 0)
        tierce__disk_mark_synced(d);
    if (rc == 0 && had_failed)
        tierce__log(TIERCE_LOG_WARN, "disk_journal_recovered",
                    "path=%s/" TIERCE__DISK_JOURNAL " effect=\"chunks are written again\"",
                    d->folder);
    if (rc != 0)
        tierce__log_repeated(
            TIERCE_LOG_ERROR, "disk_journal_failed",
            "path=%s/" TIERCE__DISK_JOURNAL " err=%s hint=\"%s\"", d->folder, tierce_error_name(rc),
            tierce__disk_is_full_error(rc)
                ? "the file system is full: chunks can be read, but none is written until space is "
                  "free"
                : "chunks can be read, but none is written; the journal is retried once a second");
    return rc;
}

static uint64_t pages_for(uint64_t puts, uint64_t dels)
{
    uint64_t room = TIERCE__JOURNAL_PAGE - TIERCE__JOURNAL_HEAD;
    uint64_t per_page = room / (TIERCE__JOURNAL_PUT_BYTES + TIERCE__JOURNAL_NS_BYTES);
    TIERCE_DASSERT(per_page > 0);
    return puts / per_page + dels / (room / (TIERCE__JOURNAL_DEL_BYTES * 2)) + 3;
}

/* Whether the journal is mostly garbage, or would outgrow its bound. */
static bool compaction_is_due(const struct tierce__disk *d, uint64_t dels)
{
    TIERCE_DASSERT(dels <= d->limbo_room);
    TIERCE_DASSERT(d->durable_count <= d->table.slot_count);
    tierce__lock_assert_held(&d->lock);
    uint64_t live = pages_for(d->durable_count, 0);
    return (d->journal.pages > 64 && d->journal.pages > 2 * live) ||
           d->journal.pages + pages_for(d->committing.count, dels) > d->journal_pages_max;
}

/* ---- commit ---------------------------------------------------------------------------------- */

static int write_journal(struct tierce__disk *d, uint64_t limbo_mark)
{
    tierce__lock_take(&d->lock);
    bool broken = d->journal_error != 0;
    TIERCE_DASSERT(limbo_mark >= d->limbo_head);
    TIERCE_DASSERT(limbo_mark <= d->limbo_tail);
    bool compact = broken || compaction_is_due(d, limbo_mark - d->limbo_head);
    tierce__lock_drop(&d->lock);
    if (!compact) {
        int rc = append(d, limbo_mark);
        if (rc == 0)
            return 0;
        tierce__log_repeated(TIERCE_LOG_WARN, "disk_append_failed",
                             "path=%s/" TIERCE__DISK_JOURNAL " err=%s", d->folder,
                             tierce_error_name(rc));
    }
    int rc = tierce__disk_compact(d);
    if (tierce__disk_is_full_error(rc) && tierce__disk_give_back(d))
        rc = tierce__disk_compact(d);
    return rc;
}

static bool is_ping(struct tierce__list *node)
{
    return tierce__disk_req_of(node)->op == TIERCE__STORE_PING;
}

static bool is_for_puts(struct tierce__list *node)
{
    TIERCE_DASSERT(is_ping(node) || tierce__disk_req_of(node)->op == TIERCE__STORE_FLUSH);
    return !is_ping(node) && !tierce__disk_req_of(node)->removals;
}

/* Whether a ping waits for the commit that has begun: it writes a page even without changes. */
static bool has_ping(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    bool has = false;
    TIERCE__LIST_FOR_EACH (node, &d->flushing)
        has = has || is_ping(node);
    return has;
}

/* Flushes that wait are answered by this commit: all, or those that wait for chunks. */
static void take_flushes(struct tierce__disk *d, bool for_puts)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &d->flushes) {
        if (for_puts && !is_for_puts(node))
            continue;
        tierce__list_remove(node);
        tierce__list_push_back(&d->flushing, node);
    }
}

static void put_flushes_back(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    while (!tierce__list_empty(&d->flushing)) {
        struct tierce__list *node = d->flushing.next;
        tierce__list_remove(node);
        tierce__list_push_back(&d->flushes, node);
    }
}

/* Answers the flushes of a commit. The first flush of chunks after a failed sync reports its loss,
 * even if that flush covers none of the lost chunks. */
static void answer_flushes(struct tierce__disk *d, struct tierce__list *finished, int status)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(status <= 0 && d->unsaid_loss <= 0);
    int of_puts = d->unsaid_loss != 0 ? d->unsaid_loss : status;
    while (!tierce__list_empty(&d->flushing)) {
        struct tierce__store_req *req = tierce__disk_req_of(d->flushing.next);
        bool for_puts = is_for_puts(&req->node);
        tierce__list_remove(&req->node);
        if (for_puts)
            d->unsaid_loss = 0;
        tierce__disk_finish(finished, req, for_puts ? of_puts : status);
    }
}

static void sync_data(struct tierce__disk *d)
{
    TIERCE_DASSERT(tierce__disk_is_on_journal(d) && !tierce__lock_holds_any());
    int rc = d->vfs->ops->sync(d->vfs, d->data);
    if (rc == 0)
        return;
    tierce__log_repeated(TIERCE_LOG_ERROR, "disk_sync_failed",
                         "path=%s/" TIERCE__DISK_DATA " err=%s", d->folder, tierce_error_name(rc));
    tierce__lock_take(&d->lock);
    tierce__disk_drop_unsynced(d);
    take_flushes(d, true); /* the chunks of these flushes were dropped too */
    d->unsaid_loss = rc;
    d->stats.errors++;
    tierce__lock_drop(&d->lock);
}

/* The time of the next background commit. */
static uint64_t due_time(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    if (d->pending_since == 0)
        return TIERCE__DEADLINE_NEVER;
    uint64_t at = d->urgent ? 0 : d->pending_since + d->flush_interval_ms * TIERCE__MS_NS;
    return at > d->retry_at ? at : d->retry_at;
}

/* Whether the commit that begins now has to make chunks durable. */
static bool wants_puts(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    bool wants = d->journal_final || due_time(d) <= tierce__now_ns();
    TIERCE__LIST_FOR_EACH (node, &d->flushes)
        wants = wants || is_for_puts(node);
    return wants;
}

/* Under the lock. */
static void begin(struct tierce__disk *d)
{
    TIERCE_DASSERT(tierce__disk_is_on_journal(d));
    tierce__lock_assert_held(&d->lock);
    bool with_puts = wants_puts(d);
    TIERCE_DASSERT(d->committing.count == 0);
    take_flushes(d, false);
    if (with_puts)
        tierce__disk_begin_commit(d);
    TIERCE_DASSERT(!with_puts || d->dirty.count == 0);
    if (d->dirty.count == 0) { /* otherwise the pending commit continues */
        d->pending_since = 0;
        d->urgent = false;
    }
}

/* Under the lock, which is dropped on the way. Answers the flushes that waited; not if more was
 * deleted before them than one commit records. Returns false then: another has to follow. */
static bool commit(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__list_empty(&d->flushing));
    struct tierce__list finished;
    tierce__list_init(&finished);
    tierce__disk_reap(d);
    bool whole = !d->limbo_is_full;
    begin(d);
    uint64_t limbo_mark = d->limbo_tail;
    bool has_data = d->committing.count > 0;
    bool has_work = has_data || limbo_mark > d->limbo_head || d->journal_error != 0 || has_ping(d);
    TIERCE_DASSERT(!has_data || d->dirty.count == 0);
    TIERCE_DASSERT(tierce__list_empty(&finished));
    tierce__lock_drop(&d->lock);

    if (has_data)
        sync_data(d);
    int rc = has_work ? write_journal(d, limbo_mark) : 0;

    tierce__lock_take(&d->lock);
    if (rc == 0) {
        tierce__disk_settle(d, limbo_mark);
        tierce__disk_reap(d);
        tierce__disk_end_shrinking(d);
        d->retry_at = 0;
    } else {
        tierce__disk_retry_later(d);
        d->stats.errors++;
        d->retry_at = tierce__now_ns() + RETRY_MS * TIERCE__MS_NS;
        d->pending_since = tierce__now_ns();
    }
    TIERCE_DASSERT(d->committing.count == 0);
    whole = whole || rc < 0;
    if (whole)
        answer_flushes(d, &finished, rc);
    else
        put_flushes_back(d);
    TIERCE_DASSERT(tierce__list_empty(&d->flushing));
    bool polling = d->polling;
    tierce__lock_drop(&d->lock);
    tierce__disk_wake_io(d, polling);
    tierce__disk_answer(&finished);
    tierce__lock_take(&d->lock);
    return whole;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* When the next commit begins; 0: now. */
static uint64_t commit_time(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    if (!tierce__list_empty(&d->flushes) || d->journal_final)
        return 0; /* a flush waits for the result, even for another failure */
    return due_time(d);
}

/* After the last commit. Under the lock, which is dropped on the way. */
static void finish(struct tierce__disk *d)
{
    TIERCE_DASSERT(tierce__disk_is_on_journal(d));
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(d->journal_stop && tierce__list_empty(&d->flushing));
    tierce__lock_drop(&d->lock);
    int rc = d->mark != NULL && !d->mark_failed ? d->vfs->ops->sync(d->vfs, d->mark) : 0;
    (void)rc; /* the mark is true even so; after a power cut it may cover less */
    tierce__lock_take(&d->lock);
}

void *tierce__disk_journal_main(void *arg)
{
    struct tierce__disk *d = arg;
    tierce__lock_take(&d->lock);
    while (!d->journal_stop) {
        uint64_t at = commit_time(d);
        if (d->grow_target != 0) {
            tierce__disk_grow(d);
        } else if (at <= tierce__now_ns()) {
            bool final = d->journal_final;
            final = commit(d) && final;
            d->journal_stop = d->journal_stop || final;
            if (final)
                finish(d);
        } else {
            (void)tierce__cond_wait(&d->journal_cond, &d->lock, at);
        }
    }
    TIERCE_DASSERT(d->committing.count == 0);
    TIERCE_DASSERT(!d->journal_ended);
    d->journal_ended = true;
    tierce__cond_broadcast(&d->ended_cond);
    tierce__lock_drop(&d->lock);
    return NULL;
}
