/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/deleter.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "base/threads/threads.h"
#include "manager/locate/locator_private.h"
#include "manager/locate/notes.h"

#include <errno.h>
#include <string.h>

struct tierce__deleter {
    struct tierce__locator *locator;
    struct tierce__lock lock; /* DELETER: guards the fields below */
    struct tierce__cond wake, idle;
    struct tierce__deadlines waiting;
    uint64_t executing;
    struct tierce__deleter_stats stats;
    bool is_ending;
    struct tierce__threads threads;
};

/* ---- batches --------------------------------------------------------------------------------- */

struct tierce__deletion *tierce__deletion_create(struct tierce__live *live, size_t room)
{
    struct tierce__arena arena = {0};
    struct tierce__deletion *deletion = tierce__arena_calloc(&arena, 1, sizeof(*deletion));
    struct tierce__deletion_item *items = tierce__arena_calloc(&arena, room, sizeof(*items));
    if (deletion == NULL || items == NULL) {
        tierce__arena_clear(&arena);
        return NULL;
    }
    deletion->live = live;
    deletion->note = tierce__locator_random(live->locator);
    deletion->items = items;
    deletion->room = room;
    deletion->arena = arena;
    tierce__live_hold(live);
    return deletion;
}

void tierce__deletion_destroy(struct tierce__deletion *deletion)
{
    if (deletion == NULL)
        return;
    TIERCE_ASSERT(deletion->deadline.place == 0); /* it is in no queue */
    TIERCE_DASSERT(deletion->count <= deletion->room);
    struct tierce__live *live = deletion->live;
    struct tierce__arena arena = deletion->arena; /* it lies in it */
    tierce__arena_clear(&arena);
    tierce__live_release(live);
}

/* A record may have several locations, so there may be more items than keys. */
static int make_room(struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->count <= deletion->room);
    if (deletion->count < deletion->room)
        return 0;
    size_t room = deletion->room * 2 + 1;
    struct tierce__deletion_item *items =
        tierce__arena_calloc(&deletion->arena, room, sizeof(*items));
    if (items == NULL)
        return -ENOMEM;
    if (deletion->count > 0)
        memcpy(items, deletion->items, deletion->count * sizeof(*items));
    deletion->items = items;
    deletion->room = room;
    return 0;
}

int tierce__deletion_add(struct tierce__deletion *deletion, int64_t key,
                         const struct tierce__location *location)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    int rc = make_room(deletion);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(deletion->count < deletion->room);
    struct tierce__deletion_item *item = &deletion->items[deletion->count];
    struct tierce__spec_place *places =
        tierce__arena_calloc(&deletion->arena, (size_t)location->place_count + 1, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < location->place_count; i++) {
        places[i] = location->places[i];
        if (places[i].uri == NULL)
            continue;
        places[i].uri = tierce__arena_copy(&deletion->arena, places[i].uri, strlen(places[i].uri));
        if (places[i].uri == NULL)
            return -ENOMEM;
    }
    *item = (struct tierce__deletion_item){.key = key, .location = *location};
    item->location.places = places;
    deletion->count++;
    return 0;
}

int tierce__deletion_write(struct tierce__deletion *deletion, struct tierce__meta_note *note)
{
    TIERCE_ASSERT(!deletion->is_doubtful && !deletion->is_end_doubtful);
    TIERCE_ASSERT(deletion->count <= UINT32_MAX);
    struct tierce__note_writer w = {.arena = &deletion->arena};
    *note = (struct tierce__meta_note){.kind = TIERCE__NOTE_DELETION, .number = deletion->note};
    tierce__note_put8(&w, TIERCE__NOTE_VERSION);
    tierce__note_put64(&w, (uint64_t)deletion->due_us);
    tierce__note_put64(&w, (uint64_t)deletion->reusable_us);
    tierce__note_put64(&w, (uint64_t)deletion->sweep_us);
    tierce__note_put8(&w, deletion->is_sweep);
    tierce__note_put32(&w, (uint32_t)deletion->count);
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        tierce__note_put64(&w, (uint64_t)deletion->items[i].key);
        tierce__note_put_bytes(&w, location->id, sizeof(location->id));
        tierce__note_put16(&w, location->storage);
        tierce__note_put8(&w, location->type);
        tierce__note_put_places(&w, location->places, location->place_count);
    }
    return tierce__note_finish(&w, &note->value, &note->bytes);
}

static void read_item(struct tierce__note_reader *r, struct tierce__deletion_item *item)
{
    item->key = (int64_t)tierce__note_get64(r);
    tierce__note_get_bytes(r, item->location.id, sizeof(item->location.id));
    item->location.storage = tierce__note_get16(r);
    item->location.type = tierce__note_get8(r);
    item->location.places = tierce__note_get_places(r, &item->location.place_count);
}

int tierce__deletion_read(struct tierce__deletion **out, struct tierce__live *live,
                          const struct tierce__meta_note *note)
{
    enum { ITEM_BYTES_MIN = 8 + 8 + 2 + 1 + 2 };
    struct tierce__note_reader r = {.at = note->value, .left = note->bytes};
    tierce__note_get_version(&r);
    int64_t due_us = (int64_t)tierce__note_get64(&r);
    int64_t reusable_us = (int64_t)tierce__note_get64(&r);
    int64_t sweep_us = (int64_t)tierce__note_get64(&r);
    bool is_sweep = tierce__note_get_flag(&r);
    uint32_t count = tierce__note_get32(&r);
    if (r.error == 0 && count > r.left / ITEM_BYTES_MIN)
        return TIERCE_E_FORMAT;
    if (r.error < 0)
        return r.error;
    struct tierce__deletion *deletion = tierce__deletion_create(live, count);
    if (deletion == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(count <= deletion->room);
    deletion->note = note->number;
    deletion->due_us = due_us;
    deletion->reusable_us = reusable_us;
    deletion->sweep_us = sweep_us;
    deletion->is_sweep = is_sweep;
    r.arena = &deletion->arena;
    for (; deletion->count < count && r.error == 0; deletion->count++)
        read_item(&r, &deletion->items[deletion->count]);
    int rc = tierce__note_end(&r);
    if (rc < 0)
        tierce__deletion_destroy(deletion);
    else
        *out = deletion;
    return rc;
}

/* ---- the keys that are being deleted --------------------------------------------------------- */

struct deleting_key {
    struct tierce__map_node node;
    const struct tierce__deletion_item *item;
};

static uint64_t hash_of(int64_t key)
{
    return tierce__spread((uint64_t)key); /* the hash determines the key */
}

static struct deleting_key *key_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct deleting_key, node);
}

const struct tierce__location *tierce__deleting_find(const struct tierce__map *deleting,
                                                     int64_t key)
{
    struct tierce__map_node *node = tierce__map_find(deleting, hash_of(key));
    TIERCE_DASSERT(node == NULL || key_of(node)->item->key == key);
    return node != NULL ? &key_of(node)->item->location : NULL;
}

/* Only for lookups: if memory runs out, the key is not found here; nothing else is affected. */
static void note_deleting(struct tierce__map *deleting, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(!deletion->is_sweep);
    tierce__lock_assert_held(&deletion->live->lock);
    for (size_t i = 0; i < deletion->count; i++) {
        struct deleting_key *entry = tierce__alloc(sizeof(*entry));
        if (entry == NULL)
            continue;
        entry->item = &deletion->items[i];
        tierce__map_put(deleting, &entry->node, hash_of(entry->item->key));
    }
}

static void unnote_deleting(struct tierce__map *deleting, struct tierce__deletion *deletion)
{
    tierce__lock_assert_held(&deletion->live->lock);
    for (size_t i = 0; i < deletion->count; i++) {
        struct tierce__map_node *node = tierce__map_find(deleting, hash_of(deletion->items[i].key));
        while (node != NULL && key_of(node)->item != &deletion->items[i])
            node = tierce__map_find_next(node);
        if (node == NULL)
            continue;
        tierce__map_remove(deleting, node);
        tierce__free(key_of(node));
    }
}

void tierce__deleting_each(const struct tierce__map *deleting,
                           void (*each)(void *arg, const struct tierce__location *location),
                           void *arg)
{
    TIERCE__MAP_FOR_EACH (node, deleting)
        each(arg, &key_of(node)->item->location);
}

void tierce__deleting_clear(struct tierce__map *deleting)
{
    TIERCE__MAP_FOR_EACH (node, deleting)
        tierce__free(key_of(node));
    tierce__map_fini(deleting);
}

/* ---- doing one batch ------------------------------------------------------------------------- */

/* The state of processing one batch. */
struct doing {
    struct tierce__deletion *deletion;
    const struct tierce__catalog *catalog;
    struct tierce__arena arena;
    struct tierce__meta_note *notes; /* the first is the batch's own */
    size_t note_count, notes_max;
    struct deleter_part *parts;
    size_t part_count;
    uint64_t orphans;
};

/* The part of a batch in one storage. */
struct deleter_part {
    uint16_t number;
    uint8_t type;
    const struct tierce__storage *storage; /* NULL: no longer in the registry */
    struct tierce__spec_place *places;
    size_t first, count, room; /* among those of all parts */
    uint64_t bytes;
    bool is_given; /* its slots are being freed */
};

static struct deleter_part *part_of(struct doing *d, const struct tierce__location *location)
{
    const struct tierce__storage *storage = tierce__location_storage(d->catalog, location);
    for (size_t i = 0; i < d->part_count; i++) {
        struct deleter_part *part = &d->parts[i];
        if (part->number == location->storage && part->storage == storage)
            return part;
    }
    TIERCE_ASSERT(d->part_count < d->deletion->count);
    TIERCE_DASSERT(storage == NULL || location->storage == 0 ||
                   storage->number == location->storage);
    d->parts[d->part_count] = (struct deleter_part){
        .number = location->storage, .type = location->type, .storage = storage};
    return &d->parts[d->part_count++];
}

/* The batch by storage. Bytes are of one type in a storage. */
static int make_parts(struct doing *d)
{
    TIERCE_ASSERT(d->part_count == 0 && !d->deletion->is_doubtful);
    const struct tierce__deletion *deletion = d->deletion;
    size_t all = 0;
    d->parts = tierce__arena_calloc(&d->arena, deletion->count + 1, sizeof(*d->parts));
    struct deleter_part **of =
        tierce__arena_alloc(&d->arena, (deletion->count + 1) * sizeof(struct deleter_part *));
    if (d->parts == NULL || of == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        of[i] = part_of(d, location);
        of[i]->room += location->place_count;
        all += location->place_count;
    }
    d->notes_max = 1 + tierce__places_notes_max(all);
    d->notes = tierce__arena_alloc(&d->arena, d->notes_max * sizeof(*d->notes));
    d->note_count = 1;
    struct tierce__spec_place *places = tierce__arena_alloc(&d->arena, (all + 1) * sizeof(*places));
    if (d->notes == NULL || places == NULL)
        return -ENOMEM;
    for (size_t i = 0, first = 0; i < d->part_count; first += d->parts[i++].room) {
        d->parts[i].first = first;
        d->parts[i].places = places + first;
    }
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        for (size_t p = 0; p < location->place_count; p++) {
            TIERCE_DASSERT(of[i]->count < of[i]->room);
            places[of[i]->first + of[i]->count++] = location->places[p];
            of[i]->bytes += location->places[p].bytes;
        }
    }
    return 0;
}

/* Selects the files of a part to delete now: empty files; in a second deletion, files of one block,
 * which a late writer may have created again. */
static int find_empty(struct doing *d, struct deleter_part *part, bool *is_empty)
{
    TIERCE_ASSERT(part->count == part->room && !part->is_given);
    if (!d->deletion->is_sweep) {
        int rc = tierce__places_give(
            d->deletion->live->places,
            &(struct tierce__place_return){.storage = part->number,
                                           .places = part->places,
                                           .count = part->count,
                                           .reusable_us = d->deletion->reusable_us,
                                           .batch = d->deletion},
            is_empty,
            &(struct tierce__place_notes){d->notes, &d->note_count, d->notes_max, &d->arena});
        part->is_given = rc == 0;
        return rc;
    }
    for (size_t p = 0; p < part->count; p++)
        is_empty[p] = part->places[p].uri == NULL && tierce__place_slots(part->places[p].file) == 1;
    return 0;
}

static int delete_part(struct doing *d, struct deleter_part *part)
{
    TIERCE_ASSERT(!part->is_given);
    const struct tierce__live *live = d->deletion->live;
    bool *is_empty = tierce__arena_calloc(&d->arena, part->count + 1, sizeof(*is_empty));
    const char **paths = tierce__arena_alloc(&d->arena, (part->count + 1) * sizeof(*paths));
    int *status = tierce__arena_calloc(&d->arena, part->count + 1, sizeof(*status));
    size_t count = 0;
    if (is_empty == NULL || paths == NULL || status == NULL)
        return -ENOMEM;
    int rc = find_empty(d, part, is_empty);
    for (size_t p = 0; rc == 0 && p < part->count && part->storage != NULL; p++) {
        if (part->places[p].uri != NULL && !is_empty[p])
            d->orphans++; /* a slot of a file that other blocks may use */
        if (!is_empty[p])
            continue;
        paths[count] =
            tierce__place_path(part->storage, &live->instance, &part->places[p], &d->arena);
        if (paths[count] == NULL)
            return -ENOMEM;
        if (paths[count][0] == '\0')
            d->orphans++;
        else
            count++;
    }
    TIERCE_ASSERT(count <= part->count);
    /* Its objects are gone already, or its node will drop all of them. */
    bool has_objects =
        count > 0 && !d->deletion->is_lost && part->storage->contents == TIERCE__CONTENTS_KEPT;
    if (rc < 0 || !has_objects)
        return rc;
    rc = tierce__storages_delete(live->locator->opts.storages, part->storage, paths, count, status);
    if (rc == TIERCE_E_UNSUPPORTED) {
        d->orphans += count; /* the storage's owner must delete their bytes */
        return 0;
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        bool is_refused = status[i] == TIERCE_E_ARGUMENT; /* a retry would fail the same way */
        d->orphans += is_refused || status[i] == TIERCE_E_UNSUPPORTED;
        rc = is_refused || status[i] == TIERCE_E_UNSUPPORTED ? 0 : status[i];
    }
    return rc;
}

/* Drops the note, or rewrites it for the second deletion; frees the slots in the same batch. */
static int write_end(struct doing *d)
{
    TIERCE_ASSERT(d->note_count > 0 && d->note_count <= d->notes_max);
    struct tierce__deletion *deletion = d->deletion;
    bool again = deletion->sweep_us != 0 && !deletion->is_sweep;
    TIERCE_ASSERT(!deletion->is_doubtful);
    d->notes[0] =
        (struct tierce__meta_note){.kind = TIERCE__NOTE_DELETION, .number = deletion->note};
    if (again) {
        deletion->is_sweep = true;
        int rc = tierce__deletion_write(deletion, &d->notes[0]);
        deletion->is_sweep = false;
        if (rc < 0)
            return rc;
    }
    return tierce__meta_index_write_notes(deletion->live->index, d->notes, d->note_count);
}

/* Updates slots and quotas after the batch was written or failed. */
static void settle(struct doing *d, bool is_done)
{
    struct tierce__live *live = d->deletion->live;
    for (size_t i = 0; i < d->part_count; i++) {
        const struct deleter_part *part = &d->parts[i];
        TIERCE_ASSERT(part->count == part->room);
        TIERCE_ASSERT(!part->is_given || !d->deletion->is_sweep);
        if (part->is_given && !is_done)
            tierce__places_ungive(live->places, part->places, part->count);
        if (!part->is_given || !is_done)
            continue;
        struct tierce__quota_at at = tierce__live_quota_at(live, part->type, part->number);
        tierce__places_given(live->places, part->number, part->places, part->count);
        tierce__quota_move(live->locator->quota, &at, TIERCE__QUOTA_DELETING, TIERCE__QUOTA_STATES,
                           part->bytes);
    }
}

/* Looks for the note of a batch with an unknown outcome. -ENOENT: it was not written. */
static int end_doubt(struct doing *d)
{
    TIERCE_ASSERT(d->deletion->is_doubtful && !d->deletion->is_sweep);
    struct tierce__deletion *deletion = d->deletion;
    struct tierce__live *live = deletion->live;
    struct tierce__meta_space *space = live->space;
    const void *value;
    size_t bytes;
    int rc =
        space->ops->note(space, TIERCE__NOTE_DELETION, deletion->note, &d->arena, &value, &bytes);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        struct tierce__quota_at at = tierce__live_quota_at(live, location->type, location->storage);
        tierce__quota_move(live->locator->quota, &at, TIERCE__QUOTA_SERVING, TIERCE__QUOTA_DELETING,
                           tierce__location_bytes(location));
    }
    deletion->is_doubtful = false;
    return 0;
}

/* Returns whether the ending batch with an unknown outcome was written: 1, 0, or the store's
 * error. */
static int was_ended(struct doing *d)
{
    TIERCE_ASSERT(d->deletion->is_end_doubtful);
    struct tierce__deletion *deletion = d->deletion, *now;
    struct tierce__meta_space *space = deletion->live->space;
    struct tierce__meta_note note = {.kind = TIERCE__NOTE_DELETION, .number = deletion->note};
    int rc = space->ops->note(space, note.kind, note.number, &d->arena, &note.value, &note.bytes);
    bool is_ended = rc == -ENOENT;
    if (rc == 0) {
        rc = tierce__deletion_read(&now, deletion->live, &note);
        if (rc < 0)
            return rc;
        is_ended = now->is_sweep && !deletion->is_sweep;
        tierce__deletion_destroy(now);
    }
    if (is_ended)
        rc = tierce__meta_confirm(space);
    return rc < 0 ? rc : is_ended;
}

/* Settles an end with an unknown outcome. The parts must be complete. 1: it was written; 0: it was
 * not, and is repeated. */
static int end_again(struct doing *d)
{
    TIERCE_ASSERT(d->deletion->is_end_doubtful && d->parts != NULL);
    int ended = was_ended(d);
    if (ended < 0)
        return ended;
    for (size_t i = 0; i < d->part_count; i++)
        d->parts[i].is_given = !d->deletion->is_sweep;
    settle(d, ended > 0);
    for (size_t i = 0; i < d->part_count; i++)
        d->parts[i].is_given = false;
    d->deletion->is_end_doubtful = false;
    return ended;
}

static int delete_parts(struct doing *d)
{
    TIERCE_ASSERT(!d->deletion->is_doubtful && !d->deletion->is_end_doubtful);
    int rc = 0;
    for (size_t i = 0; i < d->part_count && rc == 0; i++)
        rc = delete_part(d, &d->parts[i]);
    if (rc == 0) {
        rc = write_end(d);
        d->deletion->is_end_doubtful = tierce__meta_may_be_written(rc);
    }
    if (!d->deletion->is_end_doubtful)
        settle(d, rc == 0);
    return rc;
}

/* -ENOENT: there is no such deletion. */
static int do_deletion(struct tierce__deletion *deletion, uint64_t *orphans)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    struct doing d = {.deletion = deletion};
    struct tierce__registry *registry = deletion->live->locator->opts.registry;
    d.catalog = tierce__registry_acquire(registry);
    int rc = deletion->is_doubtful ? end_doubt(&d) : 0;
    if (rc == 0)
        rc = make_parts(&d);
    int ended = rc == 0 && deletion->is_end_doubtful ? end_again(&d) : 0;
    if (rc == 0 && ended == 0) {
        rc = delete_parts(&d);
        ended = deletion->is_end_doubtful ? end_again(&d) : 0;
    }
    if (ended > 0 || rc == 0)
        rc = ended < 0 ? ended : 0;
    TIERCE_ASSERT(rc != 0 || (!deletion->is_doubtful && !deletion->is_end_doubtful));
    *orphans = rc == 0 ? d.orphans : 0;
    tierce__registry_release(registry, d.catalog);
    tierce__arena_clear(&d.arena);
    return rc;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static int64_t back_off_us(uint32_t tries)
{
    enum { FIRST_US = 1000000, DOUBLINGS_MAX = 6 };
    return (int64_t)FIRST_US << (tries < DOUBLINGS_MAX ? tries : DOUBLINGS_MAX);
}

static struct tierce__deletion *take_due(struct tierce__deleter *deleter)
{
    tierce__lock_assert_held(&deleter->lock);
    struct tierce__deadline *first = tierce__deadlines_first(&deleter->waiting);
    if (first == NULL || first->at > tierce__due(tierce__locator_now_us(deleter->locator)))
        return NULL;
    tierce__deadline_unset(&deleter->waiting, first);
    TIERCE_DASSERT(first->place == 0);
    deleter->executing++;
    return TIERCE__CONTAINER_OF(first, struct tierce__deletion, deadline);
}

/* DELETER held. If memory runs out, the batch is left to the next leader: its note is stored, and
 * its bytes count until then. */
static bool wait_again(struct tierce__deleter *deleter, struct tierce__deletion *deletion,
                       int64_t due_us)
{
    tierce__lock_assert_held(&deleter->lock);
    TIERCE_ASSERT(deletion->deadline.place == 0);
    int rc = tierce__deadline_set(&deleter->waiting, &deletion->deadline, tierce__due(due_us));
    TIERCE_DASSERT((rc == 0) == (deletion->deadline.place != 0));
    if (rc < 0)
        tierce__log(TIERCE_LOG_ERROR, "manager.delete_put_off", "no memory for the queue");
    return rc == 0;
}

static void forget_keys(struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    struct tierce__live *live = deletion->live;
    if (deletion->is_sweep)
        return;
    tierce__lock_take(&live->lock);
    unnote_deleting(&live->deleting, deletion);
    tierce__lock_drop(&live->lock);
}

/* DELETER held. Queues a batch that was tried again, or finishes it. Returns whether it was
 * queued. */
static bool decide(struct tierce__deleter *deleter, struct tierce__deletion *deletion, int rc)
{
    tierce__lock_assert_held(&deleter->lock);
    TIERCE_ASSERT(deleter->executing > 0);
    if (rc < 0) {
        deleter->stats.failed_tries++;
        int64_t due_us = tierce__locator_now_us(deleter->locator) + back_off_us(deletion->tries);
        deletion->tries++;
        return wait_again(deleter, deletion, due_us);
    }
    if (deletion->is_sweep)
        return false;
    deleter->stats.done_locations += deletion->count;
    if (deletion->sweep_us == 0)
        return false;
    TIERCE_ASSERT(!deletion->is_end_doubtful && deletion->sweep_us > 0);
    deletion->is_sweep = true;
    deletion->tries = 0;
    return wait_again(deleter, deletion, deletion->sweep_us);
}

/* Processes a batch that is due and counted as executing. It counts until it is queued again or
 * destroyed. */
static bool work_at(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    uint64_t orphans = 0;
    bool is_doubtful = deletion->is_doubtful;
    int rc = do_deletion(deletion, &orphans);
    bool never_was = is_doubtful && deletion->is_doubtful && rc == -ENOENT;
    if (rc == 0 || never_was)
        forget_keys(deletion);
    else if (deletion->tries == 0)
        tierce__log(TIERCE_LOG_WARN, "manager.delete_failed",
                    "instance=%s locations=%zu error=%s; it will be retried",
                    deletion->live->instance.id, deletion->count, tierce_error_name(rc));
    tierce__lock_take(&deleter->lock);
    deleter->stats.orphaned_locations += orphans;
    if (never_was || !decide(deleter, deletion, rc)) {
        tierce__lock_drop(&deleter->lock);
        if (rc < 0 && !never_was)
            forget_keys(deletion);
        tierce__deletion_destroy(deletion);
        tierce__lock_take(&deleter->lock);
    }
    TIERCE_ASSERT(deleter->executing > 0);
    deleter->executing--;
    tierce__cond_broadcast(&deleter->idle);
    tierce__lock_drop(&deleter->lock);
    return rc == 0;
}

void tierce__deleter_submit(struct tierce__deleter *deleter, struct tierce__deletion *deletion)
{
    TIERCE_ASSERT(!deletion->is_end_doubtful && deletion->tries == 0);
    TIERCE_ASSERT(deletion->deadline.place == 0 && deletion->count <= deletion->room);
    TIERCE_ASSERT(deletion->live->locator == deleter->locator);
    if (!deletion->is_sweep) {
        tierce__lock_take(&deletion->live->lock);
        note_deleting(&deletion->live->deleting, deletion);
        tierce__lock_drop(&deletion->live->lock);
    }
    tierce__lock_take(&deleter->lock);
    int64_t due_us = deletion->is_sweep ? deletion->sweep_us : deletion->due_us;
    bool waits = wait_again(deleter, deletion, due_us);
    tierce__cond_signal(&deleter->wake);
    tierce__lock_drop(&deleter->lock);
    if (!waits) {
        forget_keys(deletion);
        tierce__deletion_destroy(deletion);
    }
}

size_t tierce__deleter_step(struct tierce__deleter *deleter, size_t batches_max)
{
    size_t done = 0;
    for (size_t i = 0; i < batches_max; i++) {
        tierce__lock_take(&deleter->lock);
        struct tierce__deletion *deletion = take_due(deleter);
        tierce__lock_drop(&deleter->lock);
        if (deletion == NULL)
            break;
        done += work_at(deleter, deletion);
    }
    return done;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* The maximum sleep, because the wall clock may be set. */
enum { LOOK_MS = 200 };

static void *run(void *arg)
{
    struct tierce__deleter *deleter = arg;
    tierce__lock_take(&deleter->lock);
    while (!deleter->is_ending) {
        struct tierce__deletion *deletion = take_due(deleter);
        if (deletion == NULL) {
            (void)tierce__cond_wait(&deleter->wake, &deleter->lock,
                                    tierce__deadline_in_ms(LOOK_MS));
            continue;
        }
        tierce__lock_drop(&deleter->lock);
        (void)work_at(deleter, deletion);
        tierce__lock_take(&deleter->lock);
    }
    tierce__lock_drop(&deleter->lock);
    return NULL;
}

static void end_threads(struct tierce__deleter *deleter)
{
    tierce__lock_take(&deleter->lock);
    TIERCE_ASSERT(!deleter->is_ending);
    deleter->is_ending = true;
    tierce__cond_broadcast(&deleter->wake);
    tierce__lock_drop(&deleter->lock);
    tierce__threads_join(&deleter->threads);
}

int tierce__deleter_create(struct tierce__deleter **out, struct tierce__locator *locator,
                           uint32_t threads)
{
    struct tierce__deleter *deleter = tierce__calloc(1, sizeof(*deleter));
    if (deleter == NULL)
        return -ENOMEM;
    deleter->locator = locator;
    tierce__lock_init(&deleter->lock, TIERCE__LOCK_DELETER);
    tierce__cond_init(&deleter->wake);
    tierce__cond_init(&deleter->idle);
    int rc = tierce__threads_start(&deleter->threads, threads, run, deleter);
    if (rc < 0)
        tierce__deleter_destroy(deleter);
    else
        *out = deleter;
    return rc;
}

void tierce__deleter_drop(struct tierce__deleter *deleter)
{
    struct tierce__deadline *first;
    tierce__lock_take(&deleter->lock);
    while ((first = tierce__deadlines_first(&deleter->waiting)) != NULL || deleter->executing > 0) {
        if (first == NULL) { /* a batch whose processing fails is queued again */
            (void)tierce__cond_wait(&deleter->idle, &deleter->lock, TIERCE__DEADLINE_NEVER);
            continue;
        }
        tierce__deadline_unset(&deleter->waiting, first);
        tierce__lock_drop(&deleter->lock);
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(first, struct tierce__deletion, deadline);
        forget_keys(deletion);
        tierce__deletion_destroy(deletion);
        tierce__lock_take(&deleter->lock);
    }
    TIERCE_ASSERT(deleter->waiting.count == 0);
    tierce__lock_drop(&deleter->lock);
}

static struct tierce__deletion *take_one_of(struct tierce__deleter *deleter,
                                            const struct tierce__live *live)
{
    struct tierce__deletion *found = NULL;
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count && found == NULL; i++) {
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(deleter->waiting.items[i], struct tierce__deletion, deadline);
        found = deletion->live == live ? deletion : NULL;
    }
    if (found != NULL)
        tierce__deadline_unset(&deleter->waiting, &found->deadline);
    tierce__lock_drop(&deleter->lock);
    return found;
}

bool tierce__deleter_has_rest(struct tierce__deleter *deleter, const struct tierce__live *live,
                              uint32_t others)
{
    size_t queued = 0;
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count; i++)
        queued += TIERCE__CONTAINER_OF(deleter->waiting.items[i], struct tierce__deletion, deadline)
                      ->live == live;
    /* Under the lock no queued batch releases its reference. */
    uint32_t users = atomic_load_explicit(&live->users, memory_order_acquire);
    TIERCE_ASSERT(users >= queued);
    tierce__lock_drop(&deleter->lock);
    return users - queued == others;
}

void tierce__deleter_hasten(struct tierce__deleter *deleter, const struct tierce__live *live)
{
    uint64_t now = tierce__due(tierce__locator_now_us(deleter->locator));
    tierce__lock_take(&deleter->lock);
    for (size_t i = 0; i < deleter->waiting.count; i++) {
        struct tierce__deadline *member = deleter->waiting.items[i];
        struct tierce__deletion *deletion =
            TIERCE__CONTAINER_OF(member, struct tierce__deletion, deadline);
        /* A second deletion and a retry keep their due time. */
        if (deletion->live == live && !deletion->is_sweep && deletion->tries == 0 &&
            member->at > now && tierce__deadline_set(&deleter->waiting, member, now) < 0)
            break; /* cannot fail: it was in the heap before */
    }
    tierce__lock_drop(&deleter->lock);
}

void tierce__deleter_forget(struct tierce__deleter *deleter, const struct tierce__live *live)
{
    struct tierce__deletion *deletion;
    while ((deletion = take_one_of(deleter, live)) != NULL) {
        forget_keys(deletion);
        tierce__deletion_destroy(deletion);
    }
}

void tierce__deleter_destroy(struct tierce__deleter *deleter)
{
    if (deleter == NULL)
        return;
    end_threads(deleter);
    tierce__deleter_drop(deleter);
    TIERCE_ASSERT(deleter->executing == 0 && deleter->waiting.count == 0);
    tierce__deadlines_fini(&deleter->waiting);
    tierce__cond_fini(&deleter->idle);
    tierce__cond_fini(&deleter->wake);
    tierce__lock_fini(&deleter->lock);
    tierce__free(deleter);
}

void tierce__deleter_stats(struct tierce__deleter *deleter, struct tierce__deleter_stats *out)
{
    tierce__lock_take(&deleter->lock);
    TIERCE_DASSERT(deleter->waiting.count == 0 ||
                   tierce__deadlines_first(&deleter->waiting)->place == 1);
    *out = deleter->stats;
    out->waiting = deleter->waiting.count;
    out->executing = deleter->executing;
    tierce__lock_drop(&deleter->lock);
}
