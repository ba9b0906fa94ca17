/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_LIVE_SOURCE_H
#define TIERCE_OPTIMIZER_LIVE_SOURCE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "optimizer/trace.h"

/*
 * Bytes of a trace that is still being written. A source gives what there is and otherwise waits;
 * it ends when it is told to stop, or when the other side ends it.
 *
 *     tcp://host:port, ipc://path    KV events that vLLM publishes over ZMQ
 *     http://..., https://...        a response that goes on, line after line
 *     a path                         a file that grows; that it is replaced or cut is noticed
 *
 *     rc = tierce__live_open(&source, url, &opts, why);
 *     rc = tierce__trace_open_source(&trace, tierce__live_trace_source(source), &trace_opts, why);
 *
 * Threads: one at a time.
 */

struct tierce__live_source;

struct tierce__live_opts {
    size_t size;
    /* Called some times a second while the source waits; or NULL. */
    void (*tick)(void *arg);
    void *tick_arg;
    const volatile sig_atomic_t *stop; /* not 0: the source ends. [borrow until close] */
};

/* What went by. */
struct tierce__live_counts {
    uint64_t messages; /* that came with numbers; 0 of sources that have none */
    uint64_t lost;     /* numbers that were left out */
    uint64_t restarts; /* numbers that began anew, a file that was replaced or cut, a connection
                          that was made again */
    uint64_t refused;  /* messages that are none */
};

/* Errors, *out untouched and `why` a sentence: negative errno, -ENOMEM, TIERCE_E_ARGUMENT (an
 * address that cannot be one). */
TIERCE_MUSTUSE int tierce__live_open(struct tierce__live_source **out, const char *url,
                                     const struct tierce__live_opts *opts,
                                     char why[TIERCE__TRACE_WHY_BYTES]);

/* What tierce__trace_open_source reads. [borrow until close] */
const struct tierce__trace_source *
tierce__live_trace_source(const struct tierce__live_source *source);

/* The format that the source always has, or NULL: it is told from what comes. */
const char *tierce__live_format(const struct tierce__live_source *source);

const struct tierce__live_counts *tierce__live_counts(const struct tierce__live_source *source);

/* NULL is accepted. */
void tierce__live_close(struct tierce__live_source *source);

#endif
