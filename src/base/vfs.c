/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/vfs_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether this is a regular file, whose transfers wait from now on. */
static bool is_file(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
}

int tierce__files_open(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path,
                       unsigned flags)
{
    (void)vfs;
    struct tierce__vfs_file *file = tierce__alloc(sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    int mode = (flags & TIERCE__VFS_READONLY) != 0 ? O_RDONLY : O_RDWR;
    mode |= O_CLOEXEC | O_NONBLOCK; /* to open a pipe in a file's place must not wait */
    if ((flags & TIERCE__VFS_CREATE) != 0)
        mode |= O_CREAT;
    if ((flags & TIERCE__VFS_TRUNCATE) != 0)
        mode |= O_TRUNC;
    file->direct = (flags & TIERCE__VFS_DIRECT) != 0;
    file->fd = open(path, file->direct ? mode | O_DIRECT : mode, 0600);
    if (file->fd < 0 && errno == EINVAL && file->direct) {
        file->direct = false;
        file->fd = open(path, mode, 0600);
    }
    if (file->fd < 0) {
        int rc = -errno;
        tierce__free(file);
        return rc;
    }
    if (!is_file(file->fd)) {
        tierce__log(TIERCE_LOG_ERROR, "not_a_file", "path=\"%s\"", path);
        tierce__files_close(vfs, file);
        return -EINVAL;
    }
    *out = file;
    return 0;
}

void tierce__files_close(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    (void)vfs;
    if (file == NULL)
        return;
    close(file->fd);
    tierce__free(file);
}

int tierce__files_read(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                       size_t length, uint64_t offset)
{
    (void)vfs;
    uint8_t *at = data;
    while (length > 0) {
        ssize_t n = pread(file->fd, at, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        at += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
    }
    return 0;
}

int tierce__files_write(struct tierce__vfs *vfs, struct tierce__vfs_file *file, const void *data,
                        size_t length, uint64_t offset)
{
    (void)vfs;
    const uint8_t *at = data;
    while (length > 0) {
        ssize_t n = pwrite(file->fd, at, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        at += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
    }
    return 0;
}

int tierce__files_sync(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    (void)vfs;
    return fdatasync(file->fd) == 0 ? 0 : -errno;
}

int64_t tierce__files_length(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    (void)vfs;
    struct stat st;
    return fstat(file->fd, &st) == 0 ? (int64_t)st.st_size : -errno;
}

int tierce__files_truncate(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t length)
{
    (void)vfs;
    return ftruncate(file->fd, (off_t)length) == 0 ? 0 : -errno;
}

int tierce__files_allocate(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t offset,
                           uint64_t length)
{
    (void)vfs;
    int rc;
    do
        rc = fallocate(file->fd, 0, (off_t)offset, (off_t)length);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : -errno;
}

int tierce__files_rename(struct tierce__vfs *vfs, const char *from, const char *to)
{
    (void)vfs;
    return rename(from, to) == 0 ? 0 : -errno;
}

int tierce__files_unlink(struct tierce__vfs *vfs, const char *path)
{
    (void)vfs;
    return unlink(path) == 0 ? 0 : -errno;
}

int tierce__files_make_folder(struct tierce__vfs *vfs, const char *path)
{
    (void)vfs;
    if (mkdir(path, 0700) == 0)
        return 0;
    int rc = -errno;
    struct stat st;
    if (rc == -EEXIST && stat(path, &st) == 0)
        rc = S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
    return rc;
}

int tierce__files_sync_folder(struct tierce__vfs *vfs, const char *path)
{
    (void)vfs;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

int tierce__vfs_create(struct tierce__vfs **out, unsigned depth)
{
    int rc = tierce__vfs_uring_create(out, depth);
    if (rc != TIERCE_E_UNSUPPORTED)
        return rc;
    tierce__log(TIERCE_LOG_INFO, "io_uring_refused", "using=threads");
    return tierce__vfs_threads_create(out, depth < 4 ? depth : 4);
}
