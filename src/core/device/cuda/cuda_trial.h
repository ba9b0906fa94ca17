/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_TRIAL_H
#define TIERCE_CUDA_TRIAL_H

#include "core/device/cuda/cuda_kernel.h"

/*
 * Memory for copies that try the kernel, and these copies. The memory belongs to the device: if a
 * copy fails, it stays in use until the device is closed.
 */

#define TIERCE__TRIAL_BYTES ((size_t)8 << 20) /* on the device, and pinned on the host */

struct tierce__cuda_trial {
    struct tierce__cuda *cuda;
    struct tierce__cuda_kernel *kernel;
    uint64_t *sums; /* [TIERCE__TRIAL_BYTES / TIERCE__TRIAL_CELL_MIN] */
    uint8_t *good;  /* the same number */
    int32_t *ids;   /* the same number */
    uint8_t *bytes; /* [TIERCE__TRIAL_BYTES] the expected bytes of the cells */
};

#define TIERCE__TRIAL_CELL_MIN ((size_t)4 << 10)

/* Errors: TIERCE_E_UNSUPPORTED (no memory on the device), -ENOMEM, -EIO. Blocks. */
TIERCE_MUSTUSE int tierce__cuda_trial_init(struct tierce__cuda_trial *trial,
                                           struct tierce__cuda *cuda,
                                           struct tierce__cuda_kernel *kernel);
void tierce__cuda_trial_fini(struct tierce__cuda_trial *trial);

/* Frees the memory on the device and its pinned memory, when no copy is in progress. Errors: -EIO;
 * the memory that could not be freed is kept for another call. */
int tierce__cuda_trial_free(struct tierce__cuda *cuda);

/* Copies random cells of every length class there and back, and compares bytes and sums with the
 * host's. Errors: TIERCE_E_CHECKSUM (a difference; *bytes: the cell's), -ENOMEM, -EIO. Blocks. */
TIERCE_MUSTUSE int tierce__cuda_trial_compare(struct tierce__cuda_trial *trial,
                                              enum tierce__cuda_way way, uint32_t *bytes);

/* Copies at most TIERCE__TRIAL_BYTES and 512 cells of this size, and settles. Returns the
 * nanoseconds. Errors: -ENOMEM, -EIO. Blocks. */
TIERCE_MUSTUSE int64_t tierce__cuda_trial_run(struct tierce__cuda_trial *trial,
                                              enum tierce__direction direction,
                                              enum tierce__cuda_way way, uint32_t cell_bytes);

#endif
