/* SPDX-License-Identifier: Apache-2.0 */
#include "router/subscriber_curve.h"

#include "base/alloc.h"
#include "net/zmq_curve.h"

#include <stdio.h>
#include <string.h>

int tierce__subscriber_curve(void *socket, struct tierce__snapshot_tokens *keys, const char *tenant,
                             const char *server_key, char why[256])
{
    struct tierce__zmq_curve_pair pair = {0};
    char *secret = NULL;
    bool has_tenant = tenant[0] != '\0';
    if (server_key[0] == '\0')
        return 0;
    int rc = keys != NULL ? tierce__snapshot_tokens_word(&secret, keys, tenant) : 0;
    if (rc < 0)
        return rc;
    if (secret == NULL || !tierce__zmq_curve_of(&pair, secret)) {
        snprintf(why, 256,
                 "server_key is set, but curve.key_file has no %skey for %s%.40s%s: it needs a "
                 "line SECRET-KEY%s%.40s (`tierce keygen FILE` makes a key)",
                 secret == NULL ? "" : "valid ",
                 has_tenant ? "the tenant '" : "publishers without a tenant", tenant,
                 has_tenant ? "'" : "", has_tenant ? " " : "", tenant);
        rc = TIERCE_E_CONFIG;
    } else {
        rc = tierce__zmq_curve_join(socket, &pair, server_key);
    }
    tierce__free_secret(secret);
    tierce__zmq_curve_wipe(&pair);
    return rc;
}
