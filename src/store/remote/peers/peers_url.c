/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/peers/peers_url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/remote/fleet/fleet_manager.h"

int tierce__peers_url(struct tierce__url *managers, char group[TIERCE__PEERS_GROUP_BYTES],
                      const char *text, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char ours[] = "peers", theirs[] = "fleet";
    char *copy = tierce__strdup(text);
    if (copy == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(strncmp(copy, ours, strlen(ours)) == 0);
    _Static_assert(sizeof(ours) == sizeof(theirs), "in place");
    memcpy(copy, theirs, strlen(theirs));
    int rc = tierce__url_parse(managers, copy, why);
    tierce__free(copy);
    if (rc != 0)
        return rc;
    const char *path = managers->path + (managers->path[0] == '/');
    if (managers->host_count == 0 || managers->user != NULL ||
        strlen(path) >= TIERCE__PEERS_GROUP_BYTES || strchr(path, '/') != NULL) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "URL: it must be peers://MANAGER:PORT[,MANAGER:PORT][/GROUP] or peers+tls://..., "
                 "with the managers' gRPC ports, and at most %u bytes of a group's name",
                 TIERCE__PEERS_GROUP_BYTES - 1);
        return TIERCE_E_CONFIG;
    }
    memcpy(group, path, strlen(path) + 1);
    return tierce__fleet_manager_check(managers, why);
}
