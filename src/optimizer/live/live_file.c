/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing file. At its end the path is checked again: a new file, as after a rotation, is read
 * from its beginning after the old one is finished; a truncated file is read from its beginning.
 * The file is polled several times a second, which works on every file system.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/live/live_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct live_file {
    struct tierce__live_source base;
    char *path;
    int fd;
    uint64_t position;
    bool in_line;  /* the data returned so far does not end with a line end */
    bool replaced; /* another file is at the path, and this one is read to its end */
};

static struct live_file *file_of(struct tierce__live_source *source)
{
    TIERCE_DASSERT(source->ops == &tierce__live_file_ops);
    return (struct live_file *)(void *)source;
}

static int open_path(const char *path)
{
    /* read waits for a pipe without a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        close(fd);
        return -EISDIR;
    }
    return fd;
}

static void file_close(struct tierce__live_source *source)
{
    struct live_file *f = file_of(source);
    close(f->fd);
    tierce__free(f->path);
    tierce__free(f);
}

static int file_open(struct tierce__live_source **out, const char *url,
                     char why[TIERCE__TRACE_WHY_BYTES])
{
    struct live_file *f = tierce__calloc(1, sizeof(*f));
    char *path = tierce__strdup(url);
    int fd = f != NULL && path != NULL ? open_path(path) : -ENOMEM;
    if (fd < 0) {
        bool may_be_host = fd == -ENOENT && strchr(url, ':') != NULL;
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "cannot be opened: %s%s", tierce_strerror(fd),
                 may_be_host ? "; other sources begin with tcp:// (vLLM's KV events) or http://"
                             : "");
        tierce__free(path);
        tierce__free(f);
        return fd;
    }
    f->fd = fd;
    f->path = path;
    *out = &f->base;
    return 0;
}

static bool is_elsewhere(const struct live_file *f)
{
    struct stat here, there;
    return fstat(f->fd, &here) == 0 && stat(f->path, &there) == 0 &&
           (here.st_dev != there.st_dev || here.st_ino != there.st_ino);
}

static bool is_cut(const struct live_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < f->position;
}

/* Continues at the beginning of the file that is now at the path. */
static bool begin_anew(struct live_file *f)
{
    if (f->replaced) {
        int fd = open_path(f->path);
        if (fd < 0)
            return false; /* the file is missing: it may come back */
        close(f->fd);
        f->fd = fd;
    } else if (lseek(f->fd, 0, SEEK_SET) != 0) {
        return false;
    }
    f->replaced = false;
    f->position = 0;
    f->base.counts.restarts++;
    return true;
}

static ssize_t file_read(struct tierce__live_source *source, void *out, size_t size,
                         char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_DASSERT(size > 0);
    struct live_file *f = file_of(source);
    ssize_t n = read(f->fd, out, size);
    if (n > 0) {
        f->position += (uint64_t)n;
        f->in_line = ((const char *)out)[n - 1] != '\n';
        return n;
    }
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
        int error = errno;
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "cannot be read: %s", strerror(error));
        return -error;
    }
    if (!f->replaced && is_elsewhere(f)) {
        f->replaced = true; /* the rest of the moved file comes first */
    } else if ((f->replaced || is_cut(f)) && begin_anew(f) && f->in_line) {
        f->in_line = false;
        *(char *)out = '\n';
        return 1;
    } else {
        (void)poll(NULL, 0, TIERCE__LIVE_WAIT_MS);
    }
    return -EAGAIN;
}

const struct tierce__live_ops tierce__live_file_ops = {
    .open = file_open,
    .read = file_read,
    .close = file_close,
};
