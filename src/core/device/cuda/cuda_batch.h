/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_BATCH_H
#define TIERCE_CUDA_BATCH_H

#include "core/device/cuda/cuda_private.h"

/*
 * Collects copies between the device and pinned memory by the copy engine, so that one call of the
 * driver enqueues many of them.
 *
 *     struct tierce__cuda_batch batch = {.cuda = cuda, .direction = direction};
 *     for each row: tierce__cuda_batch_row(&batch), then tierce__cuda_batch_add for its cells
 *     rc = tierce__cuda_batch_flush(&batch);
 *
 * Between enter and leave. Thread: the one that owns the batch.
 */

enum { TIERCE__BATCH_COPIES = 64 };

struct tierce__cuda_batch {
    struct tierce__cuda *cuda;
    enum tierce__direction direction;
    size_t count;
    bool joins;           /* the next copy may extend the last one */
    const uint8_t *after; /* the end of the last cell */
    size_t in_slice;      /* bytes from there to the end of its slice */
    TIERCE__CU_ADDRESS to[TIERCE__BATCH_COPIES], from[TIERCE__BATCH_COPIES];
    size_t bytes[TIERCE__BATCH_COPIES];
};

/* Begins a row: its copies are not merged with the copies before it. */
void tierce__cuda_batch_row(struct tierce__cuda_batch *batch);

/* Adds the copy of one cell from or to the device; the cell is pinned. Errors:
 * -ECANCELED, -EIO. */
TIERCE_MUSTUSE int tierce__cuda_batch_add(struct tierce__cuda_batch *batch, uintptr_t device,
                                          uint8_t *cell, size_t bytes);

/* Adds a copy between the device and memory that lies in one registration, or was allocated by the
 * driver. Errors: -ECANCELED, -EIO. */
TIERCE_MUSTUSE int tierce__cuda_batch_put(struct tierce__cuda_batch *batch, uintptr_t device,
                                          const uint8_t *host, size_t bytes);

/* Enqueues the collected copies. Errors: -ECANCELED, -EIO. */
TIERCE_MUSTUSE int tierce__cuda_batch_flush(struct tierce__cuda_batch *batch);

#endif
