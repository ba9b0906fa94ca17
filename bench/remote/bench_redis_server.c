/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_redis_server.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/listen.h"
#include "net/stream.h"

#define START_MS 10000u

static pid_t start_server(const char *dir, const char *port)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    if (getppid() == parent)
        execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", "--dir", dir, "--daemonize", "no", (char *)NULL);
    _exit(127);
}

static bool takes_connections(uint16_t port)
{
    char why[256];
    int fd = -1;
    if (tierce__stream_connect(&fd, "127.0.0.1", port, tierce__deadline_in_ms(START_MS), why,
                               sizeof(why)) != 0)
        return false;
    close(fd);
    return true;
}

/* Must return before a connector is opened: a connector waits before it retries a server that it
 * could not reach. */
static int await_server(struct tierce__bench_redis_server *server,
                        const struct tierce__bench *bench)
{
    uint64_t end_ns = tierce__deadline_in_ms(START_MS);
    while (!takes_connections(server->port)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return tierce__bench_fail(
                bench, "redis-server cannot be started: install it, or add it to PATH");
        }
        if (tierce__now_ns() > end_ns)
            return tierce__bench_fail(bench, "redis-server does not answer within 10 s");
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
    }
    return 0;
}

int tierce__bench_redis_start(struct tierce__bench_redis_server *server,
                              const struct tierce__bench *bench)
{
    char port[8], why[256];
    int fd = -1;
    server->port = 0;
    if (tierce__listen_tcp(&fd, &server->port, "127.0.0.1", why) != 0)
        return tierce__bench_fail(bench, "%s", why);
    close(fd); /* the port is free, and the server will listen there */
    snprintf(port, sizeof(port), "%u", (unsigned)server->port);
    server->pid = start_server(bench->dir, port);
    if (server->pid < 0)
        return tierce__bench_fail(bench, "redis-server cannot be started");
    return await_server(server, bench);
}

void tierce__bench_redis_stop(struct tierce__bench_redis_server *server)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}
