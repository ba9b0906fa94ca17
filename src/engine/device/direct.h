/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_DIRECT_H
#define TIERCE_ENGINE_DIRECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/threads/lock.h"

/*
 * An engine's buffer in the memory of a device, into which its disk reads chunks without memory of
 * the host (disk.gpu_direct), and where the device decodes chunks of the disk and of coded memory.
 * One pool of chunks; load_lease.h uses it.
 *
 *     tierce__direct_init(&direct);
 *     rc = tierce__direct_wrap(&direct, bytes, depth, &vfs);    // before the disk is opened with
 * vfs tierce__direct_start(&direct, device);              // when the device is ready pool =
 * tierce__direct_pool(&direct, device);        // NULL: chunks are read into memory
 *     tierce__direct_stop(&direct);                       // before the disk is closed
 *     freed = tierce__direct_fini(&direct);               // after it, before the device is
 * released
 *
 * The engine's first device has the buffer. Thread: any, except that init, wrap and fini are called
 * by the thread that opens or closes the engine. Lock: DIRECT, held while the buffer is allocated.
 */

struct tierce__open_device;
struct tierce__pool;
struct tierce__tier;
struct tierce__vfs;

enum { TIERCE__DIRECT_TIERS = 2 }; /* coded memory and the disk */

struct tierce__direct {
    uint64_t bytes;          /* of the buffer; 0: none */
    struct tierce__vfs *vfs; /* [borrow until stop] the disk's */
    struct tierce__lock lock;
    /* [borrow until stop] the tiers that decode */
    struct tierce__tier *coded[TIERCE__DIRECT_TIERS];
    size_t coded_count;
    bool begun, stopped;     /* [lock] */
    _Atomic uint64_t chunks; /* loaded from the buffer; relaxed, a measure */
    struct tierce__open_device *device;
    uint8_t *base;                     /* NULL: no buffer */
    struct tierce__pool *_Atomic pool; /* stored (release) last; NULL: no buffer */
};

void tierce__direct_init(struct tierce__direct *direct);

/* Creates the vfs of a disk, for chunks to be read into a buffer of `bytes`, at least 1 MiB, with
 * `depth` other transfers in flight. [out] *out [transfer].
 * Errors: as of tierce__vfs_create. */
TIERCE_MUSTUSE int tierce__direct_wrap(struct tierce__direct *direct, uint64_t bytes,
                                       unsigned depth, struct tierce__vfs **out);

/* A tier of store/coded, whose chunks the device is to decode. Before the first start. */
void tierce__direct_decode_from(struct tierce__direct *direct, struct tierce__tier *tier);

/* The disk has not been opened: its vfs does not exist any more. */
void tierce__direct_unwrap(struct tierce__direct *direct);

/* Allocates the buffer on a device that has been tuned, and prepares the device's decoder; nothing
 * if there is a buffer on another device, or none is wanted. A failure is logged: chunks are read
 * into memory, or decoded by the host. Blocks. */
void tierce__direct_start(struct tierce__direct *direct, struct tierce__open_device *device);

/* The pool of the buffer, if it is on this device and works. */
struct tierce__pool *tierce__direct_pool(const struct tierce__direct *direct,
                                         const struct tierce__open_device *device);

/* Whether there is a buffer on some device. */
bool tierce__direct_is_on(const struct tierce__direct *direct);

/*
 * A chunk in the buffer was wrong. It is not known whether the chunk on disk is wrong, or the way
 * into the device's memory. So chunks are read into memory from now on, where a wrong chunk is
 * found and removed. Logged.
 */
void tierce__direct_distrust(struct tierce__direct *direct);

/* No buffer is allocated any more. Waits for a start. */
void tierce__direct_stop(struct tierce__direct *direct);

/* Frees the buffer. False: it is still in use, and the device must stay open. */
bool tierce__direct_fini(struct tierce__direct *direct);

#endif
