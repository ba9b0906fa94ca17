/* SPDX-License-Identifier: Apache-2.0 */
/* transfer:// to a server of this process, whose keeper answers at once or later. */
#include "conformance/connector_conformance.h"
#include "map_keeper.h"

#define SPACE_BYTES (64ull << 20)

static struct map_keeper *keeper;
static struct tierce__transfer_server *server;

static bool start_with(char *url, size_t room, const struct tierce__transfer_server_opts *opts)
{
    char why[256];
    if (tierce__transfer_server_start(&server, opts, why) != 0) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    snprintf(url, room, "transfer://127.0.0.1:%u/memory",
             (unsigned)tierce__transfer_server_port(server));
    return true;
}

static bool start(char *url, size_t room, void *ctx)
{
    keeper = map_keeper_create("memory", SPACE_BYTES);
    if (ctx != NULL)
        map_keeper_set_late(keeper);
    return start_with(
        url, room,
        &(struct tierce__transfer_server_opts){.size = sizeof(struct tierce__transfer_server_opts),
                                               .host = "127.0.0.1",
                                               .keeper = map_keeper_base(keeper)});
}

/* The keeper checks that all leases and rooms were given back. */
static void stop(void *ctx)
{
    (void)ctx;
    tierce__transfer_server_stop(server, tierce__deadline_in_ms(10000));
    map_keeper_destroy(keeper);
}

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)

static char is_late[] = "late";

static const struct connector_factory factories[] = {
    {.name = "at once", .start = start, .stop = stop, .caps = CAPS, .has_lengths = true},
    {.name = "late",
     .start = start,
     .stop = stop,
     .ctx = is_late,
     .caps = CAPS,
     .has_lengths = true},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
