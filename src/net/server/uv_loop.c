/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/uv_loop.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_socket.h"

#include <errno.h>
#include <signal.h>

static void wake(struct tierce__loop *base)
{
    struct tierce__uv_loop *loop = TIERCE__CONTAINER_OF(base, struct tierce__uv_loop, base);
    uv_async_send(&loop->async);
}

static void on_async(uv_async_t *async)
{
    struct tierce__uv_loop *loop = async->data;
    tierce__loop_run_inbox(&loop->base);
}

static void on_timer(uv_timer_t *timer)
{
    struct tierce__uv_loop *loop = timer->data;
    tierce__deadlines_expire(&loop->base.deadlines, tierce__now_ns());
}

/* Before each wait: sends all output since the last one, and sets the timer to the next
 * deadline. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct tierce__uv_loop *loop = prepare->data;
    tierce__grpc_sockets_flush(loop);
    uint64_t next = tierce__deadlines_next(&loop->base.deadlines);
    if (next == TIERCE__DEADLINE_NEVER) {
        uv_timer_stop(&loop->timer);
        return;
    }
    uint64_t now = tierce__now_ns();
    uint64_t wait_ms = next > now ? (next - now + TIERCE__MS_NS - 1) / TIERCE__MS_NS : 0;
    uv_update_time(&loop->uv);
    uv_timer_start(&loop->timer, on_timer, wait_ms, 0);
}

static void close_handles(struct tierce__uv_loop *loop)
{
    uv_close((uv_handle_t *)&loop->async, NULL);
    uv_close((uv_handle_t *)&loop->timer, NULL);
    uv_close((uv_handle_t *)&loop->prepare, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
}

static void *turn(void *arg)
{
    struct tierce__uv_loop *loop = arg;
    /* Signals are for the application's threads; SIGPIPE is for none. */
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    tierce__loop_enter(&loop->base);
    while (!loop->is_ending)
        uv_run(&loop->uv, UV_RUN_ONCE);
    tierce__loop_run_inbox(&loop->base);
    tierce__grpc_sockets_close(loop);
    close_handles(loop);
    tierce__loop_enter(NULL);
    return NULL;
}

int tierce__uv_loop_start(struct tierce__uv_loop **out)
{
    struct tierce__uv_loop *loop = tierce__calloc(1, sizeof(*loop));
    if (loop == NULL)
        return -ENOMEM;
    int rc = uv_loop_init(&loop->uv);
    if (rc != 0) {
        tierce__free(loop);
        return rc;
    }
    tierce__loop_init(&loop->base, wake);
    tierce__list_init(&loop->sockets);
    tierce__list_init(&loop->dirty);
    loop->async.data = loop->timer.data = loop->prepare.data = loop;
    rc = uv_async_init(&loop->uv, &loop->async, on_async);
    if (rc != 0) {
        TIERCE_ASSERT(uv_loop_close(&loop->uv) == 0);
        tierce__loop_fini(&loop->base);
        tierce__free(loop);
        return rc;
    }
    uv_timer_init(&loop->uv, &loop->timer);
    uv_prepare_init(&loop->uv, &loop->prepare);
    uv_prepare_start(&loop->prepare, on_prepare);
    rc = -pthread_create(&loop->thread, NULL, turn, loop);
    if (rc != 0) {
        close_handles(loop);
        TIERCE_ASSERT(uv_loop_close(&loop->uv) == 0);
        tierce__loop_fini(&loop->base);
        tierce__free(loop);
        return rc;
    }
    *out = loop;
    return 0;
}

struct ending {
    struct tierce__task task;
    struct tierce__uv_loop *loop;
};

static void end(struct tierce__task *task)
{
    TIERCE__CONTAINER_OF(task, struct ending, task)->loop->is_ending = true;
}

void tierce__uv_loop_stop(struct tierce__uv_loop *loop)
{
    if (loop == NULL)
        return;
    struct ending ending = {.task = {.run = end}, .loop = loop};
    tierce__loop_post(&loop->base, &ending.task);
    pthread_join(loop->thread, NULL);
    TIERCE_ASSERT(uv_loop_close(&loop->uv) == 0);
    tierce__loop_fini(&loop->base);
    tierce__free(loop);
}
