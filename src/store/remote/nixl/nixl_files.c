/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_files.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

struct nixl_files {
    struct tierce__vfs base;
    struct tierce__vfs *plain; /* whose files are ours */
    struct tierce__nixl_agents *agents;
};

static struct nixl_files *of(struct tierce__vfs *vfs)
{
    return (struct nixl_files *)vfs;
}

static struct tierce__vfs *plain(struct tierce__vfs *vfs)
{
    return of(vfs)->plain;
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* True: it is done. */
static bool by_nixl(struct tierce__vfs *vfs, const struct tierce__nixl_transfer *transfer)
{
    struct tierce__nixl_agents *agents = of(vfs)->agents;
    if (!tierce__nixl_agents_have(agents, transfer->memory, transfer->bytes))
        return false;
    int rc = tierce__nixl_transfer(agents, transfer);
    if (rc != 0)
        tierce__nixl_log_failed(transfer->operation, rc);
    return rc == 0;
}

static int read_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                     size_t length, uint64_t offset)
{
    const struct tierce__nixl_transfer transfer = {.operation = TIERCE__NIXL_READ,
                                                   .fd = tierce__vfs_descriptor(file),
                                                   .memory = data,
                                                   .bytes = length,
                                                   .offset = offset};
    int64_t bytes = plain(vfs)->ops->length(plain(vfs), file);
    if (bytes < 0)
        return (int)bytes;
    if (offset > (uint64_t)bytes || length > (uint64_t)bytes - offset)
        return -ENODATA;
    return by_nixl(vfs, &transfer) ? 0
                                   : plain(vfs)->ops->read(plain(vfs), file, data, length, offset);
}

static int write_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, const void *data,
                      size_t length, uint64_t offset)
{
    const struct tierce__nixl_transfer transfer = {.operation = TIERCE__NIXL_WRITE,
                                                   .fd = tierce__vfs_descriptor(file),
                                                   .memory = (void *)(uintptr_t)data, /* is read */
                                                   .bytes = length,
                                                   .offset = offset};
    return by_nixl(vfs, &transfer) ? 0
                                   : plain(vfs)->ops->write(plain(vfs), file, data, length, offset);
}

/* ---- all else -------------------------------------------------------------------------------- */

static int enter(struct tierce__vfs *vfs, const char *folder)
{
    int rc = plain(vfs)->ops->enter(plain(vfs), folder);
    vfs->folder = plain(vfs)->folder;
    return rc;
}

static void leave(struct tierce__vfs *vfs)
{
    plain(vfs)->ops->leave(plain(vfs));
    vfs->folder = plain(vfs)->folder;
}

static int open_file(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path,
                     unsigned flags)
{
    return plain(vfs)->ops->open(plain(vfs), out, path, flags);
}

static void close_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    plain(vfs)->ops->close(plain(vfs), file);
}

static int sync_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    return plain(vfs)->ops->sync(plain(vfs), file);
}

static int64_t length_of(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    return plain(vfs)->ops->length(plain(vfs), file);
}

static int truncate_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t length)
{
    return plain(vfs)->ops->truncate(plain(vfs), file, length);
}

static int allocate(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t offset,
                    uint64_t length)
{
    return plain(vfs)->ops->allocate(plain(vfs), file, offset, length);
}

static int rename_file(struct tierce__vfs *vfs, const char *from, const char *to)
{
    return plain(vfs)->ops->rename(plain(vfs), from, to);
}

static int unlink_file(struct tierce__vfs *vfs, const char *path)
{
    return plain(vfs)->ops->unlink(plain(vfs), path);
}

static int make_folder(struct tierce__vfs *vfs, const char *path)
{
    return plain(vfs)->ops->make_folder(plain(vfs), path);
}

static int sync_folder(struct tierce__vfs *vfs, const char *path)
{
    return plain(vfs)->ops->sync_folder(plain(vfs), path);
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    plain(vfs)->ops->submit(plain(vfs), io);
}

static unsigned poll_done(struct tierce__vfs *vfs, uint64_t deadline_ns)
{
    return plain(vfs)->ops->poll(plain(vfs), deadline_ns);
}

static void wake(struct tierce__vfs *vfs)
{
    plain(vfs)->ops->wake(plain(vfs));
}

static void use_memory(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes)
{
    plain(vfs)->ops->use_memory(plain(vfs), base, bytes);
}

static void destroy(struct tierce__vfs *vfs)
{
    plain(vfs)->ops->destroy(plain(vfs));
    tierce__nixl_agents_close(of(vfs)->agents);
    tierce__free(vfs);
}

static const struct tierce__vfs_ops files_ops = {
    .name = "nixl",
    .enter = enter,
    .leave = leave,
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
    .poll = poll_done,
    .wake = wake,
    .use_memory = use_memory,
    .destroy = destroy,
};

int tierce__nixl_files_create(struct tierce__vfs **out, struct tierce__nixl_agents *agents)
{
    struct nixl_files *files = tierce__calloc(1, sizeof(*files));
    int rc = files == NULL ? -ENOMEM : tierce__vfs_threads_create(&files->plain, 1);
    if (rc != 0) {
        tierce__free(files);
        tierce__nixl_agents_close(agents);
        return rc;
    }
    files->base = (struct tierce__vfs){.ops = &files_ops, .folder = files->plain->folder};
    files->agents = agents;
    *out = &files->base;
    return 0;
}
