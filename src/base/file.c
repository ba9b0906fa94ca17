/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fills buf[0 .. size) as far as the file goes; returns the bytes read or a negative errno. */
static ssize_t read_up_to(int fd, char *buf, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t n = read(fd, buf + used, size - used);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        used += (size_t)n;
    }
    TIERCE_DASSERT(used <= size);
    return (ssize_t)used;
}

/* The size of an open regular file, or a negative errno. */
static int64_t regular_size(int fd, struct stat *st)
{
    if (fstat(fd, st) != 0)
        return -errno;
    if (S_ISDIR(st->st_mode))
        return -EISDIR;
    return S_ISREG(st->st_mode) ? st->st_size : -EINVAL;
}

static int read_open(int fd, char **out, size_t *length, struct stat *st, size_t bytes_max)
{
    char *text = NULL;
    int64_t size = regular_size(fd, st);
    int rc = size < 0 ? (int)size : (uint64_t)size > bytes_max ? -EFBIG : 0;
    if (rc == 0) {
        text = tierce__alloc((size_t)size + 1);
        rc = text != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        ssize_t n = read_up_to(fd, text, (size_t)size);
        if (n < 0) {
            rc = (int)n;
        } else {
            text[n] = '\0';
            *out = text;
            *length = (size_t)n;
            text = NULL;
        }
    }
    tierce__free(text);
    return rc;
}

int tierce__read_file(char **out, size_t *length, const char *path, size_t bytes_max)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int rc = read_open(fd, out, length, &st, bytes_max);
    close(fd);
    return rc;
}

int tierce__read_secret_file(char **out, size_t *length, struct timespec *modified,
                             const char *path, size_t bytes_max, char *why, size_t why_room)
{
    struct stat st = {0};
    char *text = NULL;
    size_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = fd < 0 ? -errno : read_open(fd, &text, &bytes, &st, bytes_max);
    if (fd >= 0)
        close(fd);
    if (rc < 0) {
        snprintf(why, why_room, "%.150s cannot be read: %s", path, tierce_strerror(rc));
        return rc;
    }
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0) { /* the mode of the file that was read */
        snprintf(why, why_room, "other users can read or change %.150s; chmod 600 it", path);
        explicit_bzero(text, bytes);
        tierce__free(text);
        return TIERCE_E_CONFIG;
    }
    *out = text;
    *length = bytes;
    if (modified != NULL)
        *modified = st.st_mtim;
    return 0;
}

char *tierce__join_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = tierce__alloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* ---- a file that takes its place when it is whole -------------------------------------------- */

/* Whether another file can replace the existing one. */
static bool is_replaceable(const char *path)
{
    struct stat st, out;
    if (lstat(path, &st) != 0)
        return true;
    if (S_ISLNK(st.st_mode) && stat(path, &st) != 0)
        return false; /* a link to nothing: its target is made */
    bool is_output =
        fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == st.st_dev && out.st_ino == st.st_ino;
    return S_ISREG(st.st_mode) && !is_output;
}

/* A file with a new name in the folder of `path`, with the permissions of the existing file. */
static int open_beside(char **out, const char *path, mode_t mode)
{
    enum { TRIES = 1000, NAME_BYTES = 48 };
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    size_t size = (size_t)folder + NAME_BYTES;
    char *name = tierce__alloc(size);
    struct stat st;
    if (name == NULL)
        return -ENOMEM;
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0 && (i == 0 || errno == EEXIST); i++) {
        snprintf(name, size, "%.*s.tierce-%ld-%d", folder, path, (long)getpid(), i);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (fd >= 0 && stat(path, &st) == 0 && fchmod(fd, st.st_mode & 07777) != 0) {
        close(fd);
        (void)unlink(name);
        fd = -1;
    }
    if (fd < 0) {
        int rc = -errno;
        tierce__free(name);
        return rc;
    }
    *out = name;
    return fd;
}

/* Opens the file beside new_file->path, which is NULL if there was no memory, and which it frees if
 * it fails. */
static int open_stream(struct tierce__new_file *out, struct tierce__new_file *new_file, mode_t mode)
{
    if (new_file->path == NULL)
        return -ENOMEM;
    int fd = open_beside(&new_file->beside, new_file->path, mode);
    new_file->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (new_file->file == NULL) {
        int rc = fd < 0 ? fd : -errno;
        if (fd >= 0) {
            close(fd);
            (void)unlink(new_file->beside);
        }
        tierce__free(new_file->beside);
        tierce__free(new_file->path);
        return rc;
    }
    *out = *new_file;
    return 0;
}

int tierce__new_file_open(struct tierce__new_file *out, const char *path)
{
    struct tierce__new_file new_file = {0};
    char target[PATH_MAX];
    if (!is_replaceable(path)) {
        new_file.file = fopen(path, "we");
        if (new_file.file == NULL)
            return -errno;
        *out = new_file;
        return 0;
    }
    new_file.path = tierce__strdup(realpath(path, target) != NULL ? target : path);
    return open_stream(out, &new_file, 0666);
}

int tierce__new_file_open_first(struct tierce__new_file *out, const char *path)
{
    struct tierce__new_file new_file = {.is_first = true};
    struct stat st;
    if (lstat(path, &st) == 0)
        return -EEXIST;
    new_file.path = tierce__strdup(path);
    return open_stream(out, &new_file, 0600);
}

int tierce__write_whole(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* An earlier write failed, and its errno is lost: another write may return it again. */
static int why_failed(const struct tierce__new_file *file)
{
    bool again = file->beside != NULL && write(fileno(file->file), "\n", 1) < 0;
    return again ? -errno : -EIO;
}

/* Makes a name durable. A folder that may be written and not read cannot be synchronized. */
static int sync_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    size_t bytes = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (bytes >= sizeof(folder))
        return -ENAMETOOLONG;
    if (bytes > 0) {
        memcpy(folder, path, bytes);
        folder[bytes] = '\0';
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : -errno;
    int rc = fsync(fd) == 0 || errno == EINVAL ? 0 : -errno;
    close(fd);
    return rc;
}

/* Of a file that must not replace another one. File systems lack one of both calls: NFS the rename,
 * FAT the link. */
static int take_free_name(const struct tierce__new_file *file)
{
    int rc = renameat2(AT_FDCWD, file->beside, AT_FDCWD, file->path, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS))
        rc = link(file->beside, file->path);
    return rc == 0 ? 0 : -errno;
}

static int take_name(const struct tierce__new_file *file)
{
    if (file->is_first)
        return take_free_name(file);
    return rename(file->beside, file->path) == 0 ? 0 : -errno;
}

int tierce__new_file_close(struct tierce__new_file *file, bool is_good)
{
    if (file->file == NULL)
        return 0;
    int rc = ferror(file->file) != 0 ? why_failed(file) : 0;
    if (rc == 0 && fflush(file->file) != 0)
        rc = -errno;
    if (rc == 0 && is_good && file->beside != NULL && fsync(fileno(file->file)) != 0 &&
        errno != EINVAL) /* a file system that has no such thing */
        rc = -errno;
    if (fclose(file->file) != 0 && rc == 0)
        rc = -errno;
    if (file->beside != NULL) {
        bool is_named = rc == 0 && is_good;
        if (is_named)
            rc = take_name(file);
        is_named = is_named && rc == 0;
        if (!is_named || file->is_first)
            (void)unlink(file->beside);
        if (is_named)
            rc = sync_folder_of(file->path);
        if (is_named && rc < 0 && file->is_first)
            (void)unlink(file->path); /* or another try would find its name taken */
    }
    tierce__free(file->beside);
    tierce__free(file->path);
    *file = (struct tierce__new_file){0};
    return rc;
}
