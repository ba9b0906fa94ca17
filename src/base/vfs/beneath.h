/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_BENEATH_H
#define TIERCE_BASE_BENEATH_H

#include <stdbool.h>

#include <tierce/status.h>

/*
 * Paths that lie below an open folder and cannot leave it, whatever they are and whatever others
 * do to the folders meanwhile: no part of a path is "..", and no folder of it is a symbolic link.
 *
 *     rc = tierce__beneath_open(&at, root, "a/b/file");
 *     if (rc == 0)
 *         fd = openat(at.folder, at.name, O_RDONLY | O_NOFOLLOW);
 *     tierce__beneath_close(&at);
 *
 * Thread: any.
 */
struct tierce__beneath {
    int folder;       /* that contains the last name of the path; for calls with a name in it, not
                         for reading */
    const char *name; /* the last name of the path, which may be a link */
    bool is_own;      /* the folder is not the root itself */
};

/* Whether a path has neither an empty part nor one that is "." or "..". */
bool tierce__beneath_is_path(const char *path);

/* [borrow until close] root, path. Errors: -EINVAL (not a path as above, except "."), -ELOOP or
 * -ENOTDIR (a folder of the path is a link or a file), other negative errno (-ENOENT). */
TIERCE_MUSTUSE int tierce__beneath_open(struct tierce__beneath *out, int root, const char *path);
/* The same without openat2, which old kernels lack and sandboxes reject: one call for each folder.
 */
TIERCE_MUSTUSE int tierce__beneath_walk(struct tierce__beneath *out, int root, const char *path);
/* Once, after a success. */
void tierce__beneath_close(struct tierce__beneath *beneath);

#endif
