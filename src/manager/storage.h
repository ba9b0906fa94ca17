/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_H
#define TIERCE_MANAGER_STORAGE_H

#include "manager/model.h"

/*
 * One storage as the manager reaches it: the seam below storages.h. Files (NFS, 3FS mounts), Redis,
 * and those that only their clients reach.
 *
 * Calls block, some for ever (an NFS server that is gone): they are made on a thread that can be
 * left behind. Threads: one at a time for each driver.
 */

struct tierce__storage_driver;

struct tierce__storage_ops {
    const char *name; /* "file", "redis", "none" */
    bool is_reached;  /* there is something to probe and to delete */
    /* The driver keeps what it needs of `storage`. Errors: TIERCE_E_CONFIG, -ENOMEM, negative
     * errno; `why` in words. Does no I/O that could hang. */
    TIERCE_MUSTUSE int (*open)(struct tierce__storage_driver **out,
                               const struct tierce__storage *storage, char why[128]);
    void (*close)(struct tierce__storage_driver *driver);
    /* Writes something, reads it back and deletes it. */
    TIERCE_MUSTUSE int (*probe)(struct tierce__storage_driver *driver, char why[128]);
    /* Deletes a file (tierce__place_path); 0 if it is not there. TIERCE_E_ARGUMENT: it is not one
     * below the root. */
    TIERCE_MUSTUSE int (*remove)(struct tierce__storage_driver *driver, const char *path);
    /* The bytes of a file (tierce__place_path). Only where is_reached. -ENOENT: it
     * is not there; else as remove. */
    TIERCE_MUSTUSE int (*measure)(struct tierce__storage_driver *driver, const char *path,
                                  uint64_t *bytes);
    /* The used share, 0 .. 1, of what it lies on; negative: not known. */
    double (*used_share)(struct tierce__storage_driver *driver);
};

/* First member of every implementation. */
struct tierce__storage_driver {
    const struct tierce__storage_ops *ops;
};

extern const struct tierce__storage_ops tierce__storage_file;
extern const struct tierce__storage_ops tierce__storage_redis;
extern const struct tierce__storage_ops tierce__storage_none;

/* Never NULL. */
const struct tierce__storage_ops *tierce__storage_ops_find(enum tierce__storage_type type);

#endif
