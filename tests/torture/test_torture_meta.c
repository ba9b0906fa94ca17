/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/meta/meta_index.h"
#include "meta_folder.h"
#include "meta_records.h"
#include "redis_server.h"
#include "silent_log.h"
#include "test_random.h"

#include <errno.h>

/*
 * Every allocation fails once, one after the other, over the life of a store and an index.
 * Whatever fails: no crash, no leak, a failed call has no effect, and the counters equal a full
 * scan.
 */
enum { KEYS = 40 };

static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__meta_index *lookup;
static struct test_record made[KEYS];

static enum tierce__meta_action decide(void *arg, size_t i, int64_t key, bool found,
                                       struct tierce__record *record, struct tierce__arena *arena)
{
    (void)arena;
    const unsigned *round = arg;
    if (found && key % 3 == 0)
        return TIERCE__META_DELETE;
    *record = *test_record(&made[i], key, *round);
    record->has_parent = key > 0;
    record->parent = key > 0 ? key / 2 : 0;
    return TIERCE__META_PUT;
}

static int attach(void *arg, const size_t *indices, size_t count, struct tierce__meta_batch *batch,
                  struct tierce__arena *arena)
{
    (void)indices;
    struct tierce__meta_note *note = tierce__arena_alloc(arena, sizeof(*note));
    if (note == NULL)
        return -ENOMEM;
    *note = (struct tierce__meta_note){TIERCE__NOTE_SESSION, *(unsigned *)arg + count, "s", 1};
    batch->notes = note;
    batch->note_count = 1;
    return 0;
}

static int nothing(void *arg, const struct tierce__meta_note *note)
{
    (void)arg;
    (void)note;
    return 0;
}

/* Each call may fail for memory, for nothing else. */
static void use(const struct tierce__meta_store_ops *ops, const char *uri)
{
    struct tierce__arena arena = {0};
    char why[256];
    int64_t keys[KEYS], counters[TIERCE__META_COUNTERS];
    int status[KEYS];
    struct tierce__record records[KEYS];
    bool found[KEYS];
    size_t count;
    uint64_t cursor = 0, random = 1;
    struct tierce__meta_index_opts opts = {.size = sizeof(opts), .shards = 4, .cache_bytes = 4096};
    store = NULL;
    space = NULL;
    lookup = NULL;
    int rc = ops->open(&store, uri, why);
    if (rc == 0)
        rc = ops->space_open(&space, store, 1, "i");
    if (rc == 0)
        rc = tierce__meta_index_open(&lookup, space, &opts);
    ck_assert(rc == 0 || rc == -ENOMEM);
    for (unsigned round = 0; rc == 0 && round < 4; round++) {
        for (size_t i = 0; i < KEYS; i++)
            keys[i] = (int64_t)i;
        tierce__arena_clear(&arena); /* an arena that failed an allocation fails all later ones */
        int one = tierce__meta_index_modify(
            lookup, keys, KEYS,
            &(struct tierce__meta_change){
                .modify = decide, .attach = attach, .arg = &round, .whole = round == 2},
            &arena, status);
        ck_assert(one == 0 || one == -ENOMEM);
        one = tierce__meta_index_get(lookup, keys, KEYS, &arena, records, found);
        ck_assert(one == 0 || one == -ENOMEM);
        tierce__meta_index_touch(lookup, keys, KEYS, &(struct tierce__record_use){1, 1, 0});
        one = ops->sample(space, &random, 10, keys, &count);
        ck_assert(one == 0 || one == -ENOMEM);
        one = ops->scan(space, &cursor, 10, keys, &count);
        ck_assert(one == 0 || one == -ENOMEM);
        one = ops->notes(space, TIERCE__NOTE_SESSION, nothing, NULL);
        ck_assert(one == 0 || one == -ENOMEM);
        one = ops->counters(space, counters);
        ck_assert(one == 0 || one == -ENOMEM);
    }
    tierce__arena_clear(&arena);
}

/* With memory again: what is there is counted. */
static void verify(void)
{
    if (lookup == NULL)
        return;
    struct tierce__arena arena = {0};
    int64_t keys[KEYS];
    struct tierce__record records[KEYS];
    bool found[KEYS];
    size_t count;
    uint64_t cursor = 0, bytes = 0;
    ck_assert_int_eq(space->ops->scan(space, &cursor, KEYS, keys, &count), 0);
    ck_assert_int_eq(space->ops->get(space, keys, count, &arena, records, found), 0);
    for (size_t i = 0; i < count; i++) {
        ck_assert(found[i]);
        bytes += tierce__record_bytes(&records[i]);
    }
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, count);
    ck_assert_uint_eq(stats.bytes, bytes);
    tierce__arena_clear(&arena);
}

static void end(void)
{
    tierce__meta_index_close(lookup);
    if (space != NULL)
        space->ops->space_close(space);
    if (store != NULL)
        store->ops->close(store);
}

/* Each store begins empty. Opening one that is not in memory takes long: of those, a run of `make
 * test` fails every STEP-th allocation, starting with a random one, and a long run fails all. */
enum { STEP = 4 };

static void torture(const struct tierce__meta_store_ops *ops, const char *(*begin)(void),
                    void (*end_one)(void), unsigned step)
{
    silence_log();
    struct test_random random = test_random_start("allocations");
    uint64_t live = tierce__alloc_live(), nth;
    unsigned not_reached = 0;
    step = test_scale() > 1 ? 1 : step;
    for (nth = 1 + test_random_below(&random, step); not_reached < 2; nth += step) {
        const char *uri = begin();
        tierce__alloc_fail_nth(nth);
        use(ops, uri);
        not_reached += tierce__alloc_fail_nth(0) < nth;
        verify();
        end();
        ck_assert_uint_eq(tierce__alloc_live(), live);
        end_one();
    }
    ck_assert_uint_gt(nth, 100);
}

static const char *no_uri(void)
{
    return "";
}

static void nothing_to_end(void) {}

START_TEST(memory)
{
    torture(&tierce__meta_memory, no_uri, nothing_to_end, 1);
}
END_TEST

static const char *folder(void)
{
    meta_folder_make();
    return meta_folder;
}

START_TEST(rocksdb)
{
    torture(&tierce__meta_rocksdb, folder, meta_folder_remove, STEP);
}
END_TEST

static struct redis_server server;

/* A database of its own each time: there are enough. */
static const char *database(void)
{
    static char uri[64];
    static unsigned number;
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/%u", (unsigned)server.port, number++);
    return uri;
}

START_TEST(redis)
{
    ck_assert(redis_start(&server, (const char *const[]){"--databases", "20000", NULL}));
    torture(&tierce__meta_redis, database, nothing_to_end, STEP);
    redis_stop(&server);
}
END_TEST

int main(void)
{
    const char *ci = getenv("CI");
    return CHECK_RUN(
        "torture_meta", .seconds = 300,
        .tests = {memory, rocksdb,
                  redis_is_there() || (ci != NULL && strcmp(ci, "true") == 0) ? redis : NULL});
}
