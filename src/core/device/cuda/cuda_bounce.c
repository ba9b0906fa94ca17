/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_bounce.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "core/device/cuda/cuda_batch.h"
#include "core/device/cuda/cuda_bounce_part.h"

struct tierce__bounce_job {
    struct tierce__bounce_job *next; /* of those that are kept until close */
    bool enqueued;                   /* host functions may use it */
    size_t part_count;
    struct tierce__bounce_part parts[]; /* [part_count], then their pieces */
};

/* ---- the buffers ------------------------------------------------------------------------------
 */

void tierce__cuda_bounce_init(struct tierce__cuda_bounce *bounce)
{
    for (size_t i = 0; i < 2; i++)
        tierce__lock_init(&bounce->lock[i], TIERCE__LOCK_BOUNCE);
}

void tierce__cuda_bounce_fini(struct tierce__cuda_bounce *bounce)
{
    TIERCE_DASSERT(bounce->memory[0] == NULL && bounce->memory[1] == NULL);
    for (size_t i = 0; i < 2; i++)
        tierce__lock_fini(&bounce->lock[i]);
}

static void free_buffers(struct tierce__cuda *cuda)
{
    for (size_t i = 0; i < 2; i++) {
        if (cuda->bounce.memory[i] != NULL)
            (void)tierce__cuda_check(cuda, "cuMemFreeHost",
                                     cuda->api->host_free(cuda->bounce.memory[i]));
        cuda->bounce.memory[i] = NULL;
    }
}

/* Under the lock. */
static int alloc_buffers(struct tierce__cuda *cuda)
{
    int rc = 0;
    tierce__lock_assert_held(&cuda->bounce.lock[0]);
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        void *memory = NULL;
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            cuda->api->host_alloc(&memory, TIERCE__BOUNCE_BYTES, TIERCE__CU_HOST_PORTABLE));
        cuda->bounce.memory[i] = rc == 0 ? memory : NULL;
    }
    if (rc < 0)
        free_buffers(cuda);
    TIERCE_DASSERT(rc < 0 || cuda->bounce.memory[1] != NULL);
    return rc;
}

int tierce__cuda_allow_unpinned(struct tierce__device *device)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    tierce__lock_take(&cuda->bounce.lock[0]);
    if (!tierce__cuda_bounces(cuda))
        rc = alloc_buffers(cuda);
    if (rc == 0)
        atomic_store_explicit(&cuda->bounce.usable, true, memory_order_release);
    tierce__lock_drop(&cuda->bounce.lock[0]);
    return tierce__cuda_leave(cuda, rc);
}

/* ---- the list ---------------------------------------------------------------------------------
 */

static uint64_t bytes_of(const struct tierce__cuda_row *row)
{
    return row->bounces ? (uint64_t)row->cells.count * row->cell_bytes : 0;
}

/* Cells are cut where a part ends. */
static void list_pieces(struct tierce__bounce_job *job, const struct tierce__cuda_event *event,
                        struct tierce__bounce_piece *piece)
{
    struct tierce__bounce_part *part = NULL;
    size_t room = 0;
    for (size_t i = 0; i < event->count; i++) {
        uint8_t *cells = event->rows[i].cells.bytes;
        for (uint64_t left = bytes_of(&event->rows[i]), step; left > 0; left -= step) {
            if (room == 0) {
                part = &job->parts[job->part_count++];
                part->pieces = piece;
                room = TIERCE__BOUNCE_BYTES;
            }
            step = left < room ? left : room;
            *piece++ = (struct tierce__bounce_piece){.cells = cells, .bytes = (size_t)step};
            part->count++;
            cells += step;
            room -= (size_t)step;
        }
    }
}

int tierce__cuda_bounce_plan(const struct tierce__cuda *cuda, struct tierce__cuda_event *event,
                             enum tierce__direction direction)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < event->count; i++)
        bytes += bytes_of(&event->rows[i]);
    if (bytes == 0)
        return 0;
    TIERCE_ASSERT(tierce__cuda_bounces(cuda));
    size_t parts = (size_t)((bytes + TIERCE__BOUNCE_BYTES - 1) / TIERCE__BOUNCE_BYTES);
    size_t pieces = parts + event->count; /* at most: each part cuts one cell */
    struct tierce__bounce_job *job =
        tierce__calloc(1, sizeof(*job) + parts * sizeof(job->parts[0]) +
                              pieces * sizeof(struct tierce__bounce_piece));
    if (job == NULL)
        return -ENOMEM;
    list_pieces(job, event, (struct tierce__bounce_piece *)(void *)&job->parts[parts]);
    TIERCE_DASSERT(job->part_count == parts);
    for (size_t i = 0; i < parts; i++) {
        job->parts[i].buffer = cuda->bounce.memory[direction == TIERCE__DIRECTION_GATHER ? 0 : 1];
        job->parts[i].to_cells = direction == TIERCE__DIRECTION_GATHER;
    }
    event->bounce = job;
    return 0;
}

void tierce__cuda_bounce_forget(struct tierce__cuda *cuda, struct tierce__bounce_job *job,
                                bool is_over)
{
    struct tierce__cuda_bounce *bounce = &cuda->bounce;
    if (job == NULL)
        return;
    if (is_over || !job->enqueued) {
        tierce__free(job);
        return;
    }
    job->next = atomic_load_explicit(&bounce->kept, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&bounce->kept, &job->next, job,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

void tierce__cuda_bounce_close(struct tierce__cuda *cuda)
{
    struct tierce__bounce_job *job = atomic_load_explicit(&cuda->bounce.kept, memory_order_acquire);
    atomic_store_explicit(&cuda->bounce.kept, NULL, memory_order_relaxed);
    while (job != NULL) {
        struct tierce__bounce_job *next = job->next;
        TIERCE_DASSERT(job->enqueued);
        tierce__free(job);
        job = next;
    }
    free_buffers(cuda);
}

/* ---- the copies -------------------------------------------------------------------------------
 */

/* On a thread of the driver, which must not call the driver. */
static void move_part(void *argument)
{
    const struct tierce__bounce_part *part = argument;
    uint8_t *at = part->buffer;
    for (size_t i = 0; i < part->count; i++) {
        const struct tierce__bounce_piece *piece = &part->pieces[i];
        if (part->to_cells)
            memcpy(piece->cells, at, piece->bytes);
        else
            memcpy(at, piece->cells, piece->bytes);
        at += piece->bytes;
    }
}

/* The transfer that is being enqueued, and the next byte of its blocks. */
struct bouncing {
    struct tierce__cuda *cuda;
    const struct tierce__cuda_event *event;
    const struct tierce__device_copy *copy;
    enum tierce__direction direction;
    struct tierce__cuda_batch batch;
    size_t row, cell, done;
};

static int call_host(const struct bouncing *b, struct tierce__bounce_part *part)
{
    TIERCE_DASSERT(part->count > 0);
    return tierce__cuda_enqueued(
        b->cuda, "cuLaunchHostFunc",
        b->cuda->api->host_function(tierce__cuda_own_stream(b->cuda, b->direction), move_part,
                                    part));
}

/* Copies the rest of a cell, or as much of it as there is room. */
static int copy_cell(struct bouncing *b, uint8_t *buffer, size_t room, size_t *bytes)
{
    const struct tierce__cuda_row *row = &b->event->rows[b->row];
    size_t left = row->cell_bytes - b->done;
    uintptr_t block = tierce__row_block(b->copy, b->row, b->cell) + b->done;
    TIERCE_DASSERT(room > 0 && left > 0);
    *bytes = left < room ? left : room;
    b->done = *bytes < left ? b->done + *bytes : 0;
    b->cell += b->done == 0;
    return tierce__cuda_batch_put(&b->batch, block, buffer, *bytes);
}

/* Between the blocks and the buffer, until it is full. */
static int copy_part(struct bouncing *b, uint8_t *buffer)
{
    size_t used = 0, bytes;
    int rc = 0;
    while (used < TIERCE__BOUNCE_BYTES && b->row < b->event->count && rc == 0) {
        const struct tierce__cuda_row *row = &b->event->rows[b->row];
        if (row->bounces && b->cell < row->cells.count) {
            rc = copy_cell(b, buffer + used, TIERCE__BOUNCE_BYTES - used, &bytes);
            used += bytes;
        } else {
            b->row++, b->cell = 0;
            tierce__cuda_batch_row(&b->batch);
        }
    }
    return rc < 0 ? rc : tierce__cuda_batch_flush(&b->batch);
}

static int enqueue_part(struct bouncing *b, struct tierce__bounce_part *part)
{
    bool is_gather = b->direction == TIERCE__DIRECTION_GATHER;
    int rc = is_gather ? copy_part(b, part->buffer) : call_host(b, part);
    if (rc == 0)
        rc = is_gather ? call_host(b, part) : copy_part(b, part->buffer);
    return rc;
}

int tierce__cuda_bounce_enqueue(struct tierce__cuda *cuda, const struct tierce__cuda_event *event,
                                const struct tierce__device_copy *copy,
                                enum tierce__direction direction)
{
    struct tierce__bounce_job *job = event->bounce;
    struct bouncing b = {.cuda = cuda,
                         .event = event,
                         .copy = copy,
                         .direction = direction,
                         .batch = {.cuda = cuda, .direction = direction}};
    struct tierce__lock *lock = &cuda->bounce.lock[direction == TIERCE__DIRECTION_GATHER ? 0 : 1];
    int rc = 0;
    if (job == NULL)
        return 0;
    job->enqueued = true;
    tierce__lock_take(lock);
    for (size_t i = 0; i < job->part_count && rc == 0; i++)
        rc = enqueue_part(&b, &job->parts[i]);
    tierce__lock_drop(lock);
    return rc;
}
