/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_ORDER_H
#define TIERCE_MANAGER_CONTROLLER_ORDER_H

#include "manager/manager_private.h"
#include "net/server/serve.h"

/* Orders of operators to the workers of an instance of LMCache: /clear, /pin, /compress,
 * /decompress, /move, /health. The answer comes when all workers have answered, or after
 * lmcache.command_timeout. Thread: any. */

#define TIERCE__CONTROLLER_ORDERS 6u

/* Fills the targets and routes, one for each order, and returns their number. */
size_t tierce__controller_order_routes(struct tierce__manager *manager,
                                       struct tierce__http_target *targets,
                                       struct tierce__route *out);

#endif
