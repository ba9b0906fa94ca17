/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MANAGER_AUTOPILOT_H
#define TIERCE_MANAGER_MANAGER_AUTOPILOT_H

#include "manager/manager_private.h"
#include "manager/pilot/autopilot.h"

struct tierce__manager_config;

/* Starts the autopilot of a manager that has its registry, locator and ghost. Errors: those of
 * tierce__autopilot_start. */
TIERCE_MUSTUSE int tierce__manager_open_autopilot(struct tierce__manager *manager,
                                                  const struct tierce__manager_config *config);

#endif
