/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_REDIS_CLUSTER_H
#define TIERCE_TESTS_REDIS_CLUSTER_H

#include "redis_server.h"

#include <stdarg.h>

/*
 * A real cluster of a test's own: masters with the slots evenly among them, and replicas of theirs
 * behind them. It ends with the test.
 */
enum { REDIS_CLUSTER_NODES = 6 };

struct redis_cluster {
    struct redis_server nodes[REDIS_CLUSTER_NODES];
    char buses[REDIS_CLUSTER_NODES][8];
    char timeout_ms[12];
    int masters, count;
    char uri[256];       /* redis-cluster://.. of all, or rediss-cluster://.. */
    const char *tls_dir; /* set before start: certificates, and all speak TLS to each other */
};

/* One command, by printf rules, to a node; what it answers first, up to `size` bytes. */
static inline bool redis_tell(uint16_t port, char *answer, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline bool redis_tell(uint16_t port, char *answer, size_t size, const char *format, ...)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    char line[1024];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(line, sizeof(line) - 2, format, args);
    va_end(args);
    memcpy(line + bytes, "\r\n", 3);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
              write(fd, line, (size_t)bytes + 2) == bytes + 2;
    ssize_t got = 0, total = 0;
    /* A bulk string of many lines comes in pieces. */
    while (ok && (size_t)total < size - 1 &&
           (got = read(fd, answer + total, size - 1 - (size_t)total)) > 0) {
        total += got;
        answer[total] = '\0';
        char *body = answer[0] == '$' ? strstr(answer, "\r\n") : NULL;
        if (answer[0] != '$' ? answer[total - 1] == '\n'
                             : body != NULL && total >= body - answer + 4 + atoi(answer + 1))
            break;
    }
    if (fd >= 0)
        close(fd);
    return ok && total > 0 && answer[0] != '-';
}

static inline bool redis_cluster_run(struct redis_cluster *cluster, int node)
{
    return redis_run(&cluster->nodes[node], false,
                     (const char *[]){"--cluster-enabled", "yes", "--tls-cluster",
                                      cluster->tls_dir != NULL ? "yes" : "no", "--cluster-port",
                                      cluster->buses[node], "--cluster-require-full-coverage", "no",
                                      "--cluster-node-timeout", cluster->timeout_ms,
                                      "--cluster-replica-validity-factor", "0",
                                      "--repl-diskless-sync-delay", "0", NULL});
}

/* Until every node knows all slots, and the replicas have what their masters have. */
static inline bool redis_cluster_wait(const struct redis_cluster *cluster)
{
    char answer[4096];
    for (int node = 0, tries = 0; node < cluster->count; tries++) {
        uint16_t port = cluster->nodes[node].port;
        bool is_well = redis_tell(port, answer, sizeof(answer), "CLUSTER INFO") &&
                       strstr(answer, "cluster_slots_ok:16384") != NULL &&
                       strstr(answer, "cluster_state:ok") != NULL;
        if (is_well && node >= cluster->masters)
            is_well = redis_tell(port, answer, sizeof(answer), "INFO replication") &&
                      strstr(answer, "master_link_status:up") != NULL;
        if (is_well)
            node++;
        else
            server_pause_ms(10);
        if (tries > 6000)
            return false;
    }
    return true;
}

/* The i-th replica is the i-th master's. */
static inline bool redis_cluster_replicate(struct redis_cluster *cluster)
{
    char id[128], answer[256];
    for (int i = cluster->masters; i < cluster->count; i++) {
        if (!redis_tell(cluster->nodes[i - cluster->masters].port, id, sizeof(id), "CLUSTER MYID"))
            return false;
        id[4 + 1 + 40] = '\0'; /* "$40\r\n" and the id */
        int tries = 0;
        while (!redis_tell(cluster->nodes[i].port, answer, sizeof(answer), "CLUSTER REPLICATE %s",
                           id + 5))
            if (++tries > 1000)
                return false;
            else
                server_pause_ms(10);
    }
    return true;
}

static inline bool redis_cluster_try(struct redis_cluster *cluster, int masters, int replicas,
                                     int timeout_ms)
{
    enum { SLOTS = 16384 };
    char answer[256];
    bool ok = true;
    *cluster = (struct redis_cluster){
        .masters = masters, .count = masters + replicas, .tls_dir = cluster->tls_dir};
    snprintf(cluster->timeout_ms, sizeof(cluster->timeout_ms), "%d", timeout_ms);
    size_t at = (size_t)snprintf(cluster->uri, sizeof(cluster->uri), "redis%s-cluster://",
                                 cluster->tls_dir != NULL ? "s" : "");
    for (int i = 0; ok && i < cluster->count; i++) {
        struct redis_server *node = &cluster->nodes[i];
        *node = (struct redis_server){.port = server_free_port()};
        redis_use_tls(node, cluster->tls_dir);
        snprintf(cluster->buses[i], sizeof(cluster->buses[i]), "%u", (unsigned)server_free_port());
        ok = server_folder(node->dir) && redis_cluster_run(cluster, i);
        at += (size_t)snprintf(cluster->uri + at, sizeof(cluster->uri) - at, "%s127.0.0.1:%u",
                               i > 0 ? "," : "",
                               (unsigned)(node->tls_port != 0 ? node->tls_port : node->port));
        if (ok && i < masters)
            ok = redis_tell(node->port, answer, sizeof(answer), "CLUSTER ADDSLOTSRANGE %d %d",
                            SLOTS * i / masters, SLOTS * (i + 1) / masters - 1);
        if (ok)
            ok = redis_tell(node->port, answer, sizeof(answer), "CLUSTER SET-CONFIG-EPOCH %d",
                            i + 1);
    }
    for (int i = 1; ok && i < cluster->count; i++)
        ok = redis_tell(cluster->nodes[0].port, answer, sizeof(answer),
                        "CLUSTER MEET 127.0.0.1 %u %s", (unsigned)cluster->nodes[i].port,
                        cluster->buses[i]);
    return ok && redis_cluster_replicate(cluster) && redis_cluster_wait(cluster);
}

/* Empty again; false if a node does not answer. */
static inline bool redis_cluster_flush(struct redis_cluster *cluster)
{
    char answer[256];
    bool ok = true;
    for (int i = 0; i < cluster->masters; i++)
        ok = redis_tell(cluster->nodes[i].port, answer, sizeof(answer), "FLUSHALL") && ok;
    return ok;
}

static inline void redis_cluster_stop(struct redis_cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++)
        redis_stop(&cluster->nodes[i]);
}

/* Of all the ports that it needs one may be taken by now. */
static inline bool redis_cluster_start(struct redis_cluster *cluster, int masters, int replicas,
                                       int timeout_ms)
{
    for (int tries = 0; tries < 3; tries++) {
        if (redis_cluster_try(cluster, masters, replicas, timeout_ms))
            return true;
        redis_cluster_stop(cluster);
    }
    return false;
}

#endif
