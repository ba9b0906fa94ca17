/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_sched.h"
#include "sim_sockets_private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

SIM_WRAPS(ssize_t, read, int fd, void *bytes, size_t count);
SIM_WRAPS(ssize_t, write, int fd, const void *bytes, size_t count);
SIM_WRAPS(int, poll, struct pollfd *fds, nfds_t count, int timeout_ms);
SIM_WRAPS(int, eventfd, unsigned value, int flags);
SIM_WRAPS(int, eventfd_write, int fd, eventfd_t value);
SIM_WRAPS(int, epoll_create1, int flags);
SIM_WRAPS(int, epoll_ctl, int epoll, int op, int fd, struct epoll_event *event);
SIM_WRAPS(int, epoll_wait, int epoll, struct epoll_event *events, int most, int timeout_ms);

/* ---- eventfd --------------------------------------------------------------------------------- */

int __wrap_eventfd(unsigned value, int flags)
{
    int fd;
    if (!sim_is_on())
        return __real_eventfd(value, flags);
    struct socket *s = sim_make(&fd, EVENT, (flags & EFD_NONBLOCK) == 0);
    if (s != NULL)
        s->value = value;
    return fd;
}

static uint64_t when_counted(const void *arg)
{
    return ((const struct socket *)arg)->value > 0 ? 0 : SIM_NEVER;
}

ssize_t __wrap_read(int fd, void *bytes, size_t count)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_read(fd, bytes, count);
    if (s->kind != EVENT)
        return sim_receive(s, &(struct iovec){bytes, count}, 1, 0, NULL);
    sim_may_pass();
    if (s->waits)
        (void)sim_await(when_counted, s, SIM_NEVER);
    if (s->value == 0)
        return sim_fail_with(EAGAIN);
    memcpy(bytes, &s->value, sizeof(s->value));
    s->value = 0;
    return sizeof(s->value);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t count)
{
    struct socket *s = sim_find(fd);
    uint64_t more;
    if (s == NULL)
        return __real_write(fd, bytes, count);
    if (s->kind != EVENT)
        return sim_transmit(s, &(struct iovec){(void *)(uintptr_t)bytes, count}, 1, 0, -1);
    memcpy(&more, bytes, sizeof(more));
    s->value += more;
    sim_may_pass();
    return (ssize_t)count;
}

int __wrap_eventfd_write(int fd, eventfd_t value)
{
    return sim_find(fd) == NULL ? __real_eventfd_write(fd, value)
                                : (__wrap_write(fd, &value, sizeof(value)) > 0 ? 0 : -1);
}

/* ---- poll ------------------------------------------------------------------------------------ */

struct polled {
    struct pollfd *fds;
    nfds_t count;
};

static uint64_t in_ns(const struct socket *s, size_t low)
{
    return s->kind == EVENT      ? when_counted(s)
           : s->kind == LISTENER ? sim_acceptable_ns(s)
           : s->kind == END      ? sim_readable_ns(s->end, low)
                                 : SIM_NEVER;
}

static uint64_t out_ns(const struct socket *s)
{
    return s->kind == END ? sim_writable_ns(s->end) : SIM_NEVER;
}

static uint64_t when_polled(const void *arg)
{
    const struct polled *polled = arg;
    uint64_t first = SIM_NEVER;
    for (nfds_t i = 0; i < polled->count; i++) {
        const struct socket *s = sim_find(polled->fds[i].fd);
        short events = polled->fds[i].events;
        if (s == NULL)
            continue;
        size_t low = s->kind == END ? (size_t)s->end->low : 1;
        uint64_t in = (events & POLLIN) != 0 ? in_ns(s, low) : SIM_NEVER;
        uint64_t out = (events & POLLOUT) != 0 ? out_ns(s) : SIM_NEVER;
        uint64_t soon = in < out ? in : out;
        first = soon < first ? soon : first;
    }
    return first;
}

/* POLLIN and so on, which epoll has the same values for. */
static unsigned events_of(const struct socket *s)
{
    size_t low = s->kind == END ? (size_t)s->end->low : 1;
    unsigned events = in_ns(s, low) <= sim_now_ns() ? POLLIN : 0;
    events |= out_ns(s) <= sim_now_ns() ? POLLOUT : 0;
    if (s->kind != END)
        return events;
    sim_notice(s->end);
    const struct parcel *p = s->end->first;
    bool is_fin = p != NULL && p->kind == FIN && p->arrives_ns <= sim_now_ns();
    if (s->end->error != 0 || s->end->is_lost)
        events |= POLLERR | POLLHUP;
    return events | (is_fin ? (unsigned)EPOLLRDHUP : 0);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    struct polled polled = {fds, count};
    int ready = 0;
    if (!sim_is_on() || (count > 0 && sim_find(fds[0].fd) == NULL))
        return __real_poll(fds, count, timeout_ms);
    sim_may_pass();
    (void)sim_await(when_polled, &polled, sim_until_ms(timeout_ms));
    for (nfds_t i = 0; i < count; i++) {
        const struct socket *s = sim_find(fds[i].fd);
        unsigned always = POLLERR | POLLHUP;
        fds[i].revents =
            s != NULL ? (short)(events_of(s) & ((unsigned short)fds[i].events | always)) : 0;
        ready += fds[i].revents != 0;
    }
    return ready;
}

/* ---- epoll ----------------------------------------------------------------------------------- */

int __wrap_epoll_create1(int flags)
{
    int fd;
    if (!sim_is_on())
        return __real_epoll_create1(flags);
    (void)sim_make(&fd, EPOLL, true);
    return fd;
}

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    struct socket *s = sim_find(epoll);
    if (s == NULL)
        return __real_epoll_ctl(epoll, op, fd, event);
    struct watched **at = &s->watched;
    while (*at != NULL && (*at)->fd != fd)
        at = &(*at)->next;
    if (op == EPOLL_CTL_ADD && *at == NULL) {
        *at = calloc(1, sizeof(**at));
        **at = (struct watched){.fd = fd, .event = *event, .is_new = true};
        return 0;
    }
    if (op != EPOLL_CTL_DEL || *at == NULL)
        return sim_fail_with(EINVAL);
    struct watched *w = *at;
    *at = w->next;
    free(w);
    return 0;
}

/* Parcels or connections that have come, and edges of room. */
static uint64_t come(const struct socket *s)
{
    uint64_t count = s->taken;
    if (s->kind == END)
        return sim_arrived(s->end);
    for (const struct end *e = s->waiting; e != NULL && e->connects_ns <= sim_now_ns();
         e = e->next_waiting)
        count++;
    return count;
}

/* When the next one comes that epoll has not reported. */
static uint64_t unseen_ns(const struct socket *s, uint64_t seen)
{
    uint64_t at = s->kind == END ? s->end->taken : s->taken;
    if (seen < at)
        return 0;
    for (const struct end *e = s->waiting; e != NULL; e = e->next_waiting)
        if (at++ == seen)
            return e->connects_ns;
    if (s->kind != END)
        return SIM_NEVER;
    for (const struct parcel *p = s->end->first; p != NULL; p = p->next)
        if (at++ == seen)
            return p->arrives_ns;
    return s->end->error == 0 ? s->end->dies_ns : SIM_NEVER;
}

static uint64_t event_ns(const struct watched *w)
{
    const struct socket *s = sim_find(w->fd);
    if (s == NULL)
        return SIM_NEVER;
    size_t low = s->kind == END ? (size_t)s->end->low : 1;
    uint64_t in = in_ns(s, low), unseen, out = out_ns(s);
    if ((w->event.events & EPOLLET) == 0)
        return in;
    if (w->is_new)
        return in < out ? in : out;
    unseen = unseen_ns(s, w->seen_in);
    in = in > unseen ? in : unseen;
    bool has_edge =
        s->kind == END && (s->end->room_edges != w->seen_out || s->end->ends != w->seen_ends);
    return has_edge ? 0 : in;
}

static uint64_t when_any(const void *arg)
{
    uint64_t first = SIM_NEVER;
    for (const struct watched *w = ((const struct socket *)arg)->watched; w != NULL; w = w->next) {
        uint64_t ns = event_ns(w);
        first = ns < first ? ns : first;
    }
    return first;
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    struct socket *s = sim_find(epoll);
    int count = 0;
    if (s == NULL)
        return __real_epoll_wait(epoll, events, most, timeout_ms);
    sim_may_pass();
    (void)sim_await(when_any, s, sim_until_ms(timeout_ms));
    for (struct watched *w = s->watched; w != NULL && count < most; w = w->next) {
        if (event_ns(w) > sim_now_ns())
            continue;
        const struct socket *of = sim_find(w->fd);
        events[count++] =
            (struct epoll_event){.events = events_of(of) & (w->event.events | EPOLLERR | EPOLLHUP),
                                 .data = w->event.data};
        w->is_new = false;
        w->seen_in = come(of);
        w->seen_out = of->kind == END ? of->end->room_edges : 0;
        w->seen_ends = of->kind == END ? of->end->ends : 0;
    }
    return count;
}
