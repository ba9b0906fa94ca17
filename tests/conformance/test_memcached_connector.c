/* SPDX-License-Identifier: Apache-2.0 */
/* Against a real memcached: over TCP, over its Unix socket, with small items, and with times
 * to live. */
#include "conformance/connector_conformance.h"
#include "memcached_server.h"

#include <stdlib.h>

static struct memcached_server server;
static char folder[40];

static bool start_tcp(char *url, size_t room, void *ctx)
{
    if (!memcached_start(&server, NULL))
        return false;
    snprintf(url, room, "memcached://127.0.0.1:%u%s", (unsigned)server.port, (const char *)ctx);
    return true;
}

static bool start_small(char *url, size_t room, void *ctx)
{
    static const char *const more[] = {"-I", "512k", NULL};
    if (!memcached_start(&server, more))
        return false;
    snprintf(url, room, "memcached://127.0.0.1:%u%s", (unsigned)server.port, (const char *)ctx);
    return true;
}

static bool start_unix(char *url, size_t room, void *ctx)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-memcached-XXXXXX");
    server = (struct memcached_server){0};
    if (mkdtemp(folder) == NULL || chmod(folder, 0777) != 0)
        return false;
    snprintf(server.socket, sizeof(server.socket), "%s/s", folder);
    if (!memcached_run(&server, NULL))
        return false;
    snprintf(url, room, "memcached+unix://%s%s", server.socket, (const char *)ctx);
    return true;
}

static void stop(void *ctx)
{
    (void)ctx;
    memcached_kill(&server);
    if (folder[0] != '\0') {
        unlink(server.socket);
        rmdir(folder);
    }
}

static char plain[] = "", ttl[] = "?ttl=1h&prefix=kv/", years[] = "?ttl=8760h&connections=2";

#define CAPS TIERCE__CONNECTOR_RANGES

static const struct connector_factory factories[] = {
    {.name = "memcached", .start = start_tcp, .stop = stop, .ctx = plain, .caps = CAPS},
    {.name = "unix", .start = start_unix, .stop = stop, .ctx = ttl, .caps = CAPS, .is_twin = true},
    {.name = "small",
     .start = start_small,
     .stop = stop,
     .ctx = years,
     .caps = CAPS,
     .is_twin = true},
};

int main(void)
{
    if (!memcached_is_there())
        return 77;
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
