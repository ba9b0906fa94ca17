/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small values in pages: against a model, with room and without, under threads, beside chunks that
 * want the same memory, and with damaged bytes. TIERCE_TEST_SCALE above 1: more rounds in more
 * memory.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/observe/operate.h"
#include "engine/objects/smalls.h"
#include "object_fixture.h"
#include "test_random.h"

#include "engine/objects/smalls_private.h"

#define NAMES 4000u

static struct fixture fx;
static struct tierce__smalls *smalls;

static void open_with(const char *memory)
{
    fx_open(&fx, false, (const char *const[]){"memory.size", memory, NULL});
    smalls = fx.engine->smalls;
}

static void end(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__key key_of(uint32_t n, uint32_t ns)
{
    struct tierce__key key = {.ns = ns, .shard = {0, 1, 0, 1}};
    memcpy(key.hash, &n, sizeof(n));
    return key;
}

/* Name, note and bytes follow from a number and a version. */
struct made {
    char name[1100];
    uint64_t note;
    uint8_t value[TIERCE__SMALL_VALUE_MAX];
    struct tierce__object_what what;
};

static void make(struct made *m, uint32_t n, uint64_t version, uint32_t bytes)
{
    m->note = version;
    m->what = (struct tierce__object_what){
        .name = m->name,
        .name_bytes = (size_t)snprintf(m->name, sizeof(m->name), "name-%u", n),
        .note = &m->note,
        .note_bytes = sizeof(m->note),
        .value_bytes = bytes};
    ox_fill(m->value, bytes, version);
}

static int put(uint32_t n, uint32_t ns, uint64_t version, uint32_t bytes)
{
    static _Thread_local struct made m;
    struct tierce__key key = key_of(n, ns);
    make(&m, n, version, bytes);
    return tierce__smalls_put(smalls, &key, &m.what, m.value, false);
}

/* The version that is there, which is whole; 0: none. */
static uint64_t get(uint32_t n, uint32_t ns, uint64_t *bytes)
{
    struct tierce__key key = key_of(n, ns);
    struct tierce__small copy;
    char name[32];
    void *memory;
    uint64_t version;
    size_t name_bytes = (size_t)snprintf(name, sizeof(name), "name-%u", n);
    int rc = tierce__smalls_get(smalls, &memory, &copy, 16, &key, name, name_bytes);
    if (rc < 0) {
        ck_assert_int_eq(rc, TIERCE_E_MISS);
        return 0;
    }
    ck_assert_uint_eq(copy.what.name_bytes, name_bytes);
    ck_assert_mem_eq(copy.what.name, name, name_bytes);
    ck_assert_uint_eq(copy.what.note_bytes, sizeof(version));
    memcpy(&version, copy.what.note, sizeof(version));
    ck_assert(ox_is(copy.value, copy.what.value_bytes, version));
    if (bytes != NULL)
        *bytes = copy.what.value_bytes;
    tierce__free(memory);
    return version;
}

static uint32_t draw_bytes(struct test_random *random)
{
    static const uint32_t most[] = {1, 100, 2000, 20000, TIERCE__SMALL_VALUE_MAX + 1};
    return (uint32_t)test_random_below(random, most[test_random_below(random, 5)]);
}

/* ---- a model, and room for all of it --------------------------------------------------------- */

static struct {
    uint64_t version, bytes;
} model[2][NAMES];

static void step_model(struct test_random *random, uint64_t version)
{
    uint32_t n = (uint32_t)test_random_below(random, NAMES), ns = 1 + (version % 7 == 0);
    uint64_t bytes = 0, what = test_random_below(random, 10);
    struct tierce__key key = key_of(n, ns);
    if (what < 5) {
        uint32_t size = draw_bytes(random);
        ck_assert_int_eq(put(n, ns, version, size), 0);
        model[ns - 1][n].version = version;
        model[ns - 1][n].bytes = size;
    } else if (what < 8) {
        ck_assert_uint_eq(get(n, ns, &bytes), model[ns - 1][n].version);
        ck_assert_uint_eq(bytes, model[ns - 1][n].version != 0 ? model[ns - 1][n].bytes : 0);
    } else {
        ck_assert(tierce__smalls_has(smalls, &key, NULL) == (model[ns - 1][n].version != 0));
        ck_assert(tierce__smalls_remove(smalls, &key) == (model[ns - 1][n].version != 0));
        model[ns - 1][n].version = 0;
    }
}

static void mark_told(void *arg, const struct tierce__object_what *what,
                      struct tierce__small_coming coming)
{
    ck_assert_uint_eq(coming.since, atomic_load(&fx.engine->object_walks) + 1);
    ck_assert(!coming.is_promoted);
    uint8_t *told = arg;
    unsigned n;
    char name[32] = "";
    ck_assert_uint_lt(what->name_bytes, sizeof(name));
    memcpy(name, what->name, what->name_bytes);
    ck_assert_int_eq(sscanf(name, "name-%u", &n), 1);
    told[n]++;
}

static void check_model(uint32_t ns)
{
    static uint8_t told[NAMES];
    struct tierce__key of = key_of(0, ns);
    uint64_t count = 0, cursor = 0;
    memset(told, 0, sizeof(told));
    for (uint32_t n = 0; n < NAMES; n++) {
        ck_assert_uint_eq(get(n, ns, NULL), model[ns - 1][n].version);
        count += model[ns - 1][n].version != 0;
    }
    ck_assert_uint_eq(tierce__smalls_count(smalls, &of), count);
    while (tierce__smalls_scan(smalls, &cursor, &of, mark_told, told))
        ck_assert_uint_lt(cursor, 1ULL << TIERCE__SMALLS_CURSOR_BITS);
    for (uint32_t n = 0; n < NAMES; n++)
        ck_assert_uint_eq(told[n], model[ns - 1][n].version != 0);
}

START_TEST(as_the_model)
{
    struct test_random random = test_random_start("smalls");
    open_with("512MiB");
    memset(model, 0, sizeof(model));
    for (uint64_t version = 1; version < TEST_ROUNDS(8000) * test_scale(); version++)
        step_model(&random, version);
    check_model(1);
    check_model(2);
    struct tierce__key of = key_of(0, 1);
    uint64_t count = tierce__smalls_count(smalls, &of);
    ck_assert_uint_eq(tierce__smalls_clear(smalls, &of), count);
    memset(model[0], 0, sizeof(model[0]));
    check_model(1);
    check_model(2);
    struct tierce__smalls_stats stats;
    (void)tierce__smalls_clear(smalls, NULL);
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_eq(stats.values, 0);
    ck_assert_uint_eq(stats.value_bytes, 0);
    ck_assert_uint_eq(stats.evicted_values, 0);
    /* A class keeps one page for the next. */
    ck_assert_uint_le(stats.pages, smalls->partition_count * smalls->class_count);
    end();
}
END_TEST

START_TEST(the_same_value)
{
    static struct made m;
    struct tierce__key key = key_of(1, 1);
    open_with("64MiB");
    make(&m, 1, 5, 1000);
    ck_assert(!tierce__smalls_same(smalls, &key, &m.what, m.value));
    ck_assert_int_eq(tierce__smalls_put(smalls, &key, &m.what, m.value, false), 0);
    ck_assert(tierce__smalls_same(smalls, &key, &m.what, m.value));
    m.what.expires_ms = UINT64_MAX;
    ck_assert(!tierce__smalls_same(smalls, &key, &m.what, m.value));
    m.what.expires_ms = 0;
    m.value[999] ^= 1;
    ck_assert(!tierce__smalls_same(smalls, &key, &m.what, m.value));
    end();
}
END_TEST

/* ---- little room ----------------------------------------------------------------------------- */

static const struct {
    const char *memory;
    uint32_t bytes;
    double least; /* of memory.size that is payload */
    const char *memory_at_scale;
} shares[] = {{"32MiB", 1024, 0.80, "64MiB"},  {"128MiB", 2000, 0.80, "256MiB"},
              {"32MiB", 64, 0.45, "64MiB"},    {"64MiB", 4096, 0.80, "64MiB"},
              {"64MiB", 30000, 0.75, "64MiB"}, {"64MiB", 65536, 0.70, "64MiB"},
              {"2MiB", 1000, 0.70, "2MiB"}};

/* Values that fill memory and a third more; at scale twice what they would fill without overhead.
 */
static uint32_t values_for(uint64_t memory_bytes, uint32_t value_bytes, double least)
{
    double share = test_scale() > 1 ? 2 : 1.35 * least;
    return (uint32_t)(share * (double)memory_bytes / value_bytes);
}

/* Nothing is rejected, what is newest is there, and most of memory is payload. */
START_TEST(most_of_memory_is_payload)
{
    open_with(test_scale() > 1 ? shares[_i].memory_at_scale : shares[_i].memory);
    struct tierce__pool_stats pool;
    struct tierce__smalls_stats stats;
    tierce__pool_stats(fx.engine->pool, &pool);
    uint32_t count = values_for(pool.cap_bytes, shares[_i].bytes, shares[_i].least);
    for (uint32_t n = 1; n <= count; n++)
        ck_assert_int_eq(put(n, 1, n, shares[_i].bytes), 0);
    tierce__smalls_stats(smalls, &stats);
    tierce__pool_stats(fx.engine->pool, &pool);
    ck_assert_uint_le(pool.used_bytes, pool.cap_bytes);
    ck_assert_uint_eq(stats.value_bytes, stats.values * shares[_i].bytes);
    ck_assert_uint_eq(stats.evicted_values, count - stats.values);
    ck_assert_uint_gt(stats.evicted_values, 0);
    ck_assert_msg((double)stats.value_bytes >= shares[_i].least * (double)pool.cap_bytes,
                  "%.3f of memory is payload", (double)stats.value_bytes / (double)pool.cap_bytes);
    uint32_t found = 0, recent = (uint32_t)(stats.values / 4);
    for (uint32_t n = count - recent; n < count; n++)
        found += get(n + 1, 1, NULL) == n + 1;
    ck_assert_uint_ge(found, recent * 9 / 10);
    end();
}
END_TEST

/* Values that are used again and again stay while others are evicted. */
START_TEST(used_values_stay)
{
    enum { HOT = 1000 };
    unsigned count = TEST_ROUNDS(75000) * test_scale();
    open_with("16MiB");
    for (uint32_t n = 0; n < HOT; n++)
        ck_assert_int_eq(put(n, 1, n + 1, 1000), 0);
    uint32_t found = 0, asked = 0;
    for (uint32_t n = HOT; n < count; n++) {
        ck_assert_int_eq(put(n, 1, n + 1, 1000), 0);
        uint32_t hot = n % HOT;
        found += get(hot, 1, NULL) == hot + 1;
        asked++;
    }
    ck_assert_msg(found > asked / 10 * 9, "%u of %u", found, asked);
    end();
}
END_TEST

/* Values of one size give way to those of another, and to what needs buffers of its own. */
START_TEST(sizes_change)
{
    struct tierce__smalls_stats stats;
    open_with("64MiB");
    for (uint32_t n = 0; n < 100000; n++)
        ck_assert_int_eq(put(n, 1, n + 1, 1000), 0);
    for (uint32_t n = 0; n < 20000; n++)
        ck_assert_int_eq(put(100000 + n, 1, n + 1, 9000), 0);
    uint32_t found = 0;
    for (uint32_t n = 16000; n < 20000; n++)
        found += get(100000 + n, 1, NULL) == n + 1;
    ck_assert_uint_ge(found, 3500);
    struct tierce__buf *large = tierce__storage_alloc(fx.engine, 60 << 20);
    ck_assert_ptr_nonnull(large);
    ck_assert_int_eq(put(1, 1, 77, 100), 0);
    ck_assert_uint_eq(get(1, 1, NULL), 77);
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_le(stats.page_bytes, 4 << 20);
    tierce__buf_release(large);
    end();
}
END_TEST

/* ---- a page that is being added -------------------------------------------------------------- */

/* A tier in front of the memory tier, with an action before the next PUT. */
static struct tierce__tier *behind;
static void (*before_put)(void);

static void hook_submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    void (*action)(void) = before_put;
    (void)tier;
    if (req->op == TIERCE__STORE_PUT && action != NULL) {
        before_put = NULL;
        action();
    }
    behind->ops->submit(behind, req);
}

static struct tierce__buf *hook_reserve(struct tierce__tier *tier,
                                        const struct tierce__reserve *what)
{
    (void)tier;
    return behind->ops->reserve(behind, what);
}

static void hook_touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    (void)tier;
    behind->ops->touch(behind, uses);
}

static const struct tierce__tier_ops hook_ops = {
    .submit = hook_submit, .reserve = hook_reserve, .touch = hook_touch};
static struct tierce__tier hook = {.ops = &hook_ops};

enum { OTHER = 100000 };

static bool remove_value(uint32_t n)
{
    struct tierce__key key = key_of(n, 1);
    return tierce__smalls_remove(smalls, &key);
}

static struct made visitor;

/* The second page gets a value and loses it, while the first page has a free slot. */
static void fill_and_empty(void)
{
    struct tierce__key key = key_of(OTHER, 1);
    ck_assert_int_eq(tierce__smalls_put(smalls, &key, &visitor.what, visitor.value, false), 0);
    ck_assert(remove_value(0));
    ck_assert(remove_value(OTHER));
}

/* A page that becomes empty before the memory tier has it is freed. */
START_TEST(an_unpublished_page_becomes_empty)
{
    struct tierce__smalls_stats stats;
    open_with("16MiB");
    make(&visitor, OTHER, 1, 1000);
    uint32_t size_class = tierce__small_class_of(smalls, tierce__small_record_bytes(&visitor.what));
    uint32_t slots = smalls->partitions[0].classes[size_class].slots;
    ck_assert_uint_eq(smalls->partition_count, 1);
    for (uint32_t n = 0; n < slots; n++)
        ck_assert_int_eq(put(n, 1, n + 1, 1000), 0);
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_eq(stats.pages, 1);
    behind = smalls->memory;
    smalls->memory = &hook;
    before_put = fill_and_empty;
    ck_assert_int_eq(put(slots, 1, slots + 1, 1000), 0);
    ck_assert_ptr_null(before_put);
    smalls->memory = behind;
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_eq(stats.values, slots);
    ck_assert_uint_eq(stats.pages, 1);
    for (uint32_t n = 1; n <= slots; n++)
        ck_assert_uint_eq(get(n, 1, NULL), n + 1);
    end();
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

/* Each plays so many steps at least, and until the other has disturbed it so often. */
enum { STEPS = TEST_ROUNDS(20000), DISTURBANCES = 48 };
static _Atomic bool is_over;
static _Atomic unsigned disturbances;

/* A thread has names of its own, so it knows what may be there; evictions come from all. */
static void *play(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg;
    struct test_random random = test_random_start("smalls threads");
    random.state += me * 1000003;
    static _Thread_local uint64_t mine[NAMES];
    uint64_t version = 1;
    unsigned steps = STEPS * test_scale(), least = DISTURBANCES * test_scale();
    for (unsigned step = 0; step < steps || atomic_load(&disturbances) < least; step++) {
        uint32_t n = (uint32_t)test_random_below(&random, NAMES / 4) * 4 + me % 4;
        struct tierce__key key = key_of(n, 1);
        uint64_t what = test_random_below(&random, 10), got;
        if (what < 5) {
            mine[n] = ++version;
            int rc = put(n, 1, version, draw_bytes(&random) / 2);
            ck_assert_int_eq(rc, 0);
        } else if (what < 9) {
            got = get(n, 1, NULL);
            ck_assert(got == 0 || got == mine[n]);
        } else {
            (void)tierce__smalls_remove(smalls, &key);
            mine[n] = 0;
            ck_assert_uint_eq(get(n, 1, NULL), 0);
        }
    }
    return NULL;
}

static void ignore(void *arg, const struct tierce__object_what *what,
                   struct tierce__small_coming coming)
{
    (void)arg;
    (void)coming;
    ck_assert_uint_ge(what->name_bytes, 6);
}

/* Reduces memory, clears another namespace and walks over all names. */
static void *disturb(void *arg)
{
    struct tierce__key other = key_of(0, 2), of = key_of(0, 1);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    (void)arg;
    for (uint32_t round = 0; !atomic_load(&is_over); round++) {
        struct tierce__buf *buf = tierce__storage_alloc(fx.engine, (1 + round % 5) << 20);
        uint64_t cursor = 0;
        (void)memory->ops->evict(memory, 1 << 18);
        (void)put(round, 2, round + 1, 300);
        (void)tierce__smalls_clear(smalls, &other);
        while (tierce__smalls_scan(smalls, &cursor, &of, ignore, NULL))
            ;
        if (round % 16 == 0)
            ck_assert_int_ge(
                tierce__engine_clear_silently(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        tierce__buf_release(buf);
        atomic_fetch_add(&disturbances, 1);
    }
    return NULL;
}

START_TEST(threads_with_little_room)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS + 1];
    open_with("16MiB");
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, play, (void *)(uintptr_t)i), 0);
    ck_assert_int_eq(pthread_create(&threads[THREADS], NULL, disturb, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&is_over, true);
    pthread_join(threads[THREADS], NULL);
    struct tierce__smalls_stats stats;
    ck_assert_int_ge(tierce__engine_clear_silently(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_eq(stats.values, 0);
    ck_assert_uint_eq(stats.value_bytes, 0);
    ck_assert_uint_eq(stats.pages, 0);
    ck_assert_uint_eq(stats.page_bytes, 0);
    end();
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

/* The bytes in a page of the value with this name; NULL: none. */
static uint8_t *record_of(const char *name)
{
    for (uint32_t p = 0; p < smalls->partition_count; p++) {
        struct tierce__small_partition *part = &smalls->partitions[p];
        for (uint64_t c = 0; part->table.cells != NULL && c <= part->table.mask; c++) {
            if (part->table.cells[c] == 0)
                continue;
            uint8_t *record = (uint8_t *)tierce__small_at(part, (uint32_t)part->table.cells[c] - 1);
            if (memcmp(record + sizeof(struct tierce__small_record), name, strlen(name)) == 0)
                return record;
        }
    }
    return NULL;
}

/* Every byte of a value that lies in a page, one bit after the other: a miss, and the others are as
 * they were. */
START_TEST(damaged_bytes_are_a_miss)
{
    open_with("64MiB");
    ck_assert_int_eq(put(2, 1, 2, 100), 0);
    size_t record_bytes = sizeof(struct tierce__small_record) + 6 + 8 + 100;
    for (size_t i = 0; i < record_bytes * 8; i++) {
        struct tierce__key key = key_of(1, 1);
        struct tierce__small copy;
        void *memory = NULL;
        ck_assert_int_eq(put(1, 1, i + 1, 100), 0);
        ck_assert_uint_eq(get(1, 1, NULL), i + 1);
        uint8_t *at = record_of("name-1");
        ck_assert_ptr_nonnull(at);
        at[i / 8] ^= (uint8_t)(1 << i % 8);
        int rc = tierce__smalls_get(smalls, &memory, &copy, 16, &key, "name-1", 6);
        ck_assert_msg(rc == TIERCE_E_CHECKSUM || rc == TIERCE_E_MISS, "bit %zu: %d", i, rc);
        at[i / 8] ^= (uint8_t)(1 << i % 8);
        ck_assert_uint_eq(get(2, 1, NULL), 2);
    }
    end();
}
END_TEST

/* What stands before a value stays damaged, as where a client of a node has written over it: a
 * miss, the value can be stored anew, and its page can leave. */
START_TEST(damage_that_stays_does_no_harm)
{
    struct tierce__smalls_stats stats;
    open_with("64MiB");
    for (size_t i = 0; i < sizeof(struct tierce__small_record) * 8; i++) {
        struct tierce__key key = key_of((uint32_t)i, 1);
        struct tierce__small copy;
        char name[32];
        void *memory = NULL;
        snprintf(name, sizeof(name), "name-%zu", i);
        ck_assert_int_eq(put((uint32_t)i, 1, 1, 100), 0);
        uint8_t *at = record_of(name);
        ck_assert_ptr_nonnull(at);
        at[i / 8] ^= (uint8_t)(1 << i % 8);
        int rc = tierce__smalls_get(smalls, &memory, &copy, 16, &key, name, strlen(name));
        ck_assert_msg(rc == TIERCE_E_CHECKSUM || rc == TIERCE_E_MISS, "bit %zu: %d", i, rc);
        if (i % 2 == 0) {
            ck_assert_int_eq(put((uint32_t)i, 1, 2, 100), 0);
            ck_assert_uint_eq(get((uint32_t)i, 1, NULL), 2);
        }
    }
    ck_assert_int_ge(tierce__engine_clear_silently(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    tierce__smalls_stats(smalls, &stats);
    ck_assert_uint_eq(stats.values, 0);
    ck_assert_uint_eq(stats.pages, 0);
    ck_assert_uint_le(stats.value_bytes, sizeof(struct tierce__small_record) * 8 * 100 * 2);
    end();
}
END_TEST

/* The calls of one thread show the thread sanitizer nothing, and take it a minute. */
#ifdef __SANITIZE_THREAD__
enum { WITH_ONE_THREAD = false };
#else
enum { WITH_ONE_THREAD = true };
#endif

int main(void)
{
    Suite *s = suite_create("smalls");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, as_the_model);
    tcase_add_test(t, the_same_value);
    if (WITH_ONE_THREAD) {
        tcase_add_loop_test(t, most_of_memory_is_payload, 0, sizeof(shares) / sizeof(shares[0]));
        tcase_add_test(t, used_values_stay);
        tcase_add_test(t, sizes_change);
    }
    tcase_add_test(t, an_unpublished_page_becomes_empty);
    tcase_add_test(t, damaged_bytes_are_a_miss);
    tcase_add_test(t, damage_that_stays_does_no_harm);
    suite_add_tcase(s, t);
    TCase *threads = tcase_create("threads");
    tcase_set_timeout(threads, 120);
    tcase_add_test(threads, threads_with_little_room);
    suite_add_tcase(s, threads);
    return check_main(s);
}
