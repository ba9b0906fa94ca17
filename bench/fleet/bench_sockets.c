/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fleet/bench_sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static int receive_all(int fd, void *bytes, size_t count)
{
    ssize_t n = recv(fd, bytes, count, MSG_WAITALL);
    return n == (ssize_t)count ? 0 : n < 0 ? -errno : -ECONNRESET;
}

static int send_all(int fd, const void *bytes, size_t count)
{
    ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
    return n == (ssize_t)count ? 0 : n < 0 ? -errno : -ECONNRESET;
}

/* For each byte that the reader sends, the socket's share of the objects. */
static void *run_sender(void *arg)
{
    struct tierce__bench_socket *socket = arg;
    const struct tierce__bench_sockets *s = socket->all;
    char byte;
    while (receive_all(socket->server, &byte, 1) == 0) {
        for (size_t i = socket->number; i < s->count; i += TIERCE__BENCH_SOCKETS) {
            if (send_all(socket->server, s->from, s->bytes) != 0)
                return NULL;
        }
    }
    return NULL;
}

static void *run_reader(void *arg)
{
    struct tierce__bench_socket *socket = arg;
    const struct tierce__bench_sockets *s = socket->all;
    socket->rc = send_all(socket->client, "g", 1);
    for (size_t i = socket->number; i < s->count && socket->rc == 0; i += TIERCE__BENCH_SOCKETS)
        socket->rc = receive_all(socket->client, s->into[i], s->bytes);
    return NULL;
}

int64_t tierce__bench_sockets_copy(void *arg)
{
    struct tierce__bench_sockets *s = arg;
    uint64_t start_ns = tierce__now_ns();
    unsigned started = 1;
    int rc = 0;
    for (; started < TIERCE__BENCH_SOCKETS; started++) {
        if (pthread_create(&s->sockets[started].reader, NULL, run_reader, &s->sockets[started]) !=
            0)
            break;
    }
    run_reader(&s->sockets[0]);
    for (unsigned i = 0; i < started; i++) {
        if (i > 0)
            pthread_join(s->sockets[i].reader, NULL);
        rc = rc == 0 ? s->sockets[i].rc : rc;
    }
    rc = rc == 0 && started < TIERCE__BENCH_SOCKETS ? -EAGAIN : rc;
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* Both ends of a connection to this address of loopback. */
static int connect_both(struct tierce__bench_socket *out, int listener, uint32_t host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    socklen_t bytes = sizeof(address);
    int on = 1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 1) != 0)
        return -errno;
    out->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (out->client < 0 || getsockname(listener, (struct sockaddr *)&address, &bytes) != 0 ||
        connect(out->client, (struct sockaddr *)&address, bytes) != 0)
        return -errno;
    out->server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (out->server < 0)
        return -errno;
    setsockopt(out->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return 0;
}

static int open_socket(struct tierce__bench_socket *out)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect_both(out, listener, INADDR_LOOPBACK + (out->all->is_spread ? out->number : 0));
    if (listener >= 0)
        close(listener);
    if (rc != 0)
        return rc;
    out->has_sender = pthread_create(&out->sender, NULL, run_sender, out) == 0;
    return out->has_sender ? 0 : -EAGAIN;
}

int tierce__bench_sockets_open(struct tierce__bench_sockets *s, const struct tierce__bench *bench)
{
    int rc = 0;
    for (unsigned i = 0; i < TIERCE__BENCH_SOCKETS; i++)
        s->sockets[i] =
            (struct tierce__bench_socket){.all = s, .number = i, .client = -1, .server = -1};
    for (unsigned i = 0; i < TIERCE__BENCH_SOCKETS && rc == 0; i++)
        rc = open_socket(&s->sockets[i]);
    return rc == 0 ? 0 : tierce__bench_fail(bench, "bare sockets: %s", tierce_strerror(rc));
}

void tierce__bench_sockets_close(struct tierce__bench_sockets *s)
{
    for (unsigned i = 0; i < TIERCE__BENCH_SOCKETS && s->into != NULL; i++) {
        struct tierce__bench_socket *socket = &s->sockets[i];
        if (socket->client >= 0)
            close(socket->client);
        if (socket->has_sender)
            pthread_join(socket->sender, NULL);
        if (socket->server >= 0)
            close(socket->server);
        socket->client = socket->server = -1;
        socket->has_sender = false;
    }
}
