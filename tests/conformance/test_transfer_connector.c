/* SPDX-License-Identifier: Apache-2.0 */
/* transfer:// to a server of this process, whose keeper answers at once or later; the same by TLS.
 */
#include "conformance/connector_conformance.h"
#include "map_keeper.h"
#include "net/tls.h"
#include "server_process.h"

#define SPACE_BYTES (64ull << 20)

static struct map_keeper *keeper;
static struct tierce__transfer_server *server;
static struct tierce__tls_context *tls;
static char folder[64];

static bool start_with(char *url, size_t room, const struct tierce__transfer_server_opts *opts)
{
    char why[256];
    if (tierce__transfer_server_start(&server, opts, why) != 0) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    unsigned port = tierce__transfer_server_port(server);
    if (tls != NULL)
        snprintf(url, room, "transfer+tls://127.0.0.1:%u/memory?ca_file=%s/ca.pem", port, folder);
    else
        snprintf(url, room, "transfer://127.0.0.1:%u/memory", port);
    return true;
}

static bool load_certificates(void)
{
    char certificate[96], key[96], why[256];
    if (!server_folder(folder) || !tls_make_certificates(folder))
        return false;
    snprintf(certificate, sizeof(certificate), "%s/s.pem", folder);
    snprintf(key, sizeof(key), "%s/s.key", folder);
    return tierce__tls_server_context(
               &tls, &(struct tierce__tls){certificate, key, .is_bare = true}, why) == 0;
}

static char is_late[] = "late", is_tls[] = "tls";

static bool start(char *url, size_t room, void *ctx)
{
    keeper = map_keeper_create("memory", SPACE_BYTES);
    if (ctx == is_tls && !load_certificates())
        return false;
    if (ctx != NULL)
        map_keeper_set_late(keeper);
    return start_with(
        url, room,
        &(struct tierce__transfer_server_opts){.size = sizeof(struct tierce__transfer_server_opts),
                                               .host = "127.0.0.1",
                                               .keeper = map_keeper_base(keeper),
                                               .tls = tls});
}

/* The keeper checks that all leases and rooms were given back. */
static void stop(void *ctx)
{
    tierce__transfer_server_stop(server, tierce__deadline_in_ms(10000));
    map_keeper_destroy(keeper);
    if (ctx != is_tls)
        return;
    tierce__tls_context_destroy(tls);
    tls = NULL;
    server_remove(folder);
}

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)

static const struct connector_factory factories[] = {
    {.name = "at once", .start = start, .stop = stop, .caps = CAPS, .has_lengths = true},
    {.name = "late",
     .start = start,
     .stop = stop,
     .ctx = is_late,
     .caps = CAPS,
     .has_lengths = true,
     .is_twin = true},
    {.name = "late, by TLS",
     .start = start,
     .stop = stop,
     .ctx = is_tls,
     .caps = CAPS,
     .has_lengths = true},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
