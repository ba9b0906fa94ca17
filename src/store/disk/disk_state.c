/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "store/disk/disk_private.h"

#include <xxhash.h>

#define DIRTY_BYTES_MAX (128ULL << 20) /* beyond it a commit begins before its time */

/* ---- lists of slots -------------------------------------------------------------------------- */

static void list_push(struct tierce__disk *d, struct tierce__disk_slots *list, uint32_t slot)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(slot < d->table.slot_count);
    TIERCE_DASSERT(c->state == TIERCE__DISK_DIRTY);
    c->next = TIERCE__NO_SLOT;
    c->prev = list->count > 0 ? list->tail : TIERCE__NO_SLOT;
    if (list->count > 0)
        d->table.chunks[list->tail].next = slot;
    else
        list->head = slot;
    list->tail = slot;
    list->count++;
    list->bytes += c->object_bytes;
}

static void list_remove(struct tierce__disk *d, struct tierce__disk_slots *list, uint32_t slot)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_ASSERT(list->count > 0);
    TIERCE_DASSERT(list->bytes >= c->object_bytes);
    TIERCE_DASSERT(c->prev != TIERCE__NO_SLOT ? d->table.chunks[c->prev].next == slot
                                              : list->head == slot);
    TIERCE_DASSERT(c->next != TIERCE__NO_SLOT ? d->table.chunks[c->next].prev == slot
                                              : list->tail == slot);
    if (c->prev != TIERCE__NO_SLOT)
        d->table.chunks[c->prev].next = c->next;
    else
        list->head = c->next;
    if (c->next != TIERCE__NO_SLOT)
        d->table.chunks[c->next].prev = c->prev;
    else
        list->tail = c->prev;
    list->count--;
    list->bytes -= c->object_bytes;
    TIERCE_DASSERT(list->count > 0 || list->bytes == 0);
}

/* ---- life of a chunk ------------------------------------------------------------------------- */

bool tierce__disk_is_visible(const struct tierce__disk *d, uint32_t slot)
{
    const struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(slot < d->table.slot_count && c->state != TIERCE__DISK_NONE);
    return c->state != TIERCE__DISK_WRITING && !c->doomed;
}

bool tierce__disk_is_served(const struct tierce__disk *d, uint32_t slot)
{
    return tierce__disk_is_visible(d, slot) && !d->table.chunks[slot].hidden;
}

uint32_t tierce__disk_find(struct tierce__disk *d, const struct tierce__key *key)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t slot = tierce__index_find(d->table.index, key);
    if (slot != TIERCE__INDEX_NONE && !tierce__disk_is_visible(d, slot))
        slot = TIERCE__INDEX_NONE;
    return slot;
}

struct tierce__tier_event tierce__disk_describe(const struct tierce__disk *d, uint32_t slot)
{
    static const uint8_t none[TIERCE_HASH_BYTES];
    const struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(c->state != TIERCE__DISK_NONE && c->state != TIERCE__DISK_WRITING);
    bool has_parent = memcmp(c->parent, none, sizeof(none)) != 0;
    return (struct tierce__tier_event){.admitted = true,
                                       .key = tierce__index_key(d->table.index, slot),
                                       .parent = has_parent ? c->parent : NULL,
                                       .first_block = c->first_block,
                                       .object_bytes = tierce__disk_chunk_bytes(c),
                                       .token_start = c->token_start,
                                       .block_count = c->block_count};
}

/* A chunk is served from here on, or not any more. */
static void tell(struct tierce__disk *d, uint32_t slot, bool admitted, enum tierce__tier_left left)
{
    if (admitted) {
        tierce__siblings_add(d->siblings, slot, tierce__index_key(d->table.index, slot),
                             d->table.chunks[slot].first_block);
        d->stats.chunks++;
    } else {
        TIERCE_DASSERT(d->stats.chunks > 0);
        tierce__siblings_remove(d->siblings, slot);
        d->stats.chunks--;
    }
    TIERCE_DASSERT(d->stats.chunks <= tierce__index_count(d->table.index));
    if (d->watch == NULL || d->closing)
        return;
    struct tierce__tier_event event = tierce__disk_describe(d, slot);
    event.admitted = admitted;
    event.left = left;
    d->watch(d->watch_arg, &event);
}

/* Durable chunks without reads in flight can be evicted; the policy knows chunks that are visible
 * or being written. */
static void update_evictable(struct tierce__disk *d, uint32_t slot)
{
    const struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(c->state != TIERCE__DISK_NONE);
    if (!c->doomed)
        d->policy->ops->set_evictable(d->policy, slot,
                                      c->state == TIERCE__DISK_DURABLE && c->reads == 0);
}

void tierce__disk_hold(struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__disk_is_visible(d, slot));
    d->table.chunks[slot].reads++;
    d->reading_count++;
    update_evictable(d, slot);
}

void tierce__disk_unhold(struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(d->reading_count >= d->table.chunks[slot].reads);
    TIERCE_ASSERT(d->table.chunks[slot].reads > 0);
    d->table.chunks[slot].reads--;
    d->reading_count--;
    update_evictable(d, slot);
}

/* ---- recodes --------------------------------------------------------------------------------- */

static struct tierce__disk_recode *recode_of(struct tierce__disk *d, uint32_t slot)
{
    uint16_t recode = d->table.chunks[slot].recode;
    TIERCE_DASSERT(recode <= TIERCE__DISK_RECODES);
    return recode > 0 ? &d->recodes[recode - 1] : NULL;
}

static void free_recode(struct tierce__disk *d, struct tierce__disk_recode *recode)
{
    TIERCE_ASSERT(recode->is_used && d->recode_count > 0);
    d->table.chunks[recode->slot].recode = 0;
    *recode = (struct tierce__disk_recode){0};
    d->recode_count--;
}

/* The other object takes the place of that in the slot. */
static void swap_objects(struct tierce__disk_chunk *c, struct tierce__disk_recode *recode)
{
    const struct tierce__disk_recode slot = {.offset = c->offset,
                                             .object_bytes = c->object_bytes,
                                             .raw_bytes = c->raw_bytes,
                                             .head_sum = c->head_sum};
    c->offset = recode->offset;
    c->object_bytes = recode->object_bytes;
    c->raw_bytes = recode->raw_bytes;
    c->head_sum = recode->head_sum;
    recode->offset = slot.offset;
    recode->object_bytes = slot.object_bytes;
    recode->raw_bytes = slot.raw_bytes;
    recode->head_sum = slot.head_sum;
}

int tierce__disk_check_recode(struct tierce__disk *d, const struct tierce__store_req *req,
                              uint32_t *slot, bool *has_form)
{
    tierce__lock_assert_held(&d->lock);
    *has_form = false;
    *slot = tierce__disk_find(d, req->keys);
    if (*slot == TIERCE__INDEX_NONE || !tierce__disk_is_served(d, *slot))
        return TIERCE_E_MISS;
    const struct tierce__disk_chunk *c = &d->table.chunks[*slot];
    if (tierce__disk_chunk_bytes(c) != req->object_bytes)
        return TIERCE_E_ARGUMENT;
    *has_form = (c->raw_bytes > 0) == (req->coded_bytes > 0) &&
                c->object_bytes == tierce__store_put_bytes(req);
    /* end_recode would refuse it while it is read, after the new object was written. */
    bool is_idle = c->state == TIERCE__DISK_DURABLE && c->recode == 0 && c->reads == 0;
    return *has_form || is_idle ? 0 : TIERCE_E_REFUSED;
}

struct tierce__disk_recode *tierce__disk_begin_recode(struct tierce__disk *d, uint32_t slot,
                                                      uint64_t offset,
                                                      const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&d->lock);
    for (uint32_t i = 0; i < TIERCE__DISK_RECODES; i++) {
        struct tierce__disk_recode *recode = &d->recodes[i];
        if (recode->is_used)
            continue;
        *recode = (struct tierce__disk_recode){
            .is_used = true,
            .slot = slot,
            .offset = offset,
            .object_bytes = tierce__store_put_bytes(req),
            .raw_bytes = req->coded_bytes > 0 ? req->object_bytes : 0,
            .head_sum = XXH3_64bits(req->buf->data, TIERCE__JOURNAL_PAGE)};
        d->table.chunks[slot].recode = (uint16_t)(i + 1);
        d->recode_count++;
        tierce__disk_hold(d, slot);
        return recode;
    }
    return NULL;
}

/* The policy keeps the size with which the chunk was inserted until the store is opened again. */
int tierce__disk_end_recode(struct tierce__disk *d, struct tierce__disk_recode *recode, int status)
{
    uint32_t slot = recode->slot;
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    tierce__lock_assert_held(&d->lock);
    TIERCE_ASSERT(recode->is_used && !recode->is_swapped && c->reads > 0);
    if (status == 0 && c->doomed)
        status = TIERCE_E_CANCELLED;
    if (status == 0 && (c->state != TIERCE__DISK_DURABLE || c->reads > 1))
        status = TIERCE_E_REFUSED; /* the reads need the present object's place */
    tierce__disk_unhold(d, slot);
    if (status < 0) {
        tierce__space_give(d->space, recode->offset, recode->object_bytes);
        free_recode(d, recode);
        return status;
    }
    recode->seq = c->seq;
    recode->is_swapped = true;
    swap_objects(c, recode);
    c->seq = d->next_seq++;
    c->recorded = false; /* that was of the old object */
    c->state = TIERCE__DISK_DIRTY;
    TIERCE_DASSERT(d->durable_count > 0);
    d->durable_count--;
    list_push(d, &d->dirty, slot);
    update_evictable(d, slot);
    bool is_last = d->recode_count == TIERCE__DISK_RECODES;
    tierce__disk_want_commit(d, is_last || d->dirty.bytes > DIRTY_BYTES_MAX);
    return 0;
}

/* Restores the old object after a failed sync. Returns false if a journal may hold the new object,
 * or if the chunk is being read. */
static bool restore(struct tierce__disk *d, uint32_t slot)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    struct tierce__disk_recode *recode = recode_of(d, slot);
    if (recode == NULL || !recode->is_swapped || c->recorded || c->doomed || c->reads > 0)
        return false;
    swap_objects(c, recode);
    c->seq = recode->seq;
    c->state = TIERCE__DISK_DURABLE;
    d->durable_count++;
    tierce__space_give(d->space, recode->offset, recode->object_bytes);
    free_recode(d, recode);
    update_evictable(d, slot);
    return true;
}

void tierce__disk_publish(struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_ASSERT(c->state == TIERCE__DISK_WRITING);
    TIERCE_DASSERT(!c->doomed && !c->cancelled && c->reads == 0);
    TIERCE_DASSERT(c->offset + c->object_bytes <= d->data_cap);
    c->state = TIERCE__DISK_DIRTY;
    c->seq = d->next_seq++;
    c->stored_s = tierce__wall_s();
    list_push(d, &d->dirty, slot);
    d->stats.put_chunks++;
    d->stats.put_bytes += c->object_bytes;
    tell(d, slot, true, TIERCE__LEFT_DELETED);
    tierce__disk_want_commit(d, d->dirty.bytes > DIRTY_BYTES_MAX);
}

void tierce__disk_abort(struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_ASSERT(c->state == TIERCE__DISK_WRITING);
    TIERCE_DASSERT(!c->doomed && c->reads == 0);
    d->policy->ops->remove(d->policy, slot, false);
    tierce__space_give(d->space, c->offset, c->object_bytes);
    tierce__disk_table_erase(&d->table, slot);
}

void tierce__disk_begin_commit(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_ASSERT(d->committing.count == 0);
    TIERCE_DASSERT(d->committing.bytes == 0);
    d->committing = d->dirty;
    d->dirty = (struct tierce__disk_slots){0};
    uint32_t slot = d->committing.head;
    for (uint32_t i = 0; i < d->committing.count; i++, slot = d->table.chunks[slot].next)
        d->table.chunks[slot].state = TIERCE__DISK_COMMITTING;
    TIERCE_DASSERT(d->committing.count == 0 || slot == TIERCE__NO_SLOT);
}

static void set_all(struct tierce__disk *d, enum tierce__disk_state state)
{
    TIERCE_DASSERT(state == TIERCE__DISK_DURABLE || state == TIERCE__DISK_DIRTY);
    while (d->committing.count > 0) {
        uint32_t slot = d->committing.head;
        TIERCE_DASSERT(d->table.chunks[slot].state == TIERCE__DISK_COMMITTING);
        list_remove(d, &d->committing, slot);
        d->table.chunks[slot].state = (uint8_t)state;
        if (state == TIERCE__DISK_DIRTY) {
            d->table.chunks[slot].recorded = true;
            list_push(d, &d->dirty, slot);
        }
        update_evictable(d, slot);
    }
}

void tierce__disk_settle(struct tierce__disk *d, uint64_t limbo_mark)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(limbo_mark <= d->limbo_tail);
    d->durable_count += d->committing.count;
    set_all(d, TIERCE__DISK_DURABLE);
    TIERCE_DASSERT(d->durable_count <= tierce__index_count(d->table.index));
    for (; d->limbo_head < limbo_mark; d->limbo_head++) {
        const struct tierce__disk_limbo *l = &d->limbo[d->limbo_head % d->limbo_room];
        if (l->slot != TIERCE__NO_SLOT) {
            TIERCE_DASSERT(d->table.chunks[l->slot].state == TIERCE__DISK_LEAVING);
            d->table.chunks[l->slot].state = TIERCE__DISK_FORGOTTEN;
            continue;
        }
        TIERCE_DASSERT(d->limbo_bytes >= l->object_bytes);
        tierce__space_give(d->space, l->offset, l->object_bytes);
        d->limbo_bytes -= l->object_bytes;
    }
}

void tierce__disk_retry_later(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    set_all(d, TIERCE__DISK_DIRTY);
    TIERCE_DASSERT(d->committing.count == 0);
}

void tierce__disk_drop_unsynced(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    /* Writes in progress began before the failure was known, and may be lost too: their puts fail
     * when they end. */
    d->sync_epoch++;
    struct tierce__disk_slots *lists[] = {&d->committing, &d->dirty};
    for (size_t i = 0; i < 2; i++) {
        while (lists[i]->count > 0) {
            uint32_t slot = lists[i]->head;
            TIERCE_DASSERT(d->table.chunks[slot].state == TIERCE__DISK_DIRTY ||
                           d->table.chunks[slot].state == TIERCE__DISK_COMMITTING);
            list_remove(d, lists[i], slot);
            if (restore(d, slot))
                continue;
            d->table.chunks[slot].state = TIERCE__DISK_FORGOTTEN;
            if (!d->table.chunks[slot].doomed)
                tierce__disk_doom(d, slot, TIERCE__LEFT_LOST);
        }
    }
    TIERCE_DASSERT(d->dirty.count == 0 && d->committing.count == 0);
    tierce__disk_reap(d);
}

/* ---- the end of a chunk ---------------------------------------------------------------------- */

void tierce__disk_doom(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left)
{
    tierce__lock_assert_held(&d->lock);
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(slot < d->table.slot_count);
    bool evicted = left == TIERCE__LEFT_EVICTED || left == TIERCE__LEFT_EXPIRED ||
                   left == TIERCE__LEFT_NO_SLOT;
    TIERCE_ASSERT(tierce__disk_is_visible(d, slot));
    if (!c->hidden)
        tell(d, slot, false, left);
    d->lacking_count -= c->lacks_key;
    c->lacks_key = false;
    d->policy->ops->remove(d->policy, slot, evicted);
    c->doomed = true;
    c->doom_next = d->doomed;
    d->doomed = slot;
}

void tierce__disk_hide(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(tierce__disk_is_visible(d, slot));
    if (!tierce__disk_is_served(d, slot))
        return;
    tell(d, slot, false, left);
    c->hidden = true;
    c->lacks_key = left == TIERCE__LEFT_NO_KEY;
    d->lacking_count += c->lacks_key;
}

void tierce__disk_show(struct tierce__disk *d, uint32_t from, uint32_t to)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(from <= to && to <= d->table.slot_count);
    for (uint32_t slot = from; slot < to; slot++) {
        struct tierce__disk_chunk *c = &d->table.chunks[slot];
        if (!tierce__index_has(d->table.index, slot) || !c->lacks_key)
            continue;
        TIERCE_DASSERT(c->hidden && !c->doomed && d->lacking_count > 0);
        c->hidden = c->lacks_key = false;
        d->lacking_count--;
        tell(d, slot, true, TIERCE__LEFT_DELETED);
    }
}

size_t tierce__disk_clear(struct tierce__disk *d, const struct tierce__key *ns_of, uint32_t from,
                          uint32_t to)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_DASSERT(from <= to && to <= d->table.slot_count);
    size_t served = 0;
    for (uint32_t slot = from; slot < to; slot++) {
        struct tierce__disk_chunk *c = &d->table.chunks[slot];
        if (!tierce__index_has(d->table.index, slot) || c->doomed)
            continue;
        if (ns_of != NULL && tierce__index_key(d->table.index, slot)->ns != ns_of->ns)
            continue;
        if (c->state == TIERCE__DISK_WRITING) {
            c->cancelled = true;
            continue;
        }
        served += !c->hidden;
        tierce__disk_doom(d, slot, TIERCE__LEFT_CLEARED);
    }
    return served;
}

static bool limbo_has_room_for(const struct tierce__disk *d, uint32_t count)
{
    TIERCE_DASSERT(d->limbo_head <= d->limbo_tail &&
                   d->limbo_tail - d->limbo_head <= d->limbo_room);
    return d->limbo_tail - d->limbo_head + count <= d->limbo_room;
}

static bool limbo_has_room(const struct tierce__disk *d)
{
    return limbo_has_room_for(d, 1);
}

/* Returns its place. */
static uint32_t add_to_limbo(struct tierce__disk *d, const struct tierce__disk_limbo *entry)
{
    uint32_t place = (uint32_t)(d->limbo_tail % d->limbo_room);
    uint64_t *newest = &d->limbo_by_key[tierce__key_spread(&entry->key) % TIERCE__DISK_LIMBO_BINS];
    TIERCE_DASSERT(limbo_has_room(d) && *newest <= d->limbo_tail);
    d->limbo[place] = *entry;
    d->limbo[place].before = *newest;
    *newest = ++d->limbo_tail;
    tierce__disk_want_commit(d, false);
    return place;
}

/* The old object of a recode leaves; limbo has room. */
static void retire(struct tierce__disk *d, struct tierce__disk_recode *recode)
{
    TIERCE_DASSERT(recode->is_swapped);
    (void)add_to_limbo(
        d, &(struct tierce__disk_limbo){.key = *tierce__index_key(d->table.index, recode->slot),
                                        .seq = recode->seq,
                                        .offset = recode->offset,
                                        .object_bytes = recode->object_bytes,
                                        .slot = TIERCE__NO_SLOT});
    d->limbo_bytes += recode->object_bytes;
    free_recode(d, recode);
}

/* The old objects whose successors are durable. Afterwards, limbo is full or there is none. */
static void retire_old(struct tierce__disk *d)
{
    for (uint32_t i = 0; d->recode_count > 0 && i < TIERCE__DISK_RECODES; i++) {
        struct tierce__disk_recode *recode = &d->recodes[i];
        if (recode->is_swapped && limbo_has_room(d) &&
            d->table.chunks[recode->slot].state == TIERCE__DISK_DURABLE)
            retire(d, recode);
    }
}

/* The removal record of a chunk waits for the next commit. So does its space, or, while a read is
 * in flight, the chunk itself. */
static void send_to_limbo(struct tierce__disk *d, uint32_t slot)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE ? d->durable_count > 0 : c->recorded);
    uint32_t place = add_to_limbo(
        d, &(struct tierce__disk_limbo){.key = *tierce__index_key(d->table.index, slot),
                                        .seq = c->seq,
                                        .offset = c->offset,
                                        .object_bytes = c->object_bytes,
                                        .slot = slot});
    d->durable_count -= c->state == TIERCE__DISK_DURABLE;
    c->state = TIERCE__DISK_LEAVING;
    c->next = place;
    c->recorded = false;
}

/* Whether a doomed chunk could be removed. If not, it is kept for its reads in flight. The removal
 * record does not wait for the reads, and a new put of the chunk does not wait for the record. */
static bool try_remove(struct tierce__disk *d, uint32_t slot)
{
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    TIERCE_DASSERT(c->doomed && c->state != TIERCE__DISK_WRITING);
    if (c->state == TIERCE__DISK_COMMITTING)
        return false;
    struct tierce__disk_recode *recode = recode_of(d, slot);
    bool has_old = recode != NULL && recode->is_swapped;
    bool recorded = c->state == TIERCE__DISK_DURABLE || c->recorded;
    if (!limbo_has_room_for(d, (uint32_t)recorded + has_old)) {
        d->limbo_is_full = true; /* the rest waits as well: there may be very many */
        tierce__disk_want_commit(d, true);
        return false;
    }
    if (has_old)
        retire(d, recode);
    if (c->state == TIERCE__DISK_DIRTY) {
        list_remove(d, &d->dirty, slot);
        c->state = TIERCE__DISK_FORGOTTEN;
    }
    if (recorded)
        send_to_limbo(d, slot);
    if (c->reads > 0)
        return false;
    if (c->state == TIERCE__DISK_LEAVING) {
        TIERCE_DASSERT(d->limbo[c->next].slot == slot);
        d->limbo[c->next].slot = TIERCE__NO_SLOT;
        d->limbo_bytes += c->object_bytes;
    } else { /* no journal knows it, so its space is free at once */
        tierce__space_give(d->space, c->offset, c->object_bytes);
    }
    TIERCE_DASSERT(c->state == TIERCE__DISK_LEAVING || c->state == TIERCE__DISK_FORGOTTEN);
    c->hidden = false;
    c->doomed = false;
    tierce__disk_table_erase(&d->table, slot);
    return true;
}

void tierce__disk_reap(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t *link = &d->doomed;
    d->limbo_is_full = false;
    retire_old(d);
    while (*link != TIERCE__NO_SLOT && !d->limbo_is_full) {
        uint32_t slot = *link, next = d->table.chunks[slot].doom_next;
        TIERCE_DASSERT(slot < d->table.slot_count && d->table.chunks[slot].doomed);
        if (try_remove(d, slot))
            *link = next;
        else
            link = &d->table.chunks[slot].doom_next;
    }
}

bool tierce__disk_may_return(const struct tierce__disk *d, const struct tierce__key *key)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t slot = tierce__index_find(d->table.index, key);
    const struct tierce__disk_chunk *c = slot != TIERCE__INDEX_NONE ? &d->table.chunks[slot] : NULL;
    bool has_old = c != NULL && c->recode > 0 && d->recodes[c->recode - 1].is_swapped;
    if (c != NULL && c->doomed && (c->state != TIERCE__DISK_FORGOTTEN || c->recorded || has_old))
        return true;
    uint64_t next = d->limbo_by_key[tierce__key_spread(key) % TIERCE__DISK_LIMBO_BINS];
    while (next > d->limbo_head) {
        const struct tierce__disk_limbo *l = &d->limbo[(next - 1) % d->limbo_room];
        TIERCE_DASSERT(next <= d->limbo_tail && l->before < next);
        if (tierce__key_equal(&l->key, key))
            return true;
        next = l->before;
    }
    return false;
}

/* Removes a chunk that nothing holds and for whose record limbo has room. */
static void doom_and_remove(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left)
{
    tierce__disk_doom(d, slot, left);
    TIERCE_DASSERT(d->doomed == slot);
    d->doomed = d->table.chunks[slot].doom_next;
    bool removed = try_remove(d, slot);
    TIERCE_ASSERT(removed);
}

bool tierce__disk_evict_slot(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left)
{
    tierce__lock_assert_held(&d->lock);
    TIERCE_ASSERT(d->table.chunks[slot].state == TIERCE__DISK_DURABLE);
    TIERCE_DASSERT(d->table.chunks[slot].reads == 0);
    retire_old(d);
    if (!limbo_has_room(d))
        return false;
    d->stats.evicted_chunks++;
    doom_and_remove(d, slot, left);
    return true;
}

bool tierce__disk_drop_slot(struct tierce__disk *d, uint32_t slot)
{
    tierce__lock_assert_held(&d->lock);
    struct tierce__disk_chunk *c = &d->table.chunks[slot];
    bool is_committing = c->state == TIERCE__DISK_COMMITTING;
    TIERCE_ASSERT(is_committing || c->state == TIERCE__DISK_DIRTY);
    TIERCE_DASSERT(c->reads == 0 && !c->doomed);
    if (!limbo_has_room_for(d, 1 + (c->recode > 0)))
        return false;
    list_remove(d, is_committing ? &d->committing : &d->dirty, slot);
    c->recorded = c->recorded || is_committing; /* a journal that failed may have its record */
    c->state = TIERCE__DISK_FORGOTTEN;
    doom_and_remove(d, slot, TIERCE__LEFT_LOST);
    return true;
}

bool tierce__disk_evict(struct tierce__disk *d, uint64_t bytes, enum tierce__tier_left left)
{
    tierce__lock_assert_held(&d->lock);
    uint64_t batch = tierce__disk_evict_batch(d);
    if (bytes < batch)
        bytes = batch;
    uint64_t freed = 0;
    uint32_t slot;
    retire_old(d);
    while (freed < bytes && limbo_has_room(d) &&
           d->policy->ops->victim(d->policy, tierce__now_ns(), &slot)) {
        TIERCE_DASSERT(slot < d->table.slot_count);
        freed += d->table.chunks[slot].object_bytes;
        bool evicted = tierce__disk_evict_slot(d, slot, left);
        TIERCE_ASSERT(evicted);
    }
    return freed > 0;
}

void tierce__disk_expire(struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    uint32_t slot;
    bool any = false;
    while (d->policy->ops->expired != NULL &&
           tierce__policy_expired(d->policy, tierce__now_ns(), &slot)) {
        TIERCE_DASSERT(slot < d->table.slot_count);
        d->stats.evicted_chunks++;
        tierce__disk_doom(d, slot, TIERCE__LEFT_EXPIRED);
        any = true;
    }
    if (any)
        tierce__disk_reap(d);
}

bool tierce__disk_will_free(const struct tierce__disk *d)
{
    tierce__lock_assert_held(&d->lock);
    return d->recode_count > 0 || d->limbo_head < d->limbo_tail || d->dirty.count > 0 ||
           d->committing.count > 0 || d->reading_count > 0;
}

/* ---- counting -------------------------------------------------------------------------------- */

void tierce__disk_count_written(struct tierce__disk *d, uint64_t bytes)
{
    tierce__lock_assert_held(&d->lock);
    uint64_t day = tierce__wall_s() / 86400;
    if (day != d->day) {
        d->day = day;
        d->day_bytes = 0;
    }
    d->day_bytes += bytes;
}

void tierce__disk_want_commit(struct tierce__disk *d, bool urgent)
{
    tierce__lock_assert_held(&d->lock);
    if (d->pending_since == 0) {
        d->pending_since = tierce__now_ns();
        tierce__cond_signal(&d->journal_cond);
    }
    if (urgent && !d->urgent) {
        d->urgent = true;
        tierce__cond_signal(&d->journal_cond);
    }
}
