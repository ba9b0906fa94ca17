/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch: a lookup that continues in the background. Begin with tierce__prefetch_advance(), which
 * every event calls: search queries the tiers one after the other, take_room claims memory for the
 * found chunks, start_reads joins the fetches, gather publishes finished chunks in the order of the
 * prompt, and cut drops the rest.
 *
 *     a chunk in memory:  HELD
 *     one that is not:    FOUND -> ROOM -> READING -> SETTLED
 *     both, in order:     handed on to memory and, with PIN, to the session
 *
 * No thread waits. An event (a tier answers, a fetch is settled, memory is granted, the deadline
 * passes, the caller ends it) is noted under the lock. Then one thread at a time continues; only
 * that thread touches fields that are not under the lock. Every pending callback holds a reference,
 * so the memory outlives the handle if necessary.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "engine/prefetch/prefetch_private.h"

static const struct tierce__shape *shape_of(const struct tierce_prefetch *p, size_t index)
{
    TIERCE_DASSERT(index < p->keys.count);
    return index < p->keys.full_count ? &p->view->full : &p->tail_shape;
}

/* Wanted blocks of one chunk. */
static uint64_t blocks_of(const struct tierce_prefetch *p, size_t index)
{
    TIERCE_DASSERT(index < p->keys.count);
    uint64_t start = tierce__prefetch_blocks(p, index), end = tierce__prefetch_blocks(p, index + 1);
    start = start > p->opts.from_block ? start : p->opts.from_block;
    return end > start ? end - start : 0;
}

static void describe(const struct tierce_prefetch *p, size_t index,
                     struct tierce__storage_chunk *record)
{
    tierce__view_describe(record, p->view, &p->keys, shape_of(p, index), index, p->hashes);
}

/* Chunks up to here are known to be somewhere and will be handed on, as far as one knows. */
static size_t planned(const struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->gathered <= p->found && p->found <= p->keys.count);
    return p->found < p->plan_end ? p->found : p->plan_end;
}

static void add_ref(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(p->refs > 0);
    p->refs++;
    tierce__lock_drop(tierce__prefetch_lock(p));
}

/* One that cannot be the last: the thread that goes on has the handle's, or its event's. */
static void drop_ref(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_ASSERT(p->refs > 1);
    p->refs--;
    tierce__lock_drop(tierce__prefetch_lock(p));
}

/* ---- letting go ---- */

static void give_room(struct tierce_prefetch *p, struct tierce__prefetch_chunk *chunk)
{
    TIERCE_DASSERT(chunk->prefetch == p && (!chunk->room || chunk->bytes > 0));
    if (chunk->room)
        tierce__semaphore_give(&p->engine->prefetches.memory, chunk->bytes);
    chunk->room = false;
}

/* Ends what a chunk holds. */
static void let_go(struct tierce_prefetch *p, struct tierce__prefetch_chunk *chunk)
{
    TIERCE_DASSERT(chunk->prefetch == p);
    bool waiting = chunk->waiter.fetch != NULL;
    if (waiting && tierce__fetch_leave(&chunk->waiter)) {
        /* It was not settled and will not be. */
        tierce__lock_take(tierce__prefetch_lock(p));
        TIERCE_DASSERT(p->refs > 1);
        p->refs--;
        tierce__lock_drop(tierce__prefetch_lock(p));
    }
    tierce__buf_release(chunk->buf);
    chunk->buf = NULL;
    give_room(p, chunk);
    tierce__lock_take(tierce__prefetch_lock(p));
    chunk->state = TIERCE__PREFETCH_GONE;
    tierce__lock_drop(tierce__prefetch_lock(p));
}

static void stop_waiting(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    p->room_over = true;
    bool granted = p->granted;
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (!p->waiting)
        return;
    TIERCE_DASSERT(p->waiter.units > 0);
    p->waiting = false;
    if (tierce__semaphore_leave(&p->engine->prefetches.memory, &p->waiter))
        drop_ref(p);
    else if (granted)
        tierce__semaphore_give(&p->engine->prefetches.memory, p->waiter.units);
}

/* Nothing follows the gathered chunks: a gap, or the end. */
static void cut(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->gathered <= p->found && p->found <= p->keys.count);
    p->plan_end = p->gathered;
    stop_waiting(p);
    for (size_t i = p->gathered; i < p->found; i++)
        let_go(p, &p->chunks[i]);
}

static void note_short(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    bool first = !p->result.short_of_memory;
    p->result.short_of_memory = true;
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (first)
        tierce__count(p->engine, TIERCE__STAT_prefetches_short, 1);
}

static void note_late(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    p->late = true;
    tierce__lock_drop(tierce__prefetch_lock(p));
}

/* ---- search in the tiers ---- */

static void lookup_done(struct tierce__store_req *req)
{
    struct tierce_prefetch *p = req->arg;
    TIERCE_DASSERT(req == &p->lookup && req->op == TIERCE__STORE_LOOKUP);
    tierce__storage_note(p->engine, p->asked_level, req);
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(!p->answered);
    p->answered = true;
    tierce__lock_drop(tierce__prefetch_lock(p));
    tierce__prefetch_go_on(p, true);
}

/*
 * Queries a tier for the missing chunks. Unlike a lookup, no caller waits for a prefetch. So a
 * remote store whose answer was incomplete at timeout.lookup is queried once more for the rest,
 * with timeout.load, after all others, while the found chunks are read. False: the tier is not
 * queried now.
 */
static bool ask_level(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(!p->asking && p->found < p->keys.count && p->level < p->engine->level_count);
    uint64_t deadline_ns = p->patient ? tierce__ask_patience(p->engine)
                                      : tierce__deadline_in_ms(p->engine->settings.lookup_ms);
    const struct tierce__key *keys = p->keys.keys + p->found;
    p->lookup = (struct tierce__store_req){
        .op = TIERCE__STORE_LOOKUP,
        .deadline_ns = deadline_ns < p->deadline_ns ? deadline_ns : p->deadline_ns,
        .done = lookup_done,
        .arg = p,
        .keys = keys,
        .key_count = p->keys.count - p->found,
        .recall = TIERCE__RECALL_FIRST};
    p->asked_level = p->level;
    add_ref(p);
    if (tierce__storage_submit(p->engine, p->level, &p->lookup))
        return true;
    drop_ref(p);
    tierce__storage_try(p->engine, p->level, keys);
    return false;
}

/* Frozen, it brings nothing to memory, so that it only looks there. */
static bool is_wanted(const struct tierce_prefetch *p, size_t level)
{
    TIERCE_DASSERT(level < p->engine->level_count);
    if (p->mode == TIERCE_MODE_BYPASS || (p->mode == TIERCE_MODE_FREEZE && level > 0))
        return false;
    return p->opts.tiers == 0 || (p->opts.tiers & (1u << p->engine->levels[level].origin)) != 0;
}

/* Plans to get chunk `index` from the level; false if the level does not have it after all. A chunk
 * in memory is leased at once, because reading the others may evict it. */
static bool plan_chunk(struct tierce_prefetch *p, size_t index)
{
    struct tierce__prefetch_chunk *chunk = &p->chunks[index];
    TIERCE_DASSERT(index < p->keys.count && chunk->state == TIERCE__PREFETCH_UNKNOWN);
    chunk->bytes = shape_of(p, index)->extent.object_bytes;
    if (index < p->plan_end && is_wanted(p, 0))
        chunk->buf = tierce__storage_lease(p->engine, &p->keys.keys[index]);
    chunk->level = chunk->buf != NULL ? 0 : p->level;
    bool pin = (p->opts.flags & TIERCE_PREFETCH_PIN) != 0;
    uint64_t cost = pin || chunk->level > 0 ? chunk->bytes : 0;
    if (index < p->plan_end && cost > p->budget) {
        p->plan_end = index;
        note_short(p);
    }
    if (index >= p->plan_end) {
        tierce__buf_release(chunk->buf); /* found, and that is all */
        chunk->buf = NULL;
        return true;
    }
    if (chunk->level == 0 && chunk->buf == NULL)
        return false; /* evicted since it was found */
    chunk->state = chunk->buf != NULL ? TIERCE__PREFETCH_HELD : TIERCE__PREFETCH_FOUND;
    TIERCE_DASSERT(p->budget >= cost);
    p->budget -= cost;
    return true;
}

static void take_answer(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->level == p->asked_level);
    size_t end = p->found + p->lookup.found;
    TIERCE_ASSERT(end <= p->keys.count);
    uint64_t promised[TIERCE__TIERS_MAX] = {0};
    for (; p->found < end && plan_chunk(p, p->found); p->found++) {
        size_t level = p->chunks[p->found].level;
        TIERCE_DASSERT(level < p->engine->level_count);
        promised[level] += blocks_of(p, p->found);
        p->shares[level].end = p->found + 1;
    }
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(p->result.memory_blocks <= p->result.blocks);
    p->result.blocks = tierce__prefetch_blocks(p, p->found);
    for (size_t level = 0; level < p->engine->level_count; level++)
        p->result.tiers[level].promised += promised[level];
    tierce__lock_drop(tierce__prefetch_lock(p));
}

/* The first of the stores that were late is asked once more, with patience. */
static bool next_late(struct tierce_prefetch *p)
{
    if (p->late_levels == 0)
        return false;
    p->level = (size_t)__builtin_ctz(p->late_levels);
    TIERCE_DASSERT(p->level < p->engine->level_count);
    p->late_levels &= p->late_levels - 1;
    p->patient = true;
    return true;
}

/* Moves to the next level that is to be asked. A chunk may have left memory while later ones are
 * still there, so that a round that found something is followed by another. Stores that were late
 * come after all others, which they must not hold up. False: that was all. */
static bool next_level(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->round_start <= p->found);
    p->patient = false;
    while (p->found < p->keys.count) {
        for (; p->level < p->engine->level_count; p->level++) {
            if (is_wanted(p, p->level) && (p->late_levels & 1u << p->level) == 0)
                return true;
        }
        if (p->found == p->round_start || p->engine->level_count == 1)
            return next_late(p);
        p->round_start = p->found;
        p->level = 0;
    }
    return false;
}

/* Queries tier by tier; returns when a tier has not answered yet, or all have. */
static void search(struct tierce_prefetch *p)
{
    while (!p->search_over) {
        if (p->asking) {
            tierce__lock_take(tierce__prefetch_lock(p));
            bool answered = p->answered;
            p->answered = false;
            tierce__lock_drop(tierce__prefetch_lock(p));
            if (!answered)
                return;
            p->asking = false;
            take_answer(p);
            if (!p->patient && p->lookup.status == TIERCE_E_DEADLINE &&
                p->engine->levels[p->level].health.shared)
                p->late_levels |= 1u << p->level;
            p->level++;
        }
        p->search_over = !next_level(p);
        if (p->search_over)
            break;
        TIERCE_DASSERT(p->level < p->engine->level_count);
        p->shares[p->level].searched = true;
        p->asking = ask_level(p);
        p->level += !p->asking;
    }
    tierce__session_free(p->pinned);
    p->pinned = NULL;
}

/* ---- room: memory for reads ---- */

/* Rooms are taken in the order of the prompt, in pieces, so that a chunk never waits for room that
 * a later chunk has taken. */
static void take_piece(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->piece_end <= p->found);
    for (; p->claimed < p->piece_end; p->claimed++) {
        struct tierce__prefetch_chunk *chunk = &p->chunks[p->claimed];
        if (chunk->state != TIERCE__PREFETCH_FOUND)
            continue;
        chunk->state = TIERCE__PREFETCH_ROOM;
        chunk->room = true;
    }
    TIERCE_DASSERT(p->claimed <= p->found);
    p->waiting = false;
}

static void room_granted(void *arg)
{
    struct tierce_prefetch *p = arg;
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(p->refs > 0);
    TIERCE_DASSERT(!p->granted);
    bool over = p->room_over;
    p->granted = !over;
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (over)
        tierce__semaphore_give(&p->engine->prefetches.memory, p->waiter.units);
    tierce__prefetch_go_on(p, true);
}

/* Finds the next piece, chunks from `claimed` on, and what it takes: half of the memory at most, so
 * that one half is read while the other is handed on. */
static uint64_t next_piece(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->claimed < planned(p));
    uint64_t capacity = p->engine->prefetches.memory.capacity, units = 0;
    for (p->piece_end = p->claimed; p->piece_end < planned(p); p->piece_end++) {
        const struct tierce__prefetch_chunk *chunk = &p->chunks[p->piece_end];
        if (chunk->state != TIERCE__PREFETCH_FOUND)
            continue;
        if (chunk->bytes > capacity) { /* there is nothing to wait for */
            p->plan_end = p->piece_end;
            note_short(p);
        }
        if (chunk->bytes > capacity || (units > 0 && units + chunk->bytes > capacity / 2))
            break;
        units += chunk->bytes;
    }
    TIERCE_DASSERT(p->piece_end <= planned(p) && units <= capacity);
    return units;
}

/* Takes room as far as it goes; false while the piece has to be waited for. */
static bool claim_piece(struct tierce_prefetch *p, uint64_t units)
{
    TIERCE_DASSERT(!p->waiting && units <= p->engine->prefetches.memory.capacity);
    p->waiter =
        (struct tierce__semaphore_waiter){.units = units, .granted = room_granted, .arg = p};
    if (units == 0)
        return true;
    add_ref(p);
    p->waiting = true;
    if (!tierce__semaphore_take(&p->engine->prefetches.memory, &p->waiter))
        return false;
    drop_ref(p);
    return true;
}

static void take_room(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(!p->waiting || p->piece_end > p->claimed);
    if (p->waiting) {
        tierce__lock_take(tierce__prefetch_lock(p));
        bool granted = p->granted;
        p->granted = false;
        tierce__lock_drop(tierce__prefetch_lock(p));
        if (!granted)
            return;
        take_piece(p);
    }
    while (p->claimed < planned(p) && claim_piece(p, next_piece(p)))
        take_piece(p);
}

/* ---- reading ---- */

static void chunk_settled(void *arg, int status)
{
    struct tierce__prefetch_chunk *chunk = arg;
    struct tierce_prefetch *p = chunk->prefetch;
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(p->refs > 0 && p->shares[chunk->level].bytes_reading >= chunk->bytes);
    if (chunk->state == TIERCE__PREFETCH_READING) {
        chunk->state = TIERCE__PREFETCH_SETTLED;
        chunk->outcome = status;
    }
    p->shares[chunk->level].bytes_reading -= chunk->bytes;
    tierce__lock_drop(tierce__prefetch_lock(p));
    tierce__prefetch_go_on(p, true);
}

static void read_chunk(struct tierce_prefetch *p, size_t index)
{
    struct tierce__prefetch_chunk *chunk = &p->chunks[index];
    TIERCE_DASSERT(chunk->state == TIERCE__PREFETCH_ROOM && chunk->room);
    TIERCE_DASSERT(index < p->claimed);
    TIERCE_DASSERT(chunk->level > 0 && chunk->level < p->engine->level_count);
    const struct tierce__prefetch_chunk *before = index > 0 ? chunk - 1 : NULL;
    struct tierce__storage_chunk record;
    describe(p, index, &record);
    chunk->waiter.deadline_ns = p->deadline_ns;
    if (before != NULL)
        chunk->waiter.before = before->buf != NULL ? before->buf : before->waiter.buf;
    bool waiting = tierce__fetch_join(p->engine, &chunk->waiter, chunk->level, &record,
                                      shape_of(p, index), &chunk->buf);
    tierce__lock_take(tierce__prefetch_lock(p));
    if (waiting) {
        chunk->state = TIERCE__PREFETCH_READING;
        p->shares[chunk->level].bytes_reading += chunk->bytes;
        p->refs++;
    } else if (chunk->buf != NULL) {
        chunk->state = TIERCE__PREFETCH_HELD; /* another operation has brought it to memory
                                                 meanwhile */
    } else {
        chunk->state = TIERCE__PREFETCH_SETTLED;
        chunk->outcome = TIERCE_E_FULL;
    }
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (waiting)
        tierce__fetch_read_all(&chunk->waiter, chunk_settled, chunk);
}

/* Whether the level's window has room for so many bytes; a chunk that is larger goes alone. */
static bool in_window(struct tierce_prefetch *p, size_t level, uint64_t bytes)
{
    TIERCE_DASSERT(level > 0 && level < p->engine->level_count);
    tierce__lock_take(tierce__prefetch_lock(p));
    uint64_t reading = p->shares[level].bytes_reading;
    tierce__lock_drop(tierce__prefetch_lock(p));
    return reading == 0 || reading + bytes <= p->engine->levels[level].window_bytes;
}

/* Requests from every slower tier the chunks that it has, each as far ahead as its window
 * allows. */
static void start_reads(struct tierce_prefetch *p)
{
    for (size_t level = 1; level < p->engine->level_count; level++) {
        struct tierce__prefetch_share *share = &p->shares[level];
        TIERCE_DASSERT(share->next <= p->claimed);
        for (; share->next < p->claimed; share->next++) {
            struct tierce__prefetch_chunk *chunk = &p->chunks[share->next];
            if (chunk->state != TIERCE__PREFETCH_ROOM || chunk->level != level)
                continue;
            if (!in_window(p, level, chunk->bytes))
                break;
            read_chunk(p, share->next);
        }
    }
}

/* ---- gather: publishes chunks in the order of the prompt ---- */

/* Whether the cells are right, as far as the caller wants to know. The header has been checked. */
static bool verifies(const struct tierce_prefetch *p, const uint8_t *object, size_t bytes)
{
    struct tierce__chunk_info info;
    if ((p->opts.flags & TIERCE_PREFETCH_VERIFY) == 0)
        return true;
    return tierce__chunk_parse(&info, object, bytes) == 0 &&
           tierce__chunk_verify_cells(object, &info) == 0;
}

/* A chunk whose bytes are here becomes one in memory, and is leased: NULL if it proves wrong or
 * memory does not take it. */
static struct tierce__buf *publish(struct tierce_prefetch *p, size_t index)
{
    struct tierce__prefetch_chunk *chunk = &p->chunks[index];
    TIERCE_DASSERT(index == p->gathered && chunk->state == TIERCE__PREFETCH_SETTLED);
    const struct tierce__shape *shape = shape_of(p, index);
    int rc = tierce__view_check_header(p->view, shape, index, p->hashes, p->root,
                                       chunk->waiter.buf->data);
    if (rc == 0 && !verifies(p, chunk->waiter.buf->data, chunk->bytes))
        rc = TIERCE_E_CHECKSUM;
    if (rc < 0) {
        tierce__fetch_refuse(&chunk->waiter, rc);
        return NULL;
    }
    struct tierce__storage_chunk record;
    describe(p, index, &record);
    tierce__fetch_promote(&chunk->waiter, &record);
    return tierce__storage_lease(p->engine, &record.key);
}

/* The lease on the chunk that is next, if it has come (true); *buf NULL: it will not. */
static bool take_next(struct tierce_prefetch *p, struct tierce__buf **buf)
{
    struct tierce__prefetch_chunk *chunk = &p->chunks[p->gathered];
    TIERCE_DASSERT(p->gathered < planned(p));
    tierce__lock_take(tierce__prefetch_lock(p));
    enum tierce__prefetch_state state = chunk->state;
    int outcome = chunk->outcome;
    tierce__lock_drop(tierce__prefetch_lock(p));
    *buf = NULL;
    if (state == TIERCE__PREFETCH_HELD) {
        if (chunk->level > 0 && !verifies(p, chunk->buf->data, chunk->bytes)) {
            tierce__storage_quarantine(p->engine, 0, &p->keys.keys[p->gathered], TIERCE_E_CHECKSUM);
            return true; /* cut releases it */
        }
        *buf = chunk->buf;
        chunk->buf = NULL;
        return true;
    }
    if (state != TIERCE__PREFETCH_SETTLED)
        return false;
    if (outcome == TIERCE_E_FULL)
        note_short(p);
    if (outcome == TIERCE_E_DEADLINE)
        note_late(p);
    if (outcome == 0)
        *buf = publish(p, p->gathered);
    return true;
}

/* Hands a chunk on; false if the session cannot hold it. The reference moves. */
static bool hand_on(struct tierce_prefetch *p, size_t index, struct tierce__buf *buf)
{
    TIERCE_DASSERT((p->opts.flags & TIERCE_PREFETCH_PIN) == 0 || p->opts.session != 0);
    TIERCE_DASSERT(index == p->gathered);
    if ((p->opts.flags & TIERCE_PREFETCH_PIN) == 0) {
        tierce__buf_release(buf);
        return true;
    }
    return tierce__session_add(p->view, p->opts.session, &p->keys.keys[index], buf, 0);
}

static void count_gathered(struct tierce_prefetch *p, size_t index)
{
    const struct tierce__prefetch_chunk *chunk = &p->chunks[index];
    TIERCE_DASSERT(chunk->state == TIERCE__PREFETCH_GONE);
    const struct tierce__shape *shape = shape_of(p, index);
    uint64_t blocks = blocks_of(p, index);
    tierce__lock_take(tierce__prefetch_lock(p));
    p->result.memory_blocks = tierce__prefetch_blocks(p, index + 1);
    p->result.tiers[chunk->level].loaded += blocks;
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (chunk->level == 0)
        return;
    tierce__count(p->engine, TIERCE__STAT_prefetch_blocks, shape->geometry.block_count);
    tierce__count(p->engine, TIERCE__STAT_prefetch_bytes, (int64_t)shape->extent.payload_bytes);
}

static bool is_over(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    bool over = p->cancelled || p->late;
    tierce__lock_drop(tierce__prefetch_lock(p));
    return over;
}

/* Ends early if the prefetch is over: to verify a chunk takes time. */
static void gather(struct tierce_prefetch *p)
{
    struct tierce__buf *buf;
    while (p->gathered < planned(p) && !is_over(p) && take_next(p, &buf)) {
        bool held = buf != NULL && hand_on(p, p->gathered, buf);
        if (buf != NULL && !held)
            note_short(p);
        if (!held) {
            cut(p);
            return;
        }
        let_go(p, &p->chunks[p->gathered]); /* after it is held, so that nothing slips between */
        count_gathered(p, p->gathered);
        p->gathered++;
    }
    TIERCE_DASSERT(p->gathered <= p->found && p->gathered <= p->plan_end);
}

/* ---- the end ---- */

/* Tells of the tiers of which all is known, or of every one. */
static void tell_tiers(struct tierce_prefetch *p, bool all)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    for (size_t level = 0; level < p->engine->level_count; level++) {
        struct tierce__prefetch_share *share = &p->shares[level];
        TIERCE_DASSERT(share->end <= p->keys.count);
        bool known = p->search_over && share->end <= p->gathered;
        if (!share->searched || share->told || (!all && !known))
            continue;
        share->told = true;
        const struct tierce_prefetch_tier *tier = &p->result.tiers[level];
        if (p->opts.on_tier != NULL)
            p->opts.on_tier(p->opts.arg, tier->name, tier->promised, tier->loaded);
    }
}

static void finish(struct tierce_prefetch *p)
{
    cut(p);
    tierce__session_free(p->pinned);
    p->pinned = NULL;
    tell_tiers(p, true);
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(!p->result.final);
    TIERCE_DASSERT(p->gathered == p->plan_end);
    p->result.cancelled = p->cancelled;
    p->result.late = p->late;
    p->result.final = true;
    struct tierce_prefetch_result result = p->result;
    if (result.late) /* counted before anybody is notified */
        tierce__count(p->engine, TIERCE__STAT_prefetches_late, 1);
    tierce__cond_broadcast(&p->changed);
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (p->opts.on_done != NULL)
        p->opts.on_done(p->opts.arg, &result);
}

void tierce__prefetch_advance(struct tierce_prefetch *p)
{
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(p->going_on);
    TIERCE_DASSERT(!p->result.final && p->refs > 0);
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (!is_over(p)) {
        search(p);
        take_room(p);
        start_reads(p);
        gather(p);
        tell_tiers(p, false);
        if (!p->search_over || p->gathered < planned(p))
            return;
    }
    finish(p);
}
