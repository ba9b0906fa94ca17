/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "server_process.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/grpc/grpc_client.h"
#include "net/server/serve.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The client against the server, over sockets. */

static struct tierce__server *server;
static struct tierce__grpc_client *client;
static atomic_int waiting;
static atomic_bool gate;

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    tierce__call_reply(call,
                       &(struct tierce__reply){.body = info->body, .bytes = info->body_bytes});
}

/* On a worker, until the gate opens or nobody waits. */
static void wait_at_gate(void *arg, struct tierce__call *call)
{
    if (!tierce__call_info(call)->is_deferred) {
        atomic_fetch_add(&waiting, 1);
        tierce__call_defer(call);
        return;
    }
    while (!atomic_load(&gate) && !tierce__call_is_over(call))
        usleep(1000);
    echo(arg, call);
}

static void fail_call(void *arg, struct tierce__call *call)
{
    (void)arg;
    const char *name = tierce__call_info(call)->certificate;
    tierce__call_reply(call,
                       &(struct tierce__reply){.status = TIERCE__GRPC_ABORTED,
                                               .message = name != NULL ? name : "n\xc3\xb6%"});
}

static void header(void *arg, struct tierce__call *call)
{
    (void)arg;
    const char *text = tierce__call_header(call, "x-name");
    tierce__call_reply(call, &(struct tierce__reply){.body = text, .bytes = strlen(text)});
}

static const struct tierce__route routes[] = {{"/s/echo", NULL, echo, NULL},
                                              {"/s/wait", NULL, wait_at_gate, NULL},
                                              {"/s/fail", NULL, fail_call, NULL},
                                              {"/s/header", NULL, header, NULL}};

static void start_server(uint16_t port, const struct tierce__tls *tls)
{
    char why[256];
    struct tierce__listener listener = {
        .host = "127.0.0.1", .port = port, .routes = routes, .route_count = 4};
    if (tls != NULL)
        listener.tls = *tls;
    int rc = tierce__server_start(
        &server,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &listener,
                                      .listener_count = 1,
                                      .loops = 2},
        why);
    ck_assert_msg(rc == 0, "%s", why);
}

static int open_client(uint32_t connections, struct tierce__grpc_client_opts opts, char why[256])
{
    opts.size = sizeof(opts);
    opts.host = opts.tls ? "localhost" : "127.0.0.1";
    opts.port = tierce__server_port(server, 0);
    opts.connections = connections;
    return tierce__grpc_client_open(&client, &opts, why);
}

static void setup(void)
{
    char why[256];
    atomic_store(&gate, false);
    atomic_store(&waiting, 0);
    start_server(server_free_port(), NULL); /* a connection to reuse */
    ck_assert_int_eq(open_client(4, (struct tierce__grpc_client_opts){0}, why), 0);
}

static void teardown(void)
{
    tierce__grpc_client_close(client);
    tierce__server_stop(server, 1000);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static uint32_t ask(const char *path, const char *text, uint32_t timeout_ms,
                    struct tierce__grpc_answer *answer)
{
    struct tierce__grpc_request request = {.path = path,
                                           .body = text,
                                           .bytes = strlen(text),
                                           .timeout_ms = timeout_ms,
                                           .header_name = "x-name",
                                           .header_value = "a value"};
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, answer), 0);
    return answer->status;
}

static uint32_t status_of(const char *path, uint32_t timeout_ms)
{
    struct tierce__grpc_answer answer;
    uint32_t status = ask(path, "x", timeout_ms, &answer);
    tierce__grpc_answer_fini(&answer);
    return status;
}

START_TEST(test_unary)
{
    struct tierce__grpc_answer answer;
    static const char *const texts[] = {"", "hello"};
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(ask("/s/echo", texts[i], 10000, &answer), TIERCE__GRPC_OK);
        ck_assert_uint_eq(answer.bytes, strlen(texts[i]));
        ck_assert(answer.bytes == 0 || memcmp(answer.body, texts[i], answer.bytes) == 0);
        tierce__grpc_answer_fini(&answer);
    }
    ck_assert_uint_eq(ask("/s/header", "", 0, &answer), TIERCE__GRPC_OK);
    ck_assert(answer.bytes == 7 && memcmp(answer.body, "a value", 7) == 0);
    tierce__grpc_answer_fini(&answer);
    ck_assert_uint_eq(ask("/s/fail", "", 0, &answer), TIERCE__GRPC_ABORTED);
    ck_assert_str_eq(answer.message, "n\xc3\xb6%");
    ck_assert_uint_eq(status_of("/s/nothing", 0), TIERCE__GRPC_UNIMPLEMENTED);
}
END_TEST

START_TEST(test_long_messages)
{
    size_t bytes = 20 << 20;
    uint8_t *body = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        body[i] = (uint8_t)(i * 7 + (i >> 12));
    struct tierce__grpc_answer answer;
    struct tierce__grpc_request request = {.path = "/s/echo", .body = body, .bytes = bytes};
    ck_assert_int_eq(tierce__grpc_client_unary(client, &request, &answer), 0);
    ck_assert_uint_eq(answer.status, TIERCE__GRPC_OK);
    ck_assert_uint_eq(answer.bytes, bytes);
    ck_assert(memcmp(answer.body, body, bytes) == 0);
    tierce__grpc_answer_fini(&answer);
    free(body);
}
END_TEST

START_TEST(test_a_deadline)
{
    uint64_t begun = tierce__now_ns();
    ck_assert_uint_eq(status_of("/s/wait", 100), TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert_uint_ge(tierce__now_ns() - begun, 99 * TIERCE__MS_NS);
    ck_assert_uint_eq(status_of("/s/echo", 10000), TIERCE__GRPC_OK);
}
END_TEST

static int done_count, ok_count, left_to_start;

static void count_done(void *arg, struct tierce__grpc_answer *answer)
{
    done_count++;
    ok_count += answer->status == TIERCE__GRPC_OK;
    if (left_to_start > 0) {
        left_to_start--;
        ck_assert_int_eq(tierce__grpc_client_start(client, arg, count_done, arg), 0);
    }
}

START_TEST(test_many_in_flight)
{
    struct tierce__grpc_request request = {
        .path = "/s/echo", .body = "abc", .bytes = 3, .timeout_ms = 60000};
    left_to_start = 20000;
    for (int i = 0; i < 128; i++)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_done, &request), 0);
    while (tierce__grpc_client_poll(client, 1000) > 0) {
    }
    ck_assert_int_eq(done_count, 20128);
    ck_assert_int_eq(ok_count, 20128);
}
END_TEST

/* All wait on the server together; the gate lets them go. */
START_TEST(test_2000_calls_at_once)
{
    struct tierce__grpc_request request = {.path = "/s/wait", .body = "abc", .bytes = 3};
    for (int i = 0; i < 2000; i++)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_done, &request), 0);
    while (atomic_load(&waiting) < 2000)
        ck_assert_uint_eq(tierce__grpc_client_poll(client, 10), 2000);
    atomic_store(&gate, true);
    while (tierce__grpc_client_poll(client, 1000) > 0) {
    }
    ck_assert_int_eq(ok_count, 2000);
}
END_TEST

START_TEST(test_close_with_calls_in_flight)
{
    struct tierce__grpc_request request = {.path = "/s/wait", .body = "abc", .bytes = 3};
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_done, &request), 0);
    while (atomic_load(&waiting) < 10)
        tierce__grpc_client_poll(client, 10);
    tierce__grpc_client_close(client);
    client = NULL;
    ck_assert_int_eq(done_count, 0);
}
END_TEST

static void *stop_server(void *arg)
{
    tierce__server_stop(server, *(uint32_t *)arg);
    return NULL;
}

/* The server stops and restarts at the same port: calls in flight get an error, later calls
 * succeed. */
START_TEST(test_a_server_that_comes_back)
{
    uint16_t port = tierce__server_port(server, 0);
    uint32_t drain_ms = 50;
    struct tierce__grpc_request request = {.path = "/s/wait", .body = "abc", .bytes = 3};
    pthread_t thread;
    ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_done, &request), 0);
    while (atomic_load(&waiting) < 1)
        tierce__grpc_client_poll(client, 10);
    pthread_create(&thread, NULL, stop_server, &drain_ms);
    while (tierce__grpc_client_poll(client, 1000) > 0) {
    }
    pthread_join(thread, NULL);
    ck_assert(done_count == 1 && ok_count == 0);
    start_server(port, NULL);
    uint32_t status = TIERCE__GRPC_UNAVAILABLE;
    for (int i = 0; i < 10 && status == TIERCE__GRPC_UNAVAILABLE; i++)
        status = status_of("/s/echo", 10000);
    ck_assert_uint_eq(status, TIERCE__GRPC_OK);
}
END_TEST

START_TEST(test_a_port_where_nobody_listens)
{
    char why[256];
    struct tierce__grpc_client *other = NULL;
    struct tierce__grpc_client_opts opts = {.size = sizeof(opts), .host = "127.0.0.1", .port = 1};
    ck_assert_int_lt(tierce__grpc_client_open(&other, &opts, why), 0);
    ck_assert_ptr_nonnull(strstr(why, "127.0.0.1:1"));
    ck_assert_ptr_null(other);
}
END_TEST

START_TEST(test_a_port_that_is_taken)
{
    char why[256];
    struct tierce__server *other = NULL;
    struct tierce__listener listener = {.host = "127.0.0.1",
                                        .port = tierce__server_port(server, 0)};
    for (int i = 0; i < 2; i++) {
        listener.protocol = i == 0 ? TIERCE__SERVE_GRPC : TIERCE__SERVE_HTTP;
        ck_assert_int_lt(tierce__server_start(&other,
                                              &(struct tierce__server_opts){
                                                  .size = sizeof(struct tierce__server_opts),
                                                  .listeners = &listener,
                                                  .listener_count = 1},
                                              why),
                         0);
        ck_assert_ptr_nonnull(strstr(why, "127.0.0.1"));
    }
    ck_assert_ptr_null(other);
}
END_TEST

/* ---- TLS ------------------------------------------------------------------------------------- */

static char folder[] = "test_grpc_client.XXXXXX";

#define KEY "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "

static void make_certificates(void)
{
    char command[2048];
    temp_folder_make(folder);
    snprintf(command, sizeof(command),
             "cd %s && exec >/dev/null 2>&1 && "
             "{ " KEY "-x509 -keyout ca.key -out ca.pem -days 2 -subj /CN=ca && "
             "for name in localhost client; do " KEY
             "-keyout $name.key -out $name.csr -subj /CN=$name && "
             "echo subjectAltName=DNS:$name >ext && openssl x509 -req -in $name.csr -CA ca.pem "
             "-CAkey ca.key -CAcreateserial -days 2 -extfile ext -out $name.pem || exit 1; done; }",
             folder);
    ck_assert_int_eq(system(command), 0);
}

static const char *file(const char *name)
{
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void setup_tls(void)
{
    make_certificates();
    start_server(0, &(struct tierce__tls){.certificate = file("localhost.pem"),
                                          .key = file("localhost.key"),
                                          .client_ca = file("ca.pem")});
}

static void teardown_tls(void)
{
    char command[128];
    teardown();
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(test_mutual_tls)
{
    char why[256];
    struct tierce__grpc_answer answer;
    struct tierce__grpc_client_opts opts = {.tls = true,
                                            .ca_file = file("ca.pem"),
                                            .certificate = file("client.pem"),
                                            .key = file("client.key")};
    int rc = open_client(2, opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_uint_eq(ask("/s/fail", "", 10000, &answer), TIERCE__GRPC_ABORTED);
    ck_assert_str_eq(answer.message, "client");
    struct tierce__grpc_request request = {
        .path = "/s/echo", .body = calloc(1, 3 << 20), .bytes = 3 << 20};
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(tierce__grpc_client_start(client, &request, count_done, &request), 0);
    while (tierce__grpc_client_poll(client, 1000) > 0) {
    }
    ck_assert_int_eq(ok_count, 20);
    free((void *)(uintptr_t)request.body);
}
END_TEST

/* TLS 1.3 lets a client believe that it is connected before its certificate was looked at. */
START_TEST(test_tls_that_is_refused)
{
    char why[256];
    struct tierce__grpc_client_opts opts = {.tls = true, .ca_file = file("ca.pem")};
    if (open_client(1, opts, why) == 0) {
        struct tierce__grpc_answer answer;
        ck_assert_uint_eq(ask("/s/echo", "x", 10000, &answer), TIERCE__GRPC_UNAVAILABLE);
        tierce__grpc_client_close(client);
        client = NULL;
    }
    opts.server_name = "another.name";
    opts.certificate = file("client.pem");
    opts.key = file("client.key");
    ck_assert_int_eq(open_client(1, opts, why), TIERCE_E_REFUSED);
    opts.server_name = NULL;
    opts.ca_file = NULL; /* the system knows no such authority */
    ck_assert_int_eq(open_client(1, opts, why), TIERCE_E_REFUSED);
    opts.ca_file = file("nothing");
    ck_assert_int_eq(open_client(1, opts, why), TIERCE_E_CONFIG);
    opts.ca_file = file("ca.pem");
    opts.key = file("localhost.key");
    ck_assert_int_eq(open_client(1, opts, why), TIERCE_E_CONFIG);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("grpc_client");
    TCase *tests = tcase_create("plain");
    tcase_set_timeout(tests, 30);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_unary);
    tcase_add_test(tests, test_long_messages);
    tcase_add_test(tests, test_a_deadline);
    tcase_add_test(tests, test_many_in_flight);
    tcase_add_test(tests, test_2000_calls_at_once);
    tcase_add_test(tests, test_close_with_calls_in_flight);
    tcase_add_test(tests, test_a_server_that_comes_back);
    tcase_add_test(tests, test_a_port_where_nobody_listens);
    tcase_add_test(tests, test_a_port_that_is_taken);
    suite_add_tcase(suite, tests);
    TCase *tls = tcase_create("tls");
    tcase_set_timeout(tls, 30);
    tcase_add_checked_fixture(tls, setup_tls, teardown_tls);
    tcase_add_test(tls, test_mutual_tls);
    tcase_add_test(tls, test_tls_that_is_refused);
    suite_add_tcase(suite, tls);
    return check_main(suite);
}
