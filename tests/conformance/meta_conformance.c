/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_conformance.h"

#include "base/alloc.h"
#include "meta_records.h"
#include "test_random.h"

#include <errno.h>
#include <pthread.h>

static const struct meta_factory *factory;
static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__arena arena;
static uint64_t live_before;

static void open_store(void)
{
    char why[256] = "";
    int rc = factory->ops->open(&store, factory->uri(), why);
    ck_assert_msg(rc == 0, "open: %d %s", rc, why);
    ck_assert_int_eq(factory->ops->space_open(&space, store, 7, "an instance"), 0);
}

static void close_store(void)
{
    factory->ops->space_close(space);
    factory->ops->close(store);
    space = NULL;
    store = NULL;
}

static void setup(void)
{
    live_before = tierce__alloc_live();
    factory->begin();
    open_store();
}

static void teardown(void)
{
    tierce__arena_clear(&arena);
    close_store();
    ck_assert_uint_eq(tierce__alloc_live(), live_before);
    factory->end();
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void put_in(struct tierce__meta_space *where, int64_t key, uint32_t version)
{
    struct test_record record;
    struct tierce__meta_put put = {key, *test_record(&record, key, version)};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    ck_assert_int_eq(where->ops->write(where, &batch), 0);
}

static void put(int64_t key, uint32_t version)
{
    put_in(space, key, version);
}

/* `count` records of keys from `first` on, in batches. */
static void put_many(int64_t first, size_t count)
{
    enum { AT_ONCE = 250 };
    static struct test_record records[AT_ONCE];
    static struct tierce__meta_put puts[AT_ONCE];
    for (size_t done = 0; done < count;) {
        struct tierce__meta_batch batch = {.puts = puts};
        for (; batch.put_count < AT_ONCE && done < count; batch.put_count++, done++) {
            int64_t key = first + (int64_t)done;
            puts[batch.put_count] =
                (struct tierce__meta_put){key, *test_record(&records[batch.put_count], key, 1)};
        }
        batch.added[TIERCE__META_KEYS] = (int64_t)batch.put_count;
        ck_assert_int_eq(space->ops->write(space, &batch), 0);
    }
}

static void delete_key(int64_t key)
{
    struct tierce__meta_batch batch = {.deletes = &key, .delete_count = 1};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
}

static bool get(struct tierce__meta_space *where, int64_t key, struct tierce__record *record)
{
    bool found = false;
    tierce__arena_reset(&arena);
    ck_assert_int_eq(where->ops->get(where, &key, 1, &arena, record, &found), 0);
    return found;
}

static void check(int64_t key, uint32_t version)
{
    struct tierce__record record;
    ck_assert_msg(get(space, key, &record), "%lld is not there", (long long)key);
    test_record_check(&record, key, version);
}

static void check_none(int64_t key)
{
    struct tierce__record record;
    ck_assert_msg(!get(space, key, &record), "%lld is there", (long long)key);
}

/* ---- records -------------------------------------------------------------------------------- */

START_TEST(what_is_put_is_got)
{
    static const int64_t keys[] = {0, 1, -1, INT64_MIN, INT64_MAX, 42, 1LL << 40};
    for (size_t i = 0; i < 7; i++) {
        check_none(keys[i]);
        put(keys[i], (uint32_t)i);
    }
    for (size_t i = 0; i < 7; i++)
        check(keys[i], (uint32_t)i);
    put(42, 9);
    check(42, 9);
    delete_key(42);
    check_none(42);
    delete_key(42);
    put(42, 10);
    check(42, 10);
}
END_TEST

START_TEST(many_keys_at_once)
{
    enum { KEYS = 3000, ASKED = KEYS * 2 + 1 };
    put_many(0, KEYS);
    static int64_t keys[ASKED];
    static struct tierce__record records[ASKED];
    static bool found[ASKED];
    for (int64_t i = 0; i < ASKED; i++)
        keys[i] = i % 2 == 0 ? i / 2 : -i;
    keys[1] = 5; /* twice */
    ck_assert_int_eq(space->ops->get(space, keys, ASKED, &arena, records, found), 0);
    for (int64_t i = 0; i < ASKED; i++) {
        bool wanted = keys[i] >= 0 && keys[i] < KEYS;
        ck_assert_int_eq(found[i], wanted);
        if (wanted)
            test_record_check(&records[i], keys[i], 1);
    }
    ck_assert_int_eq(space->ops->get(space, NULL, 0, &arena, NULL, NULL), 0);
}
END_TEST

START_TEST(a_batch_does_all_of_it)
{
    put(1, 1);
    put(2, 1);
    struct test_record one, three;
    struct tierce__meta_put puts[] = {{1, *test_record(&one, 1, 2)},
                                      {3, *test_record(&three, 3, 2)}};
    int64_t two = 2;
    struct tierce__meta_note note = {TIERCE__NOTE_SESSION, 5, "text", 4};
    struct tierce__meta_batch batch = {.puts = puts,
                                       .put_count = 2,
                                       .deletes = &two,
                                       .delete_count = 1,
                                       .notes = &note,
                                       .note_count = 1};
    batch.added[TIERCE__META_KEYS] = 2;
    batch.added[TIERCE__META_BYTES_FIRST + 4] = -100;
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    check(1, 2);
    check_none(2);
    check(3, 2);
    const void *value;
    size_t bytes;
    ck_assert_int_eq(space->ops->note(space, TIERCE__NOTE_SESSION, 5, &arena, &value, &bytes), 0);
    ck_assert_uint_eq(bytes, 4);
    ck_assert_mem_eq(value, "text", 4);
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    for (int i = 0; i < TIERCE__META_COUNTERS; i++)
        ck_assert_int_eq(counters[i], i == TIERCE__META_KEYS              ? 2
                                      : i == TIERCE__META_BYTES_FIRST + 4 ? -100
                                                                          : 0);
    struct tierce__meta_batch empty = {0};
    ck_assert_int_eq(space->ops->write(space, &empty), 0);
}
END_TEST

START_TEST(counters_add_up)
{
    for (int i = 0; i < 50; i++) {
        struct tierce__meta_batch batch = {0};
        batch.added[TIERCE__META_BYTES_FIRST] = i % 2 == 0 ? INT64_C(1) << 40 : -7;
        batch.added[TIERCE__META_COUNTERS - 1] = 1;
        ck_assert_int_eq(space->ops->write(space, &batch), 0);
    }
    if (factory->is_durable) {
        close_store();
        open_store();
    }
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_BYTES_FIRST], 25 * (INT64_C(1) << 40) - 25 * 7);
    ck_assert_int_eq(counters[TIERCE__META_COUNTERS - 1], 50);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 0);
}
END_TEST

/* ---- spaces --------------------------------------------------------------------------------- */

START_TEST(spaces_are_apart)
{
    struct tierce__meta_space *other;
    ck_assert_int_eq(factory->ops->space_open(&other, store, 8, "an instance 2 {x}:*?[a]"), 0);
    put(1, 1);
    put_in(other, 1, 2);
    put_in(other, 2, 2);
    struct tierce__meta_note note = {TIERCE__NOTE_FILE, 1, "x", 1};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    batch.added[TIERCE__META_KEYS] = 3;
    ck_assert_int_eq(other->ops->write(other, &batch), 0);
    check(1, 1);
    check_none(2);
    ck_assert_int_eq(space->ops->space_drop(space), 0);
    check_none(1);
    struct tierce__record record;
    ck_assert(get(other, 1, &record));
    test_record_check(&record, 1, 2);
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 0);
    ck_assert_int_eq(other->ops->counters(other, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 3);
    /* A dropped space is empty, and usable like any other. */
    put(5, 1);
    check(5, 1);
    ck_assert_int_eq(other->ops->space_drop(other), 0);
    ck_assert(!get(other, 1, &record));
    const void *value;
    size_t bytes;
    ck_assert_int_eq(other->ops->note(other, TIERCE__NOTE_FILE, 1, &arena, &value, &bytes),
                     -ENOENT);
    other->ops->space_close(other);
    check(5, 1);
}
END_TEST

START_TEST(a_space_is_opened_again)
{
    put(1, 1);
    factory->ops->space_close(space);
    ck_assert_int_eq(factory->ops->space_open(&space, store, 7, "an instance"), 0);
    check(1, 1);
    struct tierce__meta_space *none = NULL;
    ck_assert_int_eq(factory->ops->space_open(&none, store, 0, "x"), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_store_is_opened_again)
{
    put_many(100, 1000);
    struct tierce__meta_note note = {TIERCE__NOTE_DELETION, UINT64_MAX, "places", 6};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    close_store();
    open_store();
    if (!factory->is_durable) {
        check_none(100);
        return;
    }
    for (int64_t key = 100; key < 1100; key++)
        check(key, 1);
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 1000);
    const void *value;
    size_t bytes;
    ck_assert_int_eq(
        space->ops->note(space, TIERCE__NOTE_DELETION, UINT64_MAX, &arena, &value, &bytes), 0);
    ck_assert_uint_eq(bytes, 6);
}
END_TEST

/* ---- notes ---------------------------------------------------------------------------------- */

static void put_note(uint8_t kind, uint64_t number, const char *value)
{
    struct tierce__meta_note note = {kind, number, value, value != NULL ? strlen(value) : 0};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
}

struct listing {
    uint64_t numbers[20];
    size_t count, stop_at;
    bool deletes;
};

static int list(void *arg, const struct tierce__meta_note *note)
{
    struct listing *listing = arg;
    ck_assert_ptr_nonnull(note->value);
    listing->numbers[listing->count++] = note->number;
    if (listing->deletes)
        put_note(note->kind, note->number, NULL);
    return listing->count == listing->stop_at ? 77 : 0;
}

START_TEST(notes_come_in_order)
{
    static const uint64_t numbers[] = {300, 2, UINT64_MAX, 1, 0, 70000};
    for (size_t i = 0; i < 6; i++)
        put_note(TIERCE__NOTE_SESSION, numbers[i], "value");
    put_note(TIERCE__NOTE_DELETION, 3, "other");
    put_note(TIERCE__NOTE_SESSION, 1, NULL);
    put_note(TIERCE__NOTE_SESSION, 1, NULL);
    put_note(TIERCE__NOTE_SESSION, 300, "");
    struct listing listing = {0};
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_SESSION, list, &listing), 0);
    static const uint64_t wanted[] = {0, 2, 300, 70000, UINT64_MAX};
    ck_assert_uint_eq(listing.count, 5);
    ck_assert_mem_eq(listing.numbers, wanted, sizeof(wanted));
    listing = (struct listing){.stop_at = 2};
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_SESSION, list, &listing), 77);
    ck_assert_uint_eq(listing.count, 2);
    listing = (struct listing){.deletes = true};
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_SESSION, list, &listing), 0);
    ck_assert_uint_eq(listing.count, 5);
    listing = (struct listing){0};
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_SESSION, list, &listing), 0);
    ck_assert_uint_eq(listing.count, 0);
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_DELETION, list, &listing), 0);
    ck_assert_uint_eq(listing.count, 1);
}
END_TEST

START_TEST(notes_hold_any_bytes)
{
    size_t bytes = 300000, got;
    uint8_t *value = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        value[i] = (uint8_t)(i * 7 + i / 256);
    struct tierce__meta_note note = {TIERCE__NOTE_FILE, 9, value, bytes};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    const void *back;
    ck_assert_int_eq(space->ops->note(space, TIERCE__NOTE_FILE, 9, &arena, &back, &got), 0);
    ck_assert_uint_eq(got, bytes);
    ck_assert_mem_eq(back, value, bytes);
    ck_assert_int_eq(space->ops->note(space, TIERCE__NOTE_FILE, 10, &arena, &back, &got), -ENOENT);
    free(value);
}
END_TEST

START_TEST(a_wrong_kind_changes_nothing)
{
    struct test_record record;
    struct tierce__meta_put one = {1, *test_record(&record, 1, 1)};
    static const uint8_t kinds[] = {0, TIERCE__NOTE_KINDS, 255};
    for (int i = 0; i < 3; i++) {
        struct tierce__meta_note note = {kinds[i], 1, "x", 1};
        struct tierce__meta_batch batch = {
            .puts = &one, .put_count = 1, .notes = &note, .note_count = 1};
        ck_assert_int_eq(space->ops->write(space, &batch), TIERCE_E_ARGUMENT);
    }
    check_none(1);
}
END_TEST

/* ---- touches -------------------------------------------------------------------------------- */

START_TEST(touches_arrive)
{
    const int64_t now = 1800000000000000;
    put(1, 3);
    put(2, 3);
    put(3, 3);
    int64_t keys[] = {1, 99, 2};
    space->ops->touch(space, keys, 3, &(struct tierce__record_use){now, 1, 0});
    space->ops->touch(space, keys, 2, &(struct tierce__record_use){now - 50, 1, 0});
    /* They may be kept back, but not for longer than the store is open. */
    if (factory->is_durable) {
        close_store();
        open_store();
    }
    struct tierce__record record;
    ck_assert(get(space, 1, &record));
    ck_assert_int_eq(record.used_us, now);
    ck_assert_uint_eq(record.uses, 3 + 2);
    ck_assert(get(space, 2, &record));
    ck_assert_int_eq(record.used_us, now - 2);
    ck_assert_uint_eq(record.uses, 3 + 1);
    check(3, 3);
    check_none(99);
    int64_t old = 3;
    space->ops->touch(space, &old, 1, &(struct tierce__record_use){5, 1, 0});
    if (factory->is_durable) {
        close_store();
        open_store();
    }
    ck_assert(get(space, 3, &record));
    ck_assert_int_eq(record.used_us, 1700000000000003);
}
END_TEST

static void check_hint(int64_t key, uint16_t hint)
{
    struct tierce__record record;
    if (factory->is_durable) {
        close_store();
        open_store();
    }
    ck_assert(get(space, key, &record));
    ck_assert_uint_eq(record.hint, hint);
}

START_TEST(hints_arrive)
{
    const int64_t now = 1800000000000000, key = 1;
    const uint16_t closed = tierce__hint_make(TIERCE__HINT_CLOSED, 0);
    const uint16_t ttl = tierce__hint_make(TIERCE__HINT_TTL, 600);
    struct test_record wanted;
    struct tierce__meta_put hinted = {.key = 2, .record = *test_record(&wanted, 2, 3)};
    hinted.record.hint = ttl;
    put(1, 3);
    ck_assert_int_eq(
        space->ops->write(space, &(struct tierce__meta_batch){.puts = &hinted, .put_count = 1}), 0);
    check_hint(2, ttl);
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){now, 1, closed});
    check_hint(1, closed);
    space->ops->touch(space, &hinted.key, 1, &(struct tierce__record_use){now, 1, 0});
    check_hint(2, 0);
    /* A hint without a use, also of a key that is not there. */
    const int64_t keys[] = {99, 1, 2};
    space->ops->touch(space, keys, 3, &(struct tierce__record_use){.hint = ttl});
    check_hint(1, ttl);
    check_hint(2, ttl);
    struct tierce__record record;
    ck_assert(get(space, 1, &record));
    ck_assert_int_eq(record.used_us, now);
    ck_assert_uint_eq(record.uses, 3 + 1);
    check_none(99);
    /* Uses that wait together: the hint of the latest counts. */
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){now + 9, 1, closed});
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){now + 8, 1, 0});
    check_hint(1, closed);
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){now + 10, 1, closed});
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){now + 11, 1, 0});
    check_hint(1, 0);
}
END_TEST

/* ---- scans and samples ---------------------------------------------------------------------- */

START_TEST(a_scan_sees_what_stays_once)
{
    enum { STAY = 500, LIMIT = 17 };
    put_many(0, STAY);
    put_many(100000, STAY);
    uint8_t seen[STAY] = {0};
    uint64_t cursor = 0, last = 0;
    int64_t moving = 100000, fresh = 200000, keys[LIMIT];
    bool first = true;
    do {
        size_t count = 0;
        ck_assert_int_eq(space->ops->scan(space, &cursor, LIMIT, keys, &count), 0);
        ck_assert_uint_le(count, LIMIT);
        ck_assert(cursor == 0 || count > 0);
        for (size_t i = 0; i < count; i++) {
            ck_assert(first || tierce__meta_mix(keys[i]) > last);
            last = tierce__meta_mix(keys[i]);
            first = false;
            if (keys[i] >= 0 && keys[i] < STAY)
                seen[keys[i]]++;
        }
        for (int i = 0; i < 7 && moving < 100000 + STAY; i++)
            delete_key(moving++);
        put_many(fresh, 40);
        fresh += 40;
    } while (cursor != 0);
    for (int i = 0; i < STAY; i++)
        ck_assert_uint_eq(seen[i], 1);
}
END_TEST

START_TEST(a_scan_of_nothing_ends)
{
    int64_t keys[4];
    uint64_t cursor = 0;
    size_t count = 9;
    ck_assert_int_eq(space->ops->scan(space, &cursor, 4, keys, &count), 0);
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(cursor, 0);
    put(1, 1);
    ck_assert_int_eq(space->ops->scan(space, &cursor, 4, keys, &count), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(keys[0], 1);
    ck_assert_uint_eq(cursor, 0);
}
END_TEST

static int compare_keys(const void *a, const void *b)
{
    const int64_t *x = (const int64_t *)a, *y = (const int64_t *)b;
    return (*x > *y) - (*x < *y);
}

/* Different keys that are there. Returns how many. */
static size_t draw(uint64_t *random, size_t count, int64_t below, int64_t *keys)
{
    size_t found = 0;
    ck_assert_int_eq(space->ops->sample(space, random, count, keys, &found), 0);
    ck_assert_uint_le(found, count);
    qsort(keys, found, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < found; i++) {
        ck_assert(keys[i] >= 0 && keys[i] < below);
        ck_assert(i == 0 || keys[i] != keys[i - 1]);
    }
    return found;
}

START_TEST(samples_are_even)
{
    enum { KEYS = 4000, COUNT = 200, ROUNDS = 200 };
    int64_t keys[COUNT];
    uint64_t random = 1;
    ck_assert_uint_eq(draw(&random, 10, 0, keys), 0);
    put_many(0, 5);
    ck_assert_uint_eq(draw(&random, COUNT, 5, keys), 5);
    ck_assert_uint_eq(draw(&random, 3, 5, keys), 3);
    put_many(5, KEYS - 5);
    static unsigned drawn[KEYS];
    for (int round = 0; round < ROUNDS; round++) {
        size_t found = draw(&random, COUNT, KEYS, keys);
        ck_assert_uint_ge(found, COUNT * 9 / 10);
        for (size_t i = 0; i < found; i++)
            drawn[keys[i]]++;
    }
    /* Ten each on average; nearly all keys are sampled, and none is sampled every time. */
    size_t never = 0;
    for (int i = 0; i < KEYS; i++) {
        never += drawn[i] == 0;
        ck_assert_uint_lt(drawn[i], ROUNDS * 3 / 4);
    }
    ck_assert_uint_lt(never, KEYS / 4);
}
END_TEST

START_TEST(a_sample_of_what_is_left)
{
    enum { KEYS = 3000, LEFT = 20 };
    put_many(0, KEYS);
    for (int64_t key = LEFT; key < KEYS; key++)
        delete_key(key);
    struct tierce__meta_batch batch = {0};
    batch.added[TIERCE__META_KEYS] = LEFT - KEYS;
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    int64_t keys[100];
    uint64_t random = 3;
    ck_assert_uint_eq(draw(&random, 100, LEFT, keys), LEFT);
}
END_TEST

/* ---- threads -------------------------------------------------------------------------------- */

enum { THREADS = 3, THREAD_KEYS = 40 };

struct thread {
    pthread_t id;
    int64_t first;
    unsigned rounds;
    struct tierce__meta_space *space;
    uint64_t seed;
};

/* Changes its own keys, reads those of all, in which versions are whole. */
static void *work(void *arg)
{
    struct thread *thread = arg;
    struct test_random random = {thread->seed};
    struct tierce__arena mine = {0};
    for (unsigned i = 0; i < thread->rounds; i++) {
        int64_t key = thread->first + test_random_below(&random, THREAD_KEYS);
        if (test_random_below(&random, 4) == 0) {
            struct tierce__meta_batch batch = {.deletes = &key, .delete_count = 1};
            ck_assert_int_eq(thread->space->ops->write(thread->space, &batch), 0);
        } else {
            put_in(thread->space, key, i);
        }
        int64_t keys[30];
        struct tierce__record records[30];
        bool found[30];
        for (int k = 0; k < 30; k++)
            keys[k] = test_random_below(&random, THREADS * THREAD_KEYS);
        tierce__arena_reset(&mine);
        ck_assert_int_eq(thread->space->ops->get(thread->space, keys, 30, &mine, records, found),
                         0);
        for (int k = 0; k < 30; k++) {
            struct test_record wanted;
            if (!found[k])
                continue;
            records[k].used_us = 1700000000000000 + records[k].locations[0].places[0].slot;
            records[k].uses = records[k].locations[0].places[0].slot;
            test_record(&wanted, keys[k], records[k].uses);
            records[k].hint = wanted.record.hint;
            ck_assert(test_records_equal(&records[k], &wanted.record));
        }
        thread->space->ops->touch(thread->space, keys, 30,
                                  &(struct tierce__record_use){1800000000000000, 1, 0});
        uint64_t cursor = 0;
        size_t count;
        ck_assert_int_eq(thread->space->ops->scan(thread->space, &cursor, 30, keys, &count), 0);
    }
    tierce__arena_clear(&mine);
    return NULL;
}

START_TEST(threads_do_not_meet)
{
    struct test_random random = test_random_start("threads_do_not_meet");
    struct thread threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.first = i * THREAD_KEYS,
                                     .rounds = TEST_ROUNDS(300u) * test_scale(),
                                     .space = space,
                                     .seed = test_random_u64(&random)};
        ck_assert_int_eq(pthread_create(&threads[i].id, NULL, work, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
}
END_TEST

Suite *meta_conformance(const struct meta_factory *of)
{
    factory = of;
    Suite *suite = suite_create(of->name);
    TCase *tcase = tcase_create(of->name);
    tcase_set_timeout(tcase, 60 * test_scale());
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, what_is_put_is_got);
    tcase_add_test(tcase, many_keys_at_once);
    tcase_add_test(tcase, a_batch_does_all_of_it);
    tcase_add_test(tcase, counters_add_up);
    tcase_add_test(tcase, spaces_are_apart);
    tcase_add_test(tcase, a_space_is_opened_again);
    tcase_add_test(tcase, a_store_is_opened_again);
    tcase_add_test(tcase, notes_come_in_order);
    tcase_add_test(tcase, notes_hold_any_bytes);
    tcase_add_test(tcase, a_wrong_kind_changes_nothing);
    tcase_add_test(tcase, touches_arrive);
    tcase_add_test(tcase, hints_arrive);
    tcase_add_test(tcase, a_scan_sees_what_stays_once);
    tcase_add_test(tcase, a_scan_of_nothing_ends);
    tcase_add_test(tcase, samples_are_even);
    tcase_add_test(tcase, a_sample_of_what_is_left);
    tcase_add_test(tcase, threads_do_not_meet);
    suite_add_tcase(suite, tcase);
    return suite;
}
