/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/threads.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- threads --------------------------------------------------------------------------------- */

void tierce__affinity_note(struct tierce__affinity *out)
{
    out->is_known = sched_getaffinity(0, sizeof(out->processors), &out->processors) == 0;
}

/* A positive errno, as of pthread_create. */
static int create_on(pthread_t *out, const struct tierce__affinity *on, void *(*run)(void *arg),
                     void *arg)
{
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_attr_setaffinity_np(&attr, sizeof(on->processors), &on->processors);
    if (rc == 0)
        rc = pthread_create(out, &attr, run, arg);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

int tierce__thread_start_on(pthread_t *out, const struct tierce__affinity *on,
                            void *(*run)(void *arg), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* the new thread inherits the mask */
    int rc = on->is_known ? -create_on(out, on, run, arg) : -pthread_create(out, NULL, run, arg);
    if (on->is_known && rc != 0 && rc != -EAGAIN) /* the processors were rejected */
        rc = -pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    TIERCE_DASSERT(rc <= 0);
    return rc;
}

int tierce__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    return tierce__thread_start_on(out, &(struct tierce__affinity){0}, run, arg);
}

int tierce__threads_start_on(struct tierce__threads *threads, uint32_t count,
                             const struct tierce__affinity *on, void *(*run)(void *arg), void *arg)
{
    TIERCE_ASSERT(threads->count == 0 && threads->ids == NULL);
    int rc = 0;
    if (count == 0)
        return 0;
    threads->ids = tierce__calloc(count, sizeof(*threads->ids));
    if (threads->ids == NULL)
        return -ENOMEM;
    while (rc == 0 && threads->count < count) {
        rc = tierce__thread_start_on(&threads->ids[threads->count], on, run, arg);
        threads->count += rc == 0;
    }
    return rc;
}

int tierce__threads_start(struct tierce__threads *threads, uint32_t count, void *(*run)(void *arg),
                          void *arg)
{
    return tierce__threads_start_on(threads, count, &(struct tierce__affinity){0}, run, arg);
}

void tierce__threads_join(struct tierce__threads *threads)
{
    TIERCE_DASSERT(threads->count == 0 || threads->ids != NULL);
    for (uint32_t i = 0; i < threads->count; i++) {
        int rc = pthread_join(threads->ids[i], NULL);
        TIERCE_ASSERT(rc == 0); /* not the calling thread, and joined once */
    }
    tierce__free(threads->ids);
    *threads = (struct tierce__threads){0};
}

void tierce__thread_does_not_interrupt(void)
{
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
}

uint32_t tierce__processors(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* ---- workers --------------------------------------------------------------------------------- */

struct tierce__workers {
    struct tierce__lock lock;
    struct tierce__cond more;
    struct tierce__list queue;
    uint32_t waiting, queue_max; /* tasks */
    uint32_t idle;               /* threads that wait for `more` */
    bool is_ending;
    struct tierce__threads threads;
};

static void *work(void *arg)
{
    struct tierce__workers *workers = arg;
    tierce__lock_take(&workers->lock);
    for (;;) {
        TIERCE_DASSERT(tierce__list_empty(&workers->queue) == (workers->waiting == 0));
        if (workers->waiting == 0) {
            if (workers->is_ending)
                break;
            workers->idle++;
            (void)tierce__cond_wait(&workers->more, &workers->lock, TIERCE__DEADLINE_NEVER);
            workers->idle--;
            continue;
        }
        struct tierce__task *task =
            TIERCE__CONTAINER_OF(workers->queue.next, struct tierce__task, node);
        tierce__list_remove(&task->node);
        TIERCE_DASSERT(workers->waiting > 0);
        workers->waiting--;
        tierce__lock_drop(&workers->lock);
        task->run(task);
        tierce__lock_take(&workers->lock);
    }
    tierce__lock_drop(&workers->lock);
    return NULL;
}

int tierce__workers_create(struct tierce__workers **out, uint32_t threads, uint32_t queue_max)
{
    TIERCE_ASSERT(threads > 0);
    TIERCE_ASSERT(queue_max > 0);
    struct tierce__workers *workers = tierce__calloc(1, sizeof(*workers));
    if (workers == NULL)
        return -ENOMEM;
    tierce__lock_init(&workers->lock, TIERCE__LOCK_TASKS);
    tierce__cond_init(&workers->more);
    tierce__list_init(&workers->queue);
    workers->queue_max = queue_max;
    int rc = tierce__threads_start(&workers->threads, threads, work, workers);
    if (rc < 0)
        tierce__workers_destroy(workers);
    else
        *out = workers;
    return rc;
}

void tierce__workers_destroy(struct tierce__workers *workers)
{
    if (workers == NULL)
        return;
    tierce__lock_take(&workers->lock);
    TIERCE_ASSERT(!workers->is_ending);
    workers->is_ending = true;
    tierce__cond_broadcast(&workers->more);
    tierce__lock_drop(&workers->lock);
    tierce__threads_join(&workers->threads);
    TIERCE_ASSERT(workers->waiting == 0);
    tierce__cond_fini(&workers->more);
    tierce__lock_fini(&workers->lock);
    tierce__free(workers);
}

/* The lock is held. */
static bool queue(struct tierce__workers *workers, struct tierce__task *task)
{
    TIERCE_DASSERT(task->run != NULL);
    TIERCE_DASSERT(workers->waiting <= workers->queue_max);
    if (workers->waiting == workers->queue_max || workers->is_ending)
        return false;
    tierce__list_push_back(&workers->queue, &task->node);
    workers->waiting++;
    if (workers->idle > 0)
        tierce__cond_signal(&workers->more);
    return true;
}

bool tierce__workers_submit(struct tierce__workers *workers, struct tierce__task *task)
{
    tierce__lock_take(&workers->lock);
    bool is_taken = queue(workers, task);
    tierce__lock_drop(&workers->lock);
    return is_taken;
}

/* ---- one job for several workers ------------------------------------------------------------- */

enum { SHARERS_MAX = 63, PARTS_PER_THREAD = 4 };

struct share {
    struct tierce__workers *workers;
    void (*each)(void *arg, size_t from, size_t to);
    void *arg;
    size_t count, part;
    _Atomic size_t next;         /* the first index that nobody has taken */
    struct tierce__cond changed; /* with the lock of the workers: */
    uint32_t helping;            /* tasks that are queued or run */
};

struct helper {
    struct tierce__task task;
    struct share *share;
};

static void take_parts(struct share *share)
{
    TIERCE_DASSERT(share->part > 0);
    for (;;) {
        size_t from = atomic_fetch_add_explicit(&share->next, share->part, memory_order_relaxed);
        if (from >= share->count)
            return;
        size_t left = share->count - from;
        share->each(share->arg, from, from + (left < share->part ? left : share->part));
    }
}

static void help(struct tierce__task *task)
{
    struct share *share = TIERCE__CONTAINER_OF(task, struct helper, task)->share;
    struct tierce__workers *workers = share->workers;
    take_parts(share);
    tierce__lock_take(&workers->lock);
    TIERCE_DASSERT(share->helping > 0);
    share->helping--;
    tierce__cond_signal(&share->changed);
    tierce__lock_drop(&workers->lock); /* from here on the share may be gone */
}

/* Returns how many tasks were queued: as many as the queue has room for. */
static uint32_t begin_helping(struct share *share, struct helper *helpers, uint32_t most)
{
    struct tierce__workers *workers = share->workers;
    tierce__lock_take(&workers->lock);
    for (uint32_t i = 0; i < most; i++) {
        helpers[i] = (struct helper){.task.run = help, .share = share};
        if (!queue(workers, &helpers[i].task))
            break;
        share->helping++;
    }
    uint32_t made = share->helping; /* no task ends before the lock is dropped */
    tierce__lock_drop(&workers->lock);
    return made;
}

/* Takes back the tasks that no worker has begun, and waits for the others. */
static void end_helping(struct share *share, struct helper *helpers, uint32_t made)
{
    struct tierce__workers *workers = share->workers;
    tierce__lock_take(&workers->lock);
    for (uint32_t i = 0; i < made; i++) {
        if (tierce__list_empty(&helpers[i].task.node))
            continue;
        tierce__list_remove(&helpers[i].task.node);
        TIERCE_DASSERT(workers->waiting > 0 && share->helping > 0);
        workers->waiting--;
        share->helping--;
    }
    while (share->helping > 0)
        (void)tierce__cond_wait(&share->changed, &workers->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&workers->lock);
}

void tierce__workers_share(struct tierce__workers *workers, size_t count,
                           void (*each)(void *arg, size_t from, size_t to), void *arg)
{
    struct helper helpers[SHARERS_MAX];
    if (workers == NULL || count < 2) {
        each(arg, 0, count);
        return;
    }
    uint32_t most = workers->threads.count < SHARERS_MAX ? workers->threads.count : SHARERS_MAX;
    size_t parts = (size_t)(most + 1) * PARTS_PER_THREAD;
    struct share share = {.workers = workers,
                          .each = each,
                          .arg = arg,
                          .count = count,
                          .part = count > parts ? count / parts : 1};
    tierce__cond_init(&share.changed);
    uint32_t made = begin_helping(&share, helpers, most < count - 1 ? most : (uint32_t)count - 1);
    take_parts(&share);
    end_helping(&share, helpers, made);
    tierce__cond_fini(&share.changed);
}

uint32_t tierce__workers_waiting(struct tierce__workers *workers)
{
    tierce__lock_take(&workers->lock);
    uint32_t waiting = workers->waiting;
    TIERCE_DASSERT(waiting <= workers->queue_max);
    tierce__lock_drop(&workers->lock);
    return waiting;
}
