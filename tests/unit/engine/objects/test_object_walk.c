/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk over the names of values, small and large ones in memory and on disk, that move between
 * the tiers or are replaced meanwhile.
 */
#include "check_main.h"
#include "object_fixture.h"
#include "test_random.h"

#include "engine/engine.h"
#include "engine/objects/smalls_private.h"

#define NAMES       1000u
#define LARGE_EACH  20u /* each so many-th value is larger than a small one */
#define LARGE_BYTES 100000u

static struct fixture fx;
static struct tierce__objects *space;
static unsigned told[NAMES], changed[NAMES];

/* Walks that had begun before: where the numbers in cursors and values wrap. Threads are the same
 * at each. */
static const uint64_t walks[] = {
    0, (1u << 20) - 3, (1u << 30) - 3, (1u << 31) - 3, (1ULL << 32) - 3,
};
#ifdef __SANITIZE_THREAD__
enum { WALKS = 1 };
#else
enum { WALKS = sizeof(walks) / sizeof(walks[0]) };
#endif

static uint64_t bytes_of(unsigned n)
{
    return n % LARGE_EACH == 0 ? LARGE_BYTES : 20 + n;
}

static const char *name_of(char name[16], unsigned n)
{
    snprintf(name, 16, "%u", n);
    return name;
}

static void put(unsigned n, uint64_t version, uint64_t bytes)
{
    char name[16];
    ck_assert_int_eq(ox_put(space, name_of(name, n), version, bytes), 0);
}

/* The first half lies on disk only, the other in memory too; all were there before a walk. */
static void begin(int i)
{
    fx_open(&fx, true, (const char *const[]){"memory.size", "64MiB", "disk.size", "1GiB", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    atomic_store(&fx.engine->object_walks, walks[i]);
    for (unsigned n = 0; n < NAMES; n++) {
        put(n, n + 1, bytes_of(n));
        if (n % 100 == 99) /* so that every value has its turn to be written */
            ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        if (n == NAMES / 2)
            ox_empty_memory(&fx);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(tierce__objects_count(space), NAMES);
}

static void end(void)
{
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
}

static void note_name(void *arg, const struct tierce__object_what *what)
{
    char name[16] = "";
    (void)arg;
    ck_assert_uint_lt(what->name_bytes, sizeof(name));
    memcpy(name, what->name, what->name_bytes);
    unsigned n = (unsigned)strtoul(name, NULL, 10);
    ck_assert_uint_lt(n, NAMES);
    told[n]++;
}

/* Walks over all, with a change between the pages. */
static void walk(void (*change)(struct test_random *random), struct test_random *random)
{
    uint64_t cursor = 0;
    unsigned pages = 0;
    memset(told, 0, sizeof(told));
    memset(changed, 0, sizeof(changed));
    do {
        ck_assert_int_eq(tierce__objects_scan(space, &cursor, 1, note_name, NULL), 0);
        ck_assert_uint_lt(cursor, 1ULL << 53);
        change(random);
        pages++;
    } while (cursor != 0);
    ck_assert_uint_ge(pages, 8);
    ck_assert_uint_eq(tierce__objects_count(space), NAMES);
}

static void promote_some(struct test_random *random)
{
    char name[16];
    for (unsigned i = 0; i < 40; i++) {
        unsigned n = (unsigned)test_random_below(random, NAMES);
        ck_assert_int_eq(ox_get(space, name_of(name, n), NULL), n + 1);
    }
}

START_TEST(values_that_come_from_disk_are_told_once)
{
    struct test_random random = test_random_start("promoted values");
    begin(_i);
    for (unsigned round = 0; round < 3; round++) {
        walk(promote_some, &random);
        for (unsigned n = 0; n < NAMES; n++)
            ck_assert_msg(told[n] == 1, "round %u: %u was told %u times", round, n, told[n]);
        ox_empty_memory(&fx);
    }
    end();
}
END_TEST

/* Each once, at most: small ones become large and the other way round. */
static void replace_some(struct test_random *random)
{
    for (unsigned i = 0; i < 10; i++) {
        unsigned n = (unsigned)test_random_below(random, NAMES);
        bool turns = test_random_below(random, 5) == 0, was_large = n % LARGE_EACH == 0;
        if (changed[n]++ == 0)
            put(n, n + 1, was_large != turns ? LARGE_BYTES + 1 : 500);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

START_TEST(values_that_are_replaced_are_told)
{
    struct test_random random = test_random_start("replaced values");
    begin(_i);
    walk(replace_some, &random);
    for (unsigned n = 0; n < NAMES; n++) {
        ck_assert_msg(told[n] >= 1, "%u was not told", n);
        ck_assert_msg(told[n] == 1 || changed[n] > 0, "%u was told %u times", n, told[n]);
    }
    end();
}
END_TEST

/* Changes the name of a small value in memory. */
static bool damage_name(const char *name)
{
    struct tierce__smalls *smalls = fx.engine->smalls;
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        for (uint32_t n = 0; n < p->page_count; n++) {
            for (uint32_t slot = 0; p->pages[n] != NULL && slot < p->pages[n]->slots; slot++) {
                struct tierce__small_record *record =
                    tierce__small_at(p, n << TIERCE__SMALLS_SLOT_BITS | slot);
                if (p->pages[n]->marks[slot] == TIERCE__SMALL_FREE ||
                    record->name_bytes != strlen(name) ||
                    memcmp(record + 1, name, strlen(name)) != 0)
                    continue;
                *(char *)(record + 1) ^= 1;
                return true;
            }
        }
    }
    return false;
}

START_TEST(a_damaged_name_is_not_told)
{
    uint64_t cursor = 0;
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    for (unsigned n = 100; n < 110; n++)
        put(n, 1, 100);
    ck_assert(damage_name("105"));
    memset(told, 0, sizeof(told));
    do {
        ck_assert_int_eq(tierce__objects_scan(space, &cursor, 1, note_name, NULL), 0);
    } while (cursor != 0);
    for (unsigned n = 0; n < NAMES; n++)
        ck_assert_uint_eq(told[n], n >= 100 && n < 110 && n != 105);
    end();
}
END_TEST

CHECK_MAIN("object_walk", .seconds = 120, .tests = {a_damaged_name_is_not_told},
           .loops = {{values_that_come_from_disk_are_told_once, 0, WALKS},
                     {values_that_are_replaced_are_told, 0, WALKS}})
