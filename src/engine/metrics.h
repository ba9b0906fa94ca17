/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_METRICS_H
#define TIERCE_ENGINE_METRICS_H

#include "base/line.h"
#include "control/control.h"

#include <tierce/engine.h>

/*
 * What an engine tells its operator: Prometheus' text, and its state as JSON. They are the pages of
 * the control socket (control.socket) and, the first, of the loopback port (metrics.port).
 *
 * Thread: any. Blocks as tierce_engine_stats, which is not at all.
 */

/* All of stats.def; what belongs to a tier with the tier's name beside it. heap; NULL: no
 * memory. */
char *tierce__engine_metrics(struct tierce_engine *engine, size_t *bytes);

/* One JSON object: version, process, mode, counters, tiers, namespaces. */
void tierce__engine_status(struct tierce_engine *engine, struct tierce__line *out);

/* The pages, for an engine as `arg`. */
extern const struct tierce__control_route tierce__engine_pages[];
extern const size_t tierce__engine_page_count;

#endif
