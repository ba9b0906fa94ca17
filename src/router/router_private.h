/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_PRIVATE_H
#define TIERCE_ROUTER_PRIVATE_H

#include "base/json/json_value.h"
#include "net/server/serve.h"
#include "net/tokens.h"
#include "router/query.h"
#include "router/router.h"

enum tierce__router_right { TIERCE__ROUTER_READ = 1, TIERCE__ROUTER_ADMIN = 2 };

#define TIERCE__ROUTER_ROUTES 10u

struct tierce__router {
    const struct tierce__router_config *config;
    struct tierce__directory *directory;
    struct tierce__sources *sources;
    struct tierce__server *server;
    struct tierce__route routes[TIERCE__ROUTER_ROUTES];
    struct tierce__lock lock;      /* ROUTER_ACCESS: tokens */
    struct tierce__tokens *tokens; /* NULL: no file */
    struct tierce__tenant_words snapshot_tokens, curve_keys;
    _Atomic uint64_t queries, deferred_queries, query_ns;
};

/* router_http.c. Reads the publisher of a registration. False: `why` says in words. */
bool tierce__router_read_source(struct tierce__source_opts *out, struct tierce__text object,
                                char why[256]);
size_t tierce__router_routes(struct tierce__router *router);

#endif
