/* SPDX-License-Identifier: Apache-2.0 */
#include "base/trusted_path.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool others_may_write(const struct stat *st)
{
    bool is_ours = st->st_uid == 0 || st->st_uid == geteuid();
    bool is_sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0;
    return !is_ours || ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_sticky);
}

/* The reason why a resolved path is not trusted: another user could replace the file. NULL if it is
 * trusted. */
static const char *distrust(char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return tierce_strerror(-errno);
    if (!S_ISREG(st.st_mode))
        return "is not a regular file";
    if (others_may_write(&st))
        return "belongs to another user, or is writable for others";
    for (char *end = strrchr(path, '/'); end != NULL; end = strrchr(path, '/')) {
        *end = '\0';
        if (stat(end == path ? "/" : path, &st) != 0)
            return tierce_strerror(-errno);
        if (others_may_write(&st))
            return "is in a folder that belongs to another user, or that other users can write";
    }
    return NULL;
}

int tierce__trusted_path(char real[PATH_MAX], const char *what, const char *path,
                         char why[TIERCE__URL_WHY_BYTES])
{
    char cut[PATH_MAX];
    const char *wrong = NULL;
    TIERCE_DASSERT(path[0] == '/');
    if (realpath(path, real) == NULL) {
        wrong = tierce_strerror(-errno);
    } else {
        memcpy(cut, real, sizeof(cut));
        wrong = distrust(cut);
    }
    if (wrong == NULL)
        return 0;
    snprintf(why, TIERCE__URL_WHY_BYTES, "%s %.120s: %s", what, path, wrong);
    return TIERCE_E_CONFIG;
}
