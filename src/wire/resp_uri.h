/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RESP_URI_H
#define TIERCE_WIRE_RESP_URI_H

#include "wire/resp_client.h"

/*
 * Where a Redis is, as text:
 *
 *     redis://user:password@host:port/database?timeout_ms=500&client_max_pool_size=8
 *     rediss://...                 with TLS; ?ca_file=, client_certificate=, client_key=
 *     redis+unix:///path/of/socket?db=1
 *
 * User information without a colon is the password. What stands between may be percent-encoded.
 * timeout_ms bounds connecting and calls; parameters that are not known here are kept for whoever
 * knows them.
 *
 * Thread: any.
 */

struct tierce__resp_uri {
    struct tierce__resp_opts opts; /* texts are borrowed from the fields below */
    uint32_t pool_max;             /* client_max_pool_size; 16 */
    bool is_cluster;               /* cluster=true */
    char *text;                    /* owned: the URI, cut into pieces */
    const char *names[16], *values[16];
    size_t param_count;
};

/* Errors, *out untouched and `why` in words without the password: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *uri,
                                          char why[TIERCE__RESP_WHY_BYTES]);

/* Accepts a zeroed one. */
void tierce__resp_uri_clear(struct tierce__resp_uri *uri);

/* The value of a parameter, or NULL. [borrow until clear] */
const char *tierce__resp_uri_param(const struct tierce__resp_uri *uri, const char *name);

#endif
