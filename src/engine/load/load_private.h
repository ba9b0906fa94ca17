/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LOAD_PRIVATE_H
#define TIERCE_ENGINE_LOAD_PRIVATE_H

#include "core/device/device.h"
#include "engine/load/load_lease.h"
#include "engine/load/scatter.h"

/*
 * A load, shared by load.c and load_device.c. load_device.c moves layers to the memory of a device.
 * They are enqueued in order, after the work on the caller's stream, and later work on that stream
 * waits for them. The end waits for the last copy, and then reads the verdict of each cell.
 */

struct tierce_load {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view;
    uint32_t next_layer; /* of the view's part */
    struct tierce__load_lease *lease;
    const struct tierce__load_lease_ops *ops; /* the lease's */
    struct tierce__scatter scatter;
    uint32_t *loaded; /* [lease->count] blocks, at the end */
    bool on_device;
    bool is_off;                     /* nothing was leased, because the device cannot copy now */
    struct tierce__transit *transit; /* NULL: memory of the host, or a device that cannot be used */
    uint32_t timeout_ms;
};

void tierce__load_free(struct tierce_load *load);

/* Waits until a layer of a chunk is in memory and its header is good. */
bool tierce__load_is_ready(struct tierce_load *load, size_t i, uint32_t layer);

/* No block of it is loaded. */
void tierce__load_fail(struct tierce_load *load);

/* Whether the leased memory may have been reused since. */
bool tierce__load_is_late(const struct tierce_load *load);

/* ---- load_device.c ---- */

/* If the device has failed since the chunks were leased, all of them fail. Errors:
 * TIERCE_E_ARGUMENT, TIERCE_E_UNSUPPORTED, -ENOMEM. */
TIERCE_MUSTUSE int tierce__load_device_begin(struct tierce_load *load,
                                             const struct tierce_transfer_opts *opts);

/* Errors: TIERCE_E_UNSUPPORTED (the stream is being captured); all chunks have failed then. */
TIERCE_MUSTUSE int tierce__load_device_layer(struct tierce_load *load, uint32_t layer);

/* Errors: as of tierce__load_rotate and tierce__load_distances. */
TIERCE_MUSTUSE int tierce__load_device_rotate(struct tierce_load *load,
                                              const struct tierce__device_keys *keys);
TIERCE_MUSTUSE int tierce__load_device_distances(struct tierce_load *load,
                                                 const struct tierce__device_distances *keys);

/* Copies the header of a chunk in the memory of the device to the host, unless it was. False: it
 * cannot, and the chunk has failed. */
TIERCE_MUSTUSE bool tierce__load_device_look(struct tierce_load *load, size_t i);

/* The end of the copies: all verdicts are known. False: they have not ended in time, or the device
 * has failed and may still copy; all chunks have failed, and `load` must be kept. */
TIERCE_MUSTUSE bool tierce__load_device_end(struct tierce_load *load);

/* Ends the lease and frees the load when its copies have ended. */
void tierce__load_device_keep(struct tierce_load *load);

#endif
