/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PILOT_PAGE_H
#define TIERCE_MANAGER_PILOT_PAGE_H

#include "base/json/json_write.h"
#include "manager/manager_private.h"
#include "manager/api/admin_http.h"

/* GET /api/pilot: modes, bounds and steps of the autopilot, of the groups that the caller's scope
 * holds. Threads: any. */
void tierce__pilot_page_serve(struct tierce__manager *manager, struct tierce__call *call,
                              const struct tierce__caller *caller);

/* Writes the names "groups" and "steps" of that document. */
void tierce__pilot_page_put(struct tierce__json_write *json, const struct tierce__manager *manager,
                            const struct tierce__catalog *catalog,
                            const struct tierce__grant *grant);

#endif
