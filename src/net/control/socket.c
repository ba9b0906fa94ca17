/* SPDX-License-Identifier: Apache-2.0 */
#include "net/control/socket.h"
#include "base/assert.h"
#include "net/stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 256 /* a non-blocking connect to a full queue fails */

/* NULL: not set, or not usable. */
static const char *runtime_folder(void)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    return runtime != NULL && runtime[0] == '/' ? runtime : NULL;
}

int tierce__control_folder(char path[TIERCE__CONTROL_PATH_BYTES])
{
    const char *runtime = runtime_folder();
    int n = runtime != NULL ? snprintf(path, TIERCE__CONTROL_PATH_BYTES, "%s/tierce", runtime)
                            : snprintf(path, TIERCE__CONTROL_PATH_BYTES, "/tmp/tierce-%lu",
                                       (unsigned long)geteuid());
    return n < (int)TIERCE__CONTROL_PATH_BYTES ? 0 : TIERCE_E_ARGUMENT;
}

void tierce__control_folder_other(char path[TIERCE__CONTROL_PATH_BYTES])
{
    const char *format = runtime_folder() != NULL ? "/tmp/tierce-%lu" : "/run/user/%lu/tierce";
    int n = snprintf(path, TIERCE__CONTROL_PATH_BYTES, format, (unsigned long)geteuid());
    TIERCE_ASSERT(n < (int)TIERCE__CONTROL_PATH_BYTES);
}

int tierce__control_folder_is_ours(const char *path, char why[256])
{
    struct stat info;
    if (lstat(path, &info) < 0) {
        int rc = -errno;
        snprintf(why, 256, "%.160s: %s", path, tierce_strerror(rc));
        return rc;
    }
    if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0)
        return 0;
    snprintf(why, 256, "%.160s is not a folder with access for this user only (mode 0700)", path);
    return -EACCES;
}

static int make_folder(const char *path, char why[256])
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        int rc = -errno;
        snprintf(why, 256, "cannot create the folder %.160s: %s", path, tierce_strerror(rc));
        return rc;
    }
    return tierce__control_folder_is_ours(path, why);
}

/* Returns whether the socket is stale: its process ended without removing it, so it rejects
 * connections. */
static bool is_stale(const char *path)
{
    struct stat info;
    int fd = -1;
    if (lstat(path, &info) < 0 || !S_ISSOCK(info.st_mode))
        return false;
    int rc = tierce__stream_connect_unix(&fd, path);
    if (rc == 0)
        close(fd);
    return rc == -ECONNREFUSED;
}

/* Whether auto_path creates such a name, and either its process has ended or its socket is old
 * enough that its owner must have called listen. */
static bool is_left_over(int folder, const char *name)
{
    enum { YOUNG_S = 10 }; /* more than the time between bind and listen */
    struct stat info;
    struct timespec now;
    long pid;
    unsigned number;
    int end = 0;
    if (sscanf(name, "%ld-%u.sock%n", &pid, &number, &end) != 2 || end == 0 || name[end] != '\0')
        return false;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISSOCK(info.st_mode) ||
        info.st_uid != geteuid() || clock_gettime(CLOCK_REALTIME, &now) < 0)
        return false;
    bool ended = pid > 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
    return ended || info.st_mtim.tv_sec + YOUNG_S < now.tv_sec;
}

/* Removes the sockets of killed processes. */
static void remove_stale(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = folder >= 0 ? fdopendir(folder) : NULL;
    if (dir == NULL) {
        if (folder >= 0)
            close(folder);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char name[TIERCE__CONTROL_PATH_BYTES];
        int n = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        if (n < (int)sizeof(name) && is_left_over(folder, entry->d_name) && is_stale(name))
            (void)unlinkat(folder, entry->d_name, 0);
    }
    (void)closedir(dir);
}

int tierce__control_auto_path(char path[TIERCE__CONTROL_PATH_BYTES], char why[256])
{
    static _Atomic unsigned made; /* a process may have several engines */
    char folder[TIERCE__CONTROL_PATH_BYTES];
    int rc = tierce__control_folder(folder);
    if (rc == 0)
        rc = make_folder(folder, why);
    if (rc < 0)
        return rc;
    remove_stale(folder);
    int n = snprintf(path, TIERCE__CONTROL_PATH_BYTES, "%s/%ld-%u.sock", folder, (long)getpid(),
                     atomic_fetch_add(&made, 1));
    return n < (int)TIERCE__CONTROL_PATH_BYTES ? 0 : TIERCE_E_ARGUMENT;
}

static int bind_socket(int fd, const struct sockaddr_un *address)
{
    /* Before bind, so that the file never has another mode. */
    if (fchmod(fd, 0600) < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
        return 0;
    if (errno != EADDRINUSE || !is_stale(address->sun_path))
        return -errno;
    if (unlink(address->sun_path) < 0)
        return -errno;
    return bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : -errno;
}

int tierce__control_listen(int *fd, const char *path, char why[256])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        snprintf(why, 256, "a socket's path has at most %zu bytes; %.120s... is longer",
                 sizeof(address.sun_path) - 1, path);
        return TIERCE_E_ARGUMENT;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = s < 0 ? -errno : bind_socket(s, &address);
    if (rc == 0 && listen(s, BACKLOG) < 0) {
        rc = -errno;
        unlink(path);
    }
    if (rc == 0) {
        *fd = s;
        return 0;
    }
    bool is_used = rc == -EADDRINUSE;
    snprintf(why, 256, "cannot listen on %.108s: %s%s", path,
             is_used ? "another process listens there, or it is not a socket" : tierce_strerror(rc),
             is_used         ? "; set another path"
             : rc == -ENOENT ? "; create its folder"
             : rc == -EACCES || rc == -EPERM || rc == -EROFS
                 ? "; this user must be able to create files in its folder"
                 : "");
    if (s >= 0)
        close(s);
    return rc;
}

bool tierce__control_peer(int fd, struct ucred *out)
{
    socklen_t bytes = sizeof(*out);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &bytes) == 0;
}

bool tierce__control_peer_is_ours(int fd)
{
    struct ucred peer;
    return tierce__control_peer(fd, &peer) && (peer.uid == geteuid() || peer.uid == 0);
}
