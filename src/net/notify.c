/* SPDX-License-Identifier: Apache-2.0 */
#include "net/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool tierce__notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = path != NULL ? strlen(path) : 0;
    if (bytes < 2 || bytes >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
        return false;
    memcpy(address.sun_path, path, bytes);
    if (path[0] == '@') /* of the abstract namespace */
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT,
                       (const struct sockaddr *)&address, length);
    close(fd);
    return n == (ssize_t)strlen(state);
}

uint64_t tierce__notify_watchdog_ms(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    char *end;
    if (us == NULL || us[0] == '\0' ||
        (pid != NULL && strtoll(pid, NULL, 10) != (long long)getpid()))
        return 0;
    unsigned long long value = strtoull(us, &end, 10);
    return *end == '\0' && us[0] != '-' ? value / 2000 : 0;
}
