/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/jobs.h"
#include "base/clock.h"
#include "base/lock.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS_MAX 64u

struct tierce__workers {
    const struct tierce__workers_opts *opts;
    struct tierce__lock lock; /* WORKERS: guards the fields below */
    struct tierce__cond changed;
    size_t next_job;
    uint64_t done;
    size_t running; /* threads */
    int error;      /* the first one */
};

/* The next job, or job_count if there is none to begin. */
static size_t take_job(struct tierce__workers *w, int rc)
{
    size_t job = w->opts->job_count;
    tierce__lock_take(&w->lock);
    if (w->error == 0)
        w->error = rc;
    if (w->error == 0 && w->next_job < w->opts->job_count)
        job = w->next_job++;
    else
        w->running--;
    tierce__cond_signal(&w->changed);
    tierce__lock_drop(&w->lock);
    return job;
}

static void *run_jobs(void *arg)
{
    struct tierce__workers *w = arg;
    int rc = 0;
    for (size_t job; (job = take_job(w, rc)) < w->opts->job_count;)
        rc = w->opts->run(w->opts->arg, job, w);
    return NULL;
}

bool tierce__workers_tell(struct tierce__workers *workers, uint64_t done)
{
    tierce__lock_take(&workers->lock);
    workers->done += done;
    bool go_on = workers->error == 0;
    if (workers->opts->progress != NULL)
        tierce__cond_signal(&workers->changed);
    tierce__lock_drop(&workers->lock);
    return go_on;
}

static void wait_for_all(struct tierce__workers *w)
{
    uint64_t told = 0;
    tierce__lock_take(&w->lock);
    while (w->running > 0) {
        if (w->opts->progress != NULL && w->done > told) {
            told = w->done;
            tierce__lock_drop(&w->lock);
            w->opts->progress(w->opts->progress_arg, told, w->opts->total);
            tierce__lock_take(&w->lock);
        } else {
            tierce__cond_wait(&w->changed, &w->lock, TIERCE__DEADLINE_NEVER);
        }
    }
    tierce__lock_drop(&w->lock);
    if (w->opts->progress != NULL)
        w->opts->progress(w->opts->progress_arg, w->opts->total, w->opts->total);
}

int tierce__workers_run(const struct tierce__workers_opts *opts)
{
    pthread_t threads[THREADS_MAX];
    struct tierce__workers w = {.opts = opts};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = opts->threads > 0 ? opts->threads : processors > 0 ? (size_t)processors : 1;
    size_t started = 0;
    wanted = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    wanted = wanted < opts->job_count ? wanted : opts->job_count;
    tierce__lock_init(&w.lock, TIERCE__LOCK_WORKERS);
    tierce__cond_init(&w.changed);
    w.running = wanted;
    for (; started < wanted; started++) {
        int rc = pthread_create(&threads[started], NULL, run_jobs, &w);
        if (rc != 0) {
            tierce__lock_take(&w.lock);
            w.running -= wanted - started;
            w.error = w.error == 0 ? -rc : w.error;
            tierce__lock_drop(&w.lock);
            break;
        }
    }
    wait_for_all(&w);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    tierce__cond_fini(&w.changed);
    tierce__lock_fini(&w.lock);
    return w.error;
}
