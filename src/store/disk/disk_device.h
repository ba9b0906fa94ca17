/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_DISK_DEVICE_H
#define TIERCE_DISK_DEVICE_H

#include "base/vfs/vfs.h"
#include "core/device/device.h"

/*
 * A vfs around another one that also reads into a buffer in the memory of a device
 * (device.h, tierce__device_files). It tells such a transfer by its address; all other transfers
 * and calls are those of the inner vfs. So a disk tier needs nothing else to read chunks into the
 * memory of a device.
 *
 *     rc = tierce__vfs_device_create(&vfs, inner);
 *     ... the disk tier, which destroys the vfs ...
 *     tierce__vfs_device_use(vfs, &memory);        // later, once
 *
 * The result of such a transfer is TIERCE_E_UNSUPPORTED if the library for it cannot read the file
 * or fails; nothing else is read into the buffer from then on.
 *
 * A few threads read, because a call of the library blocks until its bytes have arrived. They start
 * with the first transfer.
 */
struct tierce__vfs_device_memory {
    const struct tierce__device_files *files;
    struct tierce__device *device; /* [borrow until the vfs is destroyed] */
    uint8_t *base;
    uint64_t bytes;
};

/* [transfer] inner, on success only. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__vfs_device_create(struct tierce__vfs **out, struct tierce__vfs *inner);

/* The buffer, before the first transfer into it. Once. Thread: any. */
void tierce__vfs_device_use(struct tierce__vfs *vfs,
                            const struct tierce__vfs_device_memory *memory);

/* From now on such transfers fail with TIERCE_E_UNSUPPORTED. Returns whether they worked before.
 * Thread: any. */
bool tierce__vfs_device_stop(struct tierce__vfs *vfs);

/* Whether transfers into the buffer have not failed with TIERCE_E_UNSUPPORTED. Thread: any. */
bool tierce__vfs_device_works(struct tierce__vfs *vfs);

#endif
