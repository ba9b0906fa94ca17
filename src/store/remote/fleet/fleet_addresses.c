/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/fleet_manager.h"

#include <stdio.h>

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
