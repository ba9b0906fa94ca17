/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_lock.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/*
 * A child by fork has a copy of each lock's descriptor, with which the folder would stay locked as
 * long as the child lives. It closes them before it does anything else; for that, no fork may fall
 * between the opening of one and its entry in the list.
 */
static struct tierce__lock held_lock; /* FOLDERS */
static struct tierce__list held;
static pthread_once_t held_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    tierce__lock_take(&held_lock);
}

static void after_fork(void)
{
    tierce__lock_drop(&held_lock);
}

static void enter_child(void)
{
    TIERCE__LIST_FOR_EACH (it, &held)
        close(TIERCE__CONTAINER_OF(it, struct tierce__disk, held_node)->lock_fd);
    tierce__list_init(&held);
    tierce__lock_drop(&held_lock);
}

static void init_held(void)
{
    tierce__lock_init(&held_lock, TIERCE__LOCK_FOLDERS);
    tierce__list_init(&held);
    (void)pthread_atfork(before_fork, after_fork, enter_child); /* fails for lack of memory */
}

static int open_lock(struct tierce__disk *d)
{
    pthread_once(&held_once, init_held);
    tierce__lock_take(&held_lock);
    d->lock_fd = openat(d->vfs->folder, TIERCE__DISK_LOCK,
                        O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    int rc = d->lock_fd >= 0 ? 0 : -errno;
    if (rc == 0)
        tierce__list_push_back(&held, &d->held_node);
    tierce__lock_drop(&held_lock);
    return rc;
}

void tierce__disk_unlock(struct tierce__disk *d)
{
    if (d->lock_fd < 0)
        return;
    tierce__lock_take(&held_lock);
    tierce__list_remove(&d->held_node);
    close(d->lock_fd);
    tierce__lock_drop(&held_lock);
}

int tierce__disk_lock(struct tierce__disk *d, uint32_t wait_ms)
{
    int rc = open_lock(d);
    return rc == 0 ? tierce__file_lock_fd(d->lock_fd, TIERCE__FILE_LOCK_RECORD, wait_ms) : rc;
}
