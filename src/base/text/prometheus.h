/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_PROMETHEUS_H
#define TIERCE_BASE_PROMETHEUS_H

#include "base/latency.h"
#include "base/text/line.h"

/*
 * Metrics in Prometheus' text format 0.0.4. Names are prefixed with "tierce_", with '_' for each
 * '.'; counters end in "_total".
 *
 *     struct tierce__prometheus text = {0};
 *     tierce__prometheus_put(&text, &metric); // those of one name after each other
 *     char *page = tierce__prometheus_end(&text, &bytes);
 *
 * Thread: one at a time.
 */

struct tierce__metric_tag {
    const char *key, *value;
};

struct tierce__metric {
    const char *name; /* "service.query_counter" */
    const char *help; /* one line */
    bool is_counter;  /* else a gauge */
    double value;     /* a counter has nine decimals at most */
    const struct tierce__metric_tag *tags;
    size_t tag_count;
};

struct tierce__prometheus {
    struct tierce__line line;
    const char *name; /* of the metric before */
};

void tierce__prometheus_put(struct tierce__prometheus *text, const struct tierce__metric *metric);

/* A histogram under the metric's name, help and tags; the rest of `metric` is ignored. Its name
 * says the unit: seconds. */
void tierce__prometheus_put_latency(struct tierce__prometheus *text,
                                    const struct tierce__metric *metric,
                                    const struct tierce__latency *latency);

/* The page, heap; *bytes its length. NULL: no memory. `text` is empty again. */
char *tierce__prometheus_end(struct tierce__prometheus *text, size_t *bytes);

#endif
