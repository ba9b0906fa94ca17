/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs/vfs.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/log/log_repeat.h"
#include "base/vfs/beneath.h"
#include "base/vfs/vfs_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

/* ---- names ----------------------------------------------------------------------------------- */

int tierce__files_enter(struct tierce__vfs *vfs, const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    tierce__files_leave(vfs);
    vfs->folder = fd;
    return 0;
}

void tierce__files_leave(struct tierce__vfs *vfs)
{
    if (vfs->folder != AT_FDCWD)
        close(vfs->folder);
    vfs->folder = AT_FDCWD;
}

/* The folder that a path ends in, and the last name. */
struct vfs_place {
    struct tierce__beneath in; /* close_place */
    int no_follow;             /* O_NOFOLLOW, or 0 */
};

static int open_place(struct vfs_place *out, const struct tierce__vfs *vfs, const char *path)
{
    bool is_below = vfs->folder != AT_FDCWD;
    *out = (struct vfs_place){.in = {.folder = AT_FDCWD, .name = path},
                              .no_follow = is_below ? O_NOFOLLOW : 0};
    return is_below ? tierce__beneath_open(&out->in, vfs->folder, path) : 0;
}

static void close_place(struct vfs_place *place)
{
    tierce__beneath_close(&place->in);
}

/* ---- files ----------------------------------------------------------------------------------- */

static int mode_of(unsigned flags)
{
    int mode = (flags & TIERCE__VFS_READONLY) != 0 ? O_RDONLY : O_RDWR;
    mode |= O_CLOEXEC | O_NONBLOCK; /* to open a pipe in a file's place must not wait */
    if ((flags & TIERCE__VFS_CREATE) != 0)
        mode |= O_CREAT;
    if ((flags & TIERCE__VFS_EXCLUSIVE) != 0)
        mode |= O_EXCL;
    if ((flags & TIERCE__VFS_TRUNCATE) != 0)
        mode |= O_TRUNC;
    return mode;
}

/* Opens with O_DIRECT if *direct; clears it where the file system has no such thing. */
static int open_at(const struct vfs_place *at, int mode, bool *direct)
{
    mode |= at->no_follow;
    int fd = openat(at->in.folder, at->in.name, *direct ? mode | O_DIRECT : mode, 0600);
    if (fd < 0 && errno == EINVAL && *direct) {
        *direct = false;
        fd = openat(at->in.folder, at->in.name, mode & ~O_EXCL, 0600);
    }
    return fd < 0 ? -errno : fd;
}

int tierce__files_open(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path,
                       unsigned flags)
{
    struct vfs_place at;
    struct tierce__vfs_file *file = tierce__alloc(sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    file->direct = (flags & TIERCE__VFS_DIRECT) != 0;
    int rc = open_place(&at, vfs, path);
    if (rc == 0) {
        file->fd = rc = open_at(&at, mode_of(flags), &file->direct);
        close_place(&at);
    }
    if (rc < 0) {
        tierce__free(file);
        return rc;
    }
    if (!is_file(file->fd)) {
        tierce__log_repeated(TIERCE_LOG_ERROR, "not_a_file", "path=\"%s\"", path);
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
    TIERCE_DASSERT(length <= INT64_MAX && offset <= (uint64_t)INT64_MAX - length);
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
    TIERCE_DASSERT(length <= INT64_MAX && offset <= (uint64_t)INT64_MAX - length);
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
    TIERCE_DASSERT(length <= INT64_MAX);
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
    struct vfs_place a, b;
    int rc = open_place(&a, vfs, from);
    if (rc < 0)
        return rc;
    rc = open_place(&b, vfs, to);
    if (rc == 0) {
        rc = renameat(a.in.folder, a.in.name, b.in.folder, b.in.name) == 0 ? 0 : -errno;
        close_place(&b);
    }
    close_place(&a);
    return rc;
}

int tierce__files_unlink(struct tierce__vfs *vfs, const char *path)
{
    struct vfs_place at;
    int rc = open_place(&at, vfs, path);
    if (rc < 0)
        return rc;
    rc = unlinkat(at.in.folder, at.in.name, 0) == 0 ? 0 : -errno;
    close_place(&at);
    return rc;
}

int tierce__files_make_folder(struct tierce__vfs *vfs, const char *path)
{
    struct vfs_place at;
    int rc = open_place(&at, vfs, path);
    if (rc < 0)
        return rc;
    rc = mkdirat(at.in.folder, at.in.name, 0700) == 0 ? 0 : -errno;
    struct stat st;
    if (rc == -EEXIST &&
        fstatat(at.in.folder, at.in.name, &st, at.no_follow != 0 ? AT_SYMLINK_NOFOLLOW : 0) == 0)
        rc = S_ISDIR(st.st_mode) ? 0 : S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
    close_place(&at);
    return rc;
}

int tierce__files_sync_folder(struct tierce__vfs *vfs, const char *path)
{
    struct vfs_place at;
    int rc = open_place(&at, vfs, path);
    if (rc < 0)
        return rc;
    int fd = openat(at.in.folder, at.in.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | at.no_follow);
    rc = fd < 0 ? -errno : 0;
    if (rc == 0) {
        rc = fsync(fd) == 0 ? 0 : -errno;
        close(fd);
    }
    close_place(&at);
    return rc;
}

int tierce__vfs_descriptor(const struct tierce__vfs_file *file)
{
    return file->fd;
}

int tierce__vfs_create(struct tierce__vfs **out, unsigned depth)
{
    int rc = tierce__vfs_uring_create(out, depth);
    if (rc != TIERCE_E_UNSUPPORTED)
        return rc;
    tierce__log(TIERCE_LOG_INFO, "io_uring_refused", "using=threads");
    return tierce__vfs_threads_create(out, depth < 4 ? depth : 4);
}
