/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MEMCACHED_SERVER_H
#define TIERCE_TESTS_MEMCACHED_SERVER_H

#include "server_process.h"

/* A real memcached of a test's own, on a port of loopback or on a Unix socket. It ends with the
 * test, even if the test is killed. */

#define MEMCACHED_PROGRAM "/usr/bin/memcached"

struct memcached_server {
    pid_t pid;
    uint16_t port;
    char socket[64]; /* "": by the port */
};

static inline bool memcached_is_there(void)
{
    return access(MEMCACHED_PROGRAM, X_OK) == 0;
}

/* Starts it at its port or socket, with more arguments up to a NULL; false if it does not come to
 * listen. */
static inline bool memcached_run(struct memcached_server *server, const char *const *more)
{
    const char *argv[32] = {"memcached", "-u", "nobody", "-U", "0"};
    char port[8];
    size_t argc = 5;
    snprintf(port, sizeof(port), "%u", (unsigned)server->port);
    argv[argc++] = server->port > 0 ? "-p" : "-s";
    argv[argc++] = server->port > 0 ? port : server->socket;
    argv[argc++] = server->port > 0 ? "-l" : "-a";
    argv[argc++] = server->port > 0 ? "127.0.0.1" : "0777";
    while (more != NULL && *more != NULL && argc < 31)
        argv[argc++] = *more++;
    argv[argc] = NULL;
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execv(MEMCACHED_PROGRAM, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return server_wait(&server->pid, server->port, server->port > 0 ? "" : server->socket);
}

static inline bool memcached_start(struct memcached_server *server, const char *const *more)
{
    *server = (struct memcached_server){.port = server_free_port()};
    return server->port > 0 && memcached_run(server, more);
}

static inline void memcached_kill(struct memcached_server *server)
{
    server_kill(&server->pid);
}

#endif
