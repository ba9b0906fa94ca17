/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_PRIVATE_H
#define TIERCE_CONNECTOR_PRIVATE_H

#include "base/url.h"
#include "store/remote/connector.h"

/* The arguments for opening a connector. [borrow for the call], except opts->pool: see
 * connector.h. */
struct tierce__connector_source {
    const struct tierce__url *url;
    const char *text; /* the URL as it was given */
    const char *store_name;
    const struct tierce__connector_opts *opts;
};

/* As tierce__connector_open. One for each name of connectors.def. */
typedef int tierce__connector_open_fn(struct tierce__connector **out,
                                      const struct tierce__connector_source *source,
                                      char why[TIERCE__CONNECTOR_WHY_BYTES]);
#define TIERCE_CONNECTOR(scheme, name) tierce__connector_open_fn tierce__##name##_open;
#include "store/remote/connectors.def"
#undef TIERCE_CONNECTOR

/* Whether a request keeps the contract of connector.h: 0, TIERCE_E_ARGUMENT, TIERCE_E_LIMIT, or
 * TIERCE_E_UNSUPPORTED for an operation that these caps lack. */
TIERCE_MUSTUSE int tierce__connector_check(const struct tierce__tier_req *req, unsigned caps);

#endif
