/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs/vfs.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "base/vfs/vfs_private.h"

#include <errno.h>
#include <fcntl.h>

/*
 * Files over a few threads with pread and pwrite: for kernels and sandboxes without io_uring. The
 * threads start with the first transfer, so that a vfs used for blocking calls alone has none.
 */

#define THREAD_COUNT_MAX 64u

struct threads {
    struct tierce__vfs base;
    unsigned thread_count;           /* asked for */
    unsigned in_flight;              /* submitted and not yet handed to done. Owner only */
    struct tierce__workers *workers; /* NULL: none could start, and transfers run in submit */
    bool started;
    struct tierce__lock lock;     /* guards the fields below */
    struct tierce__cond finished; /* `ready` is not empty, or `woken` */
    struct tierce__list ready;
    bool woken;
};

/* In the scratch of a transfer. */
struct vfs_task {
    struct tierce__task base;
    struct threads *owner;
};

_Static_assert(sizeof(struct vfs_task) <= sizeof(((struct tierce__vfs_io *)0)->scratch),
               "a task fits the scratch");

static struct vfs_task *task_of(struct tierce__vfs_io *io)
{
    return (struct vfs_task *)(void *)io->scratch;
}

static struct tierce__vfs_io *io_of(struct tierce__task *task)
{
    return TIERCE__CONTAINER_OF(task, struct tierce__vfs_io, scratch);
}

static void transfer(struct tierce__task *task)
{
    struct threads *t = ((struct vfs_task *)task)->owner;
    struct tierce__vfs_io *io = io_of(task);
    TIERCE_DASSERT(io->length > 0);
    int rc = io->is_write
                 ? tierce__files_write(&t->base, io->file, io->data, io->length, io->offset)
                 : tierce__files_read(&t->base, io->file, io->data, io->length, io->offset);
    TIERCE_DASSERT(rc <= 0);
    io->result = rc < 0 ? rc : (int64_t)io->length;
    tierce__lock_take(&t->lock);
    tierce__list_push_back(&t->ready, &task->node);
    tierce__cond_signal(&t->finished);
    tierce__lock_drop(&t->lock);
}

/* With fewer threads if not all can be started. */
static void start(struct threads *t)
{
    int rc = -EAGAIN;
    for (unsigned count = t->thread_count; rc < 0 && count > 0; count /= 2)
        rc = tierce__workers_create(&t->workers, count, UINT32_MAX);
    TIERCE_DASSERT((rc == 0) == (t->workers != NULL));
    t->started = true;
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    struct threads *t = (struct threads *)vfs;
    struct vfs_task *task = task_of(io);
    TIERCE_DASSERT(io->length > 0);
    if (!t->started)
        start(t);
    *task = (struct vfs_task){.base.run = transfer, .owner = t};
    t->in_flight++;
    if (t->workers == NULL || !tierce__workers_submit(t->workers, &task->base))
        transfer(&task->base);
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
        tierce__lock_drop(&t->lock);
        TIERCE_ASSERT(t->in_flight > 0);
        t->in_flight--;
        struct tierce__vfs_io *io = io_of(TIERCE__CONTAINER_OF(node, struct tierce__task, node));
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

static void destroy(struct tierce__vfs *vfs)
{
    struct threads *t = (struct threads *)vfs;
    if (t == NULL)
        return;
    while (t->in_flight > 0)
        (void)poll_ready(vfs, TIERCE__DEADLINE_NEVER);
    tierce__workers_destroy(t->workers);
    TIERCE_DASSERT(tierce__list_empty(&t->ready));
    tierce__files_leave(vfs);
    tierce__cond_fini(&t->finished);
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
    tierce__cond_init(&t->finished);
    tierce__list_init(&t->ready);
    *out = &t->base;
    return 0;
}
