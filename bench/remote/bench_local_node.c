/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_local_node.h"

#include <stdio.h>

int tierce__bench_local_node_start(struct tierce__bench_local_node *node,
                                   const struct tierce__bench *bench, uint64_t bytes,
                                   const char *name)
{
    char size[48], native[160], why[TIERCE_CONFIG_ERROR_BYTES] = "";
    char *argv[] = {(char *)(uintptr_t) "--listen.resp_port=0",
                    (char *)(uintptr_t) "--listen.lm_port=0",
                    (char *)(uintptr_t) "--listen.http_port=0",
                    (char *)(uintptr_t) "--control.socket=",
                    size,
                    native};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    struct tierce__node_ports ports;
    if (name != NULL && snprintf(node->socket, sizeof(node->socket), "%s/%s", bench->dir, name) >=
                            (int)sizeof(node->socket))
        return tierce__bench_fail(bench, "the folder's name is too long for a socket");
    snprintf(size, sizeof(size), "--memory.size=%llu", (unsigned long long)bytes);
    snprintf(native, sizeof(native), "--listen.native=%s", node->socket);
    if (tierce__node_config_load(&node->config, 6, argv, no_environment, &error) < 0)
        return tierce__bench_fail(bench, "%s", error.text);
    if (tierce__node_start(&node->node, &node->config, why) < 0)
        return tierce__bench_fail(bench, "%s", why);
    tierce__node_ports(node->node, &ports);
    node->port = ports.resp;
    return 0;
}

void tierce__bench_local_node_stop(struct tierce__bench_local_node *node)
{
    tierce__node_stop(node->node);
    tierce__node_config_clear(&node->config);
    *node = (struct tierce__bench_local_node){0};
}
