/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_DEVICES_H
#define TIERCE_ENGINE_DEVICES_H

#include <tierce/paged.h>

#include "base/list.h"
#include "core/device/device.h"

/*
 * The devices of the process that are open. Engines share them: a device is opened once, found
 * again by an address of its memory, and closed when the last user has released it.
 *
 * A child of fork begins without devices. A device of its parent belongs to the parent.
 *
 * Thread: any; a lock of class DEVICES, which is held while a device is opened or closed.
 */

struct tierce__open_device {
    const struct tierce__device_ops *ops;
    struct tierce__device *device;
    struct tierce__list node; /* under DEVICES, as refs */
    uint32_t refs;
};

/* The device whose memory has the address, with a reference. Errors, *out untouched: as of `open`
 * in device.h. Blocks for the start of the device's driver. */
TIERCE_MUSTUSE int tierce__device_acquire(struct tierce__open_device **out, enum tierce_device kind,
                                          const void *address);

/* Ends a reference. No copy may be in progress, and no slice may be pinned by this user. A device
 * that does not stop is left open. */
void tierce__device_release(struct tierce__open_device *open);

#endif
