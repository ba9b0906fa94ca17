/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_KEYS_H
#define TIERCE_CUDA_KEYS_H

#include "core/device/cuda/cuda_module.h"

/*
 * Kernels on keys in the device's memory, for blended prompts (cuda_rotate.c, cuda_distances.c):
 *
 *     caller's stream   ...kernels─┐ (event)             ┌ (event) kernels...
 *     our stream, of scatters      └─► kernel on keys ───┘
 *
 * The first use of a kernel loads it (cuda_module.h), and compares its results with the host's, bit
 * by bit. If anything differs, the kernel is not used.
 */

/* Launches on the memory of a trial. Returns the driver's first answer that is not success. */
typedef TIERCE__CU_RESULT tierce__keys_trial_fn(const struct tierce__cuda *cuda,
                                                TIERCE__CU_STREAM stream, uint8_t *memory);

/* The same for the memory of a caller, which `what` describes. */
typedef TIERCE__CU_RESULT tierce__keys_launch_fn(const struct tierce__cuda *cuda,
                                                 TIERCE__CU_STREAM stream, const void *what);

struct tierce__keys_trial {
    size_t bytes;
    void (*fill)(uint8_t *memory); /* the input */
    tierce__keys_trial_fn *launch;
    /* The host's results, at the same places: all bytes must be equal afterwards. */
    void (*expect)(uint8_t *memory);
};

/* The `try` of a module. */
TIERCE_MUSTUSE int tierce__cuda_keys_try(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys,
                                         const struct tierce__keys_trial *trial);

/* Prepares the kernel, and calls launch_all with our stream, between the caller's earlier and later
 * work. Enters and leaves. Errors: those of rotate in device.h. */
TIERCE_MUSTUSE int tierce__cuda_keys_run(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys,
                                         void *callers_stream, tierce__keys_launch_fn *launch_all,
                                         const void *what);

/* Between enter and leave, when no launch is in progress. */
void tierce__cuda_keys_close(struct tierce__cuda *cuda, struct tierce__cuda_keys *keys);

/* ---- the kernels ----------------------------------------------------------------------------- */

extern const struct tierce__cuda_module_what tierce__cuda_rotations;
extern const struct tierce__cuda_module_what tierce__cuda_distances_of;

/* The operations of device.h. */
int tierce__cuda_rotate(struct tierce__device *device, const struct tierce__device_keys *keys);
int tierce__cuda_distances(struct tierce__device *device,
                           const struct tierce__device_distances *keys);

#endif
