/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_REDIS_SERVER_H
#define TIERCE_TESTS_REDIS_SERVER_H

#include "server_process.h"

/*
 * A real redis-server of a test's own, on a free port of loopback and on a Unix socket, in a folder
 * of its own. It ends with the test, even if the test is killed.
 */
struct redis_server {
    pid_t pid;
    uint16_t port;
    char dir[64];
    char socket[80];
    const char *tls_dir; /* certificates, where it speaks TLS too, as to others of its kind */
    uint16_t tls_port;
    char tls_texts[4][96];
};

/* Whether redis-server is installed. */
static inline bool redis_is_there(void)
{
    return access("/usr/bin/redis-server", X_OK) == 0;
}

static inline void redis_use_tls(struct redis_server *server, const char *dir)
{
    server->tls_dir = dir;
    server->tls_port = dir != NULL ? server_free_port() : 0;
}

/* Appends what makes it speak TLS, to clients with certificates only; returns the count. */
static inline size_t redis_tls_arguments(struct redis_server *server, const char **argv,
                                         size_t argc)
{
    static const char *const names[] = {"--tls-port", "--tls-cert-file", "--tls-key-file",
                                        "--tls-ca-cert-file"};
    static const char *const files[] = {NULL, "s.pem", "s.key", "ca.pem"};
    if (server->tls_dir == NULL)
        return argc;
    snprintf(server->tls_texts[0], sizeof(server->tls_texts[0]), "%u", (unsigned)server->tls_port);
    for (size_t i = 1; i < 4; i++)
        snprintf(server->tls_texts[i], sizeof(server->tls_texts[i]), "%.80s/%s", server->tls_dir,
                 files[i]);
    for (size_t i = 0; i < 4; i++) {
        argv[argc++] = names[i];
        argv[argc++] = server->tls_texts[i];
    }
    argv[argc++] = "--tls-replication";
    argv[argc++] = "yes";
    return argc;
}

/* Starts the process with more arguments, up to a NULL, at the server's port; false if it does not
 * come to listen. */
static inline bool redis_run(struct redis_server *server, bool tls, const char *const *more)
{
    const char *argv[64] = {"redis-server", "--dir",        server->dir,   "--save", "",
                            "--appendonly", "no",           "--daemonize", "no",     "--logfile",
                            "log",          "--unixsocket", "s",           "--bind", "127.0.0.1"};
    char port[8];
    size_t argc = 15;
    snprintf(port, sizeof(port), "%u", (unsigned)server->port);
    if (tls) {
        argv[argc++] = "--port";
        argv[argc++] = "0";
    }
    argv[argc++] = tls ? "--tls-port" : "--port";
    argv[argc++] = port;
    argc = redis_tls_arguments(server, argv, argc);
    while (more != NULL && *more != NULL && argc < 63)
        argv[argc++] = *more++;
    argv[argc] = NULL;
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        if (chdir(server->dir) == 0)
            execv("/usr/bin/redis-server", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (server_wait(&server->pid, server->port, server->socket))
        return true;
    server_show_log(server->dir, "log");
    return false;
}

/* A folder and a port, and the server on them. */
static inline bool redis_start(struct redis_server *server, const char *const *more)
{
    *server = (struct redis_server){.port = server_free_port()};
    if (server->port == 0 || !server_folder(server->dir))
        return false;
    snprintf(server->socket, sizeof(server->socket), "%s/s", server->dir);
    return redis_run(server, false, more);
}

/* Empty again. `user` are arguments of redis-cli ("": the default user may do it). */
static inline bool redis_flush(const struct redis_server *server, const char *user)
{
    char command[256];
    snprintf(command, sizeof(command), "test \"$(redis-cli -s %s %s FLUSHALL 2>&1)\" = OK",
             server->socket, user);
    return system(command) == 0;
}

/* A setting of the running server. */
static inline bool redis_set(const struct redis_server *server, const char *name, const char *value)
{
    char command[256];
    snprintf(command, sizeof(command), "test \"$(redis-cli -s %s CONFIG SET %s %s 2>&1)\" = OK",
             server->socket, name, value);
    return system(command) == 0;
}

static inline void redis_kill(struct redis_server *server)
{
    server_kill(&server->pid);
}

/* Ends it and removes the folder, in which it has files only. */
static inline void redis_stop(struct redis_server *server)
{
    redis_kill(server);
    server_remove(server->dir);
}

#endif
