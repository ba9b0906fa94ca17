/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_SUMS_H
#define TIERCE_CUDA_SUMS_H

#include "base/threads/lock.h"
#include "core/device/cuda/cuda_private.h"
#include "core/device/kernels/launch.h"

/*
 * Pinned memory for the sums that launches of the kernel write, in slots of one launch each. An
 * event has its slots until it is forgotten. The number of slots is fixed: if too few are free, a
 * transfer is copied without the kernel.
 *
 * Thread: any; one lock of class CUDA_SUMS. Does not block.
 */
enum {
    TIERCE__SUMS_SLOTS = 1024
}; /* 2 MB of pinned memory, for 256,000 cells: a prompt of 32k
      tokens in 80 layers, with blocks of 16 tokens, has 164,000 */

struct tierce__cuda_sums {
    struct tierce__lock lock;
    uint64_t *memory; /* [TIERCE__SUMS_SLOTS * TIERCE__LAUNCH_CELLS] of the driver */
    uint32_t free_count;
    uint32_t free[TIERCE__SUMS_SLOTS]; /* [free_count] numbers of slots */
};

/* `memory` [borrow until fini] has TIERCE__SUMS_BYTES. */
#define TIERCE__SUMS_BYTES (TIERCE__SUMS_SLOTS * TIERCE__LAUNCH_CELLS * sizeof(uint64_t))
void tierce__cuda_sums_init(struct tierce__cuda_sums *sums, void *memory);
void tierce__cuda_sums_fini(struct tierce__cuda_sums *sums);

/* Takes `count` slots. False: too few are free, and none is taken. */
bool tierce__cuda_sums_take(struct tierce__cuda_sums *sums, uint32_t *slots, size_t count);
void tierce__cuda_sums_return(struct tierce__cuda_sums *sums, const uint32_t *slots, size_t count);

/* Where the device writes the sum of cell number `cell` of an event, and the host reads it once the
 * event has completed. Later cells of the same slot follow. */
uint64_t *tierce__cuda_sum_of(const struct tierce__cuda_event *event, size_t cell);

#endif
