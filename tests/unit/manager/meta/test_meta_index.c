/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/meta_index.h"

#include "base/alloc.h"
#include "meta_records.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* A memory store that calls itself a blocking one, counts, fails, and lets something happen while
 * it reads. */
static struct tierce__meta_store_ops ops;
static unsigned reads, writes;
static int write_result;
static bool write_happens; /* although it fails */
static void (*while_reading)(void);
static struct tierce__meta_batch last_batch;

static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__meta_index *lookup;
static struct tierce__arena arena;

static void *call(void *arg)
{
    void (*const *hook)(void) = arg;
    (*hook)();
    return NULL;
}

/* On a thread of its own, as who reads may hold locks. */
static void elsewhere(void (*hook)(void))
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, call, &hook), 0);
    pthread_join(thread, NULL);
}

static int hooked_get(struct tierce__meta_space *s, const int64_t *keys, size_t count,
                      struct tierce__arena *into, struct tierce__record *records, bool *found)
{
    reads++;
    int rc = tierce__meta_memory.get(s, keys, count, into, records, found);
    void (*hook)(void) = while_reading;
    while_reading = NULL;
    if (hook != NULL)
        elsewhere(hook);
    return rc;
}

static int hooked_write(struct tierce__meta_space *s, const struct tierce__meta_batch *batch)
{
    writes++;
    last_batch = *batch;
    if (write_result != 0 && !write_happens)
        return write_result;
    int rc = tierce__meta_memory.write(s, batch);
    return write_result != 0 ? write_result : rc;
}

static void open_index(const struct tierce__meta_index_opts *opts)
{
    char why[256];
    ops = tierce__meta_memory;
    ops.blocks = true;
    ops.get = hooked_get;
    ops.write = hooked_write;
    ck_assert_int_eq(ops.open(&store, "", why), 0);
    ck_assert_int_eq(ops.space_open(&space, store, 1, "i"), 0);
    space->ops = &ops;
    ck_assert_int_eq(tierce__meta_index_open(&lookup, space, opts), 0);
    reads = writes = 0;
}

static void setup(void)
{
    open_index(&(struct tierce__meta_index_opts){
        .size = sizeof(struct tierce__meta_index_opts), .shards = 16, .cache_bytes = 1 << 20});
}

static void teardown(void)
{
    tierce__meta_index_close(lookup);
    tierce__meta_memory.close(store);
    tierce__arena_clear(&arena);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- decisions ------------------------------------------------------------------------------ */

/* The operation of a call on each of its keys. */
struct decision {
    enum tierce__meta_action action;
    uint32_t version;
    bool has_parent;
    int64_t parent;
};

struct script {
    const struct decision *decisions;
    struct tierce__record seen[64];
    bool found[64];
    unsigned calls;
    unsigned attached;
    size_t attached_keys;
    int attach_result;
};

static _Thread_local struct test_record made[64];

static enum tierce__meta_action play(void *arg, size_t i, int64_t key, bool found,
                                     struct tierce__record *record, struct tierce__arena *into)
{
    (void)into;
    struct script *script = arg;
    script->calls++;
    script->found[i] = found;
    script->seen[i] = *record;
    const struct decision *decision = &script->decisions[i];
    if (decision->action == TIERCE__META_PUT) {
        *record = *test_record(&made[i], key, decision->version);
        record->has_parent = decision->has_parent;
        record->parent = decision->has_parent ? decision->parent : 0;
    }
    return decision->action;
}

static int note_it(void *arg, const size_t *indices, size_t count, struct tierce__meta_batch *batch,
                   struct tierce__arena *into)
{
    struct script *script = arg;
    (void)indices;
    struct tierce__meta_note *note = tierce__arena_alloc(into, sizeof(*note));
    *note = (struct tierce__meta_note){TIERCE__NOTE_SESSION, ++script->attached, "s", 1};
    script->attached_keys += count;
    batch->notes = note;
    batch->note_count = 1;
    batch->added[TIERCE__META_BYTES_FIRST + 9] += 1;
    return script->attach_result;
}

static int run(struct script *script, const int64_t *keys, size_t count, bool whole, int *status)
{
    return tierce__meta_index_modify(
        lookup, keys, count,
        &(struct tierce__meta_change){.modify = play, .arg = script, .whole = whole}, &arena,
        status);
}

static int put(int64_t key, uint32_t version)
{
    struct script script = {.decisions = &(struct decision){TIERCE__META_PUT, version, false, 0}};
    int status;
    return run(&script, &key, 1, false, &status);
}

static int put_child(int64_t key, int64_t parent)
{
    struct script script = {.decisions = &(struct decision){TIERCE__META_PUT, 1, true, parent}};
    int status;
    return run(&script, &key, 1, false, &status);
}

static int delete_key(int64_t key)
{
    struct script script = {.decisions = &(struct decision){.action = TIERCE__META_DELETE}};
    int status;
    return run(&script, &key, 1, false, &status);
}

/* The version of a key, -1 for none. */
static int64_t version_of(int64_t key)
{
    struct tierce__record record;
    bool found;
    ck_assert_int_eq(tierce__meta_index_get(lookup, &key, 1, &arena, &record, &found), 0);
    return found ? (int64_t)record.locations[0].places[0].slot : -1;
}

static uint32_t children_of(int64_t key)
{
    struct tierce__record record;
    bool found;
    ck_assert_int_eq(space->ops->get(space, &key, 1, &arena, &record, &found), 0);
    ck_assert(found);
    return record.children;
}

START_TEST(puts_deletes_and_counts)
{
    ck_assert_int_eq(put(1, 1), 0);
    ck_assert_int_eq(put(2, 1), 0);
    ck_assert_int_eq(version_of(1), 1);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, 2);
    struct test_record one, two;
    uint64_t bytes = tierce__record_bytes(test_record(&one, 1, 1)) +
                     tierce__record_bytes(test_record(&two, 2, 1));
    ck_assert_uint_eq(stats.bytes, bytes);
    ck_assert_uint_eq(stats.bytes_by_type[4] + stats.bytes_by_type[1], bytes);
    ck_assert_int_eq(put(1, 8), 0);
    ck_assert_int_eq(version_of(1), 8);
    ck_assert_int_eq(delete_key(1), 0);
    ck_assert_int_eq(delete_key(1), 0);
    ck_assert_int_eq(version_of(1), -1);
    ck_assert_int_eq(delete_key(2), 0);
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, 0);
    ck_assert_uint_eq(stats.bytes, 0);
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    for (int i = 0; i < TIERCE__META_COUNTERS; i++)
        ck_assert_int_eq(counters[i], 0);
}
END_TEST

START_TEST(the_same_key_twice)
{
    static const struct decision decisions[] = {{TIERCE__META_PUT, 1, false, 0},
                                                {TIERCE__META_PUT, 2, false, 0},
                                                {TIERCE__META_DELETE, 0, false, 0},
                                                {TIERCE__META_SKIP, 0, false, 0},
                                                {TIERCE__META_PUT, 3, false, 0}};
    struct script script = {.decisions = decisions};
    int64_t keys[] = {5, 5, 5, 5, 6};
    int status[5];
    ck_assert_int_eq(run(&script, keys, 5, true, status), 0);
    ck_assert(!script.found[0] && script.found[1] && script.found[2] && !script.found[3]);
    ck_assert_uint_eq(script.seen[1].locations[0].places[0].slot, 1);
    ck_assert_uint_eq(script.seen[2].locations[0].places[0].slot, 2);
    ck_assert_uint_eq(writes, 1);
    ck_assert_int_eq(version_of(5), -1);
    ck_assert_int_eq(version_of(6), 3);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, 1);
}
END_TEST

START_TEST(nothing_is_written_for_nothing)
{
    static const struct decision decisions[] = {{TIERCE__META_SKIP, 0, false, 0},
                                                {TIERCE__META_FAIL, 0, false, 0},
                                                {TIERCE__META_DELETE, 0, false, 0}};
    struct script script = {.decisions = decisions};
    int64_t keys[] = {1, 2, 3};
    int status[3];
    ck_assert_int_eq(run(&script, keys, 3, true, status), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(status[0], 0);
    ck_assert_int_eq(status[1], TIERCE_E_ARGUMENT);
    ck_assert_int_eq(status[2], 0);
    ck_assert_uint_eq(writes, 0);
    ck_assert_int_eq(tierce__meta_index_modify(
                         lookup, NULL, 0,
                         &(struct tierce__meta_change){
                             .modify = play, .attach = note_it, .arg = &script, .whole = true},
                         &arena, NULL),
                     0);
}
END_TEST

START_TEST(steps_are_of_whole_shards)
{
    struct decision decisions[64];
    int64_t keys[64];
    int status[64];
    for (int i = 0; i < 64; i++) {
        decisions[i] = (struct decision){TIERCE__META_PUT, (uint32_t)i, false, 0};
        keys[i] = i;
    }
    struct script script = {.decisions = decisions};
    ck_assert_int_eq(
        tierce__meta_index_modify(
            lookup, keys, 64,
            &(struct tierce__meta_change){.modify = play, .attach = note_it, .arg = &script},
            &arena, status),
        0);
    ck_assert_uint_ge(script.attached, 2);
    ck_assert_uint_le(script.attached, 4);
    ck_assert_uint_eq(script.attached, writes);
    ck_assert_uint_eq(script.attached_keys, 64);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, 64);
    ck_assert_uint_eq(stats.bytes_by_type[9], script.attached);
    script.attached = 0;
    ck_assert_int_eq(tierce__meta_index_modify(
                         lookup, keys, 64,
                         &(struct tierce__meta_change){
                             .modify = play, .attach = note_it, .arg = &script, .whole = true},
                         &arena, status),
                     0);
    ck_assert_uint_eq(script.attached, 1);
    script.attach_result = TIERCE_E_FULL;
    decisions[3].version = 99;
    ck_assert_int_eq(tierce__meta_index_modify(
                         lookup, keys, 64,
                         &(struct tierce__meta_change){
                             .modify = play, .attach = note_it, .arg = &script, .whole = true},
                         &arena, status),
                     TIERCE_E_FULL);
    ck_assert_int_eq(status[63], TIERCE_E_FULL);
    ck_assert_int_eq(version_of(3), 3);
}
END_TEST

/* ---- limits --------------------------------------------------------------------------------- */

START_TEST(no_key_beyond_the_limit)
{
    tierce__meta_index_close(lookup);
    ck_assert_int_eq(
        tierce__meta_index_open(
            &lookup, space,
            &(struct tierce__meta_index_opts){
                .size = sizeof(struct tierce__meta_index_opts), .shards = 4, .keys_max = 3}),
        0);
    static const struct decision all[] = {{TIERCE__META_PUT, 1, false, 0},
                                          {TIERCE__META_PUT, 1, false, 0},
                                          {TIERCE__META_PUT, 1, false, 0},
                                          {TIERCE__META_PUT, 1, false, 0},
                                          {TIERCE__META_PUT, 2, false, 0}};
    struct script script = {.decisions = all};
    int64_t keys[] = {1, 2, 3, 4, 1};
    int status[5];
    ck_assert_int_eq(run(&script, keys, 5, true, status), TIERCE_E_LIMIT);
    ck_assert_int_eq(status[2], 0);
    ck_assert_int_eq(status[3], TIERCE_E_LIMIT);
    ck_assert_int_eq(status[4], 0);
    ck_assert_int_eq(put(5, 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(put(2, 5), 0);
    ck_assert_int_eq(delete_key(2), 0);
    /* A write that fails gives the place back. */
    write_result = -ENOMEM;
    ck_assert_int_eq(put(6, 1), -ENOMEM);
    ck_assert_int_eq(put(6, 1), -ENOMEM);
    write_result = 0;
    ck_assert_int_eq(put(6, 1), 0);
    ck_assert_int_eq(put(7, 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(version_of(7), -1);
}
END_TEST

START_TEST(shards_are_a_power_of_two)
{
    struct tierce__meta_index *none = NULL;
    static const uint32_t wrong[] = {0, 3, 12, 1u << 31};
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(tierce__meta_index_open(&none, space,
                                                 &(struct tierce__meta_index_opts){
                                                     .size = sizeof(struct tierce__meta_index_opts),
                                                     .shards = wrong[i]}),
                         TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(none);
}
END_TEST

/* ---- children ------------------------------------------------------------------------------- */

START_TEST(parents_count_their_children)
{
    ck_assert_int_eq(put(1, 4), 0);
    ck_assert_uint_eq(children_of(1), 0); /* what the caller says does not count */
    for (int64_t child = 10; child < 40; child++)
        ck_assert_int_eq(put_child(child, 1), 0);
    ck_assert_uint_eq(children_of(1), 30);
    ck_assert_int_eq(put_child(10, 1), 0);
    ck_assert_int_eq(put(1, 9), 0);
    ck_assert_uint_eq(children_of(1), 30);
    ck_assert_int_eq(delete_key(10), 0);
    ck_assert_int_eq(put_child(11, 12), 0);
    ck_assert_uint_eq(children_of(1), 28);
    ck_assert_uint_eq(children_of(12), 1);
    ck_assert_int_eq(put_child(12, 12), 0); /* its own: it has one more, and 1 one less */
    ck_assert_uint_eq(children_of(12), 2);
    ck_assert_uint_eq(children_of(1), 27);
    ck_assert_int_eq(put_child(77, 78), 0); /* a parent that is not there */
    ck_assert_int_eq(version_of(78), -1);
    ck_assert_int_eq(put(78, 1), 0);
    ck_assert_uint_eq(children_of(78), 0);
    ck_assert_int_eq(delete_key(77), 0);
    ck_assert_uint_eq(children_of(78), 0);
}
END_TEST

/* The child that a record names; 0: none. */
static int64_t child_of(int64_t key)
{
    struct tierce__record record;
    bool found;
    ck_assert_int_eq(tierce__meta_index_get(lookup, &key, 1, &arena, &record, &found), 0);
    ck_assert(found);
    return record.has_child ? record.child : 0;
}

START_TEST(the_last_child_is_named)
{
    struct decision decisions[] = {{TIERCE__META_PUT, 1, false, 0}, {TIERCE__META_PUT, 1, true, 7}};
    int64_t keys[] = {7, 8};
    int status[2];
    ck_assert_int_eq(put(1, 1), 0);
    ck_assert_int_eq(put_child(2, 1), 0);
    ck_assert_int_eq(child_of(1), 0); /* only where it is kept */
    teardown();
    open_index(&(struct tierce__meta_index_opts){.size = sizeof(struct tierce__meta_index_opts),
                                                 .shards = 16,
                                                 .cache_bytes = 1 << 20,
                                                 .keeps_child = true});
    ck_assert_int_eq(put(1, 1), 0);
    ck_assert_int_eq(child_of(1), 0);
    for (int64_t child = 2; child < 5; child++) {
        ck_assert_int_eq(put_child(child, 1), 0);
        ck_assert_int_eq(child_of(1), child);
    }
    ck_assert_int_eq(put_child(3, 1), 0); /* it was one */
    ck_assert_int_eq(put(1, 9), 0);
    ck_assert_int_eq(child_of(1), 4);
    ck_assert_int_eq(delete_key(2), 0);
    ck_assert_int_eq(child_of(1), 0);
    ck_assert_uint_eq(children_of(1), 2);
    ck_assert_int_eq(put_child(5, 1), 0);
    ck_assert_int_eq(child_of(1), 5);
    struct script script = {.decisions = decisions};
    ck_assert_int_eq(run(&script, keys, 2, true, status), 0);
    ck_assert_int_eq(child_of(7), 8);
}
END_TEST

START_TEST(a_chain_in_one_call)
{
    for (int whole = 0; whole < 2; whole++) {
        struct decision decisions[64];
        int64_t keys[64];
        int status[64];
        for (int i = 0; i < 64; i++) {
            keys[i] = 1000 * whole + i;
            decisions[i] = (struct decision){TIERCE__META_PUT, 1, i > 0, keys[i] - 1};
        }
        struct script script = {.decisions = decisions};
        ck_assert_int_eq(run(&script, keys, 64, whole == 1, status), 0);
        for (int i = 0; i < 64; i++)
            ck_assert_uint_eq(children_of(keys[i]), i < 63);
        for (int i = 32; i < 64; i++)
            decisions[i].action = TIERCE__META_DELETE;
        for (int i = 0; i < 32; i++)
            decisions[i].action = TIERCE__META_SKIP;
        ck_assert_int_eq(run(&script, keys, 64, whole == 1, status), 0);
        for (int i = 0; i < 32; i++)
            ck_assert_uint_eq(children_of(keys[i]), i < 31);
    }
}
END_TEST

/* Another call puts a child while this one has read the parent and not yet written it. */
static void put_another_child(void)
{
    struct tierce__arena before = arena;
    arena = (struct tierce__arena){0};
    ck_assert_int_eq(put_child(900, 1), 0);
    tierce__arena_clear(&arena);
    arena = before;
}

START_TEST(a_count_that_changes_meanwhile_is_kept)
{
    tierce__meta_index_close(lookup);
    /* One lock for all would be taken twice by the hook: the child's shard is another one. */
    ck_assert_int_eq(tierce__meta_index_open(
                         &lookup, space,
                         &(struct tierce__meta_index_opts){
                             .size = sizeof(struct tierce__meta_index_opts), .shards = 1024}),
                     0);
    ck_assert_int_eq(put(1, 1), 0);
    ck_assert_uint_ne(tierce__meta_mix(1) % 1024, tierce__meta_mix(900) % 1024);
    ck_assert_int_eq(put_child(2, 1), 0);
    ck_assert_uint_eq(children_of(1), 1);
    while_reading = put_another_child;
    ck_assert_int_eq(put(1, 5), 0);
    ck_assert_uint_eq(children_of(1), 2);
    ck_assert_int_eq(version_of(1), 5);
}
END_TEST

/* ---- the cache ------------------------------------------------------------------------------ */

START_TEST(what_was_read_is_kept)
{
    ck_assert_int_eq(put(1, 1), 0);
    reads = 0;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(version_of(1), 1);
        ck_assert_int_eq(version_of(2), -1);
    }
    ck_assert_uint_eq(reads, 2);
    ck_assert_int_eq(put(1, 2), 0);
    ck_assert_int_eq(put(2, 7), 0);
    ck_assert_int_eq(version_of(1), 2);
    ck_assert_int_eq(version_of(2), 7);
    ck_assert_int_eq(delete_key(1), 0);
    ck_assert_int_eq(version_of(1), -1);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.cache_hits, 4);
    ck_assert_uint_eq(stats.cache_misses, 5);
    ck_assert_uint_gt(stats.cache_bytes, 0);
    ck_assert_uint_le(stats.cache_bytes, 1 << 20);
}
END_TEST

static void put_version_2(void)
{
    struct tierce__arena before = arena;
    arena = (struct tierce__arena){0};
    ck_assert_int_eq(put(1, 2), 0);
    tierce__arena_clear(&arena);
    arena = before;
}

START_TEST(a_read_does_not_outlive_a_write)
{
    ck_assert_int_eq(put(1, 1), 0);
    while_reading = put_version_2;
    ck_assert_int_eq(version_of(1), 1); /* as it was when it was read */
    ck_assert_int_eq(version_of(1), 2);
    ck_assert_int_eq(delete_key(1), 0);
    while_reading = put_version_2;
    ck_assert_int_eq(version_of(1), -1);
    ck_assert_int_eq(version_of(1), 2);
}
END_TEST

START_TEST(the_cache_stays_below_its_bytes)
{
    for (int64_t key = 0; key < 20000; key++)
        (void)version_of(key);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_le(stats.cache_bytes, 1 << 20);
    ck_assert_uint_gt(stats.cache_bytes, (1 << 20) / 2);
    /* The latest are kept. */
    reads = 0;
    for (int64_t key = 19900; key < 20000; key++)
        (void)version_of(key);
    ck_assert_uint_eq(reads, 0);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------- */

START_TEST(a_failed_write_is_told)
{
    struct decision decisions[64];
    int64_t keys[64];
    int status[64];
    for (int i = 0; i < 64; i++) {
        decisions[i] = (struct decision){TIERCE__META_PUT, 1, false, 0};
        keys[i] = i;
    }
    struct script script = {.decisions = decisions};
    write_result = -EIO;
    ck_assert_int_eq(run(&script, keys, 64, false, status), -EIO);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(status[i], -EIO);
    ck_assert_uint_eq(writes, 1); /* it is not asked again and again */
    write_result = 0;
    ck_assert_int_eq(version_of(1), -1);
    ck_assert_int_eq(run(&script, keys, 64, false, status), 0);
    ck_assert_int_eq(version_of(1), 1);
}
END_TEST

START_TEST(a_write_in_doubt_is_counted_as_it_went)
{
    struct tierce__meta_index_stats stats;
    ck_assert_int_eq(version_of(1), -1);
    write_result = TIERCE_E_DEADLINE;
    write_happens = true;
    ck_assert_int_eq(put(1, 1), TIERCE_E_DEADLINE);
    write_result = 0;
    /* The cache is emptied, and nothing is cached for a while. */
    ck_assert_int_eq(version_of(1), 1);
    reads = 0;
    ck_assert_int_eq(version_of(1), 1);
    ck_assert_uint_eq(reads, 1);
    ck_assert_int_eq(put(2, 1), 0);
    tierce__meta_index_stats(lookup, &stats);
    ck_assert_uint_eq(stats.keys, 2);
}
END_TEST

/* ---- prefixes ------------------------------------------------------------------------------- */

static bool serves(void *arg, const struct tierce__record *record)
{
    (void)arg;
    return record->locations[0].places[0].slot != 13;
}

START_TEST(a_prefix_ends_at_the_first_gap)
{
    static int64_t keys[3000];
    static struct tierce__record records[3000];
    static const size_t gaps[] = {0, 1, 31, 32, 33, 500, 2999};
    for (int64_t i = 0; i < 3000; i++) {
        keys[i] = i;
        ck_assert_int_eq(put(i, 1), 0);
    }
    ck_assert_int_eq(tierce__meta_index_prefix(lookup, keys, 3000, serves, NULL, &arena, records),
                     3000);
    ck_assert_uint_eq(records[2999].locations[0].places[0].file, (2999 * 31 + 1) % 1000000007 + 1);
    for (int i = 0; i < 7; i++) {
        keys[gaps[i]] = -1;
        ck_assert_int_eq(
            tierce__meta_index_prefix(lookup, keys, 3000, serves, NULL, &arena, records), gaps[i]);
        keys[gaps[i]] = (int64_t)gaps[i];
        ck_assert_int_eq(put((int64_t)gaps[i], 13), 0);
        reads = 0;
        ck_assert_int_eq(
            tierce__meta_index_prefix(lookup, keys, 3000, serves, NULL, &arena, records), gaps[i]);
        ck_assert_int_eq(put((int64_t)gaps[i], 1), 0);
    }
    ck_assert_int_eq(tierce__meta_index_prefix(lookup, keys, 0, serves, NULL, &arena, records), 0);
}
END_TEST

/* Bytes of this process in memory. */
static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    size_t all, resident;
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%zu %zu", &all, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void store_many(struct tierce__meta_space *into, int64_t count)
{
    for (int64_t key = 0; key < count;) {
        struct tierce__meta_put puts[64];
        struct tierce__meta_batch batch = {.puts = puts};
        for (; batch.put_count < 64 && key < count; batch.put_count++, key++)
            puts[batch.put_count] =
                (struct tierce__meta_put){key, *test_record(&made[batch.put_count], key, 1)};
        ck_assert_int_eq(tierce__meta_memory.write(into, &batch), 0);
    }
}

START_TEST(a_closed_store_in_memory_gives_it_back)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return; /* their allocators keep what is freed */
#endif
    struct tierce__meta_store *other;
    struct tierce__meta_space *into;
    char why[256];
    size_t before = resident_bytes();
    ck_assert_int_eq(tierce__meta_memory.open(&other, "", why), 0);
    ck_assert_int_eq(tierce__meta_memory.space_open(&into, other, 1, "i"), 0);
    store_many(into, 100000);
    void *last = tierce__alloc(64); /* the end of the heap stays in use */
    size_t full = resident_bytes();
    ck_assert_uint_gt(full, before + 100000 * 50);
    tierce__meta_memory.close(other);
    ck_assert_uint_lt(resident_bytes(), before + (full - before) / 4);
    tierce__free(last);
}
END_TEST

CHECK_MAIN("meta_index", .setup = setup, .teardown = teardown,
           .tests = {puts_deletes_and_counts, the_same_key_twice, nothing_is_written_for_nothing,
                     steps_are_of_whole_shards, no_key_beyond_the_limit, shards_are_a_power_of_two,
                     parents_count_their_children, the_last_child_is_named, a_chain_in_one_call,
                     a_count_that_changes_meanwhile_is_kept, what_was_read_is_kept,
                     a_read_does_not_outlive_a_write, the_cache_stays_below_its_bytes,
                     a_failed_write_is_told, a_write_in_doubt_is_counted_as_it_went,
                     a_prefix_ends_at_the_first_gap, a_closed_store_in_memory_gives_it_back})
