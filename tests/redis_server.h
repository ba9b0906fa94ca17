/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_REDIS_SERVER_H
#define TIERCE_TESTS_REDIS_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * A real redis-server of a test's own, on a free port of loopback and on a Unix socket, in a folder
 * of its own. It ends with the test, whatever happens to that.
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

static inline void redis_pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Whether redis-server is installed. */
static inline bool redis_is_there(void)
{
    return access("/usr/bin/redis-server", X_OK) == 0;
}

/* A port that was free a moment ago; 0 for none. Of those that the kernel does not give to others
 * by itself, as to the connections of the tests beside this one. */
static inline uint16_t redis_free_port(void)
{
    enum { FIRST = 20000, COUNT = 12000, TRIES = 100 };
    bool ok = false;
    uint16_t port = 0;
    for (int i = 0; i < TRIES && !ok; i++) {
        if (getrandom(&port, sizeof(port), 0) != (ssize_t)sizeof(port))
            return 0;
        port = (uint16_t)(FIRST + port % COUNT);
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons(port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
        if (fd >= 0)
            close(fd);
    }
    return ok ? port : 0;
}

static inline bool redis_listens(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Whether it answers at its Unix socket too: it binds that before it listens there. */
static inline bool redis_listens_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* In a folder: ca.pem, s.pem and s.key, which it signed for 127.0.0.1, and other.pem of nobody. */
static inline bool tls_make_certificates(const char *dir)
{
    char command[1200];
    snprintf(command, sizeof(command),
             "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
             " -keyout ca.key -out ca.pem -subj /CN=ca 2>/dev/null && "
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
             " -keyout other.key -out other.pem -subj /CN=other 2>/dev/null && "
             "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout s.key"
             " -out s.csr -subj /CN=s 2>/dev/null && "
             "printf 'subjectAltName=IP:127.0.0.1' >ext && "
             "openssl x509 -req -in s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
             " -extfile ext -out s.pem 2>/dev/null",
             dir);
    return system(command) == 0;
}

static inline void redis_use_tls(struct redis_server *server, const char *dir)
{
    server->tls_dir = dir;
    server->tls_port = dir != NULL ? redis_free_port() : 0;
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
 * listen within ten seconds. */
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
    for (int i = 0; server->pid > 0 && i < 2000; i++) {
        if (redis_listens(server->port) &&
            (server->socket[0] == '\0' || redis_listens_at(server->socket)))
            return true;
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
            break;
        redis_pause_ms(5);
    }
    return false;
}

/* A folder and a port, and the server on them. */
static inline bool redis_start(struct redis_server *server, const char *const *more)
{
    *server = (struct redis_server){.port = redis_free_port()};
    snprintf(server->dir, sizeof(server->dir), "/tmp/tierce-redis-XXXXXX");
    if (server->port == 0 || mkdtemp(server->dir) == NULL)
        return false;
    snprintf(server->socket, sizeof(server->socket), "%s/s", server->dir);
    return redis_run(server, false, more);
}

static inline void redis_kill(struct redis_server *server)
{
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

/* Ends it and removes the folder, in which it has files only. */
static inline void redis_stop(struct redis_server *server)
{
    char command[128];
    redis_kill(server);
    snprintf(command, sizeof(command), "rm -rf %s", server->dir);
    if (server->dir[0] != '\0' && system(command) != 0)
        fprintf(stderr, "%s stays\n", server->dir);
}

#endif
