/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SCRIPT_SERVER_H
#define TIERCE_TESTS_SCRIPT_SERVER_H

#include "check_main.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * A server on loopback that says what a script says, whatever it is asked: with the first bytes of
 * a connection's n-th request its n-th reply, and nothing more after the last one.
 */

struct script_reply {
    const void *bytes; /* NULL: nothing is said */
    size_t count;
    bool closes; /* behind it */
    bool waits;  /* until script_server_go_on */
};

#define SCRIPT_CONNECTIONS 64u

struct script_server {
    int listener;
    uint16_t port;
    pthread_t thread;
    _Atomic bool ends, goes_on;
    _Atomic unsigned connections;
    struct script_client {
        struct script_server *server;
        int fd;
        pthread_t thread;
    } clients[SCRIPT_CONNECTIONS];
    const struct script_reply *replies;
    size_t reply_count;
};

static inline bool script_server_sleeps(struct script_server *server, int fd)
{
    struct pollfd fds = {.fd = fd, .events = POLLIN};
    while (!atomic_load(&server->ends)) {
        if (poll(&fds, 1, 10) > 0)
            return true;
    }
    return false;
}

static inline void script_server_talk(struct script_server *server, int client)
{
    char bytes[65536];
    for (size_t i = 0; script_server_sleeps(server, client); i++) {
        if (recv(client, bytes, sizeof(bytes), 0) <= 0)
            return;
        const struct script_reply *reply = &server->replies[i];
        if (i >= server->reply_count || reply->bytes == NULL)
            continue;
        while (reply->waits && !atomic_load(&server->goes_on) && !atomic_load(&server->ends))
            usleep(1000);
        if (send(client, reply->bytes, reply->count, MSG_NOSIGNAL) < 0 || reply->closes)
            return;
    }
}

static inline void *script_server_serve(void *arg)
{
    struct script_client *client = (struct script_client *)arg;
    script_server_talk(client->server, client->fd);
    close(client->fd);
    return NULL;
}

static inline void *script_server_run(void *arg)
{
    struct script_server *server = (struct script_server *)arg;
    while (script_server_sleeps(server, server->listener)) {
        int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        unsigned n = atomic_load(&server->connections);
        if (fd < 0)
            continue;
        ck_assert_uint_lt(n, SCRIPT_CONNECTIONS);
        struct script_client *client = &server->clients[n];
        client->server = server;
        client->fd = fd;
        atomic_store(&server->connections, n + 1); /* the client is answered only then */
        ck_assert_int_eq(pthread_create(&client->thread, NULL, script_server_serve, client), 0);
    }
    return NULL;
}

static inline void script_server_start(struct script_server *server,
                                       const struct script_reply *replies, size_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    memset(server, 0, sizeof(*server));
    server->replies = replies;
    server->reply_count = count;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(server->listener, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(server->listener, 100), 0);
    ck_assert_int_eq(getsockname(server->listener, (struct sockaddr *)&address, &length), 0);
    server->port = ntohs(address.sin_port);
    ck_assert_int_eq(pthread_create(&server->thread, NULL, script_server_run, server), 0);
}

static inline void script_server_go_on(struct script_server *server)
{
    atomic_store(&server->goes_on, true);
}

static inline void script_server_stop(struct script_server *server)
{
    atomic_store(&server->ends, true);
    pthread_join(server->thread, NULL);
    for (unsigned i = 0; i < atomic_load(&server->connections); i++)
        pthread_join(server->clients[i].thread, NULL);
    close(server->listener);
}

#endif
