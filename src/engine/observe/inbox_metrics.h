/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_INBOX_METRICS_H
#define TIERCE_INBOX_METRICS_H

#include "base/json/json_write.h"
#include "base/text/prometheus.h"
#include "engine/handover/inbox_stats.h"

/*
 * The figures of an engine's inbox (handover_inbox.h), as metrics and as the object "inbox" of its
 * state. An engine without one has none.
 *
 * Thread: any. Does not block.
 */

struct tierce_engine;

void tierce__inbox_metrics(struct tierce_engine *engine, struct tierce__prometheus *text);
void tierce__inbox_status(struct tierce_engine *engine, struct tierce__json_write *json);

/* False: the engine has had no inbox; *out is untouched. */
bool tierce__inbox_read(struct tierce__inbox_stats *out, const struct tierce__inbox_counts *counts);

#endif
