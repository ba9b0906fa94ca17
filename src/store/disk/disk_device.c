/* SPDX-License-Identifier: Apache-2.0 */
#include "store/disk/disk_device.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

/* Reads at a time. One thread reads a transfer of 1 MiB in the time that the device takes for it,
 * so a few are needed to keep a fast device busy. Not measured on a GPU. */
#define THREAD_COUNT 4u

struct device_vfs {
    struct tierce__vfs base;
    struct tierce__vfs *inner;
    struct tierce__vfs_device_memory memory; /* written before `begin` and `end` */
    _Atomic uintptr_t begin, end;    /* of the buffer; 0: none. `end` is stored last (release) */
    atomic_bool failed;              /* relaxed: a transfer that misses it fails by itself */
    unsigned in_flight;              /* into the buffer. The owner only */
    struct tierce__workers *workers; /* the owner only */
    struct tierce__lock lock;        /* DEVICE_VFS: guards the fields below */
    struct tierce__list ready;
    struct tierce__vfs_file *of; /* the file that `file` reads, or NULL */
    struct tierce__device_file *file;
};

/* In the scratch of a transfer. */
struct device_task {
    struct tierce__task base;
    struct device_vfs *owner;
};

_Static_assert(sizeof(struct device_task) <= sizeof(((struct tierce__vfs_io *)0)->scratch),
               "a task fits the scratch");

static struct tierce__vfs_io *io_of(struct tierce__task *task)
{
    return TIERCE__CONTAINER_OF(task, struct tierce__vfs_io, scratch);
}

static struct device_vfs *of(struct tierce__vfs *vfs)
{
    return TIERCE__CONTAINER_OF(vfs, struct device_vfs, base);
}

static struct tierce__vfs *inner_of(struct tierce__vfs *vfs)
{
    return of(vfs)->inner;
}

/* ---- transfers into the buffer --------------------------------------------------------------- */

/* The handle of a file. The library registers a file once, so one thread opens it. */
static int take_file(struct device_vfs *d, struct tierce__device_file **out,
                     struct tierce__vfs_file *file)
{
    const struct tierce__vfs_device_memory *m = &d->memory;
    int rc = 0;
    tierce__lock_take(&d->lock);
    TIERCE_ASSERT(d->of == NULL || d->of == file); /* a disk tier has one data file */
    if (d->of == NULL)
        rc = m->files->open(m->device, &d->file, m->base, tierce__vfs_descriptor(file));
    if (rc == 0)
        d->of = file;
    *out = d->file;
    tierce__lock_drop(&d->lock);
    return rc;
}

static int read_part(struct device_vfs *d, const struct tierce__vfs_io *io)
{
    struct tierce__device_file *file;
    if (atomic_load_explicit(&d->failed, memory_order_relaxed))
        return TIERCE_E_UNSUPPORTED;
    int rc = take_file(d, &file, io->file);
    return rc < 0 ? rc
                  : d->memory.files->read(d->memory.device, file, io->data, io->length, io->offset);
}

static void transfer(struct tierce__task *task)
{
    struct device_vfs *d = ((struct device_task *)task)->owner;
    struct tierce__vfs_io *io = io_of(task);
    int rc = read_part(d, io);
    TIERCE_DASSERT(rc <= 0);
    if (rc == TIERCE_E_UNSUPPORTED)
        atomic_store_explicit(&d->failed, true, memory_order_relaxed);
    io->result = rc < 0 ? rc : (int64_t)io->length;
    tierce__lock_take(&d->lock);
    tierce__list_push_back(&d->ready, &task->node);
    tierce__lock_drop(&d->lock);
    d->inner->ops->wake(d->inner); /* destroy waits for this thread */
}

static bool is_in_buffer(struct device_vfs *d, const struct tierce__vfs_io *io)
{
    uintptr_t end = atomic_load_explicit(&d->end, memory_order_acquire);
    uintptr_t begin = atomic_load_explicit(&d->begin, memory_order_relaxed);
    return (uintptr_t)io->data >= begin && (uintptr_t)io->data < end;
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    struct device_vfs *d = of(vfs);
    struct device_task *task = (struct device_task *)(void *)io->scratch;
    if (!is_in_buffer(d, io)) {
        d->inner->ops->submit(d->inner, io);
        return;
    }
    TIERCE_ASSERT(!io->is_write && io->length > 0);
    *task = (struct device_task){.base.run = transfer, .owner = d};
    if (d->workers == NULL && tierce__workers_create(&d->workers, THREAD_COUNT, UINT32_MAX) < 0)
        d->workers = NULL;
    d->in_flight++;
    if (d->workers == NULL || !tierce__workers_submit(d->workers, &task->base))
        transfer(&task->base);
}

static unsigned deliver(struct device_vfs *d)
{
    unsigned ran = 0;
    tierce__lock_take(&d->lock);
    while (!tierce__list_empty(&d->ready)) {
        struct tierce__list *node = d->ready.next;
        tierce__list_remove(node);
        tierce__lock_drop(&d->lock);
        TIERCE_ASSERT(d->in_flight > 0);
        d->in_flight--;
        struct tierce__vfs_io *io = io_of(TIERCE__CONTAINER_OF(node, struct tierce__task, node));
        io->done(io);
        ran++;
        tierce__lock_take(&d->lock);
    }
    tierce__lock_drop(&d->lock);
    return ran;
}

static unsigned poll_both(struct tierce__vfs *vfs, uint64_t deadline_ns)
{
    struct device_vfs *d = of(vfs);
    unsigned ran = deliver(d);
    ran += d->inner->ops->poll(d->inner, ran > 0 ? 0 : deadline_ns);
    return ran + deliver(d);
}

/* ---- calls of the inner vfs ------------------------------------------------------------------ */

static int enter_folder(struct tierce__vfs *vfs, const char *folder)
{
    int rc = inner_of(vfs)->ops->enter(inner_of(vfs), folder);
    vfs->folder = inner_of(vfs)->folder;
    return rc;
}

static void leave_folder(struct tierce__vfs *vfs)
{
    inner_of(vfs)->ops->leave(inner_of(vfs));
    vfs->folder = inner_of(vfs)->folder;
}

static int open_file(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path,
                     unsigned flags)
{
    return inner_of(vfs)->ops->open(inner_of(vfs), out, path, flags);
}

/* No transfer of the file is in progress. */
static void close_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    struct device_vfs *d = of(vfs);
    tierce__lock_take(&d->lock);
    if (d->of == file && file != NULL) {
        d->memory.files->close(d->memory.device, d->file);
        d->of = NULL;
        d->file = NULL;
    }
    tierce__lock_drop(&d->lock);
    d->inner->ops->close(d->inner, file);
}

static int read_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                     size_t length, uint64_t offset)
{
    return inner_of(vfs)->ops->read(inner_of(vfs), file, data, length, offset);
}

static int write_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, const void *data,
                      size_t length, uint64_t offset)
{
    return inner_of(vfs)->ops->write(inner_of(vfs), file, data, length, offset);
}

static int sync_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    return inner_of(vfs)->ops->sync(inner_of(vfs), file);
}

static int64_t length_of(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    return inner_of(vfs)->ops->length(inner_of(vfs), file);
}

static int truncate_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t length)
{
    return inner_of(vfs)->ops->truncate(inner_of(vfs), file, length);
}

static int allocate(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t offset,
                    uint64_t length)
{
    return inner_of(vfs)->ops->allocate(inner_of(vfs), file, offset, length);
}

static int rename_file(struct tierce__vfs *vfs, const char *from, const char *to)
{
    return inner_of(vfs)->ops->rename(inner_of(vfs), from, to);
}

static int unlink_file(struct tierce__vfs *vfs, const char *path)
{
    return inner_of(vfs)->ops->unlink(inner_of(vfs), path);
}

static int make_folder(struct tierce__vfs *vfs, const char *path)
{
    return inner_of(vfs)->ops->make_folder(inner_of(vfs), path);
}

static int sync_folder(struct tierce__vfs *vfs, const char *path)
{
    return inner_of(vfs)->ops->sync_folder(inner_of(vfs), path);
}

static void wake(struct tierce__vfs *vfs)
{
    inner_of(vfs)->ops->wake(inner_of(vfs));
}

static void use_memory(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes)
{
    inner_of(vfs)->ops->use_memory(inner_of(vfs), base, bytes);
}

static void destroy(struct tierce__vfs *vfs)
{
    if (vfs == NULL)
        return;
    struct device_vfs *d = of(vfs);
    while (d->in_flight > 0)
        (void)poll_both(vfs, TIERCE__DEADLINE_NEVER);
    tierce__workers_destroy(d->workers);
    TIERCE_DASSERT(tierce__list_empty(&d->ready) && d->of == NULL);
    d->inner->ops->destroy(d->inner);
    tierce__lock_fini(&d->lock);
    tierce__free(d);
}

static const struct tierce__vfs_ops device_ops = {
    .name = "device",
    .enter = enter_folder,
    .leave = leave_folder,
    .open = open_file,
    .close = close_file,
    .read = read_file,
    .write = write_file,
    .sync = sync_file,
    .length = length_of,
    .truncate = truncate_file,
    .allocate = allocate,
    .rename = rename_file,
    .unlink = unlink_file,
    .make_folder = make_folder,
    .sync_folder = sync_folder,
    .submit = submit,
    .poll = poll_both,
    .wake = wake,
    .use_memory = use_memory,
    .destroy = destroy,
};

int tierce__vfs_device_create(struct tierce__vfs **out, struct tierce__vfs *inner)
{
    struct device_vfs *d = tierce__calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->base.ops = &device_ops;
    d->base.folder = inner->folder;
    d->inner = inner;
    tierce__lock_init(&d->lock, TIERCE__LOCK_DEVICE_VFS);
    tierce__list_init(&d->ready);
    *out = &d->base;
    return 0;
}

void tierce__vfs_device_use(struct tierce__vfs *vfs, const struct tierce__vfs_device_memory *memory)
{
    struct device_vfs *d = of(vfs);
    TIERCE_ASSERT(vfs->ops == &device_ops && atomic_load(&d->end) == 0);
    d->memory = *memory;
    atomic_store_explicit(&d->begin, (uintptr_t)memory->base, memory_order_relaxed);
    atomic_store_explicit(&d->end, (uintptr_t)memory->base + memory->bytes, memory_order_release);
}

bool tierce__vfs_device_stop(struct tierce__vfs *vfs)
{
    TIERCE_DASSERT(vfs->ops == &device_ops);
    return !atomic_exchange_explicit(&of(vfs)->failed, true, memory_order_relaxed);
}

bool tierce__vfs_device_works(struct tierce__vfs *vfs)
{
    TIERCE_DASSERT(vfs->ops == &device_ops);
    return !atomic_load_explicit(&of(vfs)->failed, memory_order_relaxed);
}
