/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_LOOPBACK_H
#define TIERCE_NET_LOOPBACK_H

#include "base/config/config.h"

#include <stdbool.h>

/* Whether a host name in user input is loopback: 127.x.y.z, ::1 or localhost. Thread: any. */
bool tierce__is_loopback_host(const char *host);

/* The parameters of a server that say who can reach it. Texts are "" if they are unset. */
struct tierce__access {
    const char *host;                          /* listen.host */
    const char *certificate, *key, *client_ca; /* tls.* */
    const char *token_file;                    /* auth.token_file */
    bool is_insecure;                          /* listen.insecure */
};

/* Whether the parameters of TLS fit together. Errors, `error` filled: TIERCE_E_CONFIG. */
TIERCE_MUSTUSE int tierce__access_check_tls(const struct tierce__access *access,
                                            struct tierce__config_error *error);
/* The same, and that a server which other hosts can reach requires tokens and TLS. */
TIERCE_MUSTUSE int tierce__access_check(const struct tierce__access *access,
                                        struct tierce__config_error *error);

#endif
