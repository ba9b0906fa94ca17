/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_METRICS_H
#define TIERCE_MANAGER_METRICS_H

#include "base/text/prometheus.h"
#include "manager/manager_private.h"

/*
 * The manager's metrics, passed one at a time to a callback. GetMetrics shows them under KVCM's
 * names; Prometheus' text format uses the same names with '_' for '.' and the prefix "tierce_".
 *
 * Threads: any.
 */

/* Calls `each` for every metric; metrics of one name are consecutive. [borrow] for the call of
 * `each`. */
void tierce__metrics_each(struct tierce__manager *manager,
                          void (*each)(void *arg, const struct tierce__metric *metric), void *arg);

/* Prometheus' text format 0.0.4, heap. NULL: no memory. */
char *tierce__metrics_text(struct tierce__manager *manager, size_t *bytes);

#endif
