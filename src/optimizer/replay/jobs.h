/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_JOBS_H
#define TIERCE_OPTIMIZER_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Runs jobs on a few threads and reports their progress.
 *
 *     rc = tierce__jobs_run(&(struct tierce__jobs_opts){.run = run_one, .arg = &work, ...});
 *
 * `run` is called once for each job, from any thread, until one returns an error.
 */

struct tierce__jobs;

struct tierce__jobs_opts {
    size_t job_count;
    int (*run)(void *arg, size_t job, struct tierce__jobs *workers);
    void *arg;
    uint32_t threads; /* 0: one for each processor */
    uint64_t total;   /* the total of the progress that the jobs report */
    void (*progress)(void *arg, uint64_t done,
                     uint64_t total); /* or NULL; called on the caller's thread after each report */
    void *progress_arg;
};

/* Blocks until all jobs are done. Errors: the first error of a job, negative errno (no thread). */
TIERCE_MUSTUSE int tierce__jobs_run(const struct tierce__jobs_opts *opts);

/* Reports additional progress from a job. False: another job failed, and this one may return 0 at
 * once. */
bool tierce__jobs_tell(struct tierce__jobs *workers, uint64_t done);

#endif
