/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_TRACE_H
#define TIERCE_CLI_TRACE_H

#include "optimizer/trace/trace.h"

/* The unit of sampling: a sample contains all requests of a unit, or none. */
enum tierce__trace_groups {
    TIERCE__TRACE_BY_SESSION = 1,
    TIERCE__TRACE_BY_TREE, /* all requests that begin with the same block */
};

/* The arguments of `tierce trace`. Each function does one of its commands and returns an exit
 * status. */
struct tierce__trace_run {
    const char *path;
    const char *name; /* of it, in messages */
    const char *to;   /* NULL: not given */
    struct tierce__trace_opts opts;
    uint64_t requests_max;
    uint64_t seed;
    double rate;                  /* 0: not given */
    enum tierce__trace_groups by; /* 0: not given */
    bool renumber;
};

int tierce__trace_stat(struct tierce__trace_run *run);
int tierce__trace_head(struct tierce__trace_run *run);
int tierce__trace_convert(struct tierce__trace_run *run);
int tierce__trace_sample(struct tierce__trace_run *run);

/* The bad lines of a trace, on stderr. */
void tierce__trace_tell_faults(const char *command, const char *path,
                               const struct tierce__trace_report *report);

/* Shared by the functions: opening, the final message, and failing. */
int tierce__trace_run_open(struct tierce__trace_run *run, struct tierce__trace **out);
int tierce__trace_run_close(struct tierce__trace_run *run, struct tierce__trace *trace, int rc);

#endif
