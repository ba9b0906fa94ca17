/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HEALTH_H
#define TIERCE_NET_HEALTH_H

#include "net/server/serve.h"

/* grpc.health.v1.Health/Check. (Watch is UNIMPLEMENTED.) */
extern const struct tierce__route tierce__health_route;

#endif
