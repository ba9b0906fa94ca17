/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/fleet_manager.h"

#include <stdio.h>
#include <string.h>

int tierce__fleet_manager_check(const struct tierce__url *url, char why[TIERCE__FLEET_WHY_BYTES])
{
    for (uint32_t i = 0; i < url->host_count; i++) {
        const struct tierce__url_host *host = &url->hosts[i];
        if (host->name[0] != '\0' && host->port != 0)
            continue;
        snprintf(
            why, TIERCE__FLEET_WHY_BYTES,
            "the manager \"%.100s\" has no %s; each one must be HOST:PORT, with the port of its "
            "gRPC listener (listen.grpc_port, 6381)",
            host->name, host->name[0] == '\0' ? "host" : "port");
        return TIERCE_E_CONFIG;
    }
    return 0;
}

int tierce__fleet_manager_read_url(struct tierce__url *out, const char *text,
                                   bool (*is_path)(const char *path), const char *expected,
                                   char why[TIERCE__FLEET_WHY_BYTES])
{
    static const char *const known[] = {"token_file", "ca_file", NULL};
    int rc = tierce__url_parse(out, text, why);
    if (rc != 0)
        return rc;
    rc = tierce__url_check_params(out, known, why);
    bool is_fleet = strcmp(out->scheme, "fleet") == 0 || strcmp(out->scheme, "fleet+tls") == 0;
    if (rc == 0 &&
        (!is_fleet || !is_path(out->path) || out->host_count == 0 || out->user != NULL)) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "it must be %s", expected);
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__fleet_manager_check(out, why);
    if (rc != 0)
        tierce__url_clear(out);
    return rc;
}
