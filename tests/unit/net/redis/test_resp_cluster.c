/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "redis_server.h"
#include "net/redis/resp_cluster.h"

/* Against a real cluster of three nodes. */

enum { NODES = 3 };

static struct redis_server servers[NODES];
static struct tierce__resp *clients[NODES]; /* to each node by itself */
static char buses[NODES][8];
static struct tierce__resp_cluster *cluster;
static char why[TIERCE__RESP_WHY_BYTES];
static uint64_t live;

static struct tierce__resp_opts opts_of(int node)
{
    return (struct tierce__resp_opts){.size = sizeof(struct tierce__resp_opts),
                                      .host = "127.0.0.1",
                                      .port = servers[node].port,
                                      .connect_timeout_ms = 10000,
                                      .call_timeout_ms = 20000,
                                      .retry_interval_ms = 1};
}

/* A client that knows one node. */
static int create(struct tierce__resp_cluster **out, const struct tierce__resp_opts *opts)
{
    return tierce__resp_cluster_create(
        out, opts, &(struct tierce__resp_node){.host = opts->host, .port = opts->port}, 1);
}

/* Words with single spaces between. */
static size_t split(const char *words, const char *arguments[16], size_t bytes[16])
{
    size_t count = 0;
    while (*words != '\0') {
        arguments[count] = words;
        bytes[count] = strcspn(words, " ");
        words += bytes[count++];
        words += *words == ' ';
    }
    return count;
}

/* One command to one node. */
static struct tierce__resp_value ask(int node, const char *words)
{
    const char *arguments[16];
    size_t bytes[16];
    struct tierce__resp_value value;
    size_t count = split(words, arguments, bytes);
    int rc = tierce__resp_call(clients[node], arguments, bytes, count, &value, 0);
    ck_assert_msg(rc == 0, "%s: %s", words, tierce__resp_why(clients[node]));
    return value;
}

static void tell(int node, const char *format, const char *a, const char *b)
{
    char words[200];
    snprintf(words, sizeof(words), format, a, b);
    struct tierce__resp_value value = ask(node, words);
    ck_assert_msg(value.type != TIERCE__RESP_ERROR, "%s: %s", words, value.text);
}

static bool start_node(int node)
{
    return redis_run(&servers[node], false,
                     (const char *[]){"--cluster-enabled", "yes", "--cluster-port", buses[node],
                                      "--cluster-require-full-coverage", "no",
                                      "--cluster-node-timeout", "60000", NULL});
}

/* Until every node knows all slots. */
static void wait_for_cluster(void)
{
    for (int node = 0; node < NODES;) {
        struct tierce__resp_value value = ask(node, "CLUSTER INFO");
        if (strstr(value.text, "cluster_slots_ok:16384") != NULL &&
            strstr(value.text, "cluster_state:ok") != NULL)
            node++;
        else
            server_pause_ms(10);
    }
}

static void set_up(void)
{
    static const char *const ranges[] = {"0 5460", "5461 10922", "10923 16383"};
    char port[8];
    live = tierce__alloc_live();
    for (int i = 0; i < NODES; i++) {
        struct tierce__resp_opts opts;
        servers[i] = (struct redis_server){.port = server_free_port()};
        ck_assert(server_folder(servers[i].dir));
        snprintf(buses[i], sizeof(buses[i]), "%u", (unsigned)server_free_port());
        ck_assert(start_node(i));
        opts = opts_of(i);
        ck_assert_int_eq(tierce__resp_open(&clients[i], &opts, why), 0);
        tell(i, "CLUSTER ADDSLOTSRANGE %s%s", ranges[i], "");
        snprintf(port, sizeof(port), "%d", i + 1);
        tell(i, "CLUSTER SET-CONFIG-EPOCH %s%s", port, "");
    }
    for (int i = 1; i < NODES; i++) {
        snprintf(port, sizeof(port), "%u", (unsigned)servers[i].port);
        tell(0, "CLUSTER MEET 127.0.0.1 %s %s", port, buses[i]);
    }
    wait_for_cluster();
    struct tierce__resp_opts opts = opts_of(0);
    ck_assert_int_eq(create(&cluster, &opts), 0);
}

static void tear_down(void)
{
    tierce__resp_cluster_close(cluster);
    for (int i = 0; i < NODES; i++) {
        tierce__resp_close(clients[i]);
        redis_stop(&servers[i]);
    }
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

static void append(const char *words)
{
    const char *arguments[16];
    size_t bytes[16];
    size_t count = split(words, arguments, bytes);
    ck_assert_int_eq(tierce__resp_cluster_append(cluster, 1, arguments, bytes, count), 0);
}

static void run(void)
{
    int rc = tierce__resp_cluster_run(cluster, 0);
    ck_assert_msg(rc == 0, "%s", tierce__resp_cluster_why(cluster));
}

/* A batch of one. */
static const struct tierce__resp_value *call(const char *words)
{
    tierce__resp_cluster_begin(cluster);
    append(words);
    run();
    return tierce__resp_cluster_value(cluster, 0);
}

START_TEST(test_slots)
{
    ck_assert_uint_eq(tierce__resp_slot("123456789", 9), 0x31c3);
    ck_assert_uint_eq(tierce__resp_slot("", 0), 0);
    ck_assert_uint_eq(tierce__resp_slot("foo", 3), 12182);
    ck_assert_uint_eq(tierce__resp_slot("{foo}.x", 7), 12182);
    ck_assert_uint_eq(tierce__resp_slot("a{foo}{bar}", 11), 12182);
    ck_assert_uint_ne(tierce__resp_slot("{}foo", 5), tierce__resp_slot("{}bar", 5));
    ck_assert_uint_ne(tierce__resp_slot("{foo", 4), 12182);
    for (unsigned slot = 0; slot < TIERCE__RESP_SLOTS; slot++) {
        char key[32];
        int bytes = snprintf(key, sizeof(key), "a{%u}b", (unsigned)tierce__resp_slot_tag(slot));
        ck_assert_uint_eq(tierce__resp_slot(key, (size_t)bytes), slot);
    }
}
END_TEST

START_TEST(test_batches)
{
    enum { COUNT = 5000 };
    char words[64];
    tierce__resp_cluster_begin(cluster);
    for (int i = 0; i < COUNT; i++) {
        snprintf(words, sizeof(words), "SET key%d value%d", i, i);
        append(words);
    }
    run();
    tierce__resp_cluster_begin(cluster);
    for (int i = 0; i < COUNT; i++) {
        snprintf(words, sizeof(words), "GET key%d", i);
        append(words);
    }
    run();
    for (int i = 0; i < COUNT; i++) {
        snprintf(words, sizeof(words), "value%d", i);
        ck_assert_str_eq(tierce__resp_cluster_value(cluster, (size_t)i)->text, words);
    }
    /* On every node there are some, and together all. */
    int64_t keys = 0;
    for (size_t i = 0; i < NODES; i++) {
        struct tierce__resp *node;
        struct tierce__resp_value value;
        ck_assert_int_eq(tierce__resp_cluster_node(cluster, i, &node), 0);
        ck_assert_int_eq(
            tierce__resp_call(node, (const char *[]){"DBSIZE"}, (size_t[]){6}, 1, &value, 0), 0);
        ck_assert_int_gt(value.integer, COUNT / 10);
        keys += value.integer;
    }
    ck_assert_int_eq(keys, COUNT);
    struct tierce__resp *none;
    ck_assert_int_eq(tierce__resp_cluster_node(cluster, NODES, &none), -ENOENT);
    call("HGET key1 x");
    ck_assert(tierce__resp_is_error(call("HGET key1 x"), "WRONGTYPE"));
}
END_TEST

/* Slot 12182 goes from the third node to the first while it is used. */
START_TEST(test_migration)
{
    char first[64], third[64];
    snprintf(first, sizeof(first), "%s", ask(0, "CLUSTER MYID").text);
    snprintf(third, sizeof(third), "%s", ask(2, "CLUSTER MYID").text);
    ck_assert_str_eq(call("SET {foo}old 1")->text, "OK");
    tell(0, "CLUSTER SETSLOT 12182 IMPORTING %s%s", third, "");
    tell(2, "CLUSTER SETSLOT 12182 MIGRATING %s%s", first, "");
    /* Keys that are still there are answered there; other keys are requested from the new node. */
    tierce__resp_cluster_begin(cluster);
    append("GET {foo}old");
    append("SET {foo}new 2");
    append("GET other");
    append("GET {foo}new");
    run();
    ck_assert_str_eq(tierce__resp_cluster_value(cluster, 0)->text, "1");
    ck_assert_str_eq(tierce__resp_cluster_value(cluster, 1)->text, "OK");
    ck_assert_int_eq(tierce__resp_cluster_value(cluster, 2)->type, TIERCE__RESP_NIL);
    ck_assert_str_eq(tierce__resp_cluster_value(cluster, 3)->text, "2");
    ck_assert_int_eq(ask(0, "DBSIZE").integer, 1);
    /* Moved permanently; the client does not know yet. */
    tell(2, "DEL {foo}old%s%s", "", "");
    tell(0, "CLUSTER SETSLOT 12182 NODE %s%s", first, "");
    tell(2, "CLUSTER SETSLOT 12182 NODE %s%s", first, "");
    ck_assert_str_eq(call("GET {foo}new")->text, "2");
    ck_assert_str_eq(call("SET {foo}more 3")->text, "OK");
    ck_assert_int_eq(ask(0, "DBSIZE").integer, 2);
}
END_TEST

/* A migration whose target is gone is aborted: commands sent there are repeated here. */
START_TEST(test_migration_to_nowhere)
{
    char second[64];
    snprintf(second, sizeof(second), "%s", ask(1, "CLUSTER MYID").text);
    /* The slot's number is a key of the same node; the node ends the migration after its ASK. */
    ck_assert_uint_eq(tierce__resp_slot("{s}new", 6), 3828);
    ck_assert_uint_lt(tierce__resp_slot("3828", 4), 5461);
    tell(0, "CLUSTER SETSLOT 3828 MIGRATING %s%s", second, "");
    tierce__resp_close(clients[1]);
    clients[1] = NULL;
    redis_kill(&servers[1]);
    tierce__resp_cluster_begin(cluster);
    append("SET {s}new 1");
    ck_assert_int_eq(tierce__resp_cluster_append(
                         cluster, 2, (const char *[]){"CLUSTER", "SETSLOT", "3828", "STABLE"},
                         (size_t[]){7, 7, 4, 6}, 4),
                     0);
    run();
    ck_assert_str_eq(tierce__resp_cluster_value(cluster, 0)->text, "OK");
    ck_assert_str_eq(tierce__resp_cluster_value(cluster, 1)->text, "OK");
}
END_TEST

START_TEST(test_node_is_gone)
{
    ck_assert_str_eq(call("SET foo 1")->text, "OK");
    tierce__resp_close(clients[2]);
    clients[2] = NULL;
    redis_kill(&servers[2]);
    tierce__resp_cluster_begin(cluster);
    append("SET foo 2");
    ck_assert_int_lt(tierce__resp_cluster_run(cluster, tierce__deadline_in_ms(200)), 0);
    ck_assert_str_ne(tierce__resp_cluster_why(cluster), "");
    tierce__resp_cluster_begin(cluster);
    append("SET foo 2");
    ck_assert_int_eq(tierce__resp_cluster_run(cluster, tierce__deadline_in_ms(200)),
                     TIERCE_E_DEADLINE);
    /* The others serve what is theirs. */
    ck_assert_str_eq(call("SET bar 1")->text, "OK");
    ck_assert(start_node(2));
    struct tierce__resp_opts opts = opts_of(2);
    ck_assert_int_eq(tierce__resp_open(&clients[2], &opts, why), 0);
    wait_for_cluster();
    ck_assert_str_eq(call("SET foo 3")->text, "OK");
}
END_TEST

START_TEST(test_no_memory)
{
    char words[64];
    tierce__resp_cluster_close(cluster);
    cluster = NULL;
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        struct tierce__resp_opts opts = opts_of(1);
        opts.password = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = create(&cluster, &opts);
        if (rc == 0)
            tierce__resp_cluster_begin(cluster);
        for (int i = 0; i < 100 && rc == 0; i++) {
            snprintf(words, sizeof(words), "key%d", i);
            rc = tierce__resp_cluster_append(cluster, 1, (const char *[]){"GET", words},
                                             (size_t[]){3, strlen(words)}, 2);
        }
        if (rc == 0)
            rc = tierce__resp_cluster_run(cluster, 0);
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_int_eq(rc, failed ? -ENOMEM : 0);
        if (failed > 0) {
            tierce__resp_cluster_close(cluster);
            cluster = NULL;
        }
    }
}
END_TEST

START_TEST(test_no_cluster)
{
    struct redis_server single;
    struct tierce__resp_cluster *none = NULL;
    struct tierce__resp *node;
    struct tierce__resp_opts opts = opts_of(0);
    ck_assert(redis_start(&single, NULL));
    opts.port = single.port;
    ck_assert_int_eq(create(&none, &opts), 0);
    tierce__resp_cluster_begin(none);
    ck_assert_int_eq(tierce__resp_cluster_node(none, 0, &node), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(tierce__resp_cluster_why(none), "cluster support disabled"));
    redis_stop(&single);
    tierce__resp_cluster_begin(none);
    ck_assert_int_eq(tierce__resp_cluster_node(none, 0, &node), -ECONNREFUSED);
    tierce__resp_cluster_close(none);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("resp_cluster");
    TCase *tests = tcase_create("cluster");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, test_batches);
    tcase_add_test(tests, test_migration);
    tcase_add_test(tests, test_migration_to_nowhere);
    tcase_add_test(tests, test_node_is_gone);
    tcase_add_test(tests, test_no_memory);
    suite_add_tcase(suite, tests);
    tests = tcase_create("no cluster"); /* one takes seconds to be made */
    tcase_add_test(tests, test_slots);
    tcase_add_test(tests, test_no_cluster);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    if (!redis_is_there()) {
        fprintf(stderr, "redis-server is not installed\n");
        return 77;
    }
    return check_main_at_once(make_suite);
}
