/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/file_lock.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 1000000

int tierce__file_lock(const char *path, uint32_t wait_ms)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    uint64_t deadline_ns = tierce__deadline_in_ms(wait_ms);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int rc = errno != EWOULDBLOCK && errno != EINTR ? -errno
                 : tierce__now_ns() > deadline_ns       ? TIERCE_E_LOCKED
                                                        : 0;
        if (rc < 0) {
            (void)close(fd);
            return rc;
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return fd;
}
