/* SPDX-License-Identifier: Apache-2.0 */
/* Places: cases that the property test does not reach. */
#include "base/alloc.h"
#include "base/arena.h"
#include "check_main.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum { COUNT_MAX = 64 };

static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__places *places;
static struct tierce__arena arena;
static struct tierce__spec_info specs[] = {{"a", 100}};
static struct tierce__instance instance = {.id = "i", .specs = specs, .spec_count = 1};
static struct tierce__storage storage = {
    .number = 1, .name = "s", .type = TIERCE__STORAGE_NFS, .key_count_per_file = 4};
static struct tierce__spec_place taken[COUNT_MAX];
static struct tierce__meta_note notes[COUNT_MAX];
static size_t note_count;
static bool is_empty[COUNT_MAX];

static void open_places(void)
{
    ck_assert_int_eq(tierce__places_open(&places, space, &instance, 0, 0), 0);
}

static void set_up(void)
{
    char why[256];
    ck_assert_int_eq(tierce__meta_memory.open(&store, "", why), 0);
    ck_assert_int_eq(store->ops->space_open(&space, store, 1, "i"), 0);
    open_places();
}

static void tear_down(void)
{
    tierce__places_close(places);
    tierce__arena_clear(&arena);
    space->ops->space_close(space);
    store->ops->close(store);
}

static void reopen(void)
{
    tierce__places_close(places);
    open_places();
}

static void write_notes(void)
{
    struct tierce__meta_batch batch = {.notes = notes, .note_count = note_count};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    note_count = 0;
}

static int take_at(struct tierce__spec_place *out, size_t count, int64_t now_us)
{
    return tierce__places_take(
        places,
        &(struct tierce__place_opts){
            .storage = &storage, .spec = 0, .bytes = 100, .count = count, .now_us = now_us},
        out, &(struct tierce__place_notes){notes, &note_count, COUNT_MAX, &arena});
}

/* A take that is durable. */
static void take(struct tierce__spec_place *out, size_t count)
{
    ck_assert_int_eq(take_at(out, count, 1000), 0);
    write_notes();
    tierce__places_taken(places, out, count);
}

static int give(const struct tierce__spec_place *given, size_t count, int64_t reusable_us,
                const void *batch)
{
    return tierce__places_give(
        places,
        &(struct tierce__place_return){.storage = 1,
                                       .places = given,
                                       .count = count,
                                       .reusable_us = reusable_us,
                                       .batch = batch},
        is_empty, &(struct tierce__place_notes){notes, &note_count, COUNT_MAX, &arena});
}

static void give_all(const struct tierce__spec_place *given, size_t count, int64_t reusable_us)
{
    ck_assert_int_eq(give(given, count, reusable_us, &arena), 0);
    write_notes();
    tierce__places_given(places, 1, given, count);
}

START_TEST(test_slots_follow_each_other)
{
    take(taken, 10);
    for (size_t i = 0; i < 10; i++) {
        ck_assert_uint_eq(taken[i].file, taken[i - i % 4].file);
        ck_assert_uint_eq(taken[i].slot, i % 4);
        ck_assert_uint_eq(tierce__place_slots(taken[i].file), 4);
        ck_assert_ptr_null(taken[i].uri);
    }
    take(taken + 10, 3); /* the last two of that file first */
    ck_assert_uint_eq(taken[10].file, taken[9].file);
    ck_assert_uint_eq(taken[11].slot, 3);
    ck_assert_uint_ne(taken[12].file, taken[9].file);
}
END_TEST

START_TEST(test_slots_wait_for_their_time)
{
    struct tierce__places_stats stats;
    take(taken, 4);
    give_all(taken + 1, 1, 5000);
    ck_assert_int_eq(take_at(taken + 4, 1, 4999), 0);
    ck_assert_uint_ne(taken[4].file, taken[0].file);
    tierce__places_untake(places, &storage, taken + 4, 1);
    note_count = 0;
    ck_assert_int_eq(take_at(taken + 4, 1, 5000), 0);
    ck_assert_uint_eq(taken[4].file, taken[0].file);
    ck_assert_uint_eq(taken[4].slot, 1);
    tierce__places_taken(places, taken + 4, 1);
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(stats.files, 0);
}
END_TEST

START_TEST(test_files_are_empty_once)
{
    take(taken, 8);
    give_all(taken, 3, 0);
    ck_assert(!is_empty[0] && !is_empty[1] && !is_empty[2]);
    /* The last block of one file, and two of another. */
    ck_assert_int_eq(give(taken + 3, 3, 0, &arena), 0);
    ck_assert(is_empty[0] && !is_empty[1] && !is_empty[2]);
    /* More for the same batch: the notes do not grow by the file that has one. */
    size_t before = note_count;
    ck_assert_int_eq(give(taken + 6, 2, 0, &arena), 0);
    ck_assert(!is_empty[0] && is_empty[1]);
    ck_assert_uint_eq(note_count, before);
    write_notes();
    tierce__places_given(places, 1, taken + 3, 5);
    reopen();
    take(taken + 8, 1);
    for (size_t i = 0; i < 8; i++)
        ck_assert_uint_ne(taken[8].file, taken[i].file);
}
END_TEST

/* The note lists the slots that become free when the give ends; the batch that ends it deletes the
 * note. */
START_TEST(test_slots_are_free_after_a_restart)
{
    take(taken, 4);
    give_all(taken + 1, 2, 0);
    reopen();
    take(taken + 4, 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(taken[4 + i].file, taken[0].file);
        ck_assert_uint_eq(taken[4 + i].slot, 1 + i);
    }
}
END_TEST

START_TEST(test_slots_that_are_free_already)
{
    take(taken, 4);
    give_all(taken, 1, 0);
    ck_assert_int_eq(give(taken, 1, 0, &arena), 0);
    ck_assert(!is_empty[0]);
    ck_assert_uint_eq(note_count, 0);
    tierce__places_given(places, 1, taken, 1);
    take(taken + 4, 1); /* it is taken again, once */
    ck_assert_uint_eq(taken[4].file, taken[0].file);
    take(taken + 5, 1);
    ck_assert_uint_ne(taken[5].file, taken[0].file);
}
END_TEST

/* A batch in which one slot is damaged would never end if it were rejected. */
START_TEST(test_a_slot_that_its_file_has_not)
{
    struct tierce__places_stats stats;
    take(taken, 8);
    taken[3].slot = 4;
    give_all(taken, 4, 0);
    for (size_t i = 0; i < 4; i++)
        ck_assert(!is_empty[i]); /* the fourth slot is used still */
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(stats.free_slots, 3);
    /* Alone in a file that is not known, and with a neighbour there. */
    taken[7].slot = UINT32_MAX;
    give_all(taken + 7, 1, 0);
    ck_assert(!is_empty[0]);
    ck_assert_uint_eq(note_count, 0);
    give_all(taken + 6, 2, 0);
    ck_assert(!is_empty[0]);
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(stats.free_slots, 4);
}
END_TEST

START_TEST(test_busy_files)
{
    int other;
    take(taken, 3);
    ck_assert_int_eq(take_at(taken + 3, 1, 1000), 0);
    ck_assert_uint_eq(taken[3].file, taken[0].file);
    size_t before = note_count;
    ck_assert_int_eq(give(taken, 1, 0, &arena), -EBUSY); /* the take has not ended */
    ck_assert_uint_eq(note_count, before);
    tierce__places_taken(places, taken + 3, 1);
    ck_assert_int_eq(give(taken, 1, 0, &arena), 0);
    ck_assert_int_eq(give(taken + 1, 1, 0, &other), -EBUSY); /* of another batch */
    ck_assert_int_eq(give(taken + 1, 1, 0, &arena), 0);
    tierce__places_ungive(places, taken, 2);
    note_count = 0;
    ck_assert_int_eq(give(taken, 4, 0, &other), 0);
    ck_assert(is_empty[3]);
    tierce__places_given(places, 1, taken, 4);
}
END_TEST

static void *give_late(void *arg)
{
    tierce__places_given(places, 1, arg, 1);
    return NULL;
}

START_TEST(test_a_give_waits_for_another)
{
    pthread_t thread;
    int other;
    take(taken, 4);
    ck_assert_int_eq(give(taken, 1, 0, &arena), 0);
    pthread_create(&thread, NULL, give_late, taken);
    ck_assert_int_eq(give(taken + 1, 1, 0, &other), 0);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(test_texts_and_single_slots)
{
    struct tierce__spec_place given[] = {
        {.uri = "file://s/a?blkid=1&size=2"}, {.uri = "file://s/a?size=2"}, {0}, {0}};
    storage.key_count_per_file = 1;
    take(given + 2, 1);
    ck_assert_uint_eq(tierce__place_slots(given[2].file), 1);
    given[3] = given[2];
    ck_assert_int_eq(give(given, 3, 0, &arena), 0);
    ck_assert(!is_empty[0] && is_empty[1] && is_empty[2]);
    ck_assert_uint_eq(note_count, 0);
    tierce__places_given(places, 1, given, 3);
    take(given + 2, 1);
    ck_assert_uint_ne(given[2].file, given[3].file);
}
END_TEST

START_TEST(test_numbers_after_a_restart)
{
    uint64_t last = 0;
    storage.key_count_per_file = 1;
    for (int i = 0; i < 20; i++) {
        take(taken, COUNT_MAX);
        for (size_t n = 0; n < COUNT_MAX; n++) {
            ck_assert_uint_gt(taken[n].file, last);
            last = taken[n].file;
        }
        reopen();
    }
}
END_TEST

START_TEST(test_limits)
{
    ck_assert_int_eq(tierce__places_take(
                         places,
                         &(struct tierce__place_opts){
                             .storage = &storage, .spec = 0, .bytes = 100, .count = 1, .now_us = 0},
                         taken, &(struct tierce__place_notes){notes, &note_count, 0, &arena}),
                     TIERCE_E_LIMIT);
    struct tierce__places_stats stats;
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(stats.files, 0);
    take(taken, 4);
    ck_assert_int_eq(
        tierce__places_give(
            places,
            &(struct tierce__place_return){
                .storage = 1, .places = taken, .count = 1, .reusable_us = 0, .batch = &arena},
            is_empty, &(struct tierce__place_notes){notes, &note_count, 0, &arena}),
        TIERCE_E_LIMIT);
    tierce__places_stats(places, &stats);
    ck_assert_uint_eq(stats.files, 0);
    /* The largest files. */
    storage.key_count_per_file = 65536;
    take(taken, 1);
    ck_assert_uint_eq(tierce__place_slots(taken[0].file), 65536);
    reopen();
    take(taken + 1, 1);
    ck_assert_uint_eq(taken[1].file, taken[0].file);
    ck_assert_uint_eq(taken[1].slot, 1);
}
END_TEST

static int copy_note(void *arg, const struct tierce__meta_note *note)
{
    struct tierce__meta_note *copy = arg;
    if (note->number == 0)
        return 0;
    void *value = tierce__arena_copy(&arena, note->value, note->bytes);
    *copy = *note;
    copy->value = value;
    return 0;
}

START_TEST(test_damaged_notes_cost_their_file_alone)
{
    struct tierce__meta_note good = {0};
    struct tierce__places_stats stats;
    take(taken, 2);
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_FILE, copy_note, &good), 0);
    ck_assert_uint_eq(good.bytes, 14);
    for (size_t i = 0; i < 5; i++) {
        uint8_t value[15];
        memcpy(value, good.value, 14);
        value[14] = 0;
        notes[0] = good;
        notes[0].value = value;
        note_count = 1;
        if (i == 0)
            value[0] = 2; /* version */
        else if (i == 1)
            value[3] = 1; /* a spec that is not there */
        else if (i == 2)
            value[13] = 0; /* empty */
        else if (i == 3)
            value[13] = 0x13; /* bits behind the last slot */
        else
            notes[0].bytes = 15;
        write_notes();
        reopen();
        take(taken + 2, 1);
        ck_assert_uint_ne(taken[2].file, taken[0].file);
        tierce__places_stats(places, &stats);
        ck_assert_uint_eq(stats.damaged, 1);
    }
    notes[0] = (struct tierce__meta_note){.kind = TIERCE__NOTE_FILE, .value = "x", .bytes = 1};
    note_count = 1;
    write_notes();
    reopen();
    ck_assert_int_eq(take_at(taken, 1, 0), TIERCE_E_FORMAT); /* no number is safe to give */
}
END_TEST

START_TEST(test_torture_allocations)
{
    struct tierce__places_stats before, after;
    take(taken, 6);
    tierce__places_stats(places, &before);
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        ck_assert_uint_lt(nth, 100);
        tierce__alloc_fail_nth(nth);
        rc = take_at(taken + 6, 5, 1000);
        tierce__alloc_fail_nth(0);
        tierce__places_stats(places, &after);
        if (rc != 0)
            ck_assert_mem_eq(&before, &after, sizeof(before));
    }
    tierce__places_untake(places, &storage, taken + 6, 5);
    note_count = 0;
    rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        tierce__arena_clear(&arena);
        tierce__alloc_fail_nth(nth);
        rc = give(taken, 6, 0, &store);
        tierce__alloc_fail_nth(0);
        tierce__places_stats(places, &after);
        if (rc != 0)
            ck_assert_mem_eq(&before, &after, sizeof(before));
    }
    tierce__places_given(places, 1, taken, 6);
    tierce__places_stats(places, &after);
    ck_assert_uint_eq(after.files, 0);
}
END_TEST

CHECK_MAIN("places", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {test_slots_follow_each_other, test_slots_wait_for_their_time,
                     test_files_are_empty_once, test_slots_are_free_after_a_restart,
                     test_slots_that_are_free_already, test_a_slot_that_its_file_has_not,
                     test_busy_files, test_a_give_waits_for_another, test_texts_and_single_slots,
                     test_numbers_after_a_restart, test_limits,
                     test_damaged_notes_cost_their_file_alone, test_torture_allocations})
