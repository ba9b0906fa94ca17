/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIMIZE_LIVE_H
#define TIERCE_CLI_OPTIMIZE_LIVE_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/threads/lock.h"
#include "cli/optimize/optimize.h"
#include "optimizer/live/live.h"
#include "optimizer/live/live_source.h"

/*
 * Follows sources that are still being written.
 *
 *     optimize_live.c          the display
 *     optimize_live_sources.c  the sources, each with a thread that reads it
 *
 * Readers put requests into one window under one lock; the display thread copies the window under
 * the lock, and replays the copy without the lock.
 */

/* Follows the sources in request->live and shows the changing hit rates, until all sources end or
 * the user stops it. Returns an exit status. */
int tierce__optimize_follow(struct tierce__optimize *request);

struct tierce__follow;

/* A source that is followed. */
struct tierce__followed {
    const char *url;
    struct tierce__follow *follow;
    struct tierce__live_source *source; /* its reader's while that runs; so is `trace` */
    struct tierce__trace *trace;        /* NULL until its format is known */
    pthread_t thread;
    bool started;

    /* Under the lock: */
    bool ended;
    bool is_told; /* that it has failed */
    int rc;       /* once it has ended; `why` is a sentence */
    char why[TIERCE__TRACE_WHY_BYTES];
    uint64_t requests, bad_lines;
    struct tierce__trace_fault fault; /* the first, if there are bad lines */
    struct tierce__live_counts counts;
    uint64_t silence_ns; /* when silence is reported; TIERCE__DEADLINE_NEVER: it was reported */
};

struct tierce__follow {
    struct tierce__optimize *request;
    atomic_bool *stop;
    struct tierce__lock lock;
    struct tierce__cond changed;        /* a source has ended */
    struct tierce__live_window *window; /* under the lock, as the next */
    size_t open_count;                  /* readers that have not ended */
    size_t source_count;
    struct tierce__followed sources[TIERCE__OPTIMIZE_SOURCES_MAX];

    /* Used only by the displaying thread: */
    bool terminal;
    bool chooses; /* capacities are not given */
    uint32_t every_ms;
    uint64_t next_ns;
    uint64_t shown_requests;
};

/* Opens all sources, or prints why one cannot be opened, and starts their readers. Returns an exit
 * status. */
int tierce__follow_open(struct tierce__follow *f);
int tierce__follow_start(struct tierce__follow *f);

/* Ends the readers, and blocks until they have ended; then frees their resources. */
void tierce__follow_end(struct tierce__follow *f);
void tierce__follow_close(struct tierce__follow *f);

/* Under the lock: reports on stderr which sources are silent, and which have failed while others
 * continue. */
void tierce__follow_tell(struct tierce__follow *f);

/* Reports failures that were not yet reported; no reader may run. Returns an exit status. If the
 * reading was stopped, readers that it cut short have not failed. */
int tierce__follow_status(const struct tierce__follow *f, bool was_stopped);

#endif
