/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "manager/meta/meta_index.h"
#include "meta_records.h"
#include "test_random.h"

#include <pthread.h>

/*
 * Threads that read, change and delete at random beside each other. Only a key's decisions access
 * its model, without a lock: the index must run one decision at a time, and each must see the
 * effects of the previous one. At the end, counters, bytes and children equal those of the model,
 * and there was no deadlock.
 */
enum { THREADS = 4, KEYS = 160, PARENTS = 12, CALL_KEYS = 40 };

struct model {
    bool is_there;
    uint32_t version;
    int64_t parent;
};

static struct model model[KEYS];
static struct tierce__meta_index *lookup;
static struct tierce__meta_space *space;

struct thread {
    pthread_t id;
    struct test_random random;
    unsigned rounds;
    bool only_puts;
    struct test_record made[CALL_KEYS];
};

static enum tierce__meta_action decide(void *arg, size_t i, int64_t key, bool found,
                                       struct tierce__record *record, struct tierce__arena *arena)
{
    (void)arena;
    struct thread *thread = arg;
    struct model *is = &model[key];
    ck_assert_int_eq(found, is->is_there);
    if (found) {
        ck_assert_uint_eq(record->locations[0].places[0].slot, is->version);
        ck_assert_int_eq(record->parent, is->parent);
    }
    uint32_t what = thread->only_puts ? 9 : test_random_below(&thread->random, 10);
    if (what == 0)
        return TIERCE__META_SKIP;
    /* Parents stay, so that the count of their children is exact. */
    if (what < 4 && key >= PARENTS) {
        is->is_there = false;
        return TIERCE__META_DELETE;
    }
    is->is_there = true;
    is->version = test_random_below(&thread->random, 1000000);
    is->parent = test_random_below(&thread->random, PARENTS);
    *record = *test_record(&thread->made[i], key, is->version);
    record->has_parent = true;
    record->parent = is->parent;
    return TIERCE__META_PUT;
}

static void change(struct thread *thread, struct tierce__arena *arena)
{
    int64_t keys[CALL_KEYS];
    int status[CALL_KEYS];
    size_t count = 1 + test_random_below(&thread->random, CALL_KEYS);
    for (size_t i = 0; i < count; i++)
        keys[i] = test_random_below(&thread->random, KEYS);
    bool whole = test_random_below(&thread->random, 3) == 0;
    ck_assert_int_eq(tierce__meta_index_modify(lookup, keys, count,
                                               &(struct tierce__meta_change){
                                                   .modify = decide, .arg = thread, .whole = whole},
                                               arena, status),
                     0);
}

static void look(struct thread *thread, struct tierce__arena *arena)
{
    int64_t keys[CALL_KEYS];
    struct tierce__record records[CALL_KEYS];
    bool found[CALL_KEYS];
    for (size_t i = 0; i < CALL_KEYS; i++)
        keys[i] = test_random_below(&thread->random, KEYS);
    ck_assert_int_eq(tierce__meta_index_get(lookup, keys, CALL_KEYS, arena, records, found), 0);
    for (size_t i = 0; i < CALL_KEYS; i++) {
        if (!found[i])
            continue;
        struct test_record wanted;
        struct tierce__record is = records[i];
        (void)test_record(&wanted, keys[i], is.locations[0].places[0].slot);
        wanted.record.has_parent = true;
        wanted.record.parent = is.parent;
        wanted.record.children = is.children;
        wanted.record.used_us = is.used_us;
        wanted.record.uses = is.uses;
        ck_assert(test_records_equal(&is, &wanted.record));
    }
    tierce__meta_index_touch(lookup, keys, CALL_KEYS, &(struct tierce__record_use){1, 1, 0});
}

static void *run(void *arg)
{
    struct thread *thread = arg;
    struct tierce__arena arena = {0};
    for (unsigned i = 0; i < thread->rounds; i++) {
        tierce__arena_reset(&arena);
        if (test_random_below(&thread->random, 3) == 0)
            look(thread, &arena);
        else
            change(thread, &arena);
    }
    tierce__arena_clear(&arena);
    return NULL;
}

/* All at once: they are each other's children. */
static void put_parents(struct thread *thread, uint64_t seed)
{
    struct tierce__arena arena = {0};
    int64_t keys[PARENTS];
    int status[PARENTS];
    for (int64_t key = 0; key < PARENTS; key++)
        keys[key] = key;
    *thread = (struct thread){.random = {seed}, .only_puts = true};
    ck_assert_int_eq(tierce__meta_index_modify(lookup, keys, PARENTS,
                                               &(struct tierce__meta_change){
                                                   .modify = decide, .arg = thread, .whole = true},
                                               &arena, status),
                     0);
    thread->only_puts = false;
    tierce__arena_clear(&arena);
}

static void compare_with_model(void)
{
    struct tierce__arena arena = {0};
    int64_t keys[KEYS], children[KEYS] = {0};
    struct tierce__record records[KEYS];
    bool found[KEYS];
    uint64_t count = 0, bytes = 0;
    for (int64_t key = 0; key < KEYS; key++) {
        keys[key] = key;
        if (model[key].is_there)
            children[model[key].parent]++;
    }
    ck_assert_int_eq(space->ops->get(space, keys, KEYS, &arena, records, found), 0);
    for (int64_t key = 0; key < KEYS; key++) {
        ck_assert_int_eq(found[key], model[key].is_there);
        if (!found[key])
            continue;
        ck_assert_int_eq(records[key].children, children[key]);
        count++;
        bytes += tierce__record_bytes(&records[key]);
    }
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, count);
    ck_assert_uint_eq(stats.bytes, bytes);
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], count);
    for (unsigned i = 0; i < 16; i++)
        ck_assert_int_eq(counters[TIERCE__META_BYTES_FIRST + i], stats.bytes_by_type[i]);
    tierce__arena_clear(&arena);
}

START_TEST(threads_see_each_other)
{
    struct test_random random = test_random_start("threads_see_each_other");
    struct tierce__meta_store_ops ops = tierce__meta_memory;
    ops.blocks = _i % 2 == 1; /* with the search cache too */
    struct tierce__meta_store *store;
    char why[256];
    ck_assert_int_eq(ops.open(&store, "", why), 0);
    ck_assert_int_eq(ops.space_open(&space, store, 1, "i"), 0);
    space->ops = &ops;
    struct tierce__meta_index_opts opts = {.size = sizeof(opts),
                                           .shards = 1u << (2 * _i),
                                           .batch_keys = 1 + 4 * (uint32_t)_i,
                                           .cache_bytes = 16384};
    ck_assert_int_eq(tierce__meta_index_open(&lookup, space, &opts), 0);
    static struct thread threads[THREADS];
    memset(model, 0, sizeof(model));
    put_parents(&threads[0], test_random_u64(&random));
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i].random.state = test_random_u64(&random);
        threads[i].rounds = TEST_ROUNDS(700u) * test_scale();
        ck_assert_int_eq(pthread_create(&threads[i].id, NULL, run, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    compare_with_model();
    tierce__meta_index_close(lookup);
    tierce__meta_memory.close(store);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* ---- the limit ------------------------------------------------------------------------------ */

enum { LIMIT = 50 };

static enum tierce__meta_action put_or_delete(void *arg, size_t i, int64_t key, bool found,
                                              struct tierce__record *record,
                                              struct tierce__arena *arena)
{
    (void)arena;
    struct thread *thread = arg;
    if (found)
        return TIERCE__META_DELETE;
    *record = *test_record(&thread->made[i], key, 1);
    return TIERCE__META_PUT;
}

static void *press(void *arg)
{
    struct thread *thread = arg;
    for (unsigned i = 0; i < thread->rounds; i++) {
        struct tierce__arena arena = {0};
        int64_t keys[8];
        int status[8];
        for (size_t k = 0; k < 8; k++)
            keys[k] = test_random_below(&thread->random, KEYS);
        int rc = tierce__meta_index_modify(
            lookup, keys, 8, &(struct tierce__meta_change){.modify = put_or_delete, .arg = thread},
            &arena, status);
        ck_assert(rc == 0 || rc == TIERCE_E_LIMIT);
        struct tierce__meta_index_stats stats;
        tierce__meta_index_stats(lookup, &stats);
        ck_assert_uint_le(stats.keys, LIMIT);
        tierce__arena_clear(&arena);
    }
    return NULL;
}

START_TEST(the_limit_holds_under_pressure)
{
    struct test_random random = test_random_start("the_limit_holds_under_pressure");
    struct tierce__meta_store *store;
    char why[256];
    ck_assert_int_eq(tierce__meta_memory.open(&store, "", why), 0);
    ck_assert_int_eq(tierce__meta_memory.space_open(&space, store, 1, "i"), 0);
    struct tierce__meta_index_opts opts = {.size = sizeof(opts), .shards = 8, .keys_max = LIMIT};
    ck_assert_int_eq(tierce__meta_index_open(&lookup, space, &opts), 0);
    static struct thread threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i].random.state = test_random_u64(&random);
        threads[i].rounds = TEST_ROUNDS(500u) * test_scale();
        ck_assert_int_eq(pthread_create(&threads[i].id, NULL, press, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    int64_t keys[KEYS];
    uint64_t cursor = 0;
    size_t count;
    ck_assert_int_eq(space->ops->scan(space, &cursor, KEYS, keys, &count), 0);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, count);
    tierce__meta_index_close(lookup);
    tierce__meta_memory.close(store);
}
END_TEST

CHECK_MAIN("prop_meta_index", .seconds = 100 * test_scale(),
           .tests = {the_limit_holds_under_pressure}, .loops = {{threads_see_each_other, 0, 4}})
