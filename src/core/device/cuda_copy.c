/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers and scatters by the copy engine:
 *
 *     caller's stream   ...kernels─┐ (event)                            ┌ (stream_wait)...kernels
 *     our stream                   └─► copies ─► event of the transfer ─┤
 *     host                                                              └ query, settle: sums
 */
#include "core/device/cuda_private.h"

#include <errno.h>

#include "base/assert.h"

enum { BATCH_MAX = 64 };

/* Copies that are enqueued together. */
struct batch {
    struct tierce__cuda *cuda;
    enum tierce__direction direction;
    size_t count;
    bool joins; /* the next copy may extend the last one */
    TIERCE__CU_ADDRESS to[BATCH_MAX], from[BATCH_MAX];
    size_t bytes[BATCH_MAX];
};

static TIERCE__CU_STREAM own_stream(const struct tierce__cuda *cuda,
                                    enum tierce__direction direction)
{
    return cuda->streams[direction == TIERCE__DIRECTION_GATHER ? 0 : 1];
}

/* ---- one call of the driver for many copies ---------------------------------------------------
 */

static int copy_one(const struct batch *batch, size_t i)
{
    const struct tierce__cuda_api *api = batch->cuda->api;
    TIERCE__CU_STREAM stream = own_stream(batch->cuda, batch->direction);
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

static int copy_many(struct batch *batch)
{
    const struct tierce__cuda_api *api = batch->cuda->api;
    TIERCE__CU_STREAM stream = own_stream(batch->cuda, batch->direction);
    TIERCE__CU_COPY_ATTRIBUTES attributes = {.source_order = TIERCE__CU_SOURCE_ORDER_STREAM};
    size_t first = 0, failed = 0;
    TIERCE_DASSERT(batch->count > 1 && batch->count <= BATCH_MAX);
    TIERCE__CU_RESULT code =
        api->copy_batch_2 != NULL
            ? api->copy_batch_2(batch->to, batch->from, batch->bytes, batch->count, &attributes,
                                &first, 1, stream)
            : api->copy_batch(batch->to, batch->from, batch->bytes, batch->count, &attributes,
                              &first, 1, &failed, stream);
    return tierce__cuda_enqueued(batch->cuda, "cuMemcpyBatchAsync", code);
}

static int flush(struct batch *batch)
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

static int add(struct batch *batch, uintptr_t block, uintptr_t cell, size_t bytes)
{
    bool is_gather = batch->direction == TIERCE__DIRECTION_GATHER;
    uintptr_t to = is_gather ? cell : block, from = is_gather ? block : cell;
    if (batch->joins && batch->count > 0) {
        size_t last = batch->count - 1;
        if (batch->to[last] + batch->bytes[last] == to &&
            batch->from[last] + batch->bytes[last] == from) {
            batch->bytes[last] += bytes;
            return 0;
        }
    }
    int rc = batch->count == BATCH_MAX ? flush(batch) : 0;
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(batch->count < BATCH_MAX);
    batch->to[batch->count] = to;
    batch->from[batch->count] = from;
    batch->bytes[batch->count++] = bytes;
    batch->joins = true;
    return 0;
}

/* The cells of a row follow each other, so that a slice is looked up once for many of them. A copy
 * ends where its slice ends. */
static int add_row(struct batch *batch, const struct tierce__device_copy *copy, size_t i)
{
    const struct tierce__device_row *row = &copy->rows[i];
    uint8_t *cell = row->cells.bytes;
    size_t in_slice = 0;
    int rc = 0;
    batch->joins = false;
    for (size_t c = 0; c < row->cells.count; c++) {
        uintptr_t block = tierce__row_block(copy, i, c);
        size_t left = copy->paged->layers[row->layer].block_bytes;
        while (left > 0 && rc == 0) {
            if (in_slice == 0) {
                in_slice = tierce__pinned_run(&batch->cuda->pinned, cell);
                batch->joins = false;
            }
            TIERCE_ASSERT(in_slice > 0); /* it was pinned when the call began */
            size_t step = left < in_slice ? left : in_slice;
            rc = add(batch, block, (uintptr_t)cell, step);
            block += step, cell += step;
            left -= step, in_slice -= step;
        }
    }
    return rc;
}

static int enqueue_cells(struct tierce__cuda *cuda, const struct tierce__device_copy *copy,
                         enum tierce__direction direction)
{
    struct batch batch = {.cuda = cuda, .direction = direction};
    int rc = 0;
    for (size_t i = 0; i < copy->count && rc == 0; i++)
        rc = add_row(&batch, copy, i);
    return rc < 0 ? rc : flush(&batch);
}

/* ---- a transfer -------------------------------------------------------------------------------
 */

/* Later work on our stream begins after all work that is on the caller's stream now. */
static int order_behind(struct tierce__cuda *cuda, void *stream, enum tierce__direction direction)
{
    TIERCE__CU_EVENT before;
    int rc = tierce__cuda_event_record(cuda, &before, stream);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_check(cuda, "cuStreamWaitEvent",
                            cuda->api->stream_wait(own_stream(cuda, direction), before, 0));
    int freed = tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(before));
    return rc < 0 ? rc : freed;
}

static int enqueue(struct tierce__cuda *cuda, TIERCE__CU_EVENT event,
                   const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    int rc = order_behind(cuda, copy->stream, direction);
    if (rc == 0)
        rc = enqueue_cells(cuda, copy, direction);
    if (rc == 0)
        rc = tierce__cuda_enqueued(cuda, "cuEventRecord",
                                   cuda->api->event_record(event, own_stream(cuda, direction)));
    return rc;
}

/* The driver's event is created first: nothing is in progress if there is no memory for it. */
static int start(struct tierce__cuda *cuda, TIERCE__CU_EVENT *event,
                 const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    int rc = tierce__cuda_check(cuda, "cuEventCreate",
                                cuda->api->event_create(event, TIERCE__CU_EVENT_DISABLE_TIMING));
    if (rc < 0)
        return rc;
    rc = enqueue(cuda, *event, copy, direction);
    if (rc < 0)
        (void)tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(*event));
    return rc;
}

static void keep_rows(struct tierce__cuda_event *event, const struct tierce__device_copy *copy,
                      enum tierce__direction direction)
{
    TIERCE_DASSERT(event->count == copy->count);
    for (size_t i = 0; i < copy->count; i++) {
        const struct tierce__device_row *row = &copy->rows[i];
        event->rows[i] = (struct tierce__cuda_row){
            .cells = row->cells,
            .good = direction == TIERCE__DIRECTION_SCATTER ? row->good : NULL,
            .cell_bytes = copy->paged->layers[row->layer].block_bytes};
    }
}

static int check(struct tierce__cuda *cuda, const struct tierce__device_copy *copy,
                 enum tierce__direction direction)
{
    int rc = tierce__device_check(copy, direction);
    for (size_t i = 0; i < copy->count && rc == 0; i++) {
        if (!tierce__pinned_covers(&cuda->pinned, copy->rows[i].cells.bytes,
                                   (size_t)tierce__row_bytes(copy, i)))
            rc = TIERCE_E_ARGUMENT;
    }
    return rc;
}

static int transfer(struct tierce__device *device, struct tierce__device_event **out,
                    const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = check(cuda, copy, direction);
    if (rc < 0)
        return rc;
    struct tierce__cuda_event *event = tierce__cuda_event_create(cuda, copy->count);
    if (event == NULL)
        return -ENOMEM;
    keep_rows(event, copy, direction);
    rc = tierce__cuda_enter_good(cuda);
    if (rc == 0) {
        rc = start(cuda, &event->event, copy, direction);
        rc = tierce__cuda_leave(cuda, rc);
    }
    if (rc < 0)
        tierce__cuda_event_free(cuda, event);
    else
        *out = (struct tierce__device_event *)event;
    return rc;
}

int tierce__cuda_gather(struct tierce__device *device, struct tierce__device_event **event,
                        const struct tierce__device_copy *copy)
{
    return transfer(device, event, copy, TIERCE__DIRECTION_GATHER);
}

int tierce__cuda_scatter(struct tierce__device *device, struct tierce__device_event **event,
                         const struct tierce__device_copy *copy)
{
    return transfer(device, event, copy, TIERCE__DIRECTION_SCATTER);
}

/* ---- sums -------------------------------------------------------------------------------------
 */

static uint32_t settle_row(const struct tierce__cuda_row *row)
{
    const uint8_t *cell = row->cells.bytes;
    uint32_t bad = 0;
    for (size_t c = 0; c < row->cells.count; c++, cell += row->cell_bytes) {
        uint64_t sum = tierce__sum(cell, row->cell_bytes);
        if (row->good == NULL) {
            row->cells.sums[c] = sum;
        } else if (sum != row->cells.sums[c]) {
            /* Layers of a block may share the flag, and be settled by several threads. */
            __atomic_store_n(&row->good[c], 0, __ATOMIC_RELAXED);
            bad++;
        }
    }
    TIERCE_DASSERT(bad <= row->cells.count);
    return bad;
}

int64_t tierce__cuda_settle(struct tierce__device *device, struct tierce__device_event *event,
                            size_t from, size_t to)
{
    const struct tierce__cuda_event *mine = tierce__cuda_event_of(event);
    int64_t bad = 0;
    (void)tierce__cuda_of(device);
    TIERCE_ASSERT(from <= to && to <= mine->count);
    if (atomic_load_explicit(&mine->state, memory_order_acquire) != TIERCE__CUDA_COME)
        return -EAGAIN;
    for (size_t i = from; i < to; i++)
        bad += settle_row(&mine->rows[i]);
    return bad;
}
