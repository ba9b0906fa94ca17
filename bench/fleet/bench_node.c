/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fleet/bench_node.h"

#include <stdio.h>

#include "base/clock.h"
#include "node/part/join.h"
#include "node/part/part.h"
#include "store/transfer/transfer.h"

static uint64_t moved_bytes(void *arg)
{
    const struct tierce__bench_node *node = arg;
    struct tierce__transfer_stats stats;
    tierce__transfer_server_stats(node->server, &stats);
    return stats.read_bytes + stats.written_bytes;
}

int tierce__bench_node_start(struct tierce__bench_node *node, const struct tierce__bench *bench,
                             uint64_t bytes)
{
    char why[256];
    int rc = tierce__parts_open(
        &node->parts,
        &(struct tierce__parts_opts){
            .size = sizeof(struct tierce__parts_opts), .memory_bytes = bytes, .disk_path = ""},
        why);
    if (rc == 0)
        rc = tierce__transfer_server_start(&node->server,
                                           &(struct tierce__transfer_server_opts){
                                               .size = sizeof(struct tierce__transfer_server_opts),
                                               .host = "127.0.0.1",
                                               .keeper = tierce__parts_keeper(node->parts)},
                                           why);
    if (rc != 0)
        return tierce__bench_fail(bench, "%s", why);
    node->port = tierce__transfer_server_port(node->server);
    return 0;
}

int tierce__bench_node_join(struct tierce__bench_node *node, const struct tierce__bench *bench,
                            uint16_t port)
{
    char url[64], address[32], why[256];
    snprintf(url, sizeof(url), "fleet://127.0.0.1:%u/" TIERCE__BENCH_POOL, (unsigned)port);
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)node->port);
    const struct tierce__join_opts opts = {.size = sizeof(opts),
                                           .url = url,
                                           .node = "bench",
                                           .address = address,
                                           .parts = node->parts,
                                           .moved_bytes = moved_bytes,
                                           .arg = node};
    return tierce__join_start(&node->join, &opts, why) == 0 ? 0
                                                            : tierce__bench_fail(bench, "%s", why);
}

void tierce__bench_node_leave(struct tierce__bench_node *node)
{
    tierce__join_stop(node->join);
    node->join = NULL;
}

void tierce__bench_node_stop(struct tierce__bench_node *node)
{
    tierce__bench_node_leave(node);
    tierce__transfer_server_stop(node->server, tierce__now_ns());
    tierce__parts_close(node->parts, tierce__now_ns());
    *node = (struct tierce__bench_node){0};
}
