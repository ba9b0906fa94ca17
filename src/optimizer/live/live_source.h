/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIVE_SOURCE_H
#define TIERCE_OPTIMIZER_LIVE_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "optimizer/trace/trace.h"

/*
 * A source of a trace that is still being written. Reading blocks until data arrives; it ends when
 * `stop` is set or the other side closes it.
 *
 *     tcp://host:port, ipc://path    KV events that vLLM publishes over ZMQ
 *     http://..., https://...        a response without end, line by line
 *     a path                         a file that grows; replacing or cutting it is detected
 *
 *     rc = tierce__live_open(&source, url, &opts, why);
 *     rc = tierce__trace_open_source(&trace, tierce__live_trace_source(source), &trace_opts, why);
 *
 * Threads: a source one at a time; any number of sources.
 */

struct tierce__live_source;

struct tierce__live_opts {
    size_t size;
    /* When true, the source ends soon, or at once if a signal interrupts its thread's system call.
     * A signal handler may set it. [borrow until close] */
    const atomic_bool *stop;
};

/* Totals so far. */
struct tierce__live_counts {
    uint64_t messages; /* numbered messages; 0 for sources without numbers */
    uint64_t lost;     /* missing numbers */
    uint64_t
        restarts;     /* restarted numbering, a replaced or truncated file, a reopened connection */
    uint64_t refused; /* invalid messages */
};

/* Errors, *out untouched and `why` a sentence: negative errno, -ENOMEM, TIERCE_E_ARGUMENT (an
 * invalid address). */
TIERCE_MUSTUSE int tierce__live_open(struct tierce__live_source **out, const char *url,
                                     const struct tierce__live_opts *opts,
                                     char why[TIERCE__TRACE_WHY_BYTES]);

/* The trace source for tierce__trace_open_source. [borrow until close] */
const struct tierce__trace_source *
tierce__live_trace_source(const struct tierce__live_source *source);

/* The fixed format of the source, or NULL: it is detected from the data. */
const char *tierce__live_format(const struct tierce__live_source *source);

const struct tierce__live_counts *tierce__live_counts(const struct tierce__live_source *source);

/* NULL is accepted. */
void tierce__live_close(struct tierce__live_source *source);

#endif
