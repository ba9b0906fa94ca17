/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_VFS_PRIVATE_H
#define TIERCE_BASE_VFS_PRIVATE_H

#include "base/vfs/vfs.h"

/*
 * Shared by the two real implementations: files, and blocking calls on them. A file needs only its
 * descriptor, so these functions work for any vfs that opens files with tierce__files_open.
 */

struct tierce__vfs_file {
    int fd;
    bool direct; /* O_DIRECT is in force */
};

TIERCE_MUSTUSE int tierce__files_enter(struct tierce__vfs *vfs, const char *folder);
/* Closes the entered folder; also for destroy. */
void tierce__files_leave(struct tierce__vfs *vfs);
TIERCE_MUSTUSE int tierce__files_open(struct tierce__vfs *vfs, struct tierce__vfs_file **out,
                                      const char *path, unsigned flags);
void tierce__files_close(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
TIERCE_MUSTUSE int tierce__files_read(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                      void *data, size_t length, uint64_t offset);
TIERCE_MUSTUSE int tierce__files_write(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                       const void *data, size_t length, uint64_t offset);
TIERCE_MUSTUSE int tierce__files_sync(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
TIERCE_MUSTUSE int64_t tierce__files_length(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
TIERCE_MUSTUSE int tierce__files_truncate(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                          uint64_t length);
TIERCE_MUSTUSE int tierce__files_allocate(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                          uint64_t offset, uint64_t length);
TIERCE_MUSTUSE int tierce__files_rename(struct tierce__vfs *vfs, const char *from, const char *to);
TIERCE_MUSTUSE int tierce__files_unlink(struct tierce__vfs *vfs, const char *path);
TIERCE_MUSTUSE int tierce__files_make_folder(struct tierce__vfs *vfs, const char *path);
TIERCE_MUSTUSE int tierce__files_sync_folder(struct tierce__vfs *vfs, const char *path);

/* The rows of an ops table that the functions above fill. */
#define TIERCE__FILES_OPS                                                                          \
    .enter = tierce__files_enter, .leave = tierce__files_leave, .open = tierce__files_open,        \
    .close = tierce__files_close, .read = tierce__files_read, .write = tierce__files_write,        \
    .sync = tierce__files_sync, .length = tierce__files_length,                                    \
    .truncate = tierce__files_truncate, .allocate = tierce__files_allocate,                        \
    .rename = tierce__files_rename, .unlink = tierce__files_unlink,                                \
    .make_folder = tierce__files_make_folder, .sync_folder = tierce__files_sync_folder

#endif
