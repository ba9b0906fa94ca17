/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIVE_PRIVATE_H
#define TIERCE_OPTIMIZER_LIVE_PRIVATE_H

#include "optimizer/live/live_source.h"

#include <sys/types.h>

/* A kind of source: one file, one row in live_source.c. */

#define TIERCE__LIVE_WAIT_MS 100 /* between two checks of `stop` and calls of `tick` */

struct tierce__live_ops {
    const char *format; /* or NULL */
    /* As tierce__live_open; the source begins with struct tierce__live_source. */
    int (*open)(struct tierce__live_source **out, const char *url,
                char why[TIERCE__TRACE_WHY_BYTES]);
    /* As tierce__trace_source.read, but it may also return -EAGAIN: no data arrived for
     * TIERCE__LIVE_WAIT_MS, or a signal interrupted it. */
    ssize_t (*read)(struct tierce__live_source *source, void *out, size_t size,
                    char why[TIERCE__TRACE_WHY_BYTES]);
    void (*close)(struct tierce__live_source *source);
};

struct tierce__live_source {
    uint32_t magic;
    const struct tierce__live_ops *ops;
    struct tierce__live_opts opts;
    struct tierce__live_counts counts;
    struct tierce__trace_source trace_source;
};

extern const struct tierce__live_ops tierce__live_file_ops, tierce__live_http_ops,
    tierce__live_zmq_ops;

#endif
