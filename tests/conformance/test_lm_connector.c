/* SPDX-License-Identifier: Apache-2.0 */
/* Against a node of this process; and against LMCache's own server where TIERCE_LMCACHE_PYTHON
 * names a Python that has it. */
#include "conformance/connector_conformance.h"
#include "node_harness.h"
#include "server_process.h"

#include <stdlib.h>

static struct node_harness node;
static pid_t lmcache;

static bool start_node(char *url, size_t room, void *ctx)
{
    char *argv[] = {(char *)"--memory.size=256MiB"};
    harness_start(&node, 1, argv);
    snprintf(url, room, "lm://127.0.0.1:%u%s", (unsigned)node.ports.lm, (const char *)ctx);
    return true;
}

static void stop_node(void *ctx)
{
    (void)ctx;
    harness_stop(&node);
}

static bool start_lmcache(char *url, size_t room, void *ctx)
{
    char port[8];
    uint16_t number = server_free_port();
    snprintf(port, sizeof(port), "%u", (unsigned)number);
    snprintf(url, room, "lm://127.0.0.1:%s", port);
    lmcache = fork();
    if (lmcache == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        setenv("LMCACHE_TRACK_USAGE", "false", 1);
        execl(ctx, ctx, "-m", "lmcache.v1.server", "127.0.0.1", port, (char *)NULL);
        _exit(127);
    }
    return server_wait(&lmcache, number, "");
}

static void stop_lmcache(void *ctx)
{
    (void)ctx;
    server_kill(&lmcache);
}

#define CAPS (TIERCE__CONNECTOR_NO_DELETE | TIERCE__CONNECTOR_TELLS_LENGTH)

static char plain[] = "", few[] = "?connections=2";

int main(void)
{
    struct connector_factory factories[3] = {
        {.name = "node", .start = start_node, .stop = stop_node, .ctx = plain, .caps = CAPS},
        {.name = "node2",
         .start = start_node,
         .stop = stop_node,
         .ctx = few,
         .codes = true,
         .caps = TIERCE__CONNECTOR_NO_DELETE},
    };
    char *python = getenv("TIERCE_LMCACHE_PYTHON");
    if (python != NULL)
        factories[2] = (struct connector_factory){.name = "lmcache",
                                                  .start = start_lmcache,
                                                  .stop = stop_lmcache,
                                                  .ctx = python,
                                                  .caps = CAPS};
    return connector_conformance_main(factories, python != NULL ? 3 : 2);
}
