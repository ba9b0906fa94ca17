/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "delay_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- an echo server -------------------------------------------------------------------------- */

struct echo {
    int listener;
    uint16_t port;
    pthread_t thread;
};

static void *echo_one(void *arg)
{
    int fd = (int)(intptr_t)arg;
    static _Thread_local char bytes[65536];
    for (ssize_t n; (n = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
        for (ssize_t sent = 0, more; sent < n; sent += more) {
            more = send(fd, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
            if (more <= 0)
                n = 0;
        }
    }
    close(fd);
    return NULL;
}

static void *echo_all(void *arg)
{
    struct echo *echo = arg;
    for (int fd; (fd = accept(echo->listener, NULL, NULL)) >= 0;) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, echo_one, (void *)(intptr_t)fd), 0);
        pthread_detach(thread);
    }
    return NULL;
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}

static void listen_at(struct echo *echo)
{
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    echo->listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(echo->listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(echo->listener, 64), 0);
    ck_assert_int_eq(getsockname(echo->listener, (struct sockaddr *)&address, &length), 0);
    echo->port = ntohs(address.sin_port);
}

static void echo_start(struct echo *echo)
{
    listen_at(echo);
    ck_assert_int_eq(pthread_create(&echo->thread, NULL, echo_all, echo), 0);
}

static void echo_stop(struct echo *echo)
{
    shutdown(echo->listener, SHUT_RDWR);
    pthread_join(echo->thread, NULL);
    close(echo->listener);
}

/* ---- a client -------------------------------------------------------------------------------- */

static int open_client(uint16_t port)
{
    struct sockaddr_in address = loopback(port);
    struct timeval limit = {.tv_sec = 30};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    return fd;
}

static void hear(int fd, char *bytes, size_t count)
{
    for (size_t have = 0; have < count;) {
        ssize_t n = recv(fd, bytes + have, count - have, 0);
        ck_assert_msg(n > 0, "%zd after %zu of %zu bytes: %s", n, have, count, strerror(errno));
        have += (size_t)n;
    }
}

/* How long a byte takes to the server and back. */
static uint64_t trip_ns(int fd)
{
    char byte = 'x';
    uint64_t begin = tierce__now_ns();
    ck_assert_int_eq(send(fd, &byte, 1, 0), 1);
    hear(fd, &byte, 1);
    return tierce__now_ns() - begin;
}

static struct echo echo;
static struct delay_proxy proxy;

static void start_link(void)
{
    echo_start(&echo);
    delay_proxy_start(&proxy, "test_slow_link", echo.port, 5000);
}

static void stop_link(void)
{
    delay_proxy_stop(&proxy);
    echo_stop(&echo);
}

/* ---- delays ---------------------------------------------------------------------------------- */

/* Never less than was asked for; and, as another process may keep the processors for a while, not
 * much more for one trip of many at least. */
START_TEST(test_a_byte_takes_a_round_trip)
{
    for (size_t i = 0; i < sizeof(delay_proxy_round_trips_us) / sizeof(uint32_t); i++) {
        uint64_t wanted_ns = delay_proxy_round_trips_us[i] * 1000ull, best_ns = UINT64_MAX;
        delay_proxy_set(&proxy, delay_proxy_round_trips_us[i]);
        uint64_t begin = tierce__now_ns();
        int fd = open_client(proxy.port);
        trip_ns(fd);
        ck_assert_uint_ge(tierce__now_ns() - begin, 2 * wanted_ns); /* with the handshake */
        for (unsigned n = 0; n < 500 && best_ns > 20 * wanted_ns; n++) {
            uint64_t ns = trip_ns(fd);
            ck_assert_uint_ge(ns, wanted_ns);
            best_ns = ns < best_ns ? ns : best_ns;
        }
        ck_assert_uint_le(best_ns, 20 * wanted_ns);
        close(fd);
    }
}
END_TEST

/* Pipelined requests are answered together. */
START_TEST(test_a_pipeline_takes_one_round_trip)
{
    enum { COUNT = 50 };
    char bytes[COUNT];
    delay_proxy_set(&proxy, 30000);
    int fd = open_client(proxy.port);
    trip_ns(fd);
    uint64_t begin = tierce__now_ns();
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(send(fd, "x", 1, 0), 1);
    hear(fd, bytes, COUNT);
    ck_assert_uint_lt(tierce__now_ns() - begin, COUNT / 2 * 30000000ull);
    close(fd);
}
END_TEST

START_TEST(test_the_rate_is_shared)
{
    enum { BYTES = 1 << 20, CLIENTS = 4, RATE = 32 << 20 };
    static char bytes[BYTES];
    struct delay_proxy slow;
    int fds[CLIENTS];
    delay_proxy_start_with(
        &slow, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                .port = echo.port,
                                                .bytes_per_s = RATE});
    uint64_t best_ns = UINT64_MAX, wanted_ns = CLIENTS * 1000000000ull * BYTES / RATE;
    for (int tries = 0; tries < 20 && best_ns > 20 * wanted_ns; tries++) {
        uint64_t begin = tierce__now_ns();
        for (int i = 0; i < CLIENTS; i++) {
            fds[i] = open_client(slow.port);
            ck_assert_int_eq(send(fds[i], bytes, BYTES, 0), BYTES);
        }
        for (int i = 0; i < CLIENTS; i++) {
            hear(fds[i], bytes, BYTES);
            close(fds[i]);
        }
        uint64_t ns = tierce__now_ns() - begin;
        ck_assert_uint_ge(ns, wanted_ns - wanted_ns / 100);
        best_ns = ns < best_ns ? ns : best_ns;
    }
    ck_assert_uint_le(best_ns, 20 * wanted_ns);
    delay_proxy_stop(&slow);
}
END_TEST

/* ---- bytes ----------------------------------------------------------------------------------- */

struct talker {
    int fd;
    uint64_t seed;
};

enum { TALK_BYTES = 3 << 20 };

static void *talk(void *arg)
{
    struct talker *talker = arg;
    struct test_random random = {talker->seed};
    static _Thread_local char bytes[200000];
    for (size_t sent = 0, most; sent < TALK_BYTES; sent += most) {
        most = 1 + test_random_below(&random, sizeof(bytes) - 1);
        most = most < TALK_BYTES - sent ? most : TALK_BYTES - sent;
        for (size_t i = 0; i < most; i++)
            bytes[i] = (char)((sent + i) * 7 + ((sent + i) >> 9) + talker->seed);
        for (size_t done = 0; done < most;) {
            ssize_t n = send(talker->fd, bytes + done, most - done, 0);
            ck_assert_int_gt(n, 0);
            done += (size_t)n;
        }
    }
    ck_assert_int_eq(shutdown(talker->fd, SHUT_WR), 0);
    return NULL;
}

/* With more jitter than delay, and the end of each stream behind its last byte. */
START_TEST(test_bytes_keep_their_order)
{
    enum { TALKERS = 6 };
    static char heard[TALK_BYTES + 1];
    struct test_random random = test_random_start("test_bytes_keep_their_order");
    struct delay_proxy jumpy;
    struct talker talkers[TALKERS];
    pthread_t threads[TALKERS];
    delay_proxy_start_with(
        &jumpy, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                 .port = echo.port,
                                                 .round_trip_ns = 200000,
                                                 .jitter_ns = 3000000,
                                                 .seed = random.state});
    for (uint64_t i = 0; i < TALKERS; i++) {
        talkers[i] = (struct talker){open_client(jumpy.port), random.state + i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, talk, &talkers[i]), 0);
    }
    for (uint64_t i = 0; i < TALKERS; i++) {
        size_t at = 0;
        hear(talkers[i].fd, heard, TALK_BYTES);
        while (at < TALK_BYTES && heard[at] == (char)(at * 7 + (at >> 9) + talkers[i].seed))
            at++;
        ck_assert_uint_eq(at, TALK_BYTES);
        ck_assert_int_eq(recv(talkers[i].fd, heard, 1, 0), 0);
        pthread_join(threads[i], NULL);
        close(talkers[i].fd);
    }
    struct tierce__slow_link_stats stats = delay_proxy_stats(&jumpy);
    ck_assert_uint_eq(stats.bytes_up, (uint64_t)TALKERS * TALK_BYTES);
    ck_assert_uint_eq(stats.bytes_down, (uint64_t)TALKERS * TALK_BYTES);
    ck_assert_uint_eq(stats.connections, TALKERS);
    delay_proxy_stop(&jumpy);
}
END_TEST

/* A receiver that does not read stops its sender. How much the kernel holds in addition, on both
 * sides of the link, depends on its limits and on the speed of the link's thread. */
START_TEST(test_what_is_on_its_way_is_bounded)
{
    enum { KERNEL_MAX = 7 }; /* windows */
    static char bytes[1 << 20];
    struct echo silent;
    listen_at(&silent); /* accepts by its queue, and reads nothing */
    struct delay_proxy full;
    delay_proxy_start(&full, "test_what_is_on_its_way_is_bounded", silent.port, 200);
    int fd = open_client(full.port);
    size_t sent = 0;
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    while (poll(&polled, 1, 2000) == 1 ||
           delay_proxy_stats(&full).held_max < TIERCE__SLOW_LINK_WINDOW) {
        ssize_t n = send(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        ck_assert(n > 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        ck_assert_uint_lt(sent, (1 + KERNEL_MAX) * (uint64_t)TIERCE__SLOW_LINK_WINDOW);
    }
    uint64_t held = delay_proxy_stats(&full).held_max;
    ck_assert_uint_lt(held, TIERCE__SLOW_LINK_WINDOW + TIERCE__SLOW_LINK_TURN);
    ck_assert_uint_le(held, sent);
    close(fd);
    delay_proxy_stop(&full);
    close(silent.listener);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(test_cut)
{
    char byte;
    int fds[2] = {open_client(proxy.port), open_client(proxy.port)};
    for (int i = 0; i < 2; i++)
        trip_ns(fds[i]);
    delay_proxy_cut(&proxy);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(recv(fds[i], &byte, 1, 0), -1);
        ck_assert_int_eq(errno, ECONNRESET);
        close(fds[i]);
    }
    ck_assert_uint_eq(delay_proxy_stats(&proxy).open, 0);
    int fd = open_client(proxy.port);
    trip_ns(fd);
    close(fd);
}
END_TEST

START_TEST(test_freeze)
{
    char byte;
    int fd = open_client(proxy.port);
    trip_ns(fd);
    delay_proxy_freeze(&proxy, true);
    int later = open_client(proxy.port); /* the kernel accepts it */
    ck_assert_int_eq(send(fd, "a", 1, 0), 1);
    ck_assert_int_eq(send(later, "b", 1, 0), 1);
    struct pollfd polled[] = {{.fd = fd, .events = POLLIN}, {.fd = later, .events = POLLIN}};
    ck_assert_int_eq(poll(polled, 2, 300), 0);
    delay_proxy_freeze(&proxy, false);
    hear(fd, &byte, 1);
    ck_assert_int_eq(byte, 'a');
    hear(later, &byte, 1);
    ck_assert_int_eq(byte, 'b');
    close(fd);
    close(later);
}
END_TEST

START_TEST(test_no_server)
{
    char byte;
    echo_stop(&echo);
    int fd = open_client(proxy.port);
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
    echo_start(&echo);
}
END_TEST

CHECK_MAIN("slow_link", .seconds = 60, .setup = start_link, .teardown = stop_link,
           .tests = {test_a_byte_takes_a_round_trip, test_a_pipeline_takes_one_round_trip,
                     test_the_rate_is_shared, test_bytes_keep_their_order,
                     test_what_is_on_its_way_is_bounded, test_cut, test_freeze, test_no_server})
