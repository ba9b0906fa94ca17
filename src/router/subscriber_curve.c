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
    if (server_key[0] == '\0')
        return 0;
    int rc = keys != NULL ? tierce__snapshot_tokens_word(&secret, keys, tenant) : 0;
    if (rc < 0)
        return rc;
    if (secret == NULL || !tierce__zmq_curve_of(&pair, secret)) {
        snprintf(why, 256,
                 "server_key requires a key of the index: curve.key_file has %s for the tenant "
                 "\"%.95s\"; `tierce keygen FILE` makes one",
                 secret == NULL ? "none" : "no valid one", tenant);
        rc = TIERCE_E_CONFIG;
    } else {
        rc = tierce__zmq_curve_join(socket, &pair, server_key);
    }
    tierce__free_secret(secret);
    tierce__zmq_curve_wipe(&pair);
    return rc;
}
