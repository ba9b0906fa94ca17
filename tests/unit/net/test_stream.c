/* SPDX-License-Identifier: Apache-2.0 */
#include "net/listen.h"
#include "net/stream.h"

#include "base/clock.h"
#include "check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SOON_MS 50u
#define LONG_MS 20000u

static int ends[2]; /* of a connection over a Unix socket, non-blocking */

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

static void teardown(void)
{
    close(ends[0]);
    close(ends[1]);
}

/* ---- connecting ---- */

START_TEST(test_connects_over_tcp)
{
    uint16_t port = 0;
    int listener, fd, peer, spare = tierce__listen_spare();
    struct sockaddr_storage from;
    char why[256];
    ck_assert_int_eq(tierce__listen_tcp(&listener, &port, "127.0.0.1", why), 0);
    ck_assert_int_eq(tierce__stream_connect(&fd, "127.0.0.1", port, tierce__deadline_in_ms(LONG_MS),
                                            why, sizeof(why)),
                     0);
    ck_assert_str_eq(why, "");
    ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    ck_assert_int_eq(tierce__stream_wait(listener, POLLIN, NULL, tierce__deadline_in_ms(LONG_MS)),
                     0);
    peer = tierce__listen_accept(listener, &spare, &from);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(tierce__stream_look(fd), 0);
    close(peer);
    ck_assert_int_eq(tierce__stream_wait(fd, POLLIN, NULL, tierce__deadline_in_ms(LONG_MS)), 0);
    ck_assert_int_lt(tierce__stream_look(fd), 0);
    close(fd);
    close(listener);
    close(spare);
}
END_TEST

START_TEST(test_names_a_port_without_listener)
{
    uint16_t port = 0;
    int listener, fd = -7;
    char why[256], text[64];
    ck_assert_int_eq(tierce__listen_tcp(&listener, &port, "127.0.0.1", why), 0);
    close(listener);
    ck_assert_int_eq(tierce__stream_connect(&fd, "127.0.0.1", port, tierce__deadline_in_ms(LONG_MS),
                                            why, sizeof(why)),
                     -ECONNREFUSED);
    ck_assert_int_eq(fd, -7);
    snprintf(text, sizeof(text), "cannot connect to 127.0.0.1 port %u: ", port);
    ck_assert_ptr_nonnull(strstr(why, text));
    ck_assert_int_eq(tierce__stream_connect(&fd, "no.such.host.invalid", 1,
                                            tierce__deadline_in_ms(LONG_MS), why, sizeof(why)),
                     -EHOSTUNREACH);
    ck_assert_ptr_nonnull(strstr(why, "no.such.host.invalid: "));
}
END_TEST

START_TEST(test_another_thread_stops_a_call)
{
    uint16_t port = 0;
    int listener, fd = -7;
    char why[256], byte;
    struct iovec piece = {&byte, 1};
    size_t got;
    struct tierce__stopper stopper;
    tierce__stopper_init(&stopper);
    ck_assert_int_eq(tierce__listen_tcp(&listener, &port, "127.0.0.1", why), 0);
    const struct tierce__stream_to to = {.host = "127.0.0.1", .port = port, .stopper = &stopper};
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS);
    ck_assert_int_eq(tierce__stream_connect_to(&fd, &to, deadline_ns, why, sizeof(why)), 0);
    tierce__stopper_stop(&stopper);
    ck_assert_int_eq(tierce__stream_receive(fd, &piece, 1, 1, &got, deadline_ns), -ECONNRESET);
    tierce__stopper_leave(&stopper);
    close(fd);
    fd = -7;
    ck_assert_int_eq(tierce__stream_connect_to(&fd, &to, deadline_ns, why, sizeof(why)),
                     -ECANCELED);
    ck_assert_int_eq(fd, -7);
    tierce__stopper_fini(&stopper);
    close(listener);
}
END_TEST

/* A host that answers nothing, as behind a link that was cut: here a listener whose queue is full.
 */
START_TEST(test_a_host_that_is_not_reached)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -7;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    char why[256];
    ck_assert_int_eq(bind(listener, (const struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    int filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(filler, (const struct sockaddr *)&address, bytes), 0);
    struct tierce__stream_to to = {
        .host = "127.0.0.1", .port = ntohs(address.sin_port), .connect_ms = SOON_MS};
    ck_assert_int_eq(
        tierce__stream_connect_to(&fd, &to, tierce__deadline_in_ms(LONG_MS), why, sizeof(why)),
        -ETIMEDOUT);
    to.connect_ms = LONG_MS;
    ck_assert_int_eq(
        tierce__stream_connect_to(&fd, &to, tierce__deadline_in_ms(SOON_MS), why, sizeof(why)),
        TIERCE_E_DEADLINE);
    ck_assert_int_eq(fd, -7);
    close(filler);
    close(listener);
}
END_TEST

START_TEST(test_connects_to_unix_sockets)
{
    char folder[64] = "/tmp/tierce-stream-XXXXXX", why[256], path[200];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = -7, listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    temp_folder_make(folder);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/a.sock", folder);
    ck_assert_int_eq(tierce__stream_connect_unix(&fd, address.sun_path), -ENOENT);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(tierce__stream_connect_unix(&fd, address.sun_path), -ECONNREFUSED);
    ck_assert_int_eq(fd, -7);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(tierce__stream_connect(&fd, address.sun_path, 0, 0, why, sizeof(why)), 0);
    ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    ck_assert_int_eq(tierce__stream_connect_unix(&fd, path), -ENAMETOOLONG);
    close(listener);
    unlink(address.sun_path);
    temp_folder_remove(folder);
}
END_TEST

/* ---- bytes ---- */

START_TEST(test_receives_exactly)
{
    char head[3] = "", rest[8] = "";
    struct iovec pieces[2] = {{.iov_base = head, .iov_len = 2}, {.iov_base = rest, .iov_len = 7}};
    size_t got = 0;
    ck_assert_int_eq(write(ends[1], "abcde", 5), 5);
    ck_assert_int_eq(tierce__stream_look(ends[0]), 1);
    ck_assert_int_eq(
        tierce__stream_receive(ends[0], pieces, 2, 4, &got, tierce__deadline_in_ms(LONG_MS)), 0);
    ck_assert_uint_eq(got, 5); /* `least` and what came with it */
    ck_assert_str_eq(head, "ab");
    ck_assert_str_eq(rest, "cde");
    ck_assert_int_eq(tierce__stream_look(ends[0]), 0);
}
END_TEST

START_TEST(test_waits_no_longer_than_the_deadline)
{
    char bytes[4];
    struct iovec piece = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    size_t got = 0;
    uint64_t begin = tierce__now_ns();
    ck_assert_int_eq(write(ends[1], "ab", 2), 2);
    ck_assert_int_eq(
        tierce__stream_receive(ends[0], &piece, 1, 4, &got, tierce__deadline_in_ms(SOON_MS)),
        TIERCE_E_DEADLINE);
    ck_assert_uint_ge(tierce__now_ns() - begin, SOON_MS * TIERCE__MS_NS);
    ck_assert_int_eq(tierce__stream_wait(ends[0], POLLIN, NULL, 0), TIERCE_E_DEADLINE);
}
END_TEST

START_TEST(test_reports_the_end)
{
    char bytes[4];
    struct iovec piece = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    size_t got = 0;
    ck_assert_int_eq(write(ends[1], "ab", 2), 2);
    shutdown(ends[1], SHUT_WR);
    ck_assert_int_eq(
        tierce__stream_receive(ends[0], &piece, 1, 4, &got, tierce__deadline_in_ms(LONG_MS)),
        -ECONNRESET);
    close(ends[1]);
    piece = (struct iovec){.iov_base = bytes, .iov_len = 1};
    ck_assert_int_eq(tierce__stream_send(ends[0], &piece, 1, tierce__deadline_in_ms(LONG_MS)),
                     -EPIPE); /* and no signal */
    ck_assert_int_lt(tierce__stream_look(ends[0]), 0);
    ends[1] = dup(ends[0]);
}
END_TEST

#define MANY_BYTES ((size_t)4 << 20) /* more than the buffers of a socket */

static void *receive_many(void *arg)
{
    uint8_t *bytes = arg;
    struct iovec piece = {.iov_base = bytes, .iov_len = MANY_BYTES};
    return tierce__stream_receive_passed(ends[1], piece, NULL, tierce__deadline_in_ms(LONG_MS)) == 0
               ? arg
               : NULL;
}

START_TEST(test_sends_all_pieces)
{
    uint8_t *sent = malloc(MANY_BYTES), *came = calloc(1, MANY_BYTES);
    pthread_t thread;
    void *ok;
    for (size_t i = 0; i < MANY_BYTES; i++)
        sent[i] = (uint8_t)(i * 31 >> 3);
    struct iovec pieces[4] = {{.iov_base = sent, .iov_len = 0},
                              {.iov_base = sent, .iov_len = 5},
                              {.iov_base = sent, .iov_len = 0},
                              {.iov_base = sent + 5, .iov_len = MANY_BYTES - 5}};
    ck_assert_int_eq(pthread_create(&thread, NULL, receive_many, came), 0);
    ck_assert_int_eq(tierce__stream_send(ends[0], pieces, 4, tierce__deadline_in_ms(LONG_MS)), 0);
    pthread_join(thread, &ok);
    ck_assert_ptr_nonnull(ok);
    ck_assert_int_eq(memcmp(sent, came, MANY_BYTES), 0);
    /* No reader: the buffers fill up, and the deadline ends it. */
    struct iovec piece = {.iov_base = sent, .iov_len = MANY_BYTES};
    ck_assert_int_eq(tierce__stream_send(ends[0], &piece, 1, tierce__deadline_in_ms(SOON_MS)),
                     TIERCE_E_DEADLINE);
    free(sent);
    free(came);
}
END_TEST

/* ---- descriptors ---- */

static int open_count(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Sends two bytes with `count` copies of standard input. */
static void pass(int count)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control;
    int fds[3] = {0, 0, 0};
    struct iovec piece = {.iov_base = (char[]){'a', 'b'}, .iov_len = 2};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    memset(&control, 0, sizeof(control));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, (size_t)count * sizeof(int));
    ck_assert_int_eq(sendmsg(ends[1], &message, 0), 2);
}

START_TEST(test_takes_one_descriptor)
{
    char bytes[4];
    struct iovec piece = {.iov_base = bytes, .iov_len = 2};
    int passed = 99, before = open_count();
    pass(3);
    ck_assert_int_eq(
        tierce__stream_receive_passed(ends[0], piece, &passed, tierce__deadline_in_ms(LONG_MS)), 0);
    ck_assert_int_ge(passed, 0);
    ck_assert_int_eq(open_count(), before + 1);
    ck_assert_int_ne(fcntl(passed, F_GETFD) & FD_CLOEXEC, 0);
    close(passed);
    pass(1); /* not asked for */
    ck_assert_int_eq(
        tierce__stream_receive_passed(ends[0], piece, NULL, tierce__deadline_in_ms(LONG_MS)), 0);
    ck_assert_int_eq(open_count(), before);
    ck_assert_int_eq(write(ends[1], "ab", 2), 2);
    ck_assert_int_eq(
        tierce__stream_receive_passed(ends[0], piece, &passed, tierce__deadline_in_ms(LONG_MS)), 0);
    ck_assert_int_eq(passed, -1);
    pass(1); /* the rest does not come */
    piece.iov_len = 4;
    ck_assert_int_eq(
        tierce__stream_receive_passed(ends[0], piece, &passed, tierce__deadline_in_ms(SOON_MS)),
        TIERCE_E_DEADLINE);
    ck_assert_int_eq(passed, -1);
    ck_assert_int_eq(open_count(), before);
}
END_TEST

CHECK_MAIN("stream", .seconds = 120, .setup = setup, .teardown = teardown,
           .tests = {test_connects_over_tcp, test_names_a_port_without_listener,
                     test_another_thread_stops_a_call, test_a_host_that_is_not_reached,
                     test_connects_to_unix_sockets, test_receives_exactly,
                     test_waits_no_longer_than_the_deadline, test_reports_the_end,
                     test_sends_all_pieces, test_takes_one_descriptor})
