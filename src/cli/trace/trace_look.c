/* SPDX-License-Identifier: Apache-2.0 */
/* tierce trace stat and head: the contents of a trace. */
#include "cli/trace/trace_commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "optimizer/trace/intern.h"

/* ---- shared --------------------------------------------------------------------------------- */

int tierce__trace_run_open(struct tierce__trace_run *run, struct tierce__trace **out)
{
    char why[TIERCE__TRACE_WHY_BYTES];
    int rc = tierce__trace_open(out, run->path, &run->opts, why);
    return rc == 0 ? 0 : tierce__cli_fail("trace", "%.300s: %s", run->name, why);
}

void tierce__trace_tell_faults(const char *command, const char *path,
                               const struct tierce__trace_report *report)
{
    char name[512];
    if (report->bad_lines == 0)
        return;
    tierce__text_for_message(name, sizeof(name), strcmp(path, "-") == 0 ? "standard input" : path);
    fprintf(stderr, "tierce %s: %s: %" PRIu64 " of %" PRIu64 " lines are bad and were ignored%s\n",
            command, name, report->bad_lines, report->lines,
            report->cut ? ", the last one because it is cut" : "");
    for (uint32_t i = 0; i < report->fault_count; i++)
        fprintf(stderr, "  line %" PRIu64 ": %s\n", report->faults[i].line,
                report->faults[i].reason);
    if (report->bad_lines > report->fault_count)
        fprintf(stderr, "  and %" PRIu64 " more\n", report->bad_lines - report->fault_count);
}

int tierce__trace_run_close(struct tierce__trace_run *run, struct tierce__trace *trace, int rc)
{
    fflush(stdout);
    tierce__trace_tell_faults("trace", run->path, tierce__trace_report(trace));
    const char *why = tierce__trace_error(trace);
    int status = TIERCE__CLI_OK;
    if (rc < 0)
        status = tierce__cli_fail("trace", "%.300s: %s", run->name,
                                  why[0] != '\0' ? why : tierce_strerror(rc));
    tierce__trace_close(trace);
    return status;
}

/* ---- stat ----------------------------------------------------------------------------------- */

struct stat {
    struct tierce__intern *blocks, *sessions, *instances;
    uint32_t *numbers; /* [capacity] */
    uint32_t capacity;
    uint64_t requests[4]; /* by kind */
    uint64_t stored, asked, reused, internal;
    uint64_t input_tokens, output_tokens;
    uint32_t longest;
    int64_t first_us, last_us;
};

/* Counts the blocks of a request, and how many an earlier request had. */
static int count_blocks(struct stat *stat, const struct tierce__trace_request *r)
{
    if (TIERCE__GROW(stat->numbers, stat->capacity, r->count, 1024) < 0)
        return -ENOMEM;
    uint32_t known = tierce__intern_count(stat->blocks);
    int rc = tierce__intern_chain(stat->blocks, r->instance, r->blocks, r->count, stat->numbers);
    for (uint32_t i = 0; rc == 0 && i < r->read_count; i++) {
        stat->reused += stat->numbers[i] < known;
        stat->internal += r->internal != NULL && r->internal[i] != 0;
    }
    return rc;
}

static int count_request(struct stat *stat, const struct tierce__trace_request *r)
{
    uint32_t ignored;
    if (stat->requests[0] + stat->requests[1] + stat->requests[2] + stat->requests[3] == 0)
        stat->first_us = r->time_us;
    stat->last_us = r->time_us;
    stat->requests[r->kind]++;
    int rc = tierce__intern_one(stat->instances, 0, r->instance, &ignored);
    if (rc == 0 && r->session != 0)
        rc = tierce__intern_one(stat->sessions, r->instance, r->session, &ignored);
    if (rc < 0 || r->kind == TIERCE__TRACE_DROP)
        return rc;
    stat->asked += r->read_count;
    stat->stored += r->kind != TIERCE__TRACE_READ ? r->count : 0;
    stat->input_tokens += r->input_tokens;
    stat->output_tokens += r->output_tokens;
    stat->longest = r->count > stat->longest ? r->count : stat->longest;
    return count_blocks(stat, r);
}

static void print_count(const char *name, uint64_t value)
{
    printf("%-16s %" PRIu64 "\n", name, value);
}

static void print_stat(const struct stat *stat, const struct tierce__trace_report *report)
{
    uint64_t requests = stat->requests[TIERCE__TRACE_TURN] + stat->requests[TIERCE__TRACE_READ] +
                        stat->requests[TIERCE__TRACE_WRITE] + stat->requests[TIERCE__TRACE_DROP];
    uint64_t span_us = (uint64_t)stat->last_us - (uint64_t)stat->first_us;
    printf("%-16s %s\n", "format", report->format);
    print_count("requests", requests);
    print_count("  turns", stat->requests[TIERCE__TRACE_TURN]);
    print_count("  reads", stat->requests[TIERCE__TRACE_READ]);
    print_count("  writes", stat->requests[TIERCE__TRACE_WRITE]);
    print_count("  removals", stat->requests[TIERCE__TRACE_DROP]);
    print_count("blocks read", stat->asked);
    print_count("blocks written", stat->stored);
    print_count("distinct blocks", tierce__intern_count(stat->blocks));
    printf("%-16s %.4f\n", "reuse",
           stat->asked > 0 ? (double)stat->reused / (double)stat->asked : 0);
    print_count("internal blocks", stat->internal);
    print_count("longest request", stat->longest);
    printf("%-16s %.6f .. %.6f s\n", "time", (double)stat->first_us / 1e6,
           (double)stat->last_us / 1e6);
    printf("%-16s %.6f s\n", "span", (double)span_us / 1e6);
    print_count("instances", tierce__intern_count(stat->instances));
    print_count("sessions", tierce__intern_count(stat->sessions));
    print_count("input tokens", stat->input_tokens);
    print_count("output tokens", stat->output_tokens);
    print_count("lines", report->lines);
    print_count("bad lines", report->bad_lines);
    print_count("skipped lines", report->skipped_lines);
    print_count("joined lines", report->joined_lines);
    print_count("notices", report->notices);
    print_count("block bytes", report->block_bytes);
    print_count("out of order", report->reordered);
}

int tierce__trace_stat(struct tierce__trace_run *run)
{
    struct stat stat = {0};
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    int status = tierce__trace_run_open(run, &trace);
    if (status != TIERCE__CLI_OK)
        return status;
    int rc = tierce__intern_create(&stat.blocks);
    if (rc == 0)
        rc = tierce__intern_create(&stat.sessions);
    if (rc == 0)
        rc = tierce__intern_create(&stat.instances);
    while (rc == 0 && (rc = tierce__trace_next(trace, &request)) > 0)
        rc = count_request(&stat, &request);
    if (rc == 0)
        print_stat(&stat, tierce__trace_report(trace));
    tierce__intern_destroy(stat.blocks);
    tierce__intern_destroy(stat.sessions);
    tierce__intern_destroy(stat.instances);
    tierce__free(stat.numbers);
    return tierce__trace_run_close(run, trace, rc);
}

/* ---- head ----------------------------------------------------------------------------------- */

#define BLOCKS_SHOWN 4u

static void print_request(const struct tierce__trace *trace, const struct tierce__trace_request *r)
{
    static const char *const kinds[] = {"turn", "read", "write", "drop"};
    char instance[64], session[24] = "-";
    tierce__text_for_message(instance, sizeof(instance),
                             tierce__trace_instance(trace, r->instance));
    if (r->session != 0)
        snprintf(session, sizeof(session), "%" PRIu64, r->session);
    printf("%-8" PRIu64 " %-18.6f %-5s %-8s %-20s %7" PRIu32 " ", r->line, (double)r->time_us / 1e6,
           kinds[r->kind], instance[0] != '\0' ? instance : "-", session, r->count);
    for (uint32_t i = 0; i < r->count && i < BLOCKS_SHOWN; i++)
        printf(" %" PRIu64 "%s", r->blocks[i],
               r->internal != NULL && r->internal[i] != 0 ? "*" : "");
    printf("%s\n", r->count > BLOCKS_SHOWN ? " ..." : "");
}

int tierce__trace_head(struct tierce__trace_run *run)
{
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    int rc = 0, status = tierce__trace_run_open(run, &trace);
    if (status != TIERCE__CLI_OK)
        return status;
    for (uint64_t i = 0; i < run->requests_max && (rc = tierce__trace_next(trace, &request)) > 0;
         i++) {
        if (i == 0)
            printf("%-8s %-18s %-5s %-8s %-20s %7s  %s\n", "line", "time_s", "kind", "instance",
                   "session", "blocks", "ids (* the engine held itself)");
        print_request(trace, &request);
    }
    return tierce__trace_run_close(run, trace, rc < 0 ? rc : 0);
}
