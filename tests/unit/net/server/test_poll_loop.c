/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "net/server/poll_door.h"
#include "net/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One end of a socket pair on the loop; the test has the other. */
struct end {
    struct tierce__poll_source source;
    struct tierce__poll_loop *loop;
    struct end *victim; /* closed when this one is ready */
    atomic_int calls, repeats;
    atomic_uint events;
    unsigned repeats_wanted;
    int peer;
};

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    struct end *end = TIERCE__CONTAINER_OF(source, struct end, source);
    ck_assert(tierce__loop_is_here(&end->loop->base));
    atomic_fetch_or(&end->events, events);
    if (end->victim != NULL)
        tierce__poll_close(&end->victim->source);
    if (events == 0)
        end->repeats++;
    if (end->repeats_wanted > 0) {
        end->repeats_wanted--;
        tierce__poll_again(end->loop, source);
    }
    atomic_fetch_add(&end->calls, 1);
}

static void watch(void *arg)
{
    struct end *end = arg;
    ck_assert_int_eq(tierce__poll_watch(end->loop, &end->source), 0);
}

static void stop_watching(void *arg)
{
    tierce__poll_close(&((struct end *)arg)->source);
}

static void open_end(struct end *end, struct tierce__poll_loop *loop)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    *end = (struct end){.source = {.fd = fds[0], .ready = on_ready}, .loop = loop, .peer = fds[1]};
}

static void close_end(struct end *end)
{
    tierce__loop_call(&end->loop->base, stop_watching, end);
    close(end->peer);
}

static void wait_for(const struct end *end, unsigned event)
{
    while ((atomic_load(&end->events) & event) == 0) /* or the test's time is over */
        usleep(100);
}

static void do_nothing(void *arg)
{
    (void)arg;
}

START_TEST(a_source_hears_of_input_and_of_the_end)
{
    struct tierce__poll_loop *loop;
    struct end end;
    ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
    open_end(&end, loop);
    tierce__loop_call(&loop->base, watch, &end);
    wait_for(&end, EPOLLOUT);
    ck_assert_uint_eq(atomic_load(&end.events) & EPOLLIN, 0);
    ck_assert_int_eq(write(end.peer, "x", 1), 1);
    wait_for(&end, EPOLLIN);
    ck_assert_uint_eq(atomic_load(&end.events) & EPOLLRDHUP, 0);
    int calls = atomic_load(&end.calls);
    for (int i = 0; i < 10; i++) /* edge triggered: unread input is reported once */
        tierce__loop_call(&loop->base, do_nothing, NULL);
    ck_assert_int_eq(atomic_load(&end.calls), calls);
    ck_assert_int_eq(shutdown(end.peer, SHUT_WR), 0);
    wait_for(&end, EPOLLRDHUP);
    close_end(&end);
    ck_assert_int_eq(end.source.fd, -1);
    tierce__poll_loop_stop(loop);
    tierce__poll_loop_stop(NULL);
}
END_TEST

START_TEST(a_source_that_repeats_lets_others_have_their_turn)
{
    struct tierce__poll_loop *loop;
    struct end busy, other;
    ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
    open_end(&busy, loop);
    open_end(&other, loop);
    busy.repeats_wanted = UINT32_MAX;
    tierce__loop_call(&loop->base, watch, &busy);
    wait_for(&busy, EPOLLOUT);
    tierce__loop_call(&loop->base, watch, &other);
    wait_for(&other, EPOLLOUT);
    ck_assert_int_eq(write(other.peer, "x", 1), 1);
    wait_for(&other, EPOLLIN);
    ck_assert_int_eq(atomic_load(&other.repeats), 0);
    while (atomic_load(&busy.repeats) < 100)
        usleep(100);
    close_end(&busy); /* is called no more, although it asked for another turn */
    int calls = atomic_load(&busy.calls);
    for (int i = 0; i < 10; i++)
        tierce__loop_call(&loop->base, do_nothing, NULL);
    ck_assert_int_eq(atomic_load(&busy.calls), calls);
    close_end(&other);
    tierce__poll_loop_stop(loop);
}
END_TEST

/* Both get an event in the same round; the one that is called first closes the other. */
static void make_both_ready(void *arg)
{
    struct end *ends = arg;
    for (int i = 0; i < 2; i++) {
        ends[i].victim = &ends[1 - i];
        atomic_store(&ends[i].events, 0);
        ck_assert_int_eq(write(ends[i].peer, "x", 1), 1);
    }
}

START_TEST(a_source_that_was_closed_in_the_round_is_not_called)
{
    struct tierce__poll_loop *loop;
    struct end ends[2];
    ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 2; i++) {
            open_end(&ends[i], loop);
            tierce__loop_call(&loop->base, watch, &ends[i]);
            wait_for(&ends[i], EPOLLOUT);
        }
        tierce__loop_call(&loop->base, make_both_ready, ends);
        while (((atomic_load(&ends[0].events) | atomic_load(&ends[1].events)) & EPOLLIN) == 0)
            usleep(100);
        tierce__loop_call(&loop->base, do_nothing, NULL);
        unsigned both = atomic_load(&ends[0].events) & atomic_load(&ends[1].events);
        ck_assert_uint_eq(both & EPOLLIN, 0);
        for (int i = 0; i < 2; i++)
            close_end(&ends[i]);
    }
    tierce__poll_loop_stop(loop);
}
END_TEST

struct alarm {
    struct tierce__deadline deadline;
    struct tierce__poll_loop *loop;
    atomic_bool rang;
};

static void ring(struct tierce__deadline *deadline)
{
    atomic_store(&TIERCE__CONTAINER_OF(deadline, struct alarm, deadline)->rang, true);
}

static void set_alarm(void *arg)
{
    struct alarm *alarm = arg;
    alarm->deadline.expired = ring;
    ck_assert_int_eq(tierce__deadline_set(&alarm->loop->base.deadlines, &alarm->deadline,
                                          tierce__deadline_in_ms(20)),
                     0);
}

START_TEST(a_loop_without_events_keeps_its_deadlines)
{
    struct alarm alarm = {0};
    ck_assert_int_eq(tierce__poll_loop_start(&alarm.loop), 0);
    uint64_t from_ns = tierce__now_ns();
    tierce__loop_call(&alarm.loop->base, set_alarm, &alarm);
    while (!atomic_load(&alarm.rang))
        usleep(100);
    ck_assert_uint_ge(tierce__now_ns() - from_ns, 20 * TIERCE__MS_NS);
    tierce__poll_loop_stop(alarm.loop);
}
END_TEST

static atomic_int accepted;

static void count_and_close(struct tierce__poll_door *door, int fd,
                            const struct sockaddr_storage *peer)
{
    ck_assert(tierce__loop_is_here(&door->loop->base));
    ck_assert_int_eq(peer->ss_family, AF_INET);
    close(fd);
    atomic_fetch_add(&accepted, 1);
}

START_TEST(a_door_passes_connections_on_until_it_is_closed)
{
    enum { MANY = 200 }; /* more than are accepted at once */
    struct tierce__poll_loop *loop;
    char why[256];
    int fds[MANY];
    ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
    struct tierce__poll_door other = {.loop = loop, .accepted = count_and_close};
    struct tierce__poll_door door = {
        .loop = loop, .accepted = count_and_close, .shortage = "no_descriptor"};
    ck_assert_int_eq(tierce__poll_door_open(&door, "127.0.0.1", why), 0);
    other.port = door.port;
    ck_assert_int_eq(tierce__poll_door_open(&other, "127.0.0.1", why), -EADDRINUSE);
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(tierce__stream_connect(&fds[i], "127.0.0.1", door.port,
                                                tierce__deadline_in_ms(10000), why, sizeof(why)),
                         0);
    while (atomic_load(&accepted) < MANY)
        usleep(100);
    tierce__poll_door_close(&door);
    int fd;
    ck_assert_int_lt(tierce__stream_connect(&fd, "127.0.0.1", door.port,
                                            tierce__deadline_in_ms(10000), why, sizeof(why)),
                     0);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    ck_assert_int_eq(atomic_load(&accepted), MANY);
    tierce__poll_loop_stop(loop);
}
END_TEST

static atomic_int accept_error, accept_calls;

/* libc's, and it can fail. */
int accept4(int fd, __SOCKADDR_ARG address, socklen_t *restrict bytes, int flags)
{
    atomic_fetch_add(&accept_calls, 1);
    errno = atomic_load(&accept_error);
    return errno != 0 ? -1 : (int)syscall(SYS_accept4, fd, address.__sockaddr__, bytes, flags);
}

/* Connects to a door that cannot accept. It tries again, but not all the time. */
static void expect_pauses(struct tierce__poll_door *door, int client, int calls_of_a_try)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(door->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int tries = 3 * calls_of_a_try;
    uint64_t from_ns = tierce__now_ns();
    atomic_store(&accept_calls, 0);
    ck_assert_int_eq(connect(client, (struct sockaddr *)&address, sizeof(address)), 0);
    while (atomic_load(&accept_calls) < tries)
        usleep(1000);
    ck_assert_uint_ge(tierce__now_ns() - from_ns, 200 * TIERCE__MS_NS);
    ck_assert_int_eq(atomic_load(&accepted), 0);
}

static void lose_spare(void *arg)
{
    struct tierce__poll_door *door = arg;
    close(door->spare_fd);
    door->spare_fd = -1;
}

START_TEST(a_door_that_cannot_accept_tries_again_later)
{
    static const int errors[] = {ENOMEM, ENOBUFS, EPROTO, ENETDOWN, 0};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        struct tierce__poll_loop *loop;
        struct rlimit before, none = {0};
        char why[256];
        int client = socket(AF_INET, SOCK_STREAM, 0);
        ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
        struct tierce__poll_door door = {
            .loop = loop, .accepted = count_and_close, .shortage = "no_descriptor"};
        ck_assert_int_eq(tierce__poll_door_open(&door, "127.0.0.1", why), 0);
        atomic_store(&accepted, 0);
        atomic_store(&accept_error, errors[i]);
        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
        if (errors[i] == 0) { /* no descriptor is left, not even the spare one */
            tierce__loop_call(&loop->base, lose_spare, &door);
            none.rlim_max = before.rlim_max;
            ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        }
        expect_pauses(&door, client, errors[i] == 0 ? 2 : 1);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
        atomic_store(&accept_error, i == 1 ? ENOMEM : 0); /* one closes while it pauses */
        while (i != 1 && atomic_load(&accepted) == 0)
            usleep(1000);
        tierce__poll_door_close(&door);
        close(client);
        tierce__poll_loop_stop(loop);
    }
}
END_TEST

START_TEST(the_emptiest_loop_is_the_one_with_the_fewest_members)
{
    struct tierce__poll_loop *loops[3];
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(tierce__poll_loop_start(&loops[i]), 0);
        atomic_store(&loops[i]->member_count, (uint32_t)(7 - i));
    }
    ck_assert_ptr_eq(tierce__poll_emptiest(loops, 3), loops[2]);
    ck_assert_ptr_eq(tierce__poll_emptiest(loops, 2), loops[1]);
    atomic_store(&loops[0]->member_count, 5);
    ck_assert_ptr_eq(tierce__poll_emptiest(loops, 3), loops[0]);
    for (size_t i = 0; i < 3; i++)
        tierce__poll_loop_stop(loops[i]);
}
END_TEST

START_TEST(without_memory_nothing_is_left)
{
    struct tierce__poll_loop *loop;
    uint64_t live = tierce__alloc_live();
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__poll_loop_start(&loop), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

/* A process that forks has copies of all descriptors in its child, so closing one here does not end
 * the socket, and epoll would report it for ever. By then the source's memory is another's. */
START_TEST(a_source_with_a_copy_of_its_descriptor_is_not_called_after_it_was_closed)
{
    struct tierce__poll_loop *loop;
    struct end end;
    ck_assert_int_eq(tierce__poll_loop_start(&loop), 0);
    open_end(&end, loop);
    tierce__loop_call(&loop->base, watch, &end);
    wait_for(&end, EPOLLOUT);
    int copy = dup(end.source.fd), calls = atomic_load(&end.calls);
    ck_assert_int_ge(copy, 0);
    tierce__loop_call(&loop->base, stop_watching, &end);
    end.source.fd = copy; /* or take_events would skip it */
    ck_assert_int_eq(write(end.peer, "x", 1), 1);
    for (int i = 0; i < 3; i++)
        tierce__loop_call(&loop->base, do_nothing, NULL);
    ck_assert_int_eq(atomic_load(&end.calls), calls);
    close(copy);
    close(end.peer);
    tierce__poll_loop_stop(loop);
}
END_TEST

CHECK_MAIN("poll loop", .seconds = 60,
           .tests = {a_source_hears_of_input_and_of_the_end,
                     a_source_that_repeats_lets_others_have_their_turn,
                     a_source_that_was_closed_in_the_round_is_not_called,
                     a_source_with_a_copy_of_its_descriptor_is_not_called_after_it_was_closed,
                     a_loop_without_events_keeps_its_deadlines,
                     a_door_passes_connections_on_until_it_is_closed,
                     a_door_that_cannot_accept_tries_again_later,
                     the_emptiest_loop_is_the_one_with_the_fewest_members,
                     without_memory_nothing_is_left})
