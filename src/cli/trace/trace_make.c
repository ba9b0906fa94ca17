/* SPDX-License-Identifier: Apache-2.0 */
/* tierce trace convert and sample: traces out of traces. */
#include "cli/trace/trace_commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mix.h"
#include "cli/cli.h"
#include "optimizer/trace/intern.h"
#include "optimizer/trace/formats/trace_write.h"

/* A sample: the kept groups and requests, and the number of requests read. */
struct make_sample {
    struct tierce__intern *groups; /* sessions, or first blocks */
    uint32_t kept_groups;
    uint64_t requests, kept;
};

static void tell_losses(const struct tierce__trace_writer *writer)
{
    char loss[160];
    size_t index = 0;
    while (tierce__trace_writer_loss(writer, &index, loss, sizeof(loss)))
        fprintf(stderr, "tierce trace: %s\n", loss);
}

/* ---- sampling ------------------------------------------------------------------------------- */

/* 64 bits that look random and depend on the seed and the group alone. */
static uint64_t mix(uint64_t seed, uint64_t instance, uint64_t key)
{
    const uint64_t parts[] = {seed, instance, key};
    uint64_t x = 0;
    for (unsigned i = 0; i < 3; i++)
        x = tierce__mix((x ^ parts[i]) + TIERCE__MIX_GOLDEN);
    return x;
}

/* Whether the group of a request is taken: 1 or 0; TIERCE_E_ARGUMENT if it has none. */
static int is_taken(const struct tierce__trace_run *run, struct make_sample *sample,
                    const struct tierce__trace_request *request)
{
    uint64_t key = request->count > 0 ? request->blocks[0] : 0;
    uint32_t number, groups = tierce__intern_count(sample->groups);
    if (run->by == TIERCE__TRACE_BY_SESSION)
        key = request->session;
    if (run->by == TIERCE__TRACE_BY_SESSION && key == 0)
        return TIERCE_E_ARGUMENT;
    int rc = tierce__intern_one(sample->groups, request->instance, key, &number);
    if (rc < 0)
        return rc;
    bool taken = (double)(mix(run->seed, request->instance, key) >> 11) * 0x1p-53 < run->rate;
    sample->kept_groups += taken && number == groups;
    sample->requests++;
    sample->kept += taken;
    return taken;
}

static void tell_sample(const struct tierce__trace_run *run, const struct make_sample *sample)
{
    fprintf(
        stderr,
        "tierce trace: took %" PRIu64 " of %" PRIu64 " requests: %" PRIu32 " of %" PRIu32 " %s\n",
        sample->kept, sample->requests, sample->kept_groups, tierce__intern_count(sample->groups),
        run->by == TIERCE__TRACE_BY_SESSION ? "sessions" : "trees of one first block");
}

/* ---- copying -------------------------------------------------------------------------------- */

static int fail_request(const struct tierce__trace_run *run, const struct tierce__trace *trace,
                        const struct tierce__trace_request *request, int rc)
{
    if (rc == TIERCE_E_ARGUMENT)
        return tierce__cli_fail("trace",
                                "%.300s: line %" PRIu64 " names no session; use --by prefix-tree",
                                run->name, request->line);
    if (rc != TIERCE_E_UNSUPPORTED)
        return tierce__cli_fail("trace", "%.300s: %s", run->name, tierce_strerror(rc));
    return tierce__cli_fail(
        "trace",
        "%.300s: line %" PRIu64 " names a second instance, \"%.80s\"; %s cannot "
        "record instances, so equal ids would become one block; use --renumber "
        "to keep them apart",
        run->name, request->line, tierce__trace_instance(trace, request->instance), run->to);
}

/* Writes the requests to stdout, of a sample those that it takes. */
static int copy_requests(struct tierce__trace_run *run, struct tierce__trace *trace,
                         struct tierce__trace_writer *writer, struct make_sample *sample)
{
    struct tierce__trace_request request;
    int rc;
    while ((rc = tierce__trace_next(trace, &request)) > 0 && !ferror(stdout)) {
        int put = sample != NULL ? is_taken(run, sample, &request) : 1;
        if (put > 0)
            put = tierce__trace_writer_put(writer, &request,
                                           tierce__trace_instance(trace, request.instance));
        if (put < 0) {
            int status = fail_request(run, trace, &request, put);
            tierce__trace_close(trace);
            return status;
        }
    }
    return tierce__trace_run_close(run, trace, rc < 0 ? rc : 0);
}

/* The default format of a sample: the format of its source, if it can be written. */
static const char *same_format(const struct tierce__trace *trace)
{
    const char *format = tierce__trace_report(trace)->format;
    for (size_t i = 0; tierce__trace_writer_format(i) != NULL; i++) {
        if (strcmp(tierce__trace_writer_format(i), format) == 0)
            return tierce__trace_writer_format(i);
    }
    return "access";
}

static int make_trace(struct tierce__trace_run *run, struct make_sample *sample)
{
    struct tierce__trace *trace;
    struct tierce__trace_writer *writer = NULL;
    int status = tierce__trace_run_open(run, &trace);
    if (status != TIERCE__CLI_OK)
        return status;
    if (run->to == NULL)
        run->to = same_format(trace);
    int rc = tierce__trace_writer_create(&writer, stdout, run->to, run->renumber);
    if (rc < 0) {
        tierce__trace_close(trace);
        return tierce__cli_fail("trace", "%s", tierce_strerror(rc));
    }
    status = copy_requests(run, trace, writer, sample);
    if (status == TIERCE__CLI_OK && sample == NULL && tierce__trace_writer_lines(writer) == 0)
        status = tierce__cli_fail("trace", "%.300s: contains nothing that %s can record", run->name,
                                  run->to);
    if (status == TIERCE__CLI_OK)
        tell_losses(writer);
    tierce__trace_writer_destroy(writer);
    return status;
}

int tierce__trace_convert(struct tierce__trace_run *run)
{
    return make_trace(run, NULL);
}

int tierce__trace_sample(struct tierce__trace_run *run)
{
    struct make_sample sample = {0};
    if (tierce__intern_create(&sample.groups) < 0)
        return tierce__cli_fail("trace", "no memory");
    int status = make_trace(run, &sample);
    if (status == TIERCE__CLI_OK)
        tell_sample(run, &sample);
    tierce__intern_destroy(sample.groups);
    return status;
}
