/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
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
    return (ssize_t)used;
}

/* The size of an open regular file, or a negative errno. */
static int64_t regular_size(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    return S_ISREG(st.st_mode) ? st.st_size : -EINVAL;
}

int tierce__read_file(char **out, size_t *length, const char *path, size_t bytes_max)
{
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int64_t size = regular_size(fd);
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
    close(fd);
    return rc;
}

char *tierce__join_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = tierce__alloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}
