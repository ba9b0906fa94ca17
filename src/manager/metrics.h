/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_METRICS_H
#define TIERCE_MANAGER_METRICS_H

#include "base/prometheus.h"
#include "manager/manager_private.h"

/*
 * What a manager counts, told one number at a time to whoever shows it: GetMetrics under KVCM's
 * names, and Prometheus' text form under the same with '_' for '.', and "tierce_" before it.
 *
 * Threads: any.
 */

/* Metrics of one name come after each other. [borrow] for the call of `each`. */
void tierce__metrics_each(struct tierce__manager *manager,
                          void (*each)(void *arg, const struct tierce__metric *metric), void *arg);

/* Prometheus' text format 0.0.4, heap. NULL: no memory. */
char *tierce__metrics_text(struct tierce__manager *manager, size_t *bytes);

#endif
