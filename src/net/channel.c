/* SPDX-License-Identifier: Apache-2.0 */
#include "net/channel.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

int tierce__channel_wait(const struct tierce__channel *channel, short events, short *got,
                         uint64_t deadline_ns)
{
    TIERCE_DASSERT(channel->fd >= 0);
    return tierce__stream_wait(channel->fd, events, got, deadline_ns);
}

/* A value comes in pieces of some 64 KiB on loopback, and waking for each costs more than copying
 * it: 0.21 and 0.17 s of processor time a GB, 1 MiB at a time (bench redis, 2026-11). */
#define EXPECT_BYTES_MAX (512u << 10)

void tierce__channel_expect(struct tierce__channel *channel, size_t bytes)
{
    TIERCE_DASSERT(channel->fd >= 0);
    int low = (int)(bytes < EXPECT_BYTES_MAX ? bytes : EXPECT_BYTES_MAX);
    low = low > 0 ? low : 1;
    if (channel->low == 0 || channel->low == low || channel->tls != NULL)
        return;
    int rc = setsockopt(channel->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    channel->low = rc == 0 ? low : 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

int tierce__channel_connect(struct tierce__channel *channel, const char *host, uint16_t port,
                            struct tierce__tls_context *tls, uint64_t deadline_ns, char why[256])
{
    TIERCE_DASSERT(channel->fd < 0);
    int fd = -1;
    const struct tierce__stream_to to = {host, port, channel->silence_ms, channel->stopper};
    int rc = tierce__stream_connect_to(&fd, &to, deadline_ns, why, 256);
    if (rc != 0)
        return rc;
    TIERCE_DASSERT(fd >= 0);
    channel->fd = fd;
    channel->low = host[0] != '/' ? 1 : 0; /* Unix sockets know no such mark */
    if (channel->silence_ms > 0 && host[0] != '/')
        tierce__stream_watch(fd, channel->silence_ms);
    if (tls != NULL)
        rc = tierce__tls_session_connect(&channel->tls, tls, fd, host, deadline_ns, why);
    if (rc != 0)
        tierce__channel_close(channel);
    return rc;
}

void tierce__channel_close(struct tierce__channel *channel)
{
    tierce__tls_session_destroy(channel->tls);
    channel->tls = NULL;
    if (channel->fd >= 0) {
        tierce__stopper_leave(channel->stopper);
        close(channel->fd);
    }
    channel->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

bool tierce__channel_is_quiet(struct tierce__channel *channel)
{
    TIERCE_DASSERT(channel->fd >= 0);
    return channel->tls != NULL ? tierce__tls_socket_is_quiet(channel->tls)
                                : tierce__stream_look(channel->fd) == 0;
}

static int plain_status(struct tierce__channel *channel, ssize_t n, short wants, size_t *done)
{
    if (n > 0) {
        *done = (size_t)n;
        return 0;
    }
    if (n == 0)
        return -ECONNRESET;
    channel->wants = wants;
    return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
}

int tierce__channel_read(struct tierce__channel *channel, const struct iovec *pieces, int count,
                         size_t *done)
{
    TIERCE_DASSERT(channel->fd >= 0);
    if (channel->tls == NULL)
        return plain_status(channel, readv(channel->fd, pieces, count), POLLIN, done);
    return tierce__tls_socket_read(channel->tls, pieces, count, done, &channel->wants);
}

int tierce__channel_write(struct tierce__channel *channel, struct iovec *pieces, int count,
                          size_t *done)
{
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(channel->fd >= 0);
    if (channel->tls == NULL) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        return plain_status(channel, sendmsg(channel->fd, &message, MSG_NOSIGNAL), POLLOUT, done);
    }
    return tierce__tls_socket_write(channel->tls, pieces, count, done, &channel->wants);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* After a call without success. Returns 0 to retry it. */
static int wait_for_tls(const struct tierce__channel *channel, int rc, uint64_t deadline_ns)
{
    TIERCE_DASSERT(rc < 0 && channel->tls != NULL);
    return rc == -EAGAIN ? tierce__channel_wait(channel, channel->wants, NULL, deadline_ns) : rc;
}

/* In time, after a piece: a peer that takes or sends little by little does not extend it. */
static int is_late(uint64_t deadline_ns)
{
    return tierce__now_ns() >= deadline_ns ? TIERCE_E_DEADLINE : 0;
}

int tierce__channel_send(struct tierce__channel *channel, struct iovec *pieces, int count,
                         uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0);
    if (channel->tls == NULL)
        return tierce__stream_send(channel->fd, pieces, count, deadline_ns);
    int rc = 0;
    tierce__stream_skip(&pieces, &count, 0);
    while (count > 0 && rc == 0) {
        size_t done = 0;
        rc = tierce__channel_write(channel, pieces, count, &done);
        if (rc != 0)
            rc = wait_for_tls(channel, rc, deadline_ns);
        tierce__stream_skip(&pieces, &count, done);
        if (rc == 0 && count > 0)
            rc = is_late(deadline_ns);
    }
    return rc;
}

int tierce__channel_receive(struct tierce__channel *channel, struct iovec *pieces, int count,
                            size_t least, size_t *got, uint64_t deadline_ns)
{
    if (channel->tls == NULL)
        return tierce__stream_receive(channel->fd, pieces, count, least, got, deadline_ns);
    int rc = 0;
    *got = 0;
    tierce__stream_skip(&pieces, &count, 0);
    while (*got < least && rc == 0) {
        size_t done = 0;
        TIERCE_DASSERT(count > 0); /* the pieces have room for `least` bytes */
        rc = tierce__channel_read(channel, pieces, count, &done);
        if (rc != 0)
            rc = wait_for_tls(channel, rc, deadline_ns);
        *got += done;
        tierce__stream_skip(&pieces, &count, done);
        if (rc == 0 && *got < least)
            rc = is_late(deadline_ns);
    }
    return rc;
}
