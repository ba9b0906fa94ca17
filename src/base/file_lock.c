/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_lock.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

int tierce__file_lock_fd(int fd, enum tierce__file_lock_kind kind, uint32_t wait_ms)
{
    enum { PAUSE_NS = 1000000, PAUSE_NS_MAX = 50000000 };
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    uint64_t deadline_ns = tierce__deadline_in_ms(wait_ms);
    TIERCE_DASSERT(fd >= 0);
    for (long pause_ns = PAUSE_NS;; pause_ns *= pause_ns < PAUSE_NS_MAX ? 2 : 1) {
        int rc = kind == TIERCE__FILE_LOCK_RECORD ? fcntl(fd, F_OFD_SETLK, &record)
                                                  : flock(fd, LOCK_EX | LOCK_NB);
        if (rc == 0)
            return 0;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return -errno;
        if (tierce__now_ns() >= deadline_ns)
            return TIERCE_E_LOCKED;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
}

int tierce__file_lock(const char *path, uint32_t wait_ms)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int rc = tierce__file_lock_fd(fd, TIERCE__FILE_LOCK_FLOCK, wait_ms);
    if (rc == 0)
        return fd;
    (void)close(fd);
    return rc;
}
