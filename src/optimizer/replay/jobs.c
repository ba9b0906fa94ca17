/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/jobs.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

#define THREADS_MAX 64u

struct tierce__jobs {
    const struct tierce__jobs_opts *opts;
    struct tierce__lock lock; /* WORKERS: guards the fields below */
    struct tierce__cond changed;
    size_t next_job;
    uint64_t done;
    size_t running; /* threads */
    int error;      /* the first one */
};

/* The next job, or job_count if there is none to begin. */
static size_t take_job(struct tierce__jobs *w, int rc)
{
    size_t job = w->opts->job_count;
    tierce__lock_take(&w->lock);
    TIERCE_ASSERT(w->running > 0 && w->next_job <= w->opts->job_count);
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
    struct tierce__jobs *w = arg;
    int rc = 0;
    for (size_t job; (job = take_job(w, rc)) < w->opts->job_count;)
        rc = w->opts->run(w->opts->arg, job, w);
    return NULL;
}

bool tierce__jobs_tell(struct tierce__jobs *workers, uint64_t done)
{
    tierce__lock_take(&workers->lock);
    TIERCE_ASSERT(workers->running > 0);
    workers->done += done;
    bool go_on = workers->error == 0;
    if (workers->opts->progress != NULL)
        tierce__cond_signal(&workers->changed);
    tierce__lock_drop(&workers->lock);
    return go_on;
}

static void wait_for_all(struct tierce__jobs *w)
{
    uint64_t told = 0;
    tierce__lock_take(&w->lock);
    while (w->running > 0) {
        if (w->opts->progress != NULL && w->done > told) {
            told = w->done;
            tierce__lock_drop(&w->lock);
            TIERCE_DASSERT(!tierce__lock_holds_any());
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

int tierce__jobs_run(const struct tierce__jobs_opts *opts)
{
    struct tierce__threads threads = {0};
    struct tierce__jobs w = {.opts = opts};
    size_t wanted = opts->threads > 0 ? opts->threads : tierce__processors();
    wanted = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    wanted = wanted < opts->job_count ? wanted : opts->job_count;
    tierce__lock_init(&w.lock, TIERCE__LOCK_WORKERS);
    tierce__cond_init(&w.changed);
    w.running = wanted;
    int rc = tierce__threads_start(&threads, (uint32_t)wanted, run_jobs, &w);
    TIERCE_ASSERT(threads.count <= wanted);
    tierce__lock_take(&w.lock);
    w.running -= wanted - threads.count;
    w.error = w.error == 0 ? rc : w.error;
    tierce__lock_drop(&w.lock);
    wait_for_all(&w);
    tierce__threads_join(&threads);
    TIERCE_ASSERT(w.running == 0 && (w.error != 0 || w.next_job == opts->job_count));
    tierce__cond_fini(&w.changed);
    tierce__lock_fini(&w.lock);
    return w.error;
}
