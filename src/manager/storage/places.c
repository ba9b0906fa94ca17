/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/places.h"
#include "manager/storage/place_notes.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "base/map.h"
#include "base/mix.h"

#include <errno.h>
#include <string.h>

#define PLACES_MAGIC 0x74706c63u

#define COUNTER_MAX TIERCE__PLACE_COUNTER_MAX
/* The first counter of a space is below this, so that as many numbers remain. */
#define COUNTER_FIRST_MAX (COUNTER_MAX / 2)

enum {
    SLOT_BITS = TIERCE__PLACE_SLOT_BITS,
    NOTE_VERSION = TIERCE__PLACE_NOTE_VERSION,
    NOTE_HEAD_BYTES = TIERCE__PLACE_NOTE_HEAD,
    RESERVE_NOTE = TIERCE__PLACE_RESERVE_NOTE,
    RESERVE_MIN = 1024,
    RESERVE_MAX = 65536,
};
#define GIVE_WAIT_MS 1000u

/* A file of several slots that is not full, or busy. */
struct file {
    struct tierce__map_node node;
    struct tierce__list link; /* in its shelf's list, if it has free slots and is not busy */
    uint64_t number;
    uint64_t bytes; /* of a slot */
    int64_t reusable_us;
    uint16_t storage, spec;
    uint32_t slots, used;
    uint32_t leaving; /* slots of a give that has not ended */
    bool is_taking, is_noted;
    const void
        *batch; /* the give's batch, and the index of the file's note in it, counted from 1 */
    size_t note_place;
    uint8_t bits[]; /* used slots, then leaving ones */
};

/* Files with free slots, of one storage, spec and size; approximately in the order in which they
 * become usable. */
struct shelf {
    struct tierce__list room;
    uint64_t bytes;
    uint16_t storage, spec;
};

struct tierce__places {
    uint32_t magic;
    struct tierce__lock lock;
    struct tierce__cond ended; /* a take or a give */
    struct tierce__meta_space *space;
    size_t spec_count;
    int64_t reusable_us; /* of the files found in the store */
    bool is_loaded;
    uint64_t counter, reserved; /* the next number, and the first one that is not reserved */
    uint64_t reserve;           /* how many to reserve next time */
    struct tierce__map files;   /* by number */
    struct shelf **shelves;
    size_t shelf_count;
    uint64_t damaged;
};

size_t tierce__places_notes_max(size_t count)
{
    return count;
}

/* ---- files ----------------------------------------------------------------------------------- */

static size_t bitmap_bytes(uint32_t slots)
{
    return (slots + 7) / 8;
}

static uint8_t *used_bits(struct file *file)
{
    return file->bits;
}

static uint8_t *leaving_bits(struct file *file)
{
    return file->bits + bitmap_bytes(file->slots);
}

static bool has_bit(const uint8_t *bits, uint32_t i)
{
    return (bits[i / 8] >> (i % 8) & 1) != 0;
}

static void flip_bit(uint8_t *bits, uint32_t i)
{
    bits[i / 8] ^= (uint8_t)(1u << (i % 8));
}

static uint64_t hash_of(uint64_t number)
{
    return tierce__spread(number); /* the hash determines the number */
}

static struct file *file_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct file, node);
}

static struct file *find_file(const struct tierce__places *places, uint64_t number)
{
    tierce__lock_assert_held(&places->lock);
    struct tierce__map_node *node = tierce__map_find(&places->files, hash_of(number));
    TIERCE_DASSERT(node == NULL || file_of(node)->number == number);
    return node != NULL ? file_of(node) : NULL;
}

/* A file without used slots, in the table. NULL: no memory. */
static struct file *add_file(struct tierce__places *places, uint64_t number, uint16_t storage,
                             uint16_t spec, uint64_t bytes)
{
    tierce__lock_assert_held(&places->lock);
    uint32_t slots = tierce__place_slots(number);
    TIERCE_DASSERT(slots > 1); /* a file of one slot has no entry */
    struct file *file = tierce__calloc(1, sizeof(*file) + 2 * bitmap_bytes(slots));
    if (file == NULL)
        return NULL;
    file->number = number;
    file->storage = storage;
    file->spec = spec;
    file->bytes = bytes;
    file->slots = slots;
    tierce__list_init(&file->link);
    tierce__map_put(&places->files, &file->node, hash_of(number));
    return file;
}

static void forget_file(struct tierce__places *places, struct file *file)
{
    TIERCE_DASSERT(places->files.count > 0);
    tierce__map_remove(&places->files, &file->node);
    tierce__list_remove(&file->link);
    tierce__free(file);
}

static struct shelf *find_shelf(struct tierce__places *places, uint16_t storage, uint16_t spec,
                                uint64_t bytes)
{
    tierce__lock_assert_held(&places->lock);
    for (size_t i = 0; i < places->shelf_count; i++) {
        struct shelf *shelf = places->shelves[i];
        if (shelf->storage == storage && shelf->spec == spec && shelf->bytes == bytes)
            return shelf;
    }
    return NULL;
}

/* NULL: no memory. */
static struct shelf *make_shelf(struct tierce__places *places, uint16_t storage, uint16_t spec,
                                uint64_t bytes)
{
    tierce__lock_assert_held(&places->lock);
    struct shelf *shelf = find_shelf(places, storage, spec, bytes);
    if (shelf != NULL)
        return shelf;
    struct shelf **shelves =
        tierce__realloc(places->shelves, (places->shelf_count + 1) * sizeof(struct shelf *));
    if (shelves == NULL)
        return NULL;
    places->shelves = shelves;
    shelf = tierce__alloc(sizeof(*shelf));
    if (shelf == NULL)
        return NULL;
    *shelf = (struct shelf){.storage = storage, .spec = spec, .bytes = bytes};
    tierce__list_init(&shelf->room);
    TIERCE_DASSERT(find_shelf(places, storage, spec, bytes) == NULL);
    shelves[places->shelf_count++] = shelf;
    return shelf;
}

/* Lists a file that is not busy if it has free slots; full and empty files are not listed. */
static void settle_file(struct tierce__places *places, struct file *file)
{
    tierce__lock_assert_held(&places->lock);
    struct shelf *shelf = find_shelf(places, file->storage, file->spec, file->bytes);
    TIERCE_ASSERT(shelf != NULL);
    TIERCE_DASSERT(!file->is_taking && file->leaving == 0);
    TIERCE_ASSERT(file->used <= file->slots && tierce__list_empty(&file->link));
    if (file->used == 0 || file->used == file->slots)
        forget_file(places, file);
    else if (tierce__list_empty(&shelf->room) ||
             TIERCE__CONTAINER_OF(shelf->room.next, struct file, link)->reusable_us >=
                 file->reusable_us)
        tierce__list_push_front(&shelf->room, &file->link);
    else
        tierce__list_push_back(&shelf->room, &file->link);
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Makes the note of a file as it will be after its give. */
static int note_file(struct tierce__meta_note *note, struct file *file, struct tierce__arena *arena)
{
    TIERCE_DASSERT(file->leaving <= file->used && file->used <= file->slots);
    size_t bitmap = bitmap_bytes(file->slots);
    uint8_t *used = tierce__arena_alloc(arena, bitmap);
    if (used == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < bitmap; i++)
        used[i] = used_bits(file)[i] & (uint8_t)~leaving_bits(file)[i];
    return tierce__place_file_note(note,
                                   &(struct tierce__place_file){.number = file->number,
                                                                .bytes = file->bytes,
                                                                .storage = file->storage,
                                                                .spec = file->spec,
                                                                .used = used},
                                   arena);
}

/* Loads a file from its note; false if the note is damaged: the file's slots are never reused
 * then. */
static int read_note(struct tierce__places *places, const struct tierce__meta_note *note,
                     bool *is_damaged)
{
    tierce__lock_assert_held(&places->lock);
    const uint8_t *value = note->value;
    uint32_t slots = tierce__place_slots(note->number), used = 0;
    *is_damaged = true;
    if (note->bytes != NOTE_HEAD_BYTES + bitmap_bytes(slots) || value[0] != NOTE_VERSION)
        return 0;
    for (uint32_t i = 0; i < slots; i++)
        used += has_bit(value + NOTE_HEAD_BYTES, i);
    uint16_t storage = tierce__load_le16(value + 1), spec = tierce__load_le16(value + 3);
    if (!tierce__place_is_noted(used, slots) || spec >= places->spec_count ||
        (slots % 8 != 0 && value[note->bytes - 1] >> (slots % 8) != 0))
        return 0;
    *is_damaged = false;
    uint64_t bytes = tierce__load_le64(value + 5);
    if (make_shelf(places, storage, spec, bytes) == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(find_file(places, note->number) == NULL);
    struct file *file = add_file(places, note->number, storage, spec, bytes);
    if (file == NULL)
        return -ENOMEM;
    memcpy(used_bits(file), value + NOTE_HEAD_BYTES, bitmap_bytes(slots));
    file->used = used;
    file->reusable_us = places->reusable_us;
    settle_file(places, file);
    return 0;
}

static int load_note(void *arg, const struct tierce__meta_note *note)
{
    TIERCE_DASSERT(note->kind == TIERCE__NOTE_FILE);
    struct tierce__places *places = arg;
    tierce__lock_assert_held(&places->lock);
    bool is_damaged = false;
    if (note->number == RESERVE_NOTE) {
        if (note->bytes != sizeof(uint64_t))
            return TIERCE_E_FORMAT;
        places->counter = tierce__load_le64(note->value);
        places->reserved = places->counter;
        return 0;
    }
    int rc = read_note(places, note, &is_damaged);
    places->damaged += is_damaged;
    return rc;
}

static void forget_all(struct tierce__places *places)
{
    TIERCE__MAP_FOR_EACH (node, &places->files)
        forget_file(places, file_of(node));
}

/* Reads the notes, once. Fails if another leader has taken over, because it may use our slots for
 * other blocks. */
static int load(struct tierce__places *places)
{
    tierce__lock_assert_held(&places->lock);
    if (places->is_loaded)
        return 0;
    TIERCE_DASSERT(places->files.count == 0);
    places->damaged = 0;
    int rc = places->space->ops->notes(places->space, TIERCE__NOTE_FILE, load_note, places);
    if (rc == 0)
        rc = tierce__meta_confirm(places->space);
    if (rc != 0)
        forget_all(places);
    places->is_loaded = rc == 0;
    return rc;
}

/* Ensures that `count` numbers are reserved. */
static int reserve(struct tierce__places *places, uint64_t count)
{
    tierce__lock_assert_held(&places->lock);
    TIERCE_DASSERT(places->counter <= places->reserved);
    uint64_t left = places->reserved - places->counter, more = places->reserve;
    if (left >= count)
        return 0;
    if (more < count - left)
        more = count - left;
    if (more > COUNTER_MAX - places->reserved)
        return TIERCE_E_LIMIT;
    uint8_t value[sizeof(uint64_t)];
    tierce__store_le64(value, places->reserved + more);
    struct tierce__meta_note note = {
        .kind = TIERCE__NOTE_FILE, .number = RESERVE_NOTE, .value = value, .bytes = sizeof(value)};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    int rc = places->space->ops->write(places->space, &batch);
    if (rc != 0)
        return rc;
    places->reserved += more;
    TIERCE_DASSERT(places->reserved - places->counter >= count);
    if (places->reserve < RESERVE_MAX)
        places->reserve *= 2;
    return 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

int tierce__places_open(struct tierce__places **out, struct tierce__meta_space *space,
                        const struct tierce__instance *instance, int64_t reusable_us,
                        uint64_t random)
{
    struct tierce__places *places = tierce__calloc(1, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    places->magic = PLACES_MAGIC;
    places->space = space;
    places->spec_count = instance->spec_count;
    places->reusable_us = reusable_us;
    places->counter = places->reserved = 1 + random % COUNTER_FIRST_MAX;
    places->reserve = RESERVE_MIN;
    tierce__lock_init(&places->lock, TIERCE__LOCK_PLACES);
    tierce__cond_init(&places->ended);
    *out = places;
    return 0;
}

void tierce__places_close(struct tierce__places *places)
{
    if (places == NULL)
        return;
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    forget_all(places);
    TIERCE_DASSERT(places->files.count == 0);
    for (size_t i = 0; i < places->shelf_count; i++)
        tierce__free(places->shelves[i]);
    tierce__free(places->shelves);
    tierce__map_fini(&places->files);
    tierce__cond_fini(&places->ended);
    tierce__lock_fini(&places->lock);
    places->magic = 0;
    tierce__free(places);
}

void tierce__places_stats(struct tierce__places *places, struct tierce__places_stats *out)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    tierce__lock_take(&places->lock);
    *out = (struct tierce__places_stats){.files = places->files.count, .damaged = places->damaged};
    TIERCE__MAP_FOR_EACH (node, &places->files)
        out->free_slots += file_of(node)->slots - file_of(node)->used;
    TIERCE_DASSERT(places->counter <= places->reserved);
    tierce__lock_drop(&places->lock);
}

int tierce__places_has_file(struct tierce__places *places, uint64_t file)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    tierce__lock_take(&places->lock);
    int rc = load(places);
    if (rc == 0)
        rc = find_file(places, file) != NULL;
    tierce__lock_drop(&places->lock);
    return rc;
}

/* ---- take ------------------------------------------------------------------------------------ */

struct take {
    struct tierce__places *places;
    struct shelf *shelf;
    uint32_t slots; /* of a new file */
    size_t count, done;
    struct tierce__spec_place *taken;
    struct tierce__meta_note *notes;
    size_t note_count, notes_max;
    struct tierce__arena *arena;
};

static int add_note(struct take *take, struct file *file)
{
    TIERCE_DASSERT(take->note_count <= take->notes_max);
    if (take->note_count == take->notes_max)
        return TIERCE_E_LIMIT;
    return note_file(&take->notes[take->note_count++], file, take->arena);
}

static void add_place(struct take *take, uint64_t file, uint32_t slot)
{
    TIERCE_DASSERT(take->done < take->count);
    TIERCE_DASSERT(slot < tierce__place_slots(file));
    take->taken[take->done++] = (struct tierce__spec_place){
        .spec = take->shelf->spec, .file = file, .slot = slot, .bytes = take->shelf->bytes};
}

/* Takes as many free slots of a file as requested. */
static int take_from(struct take *take, struct file *file)
{
    tierce__lock_assert_held(&take->places->lock);
    TIERCE_DASSERT(!file->is_taking && file->leaving == 0);
    tierce__list_remove(&file->link);
    file->is_taking = true;
    TIERCE_DASSERT(file->used < file->slots);
    for (uint32_t slot = 0; slot < file->slots && take->done < take->count; slot++) {
        if (has_bit(used_bits(file), slot))
            continue;
        flip_bit(used_bits(file), slot);
        file->used++;
        add_place(take, file->number, slot);
    }
    TIERCE_DASSERT(file->used <= file->slots);
    return add_note(take, file);
}

static int take_new(struct take *take)
{
    tierce__lock_assert_held(&take->places->lock);
    TIERCE_DASSERT(take->places->counter < take->places->reserved);
    TIERCE_DASSERT(take->slots > 0 && take->slots <= TIERCE__PLACES_SLOTS_MAX);
    struct tierce__places *places = take->places;
    TIERCE_DASSERT(take->done < take->count);
    uint64_t number = places->counter++ << SLOT_BITS | (take->slots - 1);
    if (take->count - take->done >= take->slots) {
        /* The file is full at once and needs no entry. */
        for (uint32_t slot = 0; slot < take->slots; slot++)
            add_place(take, number, slot);
        return 0;
    }
    struct file *file =
        add_file(places, number, take->shelf->storage, take->shelf->spec, take->shelf->bytes);
    return file != NULL ? take_from(take, file) : -ENOMEM;
}

static int take_all(struct take *take, int64_t now_us)
{
    tierce__lock_assert_held(&take->places->lock);
    int rc = 0;
    while (rc == 0 && take->done < take->count && !tierce__list_empty(&take->shelf->room)) {
        struct file *file = TIERCE__CONTAINER_OF(take->shelf->room.next, struct file, link);
        if (file->reusable_us > now_us)
            break;
        rc = take_from(take, file);
    }
    if (rc == 0)
        rc = reserve(take->places, (take->count - take->done + take->slots - 1) / take->slots);
    while (rc == 0 && take->done < take->count)
        rc = take_new(take);
    TIERCE_DASSERT(rc < 0 || take->done == take->count);
    return rc;
}

/* Ends a take: commits it or undoes it. */
static void end_take(struct tierce__places *places, const struct tierce__spec_place *taken,
                     size_t count, bool is_kept)
{
    tierce__lock_assert_held(&places->lock);
    for (size_t i = 0; i < count && !is_kept; i++) {
        struct file *file = find_file(places, taken[i].file);
        TIERCE_DASSERT(file == NULL || taken[i].slot < file->slots);
        if (file == NULL || !file->is_taking || !has_bit(used_bits(file), taken[i].slot))
            continue;
        flip_bit(used_bits(file), taken[i].slot);
        TIERCE_DASSERT(file->used > 0);
        file->used--;
    }
    for (size_t i = 0; i < count; i++) {
        struct file *file = find_file(places, taken[i].file);
        if (file == NULL || !file->is_taking)
            continue;
        TIERCE_DASSERT(file->leaving == 0);
        file->is_taking = false;
        settle_file(places, file);
    }
    tierce__cond_broadcast(&places->ended);
}

int tierce__places_take(struct tierce__places *places, const struct tierce__place_opts *opts,
                        struct tierce__spec_place *taken, const struct tierce__place_notes *notes)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    int32_t slots = opts->storage->key_count_per_file;
    TIERCE_ASSERT(slots <= (int32_t)TIERCE__PLACES_SLOTS_MAX);
    TIERCE_ASSERT(*notes->count <= notes->max);
    TIERCE_DASSERT(opts->spec < places->spec_count && opts->count > 0);
    struct take take = {.places = places,
                        /* Blocks of unknown size have no slots, but files of their own. */
                        .slots = opts->bytes > 0 && slots > 1 ? (uint32_t)slots : 1,
                        .count = opts->count,
                        .taken = taken,
                        .notes = notes->notes,
                        .note_count = *notes->count,
                        .notes_max = notes->max,
                        .arena = notes->arena};
    tierce__lock_take(&places->lock);
    int rc = load(places);
    if (rc == 0) {
        take.shelf = make_shelf(places, opts->storage->number, opts->spec, opts->bytes);
        rc = take.shelf != NULL ? take_all(&take, opts->now_us) : -ENOMEM;
    }
    if (rc == 0)
        *notes->count = take.note_count;
    else
        end_take(places, taken, take.done, false);
    tierce__lock_drop(&places->lock);
    return rc;
}

int tierce__places_note(struct tierce__places *places, const struct tierce__spec_place *taken,
                        size_t count, struct tierce__meta_note *notes, size_t *note_count,
                        size_t notes_max, struct tierce__arena *arena)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    TIERCE_ASSERT(*note_count <= notes_max);
    struct take take = {.places = places,
                        .notes = notes,
                        .note_count = *note_count,
                        .notes_max = notes_max,
                        .arena = arena};
    int rc = 0;
    tierce__lock_take(&places->lock);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct file *file = find_file(places, taken[i].file);
        if (file == NULL || !file->is_taking || file->is_noted)
            continue;
        file->is_noted = true;
        rc = add_note(&take, file);
    }
    for (size_t i = 0; i < count; i++) {
        struct file *file = find_file(places, taken[i].file);
        if (file != NULL && file->is_taking)
            file->is_noted = false;
    }
    tierce__lock_drop(&places->lock);
    if (rc == 0)
        *note_count = take.note_count;
    return rc;
}

void tierce__places_taken(struct tierce__places *places, const struct tierce__spec_place *taken,
                          size_t count)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    tierce__lock_take(&places->lock);
    end_take(places, taken, count, true);
    tierce__lock_drop(&places->lock);
}

void tierce__places_untake(struct tierce__places *places, const struct tierce__storage *storage,
                           const struct tierce__spec_place *taken, size_t count)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    (void)storage;
    tierce__lock_take(&places->lock);
    end_take(places, taken, count, false);
    tierce__lock_drop(&places->lock);
}

/* ---- give ------------------------------------------------------------------------------------ */

/* Returns whether a place is a slot of a file. A place with an invalid slot is damaged and
 * ignored. */
static bool is_slot(const struct tierce__spec_place *place)
{
    uint32_t slots = tierce__place_slots(place->file);
    return place->uri == NULL && slots > 1 && place->slot < slots;
}

/* Returns whether a file is in a take, or in a give for another batch. */
static bool is_busy(const struct tierce__places *places, const struct tierce__spec_place *place,
                    const void *batch)
{
    tierce__lock_assert_held(&places->lock);
    struct file *file = is_slot(place) ? find_file(places, place->file) : NULL;
    return file != NULL && (file->is_taking || (file->leaving > 0 && file->batch != batch));
}

static int wait_for_others(struct tierce__places *places, const struct tierce__spec_place *given,
                           size_t count, const void *batch)
{
    tierce__lock_assert_held(&places->lock);
    uint64_t deadline_ns = tierce__deadline_in_ms(GIVE_WAIT_MS);
    for (size_t i = 0; i < count;) {
        if (!is_busy(places, &given[i], batch)) {
            i++;
            continue;
        }
        if (!tierce__cond_wait(&places->ended, &places->lock, deadline_ns))
            return -EBUSY;
        i = 0;
    }
    return 0;
}

/* Returns the file of a slot; an unknown file is full. NULL: no memory. */
static struct file *find_or_fill(struct tierce__places *places, uint16_t storage,
                                 const struct tierce__spec_place *place)
{
    TIERCE_DASSERT(is_slot(place));
    tierce__lock_assert_held(&places->lock);
    struct file *file = find_file(places, place->file);
    if (file != NULL)
        return file;
    if (make_shelf(places, storage, place->spec, place->bytes) == NULL)
        return NULL;
    file = add_file(places, place->file, storage, place->spec, place->bytes);
    if (file == NULL)
        return NULL;
    for (uint32_t slot = 0; slot < file->slots; slot++)
        flip_bit(used_bits(file), slot);
    TIERCE_DASSERT(file->leaving == 0);
    file->used = file->slots;
    return file;
}

/* Marks the slots as leaving. On an error some are marked; end_give undoes it. */
static int leave(struct tierce__places *places, const struct tierce__place_return *given)
{
    tierce__lock_assert_held(&places->lock);
    for (size_t i = 0; i < given->count; i++) {
        const struct tierce__spec_place *place = &given->places[i];
        if (!is_slot(place))
            continue;
        struct file *file = find_or_fill(places, given->storage, place);
        if (file == NULL)
            return -ENOMEM;
        TIERCE_DASSERT(!file->is_taking && (file->leaving == 0 || file->batch == given->batch));
        tierce__list_remove(&file->link);
        if (file->reusable_us < given->reusable_us)
            file->reusable_us = given->reusable_us;
        if (has_bit(used_bits(file), place->slot) && !has_bit(leaving_bits(file), place->slot)) {
            flip_bit(leaving_bits(file), place->slot);
            file->leaving++;
        }
        TIERCE_DASSERT(file->leaving <= file->used);
        file->is_noted = false;
        file->batch = given->batch;
    }
    return 0;
}

/* Returns whether a place has a file of its own. A URI text has one unless it names a part of a
 * file. */
static bool is_alone(const struct tierce__spec_place *place)
{
    if (place->uri == NULL)
        return tierce__place_slots(place->file) == 1;
    return strstr(place->uri, "?blkid=") == NULL && strstr(place->uri, "&blkid=") == NULL;
}

/* Replaces the note that an earlier give made for the batch, if any. */
static int note_again(struct take *give, struct file *file)
{
    TIERCE_DASSERT(file->is_noted);
    size_t at = file->note_place;
    if (at > 0 && at <= give->note_count && give->notes[at - 1].kind == TIERCE__NOTE_FILE &&
        give->notes[at - 1].number == file->number)
        return note_file(&give->notes[at - 1], file, give->arena);
    file->note_place = give->note_count + 1;
    return add_note(give, file);
}

/* Determines the empty files and makes the notes: one per file, at the last of its places. */
static int write_notes(struct take *give, const struct tierce__spec_place *given, size_t count,
                       bool *is_empty)
{
    tierce__lock_assert_held(&give->places->lock);
    for (size_t i = count; i-- > 0;) {
        is_empty[i] = is_alone(&given[i]);
        if (!is_slot(&given[i]))
            continue;
        struct file *file = find_file(give->places, given[i].file);
        TIERCE_DASSERT(file != NULL && !file->is_taking);
        if (file->is_noted || file->leaving == 0)
            continue;
        TIERCE_DASSERT(file->leaving <= file->used);
        file->is_noted = true;
        is_empty[i] = file->leaving == file->used;
        int rc = note_again(give, file);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Ends a give: the slots become free, or stay used. */
static void end_give(struct tierce__places *places, const struct tierce__spec_place *given,
                     size_t count, bool is_done)
{
    tierce__lock_assert_held(&places->lock);
    for (size_t i = 0; i < count; i++) {
        struct file *file = is_slot(&given[i]) ? find_file(places, given[i].file) : NULL;
        if (file == NULL || !has_bit(leaving_bits(file), given[i].slot))
            continue;
        flip_bit(leaving_bits(file), given[i].slot);
        TIERCE_DASSERT(file->leaving > 0 && file->leaving <= file->used);
        file->leaving--;
        if (is_done) {
            TIERCE_DASSERT(has_bit(used_bits(file), given[i].slot));
            flip_bit(used_bits(file), given[i].slot);
            file->used--;
        }
        if (file->leaving == 0)
            file->note_place = 0;
    }
    for (size_t i = 0; i < count; i++) {
        struct file *file = is_slot(&given[i]) ? find_file(places, given[i].file) : NULL;
        if (file != NULL && file->leaving == 0 && !file->is_taking &&
            tierce__list_empty(&file->link))
            settle_file(places, file);
    }
    tierce__cond_broadcast(&places->ended);
}

int tierce__places_give(struct tierce__places *places, const struct tierce__place_return *given,
                        bool *is_empty, const struct tierce__place_notes *notes)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    TIERCE_ASSERT(*notes->count <= notes->max);
    struct take give = {.places = places,
                        .notes = notes->notes,
                        .note_count = *notes->count,
                        .notes_max = notes->max,
                        .arena = notes->arena};
    tierce__lock_take(&places->lock);
    int rc = load(places);
    if (rc == 0)
        rc = wait_for_others(places, given->places, given->count, given->batch);
    if (rc == 0) {
        rc = leave(places, given);
        if (rc == 0)
            rc = write_notes(&give, given->places, given->count, is_empty);
        if (rc == 0)
            *notes->count = give.note_count;
        else
            end_give(places, given->places, given->count, false);
    }
    tierce__lock_drop(&places->lock);
    return rc;
}

void tierce__places_given(struct tierce__places *places, uint16_t storage,
                          const struct tierce__spec_place *given, size_t count)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    (void)storage;
    tierce__lock_take(&places->lock);
    end_give(places, given, count, true);
    tierce__lock_drop(&places->lock);
}

void tierce__places_ungive(struct tierce__places *places, const struct tierce__spec_place *given,
                           size_t count)
{
    TIERCE_CHECK_MAGIC(places, PLACES_MAGIC);
    tierce__lock_take(&places->lock);
    end_give(places, given, count, false);
    tierce__lock_drop(&places->lock);
}
