/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PILOT_PAGE_H
#define TIERCE_MANAGER_PILOT_PAGE_H

#include "manager/manager_private.h"
#include "manager/api/admin_http.h"

/* GET /api/pilot: modes, bounds and steps of the autopilot, of the groups that the caller's scope
 * holds. Threads: any. */
void tierce__pilot_page_serve(struct tierce__manager *manager, struct tierce__call *call,
                              const struct tierce__caller *caller);

#endif
