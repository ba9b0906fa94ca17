/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Milliseconds for poll, rounded up so that it does not spin at the end. */
static int poll_timeout(uint64_t deadline_ns)
{
    uint64_t now = tierce__now_ns();
    if (deadline_ns == TIERCE__DEADLINE_NEVER)
        return -1;
    if (now >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now + TIERCE__MS_NS - 1) / TIERCE__MS_NS;
    return ms > 60000 ? 60000 : (int)ms;
}

int tierce__stream_wait(int fd, short events, short *got, uint64_t deadline_ns)
{
    TIERCE_DASSERT(fd >= 0);
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = events};
        int n = poll(&poll_fd, 1, poll_timeout(deadline_ns));
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            if (got != NULL)
                *got = poll_fd.revents;
            return 0;
        }
        if (tierce__now_ns() >= deadline_ns)
            return TIERCE_E_DEADLINE;
    }
}

/* ---- connecting ------------------------------------------------------------------------------ */

int tierce__stream_connect_begin(int *out, const struct sockaddr *address, socklen_t length)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, address, length) == 0 ? 0 : -errno;
    if (rc == -EINTR)
        rc = -EINPROGRESS;
    if (rc == 0)
        rc = tierce__stream_connect_end(fd);
    if (rc != 0 && rc != -EINPROGRESS) {
        close(fd);
        return rc;
    }
    *out = fd;
    return rc;
}

int tierce__stream_connect_end(int fd)
{
    int error = 0, on = 1;
    socklen_t size = sizeof(error);
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error == 0 && getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0)
        error = errno;
    if (error == 0 && peer.ss_family != AF_UNIX) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    }
    return -error;
}

void tierce__stopper_init(struct tierce__stopper *stopper)
{
    tierce__lock_init(&stopper->lock, TIERCE__LOCK_STOPPER);
    stopper->fd = -1;
    stopper->is_stopped = false;
}

void tierce__stopper_fini(struct tierce__stopper *stopper)
{
    TIERCE_ASSERT(stopper->fd < 0);
    tierce__lock_fini(&stopper->lock);
}

void tierce__stopper_stop(struct tierce__stopper *stopper)
{
    tierce__lock_take(&stopper->lock);
    stopper->is_stopped = true;
    if (stopper->fd >= 0)
        (void)shutdown(stopper->fd, SHUT_RDWR); /* also ends connecting */
    tierce__lock_drop(&stopper->lock);
}

bool tierce__stopper_watch(struct tierce__stopper *stopper, int fd)
{
    if (stopper == NULL)
        return true;
    tierce__lock_take(&stopper->lock);
    TIERCE_ASSERT(stopper->fd < 0);
    bool goes_on = !stopper->is_stopped;
    if (goes_on)
        stopper->fd = fd;
    tierce__lock_drop(&stopper->lock);
    return goes_on;
}

void tierce__stopper_leave(struct tierce__stopper *stopper)
{
    if (stopper == NULL)
        return;
    tierce__lock_take(&stopper->lock);
    stopper->fd = -1;
    tierce__lock_drop(&stopper->lock);
}

/* The end of a connection that is being made, at the deadline or after connect_ms. */
static int finish_connect(int fd, uint32_t connect_ms, uint64_t deadline_ns)
{
    uint64_t soon_ns = connect_ms > 0 ? tierce__deadline_in_ms(connect_ms) : deadline_ns;
    bool is_sooner = soon_ns < deadline_ns;
    int rc = tierce__stream_wait(fd, POLLOUT, NULL, is_sooner ? soon_ns : deadline_ns);
    if (rc == TIERCE_E_DEADLINE && is_sooner)
        return -ETIMEDOUT;
    return rc == 0 ? tierce__stream_connect_end(fd) : rc;
}

/* One address. */
static int connect_to(int *out, const struct sockaddr *address, socklen_t length,
                      const struct tierce__stream_to *to, uint64_t deadline_ns)
{
    int fd = -1;
    int rc = tierce__stream_connect_begin(&fd, address, length);
    if (rc != 0 && rc != -EINPROGRESS)
        return rc;
    if (!tierce__stopper_watch(to->stopper, fd))
        rc = -ECANCELED;
    if (rc == -EINPROGRESS)
        rc = finish_connect(fd, to->connect_ms, deadline_ns);
    if (rc == 0) {
        *out = fd;
        return 0;
    }
    tierce__stopper_leave(to->stopper);
    close(fd);
    return rc;
}

int tierce__stream_connect_unix(int *fd, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, length);
    return connect_to(fd, (const struct sockaddr *)&address, sizeof(address),
                      &(struct tierce__stream_to){0}, 0);
}

static int connect_host(int *fd, const struct tierce__stream_to *to, uint64_t deadline_ns,
                        char *why, size_t why_room)
{
    struct addrinfo *list = NULL, hints = {.ai_family = AF_UNSPEC,
                                           .ai_socktype = SOCK_STREAM,
                                           .ai_flags = AI_NUMERICSERV};
    char service[8];
    snprintf(service, sizeof(service), "%u", (unsigned)to->port);
    int code = getaddrinfo(to->host, service, &hints, &list);
    if (code != 0) {
        snprintf(why, why_room, "%s: %s", to->host, gai_strerror(code));
        return code == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH;
    }
    int rc = -EHOSTUNREACH;
    for (const struct addrinfo *at = list; at != NULL && rc != 0; at = at->ai_next)
        rc = connect_to(fd, at->ai_addr, at->ai_addrlen, to, deadline_ns);
    freeaddrinfo(list);
    return rc;
}

int tierce__stream_connect_to(int *fd, const struct tierce__stream_to *to, uint64_t deadline_ns,
                              char *why, size_t why_room)
{
    why[0] = '\0';
    int rc = to->host[0] == '/' ? tierce__stream_connect_unix(fd, to->host)
                                : connect_host(fd, to, deadline_ns, why, why_room);
    if (rc != 0 && why[0] == '\0')
        snprintf(why, why_room, "cannot connect to %.180s port %u: %s", to->host,
                 (unsigned)to->port, tierce_strerror(rc));
    return rc;
}

int tierce__stream_connect(int *fd, const char *host, uint16_t port, uint64_t deadline_ns,
                           char *why, size_t why_room)
{
    return tierce__stream_connect_to(fd, &(struct tierce__stream_to){.host = host, .port = port},
                                     deadline_ns, why, why_room);
}

void tierce__stream_watch(int fd, uint32_t ms)
{
    int idle_s = 1, pause_s = 1, timeout_ms = (int)ms;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof(pause_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

void tierce__stream_skip(struct iovec **pieces, int *count, size_t bytes)
{
    while (*count > 0 && bytes >= (*pieces)->iov_len) {
        bytes -= (*pieces)->iov_len;
        (*pieces)++;
        (*count)--;
        TIERCE_DASSERT(*count > 0 || bytes == 0);
    }
    if (*count == 0)
        return;
    (*pieces)->iov_base = (char *)(*pieces)->iov_base + bytes;
    (*pieces)->iov_len -= bytes;
}

/* Handles a call that returned n < 0. Returns 0 to retry it. */
static int after_failure(int fd, short events, uint64_t deadline_ns)
{
    if (errno == EINTR)
        return 0;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return -errno;
    return tierce__stream_wait(fd, events, NULL, deadline_ns);
}

int tierce__stream_send(int fd, struct iovec *pieces, int count, uint64_t deadline_ns)
{
    int rc = 0;
    TIERCE_DASSERT(fd >= 0);
    TIERCE_DASSERT(count > 0);
    tierce__stream_skip(&pieces, &count, 0);
    while (count > 0 && rc == 0) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n >= 0)
            tierce__stream_skip(&pieces, &count, (size_t)n);
        else
            rc = after_failure(fd, POLLOUT, deadline_ns);
        if (rc == 0 && count > 0 && tierce__now_ns() >= deadline_ns)
            rc = TIERCE_E_DEADLINE;
    }
    return rc;
}

/* The descriptor of a message, or -1; those beyond the first are closed. */
static int take_passed(struct msghdr *message)
{
    int out = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (out < 0)
                out = fd;
            else
                close(fd);
        }
    }
    return out;
}

/* Where bytes come from. */
struct stream_origin {
    int fd;
    bool is_tcp;
    int *passed; /* NULL: descriptors that come with the bytes are dropped */
};

static ssize_t receive_some(const struct stream_origin *from, struct iovec *pieces, int count)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    int on = 1;
    TIERCE_DASSERT(count > 0);
    if (from->passed == NULL || *from->passed >= 0) {
        ssize_t n = readv(from->fd, pieces, count);
        if (n > 0 && from->is_tcp)
            setsockopt(from->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
        return n;
    }
    struct msghdr message = {.msg_iov = pieces,
                             .msg_iovlen = (size_t)count,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(from->fd, &message, MSG_CMSG_CLOEXEC);
    if (n > 0)
        *from->passed = take_passed(&message);
    return n;
}

static int receive(const struct stream_origin *from, struct iovec *pieces, int count, size_t least,
                   size_t *got, uint64_t deadline_ns)
{
    int rc = 0;
    TIERCE_DASSERT(from->fd >= 0);
    *got = 0;
    tierce__stream_skip(&pieces, &count, 0);
    while (*got < least && rc == 0) {
        TIERCE_DASSERT(count > 0); /* the pieces have room for `least` bytes */
        ssize_t n = receive_some(from, pieces, count);
        if (n == 0)
            return -ECONNRESET;
        if (n > 0) {
            *got += (size_t)n;
            tierce__stream_skip(&pieces, &count, (size_t)n);
        } else {
            rc = after_failure(from->fd, POLLIN, deadline_ns);
        }
        if (rc == 0 && *got < least && tierce__now_ns() >= deadline_ns)
            rc = TIERCE_E_DEADLINE;
    }
    return rc;
}

int tierce__stream_receive(int fd, struct iovec *pieces, int count, size_t least, size_t *got,
                           uint64_t deadline_ns)
{
    return receive(&(struct stream_origin){.fd = fd, .is_tcp = true}, pieces, count, least, got,
                   deadline_ns);
}

int tierce__stream_receive_passed(int fd, struct iovec piece, int *passed, uint64_t deadline_ns)
{
    size_t got;
    if (passed != NULL)
        *passed = -1;
    int rc = receive(&(struct stream_origin){.fd = fd, .passed = passed}, &piece, 1, piece.iov_len,
                     &got, deadline_ns);
    if (rc != 0 && passed != NULL && *passed >= 0) {
        close(*passed);
        *passed = -1;
    }
    return rc;
}

int tierce__stream_look(int fd)
{
    TIERCE_DASSERT(fd >= 0);
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
    return n > 0 ? 1 : -ECONNRESET;
}
