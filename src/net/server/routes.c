/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/routes.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_prefix(const struct tierce__route *route)
{
    size_t length = strlen(route->path);
    return length > 0 && route->path[length - 1] == '*';
}

static int by_path(const void *a, const void *b)
{
    const struct tierce__route *const *x = a, *const *y = b;
    return strcmp((*x)->path, (*y)->path);
}

static int longest_first(const void *a, const void *b)
{
    const struct tierce__route *const *x = a, *const *y = b;
    size_t m = strlen((*x)->path), n = strlen((*y)->path);
    return m < n ? 1 : m > n ? -1 : 0;
}

int tierce__routes_init(struct tierce__routes *routes, const struct tierce__route *list,
                        size_t count)
{
    *routes = (struct tierce__routes){0};
    routes->whole = tierce__calloc(count, sizeof(struct tierce__route *));
    routes->prefix = tierce__calloc(count, sizeof(struct tierce__route *));
    if (routes->whole == NULL || routes->prefix == NULL) {
        tierce__routes_fini(routes);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_prefix(&list[i]))
            routes->prefix[routes->prefix_count++] = &list[i];
        else
            routes->whole[routes->whole_count++] = &list[i];
    }
    TIERCE_ASSERT(routes->prefix_count + routes->whole_count == count);
    qsort(routes->whole, routes->whole_count, sizeof(struct tierce__route *), by_path);
    qsort(routes->prefix, routes->prefix_count, sizeof(struct tierce__route *), longest_first);
    return 0;
}

void tierce__routes_fini(struct tierce__routes *routes)
{
    tierce__free(routes->whole);
    tierce__free(routes->prefix);
    *routes = (struct tierce__routes){0};
}

static bool takes(const struct tierce__route *route, const char **other_method, const char *method)
{
    if (route->method == NULL || method == NULL || strcmp(route->method, method) == 0)
        return true;
    *other_method = route->method;
    return false;
}

/* The first of the sorted routes whose path is not before `path`. */
static size_t lower_bound(const struct tierce__routes *routes, const char *path)
{
    size_t low = 0, high = routes->whole_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(routes->whole[middle]->path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    TIERCE_ASSERT(low <= routes->whole_count);
    TIERCE_ASSERT(low == routes->whole_count || strcmp(routes->whole[low]->path, path) >= 0);
    TIERCE_ASSERT(low == 0 || strcmp(routes->whole[low - 1]->path, path) < 0);
    return low;
}

const struct tierce__route *tierce__routes_find(const struct tierce__routes *routes,
                                                const char **other_method, const char *path,
                                                const char *method)
{
    *other_method = NULL;
    for (size_t i = lower_bound(routes, path); i < routes->whole_count; i++) {
        if (strcmp(routes->whole[i]->path, path) != 0)
            break;
        if (takes(routes->whole[i], other_method, method))
            return routes->whole[i];
    }
    for (size_t i = 0; i < routes->prefix_count; i++) {
        const struct tierce__route *route = routes->prefix[i];
        if (strncmp(route->path, path, strlen(route->path) - 1) == 0 &&
            takes(route, other_method, method))
            return route;
    }
    return NULL;
}
