/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_WORKERS_H
#define TIERCE_OPTIMIZER_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Jobs on a few threads, and how far they are.
 *
 *     rc = tierce__workers_run(&(struct tierce__workers_opts){.run = run_one, .arg = &work, ...});
 *
 * `run` is called once for each job, from any thread, until one returns an error.
 */

struct tierce__workers;

struct tierce__workers_opts {
    size_t job_count;
    int (*run)(void *arg, size_t job, struct tierce__workers *workers);
    void *arg;
    uint32_t threads;                                           /* 0: one for each processor */
    uint64_t total;                                             /* of all that the jobs tell */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* or NULL; on the caller's thread,
                                                                   whenever a job has told */
    void *progress_arg;
};

/* Blocks until all is done. Errors: the first that a job returned, negative errno (no thread). */
TIERCE_MUSTUSE int tierce__workers_run(const struct tierce__workers_opts *opts);

/* In a job: so much more is done. False: another job failed, and this one may return 0 at once. */
bool tierce__workers_tell(struct tierce__workers *workers, uint64_t done);

#endif
