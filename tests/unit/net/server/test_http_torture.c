/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "silent_log.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/server/serve.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Each allocation of the HTTP server fails once, with requests of every kind: each gets an answer,
 * or its connection is closed, at once and not at a deadline. */

enum { LATE_MS = 10000, BODY_BYTES = 200000 };

static struct tierce__server *server;
static struct sockaddr_in address = {.sin_family = AF_INET};

/* ---- routes ---------------------------------------------------------------------------------- */

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    tierce__call_reply(call, &(struct tierce__reply){
                                 .status = 200, .body = info->body, .bytes = info->body_bytes});
}

static void echo_later(void *arg, struct tierce__call *call)
{
    if (!tierce__call_info(call)->is_deferred)
        tierce__call_defer(call);
    else
        echo(arg, call);
}

static void echo_aside(void *arg, struct tierce__call *call)
{
    if (!tierce__call_info(call)->was_aside)
        tierce__call_defer_aside(call);
    else
        echo(arg, call);
}

static void reply_heap(void *arg, struct tierce__call *call)
{
    (void)arg;
    char *body = tierce__strdup("{}");
    tierce__call_reply_heap(call, NULL, body, body != NULL ? 2 : 0);
}

static void reply_stream(void *arg, struct tierce__call *call)
{
    (void)arg;
    struct tierce__http_stream *stream = tierce__call_stream(call, "text/plain");
    if (stream == NULL) {
        tierce__call_reply_text(call, 500, "no memory\n");
        return;
    }
    (void)tierce__stream_write(stream, "event", 5);
    tierce__stream_end(stream);
}

static const struct tierce__route routes[] = {
    {"/echo", "POST", echo, NULL},          {"/later", "POST", echo_later, NULL},
    {"/aside", "POST", echo_aside, NULL},   {"/heap", "GET", reply_heap, NULL},
    {"/stream", "GET", reply_stream, NULL},
};

static void set_up(void)
{
    static const struct tierce__listener listener = {.protocol = TIERCE__SERVE_HTTP,
                                                     .host = "127.0.0.1",
                                                     .threads = 1,
                                                     .routes = routes,
                                                     .route_count = CHECK_COUNT(routes)};
    char why[256];
    silence_log();
    const struct tierce__server_opts opts = {.size = sizeof(opts),
                                             .listeners = &listener,
                                             .listener_count = 1,
                                             .workers = 1,
                                             .connections_per_address = 16};
    ck_assert_msg(tierce__server_start(&server, &opts, why) == 0, "%s", why);
    address.sin_port = htons(tierce__server_port(server, 0));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

/* ---- requests -------------------------------------------------------------------------------- */

#define LONG_HEADER                                                                                \
    "X-Long: 0123456789012345678901234567890123456789012345678901234567890123456789012345678901"   \
    "2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"     \
    "2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"     \
    "2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"     \
    "2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"     \
    "2345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\r\n"

static const struct {
    const char *line, *headers;
    size_t body_bytes;
    const char *status;
} requests[] = {
    {"POST /echo", "", 5, "200"},
    {"POST /echo", LONG_HEADER, BODY_BYTES, "200"},
    {"POST /later", "", BODY_BYTES, "200"},
    {"POST /aside", "", 5, "200"},
    {"GET /heap?a=b", "", 0, "200"},
    {"HEAD /heap", "", 0, "200"},
    {"GET /stream", "", 0, "200"},
    {"GET /none", "", 0, "404"},
    {"GET /echo", "", 0, "405"},
};

/* Sends all that is accepted; a server that rejects a request may stop reading. */
static void send_all(int fd, const char *bytes, size_t count)
{
    for (size_t sent = 0; sent < count;) {
        ssize_t n = send(fd, bytes + sent, count - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        sent += (size_t)n;
    }
}

/* Returns whether the connection was closed in time; its first bytes are in `answer`. */
static bool ask(size_t which, char answer[64])
{
    static char body[BODY_BYTES], rest[65536];
    char head[1024];
    size_t used = 0;
    int bytes = snprintf(head, sizeof(head),
                         "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s"
                         "Content-Length: %zu\r\n\r\n",
                         requests[which].line, requests[which].headers, requests[which].body_bytes);
    ck_assert_int_lt(bytes, (int)sizeof(head));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    send_all(fd, head, (size_t)bytes);
    send_all(fd, body, requests[which].body_bytes);
    answer[0] = '\0';
    uint64_t until_ns = tierce__deadline_in_ms(LATE_MS);
    bool is_closed = false;
    while (!is_closed && tierce__now_ns() < until_ns) {
        struct pollfd fds = {.fd = fd, .events = POLLIN};
        if (poll(&fds, 1, 100) <= 0)
            continue;
        ssize_t n = recv(fd, rest, sizeof(rest), 0);
        is_closed = n <= 0;
        for (ssize_t i = 0; i < n && used < 63; i++)
            answer[used++] = rest[i];
        answer[used] = '\0';
    }
    close(fd);
    return is_closed;
}

START_TEST(every_request_ends_at_once)
{
    char answer[64];
    size_t which = (size_t)_i;
    (void)tierce__alloc_fail_nth(0);
    ck_assert(ask(which, answer));
    ck_assert_msg(strncmp(answer + 9, requests[which].status, 3) == 0, "%s", answer);
    uint64_t count = tierce__alloc_fail_nth(0);
    ck_assert_uint_ge(count, 3);
    for (uint64_t nth = 1; nth <= count; nth++) {
        (void)tierce__alloc_fail_nth(nth);
        bool is_over = ask(which, answer);
        (void)tierce__alloc_fail_nth(0);
        ck_assert_msg(is_over, "%s: allocation %lu of %lu: %s", requests[which].line,
                      (unsigned long)nth, (unsigned long)count, answer);
        ck_assert(ask(which, answer)); /* the server goes on */
        ck_assert_msg(strncmp(answer + 9, requests[which].status, 3) == 0, "%s", answer);
    }
    tierce__server_stop(server, 1000);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("http torture", .seconds = 120, .setup = set_up,
           .loops = {{every_request_ends_at_once, 0, CHECK_COUNT(requests)}})
