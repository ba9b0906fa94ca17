/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_users.h"

#include "base/assert.h"
#include "base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int tierce__node_users_open(struct tierce__node_users *out, const char *path, char why[256])
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        int rc = -errno;
        snprintf(why, 256, "--users: %.160s: %s", path, tierce_strerror(rc));
        return rc;
    }
    *out = (struct tierce__node_users){.fd = fd, .path = path};
    return 0;
}

bool tierce__node_users_have_gone(struct tierce__node_users *users)
{
    if (users->fd < 0 || users->have_gone)
        return users->have_gone;
    TIERCE_ASSERT(users->path != NULL);
    users->have_gone = tierce__file_lock_fd(users->fd, TIERCE__FILE_LOCK_FLOCK, 0) == 0;
    return users->have_gone;
}

/* Another file may have the name by now, if this one was removed by hand. */
static bool is_ours(const struct tierce__node_users *users)
{
    struct stat ours, there;
    TIERCE_ASSERT(users->fd >= 0);
    return fstat(users->fd, &ours) == 0 && lstat(users->path, &there) == 0 &&
           ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

void tierce__node_users_close(struct tierce__node_users *users)
{
    if (users->fd < 0)
        return;
    if (users->have_gone && is_ours(users))
        (void)unlink(users->path);
    (void)close(users->fd);
    *users = TIERCE__NODE_USERS_NONE;
}
