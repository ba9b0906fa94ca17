/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "store/transfer/transfer_private.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LOW_WATER_MIN (64u << 10) /* below this the call costs more than it saves */
#define LOW_WATER_MAX (256u << 10)

/* A call has returned n. `flag` is the direction that it needs. */
static int status_of(ssize_t n, bool *flag, size_t *done)
{
    if (n > 0) {
        *done = (size_t)n;
        return 0;
    }
    if (n == 0)
        return -ECONNRESET;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return -errno;
    *flag = false;
    return -EAGAIN;
}

/* Reading may wait for the socket to take bytes of the handshake, and writing for input. */
static int tls_status(struct tierce__transfer_connection *c, int rc)
{
    if (rc == -EAGAIN && c->wants == POLLOUT)
        c->is_writable = false;
    else if (rc == -EAGAIN)
        c->is_readable = false;
    return rc;
}

static int receive_plain(struct tierce__transfer_connection *c, const struct iovec *pieces,
                         int count, size_t *done)
{
    ssize_t n;
    do
        n = readv(c->source.fd, pieces, count);
    while (n < 0 && errno == EINTR);
    return status_of(n, &c->is_readable, done);
}

static int send_plain(struct tierce__transfer_connection *c, struct iovec *pieces, int count,
                      size_t *done)
{
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t n;
    do
        n = sendmsg(c->source.fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return status_of(n, &c->is_writable, done);
}

int tierce__transfer_receive(struct tierce__transfer_connection *c, const struct iovec *pieces,
                             int count, size_t *done)
{
    TIERCE_DASSERT(count > 0 && pieces[0].iov_len > 0);
    TIERCE_DASSERT(c->is_readable && !c->is_closing);
    int rc = c->tls != NULL
                 ? tls_status(c, tierce__tls_socket_read(c->tls, pieces, count, done, &c->wants))
                 : receive_plain(c, pieces, count, done);
    if (rc == 0)
        c->received += *done;
    return rc;
}

int tierce__transfer_send(struct tierce__transfer_connection *c, struct iovec *pieces, int count,
                          size_t *done)
{
    TIERCE_DASSERT(count > 0 && pieces[0].iov_len > 0);
    TIERCE_DASSERT(c->is_writable && !c->is_closing);
    int rc = c->tls != NULL
                 ? tls_status(c, tierce__tls_socket_write(c->tls, pieces, count, done, &c->wants))
                 : send_plain(c, pieces, count, done);
    if (rc == 0)
        c->sent += *done;
    return rc;
}

void tierce__transfer_expect(struct tierce__transfer_connection *c, uint64_t bytes)
{
    TIERCE_DASSERT(!c->is_closing);
    int low = bytes < LOW_WATER_MIN ? 1 : (int)(bytes < LOW_WATER_MAX ? bytes : LOW_WATER_MAX);
    if (c->tls != NULL || low == c->low_water)
        return;
    c->low_water = low;
    (void)setsockopt(c->source.fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
}

void tierce__transfer_shut(struct tierce__transfer_connection *c)
{
    TIERCE_DASSERT(!c->is_shut);
    c->is_shut = true;
    if (c->tls != NULL)
        tierce__tls_end(c->tls);
    (void)shutdown(c->source.fd, SHUT_WR);
}
