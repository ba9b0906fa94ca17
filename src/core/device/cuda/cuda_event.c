/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_bounce.h"
#include "core/device/cuda/cuda_sums.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"

struct tierce__cuda_event *tierce__cuda_event_of(struct tierce__device_event *event)
{
    struct tierce__cuda_event *mine = (struct tierce__cuda_event *)event;
    TIERCE_CHECK_MAGIC(mine, TIERCE__CUDA_EVENT_MAGIC);
    return mine;
}

struct tierce__cuda_event *tierce__cuda_event_create(struct tierce__cuda *cuda, size_t count,
                                                     size_t slot_count)
{
    struct tierce__cuda_event *event = NULL;
    size_t slots_bytes = slot_count * sizeof(event->slots[0]);
    TIERCE_DASSERT(slot_count <= UINT32_MAX);
    if (count <= (SIZE_MAX - sizeof(*event) - slots_bytes) / sizeof(event->rows[0]))
        event = tierce__calloc(1, sizeof(*event) + count * sizeof(event->rows[0]) + slots_bytes);
    if (event == NULL)
        return NULL;
    event->magic = TIERCE__CUDA_EVENT_MAGIC;
    event->count = count;
    event->slot_count = slot_count;
    event->slots = (uint32_t *)&event->rows[count];
    atomic_fetch_add_explicit(&cuda->alive, 1, memory_order_relaxed);
    return event;
}

static bool has_come(const struct tierce__cuda_event *event)
{
    return atomic_load_explicit(&event->state, memory_order_acquire) == TIERCE__CUDA_COME;
}

void tierce__cuda_event_free(struct tierce__cuda *cuda, struct tierce__cuda_event *event)
{
    TIERCE_DASSERT(event->magic == TIERCE__CUDA_EVENT_MAGIC);
    size_t alive = atomic_fetch_sub_explicit(&cuda->alive, 1, memory_order_relaxed);
    TIERCE_ASSERT(alive > 0);
    if (event->sums != NULL)
        tierce__cuda_sums_return(event->sums, event->slots, event->slot_count);
    tierce__cuda_bounce_forget(cuda, event->bounce, has_come(event));
    event->magic = 0;
    tierce__free(event);
}

/* An event that is recorded into a capture would never complete, and a wait for it would add our
 * own stream to the graph. */
static int check_capture(struct tierce__cuda *cuda, TIERCE__CU_STREAM stream)
{
    TIERCE__CU_CAPTURE_STATUS status = TIERCE__CU_CAPTURE_NONE;
    TIERCE__CU_RESULT code = cuda->api->stream_capturing(stream, &status);
    bool captures = code == TIERCE__CU_STREAM_CAPTURE_IMPLICIT ||
                    (code == TIERCE__CU_SUCCESS && status != TIERCE__CU_CAPTURE_NONE);
    if (!captures)
        return tierce__cuda_check(cuda, "cuStreamIsCapturing", code);
    tierce__log_repeated(TIERCE_LOG_WARN, "cuda_capture",
                         "device=%d why=\"the stream is being captured into a graph; copies of KV "
                         "must stay outside\"",
                         cuda->device);
    return TIERCE_E_UNSUPPORTED;
}

int tierce__cuda_event_record(struct tierce__cuda *cuda, TIERCE__CU_EVENT *out,
                              TIERCE__CU_STREAM stream)
{
    TIERCE__CU_EVENT event = NULL;
    int rc = check_capture(cuda, stream);
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuEventCreate",
                                cuda->api->event_create(&event, TIERCE__CU_EVENT_DISABLE_TIMING));
    if (rc < 0)
        return rc;
    rc = tierce__cuda_check(cuda, "cuEventRecord", cuda->api->event_record(event, stream));
    if (rc < 0)
        (void)tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(event));
    else
        *out = event;
    return rc;
}

int tierce__cuda_follow(struct tierce__cuda *cuda, TIERCE__CU_STREAM ours,
                        TIERCE__CU_STREAM callers)
{
    TIERCE__CU_EVENT before;
    int rc = tierce__cuda_event_record(cuda, &before, callers);
    if (rc < 0)
        return rc;
    rc = tierce__cuda_check(cuda, "cuStreamWaitEvent", cuda->api->stream_wait(ours, before, 0));
    int freed = tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(before));
    return rc < 0 ? rc : freed;
}

int tierce__cuda_record(struct tierce__device *device, struct tierce__device_event **out,
                        void *stream)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    struct tierce__cuda_event *event = tierce__cuda_event_create(cuda, 0, 0);
    if (event == NULL)
        return -ENOMEM;
    int rc = tierce__cuda_enter_good(cuda);
    if (rc == 0) {
        rc = tierce__cuda_event_record(cuda, &event->event, stream);
        rc = tierce__cuda_leave(cuda, rc);
    }
    if (rc < 0)
        tierce__cuda_event_free(cuda, event);
    else
        *out = (struct tierce__device_event *)event;
    return rc;
}

int tierce__cuda_stream_wait(struct tierce__device *device,
                             const struct tierce__device_event *event, void *stream)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    const struct tierce__cuda_event *mine = (const struct tierce__cuda_event *)event;
    TIERCE_CHECK_MAGIC(mine, TIERCE__CUDA_EVENT_MAGIC);
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    rc = check_capture(cuda, stream);
    if (rc == 0)
        rc = tierce__cuda_required(cuda, "cuStreamWaitEvent",
                                   cuda->api->stream_wait(stream, mine->event, 0));
    return tierce__cuda_leave(cuda, rc);
}

static int look(struct tierce__cuda *cuda, struct tierce__cuda_event *event)
{
    TIERCE__CU_RESULT code = cuda->api->event_query(event->event);
    if (code == TIERCE__CU_NOT_READY)
        return -EAGAIN;
    int rc = tierce__cuda_required(cuda, "cuEventQuery", code);
    if (rc == 0)
        atomic_store_explicit(&event->state, TIERCE__CUDA_COME, memory_order_release);
    return rc;
}

/* Queries the event even after a failure, because the memory of its copies may be used again when
 * it completes. */
int tierce__cuda_query(struct tierce__device *device, struct tierce__device_event *event)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    struct tierce__cuda_event *mine = tierce__cuda_event_of(event);
    if (!tierce__cuda_usable())
        return TIERCE_E_CLOSED;
    if (has_come(mine))
        return 0;
    int rc = tierce__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    rc = look(cuda, mine);
    (void)tierce__cuda_leave(cuda, rc); /* the event has completed anyway */
    return rc;
}

int tierce__cuda_wait(struct tierce__device *device, struct tierce__device_event *event,
                      uint64_t deadline_ns)
{
    int rc;
    for (unsigned polls = 0;; polls++) {
        rc = tierce__cuda_query(device, event);
        if (rc != -EAGAIN)
            return rc;
        if (tierce__now_ns() >= deadline_ns)
            return TIERCE_E_DEADLINE;
        tierce__cuda_pause(polls);
    }
}

static void destroy_event(struct tierce__cuda *cuda, TIERCE__CU_EVENT event)
{
    if (tierce__cuda_enter(cuda) < 0)
        return;
    /* A failure is logged, and leaks the event. */
    (void)tierce__cuda_leave(
        cuda, tierce__cuda_check(cuda, "cuEventDestroy", cuda->api->event_destroy(event)));
}

void tierce__cuda_forget(struct tierce__device *device, struct tierce__device_event *event)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    if (event == NULL)
        return;
    struct tierce__cuda_event *mine = tierce__cuda_event_of(event);
    bool may_go = mine->count == 0 || has_come(mine) || !tierce__cuda_usable() ||
                  atomic_load_explicit(&cuda->failed, memory_order_relaxed);
    TIERCE_ASSERT(may_go);
    destroy_event(cuda, mine->event);
    tierce__cuda_event_free(cuda, mine);
}
