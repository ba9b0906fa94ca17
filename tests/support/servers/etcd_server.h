/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_ETCD_SERVER_H
#define TIERCE_TESTS_ETCD_SERVER_H

#include "server_process.h"

/* A real etcd of a test's own, on free ports of loopback, in a folder of its own. It ends with the
 * test, even if the test is killed. */
struct etcd_server {
    pid_t pid;
    uint16_t port, peer_port;
    char dir[64];
};

static inline bool etcd_is_there(void)
{
    return access("/usr/bin/etcd", X_OK) == 0;
}

/* Starts the process on its ports and folder; false if it does not come to listen. */
static inline bool etcd_run(struct etcd_server *server)
{
    char client[64], peer[64], cluster[80];
    snprintf(client, sizeof(client), "http://127.0.0.1:%u", (unsigned)server->port);
    snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", (unsigned)server->peer_port);
    snprintf(cluster, sizeof(cluster), "default=%s", peer);
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execl("/usr/bin/etcd", "etcd", "--unsafe-no-fsync", "--data-dir", server->dir,
              "--listen-client-urls", client, "--advertise-client-urls", client,
              "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
              "--initial-cluster", cluster, (char *)NULL);
        _exit(127);
    }
    return server_wait(&server->pid, server->port, "");
}

static inline bool etcd_start(struct etcd_server *server)
{
    *server = (struct etcd_server){.port = server_free_port(), .peer_port = server_free_port()};
    return server->port != 0 && server->peer_port != 0 && server->port != server->peer_port &&
           server_folder(server->dir) && etcd_run(server);
}

static inline void etcd_kill(struct etcd_server *server)
{
    server_kill(&server->pid);
}

static inline void etcd_stop(struct etcd_server *server)
{
    etcd_kill(server);
    server_remove(server->dir);
}

#endif
