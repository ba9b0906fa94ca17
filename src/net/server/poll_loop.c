/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/poll_loop.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_AT_ONCE 128

static void wake(struct tierce__loop *base)
{
    struct tierce__poll_loop *loop = TIERCE__CONTAINER_OF(base, struct tierce__poll_loop, base);
    uint64_t one = 1;
    ssize_t n = write(loop->event_fd, &one, sizeof(one));
    TIERCE_ASSERT(n == (ssize_t)sizeof(one) || errno == EAGAIN);
}

/* The pointer of an event would be stale if its source was closed earlier in the same round, so a
 * closed source's memory stays until the round is over (tierce__loop_post). */
static void take_events(struct tierce__poll_loop *loop, int timeout_ms)
{
    TIERCE_ASSERT(tierce__loop_is_here(&loop->base));
    struct epoll_event events[EVENTS_AT_ONCE];
    int count = epoll_wait(loop->epoll_fd, events, EVENTS_AT_ONCE, timeout_ms);
    for (int i = 0; i < count; i++) {
        struct tierce__poll_source *source = events[i].data.ptr;
        uint64_t drained;
        if (source == NULL)
            (void)!read(loop->event_fd, &drained, sizeof(drained));
        else if (source->fd >= 0)
            source->ready(source, events[i].events);
    }
}

static void run_again(struct tierce__poll_loop *loop)
{
    TIERCE_ASSERT(tierce__loop_is_here(&loop->base));
    struct tierce__list now;
    tierce__list_init(&now);
    while (!tierce__list_empty(&loop->again)) { /* sources added meanwhile wait */
        struct tierce__list *first = loop->again.next;
        tierce__list_remove(first);
        tierce__list_push_back(&now, first);
    }
    while (!tierce__list_empty(&now)) {
        struct tierce__poll_source *source =
            TIERCE__CONTAINER_OF(now.next, struct tierce__poll_source, again);
        tierce__list_remove(&source->again);
        TIERCE_DASSERT(source->fd >= 0); /* closing takes it off the list */
        source->ready(source, 0);
    }
}

static int wait_ms(const struct tierce__poll_loop *loop)
{
    uint64_t next = tierce__deadlines_next(&loop->base.deadlines), now = tierce__now_ns();
    if (!tierce__list_empty(&loop->again))
        return 0;
    if (next == TIERCE__DEADLINE_NEVER)
        return -1;
    uint64_t ms = next > now ? (next - now + TIERCE__MS_NS - 1) / TIERCE__MS_NS : 0;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

static void *turn(void *arg)
{
    struct tierce__poll_loop *loop = arg;
    tierce__loop_enter(&loop->base);
    while (!loop->is_ending) {
        take_events(loop, wait_ms(loop));
        tierce__deadlines_expire(&loop->base.deadlines, tierce__now_ns());
        tierce__loop_run_inbox(&loop->base);
        run_again(loop);
    }
    tierce__loop_run_inbox(&loop->base);
    tierce__loop_enter(NULL);
    return NULL;
}

static int open_fds(struct tierce__poll_loop *loop)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        return -errno;
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->event_fd < 0)
        return -errno;
    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->event_fd, &event) == 0 ? 0 : -errno;
}

static void destroy(struct tierce__poll_loop *loop)
{
    if (loop->event_fd >= 0)
        close(loop->event_fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    tierce__loop_fini(&loop->base);
    tierce__free(loop);
}

int tierce__poll_loop_start(struct tierce__poll_loop **out)
{
    struct tierce__poll_loop *loop = tierce__calloc(1, sizeof(*loop));
    if (loop == NULL)
        return -ENOMEM;
    loop->epoll_fd = loop->event_fd = -1;
    tierce__loop_init(&loop->base, wake);
    tierce__list_init(&loop->again);
    tierce__list_init(&loop->members);
    int rc = open_fds(loop);
    if (rc == 0)
        rc = tierce__thread_start(&loop->thread, turn, loop);
    if (rc != 0) {
        destroy(loop);
        return rc;
    }
    *out = loop;
    return 0;
}

static void end(void *arg)
{
    ((struct tierce__poll_loop *)arg)->is_ending = true;
}

void tierce__poll_loop_stop(struct tierce__poll_loop *loop)
{
    if (loop == NULL)
        return;
    tierce__loop_call(&loop->base, end, loop);
    pthread_join(loop->thread, NULL);
    TIERCE_ASSERT(tierce__list_empty(&loop->members));
    TIERCE_ASSERT(tierce__list_empty(&loop->again));
    destroy(loop);
}

int tierce__poll_watch(struct tierce__poll_loop *loop, struct tierce__poll_source *source)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = source};
    TIERCE_ASSERT(tierce__loop_is_here(&loop->base));
    TIERCE_ASSERT(source->fd >= 0);
    tierce__list_init(&source->again);
    source->epoll_fd = loop->epoll_fd;
    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) == 0 ? 0 : -errno;
}

void tierce__poll_close(struct tierce__poll_source *source)
{
    if (source->fd < 0)
        return;
    /* Closing does not end the registration while a process that was forked from this one has a
     * copy of the descriptor, and its events would name memory that is freed by then. */
    (void)epoll_ctl(source->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    close(source->fd);
    source->fd = -1;
    tierce__list_remove(&source->again);
}

void tierce__poll_again(struct tierce__poll_loop *loop, struct tierce__poll_source *source)
{
    TIERCE_DASSERT(tierce__loop_is_here(&loop->base));
    TIERCE_DASSERT(source->fd >= 0);
    tierce__list_remove(&source->again);
    tierce__list_push_back(&loop->again, &source->again);
}
