/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_METRICS_H
#define TIERCE_ENGINE_METRICS_H

#include "base/text/line.h"
#include "net/control/control.h"

#include <tierce/engine.h>

/*
 * An engine's metrics as Prometheus text, and its state as JSON. Both are pages of the control
 * socket (control.socket); the loopback port (metrics.port) serves the metrics only.
 *
 * Thread: any. Does not block, like tierce_engine_stats.
 */

/* All of stats.def, and metrics of tiers with the tier's name as a label. heap; NULL: no memory. */
char *tierce__engine_metrics(struct tierce_engine *engine, size_t *bytes);

/* One JSON object: version, process, mode, counters, tiers, namespaces. */
void tierce__engine_status(struct tierce_engine *engine, struct tierce__line *out);

/* The pages, for an engine as `arg`. */
extern const struct tierce__control_route tierce__engine_pages[];
extern const size_t tierce__engine_page_count;

/* The state of an engine; if several apply, the worst. */
enum tierce__engine_condition {
    TIERCE__ENGINE_OK,
    TIERCE__ENGINE_DISK_FULL,   /* the file system of disk.path has no room */
    TIERCE__ENGINE_DEGRADED,    /* a remote store is out of service */
    TIERCE__ENGINE_MEMORY_ONLY, /* disk.path is not in use: not usable, or out of service */
};
enum tierce__engine_condition tierce__engine_condition(const struct tierce_engine_stats *stats);
const char *tierce__engine_condition_name(enum tierce__engine_condition state);

/* The reason of the state, such as "out of service: redis, s3"; "" for OK. */
#define TIERCE__ENGINE_REASON_BYTES 256u
void tierce__engine_condition_reason(struct tierce_engine *engine,
                                     enum tierce__engine_condition state,
                                     char text[TIERCE__ENGINE_REASON_BYTES]);

#endif
