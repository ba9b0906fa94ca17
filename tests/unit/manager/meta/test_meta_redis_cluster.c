/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "check_main.h"
#include "manager/meta/meta_index.h"
#include "manager/meta/redis/meta_redis_private.h"
#include "meta_records.h"
#include "redis_cluster.h"
#include "wait_for.h"
#include "net/redis/resp_cluster.h"
#include "silent_log.h"

#include <errno.h>
#include <inttypes.h>
#include <xxhash.h>

/* The Redis store at a real cluster: nodes that go, writes that come late, leaders that slept. */

#define INSTANCE "i"
#define DATA     "kvcache:instance_" INSTANCE ":cache_"
#define META     "kvcache:instance_" INSTANCE ":metadata"

static struct redis_cluster cluster;
static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__arena arena;
static char why[256], answer[65536];
static uint64_t live;
static unsigned timeout_ms;

static void open_store(struct tierce__meta_store **to, struct tierce__meta_space **space_to)
{
    char uri[320];
    snprintf(uri, sizeof(uri), "%s?timeout_ms=%u", cluster.uri, timeout_ms);
    int rc = tierce__meta_redis.open(to, uri, why);
    ck_assert_msg(rc == 0, "%d %s", rc, why);
    ck_assert_int_eq((*to)->ops->space_open(space_to, *to, 1, INSTANCE), 0);
}

static void close_store(struct tierce__meta_store *from, struct tierce__meta_space *space_from)
{
    space_from->ops->space_close(space_from);
    from->ops->close(from);
}

static void setup_with(unsigned limit_ms)
{
    timeout_ms = limit_ms;
    live = tierce__alloc_live();
    silence_log();
    ck_assert(redis_cluster_flush(&cluster));
    open_store(&store, &space);
}

static void setup(void)
{
    setup_with(20000);
}

/* For tests that wait until a node that was stopped is given up. */
static void setup_hasty(void)
{
    setup_with(2000);
}

static void teardown(void)
{
    close_store(store, space);
    tierce__arena_clear(&arena);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int node_of(const char *key)
{
    return (int)(tierce__resp_slot(key, strlen(key)) * (unsigned)cluster.masters / 16384);
}

static int node_of_record(int64_t key)
{
    char name[64];
    snprintf(name, sizeof(name), DATA "%" PRId64, key);
    return node_of(name);
}

/* The n-th key from 1 on whose record lies on a node. */
static int64_t key_on(int node, int n)
{
    int64_t key = 0;
    while (n > 0)
        n -= node_of_record(++key) == node;
    return key;
}

static int put_in(struct tierce__meta_space *where, int64_t key, uint32_t version)
{
    struct test_record record;
    struct tierce__meta_put put = {key, *test_record(&record, key, version)};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    batch.added[TIERCE__META_KEYS] = 1;
    return where->ops->write(where, &batch);
}

static int delete_in(struct tierce__meta_space *where, int64_t key)
{
    struct tierce__meta_batch batch = {.deletes = &key, .delete_count = 1};
    batch.added[TIERCE__META_KEYS] = -1;
    return where->ops->write(where, &batch);
}

static int get_in(struct tierce__meta_space *where, int64_t key, bool *found)
{
    struct tierce__record record;
    tierce__arena_reset(&arena);
    return where->ops->get(where, &key, 1, &arena, &record, found);
}

static void check(struct tierce__meta_space *where, int64_t key, uint32_t version)
{
    struct tierce__record record;
    bool found = false;
    tierce__arena_reset(&arena);
    int rc = where->ops->get(where, &key, 1, &arena, &record, &found);
    ck_assert_msg(rc == 0 && found, "%" PRId64 ": %d", key, rc);
    test_record_check(&record, key, version);
}

static void check_none(struct tierce__meta_space *where, int64_t key)
{
    bool found = true;
    ck_assert_int_eq(get_in(where, key, &found), 0);
    ck_assert(!found);
}

static int64_t keys_counted(struct tierce__meta_space *where)
{
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(where->ops->counters(where, counters), 0);
    return counters[TIERCE__META_KEYS];
}

/* Comes back as it was when it was stopped, or, once killed, empty. */
static void stop_node(int node)
{
    kill(cluster.nodes[node].pid, SIGSTOP);
}

static void go_on(int node)
{
    kill(cluster.nodes[node].pid, SIGCONT);
    bool found;
    WAIT_WITHIN(10000, get_in(space, key_on(node, 1), &found) == 0);
}

static const char *tell(int node, const char *command)
{
    ck_assert_msg(redis_tell(cluster.nodes[node].port, answer, sizeof(answer), "%s", command),
                  "%s: %s", command, answer);
    return answer;
}

/* ---- nodes that go -------------------------------------------------------------------------- */

/* Committed at home, and the node of the record does not answer. */
START_TEST(what_is_committed_is_written)
{
    int home = node_of(META), away = (home + 1) % 3;
    int64_t key = key_on(away, 1), other = key_on(home, 1);
    ck_assert_int_eq(put_in(space, key, 1), 0);
    stop_node(away);
    ck_assert_int_eq(put_in(space, key, 2), 0);
    bool found;
    ck_assert_int_lt(get_in(space, key, &found), 0);
    ck_assert_int_lt(get_in(space, other, &found), 0); /* nothing, until that is settled */
    ck_assert_int_lt(put_in(space, other, 1), 0);
    go_on(away);
    check(space, key, 2);
    check_none(space, other);
    ck_assert_int_eq(delete_in(space, key), 0);
    check_none(space, key);
    ck_assert_int_eq(keys_counted(space), 1); /* twice put, once deleted */
}
END_TEST

/* The same, and the process dies before it can write the record. */
START_TEST(another_process_writes_it)
{
    int away = (node_of(META) + 1) % 3;
    int64_t key = key_on(away, 1);
    stop_node(away);
    ck_assert_int_eq(put_in(space, key, 1), 0);
    space->ops->space_close(space);
    kill(cluster.nodes[away].pid, SIGCONT);
    server_pause_ms(1);
    int rc = -1;
    for (int i = 0; i < 2000 && rc != 0; i++) {
        rc = store->ops->space_open(&space, store, 1, INSTANCE);
        server_pause_ms(5);
    }
    ck_assert_int_eq(rc, 0);
    check(space, key, 1);
    ck_assert_int_eq(keys_counted(space), 1);
    ck_assert_int_eq(put_in(space, key_on(away, 2), 1), 0);
}
END_TEST

/* Home does not answer: the outcome is unknown until it is queried again. Then it is one or the
 * other. */
START_TEST(what_is_in_doubt_is_known_later)
{
    int home = node_of(META);
    int64_t key = key_on((home + 1) % 3, 1);
    stop_node(home);
    ck_assert_int_lt(put_in(space, key, 1), 0);
    ck_assert_int_lt(put_in(space, key, 2), 0); /* is not even sent */
    go_on(home);
    bool found = false;
    ck_assert_int_eq(get_in(space, key, &found), 0);
    ck_assert_int_eq(keys_counted(space), found);
    for (uint32_t version = 3; version < 10; version++) {
        ck_assert_int_eq(put_in(space, key, version), 0);
        check(space, key, version);
    }
}
END_TEST

START_TEST(a_home_that_forgot)
{
    enum { KEYS = 300 };
    int home = node_of(META);
    for (int64_t key = 1; key <= KEYS; key++)
        ck_assert_int_eq(put_in(space, key, 1), 0);
    tell(home, "FLUSHALL");
    int64_t left = 0;
    for (int64_t key = 1; key <= KEYS; key++)
        left += node_of_record(key) != home;
    int64_t fresh = KEYS + 1;
    ck_assert_int_eq(put_in(space, fresh, 1), 0);
    ck_assert_int_eq(keys_counted(space), left + 1);
    int64_t keys[KEYS];
    uint64_t cursor = 0;
    size_t count;
    ck_assert_int_eq(space->ops->scan(space, &cursor, KEYS, keys, &count), 0);
    ck_assert_uint_eq(count, (size_t)left + 1);
    for (size_t i = 0; i < count; i++)
        check(space, keys[i], 1);
}
END_TEST

/* ---- what comes late ------------------------------------------------------------------------ */

START_TEST(two_that_know_nothing_of_each_other)
{
    struct tierce__meta_store *other;
    struct tierce__meta_space *other_space;
    open_store(&other, &other_space);
    for (int64_t key = 0; key < 20; key++)
        ck_assert_int_eq(put_in(key % 2 == 0 ? space : other_space, key, 1), 0);
    for (int64_t key = 0; key < 20; key++) {
        check(space, key, 1);
        check(other_space, key, 1);
    }
    ck_assert_int_eq(keys_counted(space), 20);
    close_store(other, other_space);
}
END_TEST

/* A record that was sent in an era that is over, and arrives now. */
static const char *send_late(int64_t key, const char *era)
{
    const struct tierce__redis *redis = (const struct tierce__redis *)store;
    char name[64];
    snprintf(name, sizeof(name), DATA "%" PRId64, key);
    (void)redis_tell(cluster.nodes[node_of(name)].port, answer, sizeof(answer),
                     "EVALSHA %s 2 %s kvcache:tierce:{%u}:instance_" INSTANCE
                     ":guard %s 0 form {} 1 1 \"\"",
                     redis->scripts[TIERCE__REDIS_REDO].sha, name,
                     (unsigned)tierce__resp_slot_tag(tierce__resp_slot(name, strlen(name))), era);
    return answer;
}

START_TEST(a_record_that_comes_late)
{
    int away = (node_of(META) + 1) % 3;
    int64_t key = key_on(away, 1);
    struct tierce__redis_ledger *ledger = &((struct tierce__redis_space *)space)->ledger;
    char era[TIERCE__REDIS_TOKEN_BYTES + 1];
    memcpy(era, ledger->era, sizeof(era));
    stop_node(away);
    ck_assert_int_eq(put_in(space, key, 1), 0);
    go_on(away);
    check(space, key, 1);
    ck_assert_int_eq(delete_in(space, key), 0);
    ck_assert(strstr(send_late(key, era), "STALE") != NULL);
    check_none(space, key);
    ck_assert_str_gt(ledger->era, era);
    ck_assert_int_eq(send_late(key, ledger->era)[0], ':');
    ck_assert_int_eq(delete_in(space, key), 0);
}
END_TEST

/* A batch that was sent in an era that is over: it counts a hundred keys. */
START_TEST(a_commit_that_comes_late)
{
    const struct tierce__redis *redis = (const struct tierce__redis *)store;
    const struct tierce__redis_space *mine = (const struct tierce__redis_space *)space;
    unsigned tag = tierce__resp_slot_tag(tierce__resp_slot(META, strlen(META)));
    char era[TIERCE__REDIS_TOKEN_BYTES + 1], keys[512];
    memcpy(era, mine->ledger.era, sizeof(era));
    size_t at =
        (size_t)snprintf(keys, sizeof(keys), META " %s %s", mine->keys->keys, mine->keys->journal);
    for (unsigned kind = 1; kind < TIERCE__NOTE_KINDS; kind++)
        at += (size_t)snprintf(keys + at, sizeof(keys) - at,
                               " kvcache:tierce:{%u}:instance_" INSTANCE ":notes:%u", tag, kind);
    for (int round = 0; round < 2; round++) {
        bool is_late = round == 0;
        if (is_late) {
            tierce__redis_forget((struct tierce__redis_space *)space);
            ck_assert_int_eq(keys_counted(space), 0);
        }
        (void)redis_tell(cluster.nodes[node_of(META)].port, answer, sizeof(answer),
                         "EVALSHA %s 10 %s \"\" %s \"\" 0 0 0 0 1 0 100",
                         redis->scripts[TIERCE__REDIS_COMMIT].sha, keys,
                         is_late ? era : mine->ledger.era);
        ck_assert_int_eq(strstr(answer, "STALE") != NULL, is_late);
        ck_assert_int_eq(keys_counted(space), is_late ? 0 : 100);
    }
}
END_TEST

/* Clocks go back: the next era is above every guard. */
START_TEST(a_guard_of_the_future)
{
    char command[160];
    int64_t key = 5;
    snprintf(command, sizeof(command),
             "SET kvcache:tierce:{%u}:instance_" INSTANCE ":guard 00009000000000000000",
             (unsigned)tierce__resp_slot_tag(tierce__resp_slot(DATA "5", strlen(DATA "5"))));
    tell(node_of_record(key), command);
    ck_assert_int_eq(put_in(space, key, 1), 0);
    check(space, key, 1);
    ck_assert_int_eq(delete_in(space, key), 0);
    check_none(space, key);
}
END_TEST

START_TEST(an_older_leader_is_refused)
{
    struct tierce__meta_store *other;
    struct tierce__meta_space *other_space;
    ck_assert_int_eq(store->ops->fence(store, 9), 0);
    ck_assert_int_eq(put_in(space, 1, 1), 0);
    open_store(&other, &other_space);
    ck_assert_int_eq(other->ops->fence(other, 10), 0);
    ck_assert_int_eq(put_in(other_space, 2, 1), 0);
    ck_assert_int_eq(put_in(space, 3, 1), TIERCE_E_REFUSED);
    ck_assert_int_eq(space->ops->space_drop(space), TIERCE_E_REFUSED);
    check_none(other_space, 3);
    check(other_space, 1, 1);
    ck_assert_int_eq(store->ops->fence(store, 9), TIERCE_E_REFUSED);
    /* A space that was dropped has no fence of its own; the store has. */
    ck_assert_int_eq(other_space->ops->space_drop(other_space), 0);
    ck_assert_int_eq(put_in(space, 4, 1), TIERCE_E_REFUSED);
    ck_assert_int_eq(store->ops->fence(store, 11), 0);
    ck_assert_int_eq(put_in(space, 3, 2), 0);
    ck_assert_int_eq(put_in(other_space, 4, 1), TIERCE_E_REFUSED);
    close_store(other, other_space);
}
END_TEST

/* ---- KVCM ------------------------------------------------------------------------------------ */

START_TEST(scripts_and_slots)
{
    for (int node = 0; node < 3; node++)
        tell(node, "SCRIPT FLUSH");
    for (int64_t key = 1; key <= 50; key++)
        ck_assert_int_eq(put_in(space, key, 1), 0);
    for (int64_t key = 1; key <= 50; key++)
        check(space, key, 1);
    int64_t keys[] = {1, 99};
    space->ops->touch(space, keys, 2, &(struct tierce__record_use){1900000000000000, 1, 0});
    close_store(store, space);
    open_store(&store, &space);
    struct tierce__record record;
    bool found = false;
    ck_assert_int_eq(space->ops->get(space, keys, 1, &arena, &record, &found), 0);
    ck_assert_int_eq(record.used_us, 1900000000000000);
    check_none(space, 99);
    /* A space of one server's layout is not a cluster's. */
    char command[160];
    snprintf(command, sizeof(command), "HSET kvcache:instance_x:metadata tierce:version 1");
    tell(node_of("kvcache:instance_x:metadata"), command);
    struct tierce__meta_space *none = NULL;
    ck_assert_int_eq(store->ops->space_open(&none, store, 2, "x"), TIERCE_E_VERSION);
}
END_TEST

/* ---- the journal's bytes -------------------------------------------------------------------- */

START_TEST(entries_are_parsed_or_refused)
{
    struct test_record one;
    struct tierce__meta_put put = {-7, *test_record(&one, -7, 3)};
    int64_t gone[] = {5, INT64_MIN};
    struct tierce__meta_batch batch = {
        .puts = &put, .put_count = 1, .deletes = gone, .delete_count = 2};
    struct tierce__redis_redo redo, back;
    const char *text;
    size_t bytes;
    ck_assert_int_eq(
        tierce__redis_redo_make(&redo, (struct tierce__redis_space *)space, &batch, &arena), 0);
    ck_assert_int_eq(tierce__redis_redo_print(&redo, &arena, &text, &bytes), 0);
    ck_assert_int_eq(tierce__redis_redo_parse(&back, &arena, text, bytes), 0);
    ck_assert_uint_eq(back.put_count, 1);
    ck_assert_uint_eq(back.count, 3);
    ck_assert_int_eq(back.keys[0], -7);
    ck_assert_int_eq(back.keys[2], INT64_MIN);
    for (size_t f = 0; f < TIERCE__REDIS_PUT_FIELDS; f++) {
        ck_assert_uint_eq(back.bytes[f], redo.bytes[f]);
        ck_assert_mem_eq(back.texts[f], redo.texts[f], redo.bytes[f]);
    }
    for (size_t n = 0; n < bytes; n++)
        ck_assert_int_eq(tierce__redis_redo_parse(&back, &arena, text, n), TIERCE_E_FORMAT);
    char *bad = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(bad, text, bytes);
        bad[i] ^= 1;
        ck_assert_int_eq(tierce__redis_redo_parse(&back, &arena, bad, bytes), TIERCE_E_FORMAT);
    }
    /* The same with the sum that belongs to it: no length is believed. */
    for (size_t n = 16; n < bytes; n++) {
        memcpy(bad, text, n);
        tierce__store_le64(bad, XXH3_64bits(bad + 8, n - 8));
        ck_assert_int_eq(tierce__redis_redo_parse(&back, &arena, bad, n), TIERCE_E_FORMAT);
    }
    static const uint32_t numbers[] = {0, 2, 1000, INT32_MAX, UINT32_MAX};
    static const size_t fields[] = {8, 12, 24}; /* puts, deletes, the first length */
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < 5; i++) {
            memcpy(bad, text, bytes);
            if (tierce__load_le32(bad + fields[f]) == numbers[i])
                continue;
            tierce__store_le32(bad + fields[f], numbers[i]);
            tierce__store_le64(bad, XXH3_64bits(bad + 8, bytes - 8));
            ck_assert_int_eq(tierce__redis_redo_parse(&back, &arena, bad, bytes), TIERCE_E_FORMAT);
        }
    free(bad);
}
END_TEST

/* Its records are where they were before the batch; the counts follow them. */
START_TEST(a_damaged_entry)
{
    char command[200];
    ck_assert_int_eq(put_in(space, 1, 1), 0);
    ck_assert_int_eq(put_in(space, 2, 1), 0);
    snprintf(command, sizeof(command),
             "HSET kvcache:tierce:{%u}:instance_" INSTANCE ":journal 77 damaged",
             (unsigned)tierce__resp_slot_tag(tierce__resp_slot(META, strlen(META))));
    tell(node_of(META), command);
    tell(node_of(META), "HINCRBY " META " tierce:0 5");
    close_store(store, space);
    open_store(&store, &space);
    ck_assert_int_eq(keys_counted(space), 2);
    check(space, 1, 1);
}
END_TEST

/* The tests that wait until a node is given up: one of them waits as long as the others together.
 */
static void add_hasty(Suite *suite, bool is_longest)
{
    TCase *tcase = tcase_create("nodes that go");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup_hasty, teardown);
    if (is_longest) {
        tcase_add_test(tcase, what_is_committed_is_written);
    } else {
        tcase_add_test(tcase, another_process_writes_it);
        tcase_add_test(tcase, what_is_in_doubt_is_known_later);
        tcase_add_test(tcase, a_record_that_comes_late);
    }
    suite_add_tcase(suite, tcase);
}

static void add_patient(Suite *suite)
{
    TCase *tcase = tcase_create("meta_redis_cluster");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_home_that_forgot);
    tcase_add_test(tcase, two_that_know_nothing_of_each_other);
    tcase_add_test(tcase, a_commit_that_comes_late);
    tcase_add_test(tcase, a_guard_of_the_future);
    tcase_add_test(tcase, an_older_leader_is_refused);
    tcase_add_test(tcase, scripts_and_slots);
    tcase_add_test(tcase, entries_are_parsed_or_refused);
    tcase_add_test(tcase, a_damaged_entry);
    suite_add_tcase(suite, tcase);
}

/* One cluster for all tests of a part: it takes seconds to be made. */
static int run_part(size_t part)
{
    if (!redis_cluster_start(&cluster, 3, 0, 60000)) {
        redis_cluster_stop(&cluster);
        return EXIT_FAILURE;
    }
    Suite *suite = suite_create("meta_redis_cluster");
    if (part == 2)
        add_patient(suite);
    else
        add_hasty(suite, part == 0);
    int failed = check_main(suite);
    redis_cluster_stop(&cluster);
    return failed;
}

int main(void)
{
    const char *ci = getenv("CI");
    if (!redis_is_there() && (ci == NULL || strcmp(ci, "true") != 0))
        return 77;
    return check_at_once(run_part, 3) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
