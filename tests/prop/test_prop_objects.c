/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named values under several threads, with little room: created, replaced, put again as they are,
 * removed, expired, evicted and cleared at once, over restarts. The model is time: each write has a
 * beginning and an end on one clock of events. A value is stale for a find that begins after
 * another write of its name has ended that began after the value's own had ended. No stale, expired
 * or foreign value may be found; every value found is complete.
 */
#include "check_main.h"
#include "object_fixture.h"
#include "test_random.h"

#include <stdatomic.h>

#include <tierce/operate.h>

#define NAMES    16u
#define THREADS  4u
#define STEPS    300u
#define ROUNDS   3u
#define VERSIONS (1u << 20)

static struct fixture fx;
static struct tierce__objects *space;
static _Atomic uint64_t event_now = 1;
static _Atomic uint64_t floors[NAMES]; /* of a write that has ended: when it began */
static _Atomic uint64_t version_last;
static _Atomic uint64_t wrong, got, put_count;
static struct {
    _Atomic uint64_t ended; /* when its last write did; UINT64_MAX: not yet */
    _Atomic uint64_t expires_ms;
    uint64_t bytes;
    uint32_t name;
} versions[VERSIONS];

static uint64_t tick(void)
{
    return atomic_fetch_add(&event_now, 1);
}

static void raise_floor(uint32_t n, uint64_t began)
{
    uint64_t floor = atomic_load(&floors[n]);
    while (floor < began && !atomic_compare_exchange_weak(&floors[n], &floor, began))
        ;
}

static void expect(bool good, const char *what, uint64_t version)
{
    if (good)
        return;
    printf("wrong: %s, version %llu\n", what, (unsigned long long)version);
    atomic_fetch_add(&wrong, 1);
}

static void name_of(char name[16], uint32_t n)
{
    snprintf(name, 16, "name-%u", n);
}

static uint64_t draw_bytes(struct test_random *random)
{
    static const uint32_t most[] = {100, 5000, 100000, 700000};
    return test_random_below(random, most[test_random_below(random, 4)]);
}

static void put_version(uint64_t version)
{
    char name[16];
    uint64_t began = tick();
    atomic_store(&versions[version].ended, UINT64_MAX);
    name_of(name, versions[version].name);
    int rc = ox_put_until(space, name, version, versions[version].bytes,
                          atomic_load(&versions[version].expires_ms));
    expect(rc == 0 || rc == TIERCE_E_FULL || rc == TIERCE_E_LIMIT, "a put's status", version);
    if (rc < 0)
        return;
    atomic_store(&versions[version].ended, tick());
    raise_floor(versions[version].name, began);
    atomic_fetch_add(&put_count, 1);
}

/* Sometimes repeats this thread's last put under the name. */
static void put_one(struct test_random *random, uint32_t n, uint64_t *last)
{
    if (*last != 0 && test_random_below(random, 3) == 0) {
        put_version(*last);
        return;
    }
    uint64_t version = atomic_fetch_add(&version_last, 1) + 1;
    ck_assert_uint_lt(version, VERSIONS);
    if (test_random_below(random, 8) == 0)
        atomic_store(&versions[version].expires_ms,
                     tierce__wall_us() / 1000 + test_random_below(random, 50));
    versions[version].bytes = draw_bytes(random);
    versions[version].name = n;
    *last = version;
    put_version(version);
}

static void get_one(uint32_t n)
{
    char name[16];
    uint64_t floor = atomic_load(&floors[n]), now_ms = tierce__wall_us() / 1000;
    name_of(name, n);
    int64_t version = ox_get(space, name, NULL);
    expect(version >= 0, "a value that does not verify", 0);
    if (version <= 0)
        return;
    uint64_t expires_ms = atomic_load(&versions[version].expires_ms);
    expect(versions[version].name == n, "a value of another name", (uint64_t)version);
    expect(atomic_load(&versions[version].ended) >= floor, "an old value", (uint64_t)version);
    expect(expires_ms == 0 || expires_ms > now_ms, "an expired value", (uint64_t)version);
    atomic_fetch_add(&got, 1);
}

static void remove_one(uint32_t n)
{
    char name[16];
    bool was;
    uint64_t began = tick();
    name_of(name, n);
    int rc = tierce__object_remove(space, name, strlen(name), &was);
    expect(rc == 0, "a removal's status", 0);
    if (rc == 0)
        raise_floor(n, began);
}

static void clear_all(void)
{
    uint64_t began = tick();
    int64_t rc = tierce__objects_clear(space);
    expect(rc >= 0, "a clear's status", (uint64_t)-rc);
    for (uint32_t n = 0; n < NAMES && rc >= 0; n++)
        raise_floor(n, began);
}

static void check_told(void *arg, const struct tierce__object_what *what)
{
    (void)arg;
    expect(what->name_bytes > 5 && memcmp(what->name, "name-", 5) == 0, "a name that is told", 0);
}

static void look_around(void)
{
    uint64_t cursor = 0;
    expect(tierce__objects_count(space) <= 2 * NAMES, "a count", 0);
    do {
        int rc = tierce__objects_scan(space, &cursor, 10, check_told, NULL);
        expect(rc == 0, "a scan's status", 0);
    } while (cursor != 0);
}

static void *work(void *arg)
{
    struct test_random random = {*(uint64_t *)arg};
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    uint64_t last[NAMES] = {0};
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t n = test_random_below(&random, NAMES), dice = test_random_below(&random, 1000);
        if (dice < 300)
            put_one(&random, n, &last[n]);
        else if (dice < 800)
            get_one(n);
        else if (dice < 870)
            remove_one(n);
        else if (dice < 985)
            memory->ops->evict(memory, 1u << test_random_below(&random, 22));
        else if (dice < 995)
            look_around();
        else
            clear_all();
    }
    return NULL;
}

static void run_threads(struct test_random *random)
{
    pthread_t threads[THREADS];
    uint64_t seeds[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        seeds[i] = test_random_u64(random);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &seeds[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(nobody_finds_an_old_value)
{
    struct test_random random = test_random_start("objects");
    const char *scale = getenv("TIERCE_TEST_SCALE");
    uint32_t rounds = ROUNDS * (scale != NULL ? (uint32_t)atoi(scale) : 1);
    static const char *const queues[] = {"1MiB", "16MiB"}, *const intervals[] = {"10ms", "1h"};
    for (uint32_t round = 0; round < rounds; round++) {
        const char *sets[] = {"disk.queue",
                              queues[test_random_below(&random, 2)],
                              "disk.flush_interval",
                              intervals[test_random_below(&random, 2)],
                              "disk.size",
                              "8MiB",
                              NULL};
        fx_open(&fx, _i == 1, sets);
        ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "prop", "tenant"), 0);
        for (uint32_t n = 0; n < NAMES; n++)
            get_one(n);
        run_threads(&random);
        tierce__objects_close(space);
        fx_close(&fx);
    }
    fx_remove(&fx);
    ck_assert_uint_eq(atomic_load(&wrong), 0);
    ck_assert_uint_gt(atomic_load(&got), 0);
    ck_assert_uint_gt(atomic_load(&put_count), rounds * THREADS * STEPS / 8);
}
END_TEST

CHECK_MAIN("prop_objects", .seconds = CHECK_NO_LIMIT, .loops = {{nobody_finds_an_old_value, 0, 2}})
