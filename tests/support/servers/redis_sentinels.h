/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_REDIS_SENTINELS_H
#define TIERCE_TESTS_REDIS_SENTINELS_H

#include "redis_cluster.h"

/*
 * A real master of a test's own with one replica, and sentinels that watch over them. All end with
 * the test.
 */
enum { REDIS_SENTINELS = 3 };

struct redis_sentinels {
    struct redis_server data[2]; /* the first is the first master */
    struct redis_server watchers[REDIS_SENTINELS];
    int count;
    char hosts[128];         /* "127.0.0.1:port,..." of the sentinels */
    const char *const *more; /* arguments of both servers */
    const char *tls_dir;     /* set before start: certificates, and all speak TLS to each other */
};

/* Where others than the test reach it. */
static inline unsigned redis_sentinels_port(const struct redis_server *server)
{
    return server->tls_port != 0 ? server->tls_port : server->port;
}

/* One of the two servers, as a master or as the other one's replica. */
static inline bool redis_sentinels_run(struct redis_sentinels *all, int i, bool is_master)
{
    const char *argv[40] = {"--repl-diskless-sync-delay", "0", "--repl-diskless-load", "swapdb"};
    char other[32];
    size_t argc = 4;
    for (size_t k = 0; all->more != NULL && all->more[k] != NULL && argc < 36; k++)
        argv[argc++] = all->more[k];
    snprintf(other, sizeof(other), "127.0.0.1 %u", redis_sentinels_port(&all->data[1 - i]));
    if (!is_master) {
        argv[argc++] = "--replicaof";
        argv[argc++] = other;
    }
    return redis_run(&all->data[i], false, argv);
}

/* It looks at the servers every second, not every ten, and tells the others twice a second of
 * itself; and after its machine stood still it pauses for one second, not for thirty. (A replica
 * that was not heard of for three looks would not become a master.) A server before 7.0 keeps its
 * own times. */
static inline void redis_sentinel_hasten(const struct redis_server *sentinel)
{
    char answer[256];
    (void)redis_tell(sentinel->port, answer, sizeof(answer),
                     "SENTINEL DEBUG INFO-PERIOD 1000 PUBLISH-PERIOD 500 TILT-PERIOD 1000");
}

static inline bool redis_sentinel_run(struct redis_sentinels *all, int i, const char *extra)
{
    struct redis_server *sentinel = &all->watchers[i];
    char path[96], log[96];
    const char *tls[16];
    snprintf(path, sizeof(path), "%.63s/sentinel.conf", sentinel->dir);
    snprintf(log, sizeof(log), "%.63s/log", sentinel->dir);
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return false;
    for (size_t k = 0, count = redis_tls_arguments(sentinel, tls, 0); k < count; k += 2)
        fprintf(file, "%s %s\n", tls[k] + 2, tls[k + 1]);
    fprintf(file,
            "port %u\nbind 127.0.0.1\ndir %s\nlogfile %s\nsentinel monitor m 127.0.0.1 %u %d\n"
            "sentinel down-after-milliseconds m 300\nsentinel failover-timeout m 2000\n%s\n",
            (unsigned)sentinel->port, sentinel->dir, log, redis_sentinels_port(&all->data[0]),
            all->count / 2 + 1, extra);
    fclose(file);
    sentinel->pid = fork();
    if (sentinel->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/usr/bin/redis-server", "redis-server", path, "--sentinel", (char *)NULL);
        _exit(127);
    }
    if (server_wait(&sentinel->pid, sentinel->port, "")) {
        redis_sentinel_hasten(sentinel);
        return true;
    }
    server_show_log(sentinel->dir, "log");
    return false;
}

/* Until what a server answers has a part. */
static inline bool redis_await(uint16_t port, const char *command, const char *part)
{
    char answer[8192];
    for (int tries = 0; tries < 9000; tries++) {
        if (redis_tell(port, answer, sizeof(answer), "%s", command) && strstr(answer, part) != NULL)
            return true;
        server_pause_ms(10);
    }
    return false;
}

static inline bool redis_folder(struct redis_server *server, const char *tls_dir)
{
    *server = (struct redis_server){.port = server_free_port()};
    redis_use_tls(server, tls_dir);
    return server_folder(server->dir);
}

/* `more` are arguments of both servers [borrow until stop], `extra` lines of the sentinels. */
static inline bool redis_sentinels_start(struct redis_sentinels *all, int count,
                                         const char *const *more, const char *extra)
{
    size_t at = 0;
    bool ok = true;
    *all = (struct redis_sentinels){.count = count, .more = more, .tls_dir = all->tls_dir};
    for (int i = 0; ok && i < 2; i++)
        ok = redis_folder(&all->data[i], all->tls_dir);
    for (int i = 0; ok && i < 2; i++)
        ok = redis_sentinels_run(all, i, i == 0);
    for (int i = 0; ok && i < count; i++) {
        ok = redis_folder(&all->watchers[i], all->tls_dir) && redis_sentinel_run(all, i, extra);
        at += (size_t)snprintf(all->hosts + at, sizeof(all->hosts) - at, "%s127.0.0.1:%u",
                               i > 0 ? "," : "", redis_sentinels_port(&all->watchers[i]));
    }
    return ok;
}

/* Until all sentinels know the replica and each other, so that a failover can begin. */
static inline bool redis_sentinels_wait(const struct redis_sentinels *all)
{
    char others[64];
    bool ok = redis_await(all->data[1].port, "INFO replication", "master_link_status:up");
    snprintf(others, sizeof(others), "slaves=1,sentinels=%d", all->count);
    for (int i = 0; ok && i < all->count; i++)
        ok = redis_await(all->watchers[i].port, "INFO sentinel", others);
    return ok;
}

static inline void redis_sentinels_stop(struct redis_sentinels *all)
{
    for (int i = 0; i < all->count; i++)
        redis_stop(&all->watchers[i]);
    redis_stop(&all->data[0]);
    redis_stop(&all->data[1]);
}

#endif
