/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SERVER_PROCESS_H
#define TIERCE_TESTS_SERVER_PROCESS_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/stream.h"

/*
 * Shared code for the tests' real servers: ports, start, end, certificates.
 */

static inline void server_pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Keeps a port from the tests beside this one, until this process ends. */
static inline bool server_claims_port(uint16_t port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* abstract: it begins with a zero */
    int bytes = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "tierce-test-port-%u",
                         (unsigned)port);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&name, size) == 0;
    if (fd >= 0 && !ok)
        close(fd);
    return ok;
}

/* A port that is free, and that no other test is given; 0 for none. Of those that the kernel does
 * not give to others by itself, as to the connections of the tests beside this one. */
static inline uint16_t server_free_port(void)
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
        ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
             server_claims_port(port);
        if (fd >= 0)
            close(fd);
    }
    return ok ? port : 0;
}

static inline bool server_listens(uint16_t port)
{
    char why[256];
    int fd = -1;
    bool ok = tierce__stream_connect(&fd, "127.0.0.1", port, TIERCE__DEADLINE_NEVER, why,
                                     sizeof(why)) == 0;
    if (ok)
        close(fd);
    return ok;
}

/* Whether it answers at its Unix socket too: it binds that before it listens there. */
static inline bool server_listens_at(const char *path)
{
    int fd = -1;
    bool ok = tierce__stream_connect_unix(&fd, path) == 0;
    if (ok)
        close(fd);
    return ok;
}

/*
 * Waits until a server that was started as `pid` answers at its port and at its Unix socket (0, "":
 * it has none); false, and on standard error why, if it ended or does not within a minute: on a
 * machine whose disk others keep busy a start takes its time. An ended one's pid becomes 0.
 */
static inline bool server_wait(pid_t *pid, uint16_t port, const char *socket_path)
{
    enum { WAIT_SECONDS = 60 };
    struct timespec now, end;
    int status = 0;
    if (*pid <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += WAIT_SECONDS;
    do {
        if (waitpid(*pid, &status, WNOHANG) == *pid) {
            fprintf(stderr, "the server of port %u \"%s\" ended at its start: status 0x%x\n",
                    (unsigned)port, socket_path, (unsigned)status);
            *pid = 0;
            return false;
        }
        if ((port == 0 || server_listens(port)) &&
            (socket_path[0] == '\0' || server_listens_at(socket_path)))
            return true;
        server_pause_ms(5);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec);
    fprintf(stderr, "no server listens at port %u \"%s\" after %d s\n", (unsigned)port, socket_path,
            WAIT_SECONDS);
    return false;
}

/* Ends it at once, if it runs. */
static inline void server_kill(pid_t *pid)
{
    if (*pid > 0) {
        kill(*pid, SIGKILL);
        waitpid(*pid, NULL, 0);
    }
    *pid = 0;
}

/* Shows the end of a file on standard error, where there is one: what a server wrote. */
static inline void server_show_log(const char *dir, const char *name)
{
    char command[128];
    snprintf(command, sizeof(command), "tail -n 20 %.90s/%s 1>&2", dir, name);
    if (dir[0] != '\0' && system(command) != 0)
        fprintf(stderr, "it has no log\n");
}

/* Removes a server's folder. */
static inline void server_remove(const char *dir)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %.100s", dir);
    if (dir[0] != '\0' && system(command) != 0)
        fprintf(stderr, "%s stays\n", dir);
}

/* Removes the folders of this user's servers whose test was killed: nobody holds their file "held".
 */
static inline void server_remove_stale(void)
{
    char path[300];
    struct stat st;
    DIR *all = opendir("/tmp");
    for (struct dirent *entry; all != NULL && (entry = readdir(all)) != NULL;) {
        if (strncmp(entry->d_name, "tierce-server-", 14) != 0 || strlen(entry->d_name) > 40)
            continue;
        snprintf(path, sizeof(path), "/tmp/%s/held", entry->d_name);
        int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        bool stale = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                     flock(fd, LOCK_EX | LOCK_NB) == 0;
        *strrchr(path, '/') = '\0';
        if (stale)
            server_remove(path);
        if (fd >= 0)
            close(fd);
    }
    if (all != NULL)
        closedir(all);
}

/* Makes a folder that a later test removes if this one is killed. It is held until all processes
 * that were forked from this one have ended. */
static inline bool server_folder(char dir[64])
{
    char made[80], held[80];
    server_remove_stale();
    snprintf(dir, 64, "/tmp/tierce-server-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return false;
    snprintf(made, sizeof(made), "%.60s/hold", dir);
    snprintf(held, sizeof(held), "%.60s/held", dir);
    int fd = open(made, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return fd >= 0 && flock(fd, LOCK_EX) == 0 && rename(made, held) == 0;
}

/* In a folder: NAME.pem and NAME.key, an authority. */
static inline bool tls_make_authority(const char *dir, const char *name)
{
    char command[400];
    snprintf(command, sizeof(command),
             "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
             " -keyout %s.key -out %s.pem -subj /CN=%s 2>/dev/null",
             dir, name, name, name);
    return system(command) == 0;
}

/* NAME.pem and NAME.key, signed by an authority of the folder. names: as "IP:127.0.0.1". days: -1:
 * it has expired. Both files are replaced at once, as a service that renews certificates does it.
 */
static inline bool tls_make_certificate(const char *dir, const char *name, const char *authority,
                                        const char *names, int days)
{
    char command[900];
    snprintf(command, sizeof(command),
             "cd %s && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout"
             " %s.key.new -out %s.csr -subj /CN=%s 2>/dev/null && "
             "printf 'subjectAltName=%s' >ext && "
             "openssl x509 -req -in %s.csr -CA %s.pem -CAkey %s.key -CAcreateserial -days %d"
             " -extfile ext -out %s.pem.new 2>/dev/null && mv %s.key.new %s.key && mv %s.pem.new"
             " %s.pem",
             dir, name, name, name, names, name, authority, authority, days, name, name, name, name,
             name);
    return system(command) == 0;
}

/* ca.pem, s.pem and s.key, which it signed for 127.0.0.1, and other.pem of nobody. */
static inline bool tls_make_certificates(const char *dir)
{
    return tls_make_authority(dir, "ca") && tls_make_authority(dir, "other") &&
           tls_make_certificate(dir, "s", "ca", "IP:127.0.0.1", 2);
}

#endif
