/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_batch.h"

#include "core/device/cuda/cuda_register.h"

#include "base/assert.h"

/* ---- one call of the driver for many copies ---------------------------------------------------
 */

static int copy_one(const struct tierce__cuda_batch *batch, size_t i)
{
    const struct tierce__cuda_api *api = batch->cuda->api;
    TIERCE__CU_STREAM stream = tierce__cuda_own_stream(batch->cuda, batch->direction);
    TIERCE_DASSERT(i < batch->count && batch->bytes[i] > 0);
    if (batch->direction == TIERCE__DIRECTION_GATHER)
        return tierce__cuda_enqueued(batch->cuda, "cuMemcpyDtoHAsync",
                                     api->copy_to_host((void *)(uintptr_t)batch->to[i],
                                                       batch->from[i], batch->bytes[i], stream));
    return tierce__cuda_enqueued(batch->cuda, "cuMemcpyHtoDAsync",
                                 api->copy_to_device(batch->to[i],
                                                     (const void *)(uintptr_t)batch->from[i],
                                                     batch->bytes[i], stream));
}

static int copy_many(struct tierce__cuda_batch *batch)
{
    const struct tierce__cuda_api *api = batch->cuda->api;
    TIERCE__CU_STREAM stream = tierce__cuda_own_stream(batch->cuda, batch->direction);
    TIERCE__CU_COPY_ATTRIBUTES attributes = {.source_order = TIERCE__CU_SOURCE_ORDER_STREAM};
    size_t first = 0, failed = 0;
    TIERCE_DASSERT(batch->count > 1 && batch->count <= TIERCE__BATCH_COPIES);
    TIERCE__CU_RESULT code =
        api->copy_batch_2 != NULL
            ? api->copy_batch_2(batch->to, batch->from, batch->bytes, batch->count, &attributes,
                                &first, 1, stream)
            : api->copy_batch(batch->to, batch->from, batch->bytes, batch->count, &attributes,
                              &first, 1, &failed, stream);
    return tierce__cuda_enqueued(batch->cuda, "cuMemcpyBatchAsync", code);
}

int tierce__cuda_batch_flush(struct tierce__cuda_batch *batch)
{
    const struct tierce__cuda_api *api = batch->cuda->api;
    int rc = 0;
    if (batch->count > 1 && (api->copy_batch_2 != NULL || api->copy_batch != NULL)) {
        rc = copy_many(batch);
    } else {
        for (size_t i = 0; i < batch->count && rc == 0; i++)
            rc = copy_one(batch, i);
    }
    batch->count = 0;
    batch->joins = false;
    return rc;
}

/* ---- cells to copies --------------------------------------------------------------------------
 */

int tierce__cuda_batch_put(struct tierce__cuda_batch *batch, uintptr_t device, const uint8_t *host,
                           size_t bytes)
{
    uintptr_t cell = (uintptr_t)host;
    bool is_gather = batch->direction == TIERCE__DIRECTION_GATHER;
    uintptr_t to = is_gather ? cell : device, from = is_gather ? device : cell;
    if (batch->joins && batch->count > 0) {
        size_t last = batch->count - 1;
        if (batch->to[last] + batch->bytes[last] == to &&
            batch->from[last] + batch->bytes[last] == from) {
            batch->bytes[last] += bytes;
            return 0;
        }
    }
    int rc = batch->count == TIERCE__BATCH_COPIES ? tierce__cuda_batch_flush(batch) : 0;
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(batch->count < TIERCE__BATCH_COPIES);
    batch->to[batch->count] = to;
    batch->from[batch->count] = from;
    batch->bytes[batch->count++] = bytes;
    batch->joins = true;
    return 0;
}

void tierce__cuda_batch_row(struct tierce__cuda_batch *batch)
{
    batch->joins = false;
    batch->in_slice = 0;
}

/* The cells of a row follow each other, so that a slice is looked up once for many of them. A copy
 * ends where its slice ends. */
int tierce__cuda_batch_add(struct tierce__cuda_batch *batch, uintptr_t device, uint8_t *cell,
                           size_t bytes)
{
    int rc = 0;
    if (cell != batch->after)
        batch->in_slice = 0;
    while (bytes > 0 && rc == 0) {
        if (batch->in_slice == 0) {
            batch->in_slice = tierce__cuda_registered_run(cell);
            batch->joins = false;
        }
        TIERCE_ASSERT(batch->in_slice > 0); /* the cell was pinned when the call began */
        size_t step = bytes < batch->in_slice ? bytes : batch->in_slice;
        rc = tierce__cuda_batch_put(batch, device, cell, step);
        device += step, cell += step;
        bytes -= step, batch->in_slice -= step;
    }
    batch->after = cell;
    return rc;
}
