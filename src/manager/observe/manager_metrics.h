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

/*
 * Calls `each` for every metric that `grant` may see; metrics of one name are consecutive. [borrow]
 * for the call of `each`. A scope of one group sees the metrics of the group and its instances, a
 * scope of one instance those of the instance; both see whether this manager leads and whether the
 * storages of the group are healthy. Numbers of several groups together are for a scope of all.
 */
void tierce__metrics_each(struct tierce__manager *manager, const struct tierce__grant *grant,
                          void (*each)(void *arg, const struct tierce__metric *metric), void *arg);

/* The same as Prometheus' text format 0.0.4, heap. NULL: no memory. */
char *tierce__metrics_text(struct tierce__manager *manager, const struct tierce__grant *grant,
                           size_t *bytes);

#endif
