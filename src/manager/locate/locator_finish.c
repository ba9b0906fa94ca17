/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "manager/locate/location_json.h"
#include "manager/locate/locator_private.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <string.h>

/* The end of a session: written blocks begin to serve, the others are deleted. */
struct finishing {
    struct tierce__live *live;
    struct tierce__write_session *session;
    size_t *served; /* the indexes of the keys that were written */
    int64_t
        *expires_us;  /* of each of the session's keys, set when its record is decided; or NULL */
    uint16_t *copies; /* of each written location, in its type; 0 or NULL: unknown */
    int64_t *outside; /* parents of the session's blocks that are not the session's own keys */
    size_t outside_count;
    int64_t now_us;
    struct tierce__arena arena;
    struct tierce__deletion *deletion;  /* the deletion of unwritten blocks, or NULL */
    struct tierce__deletion *departure; /* of sources that were moved, or NULL */
    struct tierce__meta_note *notes;
    size_t note_count;
    bool is_tried; /* the store may have received it */
    size_t kept;   /* blocks that serve, once the session has ended */
    int error;
};

static struct tierce__location location_of(const struct tierce__write_session *session,
                                           const struct tierce__session_key *key)
{
    TIERCE_DASSERT(key >= session->keys && key < session->keys + session->count);
    struct tierce__location location = {.storage = session->storage,
                                        .type = session->type,
                                        .place_count = key->place_count,
                                        .places = key->places};
    memcpy(location.id, key->location_id, sizeof(location.id));
    return location;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Returns whether a block's parent is one of the session's keys, which is missing only if the
 * client did not write it. */
static bool is_left_out(const struct finishing *f, size_t i)
{
    TIERCE_DASSERT(i < f->session->count);
    const struct tierce__session_key *keys = f->session->keys;
    return i > 0 && keys[i - 1].claim.key == keys[i].parent &&
           !atomic_load_explicit(&keys[i - 1].claim.is_removed, memory_order_relaxed);
}

/* Another location of the same block is no return to it. */
static void note_hint(struct finishing *f, int64_t key, bool found, struct tierce__record *record)
{
    struct tierce__hint_tally tally = {.uses = 1};
    if (found) {
        tally.replaced[tierce__hint_kind(record->hint)]++;
        tierce__live_count_hints(f->live, &tally, f->session->hint);
    } else {
        tierce__live_note_stored(f->live, key, f->session->hint);
    }
    record->hint = f->session->hint;
}

/* Adds a location to the block's record, unless the block was removed or invalidated, or its record
 * is full. A stale record is left to the reclaimer. */
static enum tierce__meta_action put_block(struct finishing *f, size_t i, int64_t key, bool found,
                                          struct tierce__record *record,
                                          struct tierce__arena *arena)
{
    TIERCE_DASSERT(f->served[i] < f->session->count);
    const struct tierce__session_key *written = &f->session->keys[f->served[i]];
    TIERCE_DASSERT(f->session->written[f->served[i]] && key == written->claim.key);
    TIERCE_DASSERT(f->session->is_busy);
    size_t had = found ? record->location_count : 0;
    bool is_removed = atomic_load_explicit(&written->claim.is_removed, memory_order_relaxed);
    for (size_t l = 0; l < had && !is_removed; l++) {
        if (memcmp(record->locations[l].id, written->location_id, TIERCE__LOCATION_ID_BYTES) == 0)
            return TIERCE__META_SKIP; /* it was put before, but the store's answer was lost */
    }
    is_removed |= f->session->generation != tierce__live_generation(f->live) ||
                  (found && record->generation != f->session->generation);
    if (is_removed || had == UINT16_MAX) {
        f->session->written[f->served[i]] = false;
        return TIERCE__META_SKIP;
    }
    struct tierce__location *locations = tierce__arena_alloc(arena, (had + 1) * sizeof(*locations));
    if (locations == NULL) {
        f->error = -ENOMEM;
        return TIERCE__META_FAIL;
    }
    if (had > 0)
        memcpy(locations, record->locations, had * sizeof(*locations));
    locations[had] = location_of(f->session, written);
    TIERCE_ASSERT(!f->is_tried);
    record->locations = locations;
    record->location_count = (uint16_t)(had + 1);
    record->used_us = f->now_us;
    record->stored_us = f->now_us;
    note_hint(f, key, found, record);
    if (f->session->ttl_us > 0)
        record->expires_us = f->now_us + f->session->ttl_us;
    f->expires_us[f->served[i]] = record->expires_us;
    if (!found) {
        TIERCE_DASSERT(f->outside_count < f->session->count);
        if (written->has_parent && !is_left_out(f, f->served[i]))
            f->outside[f->outside_count++] = written->parent;
        record->generation = f->session->generation;
        record->has_parent = written->has_parent;
        record->parent = written->parent;
        record->key_text = written->text;
        record->key_text_bytes = written->text != NULL ? strlen(written->text) : 0;
    }
    return TIERCE__META_PUT;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The sum of a place, which one with a URI has in its URI. False: there is none. */
static bool read_sum(uint8_t sum[TIERCE__PLACE_SUM_BYTES], const struct tierce__spec_place *place)
{
    if (place->uri != NULL)
        return tierce__uri_sum(sum, place->uri) > 0;
    memcpy(sum, place->sum, TIERCE__PLACE_SUM_BYTES);
    return tierce__place_has_sum(place);
}

/* A copy has the bytes of its source, so it has the sums too. */
static int keep_sums(struct tierce__location *copy, const struct tierce__location *source,
                     struct tierce__arena *arena)
{
    struct tierce__spec_place *places =
        tierce__arena_alloc(arena, (copy->place_count + 1u) * sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    for (size_t p = 0; p < copy->place_count; p++) {
        places[p] = copy->places[p];
        TIERCE_DASSERT(places[p].uri == NULL); /* the manager has named it */
        for (size_t s = 0; s < source->place_count; s++) {
            uint8_t sum[TIERCE__PLACE_SUM_BYTES];
            if (source->places[s].spec == places[p].spec && read_sum(sum, &source->places[s]))
                memcpy(places[p].sum, sum, sizeof(sum));
        }
    }
    copy->places = places;
    return 0;
}

/* Adds the copy to the record that still has the source, and removes the source if it is a move.
 * That is no use of the block: its times stay. */
static enum tierce__meta_action put_copy(struct finishing *f, size_t i,
                                         struct tierce__record *record, bool found,
                                         struct tierce__arena *arena)
{
    struct tierce__write_session *session = f->session;
    const struct tierce__session_key *key = &session->keys[i];
    size_t had = found ? record->location_count : 0, count = 0;
    const struct tierce__location *source = NULL;
    for (size_t l = 0; l < had; l++) {
        if (memcmp(record->locations[l].id, key->location_id, TIERCE__LOCATION_ID_BYTES) == 0)
            return TIERCE__META_SKIP; /* as in put_block */
        if (memcmp(record->locations[l].id, key->source->id, TIERCE__LOCATION_ID_BYTES) == 0)
            source = &record->locations[l];
    }
    key->source->leaves = false;
    bool is_removed = atomic_load_explicit(&key->claim.is_removed, memory_order_relaxed);
    if (source == NULL || is_removed || record->generation != session->generation ||
        session->generation != tierce__live_generation(f->live) || had == UINT16_MAX) {
        session->written[i] = false;
        return TIERCE__META_SKIP;
    }
    struct tierce__location *locations = tierce__arena_alloc(arena, (had + 1) * sizeof(*locations));
    if (locations == NULL || tierce__session_keep_source(session, key->source, source) < 0) {
        f->error = -ENOMEM;
        return TIERCE__META_FAIL;
    }
    key->source->leaves = !session->keeps_source;
    for (size_t l = 0; l < had; l++) {
        if (session->keeps_source || &record->locations[l] != source)
            locations[count++] = record->locations[l];
    }
    locations[count] = location_of(session, key);
    if (keep_sums(&locations[count++], source, arena) < 0) {
        f->error = -ENOMEM;
        return TIERCE__META_FAIL;
    }
    TIERCE_ASSERT(!f->is_tried && count == had + session->keeps_source);
    record->locations = locations;
    record->location_count = (uint16_t)count;
    return TIERCE__META_PUT;
}

/* ---- the batch ------------------------------------------------------------------------------- */

/* The sources that leave in this batch. Their note's number derives from the session's, so that
 * repeated attempts make the same note. */
static int make_departure(struct finishing *f)
{
    const struct tierce__write_session *session = f->session;
    TIERCE_DASSERT(f->departure == NULL);
    for (size_t i = 0; session->is_move && i < session->count; i++) {
        const struct tierce__move_source *source = session->keys[i].source;
        if (!session->written[i] || !source->leaves)
            continue;
        TIERCE_ASSERT(source->is_known && !session->keeps_source);
        if (f->departure == NULL)
            f->departure = tierce__deletion_create(f->live, session->count);
        if (f->departure == NULL)
            return -ENOMEM;
        int rc = tierce__deletion_add(f->departure, session->keys[i].claim.key, &source->location);
        if (rc < 0)
            return rc;
    }
    if (f->departure == NULL)
        return 0;
    f->departure->note = (session->note ^ TIERCE__MIX_GOLDEN) | 1;
    f->departure->due_us = tierce__live_departure_due_us(f->live);
    f->departure->reusable_us = tierce__live_reusable_us(f->live, f->departure->due_us);
    return 0;
}

/* Unwritten blocks are deleted. Their note has the session's number, so that repeated attempts make
 * the same note. */
static int make_deletion(struct finishing *f)
{
    const struct tierce__write_session *session = f->session;
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    for (size_t i = 0; i < session->count; i++) {
        if (session->written[i])
            continue;
        if (f->deletion == NULL)
            f->deletion = tierce__deletion_create(f->live, session->count);
        if (f->deletion == NULL)
            return -ENOMEM;
        struct tierce__location location = location_of(session, &session->keys[i]);
        int rc = tierce__deletion_add(f->deletion, session->keys[i].claim.key, &location);
        if (rc < 0)
            return rc;
    }
    if (f->deletion == NULL)
        return 0;
    TIERCE_DASSERT(f->deletion->count > 0 && f->deletion->count <= session->count);
    TIERCE_DASSERT(f->deletion->live == f->live);
    f->deletion->note = session->note;
    f->deletion->due_us = f->now_us;
    /* A client that timed out may still be writing, and so may the storage of one that reported a
     * failure: a write that hangs ends whenever it likes. */
    int64_t late_us = f->now_us + (int64_t)f->live->locator->opts.late_write_ms * 1000;
    f->deletion->reusable_us = late_us;
    f->deletion->sweep_us = late_us;
    return 0;
}

/* Writes the notes of used slots that the start of the session may not have written. Without them
 * the next leader would take those files for full ones. */
static int note_files(struct finishing *f, size_t count, size_t notes_max)
{
    TIERCE_DASSERT(f->session->is_unsure && count > 0);
    const struct tierce__write_session *session = f->session;
    size_t n = 0;
    struct tierce__spec_place *all = tierce__arena_alloc(&f->arena, (count + 1) * sizeof(*all));
    if (all == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < session->count; i++) {
        for (size_t p = 0; p < session->keys[i].place_count; p++)
            all[n++] = session->keys[i].places[p];
    }
    TIERCE_DASSERT(n == count);
    return tierce__places_note(f->live->places, all, n, f->notes, &f->note_count, notes_max,
                               &f->arena);
}

/* Deletes the session's note and adds the deletion's note. */
static int prepare_notes(struct finishing *f)
{
    TIERCE_DASSERT(f->note_count == 0);
    enum { OWN = 3 };
    size_t places = 0;
    for (size_t i = 0; i < f->session->count && f->session->is_unsure; i++)
        places += f->session->keys[i].place_count;
    size_t notes_max = OWN + tierce__places_notes_max(places);
    f->notes = tierce__arena_alloc(&f->arena, notes_max * sizeof(*f->notes));
    if (f->notes == NULL)
        return -ENOMEM;
    f->notes[f->note_count++] =
        (struct tierce__meta_note){.kind = TIERCE__NOTE_SESSION, .number = f->session->note};
    int rc = places > 0 ? note_files(f, places, notes_max - OWN + 1) : 0;
    if (rc == 0)
        rc = make_deletion(f);
    if (rc == 0 && f->deletion != NULL)
        rc = tierce__deletion_write(f->deletion, &f->notes[f->note_count++]);
    if (rc == 0)
        rc = make_departure(f);
    if (rc == 0 && f->departure != NULL)
        rc = tierce__deletion_write(f->departure, &f->notes[f->note_count++]);
    TIERCE_DASSERT(f->note_count <= notes_max);
    return rc;
}

static void move_served(struct finishing *f, enum tierce__quota_state from,
                        enum tierce__quota_state to)
{
    TIERCE_ASSERT(f->session->is_busy);
    const struct tierce__write_session *session = f->session;
    struct tierce__quota_at at = tierce__live_quota_at(f->live, session->type, session->storage);
    TIERCE_DASSERT(from != to && session->served_bytes <= session->bytes);
    if (session->served_bytes > 0)
        tierce__quota_move(f->live->locator->quota, &at, from, to, session->served_bytes);
}

/* The bytes count as serving before other calls can see and remove the records. */
static int begin_batch(struct finishing *f)
{
    TIERCE_DASSERT(!f->is_tried);
    struct tierce__write_session *session = f->session;
    int rc = prepare_notes(f);
    if (rc < 0)
        return rc;
    session->served_bytes = 0;
    for (size_t i = 0; i < session->count; i++) {
        for (size_t p = 0; session->written[i] && p < session->keys[i].place_count; p++)
            session->served_bytes += session->keys[i].places[p].bytes;
    }
    move_served(f, TIERCE__QUOTA_WRITING, TIERCE__QUOTA_SERVING);
    f->is_tried = true;
    return 0;
}

static int attach_notes(void *arg, const size_t *indices, size_t count,
                        struct tierce__meta_batch *batch, struct tierce__arena *arena)
{
    TIERCE_DASSERT(((struct finishing *)arg)->outside_count <= count);
    struct finishing *f = arg;
    (void)indices, (void)count, (void)arena;
    int rc = f->error < 0 ? f->error : begin_batch(f);
    batch->notes = f->notes;
    batch->note_count = f->note_count;
    return rc;
}

static enum tierce__meta_action put_location(void *arg, size_t i, int64_t key, bool found,
                                             struct tierce__record *record,
                                             struct tierce__arena *arena)
{
    struct finishing *f = arg;
    enum tierce__meta_action action = f->session->is_move
                                          ? put_copy(f, f->served[i], record, found, arena)
                                          : put_block(f, i, key, found, record, arena);
    if (action == TIERCE__META_PUT) /* the last location is the new one */
        f->copies[f->served[i]] = (uint16_t)tierce__record_copies(
            record, &record->locations[record->location_count - 1], NULL, NULL);
    return action;
}

/* The children of a removed key that is stored again. */
static uint32_t count_followers(void *arg, int64_t key)
{
    struct finishing *f = arg;
    return tierce__holes_children(&f->live->holes, key);
}

/* The parent of a block was removed after the session began, so the block is unreachable. A parent
 * that the session itself did not write was never stored; clients with window queries skip such
 * blocks. */
static void note_lost(void *arg, int64_t parent, uint32_t children)
{
    TIERCE_DASSERT(children > 0);
    struct finishing *f = arg;
    TIERCE_ASSERT(f->is_tried);
    struct tierce__gone hole = {.key = parent, .children = children};
    for (size_t i = 0; i < f->outside_count && !f->live->needs.is_sparse; i++) {
        if (f->outside[i] == parent) {
            tierce__holes_take(&f->live->holes, &hole, 1, 0);
            return;
        }
    }
}

static int write_batch(struct finishing *f)
{
    const struct tierce__write_session *session = f->session;
    int64_t *keys = tierce__arena_alloc(&f->arena, (session->count + 1) * sizeof(*keys));
    int *status = tierce__arena_calloc(&f->arena, session->count + 1, sizeof(*status));
    size_t count = 0;
    f->served = tierce__arena_alloc(&f->arena, (session->count + 1) * sizeof(*f->served));
    int64_t *expires_us =
        tierce__arena_calloc(&f->arena, session->count + 1, sizeof(*f->expires_us));
    f->outside = tierce__arena_alloc(&f->arena, (session->count + 1) * sizeof(*f->outside));
    f->copies = tierce__arena_calloc(&f->arena, session->count + 1, sizeof(*f->copies));
    if (keys == NULL || status == NULL || f->served == NULL || expires_us == NULL ||
        f->outside == NULL || f->copies == NULL)
        return -ENOMEM;
    f->expires_us = expires_us;
    for (size_t i = 0; i < session->count; i++) {
        if (!session->written[i])
            continue;
        f->served[count] = i;
        keys[count++] = session->keys[i].claim.key;
    }
    TIERCE_DASSERT(count <= session->count);
    TIERCE_ASSERT(!f->is_tried && f->note_count == 0);
    if (count > 0)
        return tierce__meta_index_modify(f->live->index, keys, count,
                                         &(struct tierce__meta_change){.modify = put_location,
                                                                       .attach = attach_notes,
                                                                       .followers = count_followers,
                                                                       .lost = note_lost,
                                                                       .arg = f,
                                                                       .whole = true},
                                         &f->arena, status);
    int rc = begin_batch(f);
    return rc < 0 ? rc : tierce__meta_index_write_notes(f->live->index, f->notes, f->note_count);
}

/* ---- its end --------------------------------------------------------------------------------- */

/* Adds the block to the expiry calendar. If the batch was written earlier, its records are unknown,
 * and the block is checked soon. SESSIONS held. */
static void enter_expiry(struct finishing *f, size_t i)
{
    tierce__lock_assert_held(&f->live->lock);
    TIERCE_DASSERT(i < f->session->count && f->session->written[i]);
    struct tierce__live *live = f->live;
    int64_t key = f->session->keys[i].claim.key;
    struct tierce__record record = {.used_us = f->now_us, .stored_us = f->now_us};
    if (f->expires_us != NULL)
        record.expires_us = f->expires_us[i];
    else if (f->session->ttl_us > 0 || live->has_expiring || live->calendar_ttl_us > 0)
        record = (struct tierce__record){.expires_us = f->now_us};
    tierce__live_enter_expiry(live, key, &record);
}

/* The sources that have left the index count as deleting from now on. */
static void submit_departure(struct finishing *f)
{
    struct tierce__live *live = f->live;
    for (size_t i = 0; i < f->departure->count; i++) {
        const struct tierce__location *location = &f->departure->items[i].location;
        struct tierce__quota_at at = tierce__live_quota_at(live, location->type, location->storage);
        tierce__quota_move(live->locator->quota, &at, TIERCE__QUOTA_SERVING, TIERCE__QUOTA_DELETING,
                           tierce__location_bytes(location));
    }
    tierce__deleter_submit(live->locator->deleter, f->departure);
    f->departure = NULL;
}

/* Blocks of which the group wants more copies are queued. */
static void ask_for_copies(struct finishing *f)
{
    struct tierce__registry *registry = f->live->locator->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    struct tierce__placement placement;
    struct tierce__placement_pick picks[TIERCE__PLACEMENT_PICKS];
    tierce__placement_begin(&placement, f->live, catalog, f->now_us, picks,
                            TIERCE__PLACEMENT_PICKS);
    for (size_t i = 0; i < f->session->count && f->copies != NULL && placement.has_replicas; i++) {
        const struct tierce__session_key *key = &f->session->keys[i];
        struct tierce__location location = location_of(f->session, key);
        if (f->session->written[i] && f->copies[i] > 0)
            tierce__placement_serves(&placement, key->claim.key, &location, f->copies[i]);
        if (placement.count == TIERCE__PLACEMENT_PICKS)
            tierce__placement_end(&placement);
    }
    tierce__placement_end(&placement);
    tierce__registry_release(registry, catalog);
}

/* Dropped blocks count as deleting and are submitted to the deleter. Claims are released last, so
 * that no key is ever neither claimed nor indexed while it is written. */
static void settle(struct finishing *f)
{
    TIERCE_ASSERT(f->session->is_busy && !f->session->is_doubtful);
    struct tierce__live *live = f->live;
    struct tierce__write_session *session = f->session;
    struct tierce__quota_at at = tierce__live_quota_at(live, session->type, session->storage);
    TIERCE_ASSERT(session->served_bytes <= session->bytes);
    uint64_t dropped = session->bytes - session->served_bytes;
    TIERCE_ASSERT(dropped == 0 || f->deletion != NULL);
    if (dropped > 0)
        tierce__quota_move(live->locator->quota, &at, TIERCE__QUOTA_WRITING, TIERCE__QUOTA_DELETING,
                           dropped);
    for (size_t i = 0; i < session->count && session->is_unsure; i++)
        tierce__places_taken(live->places, session->keys[i].places, session->keys[i].place_count);
    if (f->deletion != NULL)
        tierce__deleter_submit(live->locator->deleter, f->deletion);
    f->deletion = NULL;
    if (f->departure != NULL)
        submit_departure(f);
    if (session->is_move)
        tierce__live_end_moves(live, session);
    ask_for_copies(f);
    tierce__lock_take(&live->lock);
    for (size_t i = 0; i < session->count; i++) {
        TIERCE_DASSERT(session->keys[i].claim.session == session);
        f->kept += session->written[i];
        if (session->written[i] && !session->is_move)
            enter_expiry(f, i);
        tierce__live_drop_claim(live, &session->keys[i].claim);
    }
    tierce__live_drop_session(live, session);
    tierce__live_note_ending(live, session);
    tierce__lock_drop(&live->lock);
    tierce__session_destroy(session);
}

/* The session ends later: as if this attempt had not been made, or, if the outcome is unknown, once
 * it is known. */
static void leave_session(struct finishing *f, bool is_doubtful)
{
    TIERCE_ASSERT(f->session->is_busy && !f->session->is_doubtful);
    enum { AGAIN_US = 1000000 };
    struct tierce__live *live = f->live;
    struct tierce__write_session *session = f->session;
    if (f->is_tried && !is_doubtful)
        move_served(f, TIERCE__QUOTA_SERVING, TIERCE__QUOTA_WRITING);
    bool soon = is_doubtful || session->due_us <= f->now_us;
    uint64_t at = tierce__due(soon ? f->now_us + AGAIN_US : session->due_us);
    tierce__lock_take(&live->lock);
    int rc = tierce__deadline_set(&live->deadlines, &session->deadline, at);
    TIERCE_ASSERT(rc == 0); /* cannot fail: the session is in the table */
    session->is_doubtful = is_doubtful;
    session->is_busy = is_doubtful;
    tierce__lock_drop(&live->lock);
}

/* Returns whether the batch was written: it deletes the session's note. 1, 0, or the store's
 * error. */
static int was_written(struct finishing *f)
{
    TIERCE_ASSERT(f->is_tried && f->session->count > 0);
    const void *value;
    size_t bytes;
    struct tierce__meta_space *space = f->live->space;
    int rc =
        space->ops->note(space, TIERCE__NOTE_SESSION, f->session->note, &f->arena, &value, &bytes);
    if (rc != -ENOENT)
        return rc;
    rc = tierce__meta_confirm(space);
    return rc < 0 ? rc : 1;
}

/* Settles or restores a session after its batch was tried; 0: the session has ended. */
static int end_session(struct finishing *f, int rc)
{
    TIERCE_DASSERT(rc <= 0);
    TIERCE_ASSERT(f->session->is_busy && !f->session->is_doubtful);
    bool is_doubtful = false;
    if (rc < 0 && f->is_tried && tierce__meta_may_be_written(rc)) {
        int known = was_written(f);
        is_doubtful = known < 0;
        rc = known > 0 ? 0 : known < 0 ? known : rc;
    }
    if (rc == 0 && f->session->count > 0 && f->deletion == NULL && f->note_count == 0) {
        rc = make_deletion(f); /* of a batch that was written a while ago */
        rc = rc == 0 ? make_departure(f) : rc;
        is_doubtful = rc < 0;
    }
    if (rc == 0)
        settle(f);
    else
        leave_session(f, is_doubtful);
    tierce__deletion_destroy(f->deletion);
    tierce__deletion_destroy(f->departure);
    tierce__arena_clear(&f->arena);
    return rc;
}

/* Bytes in a storage that has lost its objects count as not written. */
static bool may_be_lost(struct tierce__live *live, const struct tierce__write_session *session)
{
    struct tierce__registry *registry = live->locator->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__storage *storage =
        tierce__catalog_storage_numbered(catalog, session->storage);
    bool may = storage != NULL && storage->contents != TIERCE__CONTENTS_KEPT;
    tierce__registry_release(registry, catalog);
    return may;
}

static bool has_unwritten(const struct tierce__write_session *session)
{
    bool has = false;
    for (size_t i = 0; i < session->count && !has; i++)
        has = !session->written[i];
    return has;
}

int tierce__live_finish(struct tierce__live *live, struct tierce__write_session *session)
{
    size_t kept;
    return tierce__live_finish_counted(live, session, &kept);
}

int tierce__live_finish_counted(struct tierce__live *live, struct tierce__write_session *session,
                                size_t *kept)
{
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    /* The client found no room there, or could not reach it. */
    bool is_at_fault = session->is_move ? session->is_target_bad : has_unwritten(session);
    if (live->locator->opts.nodes != NULL && !session->is_late && is_at_fault)
        tierce__nodes_not_written(live->locator->opts.nodes, session->storage);
    if (may_be_lost(live, session))
        memset(session->written, 0, session->count * sizeof(*session->written));
    struct finishing f = {
        .live = live, .session = session, .now_us = tierce__locator_now_us(live->locator)};
    int rc = end_session(&f, session->count == 0 ? 0 : write_batch(&f));
    *kept = f.kept;
    return rc;
}

int tierce__live_finish_doubtful(struct tierce__live *live, struct tierce__write_session *session)
{
    TIERCE_ASSERT(session->is_busy && session->count > 0);
    TIERCE_ASSERT(!session->is_doubtful);
    struct finishing f = {.live = live,
                          .session = session,
                          .now_us = tierce__locator_now_us(live->locator),
                          .is_tried = true};
    return end_session(&f, -EAGAIN);
}

static int check_mask(const struct tierce__write_session *session, const struct tierce__mask *mask,
                      char why[TIERCE__WHY_BYTES])
{
    size_t given = mask->is_values ? mask->count : mask->offset > 0 ? (size_t)mask->offset : 0;
    bool good =
        mask->is_values ? given == session->count : mask->offset >= 0 && given <= session->count;
    if (good)
        return 0;
    return tierce__why(why, TIERCE_E_ARGUMENT,
                       "success_blocks describes %lld blocks, but the session is writing %zu",
                       mask->is_values ? (long long)given : (long long)mask->offset,
                       session->count);
}

int tierce__live_begin_finish(struct tierce__live *live, const char *id,
                              const struct tierce__mask *mask, struct tierce__write_session **out,
                              char why[TIERCE__WHY_BYTES])
{
    int rc = 0;
    tierce__lock_take(&live->lock);
    struct tierce__write_session *session = tierce__live_session(live, id);
    if (session == NULL || session->is_busy) {
        rc = tierce__why(why, -ESRCH, "no write session %.40s; it may have timed out", id);
        goto out;
    }
    TIERCE_ASSERT(!session->is_doubtful);
    TIERCE_DASSERT(session->deadline.place != 0);
    rc = mask != NULL ? check_mask(session, mask, why) : 0;
    if (rc < 0)
        goto out;
    for (size_t i = 0; i < session->count; i++)
        session->written[i] = mask == NULL || tierce__mask_has(mask, i);
    session->is_late = false;
    session->is_busy = true;
    *out = session;
out:
    tierce__lock_drop(&live->lock);
    return rc;
}

void tierce__live_unfinish(struct tierce__live *live, struct tierce__write_session *session)
{
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    tierce__lock_take(&live->lock);
    session->is_busy = false;
    tierce__lock_drop(&live->lock);
}

/* The place of a spec of one of the session's keys; NULL: there is none. */
static struct tierce__spec_place *place_of(const struct tierce__live *live,
                                           const struct tierce__write_session *session,
                                           const struct tierce__written_sum *sum)
{
    const struct tierce__session_key *key =
        sum->key < session->count ? &session->keys[sum->key] : NULL;
    for (size_t p = 0; key != NULL && p < key->place_count; p++) {
        uint16_t spec = key->places[p].spec;
        if (spec < live->instance.spec_count &&
            strcmp(live->instance.specs[spec].name, sum->spec) == 0)
            return (struct tierce__spec_place *)(uintptr_t)&key->places[p];
    }
    return NULL;
}

/* The session is marked busy by this call. */
static int take_notes(struct tierce__live *live, struct tierce__write_session *session,
                      const struct tierce__written_notes *notes, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__written_sum *sums = notes->sums;
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    for (size_t i = 0; i < notes->sum_count; i++) {
        if (place_of(live, session, &sums[i]) == NULL)
            return tierce__why(why, TIERCE_E_ARGUMENT,
                               "locations has a sum of block %zu, spec %.64s, which the session "
                               "does not write",
                               sums[i].key, sums[i].spec);
    }
    tierce__lock_take(&live->lock);
    for (size_t i = 0; i < notes->sum_count; i++)
        memcpy(place_of(live, session, &sums[i])->sum, sums[i].sum, TIERCE__PLACE_SUM_BYTES);
    if (notes->hint != 0)
        session->hint = notes->hint;
    tierce__lock_drop(&live->lock);
    return 0;
}

int tierce__locator_finish_write(struct tierce__locator *locator, const char *instance_id,
                                 const char *session_id, const struct tierce__mask *written_mask,
                                 char why[TIERCE__WHY_BYTES])
{
    return tierce__locator_finish_write_noted(locator, instance_id, session_id, written_mask,
                                              &(struct tierce__written_notes){0}, why);
}

int tierce__locator_finish_write_noted(struct tierce__locator *locator, const char *instance_id,
                                       const char *session_id,
                                       const struct tierce__mask *written_mask,
                                       const struct tierce__written_notes *notes,
                                       char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    struct tierce__write_session *session = NULL;
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:finish_write");
    rc = tierce__live_begin_finish(live, session_id, written_mask, &session, why);
    if (rc == 0) {
        rc = session->is_move
                 ? tierce__why(why, -ESRCH,
                               "session %.40s is a batch of moves; end it with FinishMoves",
                               session_id)
                 : take_notes(live, session, notes, why);
        if (rc < 0)
            tierce__live_unfinish(live, session);
    }
    if (rc == 0)
        rc = tierce__live_refuse_stale(live, session, why);
    if (rc == 0) {
        rc = tierce__live_finish(live, session);
        if (rc < 0)
            rc = tierce__why(why, rc, "the write cannot be finished: %s", tierce_strerror(rc));
    }
    tierce__span_close(span);
    tierce__live_release(live);
    return rc;
}

int tierce__locator_session_keys(struct tierce__locator *locator, const char *instance_id,
                                 const char *session_id, size_t *count)
{
    char why[TIERCE__WHY_BYTES];
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    tierce__lock_take(&live->lock);
    const struct tierce__write_session *session = tierce__live_session(live, session_id);
    if (session != NULL)
        *count = session->count;
    tierce__lock_drop(&live->lock);
    tierce__live_release(live);
    return session != NULL ? 0 : -ESRCH;
}
