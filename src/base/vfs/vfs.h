/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_VFS_H
#define TIERCE_BASE_VFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Files behind a table of functions, so that tests can simulate a power cut, a full disk or a lost
 * folder: io_uring where the kernel allows it, otherwise a pool of threads, and a wrapper around
 * either that injects faults.
 *
 * Two ways to do I/O. Synchronous calls (read, write, sync, ...) are for journals and set-up:
 * they block, and return bytes or an error. submit() is for data: a transfer ends with done(io),
 * exactly once, on the thread that calls poll(). A vfs is polled by one thread (the owner of its
 * data path); synchronous calls may come from any thread.
 *
 * Paths are relative to nothing: callers pass whole paths. Files are made 0600, folders 0700.
 */

struct tierce__vfs;
struct tierce__vfs_file;
struct tierce__vfs_io;

typedef void tierce__vfs_done_fn(struct tierce__vfs_io *io);

struct tierce__vfs_io {
    struct tierce__vfs_file *file;
    bool is_write;
    uint8_t *data; /* aligned to 4096 where the file was opened with direct */
    uint64_t offset;
    uint32_t length;
    tierce__vfs_done_fn *done;
    void *arg;
    int64_t result; /* [out] `length`, or a negative errno; short transfers are continued inside,
                       a read beyond the end of the file is -ENODATA */
    uint64_t scratch[4]; /* the vfs's until done */
};

#define TIERCE__VFS_CREATE 1u /* make the file if it is missing */
#define TIERCE__VFS_DIRECT                                                                         \
    2u /* O_DIRECT if the file system supports it, otherwise ignored                               \
        */
#define TIERCE__VFS_TRUNCATE  4u
#define TIERCE__VFS_READONLY  8u
#define TIERCE__VFS_EXCLUSIVE 16u /* with CREATE: -EEXIST if the name exists */

struct tierce__vfs_ops {
    const char *name;
    /*
     * Opens a folder and resolves all later names in it, even if the folder is renamed. Names are
     * then relative; "." is the folder itself. No symbolic link in a name is followed (-ELOOP, or
     * -ENOTDIR for a link in the middle), and a name with an empty part, "." or ".." is -EINVAL.
     * Without this call names are paths, and links are followed. Must be called while no file is
     * open. A second call replaces the folder. Errors: negative errno.
     */
    TIERCE_MUSTUSE int (*enter)(struct tierce__vfs *vfs, const char *folder);
    /* Closes the entered folder: names are paths again. Must be called while no file is open. */
    void (*leave)(struct tierce__vfs *vfs);
    /* Errors of all: negative errno, -ENOMEM; outputs untouched. Opening anything but a regular
     * file fails with -EINVAL, and is logged. */
    TIERCE_MUSTUSE int (*open)(struct tierce__vfs *vfs, struct tierce__vfs_file **out,
                               const char *path, unsigned flags);
    void (*close)(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
    /* Whole transfers: short ones are continued; -ENODATA where a read hits the end. */
    TIERCE_MUSTUSE int (*read)(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                               size_t length, uint64_t offset);
    TIERCE_MUSTUSE int (*write)(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                const void *data, size_t length, uint64_t offset);
    TIERCE_MUSTUSE int (*sync)(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
    TIERCE_MUSTUSE int64_t (*length)(struct tierce__vfs *vfs, struct tierce__vfs_file *file);
    TIERCE_MUSTUSE int (*truncate)(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                   uint64_t length);
    /* Reserves disk blocks for a range, extending the file; -EOPNOTSUPP is not an error. */
    TIERCE_MUSTUSE int (*allocate)(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                   uint64_t offset, uint64_t length);
    TIERCE_MUSTUSE int (*rename)(struct tierce__vfs *vfs, const char *from, const char *to);
    TIERCE_MUSTUSE int (*unlink)(struct tierce__vfs *vfs, const char *path);
    TIERCE_MUSTUSE int (*make_folder)(struct tierce__vfs *vfs, const char *path); /* 0 if there */
    TIERCE_MUSTUSE int (*sync_folder)(struct tierce__vfs *vfs, const char *path);

    /* Queues a transfer. Thread: the owner. Never fails: an error arrives through done. */
    void (*submit)(struct tierce__vfs *vfs, struct tierce__vfs_io *io);
    /* Runs the done callbacks of finished transfers, waiting until there is one, until wake(), or
     * until the deadline. Returns how many ran. Thread: the owner. */
    unsigned (*poll)(struct tierce__vfs *vfs, uint64_t deadline_ns);
    /* Makes a poll that is waiting, or the next one, return. Thread: any. */
    void (*wake)(struct tierce__vfs *vfs);
    /* Tells the vfs which memory transfers will use (the pool), to be registered where that helps;
     * failure is silent and only costs speed. Before the first submit. */
    void (*use_memory)(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes);
    /* Waits for all transfers, then frees. */
    void (*destroy)(struct tierce__vfs *vfs);
};

/* First member of every implementation. */
struct tierce__vfs {
    const struct tierce__vfs_ops *ops;
    int folder; /* descriptor of the entered folder, owned by the vfs; else AT_FDCWD */
};

/* At most `depth` transfers in flight; more wait inside. Errors: -ENOMEM, negative errno;
 * TIERCE_E_UNSUPPORTED where the kernel or a sandbox rejects io_uring. */
TIERCE_MUSTUSE int tierce__vfs_uring_create(struct tierce__vfs **out, unsigned depth);
TIERCE_MUSTUSE int tierce__vfs_threads_create(struct tierce__vfs **out, unsigned thread_count);

/* The descriptor of a file that one of these two has opened. [borrow until close] */
int tierce__vfs_descriptor(const struct tierce__vfs_file *file);

/* io_uring, or threads where that is rejected. */
TIERCE_MUSTUSE int tierce__vfs_create(struct tierce__vfs **out, unsigned depth);

#endif
