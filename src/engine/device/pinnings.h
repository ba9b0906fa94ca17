/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PINNINGS_H
#define TIERCE_ENGINE_PINNINGS_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/paged.h>

#include "base/list.h"
#include "base/threads/lock.h"

/*
 * A mapping of chunks' memory, the pool of an engine or that of a node, as the devices see it: each
 * device that copies from or to it pins all of it. This happens in the background, slice by slice,
 * on a thread that exits at the end, because pinning takes about 0.1 s per GB. The thread first
 * tunes the device, and allows memory that is not pinned: transfers work from then on, and become
 * faster with each slice. If a slice cannot be pinned, the rest of the mapping stays unpinned,
 * which is logged once.
 *
 * If the mapping is of this process, the thread first makes its pages come from the NUMA node of
 * the device. The first device of a mapping decides. Pages that were touched before stay on their
 * nodes: to move them would hold up changes of the process's mappings, and copy memory in use.
 *
 *     rc = tierce__pinnings_get(&pinnings, paged, &device);
 *     if (rc == 0)
 *         ... device->ops->gather(device->device, &event, &copy) ...
 *
 * Thread: any, except that init comes first and fini last. Lock: PINNINGS, held while a device is
 * opened.
 */
struct tierce__direct;
struct tierce__open_device;

struct tierce__pinnings {
    struct tierce__lock lock; /* PINNINGS */
    uint8_t *base;
    uint64_t bytes;                /* 0: there is no memory */
    bool is_own;                   /* of this process, not of a node */
    struct tierce__direct *direct; /* [borrow] started on the first device; NULL: none */
    struct tierce__list list;
};

void tierce__pinnings_init(struct tierce__pinnings *pinnings);

/* The memory; at most once, before the first get. is_own: of this process, not of a node. */
void tierce__pinnings_set(struct tierce__pinnings *pinnings, uint8_t *base, uint64_t bytes,
                          bool is_own);

/*
 * The device whose memory `paged` describes, ready to copy from and to all of the mapping. The
 * first call begins to prepare it. [out] *out [borrow until fini].
 * Errors, *out untouched:
 *   -EAGAIN               the device is being prepared; or all of the mapping is being pinned,
 *                         because there is no memory for copies without
 *   TIERCE_E_DOWN         neither is possible (logged), or the device has failed
 *   TIERCE_E_ARGUMENT     `paged` is not memory of such a device
 *   TIERCE_E_UNSUPPORTED  the driver is missing or too old, or was used before a fork
 *   -ENOMEM
 */
TIERCE_MUSTUSE int tierce__pinnings_get(struct tierce__pinnings *pinnings,
                                        const struct tierce_paged *paged,
                                        struct tierce__open_device **out);

/* Unpins, and releases the devices. No copy may be in progress. Waits for a slice that is being
 * pinned. False: a device may still use the mapping, which must stay. */
bool tierce__pinnings_fini(struct tierce__pinnings *pinnings);

#endif
