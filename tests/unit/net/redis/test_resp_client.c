/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "redis_server.h"
#include "test_random.h"
#include "net/redis/resp_client.h"
#include "net/redis/resp_pool.h"

#include <pthread.h>

/* Against a real redis-server; where a server must misbehave: test_resp_hostile.c. */

static struct redis_server server;
static struct tierce__resp *resp;
static struct tierce__resp_value value;
static char why[TIERCE__RESP_WHY_BYTES];
static uint64_t live;

static struct tierce__resp_opts tcp_opts(void)
{
    return (struct tierce__resp_opts){.size = sizeof(struct tierce__resp_opts),
                                      .host = "127.0.0.1",
                                      .port = server.port,
                                      .connect_timeout_ms = 10000,
                                      .call_timeout_ms = 20000,
                                      .retry_interval_ms = 1};
}

static void set_up(void)
{
    live = tierce__alloc_live();
    ck_assert(redis_start(&server, NULL));
}

static void tear_down(void)
{
    tierce__resp_close(resp);
    redis_stop(&server);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

static void open_client(const struct tierce__resp_opts *opts)
{
    int rc = tierce__resp_open(&resp, opts, why);
    ck_assert_msg(rc == 0, "%s", why);
}

/* Words with single spaces between, as one more command. */
static void append(const char *words)
{
    const char *arguments[16];
    size_t bytes[16], count = 0;
    while (*words != '\0') {
        arguments[count] = words;
        bytes[count] = strcspn(words, " ");
        words += bytes[count++];
        words += *words == ' ';
    }
    ck_assert_int_eq(tierce__resp_append(resp, arguments, bytes, count), 0);
}

/* One command, whose answer is in `value`. */
static void call(const char *words)
{
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    append(words);
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    int rc = tierce__resp_read(resp, &value, 0);
    ck_assert_msg(rc == 0, "%s", tierce__resp_why(resp));
}

/* The server closes the client's connection, which another one asks it for. */
static void cut_off(const struct tierce__resp_opts *opts)
{
    struct tierce__resp *other = NULL;
    ck_assert_int_eq(tierce__resp_open(&other, opts, why), 0);
    ck_assert_int_eq(tierce__resp_call(other, (const char *[]){"CLIENT", "KILL", "TYPE", "normal"},
                                       (size_t[]){6, 4, 4, 6}, 4, &value, 0),
                     0);
    ck_assert_int_eq(value.integer, 1);
    tierce__resp_close(other);
}

START_TEST(test_types)
{
    struct tierce__resp_opts opts = tcp_opts();
    opts.port = 1;
    opts.host = server.socket; /* the port does not matter */
    open_client(&opts);
    call("SET a 1");
    ck_assert_str_eq(value.text, "OK");
    call("INCR a");
    ck_assert_int_eq(value.integer, 2);
    call("GET a");
    ck_assert_str_eq(value.text, "2");
    call("GET nothing");
    ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
    call("HSET h x 1 y 2");
    call("HMGET h x z y");
    ck_assert_uint_eq(value.count, 3);
    ck_assert_str_eq(value.items[0].text, "1");
    ck_assert_int_eq(value.items[1].type, TIERCE__RESP_NIL);
    call("HINCRBY h x nonsense");
    ck_assert_int_eq(value.type, TIERCE__RESP_ERROR);
    ck_assert(tierce__resp_is_error(&value, "ERR"));
    call("SCAN 0");
    ck_assert_uint_eq(value.items[1].count, 2);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(test_pipeline)
{
    struct tierce__resp_opts opts = tcp_opts();
    enum { COUNT = TEST_ROUNDS(20000) };
    char text[32];
    open_client(&opts);
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(tierce__resp_begin(resp), 0);
        for (int i = 0; i < COUNT; i++) {
            snprintf(text, sizeof(text), "ECHO %d.%d", round, i);
            append(text);
        }
        ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
        for (int i = 0; i < COUNT; i++) {
            ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
            snprintf(text, sizeof(text), "%d.%d", round, i);
            ck_assert_str_eq(value.text, text);
        }
    }
}
END_TEST

/* Several flushes before the answers are read, and values that stay until begin. */
START_TEST(test_flush_twice)
{
    struct tierce__resp_opts opts = tcp_opts();
    struct tierce__resp_value first;
    open_client(&opts);
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    append("ECHO one");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    append("ECHO two");
    append("ECHO three");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &first, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    ck_assert_str_eq(value.text, "two");
    ck_assert_str_eq(first.text, "one");
    /* "three" is not read: another pipeline must not see it. */
    call("ECHO four");
    ck_assert_str_eq(value.text, "four");
}
END_TEST

#define LARGE (TEST_ROUNDS(64u) << 20)

START_TEST(test_large_values)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    char *memory = malloc(LARGE), *back = malloc(LARGE + 1);
    ck_assert(memory != NULL && back != NULL);
    for (uint32_t i = 0; i < LARGE / 4; i++)
        memcpy(memory + 4 * i, &i, 4);
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    ck_assert_int_eq(tierce__resp_append_borrowed(resp, (const char *[]){"SET", "large", memory},
                                                  (size_t[]){3, 5, LARGE}, 3),
                     0);
    append("GET large");
    append("GET large");
    append("GET nothing");
    append("GET large");
    append("ECHO end");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    ck_assert_str_eq(value.text, "OK");
    /* All of it, a part of it, none, and into the client's own memory. */
    ck_assert_int_eq(tierce__resp_read_into(resp, back, LARGE, &value, 0), 0);
    ck_assert_int_eq(value.type, TIERCE__RESP_STRING);
    ck_assert_uint_eq(value.bytes, LARGE);
    ck_assert(memcmp(memory, back, LARGE) == 0);
    memset(back, 0, LARGE);
    ck_assert_int_eq(tierce__resp_read_into(resp, back, 1000, &value, 0), 0);
    ck_assert_uint_eq(value.bytes, LARGE);
    ck_assert(memcmp(memory, back, 1000) == 0 && back[1000] == 0);
    ck_assert_int_eq(tierce__resp_read_into(resp, back, LARGE, &value, 0), 0);
    ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    ck_assert(value.bytes == LARGE && memcmp(memory, value.text, LARGE) == 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    ck_assert_str_eq(value.text, "end");
    free(memory);
    free(back);
}
END_TEST

START_TEST(test_value_beyond_the_limit)
{
    struct tierce__resp_opts opts = tcp_opts();
    opts.bulk_bytes_max = 100;
    open_client(&opts);
    call("SETRANGE a 100 x");
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    append("GET a");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), -ENOTCONN);
    call("ECHO again");
}
END_TEST

START_TEST(test_database)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    call("SET a zero");
    tierce__resp_close(resp);
    opts.database = 3;
    open_client(&opts);
    call("GET a");
    ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
    call("SET a three");
    cut_off(&opts);
    call("GET a"); /* the new connection has selected again */
    ck_assert_str_eq(value.text, "three");
    tierce__resp_close(resp);
    resp = NULL;
    opts.database = 99;
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EPROTO);
    ck_assert_msg(strstr(why, "SELECT") != NULL, "%s", why);
}
END_TEST

START_TEST(test_authentication)
{
    redis_kill(&server);
    ck_assert(redis_run(&server, false,
                        (const char *[]){"--requirepass", "s3cret", "--user", "bob", "on", ">b0b",
                                         "~*", "+@all", NULL}));
    struct tierce__resp_opts opts = tcp_opts();
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EACCES);
    ck_assert_msg(strstr(why, "NOAUTH") != NULL, "%s", why);
    opts.password = "wr0ng";
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EACCES);
    ck_assert_msg(strstr(why, "WRONGPASS") != NULL && strstr(why, "wr0ng") == NULL, "%s", why);
    opts.user = "bob";
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EACCES);
    ck_assert_msg(strstr(why, "bob") != NULL && strstr(why, "wr0ng") == NULL, "%s", why);
    opts.password = "b0b";
    open_client(&opts);
    call("ACL WHOAMI");
    ck_assert_str_eq(value.text, "bob");
    cut_off(&opts);
    call("ACL WHOAMI");
    ck_assert_str_eq(value.text, "bob");
    tierce__resp_close(resp);
    opts.user = NULL;
    opts.password = "s3cret";
    open_client(&opts);
    call("PING");
}
END_TEST

/* The answer of a server that cannot serve now is a value. */
START_TEST(test_readonly)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    call("REPLICAOF 127.0.0.1 1");
    call("SET a 1");
    ck_assert(tierce__resp_is_error(&value, "READONLY"));
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(test_server_is_killed)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    append("ECHO before");
    append("BLPOP nothing 0");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    redis_kill(&server);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), -ECONNRESET);
    ck_assert_msg(strstr(tierce__resp_why(resp), "receiving") != NULL, "%s",
                  tierce__resp_why(resp));
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), -ENOTCONN);
    ck_assert_int_eq(tierce__resp_flush(resp, 0), -ENOTCONN);
    ck_assert_int_eq(tierce__resp_begin(resp), -ECONNREFUSED);
    ck_assert_int_eq(tierce__resp_append(resp, (const char *[]){"PING"}, (size_t[]){4}, 1),
                     -ENOTCONN);
    ck_assert(redis_run(&server, false, NULL));
    int rc;
    do
        rc = tierce__resp_begin(resp);
    while (rc == -ECONNREFUSED); /* until retry_interval_ms is over */
    ck_assert_int_eq(rc, 0);
    call("PING");
    ck_assert_str_eq(tierce__resp_why(resp), "");
}
END_TEST

START_TEST(test_retry_interval)
{
    struct tierce__resp_opts opts = tcp_opts();
    redis_kill(&server);
    opts.retry_interval_ms = 3600000;
    ck_assert_int_eq(tierce__resp_create(&resp, &opts, why), 0);
    ck_assert_int_eq(tierce__resp_begin(resp), -ECONNREFUSED);
    ck_assert(!tierce__resp_repeats(resp));
    ck_assert(redis_run(&server, false, NULL));
    ck_assert_int_eq(tierce__resp_begin(resp), -ECONNREFUSED); /* it has not tried */
    ck_assert(tierce__resp_repeats(resp));
}
END_TEST

START_TEST(test_server_stalls)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    kill(server.pid, SIGSTOP);
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    append("ECHO late");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, tierce__deadline_in_ms(50)),
                     TIERCE_E_DEADLINE);
    opts.connect_timeout_ms = 50;
    tierce__resp_close(resp);
    resp = NULL;
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), TIERCE_E_DEADLINE);
    ck_assert_str_eq(why, "127.0.0.1: connected, but no answer within 50 ms (timeout_ms)");
    kill(server.pid, SIGCONT);
    opts.connect_timeout_ms = 10000;
    open_client(&opts);
    kill(server.pid, SIGSTOP);
    char *memory = calloc(1, LARGE); /* more than the sockets hold */
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    ck_assert_int_eq(tierce__resp_append_borrowed(resp, (const char *[]){"ECHO", memory},
                                                  (size_t[]){4, LARGE}, 2),
                     0);
    ck_assert_int_eq(tierce__resp_flush(resp, tierce__deadline_in_ms(50)), TIERCE_E_DEADLINE);
    free(memory);
    kill(server.pid, SIGCONT);
    call("ECHO new"); /* and not "late" */
    ck_assert_str_eq(value.text, "new");
}
END_TEST

/* A connection that the server has closed meanwhile is seen before it is used. */
START_TEST(test_idle_connection_is_closed)
{
    struct tierce__resp_opts opts = tcp_opts();
    open_client(&opts);
    call("PING");
    cut_off(&opts);
    call("PING");
    ck_assert_str_eq(value.text, "PONG");
}
END_TEST

START_TEST(test_no_memory)
{
    struct tierce__resp_opts opts = tcp_opts();
    opts.password = NULL;
    opts.database = 1;
    char big[5000];
    memset(big, 'x', sizeof(big));
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        uint64_t before = tierce__alloc_live();
        tierce__alloc_fail_nth(nth);
        int rc = tierce__resp_open(&resp, &opts, why);
        if (rc == 0)
            rc = tierce__resp_begin(resp);
        for (int i = 0; i < 40 && rc == 0; i++)
            rc = tierce__resp_append_borrowed(resp, (const char *[]){"ECHO", big},
                                              (size_t[]){4, sizeof(big)}, 2);
        if (rc == 0)
            rc = tierce__resp_flush(resp, 0);
        for (int i = 0; i < 40 && rc == 0; i++)
            rc = tierce__resp_read(resp, &value, 0);
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_int_eq(rc, failed ? -ENOMEM : 0);
        tierce__resp_close(resp);
        resp = NULL;
        ck_assert_uint_eq(tierce__alloc_live(), before);
    }
}
END_TEST

/* ---- TLS ------------------------------------------------------------------------------------- */

static const char *in_dir(const char *name)
{
    static char paths[8][128];
    static size_t next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", server.dir, name);
    return path;
}

START_TEST(test_tls)
{
    redis_kill(&server);
    ck_assert(tls_make_certificates(server.dir));
    ck_assert(redis_run(&server, true,
                        (const char *[]){"--tls-cert-file", "s.pem", "--tls-key-file", "s.key",
                                         "--tls-ca-cert-file", "ca.pem", "--tls-auth-clients",
                                         "optional", NULL}));
    struct tierce__resp_opts opts = tcp_opts();
    opts.tls = true;
    opts.ca_file = in_dir("ca.pem");
    opts.client_certificate = in_dir("s.pem");
    opts.client_key = in_dir("s.key");
    open_client(&opts);
    char *memory = calloc(1, LARGE / 8), *back = malloc(LARGE / 8);
    memory[12345] = 'x';
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    ck_assert_int_eq(tierce__resp_append_borrowed(resp, (const char *[]){"ECHO", memory},
                                                  (size_t[]){4, LARGE / 8}, 2),
                     0);
    append("ECHO end");
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read_into(resp, back, LARGE / 8, &value, 0), 0);
    ck_assert(memcmp(memory, back, LARGE / 8) == 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    free(memory);
    free(back);
    cut_off(&opts);
    call("PING");
    call("PING"); /* the same connection: what TLS sends by itself is not an answer */
    call("CLIENT ID");
    int64_t id = value.integer;
    call("CLIENT ID");
    ck_assert_int_eq(value.integer, id);
    redis_kill(&server);
    ck_assert_int_lt(tierce__resp_begin(resp), 0);
}
END_TEST

START_TEST(test_tls_refused)
{
    redis_kill(&server);
    ck_assert(tls_make_certificates(server.dir));
    ck_assert(redis_run(&server, true,
                        (const char *[]){"--tls-cert-file", "s.pem", "--tls-key-file", "s.key",
                                         "--tls-auth-clients", "no", "--tls-ca-cert-file", "ca.pem",
                                         NULL}));
    struct tierce__resp_opts opts = tcp_opts();
    opts.tls = true;
    opts.ca_file = in_dir("other.pem");
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EPROTO);
    ck_assert_msg(strstr(why, "certificate") != NULL, "%s", why);
    opts.ca_file = in_dir("ca.pem");
    opts.host = "localhost"; /* the certificate is of the address */
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), -EPROTO);
    ck_assert_msg(strstr(why, "ostname mismatch") != NULL, "%s", why);
    opts.ca_file = in_dir("nothing.pem");
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "nothing.pem") != NULL, "%s", why);
    opts.ca_file = in_dir("ca.pem");
    opts.client_key = in_dir("nothing.key");
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), TIERCE_E_CONFIG);
    opts.client_key = NULL;
    opts.client_certificate = in_dir("s.pem"); /* without its key */
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "TLS key") != NULL, "%s", why);
    opts.client_certificate = NULL;
    /* TLS where the server does not speak it, and the other way round. */
    struct tierce__resp_opts plain = tcp_opts();
    ck_assert_int_lt(tierce__resp_open(&resp, &plain, why), 0);
    redis_kill(&server);
    ck_assert(redis_run(&server, false, NULL));
    opts.connect_timeout_ms = 200;
    ck_assert_int_lt(tierce__resp_open(&resp, &opts, why), 0);
}
END_TEST

/* ---- the pool -------------------------------------------------------------------------------- */

enum { THREADS = 8, CALLS = 500 };

static void *count_up(void *arg)
{
    for (int i = 0; i < CALLS; i++) {
        struct tierce__resp_link *client;
        struct tierce__resp_value got;
        if (tierce__resp_pool_take(arg, &client, TIERCE__DEADLINE_NEVER) != 0)
            return arg;
        int rc = tierce__resp_link_call(client, 1, (const char *[]){"INCR", "n"}, (size_t[]){4, 1},
                                        2, &got, 0);
        tierce__resp_pool_give(arg, client);
        if (rc != 0 || got.type != TIERCE__RESP_INTEGER)
            return arg;
    }
    return NULL;
}

START_TEST(test_pool)
{
    struct tierce__resp_opts opts = tcp_opts();
    struct tierce__resp_pool *pool = NULL;
    struct tierce__resp_link *taken[3], *none = NULL;
    pthread_t threads[THREADS];
    ck_assert_int_eq(tierce__resp_pool_create(
                         &pool, &(struct tierce__resp_uri){.opts = opts, .pool_max = 3}, why),
                     0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count_up, pool), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
    open_client(&opts);
    call("GET n");
    ck_assert_int_eq(atoi(value.text), THREADS * CALLS);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(tierce__resp_pool_take(pool, &taken[i], 0), 0);
    ck_assert_int_eq(tierce__resp_pool_take(pool, &none, tierce__deadline_in_ms(20)),
                     TIERCE_E_DEADLINE);
    for (int i = 0; i < 3; i++)
        tierce__resp_pool_give(pool, taken[i]);
    tierce__resp_pool_destroy(pool);
    tierce__resp_pool_destroy(NULL);
}
END_TEST

int main(void)
{
    if (!redis_is_there()) {
        fprintf(stderr, "redis-server is not installed\n");
        return 77;
    }
    return CHECK_RUN("resp_client", .seconds = 60, .setup = set_up, .teardown = tear_down,
                     .tests = {test_types, test_pipeline, test_flush_twice, test_large_values,
                               test_value_beyond_the_limit, test_database, test_authentication,
                               test_readonly, test_server_is_killed, test_retry_interval,
                               test_server_stalls, test_idle_connection_is_closed, test_no_memory,
                               test_tls, test_tls_refused, test_pool});
}
