/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector of Redis where the server is several: a master that sentinels replace, and a
 * cluster whose nodes go and whose slots move, in the middle of transfers.
 */
#include "check_main.h"
#include "connector_harness.h"
#include "redis_sentinels.h"
#include "net/redis/resp_cluster.h"

#include <pthread.h>

#define BYTES 200000u

/* A line of the sentinels: no master is replaced unless it is told to be. */
#define NEVER_DOWN "sentinel down-after-milliseconds m 600000"

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct redis_sentinels sentinels;
static struct redis_cluster cluster;

static void open_url(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void close_connector(void)
{
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
}

/* Everything by TLS, with certificates of clients too. */
static char tls_dir[] = "/tmp/tierce-tls-XXXXXX";

static void make_tls(void)
{
    temp_folder_make(tls_dir);
    ck_assert(tls_make_certificates(tls_dir));
    sentinels.tls_dir = cluster.tls_dir = tls_dir;
}

static void remove_tls(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", tls_dir);
    ck_assert_int_eq(system(command), 0);
}

/* `scheme` without its 's'. */
static void open_place(const char *scheme, const char *hosts, const char *rest, const char *ca)
{
    char url[1024];
    bool tls = sentinels.tls_dir != NULL;
    int used = snprintf(url, sizeof(url), "redis%s+%s://%s%s", tls ? "s" : "", scheme, hosts, rest);
    if (tls)
        snprintf(url + used, sizeof(url) - (size_t)used,
                 "%cca_file=%s/%s&client_certificate=%s/s.pem&client_key=%s/s.key",
                 strchr(rest, '?') != NULL ? '&' : '?', tls_dir, ca, tls_dir, tls_dir);
    open_url(url);
}

static void start_sentinels(int count, const char *const *more, const char *extra, const char *rest)
{
    ck_assert_msg(redis_is_there(), "redis-server is not installed (tools/setup)");
    ck_assert(redis_sentinels_start(&sentinels, count, more, extra));
    pool = connector_pool();
    open_place("sentinel", sentinels.hosts, rest, "ca.pem");
}

static void end_sentinels(void)
{
    close_connector();
    tierce__pool_destroy(pool);
    redis_sentinels_stop(&sentinels);
}

/* ---- writers and readers --------------------------------------------------------------------- */

enum { WRITERS = 3, NAMES_MAX = 4000 };

/* The answers to each writer for each name. */
static struct writer {
    pthread_t thread;
    int number;
    _Atomic int written; /* names 0 .. written - 1 have been tried */
    _Atomic bool ends;
    bool kept[NAMES_MAX];
} writers[WRITERS];

static void name_of(char name[32], const struct writer *writer, int i)
{
    snprintf(name, 32, "w%d:%d", writer->number, i);
}

static uint32_t version_of(const struct writer *writer, int i)
{
    return (uint32_t)(writer->number * NAMES_MAX + i);
}

/* Puts a name, then reads any of those before: it is right, or not there, or nobody answers. */
static void *write_names(void *arg)
{
    struct writer *writer = arg;
    char name[32];
    for (int i = 0; i < NAMES_MAX && !atomic_load(&writer->ends); i++) {
        name_of(name, writer, i);
        int rc = connector_put(connector, pool, name, version_of(writer, i), BYTES);
        writer->kept[i] = rc == 0;
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE, "PUT: %d", rc);
        int old = (int)((unsigned)i * 7u % (unsigned)(i + 1));
        name_of(name, writer, old);
        rc = connector_get(connector, pool, name, version_of(writer, old), 0, BYTES);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS || rc == TIERCE_E_DOWN ||
                          rc == TIERCE_E_DEADLINE,
                      "GET: %d", rc);
        atomic_store(&writer->written, i + 1);
        server_pause_ms(1);
    }
    return NULL;
}

static void start_writers(void)
{
    for (int i = 0; i < WRITERS; i++) {
        writers[i].number = i;
        ck_assert_int_eq(pthread_create(&writers[i].thread, NULL, write_names, &writers[i]), 0);
    }
}

/* Until each has written so many more. */
static void await_writers(int more)
{
    for (int i = 0; i < WRITERS; i++) {
        int from = atomic_load(&writers[i].written);
        while (atomic_load(&writers[i].written) < from + more && from + more < NAMES_MAX)
            server_pause_ms(5);
    }
}

static void end_writers(void)
{
    for (int i = 0; i < WRITERS; i++)
        atomic_store(&writers[i].ends, true);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
}

#define PATIENCE_MS 90000

/* Some links have found out what has changed, others do when they are used. */
static int get_at_last(const char *name, uint32_t version)
{
    for (uint64_t until_ns = tierce__deadline_in_ms(PATIENCE_MS);;) {
        int rc = connector_get(connector, pool, name, version, 0, BYTES);
        if ((rc != TIERCE_E_DOWN && rc != TIERCE_E_DEADLINE) || tierce__now_ns() > until_ns)
            return rc;
        server_pause_ms(20);
    }
}

/* How many of the names whose PUT was answered 0 are not there now. */
static int count_lost(void)
{
    char name[32];
    int lost = 0;
    for (int w = 0; w < WRITERS; w++) {
        for (int i = 0; i < atomic_load(&writers[w].written); i++) {
            name_of(name, &writers[w], i);
            int rc = get_at_last(name, version_of(&writers[w], i));
            ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS, "%s: %d", connector_why(connector), rc);
            lost += rc != 0 && writers[w].kept[i];
        }
    }
    return lost;
}

static int ping_at_last(void)
{
    for (uint64_t until_ns = tierce__deadline_in_ms(PATIENCE_MS);;) {
        int rc = connector_ping(connector);
        if ((rc != TIERCE_E_DOWN && rc != TIERCE_E_DEADLINE) || tierce__now_ns() > until_ns)
            return rc;
        server_pause_ms(20);
    }
}

static void put_until(const char *name, uint32_t version)
{
    uint64_t until_ns = tierce__deadline_in_ms(PATIENCE_MS);
    int rc;
    do {
        rc = connector_put(connector, pool, name, version, BYTES);
        ck_assert(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE);
    } while (rc != 0 && tierce__now_ns() < until_ns);
    ck_assert_int_eq(rc, 0);
}

/* ---- sentinels ------------------------------------------------------------------------------- */

/* The master dies while writers write. _i = 1: every PUT waited for the replica. */
START_TEST(a_master_dies)
{
    start_sentinels(3, NULL, "",
                    _i == 0 ? "/m/2?timeout_ms=2000" : "/m/2?timeout_ms=2000&wait_replicas=1");
    put_until("first", 1);
    ck_assert(redis_sentinels_wait(&sentinels));
    ck_assert(redis_await(sentinels.data[1].port, "INFO keyspace", "db2:keys=1,"));
    start_writers();
    await_writers(20);
    redis_kill(&sentinels.data[0]);
    ck_assert(redis_await(sentinels.data[1].port, "ROLE", "master"));
    if (_i == 0) {
        put_until("second", 2);
        await_writers(20);
    } else { /* no replica is left, which a PUT says, until there is one again */
        ck_assert(redis_sentinels_run(&sentinels, 0, false));
        put_until("second", 2);
    }
    end_writers();
    int lost = count_lost();
    ck_assert(_i == 0 || lost == 0); /* otherwise: what the replica had not had yet */
    ck_assert_int_eq(get_at_last("first", 1), 0);
    ck_assert_int_eq(get_at_last("second", 2), 0);
    ck_assert_int_eq(ping_at_last(), 0);
    end_sentinels();
}
END_TEST

/* Requests a failover repeatedly until another server is the master: a sentinel rejects the request
 * while it knows no good replica, and aborts a failover if one of its steps takes too long. */
static void change_master(uint16_t port)
{
    char answer[8192];
    bool goes_on = false, is_master = false;
    for (uint64_t until_ns = tierce__deadline_in_ms(PATIENCE_MS);
         !is_master && tierce__now_ns() < until_ns; server_pause_ms(20)) {
        uint16_t sentinel = sentinels.watchers[0].port;
        if (!goes_on)
            (void)redis_tell(sentinel, answer, sizeof(answer), "SENTINEL FAILOVER m");
        /* The server is the master before the failover ends, so the test queries it last. */
        goes_on = redis_tell(sentinel, answer, sizeof(answer), "SENTINEL MASTER m") &&
                  strstr(answer, "failover_in_progress") != NULL;
        is_master =
            redis_tell(port, answer, sizeof(answer), "ROLE") && strstr(answer, "master") != NULL;
    }
    ck_assert(is_master);
}

/* The old master returns as a replica; and a requested failover. */
START_TEST(masters_change)
{
    char length[16];
    snprintf(length, sizeof(length), ":%u\r", BYTES);
    start_sentinels(1, NULL, NEVER_DOWN, "/m?connections=2&timeout_ms=60000");
    ck_assert(redis_sentinels_wait(&sentinels));
    for (int round = 0; round < 3; round++) {
        char name[16], strlen_name[32];
        int old = round % 2, new = 1 - old;
        snprintf(name, sizeof(name), "r%d", round);
        snprintf(strlen_name, sizeof(strlen_name), "STRLEN %s", name);
        put_until(name, (uint32_t)round);
        ck_assert(
            redis_await(sentinels.data[new].port, "INFO replication", "master_link_status:up"));
        ck_assert(redis_await(sentinels.data[new].port, strlen_name, length)); /* it has it too */
        change_master(sentinels.data[new].port);
        /* Nothing was written during the failover, so nothing is lost. */
        ck_assert_int_eq(get_at_last(name, (uint32_t)round), 0);
        ck_assert(redis_await(sentinels.data[old].port, "ROLE", "slave"));
        put_until("again", (uint32_t)round + 10);
        ck_assert_int_eq(get_at_last("again", (uint32_t)round + 10), 0);
    }
    end_sentinels();
}
END_TEST

/* Sentinels and servers with passwords of their own, one sentinel that is gone and one that
 * lies. */
START_TEST(who_is_asked)
{
    char url[512];
    start_sentinels(
        1, (const char *const[]){"--requirepass", "hidden", "--masterauth", "hidden", NULL},
        "requirepass hidden2\nsentinel auth-pass m hidden\n" NEVER_DOWN, "/m?timeout_ms=60000");
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_REFUSED);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "NOAUTH"));
    close_connector();
    unsigned port = sentinels.watchers[0].port;
    snprintf(url, sizeof(url),
             "valkey+sentinel://:hidden@127.0.0.1:1,127.0.0.1:%u/"
             "m?sentinel_password=hidden2&timeout_ms=60000",
             port);
    open_url(url);
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, BYTES), 0);
    close_connector();
    snprintf(
        url, sizeof(url),
        "redis+sentinel://:hidden@127.0.0.1:%u/other?sentinel_password=hidden2&timeout_ms=60000",
        port);
    open_url(url);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "no master of that name"));
    ck_assert_ptr_null(strstr(connector_why(connector), "hidden"));
    end_sentinels();
}
END_TEST

/* A sentinel that names a replica: its answer is ignored. */
START_TEST(a_replica_is_no_master)
{
    char answer[256];
    start_sentinels(1, NULL, NEVER_DOWN, "/m?timeout_ms=60000");
    ck_assert(redis_tell(sentinels.data[0].port, answer, sizeof(answer), "REPLICAOF 127.0.0.1 1"));
    int rc = connector_put(connector, pool, "a", 1, BYTES);
    ck_assert_int_eq(rc, TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "is not a master"));
    end_sentinels();
}
END_TEST

/* ---- a cluster ------------------------------------------------------------------------------- */

static void start_cluster(int masters, int replicas, int timeout_ms, const char *rest)
{
    ck_assert_msg(redis_is_there(), "redis-server is not installed (tools/setup)");
    ck_assert(redis_cluster_start(&cluster, masters, replicas, timeout_ms));
    pool = connector_pool();
    open_place("cluster", strchr(cluster.uri, '/') + 2, rest, "ca.pem");
}

static void end_cluster(void)
{
    close_connector();
    tierce__pool_destroy(pool);
    redis_cluster_stop(&cluster);
}

/* A master with a replica dies while writers write. */
START_TEST(a_node_of_a_cluster_dies)
{
    start_cluster(3, 3, 500, _i == 0 ? "?timeout_ms=2000" : "?timeout_ms=2000&wait_replicas=1");
    start_writers();
    await_writers(20);
    redis_kill(&cluster.nodes[1]);
    ck_assert(redis_await(cluster.nodes[4].port, "ROLE", "master"));
    ck_assert(redis_await(cluster.nodes[0].port, "CLUSTER INFO", "cluster_slots_ok:16384"));
    if (_i == 1) {
        ck_assert(redis_cluster_run(&cluster, 1));
        ck_assert(redis_await(cluster.nodes[1].port, "INFO replication", "master_link_status:up"));
    }
    for (uint32_t i = 0; i < 12; i++) { /* of all nodes */
        char name[16];
        snprintf(name, sizeof(name), "n%u", i);
        put_until(name, i);
    }
    end_writers();
    int lost = count_lost();
    ck_assert(_i == 0 || lost == 0);
    end_cluster();
}
END_TEST

/* Node 0 gets slot `slot` of node `from`, key by key, while somebody reads and writes. */
static void move_slot(unsigned slot, int from)
{
    char ids[2][128], answer[65536];
    const int nodes[2] = {from, 0};
    for (int i = 0; i < 2; i++) {
        ck_assert(redis_tell(cluster.nodes[nodes[i]].port, ids[i], sizeof(ids[i]), "CLUSTER MYID"));
        ids[i][5 + 40] = '\0';
    }
    uint16_t old = cluster.nodes[from].port, new = cluster.nodes[0].port;
    uint16_t peer = cluster.tls_dir != NULL ? cluster.nodes[0].tls_port : new;
    ck_assert(redis_tell(new, answer, sizeof(answer), "CLUSTER SETSLOT %u IMPORTING %s", slot,
                         ids[0] + 5));
    ck_assert(redis_tell(old, answer, sizeof(answer), "CLUSTER SETSLOT %u MIGRATING %s", slot,
                         ids[1] + 5));
    for (;;) {
        char script[512];
        snprintf(script, sizeof(script),
                 "k=$(redis-cli -p %u cluster getkeysinslot %u 1) && test -n \"$k\" && "
                 "redis-cli -p %u migrate 127.0.0.1 %u \"$k\" 0 5000 >/dev/null",
                 (unsigned)old, slot, (unsigned)old, (unsigned)peer);
        if (system(script) != 0)
            break;
    }
    for (int i = 0; i < cluster.masters; i++)
        ck_assert(redis_tell(cluster.nodes[i].port, answer, sizeof(answer),
                             "CLUSTER SETSLOT %u NODE %s", slot, ids[1] + 5));
}

static _Atomic bool reader_ends;

static void *read_names(void *arg)
{
    uint64_t *rounds = arg;
    while (!atomic_load(&reader_ends)) {
        char name[32];
        unsigned i = (unsigned)(*rounds)++ % 20;
        snprintf(name, sizeof(name), "{tag}%u", i);
        int rc = connector_get(connector, pool, name, i, 0, BYTES);
        ck_assert_msg(rc == 0, "%s: %d", connector_why(connector), rc);
        ck_assert_int_eq(connector_exists(connector, name), 1);
    }
    return NULL;
}

/* A slot moves to another node while its names are read: every reading finds them. */
START_TEST(a_slot_moves)
{
    char name[32];
    uint64_t rounds = 0;
    pthread_t reader;
    start_cluster(3, 0, 60000, "?connections=3&timeout_ms=60000");
    unsigned slot = tierce__resp_slot("tag", 3);
    int from = (int)(slot * 3 / 16384);
    ck_assert_int_ne(from, 0);
    for (uint32_t i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "{tag}%u", i);
        ck_assert_int_eq(connector_put(connector, pool, name, i, BYTES), 0);
    }
    ck_assert_int_eq(pthread_create(&reader, NULL, read_names, &rounds), 0);
    move_slot(slot, from);
    atomic_store(&reader_ends, true);
    pthread_join(reader, NULL);
    ck_assert_uint_gt(rounds, 0);
    ck_assert_int_eq(connector_put(connector, pool, "{tag}0", 100, BYTES), 0);
    ck_assert_int_eq(connector_get(connector, pool, "{tag}0", 100, 0, BYTES), 0);
    ck_assert_int_eq(connector_delete(connector, "{tag}0"), 0);
    ck_assert_int_eq(connector_exists(connector, "{tag}0"), 0);
    end_cluster();
}
END_TEST

/* A node without a replica: what it has is not to be had, the rest is, and all when it is back. */
START_TEST(a_node_is_away)
{
    char name[16];
    start_cluster(3, 0, 60000, "?timeout_ms=60000&connections=2");
    for (uint32_t i = 0; i < 30; i++) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(connector_put(connector, pool, name, i, 1000), 0);
    }
    redis_kill(&cluster.nodes[2]);
    int found = 0;
    for (uint32_t i = 0; i < 30; i++) {
        struct connector_call call;
        snprintf(name, sizeof(name), "%u", i);
        connector_call_init(&call, TIERCE__STORE_LOOKUP, name, 0);
        bool is_its = tierce__resp_slot(name, strlen(name)) >= 16384 * 2 / 3;
        call.req.deadline_ns = tierce__deadline_in_ms(is_its ? 300 : 60000);
        int rc = connector_call_run(connector, &call);
        ck_assert_msg(is_its ? rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE : rc == 0, "%d", rc);
        found += rc == 0;
    }
    ck_assert_int_gt(found, 10);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert(redis_cluster_run(&cluster, 2));
    ck_assert(redis_cluster_wait(&cluster));
    ck_assert_int_eq(ping_at_last(), 0);
    end_cluster();
}
END_TEST

START_TEST(no_cluster)
{
    char url[128];
    struct redis_server server;
    ck_assert(redis_start(&server, NULL));
    pool = connector_pool();
    snprintf(url, sizeof(url), "redis+cluster://127.0.0.1:%u?timeout_ms=60000",
             (unsigned)server.port);
    open_url(url);
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 100), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "cluster support disabled"));
    close_connector();
    tierce__pool_destroy(pool);
    redis_stop(&server);
}
END_TEST

/* ---- another authority ----------------------------------------------------------------------- */

/* A server without a certificate of the configured authority is rejected. */
static void expect_nobody(const char *scheme, const char *hosts, const char *rest)
{
    close_connector();
    open_place(scheme, hosts, rest, "other.pem");
    int rc = connector_put(connector, pool, "a", 1, BYTES);
    ck_assert_msg(rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE, "%d", rc);
    ck_assert_msg(strstr(connector_why(connector), "certificate") != NULL, "%s",
                  connector_why(connector));
}

START_TEST(sentinels_of_another_authority)
{
    start_sentinels(2, NULL, NEVER_DOWN, "/m?timeout_ms=60000");
    ck_assert_int_eq(connector_ping(connector), 0);
    expect_nobody("sentinel", sentinels.hosts, "/m?timeout_ms=60000");
    end_sentinels();
}
END_TEST

START_TEST(a_cluster_of_another_authority)
{
    start_cluster(3, 0, 60000, "?timeout_ms=60000");
    ck_assert_int_eq(connector_ping(connector), 0);
    expect_nobody("cluster", strchr(cluster.uri, '/') + 2, "?timeout_ms=60000");
    end_cluster();
}
END_TEST

/* The thread sanitizer does not see into OpenSSL, and our own threads are the same without it. */
#ifdef __SANITIZE_THREAD__
enum { WITH_TLS = false };
#else
enum { WITH_TLS = true };
#endif

static Suite *make_suite(void)
{
    Suite *suite = suite_create("redis failover");
    TCase *tcase = tcase_create("redis failover");
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, a_master_dies, 0, 2);
    tcase_add_test(tcase, masters_change);
    tcase_add_test(tcase, who_is_asked);
    tcase_add_test(tcase, a_replica_is_no_master);
    tcase_add_loop_test(tcase, a_node_of_a_cluster_dies, 0, 2);
    tcase_add_test(tcase, a_slot_moves);
    tcase_add_test(tcase, a_node_is_away);
    tcase_add_test(tcase, no_cluster);
    suite_add_tcase(suite, tcase);
    if (!WITH_TLS)
        return suite;
    tcase = tcase_create("redis failover by TLS");
    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, make_tls, remove_tls);
    tcase_add_loop_test(tcase, a_master_dies, 0, 2);
    tcase_add_test(tcase, masters_change);
    tcase_add_loop_test(tcase, a_node_of_a_cluster_dies, 0, 2);
    tcase_add_test(tcase, a_slot_moves);
    tcase_add_test(tcase, sentinels_of_another_authority);
    tcase_add_test(tcase, a_cluster_of_another_authority);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main_at_once(make_suite);
}
