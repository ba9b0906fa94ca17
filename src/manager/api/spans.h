/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_SPANS_H
#define TIERCE_MANAGER_SPANS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Times the steps of one call. If a request's trace_id ends with __kvcm_need_span_tracer, its reply
 * has in header.tracer_result:
 *
 *     {"span_time_us":412,"TRACE:TRACE":[{"span_time_us":390,"locator:get":[...]}, ...]}
 *
 *     struct tierce__spans spans;
 *     tierce__spans_begin(&spans, began_ns);
 *     ...
 *         int span = tierce__span_open("index:read");     // anywhere below, on this thread
 *         ...
 *         tierce__span_close(span);
 *     tierce__spans_end(&spans, trace_id, &line);
 *
 * A call runs on one thread, and the code of its steps has no access to the call, so its spans are
 * kept in a thread-local variable. If no client asked, opening a span costs one pointer check.
 *
 * Thread: each its own.
 */

enum { TIERCE__SPANS_MAX = 64 }; /* per call; further spans are only counted */

struct tierce__span {
    const char *name; /* static */
    int parent;       /* -1: the call itself */
    uint64_t began_ns, took_ns;
};

struct tierce__spans {
    uint64_t began_ns;
    int open; /* the innermost, or -1 */
    int count, left_out;
    struct tierce__span spans[TIERCE__SPANS_MAX];
};

struct tierce__line;

/* Records this thread's steps until tierce__spans_end. */
void tierce__spans_begin(struct tierce__spans *spans, uint64_t began_ns);
/* Stops recording and appends the JSON to `line`. Open spans end now. */
void tierce__spans_end(struct tierce__spans *spans, const char *trace_id,
                       struct tierce__line *line);

/* Opens a span; `name` has the form "file:step". Spans are closed in reverse order. Returns -1 if
 * nothing is recorded; closing -1 is allowed. */
int tierce__span_open(const char *name);
void tierce__span_close(int span);

#endif
