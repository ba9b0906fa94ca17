/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_WAYS_H
#define TIERCE_CUDA_WAYS_H

#include <stdbool.h>
#include <stdint.h>

struct tierce__device;

/*
 * How a device "cuda" copies cells. `tune` measures the copy methods on the device, for both
 * directions and several classes of cell sizes, and chooses.
 */

enum tierce__cuda_way {
    TIERCE__CUDA_COPIES, /* the copy engine; the host computes the sums */
    TIERCE__CUDA_DIRECT, /* the kernel, between the engine's memory and pinned memory */
    TIERCE__CUDA_STAGED, /* the kernel, between the engine's memory and a buffer on the device; the
                            copy engine, between the buffer and pinned memory */
    TIERCE__CUDA_WAYS,   /* their number; for `force`: the fastest */
};

/* "copies", "direct", "staged", "fastest". */
const char *tierce__cuda_way_name(enum tierce__cuda_way way);

/* Classes of cell sizes: up to 4 KiB, 16 KiB, 64 KiB, 256 KiB, and above. */
enum { TIERCE__CUDA_CLASSES = 5 };

/* The class of a cell. */
unsigned tierce__cuda_class(uint64_t bytes);

/* The method with which a device "cuda" copies cells of a class, aligned to 16 bytes. Thread:
 * any. */
enum tierce__cuda_way tierce__cuda_used(struct tierce__device *device, bool is_load,
                                        unsigned class_);

/* For tests and benchmarks: all devices that are tuned from now on use this method if they support
 * it; no method is measured. Thread: any, but not while a device is being tuned. */
void tierce__cuda_force(enum tierce__cuda_way way);

#endif
