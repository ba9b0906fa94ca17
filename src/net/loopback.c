/* SPDX-License-Identifier: Apache-2.0 */
#include "net/loopback.h"

#include <arpa/inet.h>
#include <string.h>

bool tierce__is_loopback_host(const char *host)
{
    struct in_addr address;
    if (inet_pton(AF_INET, host, &address) == 1)
        return ntohl(address.s_addr) >> 24 == 127;
    return strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

int tierce__access_check_tls(const struct tierce__access *access,
                             struct tierce__config_error *error)
{
    bool has_tls = access->certificate[0] != '\0';
    if (has_tls != (access->key[0] != '\0'))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "tls.certificate and tls.key must be set together");
    if (access->client_ca[0] != '\0' && !has_tls)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "tls.client_ca requires tls.certificate and tls.key");
    return 0;
}

int tierce__access_check(const struct tierce__access *access, struct tierce__config_error *error)
{
    int rc = tierce__access_check_tls(access, error);
    if (rc != 0 || tierce__is_loopback_host(access->host) || access->is_insecure ||
        (access->certificate[0] != '\0' && access->token_file[0] != '\0'))
        return rc;
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "listen.host is %.100s, which other hosts can reach: set all of "
                               "auth.token_file, tls.certificate and tls.key; or set "
                               "listen.insecure: true to allow plain access",
                               access->host[0] != '\0' ? access->host : "every address");
}
