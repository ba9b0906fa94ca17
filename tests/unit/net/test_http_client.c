/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http_client.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "script_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TEXT(text) .bytes = (text), .count = sizeof(text) - 1

static struct script_server server;
static struct tierce__curl *client;
static struct tierce__curl_answer answer;
static char url[64], why[256];
static uint64_t live;

static void start(const struct script_reply *replies, size_t count, struct tierce__curl_opts opts)
{
    live = tierce__alloc_live();
    script_server_start(&server, replies, count);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", (unsigned)server.port);
    ck_assert_int_eq(tierce__curl_create(&client, &opts), 0);
    answer = (struct tierce__curl_answer){0};
    strcpy(why, "-");
}

static void stop(void)
{
    tierce__curl_answer_clear(&answer);
    tierce__curl_destroy(client);
    script_server_stop(&server);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

static int call(struct tierce__curl_request request)
{
    request.url = url;
    tierce__curl_answer_clear(&answer);
    return tierce__curl_call(&answer, client, &request, why);
}

START_TEST(test_any_status_is_an_answer)
{
    static const struct script_reply replies[] = {
        {TEXT("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")},
        {TEXT("HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nabc")},
        {TEXT("HTTP/1.1 204 No\r\n\r\n")},
        {TEXT("HTTP/1.1 302 No\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")}};
    start(replies, 4, (struct tierce__curl_opts){.timeout_ms = 20000});
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), 0);
    ck_assert_int_eq(answer.status, 200);
    ck_assert_uint_eq(answer.bytes, 5);
    ck_assert_str_eq(answer.body, "first");
    for (size_t i = 0; i < TIERCE__JSON_SLACK; i++)
        ck_assert_int_eq(answer.body[5 + i], 0);
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 64, .body = "ask"}), 0);
    ck_assert_int_eq(answer.status, 404);
    ck_assert_str_eq(answer.body, "abc");
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 64}), 0);
    ck_assert_int_eq(answer.status, 204);
    ck_assert_str_eq(answer.body, "");
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 64}), 0);
    ck_assert_int_eq(answer.status, 302);                   /* not followed */
    ck_assert_uint_eq(atomic_load(&server.connections), 1); /* which is kept */
    stop();
}
END_TEST

START_TEST(test_a_body_has_a_limit)
{
    static const struct script_reply replies[] = {
        {TEXT("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef")}};
    start(replies, 1, (struct tierce__curl_opts){0});
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), TIERCE_E_LIMIT);
    ck_assert_ptr_null(answer.body);
    ck_assert_str_eq(why, tierce_strerror(TIERCE_E_LIMIT));
    stop();
}
END_TEST

START_TEST(test_a_long_body_grows)
{
    enum { BYTES = 300000 };
    static char reply[BYTES + 128];
    int head = snprintf(reply, 128, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BYTES);
    for (int i = 0; i < BYTES; i++)
        reply[head + i] = (char)('a' + i % 23);
    struct script_reply replies[] = {{.bytes = reply, .count = (size_t)head + BYTES}};
    start(replies, 1, (struct tierce__curl_opts){0});
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = BYTES}), 0);
    ck_assert_uint_eq(answer.bytes, BYTES);
    ck_assert_int_eq(memcmp(answer.body, reply + head, BYTES), 0);
    stop();
}
END_TEST

START_TEST(test_errors_in_words)
{
    static const struct script_reply replies[] = {{.bytes = NULL},
                                                  {TEXT("HTTP/1.1 200 OK\r\n"), .closes = true}};
    start(replies, 2, (struct tierce__curl_opts){.timeout_ms = 50});
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), TIERCE_E_DEADLINE);
    ck_assert_ptr_nonnull(strstr(why, "timed out"));
    snprintf(url, sizeof(url), "http://127.0.0.1:1/");
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), -ECONNREFUSED);
    ck_assert_ptr_nonnull(strstr(why, "127.0.0.1 port 1"));
    snprintf(url, sizeof(url), "file:///etc/passwd");
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), -EIO);
    ck_assert_str_ne(why, "");
    stop();
}
END_TEST

static void *stop_later(void *arg)
{
    (void)arg;
    usleep(50000);
    tierce__curl_stop(client);
    return NULL;
}

START_TEST(test_a_call_can_be_stopped)
{
    static const struct script_reply replies[] = {{.bytes = NULL}};
    pthread_t thread;
    start(replies, 1, (struct tierce__curl_opts){0});
    ck_assert_int_eq(pthread_create(&thread, NULL, stop_later, NULL), 0);
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), TIERCE_E_CANCELLED);
    pthread_join(thread, NULL);
    tierce__curl_wait(client, 3600000); /* returns at once */
    ck_assert_int_eq(call((struct tierce__curl_request){.bytes_max = 5}), TIERCE_E_CANCELLED);
    stop();
}
END_TEST

struct parts {
    size_t bytes;
    unsigned pauses;
    char text[16];
};

static size_t take_part(void *arg, const char *bytes, size_t count)
{
    struct parts *parts = arg;
    if (parts->pauses++ == 0)
        return TIERCE__CURL_PAUSE;
    memcpy(parts->text + parts->bytes, bytes, count);
    parts->bytes += count;
    return count;
}

START_TEST(test_a_body_in_parts)
{
    static const struct script_reply replies[] = {
        {TEXT("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef")}};
    struct parts parts = {0};
    start(replies, 1, (struct tierce__curl_opts){0});
    ck_assert(!tierce__curl_step(client)); /* nothing is in progress */
    tierce__curl_begin(
        client, &(struct tierce__curl_request){.url = url, .take = take_part, .arg = &parts});
    while (tierce__curl_step(client)) {
        if (parts.pauses == 1)
            tierce__curl_resume(client);
        tierce__curl_wait(client, 10);
    }
    ck_assert_int_eq(tierce__curl_end(&answer, client, why), 0);
    ck_assert_int_eq(answer.status, 200);
    ck_assert_ptr_null(answer.body);
    ck_assert_str_eq(parts.text, "abcdef");
    stop();
}
END_TEST

/* The bytes that the server has received. */
static void *hear(void *arg)
{
    int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC);
    static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    char *text = arg;
    size_t used = 0;
    for (ssize_t n; strstr(text, "body!") == NULL; used += (size_t)n) {
        n = recv(fd, text + used, 4095 - used, 0);
        ck_assert_int_gt(n, 0);
        text[used + (size_t)n] = '\0';
    }
    ck_assert_int_eq(send(fd, reply, sizeof(reply) - 1, MSG_NOSIGNAL), (ssize_t)sizeof(reply) - 1);
    close(fd);
    return NULL;
}

START_TEST(test_what_is_sent)
{
    char text[4096] = "";
    pthread_t thread;
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    start(NULL, 0, (struct tierce__curl_opts){.login = "me:pass:word", .closes = true});
    atomic_store(&server.ends, true); /* the script's thread leaves the listener to `hear` */
    pthread_join(server.thread, NULL);
    ck_assert_int_eq(pthread_create(&thread, NULL, hear, text), 0);
    ck_assert_int_eq(
        call((struct tierce__curl_request){.method = "PUT",
                                           .body = "the body!",
                                           .headers = {{"Content-Type", "a/b"}, {"X-Key", "v"}}}),
        0);
    pthread_join(thread, NULL);
    ck_assert_msg(strncmp(text, "PUT / HTTP/1.1\r\n", 16) == 0, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "\r\nContent-Type: a/b\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "\r\nX-Key: v\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "\r\nUser-Agent: tierce\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "\r\nAuthorization: Basic bWU6cGFzczp3b3Jk\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "\r\nContent-Length: 9\r\n"));
    tierce__curl_answer_clear(&answer);
    tierce__curl_destroy(client);
    close(server.listener);
}
END_TEST

START_TEST(test_without_memory)
{
    static const struct script_reply replies[] = {
        {TEXT("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"), .closes = true}};
    start(replies, 1, (struct tierce__curl_opts){.closes = true});
    int rc = -ENOMEM;
    for (uint64_t n = 1; rc != 0 && n < 10; n++) {
        tierce__alloc_fail_nth(n);
        rc = call((struct tierce__curl_request){.bytes_max = 9, .headers = {{"A", "b"}}});
        tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(atomic_load(&server.connections), 2); /* the header's line, the body's room */
    stop();
    struct tierce__curl *none = NULL;
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__curl_create(&none, &(struct tierce__curl_opts){0}), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_ptr_null(none);
}
END_TEST

CHECK_MAIN("http_client", .seconds = 120,
           .tests = {test_any_status_is_an_answer, test_a_body_has_a_limit, test_a_long_body_grows,
                     test_errors_in_words, test_a_call_can_be_stopped, test_a_body_in_parts,
                     test_what_is_sent, test_without_memory})
