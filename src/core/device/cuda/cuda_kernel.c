/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of the kernel of kernels/copy_sum.cu:
 *
 *     direct gather     blocks ─kernel─► pinned memory
 *     staged gather     blocks ─kernel─► buffer ─copy engine─► pinned memory
 *     direct scatter    pinned memory ─kernel─► blocks
 *     staged scatter    pinned memory ─copy engine─► buffer ─kernel─► blocks
 *
 * If a copy is larger than the buffer, it is several such sequences on the same stream.
 */
#include "core/device/cuda/cuda_kernel.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/device/cuda/cuda_batch.h"
#include "core/device/kernels/copy_sum.h"

_Static_assert(sizeof(struct tierce__launch) <= 4096, "more parameters than a driver accepts");

/* At most this share of a device's multiprocessors runs our kernel at a time in each direction, and
 * at least one: the inference engine computes meanwhile. */
#define SHARE_PERCENT 5u

/* ---- open and close ---------------------------------------------------------------------------
 */

/* After a failure here, the device is used without the kernel; the device has not failed. */
static int refuse(const struct tierce__cuda *cuda, struct tierce__cuda_refusal *why,
                  const char *call, TIERCE__CU_RESULT code)
{
    if (code == TIERCE__CU_SUCCESS)
        return 0;
    (void)tierce__cuda_text(cuda->api, call, code, why->text);
    return TIERCE_E_UNSUPPORTED;
}

static int load_function(struct tierce__cuda_kernel *kernel, const struct tierce__cuda *cuda,
                         struct tierce__cuda_refusal *why)
{
    const struct tierce__cuda_api *api = cuda->api;
    int processors = 0, direct = 0;
    int rc = refuse(cuda, why, "cuModuleLoadData",
                    api->module_load(&kernel->module, tierce__copy_sum_ptx));
    if (rc == 0)
        rc = refuse(cuda, why, "cuModuleGetFunction",
                    api->module_function(&kernel->function, kernel->module, TIERCE__LAUNCH_KERNEL));
    if (rc == 0)
        rc = refuse(
            cuda, why, "cuDeviceGetAttribute",
            api->device_attribute(&processors, TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS, cuda->device));
    if (rc == 0)
        rc = refuse(
            cuda, why, "cuDeviceGetAttribute",
            api->device_attribute(&direct, TIERCE__CU_ATTRIBUTE_HOST_POINTERS, cuda->device));
    unsigned share = processors > 0 ? (unsigned)processors * SHARE_PERCENT / 100 : 0;
    kernel->blocks_max = share > 0 ? share : 1;
    kernel->direct = direct != 0;
    return rc;
}

/* Without memory for both buffers, `staged` is not used. */
static void alloc_staging(struct tierce__cuda_kernel *kernel, struct tierce__cuda *cuda)
{
    const struct tierce__cuda_api *api = cuda->api;
    for (size_t i = 0; i < 2; i++) {
        if (api->memory_alloc(&kernel->staging[i], TIERCE__STAGING_BYTES) != TIERCE__CU_SUCCESS)
            kernel->staging[i] = 0;
    }
    if (kernel->staging[0] == 0 || kernel->staging[1] == 0)
        tierce__cuda_kernel_unstage(cuda, kernel);
}

void tierce__cuda_kernel_unstage(struct tierce__cuda *cuda, struct tierce__cuda_kernel *kernel)
{
    for (size_t i = 0; i < 2; i++) {
        if (kernel->staging[i] != 0)
            (void)tierce__cuda_check(cuda, "cuMemFree", cuda->api->memory_free(kernel->staging[i]));
        kernel->staging[i] = 0;
    }
}

static TIERCE__CU_RESULT launch(const struct tierce__cuda *cuda,
                                const struct tierce__cuda_kernel *kernel,
                                struct tierce__launch *what, enum tierce__direction direction)
{
    void *parameters[] = {what};
    unsigned blocks = what->count < kernel->blocks_max ? what->count : kernel->blocks_max;
    TIERCE_DASSERT(what->count <= TIERCE__LAUNCH_CELLS);
    return cuda->api->launch(kernel->function, blocks > 0 ? blocks : 1, 1, 1,
                             TIERCE__LAUNCH_THREADS, 1, 1, 0,
                             tierce__cuda_own_stream(cuda, direction), parameters, NULL);
}

/* Waits until the launch without cells has completed. If it does not complete, no memory stays in
 * use, because the launch accesses none. */
static int try_launch(struct tierce__cuda_kernel *kernel, const struct tierce__cuda *cuda,
                      struct tierce__cuda_refusal *why)
{
    struct tierce__launch none = {.bytes = 1};
    enum { POLLS_MAX = 100000 }; /* 20 seconds of sleep in total */
    int rc =
        refuse(cuda, why, "cuLaunchKernel", launch(cuda, kernel, &none, TIERCE__DIRECTION_GATHER));
    TIERCE__CU_RESULT code = TIERCE__CU_NOT_READY;
    for (unsigned polls = 0; rc == 0 && code == TIERCE__CU_NOT_READY && polls < POLLS_MAX;
         polls++) {
        code = cuda->api->stream_query(tierce__cuda_own_stream(cuda, TIERCE__DIRECTION_GATHER));
        if (code == TIERCE__CU_NOT_READY)
            tierce__cuda_pause(polls);
    }
    return rc < 0 ? rc : refuse(cuda, why, "cuStreamQuery", code);
}

static int open_kernel(struct tierce__cuda_kernel *kernel, struct tierce__cuda *cuda,
                       struct tierce__cuda_refusal *why)
{
    void *memory = NULL;
    int rc = load_function(kernel, cuda, why);
    if (rc == 0)
        rc = try_launch(kernel, cuda, why);
    if (rc == 0)
        rc = refuse(cuda, why, "cuMemHostAlloc",
                    cuda->api->host_alloc(&memory, TIERCE__SUMS_BYTES,
                                          TIERCE__CU_HOST_PORTABLE | TIERCE__CU_HOST_DEVICEMAP));
    if (rc < 0)
        return rc;
    tierce__cuda_sums_init(&kernel->sums, memory);
    alloc_staging(kernel, cuda);
    if (kernel->direct || kernel->staging[0] != 0)
        return 0;
    snprintf(why->text, sizeof(why->text), "no memory on the device for buffers");
    return -ENOMEM;
}

int tierce__cuda_kernel_open(struct tierce__cuda_kernel **out, struct tierce__cuda *cuda,
                             struct tierce__cuda_refusal *why)
{
    struct tierce__cuda_kernel *kernel = tierce__calloc(1, sizeof(*kernel));
    if (kernel == NULL) {
        snprintf(why->text, sizeof(why->text), "%s", tierce_strerror(-ENOMEM));
        return -ENOMEM;
    }
    for (size_t i = 0; i < 2; i++)
        tierce__lock_init(&kernel->staging_lock[i], TIERCE__LOCK_STAGING);
    int rc = open_kernel(kernel, cuda, why);
    if (rc < 0)
        tierce__cuda_kernel_close(cuda, kernel);
    else
        *out = kernel;
    return rc;
}

void tierce__cuda_kernel_close(struct tierce__cuda *cuda, struct tierce__cuda_kernel *kernel)
{
    const struct tierce__cuda_api *api = cuda->api;
    if (kernel == NULL)
        return;
    tierce__cuda_kernel_unstage(cuda, kernel);
    if (kernel->sums.memory != NULL) {
        tierce__cuda_sums_fini(&kernel->sums);
        (void)tierce__cuda_check(cuda, "cuMemFreeHost", api->host_free(kernel->sums.memory));
    }
    if (kernel->module != NULL)
        (void)tierce__cuda_check(cuda, "cuModuleUnload", api->module_unload(kernel->module));
    for (size_t i = 0; i < 2; i++)
        tierce__lock_fini(&kernel->staging_lock[i]);
    tierce__free(kernel);
}

/* ---- which way --------------------------------------------------------------------------------
 */

/* Whether the kernel moves all cells in units of 16 bytes. */
static bool is_aligned(const struct tierce__device_copy *copy)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < copy->count; i++) {
        const struct tierce_paged_layer *layer = &copy->paged->layers[copy->rows[i].layer];
        bits |= (uintptr_t)layer->base | layer->block_stride | layer->block_bytes;
        bits |= (uintptr_t)copy->rows[i].cells.bytes;
    }
    return bits % 16 == 0;
}

enum tierce__cuda_way tierce__cuda_kernel_way(const struct tierce__cuda_kernel *kernel,
                                              const struct tierce__device_copy *copy,
                                              enum tierce__direction direction)
{
    size_t cell_max = 0;
    for (size_t i = 0; i < copy->count; i++) {
        size_t bytes = copy->paged->layers[copy->rows[i].layer].block_bytes;
        cell_max = bytes > cell_max ? bytes : cell_max;
    }
    enum tierce__cuda_way way = kernel->ways[direction][tierce__cuda_class(cell_max)];
    size_t most = way == TIERCE__CUDA_STAGED ? TIERCE__STAGING_BYTES : TIERCE__LAUNCH_BYTES_MAX;
    if (cell_max > most || (!kernel->is_forced && !is_aligned(copy)))
        return TIERCE__CUDA_COPIES;
    return way;
}

size_t tierce__cuda_kernel_number(struct tierce__cuda_event *event,
                                  const struct tierce__device_copy *copy)
{
    uint64_t number = 0;
    for (size_t i = 0; i < copy->count; i++) {
        if (event != NULL)
            event->rows[i].first = (uint32_t)number;
        number += copy->rows[i].cells.count;
    }
    return (size_t)((number + TIERCE__LAUNCH_CELLS - 1) / TIERCE__LAUNCH_CELLS);
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* The launch that is being enqueued. */
struct sequence {
    struct tierce__cuda *cuda;
    struct tierce__cuda_kernel *kernel;
    const struct tierce__cuda_event *event;
    const struct tierce__device_copy *copy;
    enum tierce__direction direction;
    TIERCE__CU_ADDRESS staging; /* 0: direct */
    struct tierce__cuda_batch batch;
    struct tierce__launch launch;
};

static int flush_launch(struct sequence *s)
{
    if (s->launch.count == 0)
        return 0;
    TIERCE__CU_RESULT code = launch(s->cuda, s->kernel, &s->launch, s->direction);
    s->launch.count = 0;
    return tierce__cuda_enqueued(s->cuda, "cuLaunchKernel", code);
}

/* Adds a cell to the launch: between its block and `other`, pinned memory or the buffer. */
static int add_to_launch(struct sequence *s, size_t row, size_t c, uint64_t other)
{
    bool is_gather = s->direction == TIERCE__DIRECTION_GATHER;
    uint64_t block = tierce__row_block(s->copy, row, c);
    size_t number = s->event->rows[row].first + c;
    uint64_t sum = (uintptr_t)tierce__cuda_sum_of(s->event, number);
    uint32_t bytes = s->event->rows[row].cell_bytes, i = s->launch.count;
    /* Cells of the same slot follow each other. */
    bool follows = i > 0 && number % TIERCE__LAUNCH_CELLS != 0 && bytes == s->launch.bytes &&
                   sum == s->launch.sums + i * sizeof(uint64_t);
    int rc = follows ? 0 : flush_launch(s);
    if (rc < 0)
        return rc;
    i = s->launch.count;
    TIERCE_DASSERT(i < TIERCE__LAUNCH_CELLS);
    if (i == 0)
        s->launch.sums = sum, s->launch.bytes = bytes;
    s->launch.from[i] = is_gather ? block : other;
    s->launch.to[i] = is_gather ? other : block;
    s->launch.count++;
    return 0;
}

/* ---- parts ------------------------------------------------------------------------------------
 */

/* A part of the copy: as many cells as the buffer holds, from cell `cell` of row `row` on. */
struct part {
    size_t row, cell;
};

static uint8_t *cell_of(const struct sequence *s, size_t row, size_t c)
{
    return s->event->rows[row].cells.bytes + c * s->event->rows[row].cell_bytes;
}

/* Calls a function for each cell of a part, with the cell's place in the buffer; *part becomes the
 * next one. */
static int each_of_part(struct sequence *s, struct part *part,
                        int (*each)(struct sequence *s, size_t row, size_t c, uint64_t staged))
{
    size_t used = 0;
    int rc = 0;
    for (; part->row < s->copy->count; part->row++, part->cell = 0) {
        size_t count = s->event->rows[part->row].cells.count;
        size_t room = (size_t)tierce__round_up(s->event->rows[part->row].cell_bytes, 16);
        tierce__cuda_batch_row(&s->batch);
        for (; part->cell < count && rc == 0; part->cell++, used += room) {
            if (s->staging != 0 && used + room > TIERCE__STAGING_BYTES)
                return 0;
            rc = each(s, part->row, part->cell, s->staging + used);
        }
        if (rc < 0)
            return rc;
    }
    return rc;
}

static int launch_direct(struct sequence *s, size_t row, size_t c, uint64_t staged)
{
    (void)staged;
    return add_to_launch(s, row, c, (uintptr_t)cell_of(s, row, c));
}

static int launch_staged(struct sequence *s, size_t row, size_t c, uint64_t staged)
{
    return add_to_launch(s, row, c, staged);
}

static int copy_staged(struct sequence *s, size_t row, size_t c, uint64_t staged)
{
    return tierce__cuda_batch_add(&s->batch, (uintptr_t)staged, cell_of(s, row, c),
                                  s->event->rows[row].cell_bytes);
}

/* Between block and buffer. */
static int enqueue_launches(struct sequence *s, struct part *part)
{
    int rc = each_of_part(s, part, s->staging != 0 ? launch_staged : launch_direct);
    return rc < 0 ? rc : flush_launch(s);
}

/* Between buffer and pinned memory. */
static int enqueue_copies(struct sequence *s, struct part *part)
{
    int rc = each_of_part(s, part, copy_staged);
    return rc < 0 ? rc : tierce__cuda_batch_flush(&s->batch);
}

static int enqueue_staged(struct sequence *s)
{
    struct part first = {0}, second = {0};
    bool is_gather = s->direction == TIERCE__DIRECTION_GATHER;
    int rc = 0;
    while (first.row < s->copy->count && rc == 0) {
        rc = is_gather ? enqueue_launches(s, &first) : enqueue_copies(s, &first);
        if (rc == 0)
            rc = is_gather ? enqueue_copies(s, &second) : enqueue_launches(s, &second);
        TIERCE_DASSERT(rc < 0 || (first.row == second.row && first.cell == second.cell));
    }
    return rc;
}

int tierce__cuda_kernel_enqueue(struct tierce__cuda *cuda, struct tierce__cuda_kernel *kernel,
                                const struct tierce__cuda_event *event,
                                const struct tierce__device_copy *copy,
                                enum tierce__direction direction, enum tierce__cuda_way way)
{
    struct sequence s = {.cuda = cuda,
                         .kernel = kernel,
                         .event = event,
                         .copy = copy,
                         .direction = direction,
                         .batch = {.cuda = cuda, .direction = direction}};
    TIERCE_ASSERT(way != TIERCE__CUDA_COPIES && event->sums == &kernel->sums);
    if (way == TIERCE__CUDA_DIRECT)
        return enqueue_launches(&s, &(struct part){0});
    struct tierce__lock *lock = &kernel->staging_lock[direction];
    tierce__lock_take(lock);
    s.staging = kernel->staging[direction];
    TIERCE_ASSERT(s.staging != 0);
    int rc = enqueue_staged(&s);
    tierce__lock_drop(lock);
    return rc;
}
