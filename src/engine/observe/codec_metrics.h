/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_METRICS_H
#define TIERCE_CODEC_METRICS_H

#include "base/json/json_write.h"
#include "base/text/prometheus.h"

/*
 * The figures of the codecs of an engine's disk and of its remote stores, as metrics and in its
 * state: the object "codec" for the disk, the array "remote_codecs" for the others.
 * A tier without a codec that has written and read no coded chunk has none.
 *
 * Thread: any. Does not block.
 */

struct tierce_engine;

void tierce__codec_metrics(struct tierce_engine *engine, struct tierce__prometheus *text);
void tierce__codec_status(struct tierce_engine *engine, struct tierce__json_write *json);

#endif
