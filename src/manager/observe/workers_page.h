/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_WORKERS_PAGE_H
#define TIERCE_MANAGER_WORKERS_PAGE_H

#include "base/json/json_write.h"
#include "manager/manager_private.h"

/*
 * The workers of the directory, for GET /api/page: "workers" and "worker_count", as the comment at
 * the top of page.c describes. Only those of groups that the grant holds.
 *
 * Thread: any. Waits for calls of workers that are being applied.
 */
void tierce__workers_page_put(struct tierce__json_write *json, struct tierce__manager *manager,
                              const struct tierce__grant *grant);

#endif
