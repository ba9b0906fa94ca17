/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CURVES_H
#define TIERCE_MANAGER_CURVES_H

#include "manager/api/admin_http.h"

/*
 * GET /api/curves on the administrators' port: the ghost curves (pilot/ghosts.h) of the groups and
 * instances that the caller's scope holds, as one JSON document. Its format is in curves.c.
 *
 * Threads: any.
 */
void tierce__curves_serve(struct tierce__manager *manager, struct tierce__call *call,
                          const struct tierce__caller *caller);

#endif
