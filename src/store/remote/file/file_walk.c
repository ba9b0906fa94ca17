/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log_repeat.h"
#include "base/assert.h"
#include "store/remote/file/file_private.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 16u /* levels, and the parts of the longest name */

/* ---- links ----------------------------------------------------------------------------------- */

int tierce__file_look(const char *root, const char *path)
{
    TIERCE_DASSERT(strncmp(path, root, strlen(root)) == 0 && path[strlen(root)] == '/');
    char part[TIERCE__FILE_PATH_BYTES];
    TIERCE_ASSERT(strlen(path) < sizeof(part));
    size_t used = strlen(root);
    struct stat st;
    memcpy(part, path, used + 1);
    do {
        size_t bytes = 1 + strcspn(path + used + 1, "/");
        memcpy(part + used, path + used, bytes);
        used += bytes;
        part[used] = '\0';
        if (lstat(part, &st) != 0)
            return -errno;
        if (path[used] == '/' ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode)) {
            tierce__log_repeated(TIERCE_LOG_WARN, "file_not_ours", "path=\"%s\"", part);
            return TIERCE_E_UNSUPPORTED;
        }
    } while (path[used] != '\0');
    return 0;
}

/* ---- walking --------------------------------------------------------------------------------- */

struct file_walk {
    uint32_t levels;
    tierce__file_visit_fn *visit;
    void *arg;
    char path[TIERCE__FILE_PATH_BYTES];
    size_t begin; /* of the relative path */
};

static bool is_folder(const char *path, const struct dirent *entry)
{
    struct stat st;
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Whether a store makes folders of that name: of the fan-out, or of a long name's beginning. */
static bool may_be_ours(const struct file_walk *walk, const char *name, size_t bytes,
                        uint32_t depth)
{
    TIERCE_DASSERT(bytes > 0);
    if (depth < walk->levels)
        return bytes == 2 && strspn(name, "0123456789abcdef") == 2;
    return name[bytes - 1] == '~';
}

/* The folder whose path has `used` bytes. */
static int walk_folder(struct file_walk *walk, size_t used, uint32_t depth)
{
    TIERCE_DASSERT(walk->path[used] == '\0' && walk->begin <= used + 1);
    TIERCE_DASSERT(used < sizeof(walk->path) && depth <= DEPTH_MAX);
    DIR *folder = opendir(walk->path);
    if (folder == NULL)
        return -errno;
    int rc = 0;
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            rc = -errno;
            break;
        }
        size_t bytes = strlen(entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            used + 1 + bytes >= sizeof(walk->path))
            continue;
        walk->path[used] = '/';
        memcpy(walk->path + used + 1, entry->d_name, bytes + 1);
        if (!is_folder(walk->path, entry))
            rc = walk->visit(walk->arg, walk->path, walk->path + walk->begin);
        else if (depth < DEPTH_MAX && may_be_ours(walk, entry->d_name, bytes, depth))
            rc = walk_folder(walk, used + 1 + bytes, depth + 1);
        if (rc == -ENOENT)
            rc = 0; /* it went meanwhile */
    }
    walk->path[used] = '\0';
    closedir(folder);
    return rc;
}

int tierce__file_walk(const char *folder, uint32_t levels, tierce__file_visit_fn *visit, void *arg)
{
    TIERCE_DASSERT(levels <= TIERCE__FILE_LEVELS_MAX);
    struct file_walk walk = {.levels = levels, .visit = visit, .arg = arg};
    size_t used = strlen(folder);
    if (used >= sizeof(walk.path))
        return -ENAMETOOLONG;
    memcpy(walk.path, folder, used + 1);
    walk.begin = used + 1;
    return walk_folder(&walk, used, 0);
}
