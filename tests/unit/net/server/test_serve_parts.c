/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "test_random.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/server/addresses.h"
#include "net/server/call_private.h"
#include "net/grpc/grpc_text.h"
#include "net/listen.h"
#include "net/server/grpc/protobuf.h"
#include "net/server/routes.h"
#include "net/server/serve.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- texts ----------------------------------------------------------------------------------- */

START_TEST(test_timeouts)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {
        {"0n", 0},
        {"1n", 1},
        {"20u", 20000},
        {"100m", 100000000},
        {"5S", 5000000000},
        {"2M", 120000000000},
        {"1H", 3600000000000},
        {"00000001S", 1000000000},
        {"0000001S", 1000000000},
        {"99999999n", 99999999},
        {"99999999H", UINT64_MAX},
        {"5124095H", UINT64_C(18446742000000000000)},
        {"5124096H", UINT64_MAX},
    };
    static const char *const bad[] = {"",           "n",          "5",   "5s",  "S5",
                                      "-1S",        "+1S",        "1 S", " 1S", "1.5S",
                                      "123456789n", "000000001S", "1SS", "1Sx", "0x1S"};
    uint64_t ns;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        ck_assert_msg(tierce__grpc_timeout_parse(&ns, good[i].text), "%s", good[i].text);
        ck_assert_msg(ns == good[i].ns, "%s: %lu", good[i].text, (unsigned long)ns);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_msg(!tierce__grpc_timeout_parse(&ns, bad[i]), "%s", bad[i]);
}
END_TEST

START_TEST(test_timeouts_come_back)
{
    struct test_random random = test_random_start("timeouts");
    char text[TIERCE__GRPC_TIMEOUT_BYTES];
    for (int i = 0; i < 10000; i++) {
        uint64_t ns = test_random_u64(&random) >> test_random_below(&random, 64), back;
        tierce__grpc_timeout_print(text, ns);
        ck_assert_msg(tierce__grpc_timeout_parse(&back, text), "%s", text);
        /* Rounded up by less than a unit, which is at most 1/100000 of it. */
        ck_assert_msg(back >= ns && (back - ns <= ns / 100000), "%lu: %s", (unsigned long)ns, text);
    }
}
END_TEST

START_TEST(test_messages)
{
    static const struct {
        const char *plain, *encoded;
    } same[] = {
        {"", ""},
        {"plain text ~!", "plain text ~!"},
        {"100%", "100%25"},
        {"a\nb\tc\x7f", "a%0Ab%09c%7F"},
        {"f\xc3\xbcnf \xe2\x82\xac \xf0\x9f\x98\x80", "f%C3%BCnf %E2%82%AC %F0%9F%98%80"},
        {"\xff\xc3", "%FF%C3"},
    };
    char out[200];
    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
        size_t n = tierce__grpc_message_encode(out, sizeof(out), same[i].plain);
        ck_assert_str_eq(out, same[i].encoded);
        ck_assert_uint_eq(n, strlen(out));
        n = tierce__grpc_message_decode(out, sizeof(out), same[i].encoded, strlen(same[i].encoded));
        ck_assert_str_eq(out, same[i].plain);
        ck_assert_uint_eq(n, strlen(out));
    }
    static const char odd[] = "%, %4, %zz %4z %41%";
    tierce__grpc_message_decode(out, sizeof(out), odd, strlen(odd));
    ck_assert_str_eq(out, "%, %4, %zz %4z A%");
}
END_TEST

/* At every capacity: whole escapes and whole characters only. */
START_TEST(test_messages_are_cut_between_characters)
{
    static const char plain[] = "a\xe2\x82\xac-\xc3\xbc%z";
    static const char *const cuts[] = {"",
                                       "a",
                                       "a%E2%82%AC",
                                       "a%E2%82%AC-",
                                       "a%E2%82%AC-%C3%BC",
                                       "a%E2%82%AC-%C3%BC%25",
                                       "a%E2%82%AC-%C3%BC%25z"};
    for (size_t capacity = 1; capacity < 40; capacity++) {
        char out[40];
        size_t longest = 0;
        for (size_t i = 0; i < sizeof(cuts) / sizeof(*cuts); i++)
            if (strlen(cuts[i]) < capacity)
                longest = i;
        memset(out, '#', sizeof(out));
        tierce__grpc_message_encode(out, capacity, plain);
        ck_assert_str_eq(out, cuts[longest]);
    }
}
END_TEST

START_TEST(test_content_types)
{
    ck_assert(tierce__grpc_is_content_type("application/grpc"));
    ck_assert(tierce__grpc_is_content_type("application/grpc+proto"));
    ck_assert(tierce__grpc_is_content_type("application/grpc;charset=utf-8"));
    ck_assert(!tierce__grpc_is_content_type("application/grpc-web"));
    ck_assert(!tierce__grpc_is_content_type("application/grp"));
    ck_assert(!tierce__grpc_is_content_type(""));
}
END_TEST

/* ---- routes ---------------------------------------------------------------------------------- */

START_TEST(test_routes)
{
    static const struct tierce__route list[] = {
        {.path = "/b", .method = "POST"},  {.path = "/a"},     {.path = "/a/*"},
        {.path = "/b", .method = "GET"},   {.path = "/a/b/*"}, {.path = "/a/b/c"},
        {.path = "/d/*", .method = "PUT"}, {.path = "/bb"},
    };
    static const struct {
        const char *path, *method;
        int wanted; /* -1: none */
        const char *other;
    } cases[] = {
        {"/a", "GET", 1, NULL},     {"/a", NULL, 1, NULL},    {"/b", "POST", 0, NULL},
        {"/b", "GET", 3, NULL},     {"/b", "PUT", -1, "any"}, {"/b", NULL, 0, NULL},
        {"/bb", "X", 7, NULL},      {"/bbb", "X", -1, NULL},  {"/a/", "X", 2, NULL},
        {"/a/x", "X", 2, NULL},     {"/a/b/c", "X", 5, NULL}, {"/a/b/cc", "X", 4, NULL},
        {"/a/b/", "X", 4, NULL},    {"/a/b", "X", 2, NULL},   {"/d/x", "PUT", 6, NULL},
        {"/d/x", "GET", -1, "PUT"}, {"", "GET", -1, NULL},    {"/", "GET", -1, NULL},
    };
    struct tierce__routes routes;
    ck_assert_int_eq(tierce__routes_init(&routes, list, sizeof(list) / sizeof(*list)), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *other;
        const struct tierce__route *found =
            tierce__routes_find(&routes, &other, cases[i].path, cases[i].method);
        if (cases[i].method == NULL && cases[i].wanted == 0)
            ck_assert(found == &list[0] || found == &list[3]);
        else
            ck_assert_msg(found == (cases[i].wanted < 0 ? NULL : &list[cases[i].wanted]), "%s",
                          cases[i].path);
        if (found == NULL)
            ck_assert((other != NULL) == (cases[i].other != NULL));
    }
    tierce__routes_fini(&routes);
    ck_assert_int_eq(tierce__routes_init(&routes, NULL, 0), 0);
    const char *other;
    ck_assert_ptr_null(tierce__routes_find(&routes, &other, "/a", NULL));
    tierce__routes_fini(&routes);
}
END_TEST

/* ---- deferred calls -------------------------------------------------------------------------- */

/* A call without a connection, and its result. */
struct test_call {
    struct tierce__call call;
    struct tierce__shared shared;
    struct tierce__route route;
    int *state;
    atomic_int served, replied, released;
    uint32_t status;
};

static struct test_call test_call;

static void test_reply(struct tierce__call *call, const struct tierce__reply *reply)
{
    (void)call;
    test_call.status = reply->status;
    atomic_fetch_add(&test_call.replied, 1);
}

static void test_destroy(struct tierce__call *call)
{
    (void)call;
}

static void test_release(void *state)
{
    ck_assert_ptr_eq(state, test_call.state);
    atomic_fetch_add(&test_call.released, 1);
}

/* Leaves its state the first time; takes and releases it the second time. */
static void test_serve(void *arg, struct tierce__call *call)
{
    (void)arg;
    if (atomic_fetch_add(&test_call.served, 1) == 0) {
        ck_assert_ptr_null(tierce__call_take_state(call));
        tierce__call_defer_with(call, test_call.state, 100, test_release);
        return;
    }
    test_release(tierce__call_take_state(call));
    ck_assert_ptr_null(tierce__call_take_state(call));
    tierce__call_reply(call, &(struct tierce__reply){.status = TIERCE__GRPC_OK});
}

/* Served, or dropped on the way; all workers have ended. */
static void run_test_call(size_t held_max, bool is_over)
{
    static const struct tierce__call_ops ops = {.reply = test_reply, .destroy = test_destroy};
    static int state;
    test_call = (struct test_call){.state = &state};
    test_call.shared.held.max = held_max;
    test_call.route = (struct tierce__route){.serve = test_serve};
    ck_assert_int_eq(tierce__workers_create(&test_call.shared.workers, 1, 10), 0);
    tierce__call_init(&test_call.call, &ops, &test_call.shared);
    test_call.call.route = &test_call.route;
    test_call.call.is_over = is_over;
    tierce__call_dispatch(&test_call.call);
    tierce__workers_destroy(test_call.shared.workers);
    tierce__call_drop(&test_call.call);
    ck_assert_int_eq(atomic_load(&test_call.replied), 1);
    ck_assert_int_eq(atomic_load(&test_call.released), 1);
    ck_assert_uint_eq(test_call.shared.held.bytes, 0);
}

START_TEST(test_a_deferred_call_keeps_its_state)
{
    run_test_call(100, false);
    ck_assert_int_eq(atomic_load(&test_call.served), 2);
    ck_assert_uint_eq(test_call.status, TIERCE__GRPC_OK);
    run_test_call(100, true); /* over before its turn */
    ck_assert_int_eq(atomic_load(&test_call.served), 1);
    run_test_call(99, false); /* more than may be held */
    ck_assert_int_eq(atomic_load(&test_call.served), 1);
    ck_assert_uint_eq(test_call.status, TIERCE__GRPC_RESOURCE_EXHAUSTED);
}
END_TEST

/* ---- protobuf, addresses --------------------------------------------------------------------- */

START_TEST(test_protobuf_fields)
{
    static const uint8_t good[] = {0x08, 0x96, 0x01,                     /* 1: 150 */
                                   0x12, 2,    'h',  'i',                /* 2: "hi" */
                                   0x1d, 1,    2,    3,   4,             /* 3: fixed32 */
                                   0x21, 1,    2,    3,   4, 5, 6, 7, 8, /* 4: fixed64 */
                                   0xaa, 0x01, 0};                       /* 21: "" */
    struct tierce__protobuf in = {good, sizeof(good)};
    struct tierce__protobuf_field field;
    uint32_t numbers[] = {1, 2, 3, 4, 21};
    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(tierce__protobuf_next(&in, &field), 1);
        ck_assert_uint_eq(field.number, numbers[i]);
        if (i == 0)
            ck_assert_uint_eq(field.value, 150);
        if (i == 1)
            ck_assert(field.bytes == 2 && memcmp(field.data, "hi", 2) == 0);
    }
    ck_assert_int_eq(tierce__protobuf_next(&in, &field), 0);
    static const struct {
        size_t bytes;
        uint8_t data[12];
    } bad[] = {
        {1, {0x08}},             /* no value */
        {2, {0x08, 0x80}},       /* a value that goes on */
        {3, {0x12, 2, 'h'}},     /* too short */
        {2, {0x00, 0x00}},       /* field 0 */
        {1, {0x0b}},             /* a group */
        {4, {0x1d, 1, 2, 3}},    /* too short */
        {5, {0x21, 1, 2, 3, 4}}, /* too short */
        {11, {0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}}, /* 2^64-1 */
        {12, {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        in = (struct tierce__protobuf){bad[i].data, bad[i].bytes};
        ck_assert_msg(tierce__protobuf_next(&in, &field) == TIERCE_E_FORMAT, "%zu", i);
    }
}
END_TEST

START_TEST(test_peers)
{
    char text[TIERCE__PEER_BYTES];
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr.s_addr = htonl(0x7f000001)};
    struct sockaddr_in6 in6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(4711), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    tierce__peer_print(text, (struct sockaddr *)&in);
    ck_assert_str_eq(text, "127.0.0.1:4711");
    tierce__peer_print(text, (struct sockaddr *)&in6);
    ck_assert_str_eq(text, "[::1]:4711");
    uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
    memcpy(&in6.sin6_addr, mapped, sizeof(mapped));
    tierce__peer_print(text, (struct sockaddr *)&in6);
    ck_assert_str_eq(text, "10.0.0.1:4711");
}
END_TEST

/* ---- listening ------------------------------------------------------------------------------- */

static struct sockaddr_in address_of(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in in = address_of(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    return fd;
}

/* A connection without a free descriptor is closed instead of left waiting. Without connections the
 * loop may sleep, although accept fails for lack of a descriptor. */
START_TEST(test_accepting_without_descriptors)
{
    struct sockaddr_storage peer;
    struct rlimit before, none;
    uint16_t port = 0;
    char why[256], byte;
    int fd, spare_fd = tierce__listen_spare();
    ck_assert_int_eq(tierce__listen_tcp(&fd, &port, "127.0.0.1", why), 0);
    ck_assert_int_eq(tierce__listen_accept(fd, &spare_fd, &peer), -EAGAIN);
    int one = connect_to(port), other = connect_to(port);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)other + 1;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__listen_accept(fd, &spare_fd, &peer), -EMFILE);
        ck_assert_int_ge(spare_fd, 0);
    }
    ck_assert_int_eq(tierce__listen_accept(fd, &spare_fd, &peer), -EAGAIN);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_le(read(one, &byte, 1), 0);
    ck_assert_int_le(read(other, &byte, 1), 0);
    ck_assert_int_eq(tierce__listen_accept(fd, &spare_fd, &peer), -EAGAIN);
    close(one);
    one = connect_to(port);
    int taken = tierce__listen_accept(fd, &spare_fd, &peer);
    ck_assert_int_ge(taken, 0);
    ck_assert_int_eq(peer.ss_family, AF_INET);
    close(taken);
    close(one);
    close(other);
    close(spare_fd);
    close(fd);
}
END_TEST

static void answer_ok(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply_text(call, 200, "ok");
}

static const struct tierce__route http_route = {"/ok", "GET", answer_ok, NULL};

static struct tierce__server *start_http(void)
{
    struct tierce__server *server;
    char why[256];
    struct tierce__listener listener = {.protocol = TIERCE__SERVE_HTTP,
                                        .host = "127.0.0.1",
                                        .threads = 1,
                                        .routes = &http_route,
                                        .route_count = 1};
    struct tierce__server_opts opts = {
        .size = sizeof(opts), .listeners = &listener, .listener_count = 1, .loops = 1};
    int rc = tierce__server_start(&server, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    return server;
}

/* False: the server has closed the connection. */
static bool is_served(int fd)
{
    static const char ask[] = "GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char text[4096] = "";
    size_t bytes = 0;
    if (send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) != (int)sizeof(ask) - 1)
        return false;
    while (strstr(text, "\r\n\r\nok") == NULL) {
        struct pollfd waits = {.fd = fd, .events = POLLIN};
        ck_assert_msg(poll(&waits, 1, 60000) == 1, "no answer");
        ssize_t n = recv(fd, text + bytes, sizeof(text) - 1 - bytes, 0);
        if (n <= 0)
            return false;
        bytes += (size_t)n;
        text[bytes] = '\0';
    }
    ck_assert_msg(strncmp(text, "HTTP/1.1 200", 12) == 0, "%s", text);
    return true;
}

/* A connection that arrives at the end of the shortage may still be closed. */
static void wait_for_service(uint16_t port)
{
    bool served = false;
    while (!served) { /* or the test's time is over */
        int fd = connect_to(port);
        served = is_served(fd);
        close(fd);
    }
}

static void wait_for_end(int fd)
{
    char byte;
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    ck_assert_msg(poll(&waits, 1, 60000) == 1, "the connection is left waiting");
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
}

enum { FILES = 512 };

/* Opens files until none is left. Returns their number. */
static size_t open_all(int fds[FILES], struct rlimit *before)
{
    size_t count = 0;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, before), 0);
    struct rlimit few = {.rlim_cur = FILES, .rlim_max = before->rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    while ((fds[count] = dup(STDERR_FILENO)) >= 0)
        count++;
    ck_assert_int_eq(errno, EMFILE);
    return count;
}

static void close_all(const int fds[FILES], size_t count, const struct rlimit *before)
{
    while (count > 0)
        close(fds[--count]);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, before), 0);
}

/* A connection over HTTP that gets no descriptor is closed, so that the thread does not find it
 * again and again. */
START_TEST(test_http_without_descriptors)
{
    struct tierce__server *server = start_http();
    struct sockaddr_in in = address_of(tierce__server_port(server, 0));
    int fds[FILES], clients[3];
    struct rlimit before;
    for (size_t i = 0; i < 3; i++)
        clients[i] = socket(AF_INET, SOCK_STREAM, 0);
    size_t count = open_all(fds, &before);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(connect(clients[i], (struct sockaddr *)&in, sizeof(in)), 0);
        wait_for_end(clients[i]);
    }
    close_all(fds, count, &before);
    wait_for_service(tierce__server_port(server, 0));
    for (size_t i = 0; i < 3; i++)
        close(clients[i]);
    tierce__server_stop(server, 1000);
}
END_TEST

/* libmicrohttpd stops accepting until one of the thread's connections ends. So an idle one is
 * closed. */
START_TEST(test_http_without_descriptors_closes_an_idle_connection)
{
    struct tierce__server *server = start_http();
    struct sockaddr_in in = address_of(tierce__server_port(server, 0));
    int fds[FILES], idle = connect_to(tierce__server_port(server, 0));
    struct rlimit before;
    ck_assert(is_served(idle));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t count = open_all(fds, &before);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    wait_for_end(idle);
    struct pollfd now = {.fd = fd, .events = POLLIN};
    ck_assert_msg(poll(&now, 1, 0) == 1, "the connection was left waiting");
    close_all(fds, count, &before);
    close(fd);
    wait_for_service(tierce__server_port(server, 0));
    close(idle);
    tierce__server_stop(server, 1000);
}
END_TEST

/* ---- addresses ------------------------------------------------------------------------------- */

union any_address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* One of 40 hosts, in one of the accepted spellings. */
static union any_address from_host(struct test_random *random, unsigned host)
{
    union any_address a = {.in6 = {.sin6_port = (in_port_t)test_random_below(random, 65536)}};
    bool is_old = host < 20;
    if (is_old && test_random_below(random, 2) == 0) {
        a.in.sin_family = AF_INET;
        a.in.sin_addr.s_addr = htonl(0x0a000000u + host);
        return a;
    }
    a.in6.sin6_family = AF_INET6;
    if (is_old) { /* ::ffff:10.0.0.host */
        memcpy(a.in6.sin6_addr.s6_addr + 10, "\xff\xff\x0a\0\0", 5);
        a.in6.sin6_addr.s6_addr[15] = (uint8_t)host;
    } else { /* 2001::host:0/64, whatever is behind */
        memcpy(a.in6.sin6_addr.s6_addr, "\x20\x01", 2);
        a.in6.sin6_addr.s6_addr[7] = (uint8_t)host;
        a.in6.sin6_addr.s6_addr[12] = (uint8_t)test_random_below(random, 256);
    }
    return a;
}

START_TEST(test_addresses_have_a_limit)
{
    enum { HOSTS = 40, MAX = 3, STEPS = 20000 };
    struct test_random random = test_random_start("addresses");
    struct tierce__addresses *addresses;
    struct tierce__address held[HOSTS][MAX];
    unsigned counts[HOSTS] = {0};
    ck_assert_int_eq(tierce__addresses_create(&addresses, MAX), 0);
    for (int i = 0; i < STEPS; i++) {
        unsigned host = (unsigned)test_random_below(&random, HOSTS);
        if (counts[host] > 0 && test_random_below(&random, 2) == 0) {
            tierce__addresses_leave(addresses, &held[host][--counts[host]]);
            continue;
        }
        union any_address a = from_host(&random, host);
        struct tierce__address address;
        bool entered = tierce__addresses_enter(addresses, &address, &a.any);
        ck_assert_int_eq(entered, counts[host] < MAX);
        if (entered)
            held[host][counts[host]++] = address;
    }
    tierce__addresses_destroy(addresses);
}
END_TEST

/* After many short connections, memory is only what the present ones need. */
START_TEST(test_addresses_without_memory)
{
    struct tierce__addresses *addresses;
    struct tierce__address address;
    union any_address a = {.in = {.sin_family = AF_INET}};
    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(tierce__addresses_create(&addresses, 1), 0);
    uint64_t made = tierce__alloc_live();
    for (uint32_t i = 0; i < 100000; i++) {
        a.in.sin_addr.s_addr = htonl(i);
        ck_assert(tierce__addresses_enter(addresses, &address, &a.any));
        ck_assert(!tierce__addresses_enter(addresses, &address, &a.any));
        tierce__addresses_leave(addresses, &address);
    }
    ck_assert_uint_eq(tierce__alloc_live(), made);
    unsigned entered = 0;
    tierce__alloc_fail_nth(1);
    for (uint32_t i = 0; i < 1000; i++) {
        a.in.sin_addr.s_addr = htonl(i);
        entered += tierce__addresses_enter(addresses, &address, &a.any);
    }
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(entered, 999);
    tierce__addresses_destroy(addresses);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__addresses_create(&addresses, 1), -ENOMEM);
    tierce__alloc_fail_nth(2);
    ck_assert_int_eq(tierce__addresses_create(&addresses, 1), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

CHECK_MAIN("serve parts", .seconds = 240,
           .tests = {test_timeouts, test_timeouts_come_back, test_messages,
                     test_messages_are_cut_between_characters, test_content_types, test_routes,
                     test_a_deferred_call_keeps_its_state, test_protobuf_fields, test_peers,
                     test_accepting_without_descriptors, test_http_without_descriptors,
                     test_http_without_descriptors_closes_an_idle_connection,
                     test_addresses_have_a_limit, test_addresses_without_memory})
