/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_PRIVATE_H
#define TIERCE_CONNECTOR_PRIVATE_H

#include "base/text/url.h"
#include "store/remote/connector.h"

/* The arguments for opening a connector. [borrow for the call], except opts->pool: see
 * connector.h. */
struct tierce__connector_source {
    const struct tierce__url *url;
    const char *text; /* the URL as it was given */
    const char *store_name;
    const struct tierce__connector_opts *opts;
};

/* How a store is reached (links.h). One for each name of connectors.def. */
struct tierce__client;
#define TIERCE_CONNECTOR(scheme, name) extern const struct tierce__client tierce__##name##_client;
#include "store/remote/connectors.def"
#undef TIERCE_CONNECTOR

/* The beginning of every submit: whether a request keeps the contract of connector.h, and its
 * deadline is not over. 0, TIERCE_E_ARGUMENT, TIERCE_E_LIMIT, TIERCE_E_DEADLINE, or
 * TIERCE_E_UNSUPPORTED for an operation that these caps lack. */
TIERCE_MUSTUSE int tierce__connector_accept(struct tierce__store_req *req, unsigned caps);

#endif
