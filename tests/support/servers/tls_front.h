/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TLS_FRONT_H
#define TIERCE_TESTS_TLS_FRONT_H

#include "server_process.h"

/*
 * TLS in front of a server that speaks none, for 127.0.0.1, with certificates in a folder of its
 * own (tls_make_certificates). It ends with the test, even if the test is killed.
 */
struct tls_front {
    pid_t pid;
    uint16_t port;
    char dir[64];
};

static inline bool tls_front_start(struct tls_front *front, uint16_t server_port)
{
    char port[8], to[8];
    *front = (struct tls_front){.port = server_free_port()};
    if (!server_folder(front->dir) || !tls_make_certificates(front->dir))
        return false;
    snprintf(port, sizeof(port), "%u", (unsigned)front->port);
    snprintf(to, sizeof(to), "%u", (unsigned)server_port);
    front->pid = fork();
    if (front->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (chdir(front->dir) == 0)
            execlp("python3", "python3", TIERCE_TEST_TLS_FRONT, port, to, "s.pem", "s.key", NULL);
        _exit(127);
    }
    return server_wait(&front->pid, front->port, "");
}

static inline void tls_front_stop(struct tls_front *front)
{
    server_kill(&front->pid);
    server_remove(front->dir);
}

#endif
