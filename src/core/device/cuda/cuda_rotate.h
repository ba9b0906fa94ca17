/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_ROTATE_H
#define TIERCE_CUDA_ROTATE_H

#include "core/device/cuda/cuda_private.h"

/*
 * Keys that are rotated on the device, by the kernel of kernels/rotate.cu:
 *
 *     caller's stream   ...kernels─┐ (event)                  ┌ (event) kernels...
 *     our stream, of scatters      └─► rotation of the keys ──┘
 *
 * The first rotation loads the kernel, and compares its results with the host's, bit by bit. If
 * anything differs, the kernel is not used.
 */

void tierce__cuda_rotations_init(struct tierce__cuda_rotations *rotations);
void tierce__cuda_rotations_fini(struct tierce__cuda_rotations *rotations);

/* The operation of device.h. */
int tierce__cuda_rotate(struct tierce__device *device, const struct tierce__device_keys *keys);

/* Between enter and leave, when no rotation is in progress. */
void tierce__cuda_rotations_close(struct tierce__cuda *cuda);

#endif
