/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers and scatters, by the copy engine or by the kernel (cuda_kernel.c):
 *
 *     caller's stream   ...kernels─┐ (event)                            ┌ (stream_wait)...kernels
 *     our stream                   └─► copies ─► event of the transfer ─┤
 *     host                                                              └ query, settle: sums
 */
#include "core/device/cuda/cuda_private.h"

#include <errno.h>

#include "base/assert.h"
#include "core/device/cuda/cuda_batch.h"
#include "core/device/cuda/cuda_bounce.h"
#include "core/device/cuda/cuda_kernel.h"

/* ---- by the copy engine -----------------------------------------------------------------------
 */

static bool is_pinned(struct tierce__cuda *cuda, const struct tierce__device_copy *copy, size_t i)
{
    return tierce__pinned_covers(&cuda->pinned, copy->rows[i].cells.bytes,
                                 (size_t)tierce__row_bytes(copy, i));
}

/* Whether cells are in a buffer of cuda_files.c. */
static bool is_on_device(struct tierce__cuda *cuda, const struct tierce__device_copy *copy,
                         size_t i)
{
    return copy->rows[i].cells.count > 0 &&
           tierce__pinned_covers(&cuda->buffers, copy->rows[i].cells.bytes,
                                 (size_t)tierce__row_bytes(copy, i));
}

static int add_row(struct tierce__cuda_batch *batch, const struct tierce__device_copy *copy,
                   size_t i)
{
    const struct tierce__device_row *row = &copy->rows[i];
    size_t bytes = copy->paged->layers[row->layer].block_bytes;
    int rc = 0;
    tierce__cuda_batch_row(batch);
    for (size_t c = 0; c < row->cells.count && rc == 0; c++)
        rc = tierce__cuda_batch_add(batch, tierce__row_block(copy, i, c),
                                    row->cells.bytes + c * bytes, bytes);
    return rc;
}

/* Rows that are not pinned are copied at the end. */
static int enqueue_copies(struct tierce__cuda *cuda, const struct tierce__cuda_event *event,
                          const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    struct tierce__cuda_batch batch = {.cuda = cuda, .direction = direction};
    int rc = 0;
    for (size_t i = 0; i < copy->count && rc == 0; i++)
        rc = event->rows[i].bounces ? 0 : add_row(&batch, copy, i);
    if (rc == 0)
        rc = tierce__cuda_batch_flush(&batch);
    return rc < 0 ? rc : tierce__cuda_bounce_enqueue(cuda, event, copy, direction);
}

/* ---- a transfer -------------------------------------------------------------------------------
 */

/* A copy that is being enqueued, and its copy method. */
struct transfer {
    struct tierce__cuda *cuda;
    const struct tierce__device_copy *copy;
    enum tierce__direction direction;
    struct tierce__cuda_kernel *kernel; /* NULL for `copies` */
    enum tierce__cuda_way way;
    struct tierce__cuda_event *event;
    bool is_on_device; /* all cells are in buffers on the device */
    bool is_recorded;  /* its end will be known */
};

/* If the driver has refused a call, the event follows the copies before it. */
static int enqueue(struct transfer *t)
{
    struct tierce__cuda *cuda = t->cuda;
    TIERCE__CU_STREAM stream = tierce__cuda_own_stream(cuda, t->direction);
    int rc = tierce__cuda_follow(cuda, stream, t->copy->stream);
    if (rc < 0)
        return rc;
    rc = t->way == TIERCE__CUDA_COPIES ? enqueue_copies(cuda, t->event, t->copy, t->direction)
                                       : tierce__cuda_kernel_enqueue(cuda, t->kernel, t->event,
                                                                     t->copy, t->direction, t->way);
    if (rc < 0 && rc != -ECANCELED)
        return rc;
    int recorded = tierce__cuda_required(cuda, "cuEventRecord",
                                         cuda->api->event_record(t->event->event, stream));
    t->is_recorded = recorded == 0;
    return recorded < 0 ? recorded : rc;
}

/* The driver's event is created first, so that nothing is in progress if there is no memory for
 * it. */
static int start(struct transfer *t)
{
    struct tierce__cuda *cuda = t->cuda;
    TIERCE__CU_EVENT *event = &t->event->event;
    int rc = tierce__cuda_check(cuda, "cuEventCreate",
                                cuda->api->event_create(event, TIERCE__CU_EVENT_DISABLE_TIMING));
    if (rc < 0)
        return rc;
    rc = enqueue(t);
    if (!t->is_recorded)
        (void)tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(*event));
    return rc;
}

/* Slices are pinned meanwhile, perhaps by another thread, and none is unpinned: a row that is
 * pinned now is pinned when it is enqueued. A row that bounces may bounce all the same if it is
 * pinned later. Returns whether a row bounces. */
static bool keep_rows(const struct transfer *t)
{
    const struct tierce__device_copy *copy = t->copy;
    bool any = false;
    TIERCE_DASSERT(t->event->count == copy->count);
    for (size_t i = 0; i < copy->count; i++) {
        const struct tierce__device_row *row = &copy->rows[i];
        t->event->rows[i] = (struct tierce__cuda_row){
            .cells = row->cells,
            .good = t->direction == TIERCE__DIRECTION_SCATTER ? row->good : NULL,
            .cell_bytes = copy->paged->layers[row->layer].block_bytes,
            .bounces = !t->is_on_device && !is_pinned(t->cuda, copy, i)};
        any |= t->event->rows[i].bounces;
    }
    return any;
}

/* Creates the event, with slots for the sums of the kernel. If too few slots are free, or a row is
 * not pinned, the copy engine copies; but cells on the device have their sums from the kernel only.
 */
static int create_event(struct transfer *t)
{
    size_t slots = t->way != TIERCE__CUDA_COPIES ? tierce__cuda_kernel_number(NULL, t->copy) : 0;
    if (slots > TIERCE__SUMS_SLOTS)
        slots = 0;
    t->event = tierce__cuda_event_create(t->cuda, t->copy->count, slots);
    if (t->event == NULL)
        return -ENOMEM;
    if (keep_rows(t)) {
        t->way = TIERCE__CUDA_COPIES;
        int rc = tierce__cuda_bounce_plan(t->cuda, t->event, t->direction);
        if (rc < 0)
            tierce__cuda_event_free(t->cuda, t->event);
        return rc;
    }
    if (slots > 0 && tierce__cuda_sums_take(&t->kernel->sums, t->event->slots, slots)) {
        t->event->sums = &t->kernel->sums;
        (void)tierce__cuda_kernel_number(t->event, t->copy);
    } else if (t->is_on_device) {
        tierce__cuda_event_free(t->cuda, t->event);
        return -ECANCELED;
    } else {
        t->way = TIERCE__CUDA_COPIES;
    }
    return 0;
}

/* Cells on the device are not mixed with others, because they have only one copy method. 1: all
 * cells are on the device. 0: none. TIERCE_E_ARGUMENT. */
static int check_device_rows(struct tierce__cuda *cuda, const struct tierce__device_copy *copy,
                             enum tierce__direction direction)
{
    struct tierce__pinned_slice any;
    size_t on_device = 0, others = 0;
    if (!tierce__pinned_last(&cuda->buffers, &any))
        return 0;
    for (size_t i = 0; i < copy->count; i++) {
        bool is_there = is_on_device(cuda, copy, i);
        on_device += is_there;
        others += !is_there && copy->rows[i].cells.count > 0;
    }
    if (on_device == 0)
        return 0;
    return others == 0 && direction == TIERCE__DIRECTION_SCATTER ? 1 : TIERCE_E_ARGUMENT;
}

static int check_pinned(struct tierce__cuda *cuda, const struct tierce__device_copy *copy)
{
    bool may_bounce = tierce__cuda_bounces(cuda);
    int rc = 0;
    for (size_t i = 0; i < copy->count && rc == 0 && !may_bounce; i++)
        rc = is_pinned(cuda, copy, i) ? 0 : TIERCE_E_ARGUMENT;
    return rc;
}

static int run_transfer(struct transfer *t, struct tierce__device_event **out)
{
    int rc = create_event(t);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_enter_good(t->cuda);
    if (rc == 0) {
        rc = start(t);
        rc = tierce__cuda_leave(t->cuda, rc);
    }
    if (rc == 0 || (rc == -ECANCELED && t->is_recorded))
        *out = (struct tierce__device_event *)t->event;
    else
        tierce__cuda_event_free(t->cuda, t->event);
    return rc;
}

int tierce__cuda_transfer(struct tierce__cuda *cuda, struct tierce__device_event **out,
                          const struct tierce__device_copy *copy, enum tierce__direction direction,
                          struct tierce__cuda_kernel *kernel, enum tierce__cuda_way way)
{
    TIERCE_ASSERT(kernel != NULL || way == TIERCE__CUDA_COPIES);
    struct transfer t = {
        .cuda = cuda, .copy = copy, .direction = direction, .kernel = kernel, .way = way};
    int rc = tierce__device_check(copy, direction);
    if (rc == 0)
        rc = check_pinned(cuda, copy);
    return rc < 0 ? rc : run_transfer(&t, out);
}

static int transfer(struct tierce__device *device, struct tierce__device_event **out,
                    const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    struct transfer t = {.cuda = cuda,
                         .copy = copy,
                         .direction = direction,
                         .kernel = atomic_load_explicit(&cuda->kernel, memory_order_acquire)};
    int rc = tierce__device_check(copy, direction);
    int on_device = rc == 0 ? check_device_rows(cuda, copy, direction) : rc;
    if (on_device < 0)
        return on_device;
    t.is_on_device = on_device > 0;
    if (t.is_on_device) {
        TIERCE_ASSERT(t.kernel != NULL); /* or there would be no buffer */
        t.way = TIERCE__CUDA_DIRECT;
        return run_transfer(&t, out);
    }
    rc = check_pinned(cuda, copy);
    if (rc < 0)
        return rc;
    if (t.kernel != NULL)
        t.way = tierce__cuda_kernel_way(t.kernel, copy, direction);
    return run_transfer(&t, out);
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

static uint64_t sum_of(const struct tierce__cuda_event *event, const struct tierce__cuda_row *row,
                       size_t c)
{
    TIERCE_DASSERT(c < row->cells.count);
    if (event->sums != NULL)
        return *tierce__cuda_sum_of(event, row->first + c);
    return tierce__sum(row->cells.bytes + c * row->cell_bytes, row->cell_bytes);
}

static uint32_t settle_row(const struct tierce__cuda_event *event,
                           const struct tierce__cuda_row *row)
{
    uint32_t bad = 0;
    for (size_t c = 0; c < row->cells.count; c++) {
        uint64_t sum = sum_of(event, row, c);
        if (row->good == NULL) {
            row->cells.sums[c] = sum;
        } else if (sum != row->cells.sums[c]) {
            /* The layers of a block may share the flag, and several threads may settle them. */
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
        bad += settle_row(mine, &mine->rows[i]);
    return bad;
}
