/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_DEVICE_PRIVATE_H
#define TIERCE_DEVICE_PRIVATE_H

#include "core/device/device.h"

/* One table of operations per row; each is defined in the file of its device. */
#define TIERCE_DEVICE(name) extern const struct tierce__device_ops tierce__device_##name##_ops;
#include "core/device/devices.def"
#undef TIERCE_DEVICE

enum tierce__direction {
    TIERCE__DIRECTION_GATHER,
    TIERCE__DIRECTION_SCATTER,
};

enum { TIERCE__DIRECTIONS = 2 };

/* Checks all rows of a copy, so that nothing moves if one is invalid. Errors: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__device_check(const struct tierce__device_copy *copy,
                                        enum tierce__direction direction);

/* The bytes of all cells of a row that was checked. */
static inline uint64_t tierce__row_bytes(const struct tierce__device_copy *copy, size_t row)
{
    return (uint64_t)copy->rows[row].cells.count *
           copy->paged->layers[copy->rows[row].layer].block_bytes;
}

/* Where a block of a row that was checked lies: an address of the device. */
static inline uintptr_t tierce__row_block(const struct tierce__device_copy *copy, size_t row,
                                          size_t cell)
{
    const struct tierce_paged_layer *layer = &copy->paged->layers[copy->rows[row].layer];
    uint64_t id = (uint32_t)copy->rows[row].ids[cell];
    return (uintptr_t)layer->base + (uintptr_t)(id * layer->block_stride);
}

#endif
