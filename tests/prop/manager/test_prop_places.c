/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places against a model: takes and gives whose batches are written late, in any order, or never;
 * crashes in between. No slot is ever held twice, no file is used after it was removed, none is
 * removed while a block is in it, and free slots are used before new files.
 */
#include "base/arena.h"
#include "check_main.h"
#include "manager/storage/places.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

enum {
    STORAGES = 3,
    SPECS = 2,
    HELD_MAX = 4096,
    OPERATIONS_MAX = 6,
    COUNT_MAX = 40,
    COUNTERS_MAX = 1 << 24,
};

struct operation {
    bool is_take;
    uint16_t storage;
    size_t count;
    struct tierce__spec_place places[COUNT_MAX];
    struct tierce__meta_note notes[COUNT_MAX];
    size_t note_count;
    struct tierce__arena arena;
};

struct held {
    uint16_t storage;
    struct tierce__spec_place place;
    bool is_leaving;
};

static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__places *places;
static struct tierce__spec_info specs[SPECS] = {{"a", 100}, {"b", 200}};
static struct tierce__instance instance = {.id = "i", .specs = specs, .spec_count = SPECS};
static struct tierce__storage storages[STORAGES + 1];
static struct test_random random_;
static int64_t now_us = 1;
static bool loses; /* some takes are given up without anybody knowing whether they were written */

static struct held held[HELD_MAX];
static size_t held_count;
static struct operation *operations[OPERATIONS_MAX];
static size_t operation_count;
static bool gone[COUNTERS_MAX]; /* files that were removed, by the counter in their number */
static uint64_t takes, gives, crashes, reused;

static void open_places(void)
{
    ck_assert_int_eq(tierce__places_open(&places, space, &instance, now_us + 50, 0), 0);
}

static void write_notes(const struct operation *o)
{
    struct tierce__meta_batch batch = {.notes = o->notes, .note_count = o->note_count};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
}

static bool is_held(const struct tierce__spec_place *place)
{
    for (size_t i = 0; i < held_count; i++)
        if (held[i].place.file == place->file && held[i].place.slot == place->slot)
            return true;
    return false;
}

static bool *is_gone(uint64_t file)
{
    ck_assert_uint_lt(file >> 16, COUNTERS_MAX);
    return &gone[file >> 16];
}

static bool is_in_operation(uint64_t file)
{
    for (size_t i = 0; i < operation_count; i++)
        for (size_t p = 0; p < operations[i]->count; p++)
            if (operations[i]->places[p].file == file)
                return true;
    return false;
}

static void end_operation(size_t at)
{
    tierce__arena_clear(&operations[at]->arena);
    free(operations[at]);
    operations[at] = operations[--operation_count];
}

static void begin_take(void)
{
    struct operation *o = calloc(1, sizeof(*o));
    uint16_t storage = (uint16_t)(1 + test_random_below(&random_, STORAGES));
    uint16_t spec = (uint16_t)test_random_below(&random_, SPECS);
    struct tierce__places_stats before, after;
    o->is_take = true;
    o->storage = storage;
    o->count = 1 + test_random_below(&random_, COUNT_MAX);
    tierce__places_stats(places, &before);
    int rc = tierce__places_take(
        places,
        &(struct tierce__place_opts){.storage = &storages[storage],
                                     .spec = spec,
                                     .bytes = (uint64_t)specs[spec].size,
                                     .count = o->count,
                                     .now_us = now_us},
        o->places, &(struct tierce__place_notes){o->notes, &o->note_count, COUNT_MAX, &o->arena});
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_le(o->note_count, tierce__places_notes_max(o->count));
    tierce__places_stats(places, &after);
    reused += after.free_slots < before.free_slots;
    for (size_t i = 0; i < o->count; i++) {
        const struct tierce__spec_place *place = &o->places[i];
        ck_assert_uint_eq(place->spec, spec);
        ck_assert_uint_eq(place->bytes, specs[spec].size);
        ck_assert_uint_lt(place->slot, tierce__place_slots(place->file));
        ck_assert(!is_held(place));
        ck_assert(!*is_gone(place->file));
        for (size_t n = 0; n < i; n++)
            ck_assert(o->places[n].file != place->file || o->places[n].slot != place->slot);
        for (size_t n = 0; n < operation_count; n++)
            for (size_t p = 0; p < operations[n]->count; p++)
                ck_assert(operations[n]->places[p].file != place->file ||
                          operations[n]->places[p].slot != place->slot);
    }
    operations[operation_count++] = o;
    takes++;
}

static void hold(const struct operation *o)
{
    for (size_t i = 0; i < o->count; i++) {
        ck_assert_uint_lt(held_count, HELD_MAX);
        held[held_count++] = (struct held){o->storage, o->places[i], false};
    }
}

static void end_take(size_t at)
{
    struct operation *o = operations[at];
    switch (test_random_below(&random_, loses ? 4 : 3)) {
    case 0: /* certainly not written */
        tierce__places_untake(places, &storages[o->storage], o->places, o->count);
        break;
    case 3: /* not written, but nobody knows: the slots are lost */
        tierce__places_taken(places, o->places, o->count);
        break;
    default:
        write_notes(o);
        tierce__places_taken(places, o->places, o->count);
        hold(o);
    }
    end_operation(at);
}

static void begin_give(void)
{
    struct operation *o = calloc(1, sizeof(*o));
    bool is_empty[COUNT_MAX];
    size_t wanted = 1 + test_random_below(&random_, COUNT_MAX), parts;
    o->storage = (uint16_t)(1 + test_random_below(&random_, STORAGES));
    for (size_t tries = 0; o->count < wanted && held_count > 0 && tries < 200; tries++) {
        struct held *h = &held[test_random_below(&random_, (uint32_t)held_count)];
        if (h->storage != o->storage || h->is_leaving || is_in_operation(h->place.file))
            continue;
        h->is_leaving = true;
        o->places[o->count++] = h->place;
    }
    parts = o->count > 1 ? test_random_below(&random_, (uint32_t)o->count) : o->count;
    for (int part = 0; part < 2; part++) {
        size_t from = part == 0 ? 0 : parts, n = part == 0 ? parts : o->count - parts;
        int rc = tierce__places_give(
            places,
            &(struct tierce__place_return){.storage = o->storage,
                                           .places = o->places + from,
                                           .count = n,
                                           .reusable_us = now_us + 20,
                                           .batch = o},
            is_empty + from,
            &(struct tierce__place_notes){o->notes, &o->note_count, COUNT_MAX, &o->arena});
        ck_assert_int_eq(rc, 0);
    }
    /* A file is said to be empty when nobody holds it but this give, and once. */
    for (size_t i = 0; i < o->count; i++) {
        size_t others = 0, last = i;
        for (size_t h = 0; h < held_count; h++)
            others += !held[h].is_leaving && held[h].place.file == o->places[i].file;
        for (size_t n = i; n < o->count; n++)
            last = o->places[n].file == o->places[i].file ? n : last;
        /* Slots that a take lost are as good as held. */
        if (is_empty[i]) {
            ck_assert_uint_eq(others, 0);
            ck_assert_uint_ge(last, i);
            ck_assert(!*is_gone(o->places[i].file));
            *is_gone(o->places[i].file) = true;
        }
    }
    for (size_t n = 0; n < o->note_count; n++)
        for (size_t m = 0; m < n; m++)
            ck_assert_uint_ne(o->notes[n].number, o->notes[m].number);
    operations[operation_count++] = o;
    gives++;
}

/* A give that is not written leaves its slots held, but of files that were removed. */
static void end_give(size_t at, bool is_written)
{
    struct operation *o = operations[at];
    for (size_t i = 0; i < o->count; i++) {
        for (size_t h = 0; h < held_count; h++) {
            if (held[h].place.file != o->places[i].file || held[h].place.slot != o->places[i].slot)
                continue;
            held[h].is_leaving = false;
            if (is_written)
                held[h--] = held[--held_count];
        }
    }
    /* It may be removed again when it is given again. */
    for (size_t i = 0; i < o->count && !is_written; i++)
        *is_gone(o->places[i].file) = false;
    end_operation(at);
}

static void finish_give(size_t at)
{
    struct operation *o = operations[at];
    if (test_random_below(&random_, 4) == 0) {
        tierce__places_ungive(places, o->places, o->count);
        end_give(at, false);
        return;
    }
    write_notes(o);
    tierce__places_given(places, o->storage, o->places, o->count);
    end_give(at, true);
}

/* Batches in progress are written or not; the state in memory is lost. */
static void crash(void)
{
    while (operation_count > 0) {
        struct operation *o = operations[0];
        bool is_written = test_random_below(&random_, 2) == 0;
        if (is_written)
            write_notes(o);
        if (is_written && o->is_take)
            hold(o);
        if (o->is_take)
            end_operation(0);
        else
            end_give(0, is_written);
    }
    tierce__places_close(places);
    open_places();
    crashes++;
}

static void step(void)
{
    uint32_t what = test_random_below(&random_, 100);
    now_us += test_random_below(&random_, 10);
    if (what < 40 && operation_count < OPERATIONS_MAX && held_count < HELD_MAX / 2) {
        begin_take();
    } else if (what < 75 && operation_count < OPERATIONS_MAX) {
        begin_give();
    } else if (what < 99 && operation_count > 0) {
        size_t at = test_random_below(&random_, (uint32_t)operation_count);
        if (operations[at]->is_take)
            end_take(at);
        else
            finish_give(at);
    } else if (what == 99) {
        crash();
    }
}

/* When all slots are returned and all sessions ended, no file is left, and no note except that of
 * the numbers. */
static int count_note(void *arg, const struct tierce__meta_note *note)
{
    *(uint64_t *)arg += note->number != 0;
    return 0;
}

static void check_end(void)
{
    uint64_t notes = 0;
    crash();
    while (held_count > 0) {
        begin_give();
        struct operation *o = operations[0];
        write_notes(o);
        tierce__places_given(places, o->storage, o->places, o->count);
        end_give(0, true);
    }
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_FILE, count_note, &notes), 0);
    struct tierce__places_stats stats;
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(notes, stats.files);
    if (!loses)
        ck_assert_uint_eq(stats.files, 0);
}

START_TEST(test_prop_places)
{
    static const int32_t slots[STORAGES + 1] = {0, 1, 8, 13};
    loses = _i == 1;
    random_ = test_random_start("test_prop_places");
    for (uint16_t i = 1; i <= STORAGES; i++)
        storages[i] = (struct tierce__storage){.number = i,
                                               .name = "s",
                                               .type = TIERCE__STORAGE_NFS,
                                               .root_path = "/",
                                               .key_count_per_file = slots[i]};
    char why[256];
    ck_assert_int_eq(tierce__meta_memory.open(&store, "", why), 0);
    ck_assert_int_eq(store->ops->space_open(&space, store, 1, "i"), 0);
    open_places();
    for (unsigned i = 0; i < 3000 * test_scale(); i++)
        step();
    check_end();
    ck_assert_uint_gt(reused, 0);
    printf("%llu takes, %llu of them in files that were there, %llu gives, %llu crashes\n",
           (unsigned long long)takes, (unsigned long long)reused, (unsigned long long)gives,
           (unsigned long long)crashes);
    tierce__places_close(places);
    space->ops->space_close(space);
    store->ops->close(store);
}
END_TEST

CHECK_MAIN("places", .seconds = CHECK_NO_LIMIT, .loops = {{test_prop_places, 0, 2}})
