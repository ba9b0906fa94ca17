/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/statvfs.h>

/*
 * How long the data file may be. It grows as it is needed, up to the cap, but never into the room
 * that the journal and its copy need: without a journal nothing can be written at all. If the file
 * system is full, the part of the cap that the data file has not reached counts as used
 * ("blocked"), so that the store evicts as if its cap were reached. About once a second, a put that
 * needs space checks for free space again.
 *
 * If others take the rest of the file system, so that even the journal cannot be written, the store
 * releases the end of its data file: chunks there are evicted, regardless of the policy. Those that
 * wait for the journal to become durable are dropped if nothing else makes the file shorter.
 */

#define PAGE             TIERCE__JOURNAL_PAGE
#define REGROW_MS        1000u
#define JOURNAL_PAGES    80u /* no journal is replaced before it has 64, and zeroes follow */
#define DELS_IN_A_PAGE   36u
#define REGROW_BYTES_MIN (1ULL << 20)
#define ROOM_IS_UNKNOWN  UINT64_MAX

bool tierce__disk_is_full_error(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* Bytes that the file system has to keep free for the journal and its copy, when the data file has
 * so many bytes and is full of chunks as large as those that it has. Under the lock, on the journal
 * thread. */
static uint64_t journal_reserve(const struct tierce__disk *d, uint64_t data_bytes)
{
    uint64_t count = tierce__index_count(d->table.index);
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__space_used(d->space) >= tierce__disk_blocked(d));
    uint64_t used = tierce__space_used(d->space) - tierce__disk_blocked(d);
    uint64_t mean = count > 0 ? used / count : d->grow_least;
    uint64_t fits = mean > 0 ? data_bytes / mean : 0;
    if (count < fits)
        count = fits;
    uint64_t dels = count < TIERCE__JOURNAL_DELS_MAX ? count : TIERCE__JOURNAL_DELS_MAX;
    uint64_t live = tierce__journal_pages_live(count);
    uint64_t full = 2 * live > JOURNAL_PAGES ? 2 * live : JOURNAL_PAGES;
    full += dels / DELS_IN_A_PAGE;
    uint64_t more = full > d->journal.length ? full - d->journal.length : 0;
    return (more + live) * PAGE;
}

/* Bytes that the data file may grow by. Blocks. */
static uint64_t room_left(const struct tierce__disk *d, uint64_t reserve)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct statvfs st;
    if (fstatvfs(d->vfs->folder, &st) != 0 || st.f_blocks == 0)
        return ROOM_IS_UNKNOWN;
    uint64_t there = (uint64_t)st.f_bavail * st.f_frsize;
    return there > reserve ? (there - reserve) & ~(uint64_t)(PAGE - 1) : 0;
}

/* ---- blocking -------------------------------------------------------------------------------- */

uint64_t tierce__disk_blocked(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->blocked_from <= d->data_cap);
    return d->data_cap - d->blocked_from;
}

uint64_t tierce__disk_evict_batch(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->allocated <= d->data_cap);
    uint64_t share = d->allocated / 64;
    return d->evict_bytes < share ? d->evict_bytes : share;
}

/* Takes the space beyond the file out of use; false if a part of it is still in use. */
static bool block(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(d->allocated <= d->data_cap && d->blocked_from <= d->data_cap);
    if (d->blocked_from <= d->allocated)
        return true;
    if (tierce__space_claim(d->space, d->allocated, d->blocked_from - d->allocated) < 0)
        return false;
    d->blocked_from = d->allocated;
    d->regrow_at = tierce__deadline_in_ms(REGROW_MS);
    return true;
}

void tierce__disk_end_shrinking(struct tierce__disk *d)
{
    TIERCE_DASSERT(!d->shrinking || d->allocated < d->data_cap);
    tierce__lock_assert_held(&d->lock);
    if (d->shrinking)
        d->shrinking = !block(d);
}

void tierce__disk_write_found_full(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    uint64_t end = tierce__space_high(d->space);
    if (!d->is_sparse || d->shrinking || d->blocked_from < d->data_cap)
        return;
    TIERCE_DASSERT(d->allocated == d->data_cap && end <= d->data_cap);
    d->allocated = end;
    d->full_is_untold = block(d);
    d->is_sparse = false; /* until it grows again */
}

static void unblock(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    if (d->blocked_from < d->data_cap)
        tierce__space_give(d->space, d->blocked_from, d->data_cap - d->blocked_from);
    d->blocked_from = d->data_cap;
}

void tierce__disk_tell_full(const struct tierce__disk *d, uint64_t room)
{
    tierce__log(TIERCE_LOG_WARN, "disk_full",
                "path=%s size=%" PRIu64 " room=%" PRIu64
                " hint=\"the file system is full: new chunks replace old ones; free space to let "
                "the store grow, or lower disk.size\"",
                d->folder, d->cap_bytes, room);
}

static void tell_room(const struct tierce__disk *d, uint64_t room)
{
    tierce__log(TIERCE_LOG_WARN, "disk_room_again", "path=%s size=%" PRIu64 " room=%" PRIu64,
                d->folder, d->cap_bytes, room);
}

/* ---- growth ---------------------------------------------------------------------------------- */

struct growth {
    uint64_t from, to, least; /* least: the size that the requesting put needs */
    bool was_blocked;
};

/* Makes the file longer; g->to is how long it is then. Without the lock. */
static int allocate(struct tierce__disk *d, struct growth *g, uint64_t room)
{
    TIERCE_DASSERT(g->to > g->from);
    TIERCE_DASSERT(g->from % PAGE == 0 && (room == ROOM_IS_UNKNOWN || room % PAGE == 0));
    int rc = -ENOSPC;
    if (room != ROOM_IS_UNKNOWN && g->to - g->from > room)
        g->to = g->from + room;
    if (g->to >= g->least && g->to > g->from)
        rc = d->vfs->ops->allocate(d->vfs, d->data, g->from, g->to - g->from);
    if (tierce__disk_is_full_error(rc) && g->least > g->from && g->least < g->to) {
        g->to = g->least;
        rc = d->vfs->ops->allocate(d->vfs, d->data, g->from, g->to - g->from);
    }
    TIERCE_DASSERT(rc != 0 || (g->to > g->from && g->to >= g->least));
    return rc;
}

/* Under the lock. Returns the change to report: 1: the file system is full, -1: it is no longer
 * full, 0: none. */
static int settle_growth(struct tierce__disk *d, const struct growth *g, int rc)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(g->from == d->allocated);
    if (rc == 0 || rc == -EOPNOTSUPP) {
        unblock(d);
        /* Where nothing can be reserved, writes extend the file, and a full disk shows at them. */
        d->is_sparse = rc != 0;
        d->allocated = d->is_sparse ? d->data_cap : g->to;
        TIERCE_DASSERT(d->allocated >= g->from && d->allocated <= d->data_cap);
        return g->was_blocked ? -1 : 0;
    }
    d->regrow_at = tierce__deadline_in_ms(REGROW_MS);
    if (g->least <= g->from || g->was_blocked)
        return 0; /* growth ahead of need may fail without anybody being hurt */
    if (tierce__disk_is_full_error(rc) && block(d))
        return 1;
    d->grow_error = rc;
    return 0;
}

void tierce__disk_grow(struct tierce__disk *d)
{
    TIERCE_DASSERT(tierce__disk_is_on_journal(d));
    struct growth g = {.from = d->allocated,
                       .to = d->grow_target,
                       .least = d->grow_least,
                       .was_blocked = d->blocked_from < d->data_cap};
    uint64_t reserve = journal_reserve(d, g.to);
    int rc = 0, news = 0;
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(d->grow_target != 0);
    tierce__lock_drop(&d->lock);
    uint64_t room = room_left(d, reserve);
    if (g.to > g.from)
        rc = allocate(d, &g, room);
    else
        g.to = g.from;
    if (rc < 0 && rc != -EOPNOTSUPP && !tierce__disk_is_full_error(rc))
        tierce__log_repeated(
            TIERCE_LOG_WARN, "disk_grow_failed",
            "path=%s/" TIERCE__DISK_DATA
            " err=%s hint=\"the device fails; look for its errors in the kernel's log\"",
            d->folder, tierce_error_name(rc));
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(d->grow_target != 0);
    d->grow_target = 0;
    if (g.from == d->allocated)
        news = settle_growth(d, &g, rc);
    uint64_t allocated = d->allocated;
    bool polling = d->polling;
    tierce__lock_drop(&d->lock);
    if (news > 0)
        tierce__disk_tell_full(d, allocated);
    else if (news < 0)
        tell_room(d, allocated);
    tierce__disk_wake_io(d, polling);
    tierce__lock_take(&d->lock);
}

static uint64_t regrow_step(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->allocated < d->data_cap);
    TIERCE_DASSERT(d->grow_bytes >= PAGE);
    uint64_t step = d->allocated / 16 > REGROW_BYTES_MIN ? d->allocated / 16 : REGROW_BYTES_MIN;
    return tierce__round_up(step < d->grow_bytes / 4 ? step : d->grow_bytes / 4, PAGE);
}

void tierce__disk_want_growth(struct tierce__disk *d, uint64_t end)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(!d->is_sparse || d->allocated == d->data_cap);
    bool blocked = d->blocked_from < d->data_cap;
    bool ahead = end <= d->allocated;
    if (d->grow_target != 0 || d->grow_error != 0 || d->shrinking || d->allocated >= d->data_cap)
        return;
    if ((blocked || ahead) && tierce__now_ns() < d->regrow_at)
        return;
    if (blocked) /* in larger steps; otherwise it would report every freed page */
        end = d->allocated + regrow_step(d);
    d->grow_least = end < d->data_cap ? end : d->data_cap;
    d->grow_target = end + d->grow_bytes < d->data_cap ? end + d->grow_bytes : d->data_cap;
    TIERCE_DASSERT(d->grow_least <= d->grow_target && d->grow_target <= d->data_cap);
    tierce__cond_signal(&d->journal_cond);
}

/* ---- giving back ----------------------------------------------------------------------------- */

static bool is_durable(const struct tierce__disk_chunk *c)
{
    return c->state == TIERCE__DISK_DURABLE;
}

/* Whether a chunk can be removed now. `drop`: also one that is not durable. */
static bool is_removable(const struct tierce__disk_chunk *c, bool drop)
{
    bool is_undurable = c->state == TIERCE__DISK_DIRTY || c->state == TIERCE__DISK_COMMITTING;
    return (is_durable(c) || (drop && is_undurable)) && c->reads == 0 && !c->doomed;
}

/* The end of the file below which a chunk or a range in limbo has to stay. Under the lock. */
static uint64_t least_end(const struct tierce__disk *d, uint64_t wanted, bool drop)
{
    uint64_t end = wanted;
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(wanted <= d->data_cap);
    for (uint32_t slot = 0; slot < d->table.slot_count; slot++) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slot];
        uint64_t last = c->offset + c->object_bytes;
        if (tierce__index_has(d->table.index, slot) && last > end && !is_removable(c, drop))
            end = last;
    }
    for (uint32_t i = 0; i < TIERCE__DISK_RECODES; i++) { /* objects of no slot */
        uint64_t last = d->recodes[i].offset + d->recodes[i].object_bytes;
        if (d->recodes[i].is_used && last > end)
            end = last;
    }
    return end;
}

/* Removes chunks beyond `end`, as far as limbo has room. Returns the end that came of it. */
static uint64_t empty_beyond(struct tierce__disk *d, uint64_t end)
{
    TIERCE_DASSERT(end <= d->data_cap);
    tierce__lock_assert_held(&d->lock);
    for (uint32_t slot = 0; slot < d->table.slot_count; slot++) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slot];
        uint64_t last = c->offset + c->object_bytes;
        if (!tierce__index_has(d->table.index, slot) || c->doomed || last <= end)
            continue;
        bool is_evicted = is_durable(c);
        if (!(is_evicted ? tierce__disk_evict_slot(d, slot, TIERCE__LEFT_EVICTED)
                         : tierce__disk_drop_slot(d, slot)))
            end = last;
        else if (!is_evicted)
            d->unsaid_loss = -ENOSPC;
    }
    return end;
}

bool tierce__disk_give_back(struct tierce__disk *d)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__lock_take(&d->lock);
    TIERCE_DASSERT(d->journal_error != 0 &&
                   d->committing.count <= tierce__index_count(d->table.index));
    uint64_t from = d->is_sparse ? tierce__space_high(d->space) : d->allocated;
    uint64_t reserve = journal_reserve(d, from), wanted = from > reserve ? from - reserve : 0;
    uint64_t end = least_end(d, wanted, false);
    if (end >= from) /* chunks at the end are not durable, and never will be */
        end = least_end(d, wanted, true);
    end = empty_beyond(d, end);
    TIERCE_DASSERT(from % PAGE == 0 && end <= from);
    bool shorter = end < from && !d->shrinking && d->grow_target == 0;
    bool is_news = d->blocked_from == d->data_cap;
    if (shorter) {
        d->allocated = end;
        d->is_sparse = false;
        d->shrinking = !block(d); /* no: when the ranges in limbo are free */
    }
    tierce__lock_drop(&d->lock);
    if (!shorter)
        return false;
    int rc = d->vfs->ops->truncate(d->vfs, d->data, end);
    if (is_news)
        tierce__disk_tell_full(d, end);
    return rc == 0;
}
