/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/file_lock.h"
#include "base/log/log.h"
#include "store/disk/disk_private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
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

/* Opens the file, or makes it. */
static int open_lock(struct tierce__disk *d)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    bool is_there;
    TIERCE_DASSERT(d->lock_fd < 0);
    pthread_once(&held_once, init_held);
    tierce__lock_take(&held_lock);
    do { /* again if another store removes it between the two calls */
        d->lock_fd =
            openat(d->vfs->folder, TIERCE__DISK_LOCK, flags | O_CREAT | O_EXCL, (mode_t)0600);
        d->lock_is_new = d->lock_fd >= 0;
        is_there = d->lock_fd < 0 && errno == EEXIST;
        if (is_there)
            d->lock_fd = openat(d->vfs->folder, TIERCE__DISK_LOCK, flags);
    } while (is_there && d->lock_fd < 0 && errno == ENOENT);
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
    TIERCE_DASSERT(!tierce__list_empty(&d->held_node) && !tierce__list_empty(&held));
    tierce__list_remove(&d->held_node);
    close(d->lock_fd);
    tierce__lock_drop(&held_lock);
    d->lock_fd = -1;
}

void tierce__disk_remove_lock(struct tierce__disk *d)
{
    if (!d->lock_is_new)
        return;
    TIERCE_ASSERT(d->lock_fd >= 0); /* held: nobody else can believe that he holds the folder */
    TIERCE_DASSERT(d->vfs->folder >= 0);
    (void)unlinkat(d->vfs->folder, TIERCE__DISK_LOCK, 0);
    d->lock_is_new = false;
}

/* Whether another store has removed the file while this one waited for it. Its lock then excludes
 * nobody. */
static bool is_removed(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd >= 0);
    struct stat st;
    return fstat(d->lock_fd, &st) == 0 && st.st_nlink == 0;
}

static uint32_t ms_until(uint64_t deadline_ns)
{
    uint64_t now_ns = tierce__now_ns();
    return deadline_ns > now_ns ? (uint32_t)((deadline_ns - now_ns) / TIERCE__MS_NS) : 0;
}

int tierce__disk_lock(struct tierce__disk *d, uint32_t wait_ms)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(wait_ms);
    bool has_said = wait_ms == 0;
    for (;;) {
        int rc = open_lock(d);
        if (rc == 0)
            rc = tierce__file_lock_fd(d->lock_fd, TIERCE__FILE_LOCK_RECORD,
                                      has_said ? ms_until(deadline_ns) : 0);
        if (rc == TIERCE_E_LOCKED && !has_said) { /* the operator sees what is waited for */
            tierce__log(TIERCE_LOG_WARN, "disk_folder_in_use",
                        "folder=\"%s\" effect=\"waits up to %u ms for the process that uses it\"",
                        d->folder, wait_ms);
            has_said = true;
            rc = tierce__file_lock_fd(d->lock_fd, TIERCE__FILE_LOCK_RECORD, ms_until(deadline_ns));
        }
        if (rc < 0)
            d->lock_is_new = false; /* another store holds it */
        if (rc < 0 || !is_removed(d))
            return rc;
        tierce__disk_unlock(d);
    }
}
