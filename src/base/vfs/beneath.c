/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs/beneath.h"
#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(SYS_openat2) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#define HAS_OPENAT2 1
#else
#define HAS_OPENAT2 0
#endif

#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* ---- paths ----------------------------------------------------------------------------------- */

static bool is_part(const char *part, size_t bytes)
{
    return bytes > 0 && !(bytes <= 2 && memcmp(part, "..", bytes) == 0);
}

bool tierce__beneath_is_path(const char *path)
{
    for (;; path++) {
        size_t bytes = strcspn(path, "/");
        if (!is_part(path, bytes))
            return false;
        path += bytes;
        if (*path == '\0')
            return true;
    }
}

/* The bytes before the last '/'; 0: there is none. */
static size_t folder_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? (size_t)(slash - path) : 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* -ENOSYS: this process cannot use the call. */
static int open_at_once(int root, const char *path, size_t bytes)
{
#if HAS_OPENAT2
    static _Atomic bool is_missing; /* relaxed: a flag alone */
    const struct open_how how = {.flags = FOLDER_FLAGS,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    char folder[PATH_MAX];
    if (bytes >= sizeof(folder))
        return -ENAMETOOLONG;
    if (atomic_load_explicit(&is_missing, memory_order_relaxed))
        return -ENOSYS;
    memcpy(folder, path, bytes);
    folder[bytes] = '\0';
    long fd = syscall(SYS_openat2, root, folder, &how, sizeof(how));
    if (fd >= 0)
        return (int)fd;
    if (errno == ENOSYS || errno == EPERM) { /* filters of sandboxes return either */
        atomic_store_explicit(&is_missing, true, memory_order_relaxed);
        return -ENOSYS;
    }
    return errno == EAGAIN ? -ENOSYS : -errno; /* something was renamed meanwhile */
#else
    (void)root;
    (void)path;
    (void)bytes;
    return -ENOSYS;
#endif
}

static int open_part(int folder, const char *part, size_t bytes)
{
    char name[NAME_MAX + 1];
    TIERCE_DASSERT(is_part(part, bytes));
    if (bytes > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, part, bytes);
    name[bytes] = '\0';
    int fd = openat(folder, name, FOLDER_FLAGS | O_NOFOLLOW);
    return fd >= 0 ? fd : -errno;
}

static int open_by_parts(int root, const char *path, size_t bytes)
{
    int folder = root;
    for (const char *at = path; at < path + bytes;) {
        size_t part = strcspn(at, "/");
        int fd = open_part(folder, at, part);
        if (folder != root)
            close(folder);
        if (fd < 0)
            return fd;
        folder = fd;
        at += part + 1;
    }
    TIERCE_ASSERT(folder != root);
    return folder;
}

static int open_folder(struct tierce__beneath *out, int root, const char *path, bool at_once)
{
    size_t bytes = folder_bytes(path);
    if (strcmp(path, ".") != 0 && !tierce__beneath_is_path(path))
        return -EINVAL;
    int folder = root;
    if (bytes > 0) {
        folder = at_once ? open_at_once(root, path, bytes) : -ENOSYS;
        if (folder == -ENOSYS)
            folder = open_by_parts(root, path, bytes);
        if (folder < 0)
            return folder;
    }
    *out = (struct tierce__beneath){
        .folder = folder, .name = bytes > 0 ? path + bytes + 1 : path, .is_own = bytes > 0};
    TIERCE_DASSERT(strchr(out->name, '/') == NULL && out->name[0] != '\0');
    return 0;
}

int tierce__beneath_open(struct tierce__beneath *out, int root, const char *path)
{
    return open_folder(out, root, path, true);
}

int tierce__beneath_walk(struct tierce__beneath *out, int root, const char *path)
{
    return open_folder(out, root, path, false);
}

void tierce__beneath_close(struct tierce__beneath *beneath)
{
    TIERCE_ASSERT(beneath->name != NULL);
    if (beneath->is_own)
        close(beneath->folder);
    *beneath = (struct tierce__beneath){.folder = -1};
}
