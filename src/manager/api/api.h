/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_H
#define TIERCE_MANAGER_API_H

#include "manager/manager.h"
#include "net/server/serve.h"
#include "proto/kvcm/rpcs.h"

/*
 * The manager's calls over gRPC and HTTP: parse the request, check access, run the call, write the
 * reply. Both transports run the same function for an RPC: api_meta.c, api_admin.c, api_kv.c,
 * api_debug.c.
 *
 * Threads: any.
 */

/* Writes the routes of ports (1 << TIERCE__RPC_PORT_META, ... or-ed) in a protocol to `out`, which
 * has room for TIERCE__RPC_COUNT, and returns how many. They live as long as the manager. */
size_t tierce__api_routes(struct tierce__manager *manager, enum tierce__serve_protocol protocol,
                          unsigned ports, struct tierce__route *out);

#endif
