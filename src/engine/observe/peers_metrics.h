/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PEERS_METRICS_H
#define TIERCE_PEERS_METRICS_H

#include "base/json/json_write.h"
#include "base/text/prometheus.h"

/*
 * The figures of an engine with a peers:// URL: its reads from other engines and their reads from
 * it, as metrics and as the object "peers" of its state. An engine without one has none.
 *
 * Thread: any. Does not block.
 */

struct tierce_engine;

void tierce__peers_metrics(struct tierce_engine *engine, struct tierce__prometheus *text);
void tierce__peers_status(struct tierce_engine *engine, struct tierce__json_write *json);

#endif
