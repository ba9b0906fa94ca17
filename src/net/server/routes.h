/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_ROUTES_H
#define TIERCE_NET_ROUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "net/server/serve.h"

/* The routes of a listener, sorted for fast lookup. */
struct tierce__routes {
    const struct tierce__route **whole;  /* sorted by path */
    const struct tierce__route **prefix; /* longest first */
    size_t whole_count, prefix_count;
};

TIERCE_MUSTUSE int tierce__routes_init(struct tierce__routes *routes,
                                       const struct tierce__route *list, size_t count);
void tierce__routes_fini(struct tierce__routes *routes);

/* Finds the route of a path; an exact match takes precedence over a prefix. NULL: none;
 * *other_method is then a route of the path for another method, or NULL. `method` NULL: any. */
const struct tierce__route *tierce__routes_find(const struct tierce__routes *routes,
                                                const char **other_method, const char *path,
                                                const char *method);

#endif
