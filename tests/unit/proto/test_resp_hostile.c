/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "net/redis/resp_client.h"
#include "net/redis/resp_cluster.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A server that does what no Redis should: one connection after another, each the same. */
static struct {
    const char *greeting; /* the answer to PING; NULL: none */
    const char *reply;    /* to the first bytes behind it */
    size_t bytes, step;   /* of the reply; how many at once */
    const char *later;    /* the reply on every connection but the first; NULL: the same */
    const char *last;     /* the reply on those behind the second; NULL: the same */
    bool writes_first;    /* the reply, before it reads anything */
    bool closes;          /* behind the reply */
    const char *password; /* that it is told, or NULL */
    int listener;
    pthread_t thread;
    char dir[40], path[60];
} fake;

static struct tierce__resp *resp;
static struct tierce__resp_value value;
static char why[TIERCE__RESP_WHY_BYTES];
static uint64_t live;

static void write_reply(int fd)
{
    for (size_t at = 0; at < fake.bytes;) {
        size_t step = fake.bytes - at < fake.step ? fake.bytes - at : fake.step;
        ssize_t n = send(fd, fake.reply + at, step, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at += (size_t)n;
    }
}

static void serve_one(int fd)
{
    char bytes[65536];
    if (recv(fd, bytes, sizeof(bytes), 0) <= 0) /* PING, which comes at once */
        return;
    if (fake.greeting != NULL)
        send(fd, fake.greeting, strlen(fake.greeting), MSG_NOSIGNAL);
    if (!fake.writes_first && recv(fd, bytes, sizeof(bytes), 0) <= 0)
        return;
    write_reply(fd);
    while (!fake.closes && recv(fd, bytes, sizeof(bytes), 0) > 0)
        continue;
}

static void *serve(void *arg)
{
    int fd;
    while ((fd = accept(fake.listener, NULL, NULL)) >= 0) {
        serve_one(fd);
        close(fd);
        if (fake.later != NULL) {
            fake.reply = fake.later;
            fake.bytes = strlen(fake.later);
            fake.later = fake.last != NULL ? fake.last : fake.later;
        }
    }
    return arg;
}

static void start(const char *greeting, const char *reply, size_t bytes, size_t step)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    fake.greeting = greeting;
    fake.reply = reply;
    fake.bytes = bytes;
    fake.step = step;
    snprintf(fake.dir, sizeof(fake.dir), "/tmp/tierce-resp-XXXXXX");
    temp_folder_make(fake.dir);
    snprintf(fake.path, sizeof(fake.path), "%s/s", fake.dir);
    memcpy(address.sun_path, fake.path, strlen(fake.path) + 1);
    fake.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fake.listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fake.listener, 8), 0);
    ck_assert_int_eq(pthread_create(&fake.thread, NULL, serve, NULL), 0);
}

static void stop(void)
{
    tierce__resp_close(resp);
    resp = NULL;
    shutdown(fake.listener, SHUT_RDWR);
    pthread_join(fake.thread, NULL);
    close(fake.listener);
    unlink(fake.path);
    temp_folder_remove(fake.dir);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

static int try_open(void)
{
    live = tierce__alloc_live();
    return tierce__resp_open(
        &resp,
        &(struct tierce__resp_opts){.size = sizeof(struct tierce__resp_opts),
                                    .host = fake.path,
                                    .password = fake.password,
                                    .connect_timeout_ms = fake.greeting != NULL ? 10000 : 300,
                                    .call_timeout_ms = 10000,
                                    .retry_interval_ms = 1},
        why);
}

static int call(uint64_t deadline_ns)
{
    return tierce__resp_call(resp, (const char *[]){"GET", "a"}, (size_t[]){3, 1}, 2, &value,
                             deadline_ns);
}

static void start_and_open(const char *reply, size_t step)
{
    start("+PONG\r\n", reply, strlen(reply), step);
    int rc = try_open();
    ck_assert_msg(rc == 0, "%s", why);
}

START_TEST(test_byte_by_byte)
{
    start_and_open("*2\r\n*1\r\n$5\r\nhello\r\n:-12\r\n", 1);
    ck_assert_int_eq(call(0), 0);
    ck_assert_uint_eq(value.count, 2);
    ck_assert_str_eq(value.items[0].items[0].text, "hello");
    ck_assert_int_eq(value.items[1].integer, -12);
    stop();
}
END_TEST

START_TEST(test_errors_are_values)
{
    static const char *const codes[] = {"LOADING", "READONLY", "MOVED", "ASK", "NOSCRIPT"};
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        char reply[64];
        snprintf(reply, sizeof(reply), "-%s what it says\r\n", codes[i]);
        start_and_open(reply, 3);
        ck_assert_int_eq(call(0), 0);
        ck_assert(tierce__resp_is_error(&value, codes[i]));
        stop();
    }
}
END_TEST

/* A server knows the password and may repeat it: shown parts of its messages never contain it. */
START_TEST(test_errors_that_repeat_the_password)
{
    static const char *const replies[] = {"-ERR no hidden here\r\n", "-hidden\r\n",
                                          "-MOVED 1 xhiddenx:6379\r\n"};
    fake.password = "hidden";
    for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++) {
        start("+OK\r\n+PONG\r\n", replies[i], strlen(replies[i]), 3);
        ck_assert_msg(try_open() == 0, "%s", why);
        ck_assert_int_eq(call(0), 0);
        ck_assert_int_eq(value.type, TIERCE__RESP_ERROR);
        ck_assert_ptr_nonnull(strstr(value.text, "hidden")); /* it means what it meant */
        ck_assert_ptr_null(strstr(tierce__resp_words(&value), "hidden"));
        stop();
    }
    start("-hidden wrong\r\n", "", 0, 1);
    ck_assert_int_eq(try_open(), -EACCES);
    ck_assert_msg(strstr(why, "hidden") == NULL, "%s", why);
    stop();
    start("+OK\r\n+PONG\r\n", "-ERR what it says\r\n", 19, 19);
    ck_assert_msg(try_open() == 0, "%s", why);
    ck_assert_int_eq(call(0), 0);
    ck_assert_str_eq(tierce__resp_words(&value), "ERR what it says");
    stop();
    fake.password = NULL;
}
END_TEST

START_TEST(test_greetings)
{
    start("-LOADING Redis is loading\r\n", "+OK\r\n", 5, 5);
    ck_assert_int_eq(try_open(), 0); /* the commands will tell */
    stop();
    start("-NOAUTH\r\n", "", 0, 1);
    ck_assert_int_eq(try_open(), -EACCES);
    stop();
    start(NULL, "", 0, 1);
    ck_assert_int_eq(try_open(), TIERCE_E_DEADLINE);
    ck_assert_msg(strstr(why, fake.path) != NULL, "%s", why);
    stop();
    start("HTTP/1.1 400 Bad Request\r\n\r\n", "", 0, 1);
    ck_assert_int_eq(try_open(), TIERCE_E_FORMAT);
    stop();
}
END_TEST

START_TEST(test_half_a_reply)
{
    start_and_open("$10\r\n01234", 4);
    ck_assert_int_eq(call(tierce__deadline_in_ms(50)), TIERCE_E_DEADLINE);
    char memory[10];
    ck_assert_int_eq(tierce__resp_begin(resp), 0);
    ck_assert_int_eq(tierce__resp_append(resp, (const char *[]){"GET"}, (size_t[]){3}, 1), 0);
    ck_assert_int_eq(tierce__resp_flush(resp, 0), 0);
    ck_assert_int_eq(tierce__resp_read_into(resp, memory, 10, &value, tierce__deadline_in_ms(50)),
                     TIERCE_E_DEADLINE);
    stop();
    fake.closes = true;
    start_and_open("$10\r\n01234", 100);
    ck_assert_int_eq(call(0), -ECONNRESET);
    stop();
    fake.closes = false;
}
END_TEST

START_TEST(test_garbage)
{
    static const char *const replies[] = {"?\r\n", "$3\r\nabcd\r\n", "+a\n+b\n", "\r\n"};
    for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++) {
        start_and_open(replies[i], 100);
        ck_assert_int_eq(call(0), TIERCE_E_FORMAT);
        ck_assert_int_eq(tierce__resp_read(resp, &value, 0), -ENOTCONN);
        stop();
    }
}
END_TEST

/* More answers than commands: the next pipeline must not use the second answer. */
START_TEST(test_unasked)
{
    start_and_open("+one\r\n+two\r\n", 100);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(call(0), 0);
        ck_assert_str_eq(value.text, "one");
    }
    stop();
}
END_TEST

/* A server that does not read before all that it has to say is taken. */
START_TEST(test_both_write)
{
    enum { BYTES = 8 << 20 };
    char *reply = malloc(BYTES), *command = calloc(1, BYTES);
    for (size_t i = 0; i < BYTES; i += 8)
        memcpy(reply + i, "+12345\r\n", 8);
    fake.writes_first = true;
    start("+PONG\r\n", reply, BYTES, BYTES);
    int rc = try_open();
    /* Answers that arrive with the greeting are unsolicited. */
    if (rc == 0)
        rc = tierce__resp_append_borrowed(resp, (const char *[]){"ECHO", command},
                                          (size_t[]){4, BYTES}, 2);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(tierce__resp_read(resp, &value, 0), 0);
    ck_assert_str_eq(value.text, "12345");
    stop();
    fake.writes_first = false;
    free(reply);
    free(command);
}
END_TEST

static struct tierce__resp_cluster *begin_cluster(void)
{
    struct tierce__resp_cluster *cluster = NULL;
    live = tierce__alloc_live();
    ck_assert_int_eq(tierce__resp_cluster_create(
                         &cluster,
                         &(struct tierce__resp_opts){.size = sizeof(struct tierce__resp_opts),
                                                     .connect_timeout_ms = 10000,
                                                     .call_timeout_ms = 10000},
                         &(struct tierce__resp_node){.host = fake.path, .port = 1}, 1),
                     0);
    tierce__resp_cluster_begin(cluster);
    return cluster;
}

/* The nodes of a cluster are where it says that they are, but no sockets of this machine. */
START_TEST(test_places_that_are_none)
{
    static const char *const hosts[] = {"", "/tmp/s", "a b", "a/b", "-\x7f", "a\nb"};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
        char reply[256];
        struct tierce__resp *node;
        int bytes =
            snprintf(reply, sizeof(reply), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%zu\r\n%s\r\n:1\r\n",
                     strlen(hosts[i]), hosts[i]);
        start("+PONG\r\n", reply, (size_t)bytes, 1000);
        struct tierce__resp_cluster *cluster = begin_cluster();
        /* "": who was asked. */
        ck_assert_int_eq(tierce__resp_cluster_node(cluster, 0, &node),
                         i == 0 ? 0 : TIERCE_E_FORMAT);
        tierce__resp_cluster_close(cluster);
        stop();
    }
}
END_TEST

START_TEST(test_redirections_to_nowhere)
{
    static const char *const texts[] = {"MOVED 1 /tmp/x:1", "ASK 1 /tmp/x:1", "MOVED 1 a b:99999",
                                        "MOVED 1 host:0",   "MOVED",          "MOVED 1 host",
                                        "ASK 1 ho$st:6379"};
    static const char slots[] = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:1\r\n";
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char reply[64];
        snprintf(reply, sizeof(reply), "-%s\r\n", texts[i]);
        fake.later = reply;
        start("+PONG\r\n", slots, sizeof(slots) - 1, 1000);
        struct tierce__resp_cluster *cluster = begin_cluster();
        ck_assert_int_eq(tierce__resp_cluster_append(cluster, 1, (const char *[]){"GET", "a"},
                                                     (size_t[]){3, 1}, 2),
                         0);
        ck_assert_int_eq(tierce__resp_cluster_run(cluster, 0), TIERCE_E_FORMAT);
        tierce__resp_cluster_close(cluster);
        stop();
        fake.later = NULL;
    }
}
END_TEST

/* WAIT counts replicas of a node that wrote nothing too, and says whatever it likes. */
START_TEST(test_replicas_of_a_node_that_wrote_nothing)
{
    static const char slots[] = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:1\r\n";
    static const struct {
        const char *later, *last, *text;
        int rc;
    } cases[] = {
        {"-MOVED 1 :2\r\n-ERR WAIT cannot be used with replica instances\r\n", "+OK\r\n:1\r\n",
         "OK", 0},
        {"-MOVED 1 :2\r\n:1\r\n", "+OK\r\n:0\r\n", NULL, TIERCE_E_DEADLINE},
        {"-OOM no memory\r\n:0\r\n", NULL, "OOM no memory", 0},
        {"+OK\r\n:0\r\n", NULL, NULL, TIERCE_E_DEADLINE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fake.later = cases[i].later;
        fake.last = cases[i].last;
        fake.closes = true;
        start("+PONG\r\n", slots, sizeof(slots) - 1, 1000);
        struct tierce__resp_cluster *cluster = begin_cluster();
        tierce__resp_cluster_wait(cluster, 1);
        ck_assert_int_eq(tierce__resp_cluster_append(cluster, 1, (const char *[]){"SET", "a", "b"},
                                                     (size_t[]){3, 1, 1}, 3),
                         0);
        ck_assert_int_eq(tierce__resp_cluster_run(cluster, 0), cases[i].rc);
        if (cases[i].rc == 0)
            ck_assert_str_eq(tierce__resp_cluster_value(cluster, 0)->text, cases[i].text);
        tierce__resp_cluster_close(cluster);
        stop();
        fake.later = fake.last = NULL;
        fake.closes = false;
    }
}
END_TEST

CHECK_MAIN("resp_hostile", .seconds = 60,
           .tests = {test_byte_by_byte, test_errors_are_values,
                     test_errors_that_repeat_the_password, test_greetings, test_half_a_reply,
                     test_garbage, test_unasked, test_both_write, test_places_that_are_none,
                     test_redirections_to_nowhere, test_replicas_of_a_node_that_wrote_nothing})
