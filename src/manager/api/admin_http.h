/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ADMIN_HTTP_H
#define TIERCE_MANAGER_ADMIN_HTTP_H

#include "manager/manager_private.h"
#include "net/server/serve.h"

/*
 * The routes of an HTTP port other than the RPCs:
 *
 *   GET /livez         200: the process answers
 *   GET /readyz        200: it leads and its index answers (a second line says if it rejects
 *                      writes); 503 and why
 *   GET /metrics       Prometheus (administrators' port)
 *   GET /api/curves    ghost curves (administrators' port; curves.h)
 *   GET /openapi.json  the API of the port
 *   GET /events        the event log as it is written, without an end (administrators' port)
 *
 * Callers see the part of /metrics, /events and /api/curves that their scope holds. The
 * administrators' port also serves the web page (page.h).
 */

/* A route of needs.def: before `serve`, the caller's credentials are checked. */
struct tierce__http_route {
    const char *path, *method;
    void (*serve)(struct tierce__manager *manager, struct tierce__call *call,
                  const struct tierce__caller *caller);
};

/* Writes routes and returns how many. */
size_t tierce__admin_http_routes(struct tierce__manager *manager, enum tierce__rpc_port port,
                                 struct tierce__route *out);

/* Fills the target, which must outlive the server, and the route of one path of needs.def. */
void tierce__http_route_make(struct tierce__manager *manager, struct tierce__http_target *target,
                             const struct tierce__http_route *route, struct tierce__route *out);

/* Ends all event streams and rejects new ones. */
void tierce__admin_http_stop(struct tierce__manager *manager);

#endif
