/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs/vfs.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/vfs/vfs_private.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

/*
 * Files over a few threads with pread and pwrite: for kernels and sandboxes without io_uring. The
 * threads start with the first transfer, so that a vfs used for blocking calls alone has none.
 */

#define THREAD_COUNT_MAX 64u

struct threads {
    struct tierce__vfs base;
    struct tierce__lock lock;
    struct tierce__cond work;     /* `queue` is not empty, or `ending` */
    struct tierce__cond finished; /* `ready` is not empty, or `woken` */
    struct tierce__list queue;
    struct tierce__list ready;
    unsigned in_flight; /* submitted and not yet handed to done */
    bool woken;
    bool ending;
    bool started;
    unsigned thread_count; /* asked for; after the start: running */
    pthread_t threads[THREAD_COUNT_MAX];
};

/* A waiting transfer hangs on its scratch. */
_Static_assert(sizeof(struct tierce__list) <= sizeof(((struct tierce__vfs_io *)0)->scratch),
               "a list node fits the scratch");

static struct tierce__list *node_of(struct tierce__vfs_io *io)
{
    return (struct tierce__list *)(void *)io->scratch;
}

static struct tierce__vfs_io *io_of(struct tierce__list *node)
{
    return (struct tierce__vfs_io *)(void *)((char *)node -
                                             offsetof(struct tierce__vfs_io, scratch));
}

static void transfer(struct threads *t, struct tierce__vfs_io *io)
{
    int rc = io->is_write
                 ? tierce__files_write(&t->base, io->file, io->data, io->length, io->offset)
                 : tierce__files_read(&t->base, io->file, io->data, io->length, io->offset);
    io->result = rc < 0 ? rc : (int64_t)io->length;
}

static void *work(void *arg)
{
    struct threads *t = arg;
    tierce__lock_take(&t->lock);
    for (;;) {
        while (tierce__list_empty(&t->queue) && !t->ending)
            tierce__cond_wait(&t->work, &t->lock, TIERCE__DEADLINE_NEVER);
        if (tierce__list_empty(&t->queue))
            break;
        struct tierce__list *node = t->queue.next;
        tierce__list_remove(node);
        tierce__lock_drop(&t->lock);
        transfer(t, io_of(node));
        tierce__lock_take(&t->lock);
        tierce__list_push_back(&t->ready, node);
        tierce__cond_signal(&t->finished);
    }
    tierce__lock_drop(&t->lock);
    return NULL;
}

/* Starts as many threads as possible; without any thread, transfers run inside submit. */
static void start(struct threads *t)
{
    unsigned running = 0;
    while (running < t->thread_count && pthread_create(&t->threads[running], NULL, work, t) == 0)
        running++;
    t->thread_count = running;
    t->started = true;
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    struct threads *t = (struct threads *)vfs;
    if (!t->started)
        start(t);
    bool inline_ = t->thread_count == 0;
    if (inline_)
        transfer(t, io);
    tierce__lock_take(&t->lock);
    t->in_flight++;
    tierce__list_push_back(inline_ ? &t->ready : &t->queue, node_of(io));
    tierce__cond_signal(&t->work);
    tierce__lock_drop(&t->lock);
}

static unsigned poll_ready(struct tierce__vfs *vfs, uint64_t deadline_ns)
{
    struct threads *t = (struct threads *)vfs;
    unsigned ran = 0;
    tierce__lock_take(&t->lock);
    while (tierce__list_empty(&t->ready) && !t->woken)
        if (!tierce__cond_wait(&t->finished, &t->lock, deadline_ns))
            break;
    t->woken = false;
    while (!tierce__list_empty(&t->ready)) {
        struct tierce__list *node = t->ready.next;
        tierce__list_remove(node);
        t->in_flight--;
        tierce__lock_drop(&t->lock);
        struct tierce__vfs_io *io = io_of(node);
        io->done(io);
        ran++;
        tierce__lock_take(&t->lock);
    }
    tierce__lock_drop(&t->lock);
    return ran;
}

static void wake(struct tierce__vfs *vfs)
{
    struct threads *t = (struct threads *)vfs;
    tierce__lock_take(&t->lock);
    t->woken = true;
    tierce__cond_signal(&t->finished);
    tierce__lock_drop(&t->lock);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as the other implementations have it */
static void use_memory(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes)
{
    (void)vfs;
    (void)base;
    (void)bytes;
}

static bool busy(struct threads *t)
{
    tierce__lock_take(&t->lock);
    bool result = t->in_flight > 0;
    tierce__lock_drop(&t->lock);
    return result;
}

static void destroy(struct tierce__vfs *vfs)
{
    struct threads *t = (struct threads *)vfs;
    if (t == NULL)
        return;
    while (busy(t))
        (void)poll_ready(vfs, TIERCE__DEADLINE_NEVER);
    tierce__lock_take(&t->lock);
    t->ending = true;
    tierce__cond_broadcast(&t->work);
    tierce__lock_drop(&t->lock);
    for (unsigned i = 0; t->started && i < t->thread_count; i++)
        pthread_join(t->threads[i], NULL);
    tierce__files_leave(vfs);
    tierce__cond_fini(&t->finished);
    tierce__cond_fini(&t->work);
    tierce__lock_fini(&t->lock);
    tierce__free(t);
}

static const struct tierce__vfs_ops threads_ops = {
    .name = "threads",
    TIERCE__FILES_OPS,
    .submit = submit,
    .poll = poll_ready,
    .wake = wake,
    .use_memory = use_memory,
    .destroy = destroy,
};

int tierce__vfs_threads_create(struct tierce__vfs **out, unsigned thread_count)
{
    if (thread_count == 0 || thread_count > THREAD_COUNT_MAX)
        return TIERCE_E_ARGUMENT;
    struct threads *t = tierce__calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->base.ops = &threads_ops;
    t->base.folder = AT_FDCWD;
    t->thread_count = thread_count;
    tierce__lock_init(&t->lock, TIERCE__LOCK_VFS);
    tierce__cond_init(&t->work);
    tierce__cond_init(&t->finished);
    tierce__list_init(&t->queue);
    tierce__list_init(&t->ready);
    *out = &t->base;
    return 0;
}
