/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_LIVE_H
#define TIERCE_CLI_OPTIMIZE_LIVE_H

#include "cli/optimize.h"

/* Follows request->live and shows LRU's hit rates as they become, until the source ends or the
 * user ends it. Returns an exit status. */
int tierce__optimize_follow(struct tierce__optimize *request);

#endif
