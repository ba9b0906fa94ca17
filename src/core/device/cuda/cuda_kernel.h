/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_KERNEL_H
#define TIERCE_CUDA_KERNEL_H

#include "core/device/cuda/cuda_sums.h"
#include "core/device/cuda/cuda_ways.h"

/*
 * The kernel of kernels/copy_sum.cu on one device: its module, its launches, the sums that it
 * writes, and the buffers of staged copies.
 */

struct tierce__cuda_kernel {
    TIERCE__CU_MODULE module;
    TIERCE__CU_FUNCTION function;
    unsigned blocks_max; /* thread blocks of a launch */
    bool direct;         /* the device can use pinned memory at the host's addresses */
    struct tierce__cuda_sums sums;
    /* One buffer for each direction, of TIERCE__STAGING_BYTES; 0: none. A transfer holds the lock
     * while it enqueues, so all uses of a buffer are one sequence on the stream of its
     * direction. */
    struct tierce__lock staging_lock[2];
    TIERCE__CU_ADDRESS staging[2];
    enum tierce__cuda_way ways[TIERCE__DIRECTIONS][TIERCE__CUDA_CLASSES];
    bool is_forced; /* all multiprocessors are used, also for copies that the kernel is slow at */
};

#define TIERCE__STAGING_BYTES ((size_t)16 << 20)

/* The reason why a device has no kernel. */
struct tierce__cuda_refusal {
    char text[TIERCE__CUDA_TEXT_BYTES];
};

/*
 * Between enter and leave: loads the module, and launches it once without cells, because a driver
 * may compile it only then. A failure does not make the device fail. Errors, *why written:
 * TIERCE_E_UNSUPPORTED, -ENOMEM. Blocks.
 */
TIERCE_MUSTUSE int tierce__cuda_kernel_open(struct tierce__cuda_kernel **out,
                                            struct tierce__cuda *cuda,
                                            struct tierce__cuda_refusal *why);

/* Between enter and leave, when no launch is in progress. NULL is accepted. */
void tierce__cuda_kernel_close(struct tierce__cuda *cuda, struct tierce__cuda_kernel *kernel);

/* Frees the buffers, if staged copies are not used. */
void tierce__cuda_kernel_unstage(struct tierce__cuda *cuda, struct tierce__cuda_kernel *kernel);

/* The copy method of a copy that was checked. */
enum tierce__cuda_way tierce__cuda_kernel_way(const struct tierce__cuda_kernel *kernel,
                                              const struct tierce__device_copy *copy,
                                              enum tierce__direction direction);

/* Numbers the cells of the copy's rows in an event, unless it is NULL. Returns how many slots they
 * take. */
size_t tierce__cuda_kernel_number(struct tierce__cuda_event *event,
                                  const struct tierce__device_copy *copy);

/* Enqueues the launches and, if the method is staged, the copies. Errors: -ECANCELED,
 * -EIO. */
TIERCE_MUSTUSE int tierce__cuda_kernel_enqueue(struct tierce__cuda *cuda,
                                               struct tierce__cuda_kernel *kernel,
                                               const struct tierce__cuda_event *event,
                                               const struct tierce__device_copy *copy,
                                               enum tierce__direction direction,
                                               enum tierce__cuda_way way);

#endif
