/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FAKE_SERVER_H
#define TIERCE_TESTS_FAKE_SERVER_H

#include "check_main.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/*
 * A server on loopback that keeps the bytes of every request, and answers each with the reply of
 * the first row whose text the request contains. A request without a reply ends its connection.
 */

struct fake_reply {
    const char *request;
    const void *bytes;
    size_t count;
};

struct fake_server {
    /* The length of the first request in `bytes`, or 0: it is not complete. */
    size_t (*request_bytes)(const char *bytes, size_t count);
    const struct fake_reply *replies; /* up to a row without request */
    uint16_t port;
    int listener;
    pthread_t thread;
    _Atomic bool ends;
    pthread_mutex_t mutex;
    size_t kept_bytes;
    char kept[8192];
};

#define FAKE_CONNECTIONS 8

struct fake_connection {
    int fd;
    size_t used;
    char bytes[8192];
};

static inline bool fake_server_answer(struct fake_server *server, int fd, const char *request,
                                      size_t count)
{
    const struct fake_reply *reply = server->replies;
    pthread_mutex_lock(&server->mutex);
    ck_assert_uint_le(count, sizeof(server->kept) - server->kept_bytes);
    memcpy(server->kept + server->kept_bytes, request, count);
    server->kept_bytes += count;
    pthread_mutex_unlock(&server->mutex);
    while (reply->request != NULL &&
           memmem(request, count, reply->request, strlen(reply->request)) == NULL)
        reply++;
    return reply->request != NULL &&
           (reply->count == 0 || send(fd, reply->bytes, reply->count, MSG_NOSIGNAL) >= 0);
}

/* False: the connection has ended. */
static inline bool fake_server_read(struct fake_server *server, struct fake_connection *from)
{
    ssize_t got = recv(from->fd, from->bytes + from->used, sizeof(from->bytes) - from->used, 0);
    if (got <= 0)
        return false;
    from->used += (size_t)got;
    for (size_t n; (n = server->request_bytes(from->bytes, from->used)) > 0;) {
        if (!fake_server_answer(server, from->fd, from->bytes, n))
            return false;
        from->used -= n;
        memmove(from->bytes, from->bytes + n, from->used);
    }
    return true;
}

static inline void *fake_server_run(void *arg)
{
    struct fake_server *server = arg;
    static struct fake_connection connections[FAKE_CONNECTIONS];
    struct pollfd fds[FAKE_CONNECTIONS + 1] = {{.fd = server->listener, .events = POLLIN}};
    int count = 0;
    while (!atomic_load(&server->ends)) {
        if (poll(fds, (nfds_t)count + 1, 20) <= 0)
            continue;
        for (int i = 0; i < count; i++) {
            if (fds[i + 1].revents != 0 && !fake_server_read(server, &connections[i])) {
                close(connections[i].fd);
                fds[i + 1].fd = -1; /* poll passes it over */
            }
        }
        if (fds[0].revents == 0 || count == FAKE_CONNECTIONS)
            continue;
        connections[count] = (struct fake_connection){.fd = accept(server->listener, NULL, NULL)};
        fds[count + 1] = (struct pollfd){.fd = connections[count].fd, .events = POLLIN};
        count++;
    }
    for (int i = 0; i < count; i++) {
        if (fds[i + 1].fd >= 0)
            close(fds[i + 1].fd);
    }
    return NULL;
}

static inline void fake_server_start(struct fake_server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    pthread_mutex_init(&server->mutex, NULL);
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(server->listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(server->listener, FAKE_CONNECTIONS), 0);
    ck_assert_int_eq(getsockname(server->listener, (struct sockaddr *)&address, &length), 0);
    server->port = ntohs(address.sin_port);
    ck_assert_int_eq(pthread_create(&server->thread, NULL, fake_server_run, server), 0);
}

static inline void fake_server_stop(struct fake_server *server)
{
    atomic_store(&server->ends, true);
    pthread_join(server->thread, NULL);
    close(server->listener);
    pthread_mutex_destroy(&server->mutex);
}

/* The requests since the last call. Returns their bytes. */
static inline size_t fake_server_take(struct fake_server *server, char out[8192])
{
    pthread_mutex_lock(&server->mutex);
    size_t count = server->kept_bytes;
    memcpy(out, server->kept, count);
    server->kept_bytes = 0;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

#endif
