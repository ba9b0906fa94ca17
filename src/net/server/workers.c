/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/workers.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>

struct tierce__workers {
    struct tierce__lock lock;
    struct tierce__cond more;
    struct tierce__list queue;
    uint32_t waiting, queue_max;
    uint32_t idle;
    bool ending;
    uint32_t count;
    pthread_t threads[];
};

static void *work(void *arg)
{
    struct tierce__workers *workers = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are for the application's threads */
    tierce__lock_take(&workers->lock);
    for (;;) {
        if (tierce__list_empty(&workers->queue)) {
            if (workers->ending)
                break;
            workers->idle++;
            (void)tierce__cond_wait(&workers->more, &workers->lock, TIERCE__DEADLINE_NEVER);
            workers->idle--;
            continue;
        }
        struct tierce__task *task =
            TIERCE__CONTAINER_OF(workers->queue.next, struct tierce__task, node);
        tierce__list_remove(&task->node);
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
    struct tierce__workers *workers =
        tierce__calloc(1, sizeof(*workers) + threads * sizeof(pthread_t));
    if (workers == NULL)
        return -ENOMEM;
    tierce__lock_init(&workers->lock, TIERCE__LOCK_SERVE_WORKERS);
    tierce__cond_init(&workers->more);
    tierce__list_init(&workers->queue);
    workers->queue_max = queue_max;
    while (workers->count < threads) {
        if (pthread_create(&workers->threads[workers->count], NULL, work, workers) != 0) {
            tierce__workers_destroy(workers);
            return -EAGAIN;
        }
        workers->count++;
    }
    *out = workers;
    return 0;
}

void tierce__workers_destroy(struct tierce__workers *workers)
{
    if (workers == NULL)
        return;
    tierce__lock_take(&workers->lock);
    workers->ending = true;
    tierce__cond_broadcast(&workers->more);
    tierce__lock_drop(&workers->lock);
    for (uint32_t i = 0; i < workers->count; i++)
        pthread_join(workers->threads[i], NULL);
    tierce__cond_fini(&workers->more);
    tierce__lock_fini(&workers->lock);
    tierce__free(workers);
}

bool tierce__workers_submit(struct tierce__workers *workers, struct tierce__task *task)
{
    tierce__lock_take(&workers->lock);
    bool taken = workers->waiting < workers->queue_max && !workers->ending;
    if (taken) {
        tierce__list_push_back(&workers->queue, &task->node);
        workers->waiting++;
        if (workers->idle > 0)
            tierce__cond_signal(&workers->more);
    }
    tierce__lock_drop(&workers->lock);
    return taken;
}

uint32_t tierce__workers_waiting(struct tierce__workers *workers)
{
    tierce__lock_take(&workers->lock);
    uint32_t waiting = workers->waiting;
    tierce__lock_drop(&workers->lock);
    return waiting;
}
