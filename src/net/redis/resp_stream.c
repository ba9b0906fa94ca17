/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_private.h"
#include "base/assert.h"
#include "net/stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

int tierce__resp_stream_wait(const struct tierce__resp_stream *stream, short events, short *got,
                             uint64_t deadline_ns)
{
    TIERCE_DASSERT(stream->fd >= 0);
    return tierce__stream_wait(stream->fd, events, got, deadline_ns);
}

/* A value comes in pieces of some 64 KiB on loopback, and waking for each costs more than copying
 * it: 0.21 and 0.17 s of processor time a GB, 1 MiB at a time (bench redis, 2026-11). */
#define EXPECT_BYTES_MAX (512u << 10)

void tierce__resp_stream_expect(struct tierce__resp_stream *stream, size_t bytes)
{
    TIERCE_DASSERT(stream->fd >= 0);
    int low = (int)(bytes < EXPECT_BYTES_MAX ? bytes : EXPECT_BYTES_MAX);
    low = low > 0 ? low : 1;
    if (stream->low == 0 || stream->low == low || stream->tls != NULL)
        return;
    int rc = setsockopt(stream->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    stream->low = rc == 0 ? low : 0;
}

int tierce__resp_stream_init(struct tierce__resp_stream *stream,
                             const struct tierce__resp_opts *opts, char why[TIERCE__RESP_WHY_BYTES])
{
    *stream = (struct tierce__resp_stream){.fd = -1};
    if (!opts->tls)
        return 0;
    return tierce__tls_client_context(&stream->context, opts->ca_file,
                                      &(struct tierce__tls){.certificate = opts->client_certificate,
                                                            .key = opts->client_key,
                                                            .is_bare = true},
                                      why);
}

void tierce__resp_stream_fini(struct tierce__resp_stream *stream)
{
    tierce__resp_stream_close(stream);
    tierce__tls_context_destroy(stream->context);
    stream->context = NULL;
}

/* ---- connecting ------------------------------------------------------------------------------ */

int tierce__resp_stream_connect(struct tierce__resp_stream *stream,
                                const struct tierce__resp_opts *opts, uint64_t deadline_ns,
                                char why[TIERCE__RESP_WHY_BYTES])
{
    TIERCE_DASSERT(stream->fd < 0);
    int fd = -1;
    int rc = tierce__stream_connect(&fd, opts->host, opts->port, deadline_ns, why,
                                    TIERCE__RESP_WHY_BYTES);
    if (rc != 0) /* -ENOENT is no error above: there are fewer servers, or no value */
        return rc == -ENOENT ? -ECONNREFUSED : rc;
    TIERCE_DASSERT(fd >= 0);
    stream->fd = fd;
    stream->low = opts->host[0] != '/' ? 1 : 0; /* Unix sockets know no such mark */
    if (stream->context != NULL)
        rc = tierce__tls_session_connect(&stream->tls, stream->context, fd, opts->host, deadline_ns,
                                         why);
    if (rc != 0)
        tierce__resp_stream_close(stream);
    return rc;
}

void tierce__resp_stream_close(struct tierce__resp_stream *stream)
{
    tierce__tls_session_destroy(stream->tls);
    stream->tls = NULL;
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

bool tierce__resp_stream_is_quiet(struct tierce__resp_stream *stream)
{
    TIERCE_DASSERT(stream->fd >= 0);
    return stream->tls != NULL ? tierce__tls_socket_is_quiet(stream->tls)
                               : tierce__stream_look(stream->fd) == 0;
}

static int plain_status(struct tierce__resp_stream *stream, ssize_t n, short wants, size_t *done)
{
    if (n > 0) {
        *done = (size_t)n;
        return 0;
    }
    if (n == 0)
        return -ECONNRESET;
    stream->wants = wants;
    return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
}

/* TLS works on one piece, the first that is not empty. */
static const struct iovec *first_piece(const struct iovec *pieces, int count)
{
    TIERCE_DASSERT(count > 0);
    while (count-- > 1 && pieces->iov_len == 0)
        pieces++;
    return pieces;
}

int tierce__resp_stream_read(struct tierce__resp_stream *stream, const struct iovec *pieces,
                             int count, size_t *done)
{
    TIERCE_DASSERT(stream->fd >= 0);
    if (stream->tls == NULL)
        return plain_status(stream, readv(stream->fd, pieces, count), POLLIN, done);
    const struct iovec *piece = first_piece(pieces, count);
    return tierce__tls_socket_read(stream->tls, piece->iov_base, piece->iov_len, done,
                                   &stream->wants);
}

int tierce__resp_stream_write(struct tierce__resp_stream *stream, struct iovec *pieces, int count,
                              size_t *done)
{
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(stream->fd >= 0);
    if (stream->tls == NULL) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        return plain_status(stream, sendmsg(stream->fd, &message, MSG_NOSIGNAL), POLLOUT, done);
    }
    const struct iovec *piece = first_piece(pieces, count);
    return tierce__tls_socket_write(stream->tls, piece->iov_base, piece->iov_len, done,
                                    &stream->wants);
}
