/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_local_node.h"

#include <stdio.h>

int tierce__bench_local_node_start(struct tierce__bench_local_node *node,
                                   const struct tierce__bench *bench, uint64_t bytes)
{
    char size[48], why[TIERCE_CONFIG_ERROR_BYTES] = "";
    char *argv[] = {
        (char *)(uintptr_t) "--listen.resp_port=0", (char *)(uintptr_t) "--listen.lm_port=0",
        (char *)(uintptr_t) "--listen.http_port=0", size, (char *)(uintptr_t) "--control.socket="};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    struct tierce__node_ports ports;
    snprintf(size, sizeof(size), "--memory.size=%llu", (unsigned long long)bytes);
    if (tierce__node_config_load(&node->config, 5, argv, no_environment, &error) < 0)
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
