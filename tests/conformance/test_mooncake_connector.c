/* SPDX-License-Identifier: Apache-2.0 */
/* Against a real mooncake_master over TCP, with the memory of another process. */
#include "conformance/connector_conformance.h"
#include "mooncake_server.h"

static struct mooncake_server server;

static bool start(char *url, size_t room, void *ctx)
{
    if (!mooncake_start(&server))
        return false;
    snprintf(url, room, "mooncake://127.0.0.1:%u?python=%s%s", (unsigned)server.port,
             mooncake_python(), (const char *)ctx);
    return true;
}

static bool renew(char *url, size_t room, void *ctx)
{
    (void)url;
    (void)room;
    (void)ctx;
    return mooncake_empty(&server);
}

static void stop(void *ctx)
{
    (void)ctx;
    mooncake_stop(&server);
}

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_NO_REPLACE)

static char plain[] = "";
static char many[] = "&connections=9&prefix=a*%3F%5B%5C&numa=0&timeout=60s&buffer=1MiB"
                     "&host=127.0.0.1";

static const struct connector_factory factories[] = {
    {.name = "mooncake",
     .start = start,
     .renew = renew,
     .stop = stop,
     .ctx = plain,
     .caps = CAPS,
     .is_twin = true},
    {.name = "mooncake with all",
     .start = start,
     .renew = renew,
     .stop = stop,
     .ctx = many,
     .caps = CAPS},
};

int main(void)
{
    if (!mooncake_is_there()) {
        printf("skipped: no Mooncake (TIERCE_TEST_MOONCAKE_PYTHON names a python that has it)\n");
        return 77;
    }
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
