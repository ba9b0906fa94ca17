/* SPDX-License-Identifier: Apache-2.0 */
/* Against a real redis-server: over TCP, over its Unix socket, and as a user with a password. */
#include "conformance/connector_conformance.h"
#include "redis_server.h"

#include <stdlib.h>

static struct redis_server server;

static bool start_tcp(char *url, size_t room, void *ctx)
{
    if (!redis_start(&server, NULL))
        return false;
    snprintf(url, room, "redis://127.0.0.1:%u%s", (unsigned)server.port, (const char *)ctx);
    return true;
}

static bool start_unix(char *url, size_t room, void *ctx)
{
    if (!redis_start(&server, NULL))
        return false;
    snprintf(url, room, "redis+unix://%s%s", server.socket, (const char *)ctx);
    return true;
}

static bool start_user(char *url, size_t room, void *ctx)
{
    static const char *const more[] = {"--user", "kv",     "on",      ">se%cret", "~kv:*",
                                       "+@all",  "--user", "default", "off",      NULL};
    if (!redis_start(&server, more))
        return false;
    snprintf(url, room, "valkey://kv:se%%25cret@127.0.0.1:%u/3%s", (unsigned)server.port,
             (const char *)ctx);
    return true;
}

static void stop(void *ctx)
{
    (void)ctx;
    redis_stop(&server);
}

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)

static char plain[] = "", many[] = "?db=2&connections=40&prefix=a*%3F%5B%5C",
            user[] = "?prefix=kv:&ttl=1h";

static const struct connector_factory factories[] = {
    {.name = "redis", .start = start_tcp, .stop = stop, .ctx = plain, .caps = CAPS},
    {.name = "redis by a socket", .start = start_unix, .stop = stop, .ctx = many, .caps = CAPS},
    {.name = "redis for a user", .start = start_user, .stop = stop, .ctx = user, .caps = CAPS},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
