/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TRACE_DUMP_H
#define TIERCE_TESTS_TRACE_DUMP_H

#include "optimizer/trace/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/*
 * A trace as text, so that a test can say what it expects: a line for each request,
 *
 *     KIND TIME instance=NAME session=N query [block block* ...]
 *
 * where a star marks what the engine held itself and a bar the end of what is looked up; then a
 * line for each bad line and for what ended the reading.
 */

struct trace_dump {
    char text[16384];
    size_t used;
    int rc; /* of the last call */
    struct tierce__trace_report report;
};

__attribute__((format(printf, 2, 3))) static inline void trace_put(struct trace_dump *dump,
                                                                   const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(dump->text + dump->used, sizeof(dump->text) - dump->used, format, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(dump->text) - dump->used)
        dump->used += (size_t)n;
}

static inline void trace_put_request(struct trace_dump *dump, const struct tierce__trace *trace,
                                     const struct tierce__trace_request *r)
{
    static const char *const kinds[] = {"turn", "read", "write", "drop"};
    trace_put(dump, "%s %lld", kinds[r->kind], (long long)r->time_us);
    if (tierce__trace_instance(trace, r->instance)[0] != '\0')
        trace_put(dump, " instance=%s", tierce__trace_instance(trace, r->instance));
    if (r->session != 0)
        trace_put(dump, " session=%llu", (unsigned long long)r->session);
    if (r->query == TIERCE__QUERY_ANY)
        trace_put(dump, " any");
    if (r->query == TIERCE__QUERY_WINDOW)
        trace_put(dump, " window=%u", r->window);
    if (r->input_tokens != 0 || r->output_tokens != 0)
        trace_put(dump, " tokens=%llu+%llu", (unsigned long long)r->input_tokens,
                  (unsigned long long)r->output_tokens);
    if (r->unstored != 0)
        trace_put(dump, " unstored=%u", r->unstored);
    trace_put(dump, " [");
    for (uint32_t i = 0; i < r->count; i++) {
        bool bar = i == r->read_count && r->kind == TIERCE__TRACE_TURN;
        trace_put(dump, "%s%llu", bar ? " | " : i > 0 ? " " : "", (unsigned long long)r->blocks[i]);
        if (r->bytes != NULL)
            trace_put(dump, ":%llu", (unsigned long long)r->bytes[i]);
        if (r->internal != NULL && r->internal[i] != 0)
            trace_put(dump, "*");
    }
    trace_put(dump, "]\n");
}

/* Reads a trace to its end. The result is static. */
static inline struct trace_dump *trace_dump_with(const void *data, size_t size,
                                                 const struct tierce__trace_opts *opts)
{
    static struct trace_dump dump;
    char why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace = NULL;
    struct tierce__trace_request request;
    memset(&dump, 0, sizeof(dump));
    dump.rc = tierce__trace_open_memory(&trace, data, size, opts, why);
    if (dump.rc < 0) {
        trace_put(&dump, "open: %s\n", why);
        return &dump;
    }
    while ((dump.rc = tierce__trace_next(trace, &request)) > 0)
        trace_put_request(&dump, trace, &request);
    dump.report = *tierce__trace_report(trace);
    for (uint32_t i = 0; i < dump.report.fault_count; i++)
        trace_put(&dump, "bad %llu: %s\n", (unsigned long long)dump.report.faults[i].line,
                  dump.report.faults[i].reason);
    if (dump.rc < 0)
        trace_put(&dump, "error: %s\n", tierce__trace_error(trace));
    tierce__trace_close(trace);
    return &dump;
}

static inline struct trace_dump *trace_dump(const char *text, const char *format)
{
    return trace_dump_with(
        text, strlen(text),
        &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts), .format = format});
}

#endif
