/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/loop.h"
#include "base/assert.h"

#include <errno.h>
#include <semaphore.h>

static _Thread_local const struct tierce__loop *here;

void tierce__loop_init(struct tierce__loop *loop, void (*wake)(struct tierce__loop *loop))
{
    *loop = (struct tierce__loop){.wake = wake};
    tierce__lock_init(&loop->lock, TIERCE__LOCK_SERVE_LOOP);
    tierce__list_init(&loop->inbox);
}

void tierce__loop_fini(struct tierce__loop *loop)
{
    TIERCE_ASSERT(tierce__list_empty(&loop->inbox));
    tierce__deadlines_fini(&loop->deadlines);
    tierce__lock_fini(&loop->lock);
}

void tierce__loop_enter(struct tierce__loop *loop)
{
    TIERCE_ASSERT(here == NULL || loop == NULL);
    here = loop;
}

bool tierce__loop_is_here(const struct tierce__loop *loop)
{
    return here == loop;
}

void tierce__loop_post(struct tierce__loop *loop, struct tierce__task *task)
{
    tierce__lock_take(&loop->lock);
    bool was_empty = tierce__list_empty(&loop->inbox);
    tierce__list_push_back(&loop->inbox, &task->node);
    tierce__lock_drop(&loop->lock);
    if (was_empty)
        loop->wake(loop);
}

struct loop_call {
    struct tierce__task task;
    void (*run)(void *arg);
    void *arg;
    sem_t done;
};

static void run_call(struct tierce__task *task)
{
    struct loop_call *call = TIERCE__CONTAINER_OF(task, struct loop_call, task);
    call->run(call->arg);
    sem_post(&call->done);
}

void tierce__loop_call(struct tierce__loop *loop, void (*run)(void *arg), void *arg)
{
    TIERCE_ASSERT(!tierce__loop_is_here(loop));
    struct loop_call call = {.task = {.run = run_call}, .run = run, .arg = arg};
    sem_init(&call.done, 0, 0);
    tierce__loop_post(loop, &call.task);
    while (sem_wait(&call.done) != 0)
        TIERCE_ASSERT(errno == EINTR);
    sem_destroy(&call.done);
}

void tierce__loop_run_inbox(struct tierce__loop *loop)
{
    TIERCE_ASSERT(tierce__loop_is_here(loop));
    struct tierce__list taken;
    tierce__list_init(&taken);
    tierce__lock_take(&loop->lock);
    if (!tierce__list_empty(&loop->inbox)) {
        taken = loop->inbox;
        taken.next->prev = &taken;
        taken.prev->next = &taken;
        tierce__list_init(&loop->inbox);
    }
    tierce__lock_drop(&loop->lock);
    while (!tierce__list_empty(&taken)) {
        struct tierce__task *task = TIERCE__CONTAINER_OF(taken.next, struct tierce__task, node);
        tierce__list_remove(&task->node);
        task->run(task);
    }
}
