/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/restore_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#include <errno.h>
#include <string.h>

/* A file of several slots. */
struct claimed_file {
    struct tierce__map_node node;
    uint64_t number, bytes;
    uint16_t storage, spec;
    uint8_t used[];
};

static struct claimed_file *file_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct claimed_file, node);
}

static struct claimed_file *find_file(const struct tierce__slot_claims *claims, uint64_t number)
{
    /* The hash determines the number. */
    struct tierce__map_node *node = tierce__map_find(&claims->files, tierce__spread(number));
    TIERCE_DASSERT(node == NULL || file_of(node)->number == number);
    return node != NULL ? file_of(node) : NULL;
}

void tierce__slot_claims_fini(struct tierce__slot_claims *claims)
{
    TIERCE__MAP_FOR_EACH (node, &claims->files) {
        tierce__map_remove(&claims->files, node);
        tierce__free(file_of(node));
    }
    tierce__map_fini(&claims->files);
}

/* ---- claims ---------------------------------------------------------------------------------- */

static bool is_shared(const struct tierce__spec_place *place)
{
    return place->file != 0 && tierce__place_slots(place->file) > 1;
}

bool tierce__location_shares_files(const struct tierce__location *location)
{
    for (size_t i = 0; i < location->place_count; i++) {
        if (is_shared(&location->places[i]))
            return true;
    }
    return false;
}

/* Creates the file unless it exists. NULL: no memory. */
static struct claimed_file *make_file(struct tierce__slot_claims *claims, uint16_t storage,
                                      const struct tierce__spec_place *place)
{
    uint32_t slots = tierce__place_slots(place->file);
    struct claimed_file *file = find_file(claims, place->file);
    if (file != NULL)
        return file;
    TIERCE_ASSERT(slots > 1);
    file = tierce__calloc(1, sizeof(*file) + (slots + 7) / 8);
    if (file == NULL)
        return NULL;
    file->number = place->file;
    file->bytes = place->bytes;
    file->storage = storage;
    file->spec = place->spec;
    tierce__map_put(&claims->files, &file->node, tierce__spread(file->number));
    return file;
}

/* Whether a slot is free, of a file that agrees. */
static bool is_free(const struct claimed_file *file, uint16_t storage,
                    const struct tierce__spec_place *place)
{
    uint32_t slot = place->slot;
    return slot < tierce__place_slots(file->number) && file->bytes == place->bytes &&
           file->storage == storage && file->spec == place->spec &&
           (file->used[slot / 8] >> (slot % 8) & 1) == 0;
}

static void flip(struct claimed_file *file, uint32_t slot)
{
    TIERCE_ASSERT(slot < tierce__place_slots(file->number));
    file->used[slot / 8] ^= (uint8_t)(1u << (slot % 8));
}

int tierce__slot_claims_add(struct tierce__slot_claims *claims,
                            const struct tierce__location *location)
{
    size_t done = 0;
    int rc = 1;
    for (; done < location->place_count && rc > 0; done++) {
        const struct tierce__spec_place *place = &location->places[done];
        uint64_t counter = place->file != 0 ? tierce__place_counter(place->file) : 0;
        claims->counter = counter > claims->counter ? counter : claims->counter;
        if (!is_shared(place))
            continue;
        struct claimed_file *file = make_file(claims, location->storage, place);
        rc = file == NULL ? -ENOMEM : is_free(file, location->storage, place);
        if (rc <= 0)
            break;
        flip(file, place->slot);
    }
    for (size_t i = 0; rc <= 0 && i < done; i++) {
        if (is_shared(&location->places[i]))
            flip(find_file(claims, location->places[i].file), location->places[i].slot);
    }
    return rc;
}

/* ---- notes ----------------------------------------------------------------------------------- */

enum { NOTES_AT_ONCE = 64 };

struct note_batch {
    struct tierce__meta_space *space;
    struct tierce__arena arena;
    struct tierce__meta_note notes[NOTES_AT_ONCE];
    size_t count;
};

static int flush(struct note_batch *batch)
{
    int rc = batch->count == 0
                 ? 0
                 : batch->space->ops->write(
                       batch->space, &(struct tierce__meta_batch){.notes = batch->notes,
                                                                  .note_count = batch->count});
    batch->count = 0;
    tierce__arena_reset(&batch->arena);
    return rc;
}

static int drop_note(void *arg, const struct tierce__meta_note *note)
{
    struct note_batch *batch = arg;
    TIERCE_ASSERT(batch->count < NOTES_AT_ONCE);
    batch->notes[batch->count++] =
        (struct tierce__meta_note){.kind = note->kind, .number = note->number};
    return batch->count == NOTES_AT_ONCE ? flush(batch) : 0;
}

static int write_claims(const struct tierce__slot_claims *claims, struct note_batch *batch)
{
    int rc = 0;
    TIERCE__MAP_FOR_EACH (node, &claims->files) {
        const struct claimed_file *file = file_of(node);
        struct tierce__place_file given = {.number = file->number,
                                           .bytes = file->bytes,
                                           .storage = file->storage,
                                           .spec = file->spec,
                                           .used = file->used};
        rc = tierce__place_file_note(&batch->notes[batch->count], &given, &batch->arena);
        batch->count += rc == 0 && batch->notes[batch->count].value != NULL;
        if (rc == 0 && batch->count == NOTES_AT_ONCE)
            rc = flush(batch);
        if (rc < 0)
            return rc;
    }
    return rc;
}

int tierce__slot_claims_write(const struct tierce__slot_claims *claims,
                              struct tierce__meta_space *space, uint64_t random)
{
    /* More files than are named while a backup is kept, and as many numbers again. */
    const uint64_t skipped = UINT64_C(1) << 32, spread = UINT64_C(1) << 40;
    struct note_batch batch = {.space = space};
    uint64_t next = claims->counter + skipped + random % spread;
    TIERCE_ASSERT(claims->counter <= TIERCE__PLACE_COUNTER_MAX);
    if (next > TIERCE__PLACE_COUNTER_MAX - skipped)
        return TIERCE_E_LIMIT;
    int rc = space->ops->notes(space, TIERCE__NOTE_FILE, drop_note, &batch);
    if (rc == 0)
        rc = flush(&batch);
    if (rc == 0)
        rc = write_claims(claims, &batch);
    if (rc == 0)
        rc = flush(&batch);
    if (rc == 0 && claims->counter > 0) /* without a file the first number is random anyway */
        rc = tierce__place_reserve_note(&batch.notes[batch.count++], next, &batch.arena);
    if (rc == 0)
        rc = flush(&batch);
    tierce__arena_clear(&batch.arena);
    return rc;
}
