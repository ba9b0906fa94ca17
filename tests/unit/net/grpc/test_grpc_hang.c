/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "script_server.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/grpc/grpc_client_private.h"

/* The client against servers that hang, at each step of a call, and against those that end a
 * connection. It never blocks, and every call ends by its deadline. */

enum { CALL_MS = 100, LONG_MS = 60000 };

/* Frames of HTTP/2: length, type, flags, stream. */
#define SETTINGS "\0\0\0\4\0\0\0\0\0"
/* ":status 200" of the first call */
#define HEADERS "\0\0\1\1\4\0\0\0\1\x88"
/* A message of 9 bytes, of which 3 come. */
#define HALF_A_BODY "\0\0\x08\0\0\0\0\0\1\0\0\0\0\x09half"

static struct script_server server;
static struct tierce__grpc_client *client;

struct outcome {
    unsigned done;
    uint32_t status;
    bool unsent;
    uint64_t ended_ns;
    char message[256];
};

static void take(void *arg, struct tierce__grpc_answer *answer)
{
    struct outcome *outcome = arg;
    outcome->done++;
    outcome->status = answer->status;
    outcome->unsent = answer->unsent;
    outcome->ended_ns = tierce__now_ns();
    memcpy(outcome->message, answer->message, sizeof(outcome->message));
}

static void start(struct outcome *outcome, uint32_t timeout_ms)
{
    *outcome = (struct outcome){0};
    struct tierce__grpc_request request = {
        .path = "/s/m", .body = "abc", .bytes = 3, .timeout_ms = timeout_ms};
    ck_assert_int_eq(tierce__grpc_client_start(client, &request, take, outcome), 0);
    ck_assert_uint_eq(outcome->done, 0); /* never by start */
}

/* As a thread does that waits for other things too. */
static void serve_once(void)
{
    struct pollfd fds[4];
    uint64_t until_ns = tierce__deadline_in_ms(LONG_MS);
    size_t count = tierce__grpc_client_wants(client, fds, 4, &until_ns);
    uint64_t now_ns = tierce__now_ns();
    uint64_t ms = until_ns > now_ns ? (until_ns - now_ns + TIERCE__MS_NS - 1) / TIERCE__MS_NS : 0;
    if (poll(fds, count, (int)ms) >= 0)
        tierce__grpc_client_serve(client, fds, count);
}

static void finish(const struct outcome *outcome)
{
    uint64_t until_ns = tierce__deadline_in_ms(2 * LONG_MS);
    while (outcome->done == 0) {
        ck_assert(tierce__now_ns() < until_ns);
        serve_once();
    }
    ck_assert_uint_eq(outcome->done, 1);
}

static uint32_t ask(struct outcome *outcome, uint32_t timeout_ms)
{
    start(outcome, timeout_ms);
    finish(outcome);
    return outcome->status;
}

static void open_at(uint16_t port, struct tierce__grpc_client_opts opts)
{
    char why[256];
    opts.size = sizeof(opts);
    opts.host = opts.host != NULL ? opts.host : "127.0.0.1";
    opts.port = port;
    opts.lazy = true;
    int rc = tierce__grpc_client_open(&client, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void open_script(const struct script_reply *replies, size_t count,
                        struct tierce__grpc_client_opts opts)
{
    script_server_start(&server, replies, count);
    open_at(server.port, opts);
}

static void close_script(void)
{
    tierce__grpc_client_close(client);
    client = NULL;
    script_server_stop(&server);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Three calls at once, the later ones with later deadlines, end at these. */
static void check_deadlines(void)
{
    struct outcome outcomes[3];
    uint64_t begun_ns = tierce__now_ns();
    for (uint32_t i = 0; i < 3; i++)
        start(&outcomes[i], (i + 1) * CALL_MS);
    for (uint32_t i = 0; i < 3; i++) {
        finish(&outcomes[i]);
        ck_assert_msg(outcomes[i].status == TIERCE__GRPC_DEADLINE_EXCEEDED, "%u: %s",
                      outcomes[i].status, outcomes[i].message);
        uint64_t took_ms = (outcomes[i].ended_ns - begun_ns) / TIERCE__MS_NS;
        ck_assert_uint_ge(took_ms, (i + 1) * CALL_MS - 1);
        ck_assert_uint_lt(took_ms, (i + 1) * CALL_MS + 5000);
        ck_assert(i == 0 || outcomes[i].ended_ns >= outcomes[i - 1].ended_ns);
    }
}

/* ---- hanging --------------------------------------------------------------------------------- */

static const struct hang {
    const char *name;
    struct script_reply replies[2];
    bool tls;
} hangs[] = {
    {"the handshake of TLS", {{0}}, true},
    {"settings", {{0}}, false},
    {"the headers", {{.bytes = SETTINGS, .count = sizeof(SETTINGS) - 1}}, false},
    {"the first byte of a body",
     {{.bytes = SETTINGS HEADERS, .count = sizeof(SETTINGS HEADERS) - 1}},
     false},
    {"the rest of a body",
     {{.bytes = SETTINGS HEADERS HALF_A_BODY, .count = sizeof(SETTINGS HEADERS HALF_A_BODY) - 1}},
     false},
};

START_TEST(test_hangs_before)
{
    const struct hang *hang = &hangs[_i];
    open_script(hang->replies, 1,
                (struct tierce__grpc_client_opts){.tls = hang->tls, .connect_timeout_ms = LONG_MS});
    check_deadlines();
    WAIT_FOR(atomic_load(&server.connections) == 1);
    check_deadlines(); /* over the connection that there is */
    ck_assert_uint_eq(atomic_load(&server.connections), 1);
    close_script();
}
END_TEST

/* A listener whose queue is full drops what would connect, as a host that is down does. */
static uint16_t full_listener(int fds[8])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fds[0], (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(fds[0], 0), 0);
    ck_assert_int_eq(getsockname(fds[0], (struct sockaddr *)&address, &length), 0);
    for (int i = 1; i < 8; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&address, length);
    }
    return ntohs(address.sin_port);
}

START_TEST(test_hangs_before_the_connection)
{
    int fds[8];
    struct outcome outcome;
    open_at(full_listener(fds), (struct tierce__grpc_client_opts){.connect_timeout_ms = 2000});
    check_deadlines();
    ck_assert_uint_eq(ask(&outcome, CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert(outcome.unsent);
    ck_assert_ptr_nonnull(strstr(outcome.message, "127.0.0.1:"));
    ck_assert_uint_eq(ask(&outcome, LONG_MS), TIERCE__GRPC_UNAVAILABLE); /* connect_timeout_ms */
    ck_assert(outcome.unsent);
    ck_assert_ptr_nonnull(strstr(outcome.message, "127.0.0.1:"));
    ck_assert_uint_eq(tierce__grpc_client_connected(client), 0);
    tierce__grpc_client_close(client);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* A connection whose other end is gone without a word is given up; the next call gets a new one. */
START_TEST(test_a_silent_connection_is_replaced)
{
    struct outcome outcome;
    open_script((struct script_reply[]){{0}}, 1,
                (struct tierce__grpc_client_opts){.connect_timeout_ms = 1000});
    for (int i = 0; i < 100 && atomic_load(&server.connections) < 2; i++)
        ck_assert_uint_eq(ask(&outcome, CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert_uint_ge(atomic_load(&server.connections), 2);
    close_script();
}
END_TEST

/* ---- other ends ------------------------------------------------------------------------------ */

/* It does not speak HTTP/2, and keeps the connection open: calls fail at once, with the reason. */
START_TEST(test_another_protocol)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nhi";
    struct outcome outcome;
    open_script((struct script_reply[]){{.bytes = http, .count = sizeof(http) - 1}}, 1,
                (struct tierce__grpc_client_opts){0});
    for (unsigned i = 1; i <= 2; i++) {
        ck_assert_uint_eq(ask(&outcome, LONG_MS), TIERCE__GRPC_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(outcome.message, "127.0.0.1:"));
        ck_assert_ptr_nonnull(strstr(outcome.message, "HTTP/2"));
        ck_assert_uint_eq(atomic_load(&server.connections), i);
    }
    close_script();
}
END_TEST

/* To our first bytes it answers with an alert of TLS, or it closes the connection. */
START_TEST(test_a_server_with_tls)
{
    static const char alert[] = "\x15\x03\x03\x00\x02\x02\x46";
    struct outcome outcome;
    bool says_it = _i == 1;
    open_script((struct script_reply[]){{.bytes = says_it ? alert : "",
                                         .count = says_it ? sizeof(alert) - 1 : 0,
                                         .closes = true}},
                1, (struct tierce__grpc_client_opts){0});
    ck_assert_uint_eq(ask(&outcome, LONG_MS), TIERCE__GRPC_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(outcome.message, says_it ? "requires TLS" : "sent nothing"));
    close_script();
}
END_TEST

START_TEST(test_a_server_without_tls)
{
    struct outcome outcome;
    open_script((struct script_reply[]){{.bytes = SETTINGS, .count = sizeof(SETTINGS) - 1}}, 1,
                (struct tierce__grpc_client_opts){.tls = true});
    ck_assert_uint_eq(ask(&outcome, LONG_MS), TIERCE__GRPC_UNAVAILABLE);
    ck_assert(outcome.unsent);
    ck_assert_ptr_nonnull(strstr(outcome.message, "127.0.0.1:"));
    ck_assert_ptr_nonnull(strstr(outcome.message, "TLS"));
    close_script();
}
END_TEST

START_TEST(test_nobody_listens)
{
    struct outcome outcomes[100];
    open_at(1, (struct tierce__grpc_client_opts){0});
    for (int i = 0; i < 100; i++)
        start(&outcomes[i], LONG_MS);
    for (int i = 0; i < 100; i++) {
        finish(&outcomes[i]);
        ck_assert_uint_eq(outcomes[i].status, TIERCE__GRPC_UNAVAILABLE);
        ck_assert(outcomes[i].unsent);
        ck_assert_str_eq(outcomes[i].message, "127.0.0.1:1: Connection refused");
    }
    tierce__grpc_client_close(client);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* The last number of a stream ends a connection for new calls. */
START_TEST(test_numbers_of_streams_end)
{
    struct outcome outcomes[2];
    open_script((struct script_reply[]){{0}}, 1, (struct tierce__grpc_client_opts){0});
    ck_assert_uint_eq(ask(&outcomes[0], 1), TIERCE__GRPC_DEADLINE_EXCEEDED);
    WAIT_FOR(atomic_load(&server.connections) == 1);
    struct tierce__grpc_link *link =
        TIERCE__CONTAINER_OF(client->links.next, struct tierce__grpc_link, node);
    ck_assert_int_eq(nghttp2_session_set_next_stream_id(link->session, INT32_MAX), 0);
    start(&outcomes[0], CALL_MS);
    start(&outcomes[1], CALL_MS);
    finish(&outcomes[0]);
    finish(&outcomes[1]);
    ck_assert_uint_eq(outcomes[1].status, TIERCE__GRPC_DEADLINE_EXCEEDED);
    WAIT_FOR(atomic_load(&server.connections) == 2);
    close_script();
}
END_TEST

/* ---- a session that ends --------------------------------------------------------------------- */

enum { CALLS = 100, TAKEN = 40, RESET_FIRST = 10 };

struct goer {
    int listener;
    uint16_t port;
    unsigned requests, pings;
    int32_t streams[CALLS];
};

static int on_request(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    (void)session;
    struct goer *goer = arg;
    goer->pings += frame->hd.type == NGHTTP2_PING;
    if (frame->hd.type == NGHTTP2_DATA && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        ck_assert_uint_lt(goer->requests, CALLS);
        goer->streams[goer->requests++] = frame->hd.stream_id;
    }
    return 0;
}

static bool talk(nghttp2_session *session, int fd)
{
    char bytes[4096];
    const uint8_t *out;
    for (ssize_t n; (n = nghttp2_session_mem_send(session, &out)) > 0;)
        ck_assert_int_eq(send(fd, out, (size_t)n, MSG_NOSIGNAL), n);
    ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
    ck_assert(n <= 0 || nghttp2_session_mem_recv(session, (uint8_t *)bytes, (size_t)n) == n);
    return n > 0;
}

static nghttp2_session *begin_session(struct goer *goer)
{
    nghttp2_session *session;
    nghttp2_session_callbacks *callbacks;
    ck_assert_int_eq(nghttp2_session_callbacks_new(&callbacks), 0);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_request);
    ck_assert_int_eq(nghttp2_session_server_new(&session, callbacks, goer), 0);
    ck_assert_int_eq(nghttp2_submit_settings(session, 0, NULL, 0), 0);
    nghttp2_session_callbacks_del(callbacks);
    return session;
}

/* Until the client closes. */
static void *end_session(nghttp2_session *session, int fd)
{
    while (talk(session, fd)) {
    }
    nghttp2_session_del(session);
    close(fd);
    return NULL;
}

/* Takes 100 calls; says that it goes, and serves the first 40: it resets 10, and answers 30. */
static void *go_away(void *arg)
{
    struct goer *goer = arg;
    static char status[] = ":status", ok[] = "200", code[] = "grpc-status", aborted[] = "10";
    const nghttp2_nv answer[] = {{(uint8_t *)status, (uint8_t *)ok, 7, 3, 0},
                                 {(uint8_t *)code, (uint8_t *)aborted, 11, 2, 0}};
    int fd = accept4(goer->listener, NULL, NULL, SOCK_CLOEXEC);
    nghttp2_session *session = begin_session(goer);
    while (goer->requests < CALLS && talk(session, fd)) {
    }
    ck_assert_uint_eq(goer->requests, CALLS);
    ck_assert_int_eq(nghttp2_submit_goaway(session, 0, goer->streams[TAKEN - 1], 0, NULL, 0), 0);
    for (int i = 0; i < RESET_FIRST; i++)
        ck_assert_int_eq(
            nghttp2_submit_rst_stream(session, 0, goer->streams[i], NGHTTP2_INTERNAL_ERROR), 0);
    for (int i = RESET_FIRST; i < TAKEN; i++)
        ck_assert_int_eq(nghttp2_submit_response(session, goer->streams[i], answer, 2, NULL), 0);
    return end_session(session, fd);
}

/* Answers pings, and no call. */
static void *be_slow(void *arg)
{
    struct goer *goer = arg;
    int fd = accept4(goer->listener, NULL, NULL, SOCK_CLOEXEC);
    return end_session(begin_session(goer), fd);
}

static void listen_for(struct goer *goer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    goer->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(goer->listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(goer->listener, 10), 0);
    ck_assert_int_eq(getsockname(goer->listener, (struct sockaddr *)&address, &length), 0);
    goer->port = ntohs(address.sin_port);
}

START_TEST(test_goaway_among_100_calls)
{
    struct goer goer = {0};
    struct outcome outcomes[CALLS], later;
    pthread_t thread;
    listen_for(&goer);
    ck_assert_int_eq(pthread_create(&thread, NULL, go_away, &goer), 0);
    open_at(goer.port, (struct tierce__grpc_client_opts){0});
    for (int i = 0; i < CALLS; i++)
        start(&outcomes[i], LONG_MS);
    for (int i = 0; i < CALLS; i++) {
        finish(&outcomes[i]);
        ck_assert_uint_eq(outcomes[i].status, i < RESET_FIRST ? TIERCE__GRPC_INTERNAL
                                              : i < TAKEN     ? TIERCE__GRPC_ABORTED
                                                              : TIERCE__GRPC_UNAVAILABLE);
        ck_assert_int_eq(outcomes[i].unsent, i >= TAKEN);
    }
    pthread_join(thread, NULL); /* the connection is closed */
    ck_assert_uint_eq(ask(&later, CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED); /* a new one */
    ck_assert_uint_eq(tierce__grpc_client_connected(client), 1);
    tierce__grpc_client_close(client);
    close(goer.listener);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* A server that is late keeps its connection, because it answers pings. */
START_TEST(test_a_slow_server_keeps_its_connection)
{
    struct goer goer = {0};
    struct outcome outcome;
    pthread_t thread;
    listen_for(&goer);
    ck_assert_int_eq(pthread_create(&thread, NULL, be_slow, &goer), 0);
    open_at(goer.port, (struct tierce__grpc_client_opts){.connect_timeout_ms = 2000});
    for (int i = 0; i < 30; i++)
        ck_assert_uint_eq(ask(&outcome, CALL_MS), TIERCE__GRPC_DEADLINE_EXCEEDED);
    struct pollfd second = {.fd = goer.listener, .events = POLLIN};
    ck_assert_int_eq(poll(&second, 1, 0), 0);
    tierce__grpc_client_close(client);
    pthread_join(thread, NULL);
    ck_assert_uint_gt(goer.pings, 0);
    close(goer.listener);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("grpc hang", .seconds = 120, .at_once = true,
           .loops = {{test_hangs_before, 0, CHECK_COUNT(hangs)}, {test_a_server_with_tls, 0, 2}},
           .tests = {test_hangs_before_the_connection, test_a_silent_connection_is_replaced,
                     test_a_slow_server_keeps_its_connection, test_another_protocol,
                     test_a_server_without_tls, test_nobody_listens, test_numbers_of_streams_end,
                     test_goaway_among_100_calls})
