/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_HTTP_H
#define TIERCE_MANAGER_CONTROLLER_HTTP_H

#include "base/json/json_value.h"
#include "manager/manager_private.h"
#include "net/server/serve.h"

/*
 * The HTTP API of LMCache's controller, on lmcache.http_port: by its names, for the workers that
 * this manager knows (docs/using/manager.md). Errors have the body {"detail": "..."}.
 *
 *   POST /lookup, /query_instance, /query_worker_info    who holds a prompt; who is registered
 *   GET  /controller/workers, /controller/key-stats
 *   POST /clear, /pin, /compress, /decompress, /move, /health    orders to workers
 *                                                                (controller_order.h)
 *
 * Thread: any.
 */

/* Writes the routes, and returns how many: at most TIERCE__LMCACHE_ROUTES_MAX. */
size_t tierce__controller_http_routes(struct tierce__manager *manager, struct tierce__route *out);

/* ---- for controller_order.c -------------------------------------------------------------------
 */

void tierce__controller_http_fail(struct tierce__call *call, uint32_t status, const char *why);
/* 200 with the line [transfer its text]; 500 if it has failed. */
void tierce__controller_http_reply(struct tierce__call *call, struct tierce__line *line);

#define TIERCE__CONTROLLER_EVENT_BYTES 48u
void tierce__controller_http_event(char out[TIERCE__CONTROLLER_EVENT_BYTES], const char *kind);

/* The next three return false if they have answered the call with an error. */

/* The caller's scope holds the group, and the manager leads. */
bool tierce__controller_http_admit(struct tierce__manager *manager, struct tierce__call *call,
                                   const struct tierce__caller *caller);
/* The body as an object, which the caller clears. False also: the body is large, and the call will
 * be served again on a worker. */
bool tierce__controller_http_body(struct tierce__call *call, struct tierce__json_doc *doc);
/* A text that is not empty. */
bool tierce__controller_http_text(struct tierce__call *call, char *out, size_t size,
                                  struct tierce__text object, const char *path);

/* The whole numbers from 0 to 2^32 - 1 in a list of at most 4,194,304, on the heap. A call's own
 * error, not yet answered: TIERCE_E_ARGUMENT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__controller_http_tokens(uint32_t **out, size_t *count,
                                                  struct tierce__text value);
#define TIERCE__CONTROLLER_TOKENS_WHY                                                              \
    "tokens is missing or invalid; accepted is a list of at most 4194304 whole numbers from 0 to " \
    "4294967295"

#endif
