/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peer/peer_tls.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/engine_config.h"
#include "store/remote/peers/peers_self.h"

struct tierce__peer_tls {
    struct tierce__tls_context *client;
    struct tierce__tls_context *server; /* NULL: this engine has no certificate */
};

/* The file that a parameter names; NULL if it is not set. */
static const char *file_of(const struct tierce_config *config, enum tierce__engine_param param)
{
    const char *path = tierce__engine_text(config, param);
    return path[0] != '\0' ? path : NULL;
}

/* Returns the first error in the parameters, or NULL if there is none. */
static const char *find_missing(const struct tierce__tls *own, const char *authority)
{
    if ((own->certificate != NULL) != (own->key != NULL))
        return "peers.certificate and peers.key must be set together";
    if (own->certificate != NULL && authority == NULL)
        return "peers.certificate requires peers.ca: the CA of the other engines' "
               "certificates";
    return NULL;
}

int tierce__peer_tls_create(struct tierce__peer_tls **out, const struct tierce_config *config,
                            char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char fault[256];
    const char *authority = file_of(config, TIERCE__ENGINE_PEERS_CA);
    const struct tierce__tls own = {.certificate =
                                        file_of(config, TIERCE__ENGINE_PEERS_CERTIFICATE),
                                    .key = file_of(config, TIERCE__ENGINE_PEERS_KEY),
                                    .is_bare = true,
                                    .follows = true};
    const struct tierce__tls none = {.is_bare = true, .follows = true};
    const char *missing = find_missing(&own, authority);
    *out = NULL;
    if (missing != NULL) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", missing);
        return TIERCE_E_CONFIG;
    }
    if (authority == NULL)
        return 0;
    struct tierce__peer_tls *tls = tierce__calloc(1, sizeof(*tls));
    if (tls == NULL) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "peers.ca: out of memory");
        return -ENOMEM;
    }
    int rc = tierce__tls_client_context(&tls->client, authority, &none, fault);
    if (rc == 0 && own.certificate != NULL)
        rc = tierce__tls_server_context(&tls->server, &own, fault);
    if (rc == 0) {
        *out = tls;
        return 0;
    }
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s: %s",
             tls->client == NULL ? "peers.ca" : "peers.certificate", fault);
    tierce__peer_tls_destroy(tls);
    return rc;
}

void tierce__peer_tls_destroy(struct tierce__peer_tls *tls)
{
    if (tls == NULL)
        return;
    tierce__tls_context_destroy(tls->client);
    tierce__tls_context_destroy(tls->server);
    tierce__free(tls);
}

struct tierce__tls_context *tierce__peer_tls_client(struct tierce__peer_tls *tls)
{
    TIERCE_DASSERT(tls == NULL || tls->client != NULL);
    return tls != NULL ? tls->client : NULL;
}

int tierce__peer_tls_server(struct tierce__tls_context **out, struct tierce__peer_tls *tls,
                            const char *host, char why[256])
{
    if (tls != NULL && tls->server == NULL) {
        snprintf(why, 256,
                 "peers.ca is set, so chunks are served with TLS only, which requires "
                 "peers.certificate and peers.key");
        return TIERCE_E_CONFIG;
    }
    if (tls != NULL && !tierce__tls_context_is_for(tls->server, host)) {
        snprintf(why, 256,
                 "peers.certificate is not for %.64s, where other engines connect to; it must name "
                 "this address (subjectAltName), or another address must be chosen",
                 host);
        return TIERCE_E_CONFIG;
    }
    *out = tls != NULL ? tls->server : NULL;
    return 0;
}

const char *tierce__peer_tls_mismatch(const struct tierce__peer_tls *tls, bool other_uses_tls)
{
    return tierce__peers_tls_mismatch(tls != NULL, other_uses_tls);
}
