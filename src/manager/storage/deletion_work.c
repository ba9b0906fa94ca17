/* SPDX-License-Identifier: Apache-2.0 */
/* Doing one batch: its files are deleted, its slots are freed, its note ends, and its bytes return
 * to the quotas. */
#include "base/assert.h"
#include "manager/locate/locator_private.h"
#include "manager/locate/notes.h"
#include "manager/storage/deleter_private.h"

#include <errno.h>
#include <string.h>

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

/* ---- splitting ------------------------------------------------------------------------------- */

/* Makes a batch for each part. Errors: -ENOMEM. */
static int make_split(struct doing *d)
{
    struct tierce__deletion *deletion = d->deletion;
    TIERCE_DASSERT(deletion->split_count == 0);
    deletion->split =
        tierce__arena_calloc(&deletion->arena, d->part_count, sizeof(*deletion->split));
    int rc = deletion->split != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < d->part_count; i++) {
        struct tierce__deletion *one = tierce__deletion_create(deletion->live, 1);
        if (one == NULL)
            return -ENOMEM;
        deletion->split[deletion->split_count++] = one;
        one->due_us = deletion->due_us;
        one->reusable_us = deletion->reusable_us;
        one->sweep_us = deletion->sweep_us;
        one->is_lost = deletion->is_lost;
        for (size_t k = 0; rc == 0 && k < deletion->count; k++) {
            const struct tierce__deletion_item *item = &deletion->items[k];
            if (part_of(d, &item->location) == &d->parts[i])
                rc = tierce__deletion_add(one, item->key, &item->location);
        }
    }
    return rc;
}

/* Replaces the batch, some of whose parts have failed, by one for each part. Without memory, or if
 * the store fails, the whole batch is tried again. Returns 0: it was split. */
static int split_batch(struct doing *d)
{
    struct tierce__deletion *deletion = d->deletion;
    size_t count = d->part_count + 1;
    struct tierce__meta_note *notes = tierce__arena_calloc(&d->arena, count, sizeof(*notes));
    int rc = notes != NULL ? make_split(d) : -ENOMEM;
    if (rc == 0)
        notes[0] =
            (struct tierce__meta_note){.kind = TIERCE__NOTE_DELETION, .number = deletion->note};
    for (size_t i = 0; rc == 0 && i < deletion->split_count; i++)
        rc = tierce__deletion_write(deletion->split[i], &notes[i + 1]);
    if (rc == 0)
        rc = tierce__meta_index_write_notes(deletion->live->index, notes, count);
    deletion->is_split = rc == 0;
    if (rc < 0 && !tierce__meta_may_be_written(rc))
        tierce__deletion_drop_split(deletion);
    return rc;
}

/* Settles a split with an unknown outcome. Its batches are dropped if it was not written. */
static int end_split(struct doing *d)
{
    struct tierce__deletion *deletion = d->deletion;
    struct tierce__meta_space *space = deletion->live->space;
    const void *value;
    size_t bytes;
    TIERCE_ASSERT(!deletion->is_split && !deletion->is_doubtful && !deletion->is_end_doubtful);
    int rc =
        space->ops->note(space, TIERCE__NOTE_DELETION, deletion->note, &d->arena, &value, &bytes);
    if (rc == 0) {
        tierce__deletion_drop_split(deletion);
        return 0;
    }
    if (rc == -ENOENT)
        rc = tierce__meta_confirm(space);
    deletion->is_split = rc == 0;
    return rc;
}

/* ---- all parts ------------------------------------------------------------------------------- */

/* One that fails does not keep the others from being deleted. *failed: how many did. */
static int delete_each(struct doing *d, size_t *failed)
{
    int rc = 0;
    *failed = 0;
    for (size_t i = 0; i < d->part_count; i++) {
        int part_rc = delete_part(d, &d->parts[i]);
        rc = rc < 0 ? rc : part_rc;
        *failed += part_rc < 0;
    }
    return rc;
}

static int delete_parts(struct doing *d)
{
    size_t failed;
    TIERCE_ASSERT(!d->deletion->is_doubtful && !d->deletion->is_end_doubtful);
    int rc = delete_each(d, &failed);
    if (rc < 0 && failed < d->part_count && !d->deletion->is_sweep) {
        settle(d, false);
        return split_batch(d) == 0 ? 0 : rc;
    }
    if (rc == 0) {
        rc = write_end(d);
        d->deletion->is_end_doubtful = tierce__meta_may_be_written(rc);
    }
    if (!d->deletion->is_end_doubtful)
        settle(d, rc == 0);
    return rc;
}

static int do_parts(struct doing *d)
{
    const struct tierce__deletion *deletion = d->deletion;
    int rc = make_parts(d);
    int ended = rc == 0 && deletion->is_end_doubtful ? end_again(d) : 0;
    if (rc == 0 && ended == 0) {
        rc = delete_parts(d);
        ended = deletion->is_end_doubtful ? end_again(d) : 0;
    }
    if (ended > 0 || rc == 0)
        rc = ended < 0 ? ended : 0;
    return rc;
}

int tierce__deletion_do(struct tierce__deletion *deletion, uint64_t *orphans)
{
    TIERCE_ASSERT(deletion->deadline.place == 0);
    struct doing d = {.deletion = deletion};
    struct tierce__registry *registry = deletion->live->locator->opts.registry;
    d.catalog = tierce__registry_acquire(registry);
    int rc = deletion->is_doubtful ? end_doubt(&d) : 0;
    if (rc == 0 && deletion->split_count > 0)
        rc = end_split(&d);
    if (rc == 0 && !deletion->is_split)
        rc = do_parts(&d);
    TIERCE_ASSERT(rc != 0 || (!deletion->is_doubtful && !deletion->is_end_doubtful));
    *orphans = rc == 0 && !deletion->is_split ? d.orphans : 0;
    tierce__registry_release(registry, d.catalog);
    tierce__arena_clear(&d.arena);
    return rc;
}
