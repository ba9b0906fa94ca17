/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/file_private.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 16 /* levels, and the parts of the longest name */

struct walk {
    tierce__file_visit_fn *visit;
    void *arg;
    char path[TIERCE__FILE_PATH_BYTES];
    size_t begin; /* of what is relative */
};

static bool is_folder(const char *path, const struct dirent *entry)
{
    struct stat st;
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The folder whose path has `used` bytes. */
static int walk_folder(struct walk *walk, size_t used, int depth)
{
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
        else if (depth < DEPTH_MAX)
            rc = walk_folder(walk, used + 1 + bytes, depth + 1);
        if (rc == -ENOENT)
            rc = 0; /* it went meanwhile */
    }
    walk->path[used] = '\0';
    closedir(folder);
    return rc;
}

int tierce__file_walk(const char *folder, tierce__file_visit_fn *visit, void *arg)
{
    struct walk walk = {.visit = visit, .arg = arg};
    size_t used = strlen(folder);
    if (used >= sizeof(walk.path))
        return -ENAMETOOLONG;
    memcpy(walk.path, folder, used + 1);
    walk.begin = used + 1;
    return walk_folder(&walk, used, 0);
}
