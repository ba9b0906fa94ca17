/* SPDX-License-Identifier: Apache-2.0 */
#include "net/host_id.h"

#include "base/assert.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void tierce__host_id(char out[TIERCE__HOST_ID_BYTES])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, TIERCE__HOST_ID_BYTES - 1) : 0;
    if (fd >= 0)
        (void)close(fd);
    out[got > 0 ? got : 0] = '\0';
    out[strcspn(out, " \n")] = '\0';
    TIERCE_ASSERT(strlen(out) < TIERCE__HOST_ID_BYTES);
}
