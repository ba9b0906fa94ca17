/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LOAD_KEYS_H
#define TIERCE_ENGINE_LOAD_KEYS_H

#include "core/device/device.h"

struct tierce_load;

/*
 * Rotates keys that a load has moved, or copies of them, in place (core/blend/rope.h). If the
 * load's memory is that of a GPU, the keys must be memory of the same GPU. The rotation is then
 * enqueued on the load's stream: after the layers that tierce_load_layer has moved and the work
 * that the caller has enqueued since, and before the caller's later work. The first rotation on a
 * GPU blocks, perhaps for the compilation of a kernel. Whether the keys were loaded without a
 * failure is known at the end of the load.
 *
 * Errors:
 *   TIERCE_E_ARGUMENT     the keys are invalid, or not memory of the load's GPU
 *   TIERCE_E_UNSUPPORTED  the stream is being captured; or the GPU cannot rotate keys exactly
 *   TIERCE_E_DOWN         the GPU has failed or is not ready, or the load has nothing to move
 *   TIERCE_E_CLOSED       in a child of fork
 *   -ENOMEM, -ECANCELED, -EIO
 * After -ECANCELED and -EIO the bytes of the keys are unknown, and the load has no loaded block.
 *
 * Thread: that of the load.
 */
TIERCE_MUSTUSE int tierce__load_rotate(struct tierce_load *load,
                                       const struct tierce__rotation *rotation,
                                       enum tierce__blend_dtype dtype,
                                       const struct tierce__key_rows *rows, size_t tokens,
                                       uint32_t heads);

/*
 * Computes distances of keys (core/blend/select.h) in the memory of a load: of the host, or of the
 * load's GPU. There it is enqueued as a rotation. keys->stream is ignored. Errors: as
 * tierce__load_rotate; after -ECANCELED the distances are unknown, and after -EIO the load has no
 * loaded block either.
 *
 * Thread: that of the load.
 */
TIERCE_MUSTUSE int tierce__load_distances(struct tierce_load *load,
                                          const struct tierce__device_distances *keys);

#endif
