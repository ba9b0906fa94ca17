/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU, by CUDA's driver. */
#include "core/device/cuda/cuda_private.h"

#include <errno.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "core/device/cuda/cuda_bounce.h"
#include "core/device/cuda/cuda_decode.h"
#include "core/device/cuda/cuda_keys.h"
#include "core/device/cuda/cuda_register.h"
#include "core/device/cuda/cuda_trial.h"
#include "core/device/numa.h"

/* ---- for all files --------------------------------------------------------------------------- */

struct tierce__cuda *tierce__cuda_of(struct tierce__device *device)
{
    struct tierce__cuda *cuda = (struct tierce__cuda *)device;
    TIERCE_CHECK_MAGIC(cuda, TIERCE__CUDA_MAGIC);
    return cuda;
}

static void log_call(const struct tierce__cuda *cuda, const char *event, const char *call,
                     TIERCE__CU_RESULT code)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    tierce__log_repeated(TIERCE_LOG_WARN, event, "device=%d why=\"%s\"", cuda->device,
                         tierce__cuda_text(cuda->api, call, code, text));
}

bool tierce__cuda_is_refusal(TIERCE__CU_RESULT code)
{
    switch (code) {
    case TIERCE__CU_INVALID_VALUE:
    case TIERCE__CU_OUT_OF_MEMORY:
    case TIERCE__CU_OPERATING_SYSTEM:
    case TIERCE__CU_INVALID_HANDLE:
    case TIERCE__CU_LAUNCH_OUT_OF_RESOURCES:
    case TIERCE__CU_ALREADY_REGISTERED:
    case TIERCE__CU_NOT_REGISTERED:
    case TIERCE__CU_NOT_PERMITTED:
    case TIERCE__CU_NOT_SUPPORTED:
    case TIERCE__CU_STREAM_CAPTURE_UNSUPPORTED:
    case TIERCE__CU_STREAM_CAPTURE_IMPLICIT:
        return true;
    default:
        return false;
    }
}

int tierce__cuda_required(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code)
{
    if (code == TIERCE__CU_SUCCESS)
        return 0;
    atomic_store_explicit(&cuda->failed, true, memory_order_relaxed);
    log_call(cuda, "cuda_failed", call, code);
    return -EIO;
}

int tierce__cuda_enqueued(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code)
{
    if (!tierce__cuda_is_refusal(code))
        return tierce__cuda_required(cuda, call, code);
    log_call(cuda, "cuda_refused", call, code);
    return -ECANCELED;
}

int tierce__cuda_check(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code)
{
    if (code != TIERCE__CU_OUT_OF_MEMORY)
        return tierce__cuda_enqueued(cuda, call, code);
    log_call(cuda, "cuda_no_memory", call, code);
    return -ENOMEM;
}

/* Between enter and leave: the mode of captures that this thread had before. */
static _Thread_local TIERCE__CU_CAPTURE_MODE callers_mode;

static int exchange_mode(struct tierce__cuda *cuda)
{
    return tierce__cuda_required(cuda, "cuThreadExchangeStreamCaptureMode",
                                 cuda->api->capture_mode(&callers_mode));
}

static int pop_context(struct tierce__cuda *cuda, int rc)
{
    TIERCE__CU_CONTEXT context = NULL;
    int left = tierce__cuda_required(cuda, "cuCtxPopCurrent", cuda->api->context_pop(&context));
    TIERCE_DASSERT(left < 0 || context == cuda->context);
    return rc < 0 ? rc : left < 0 ? left : rc;
}

int tierce__cuda_enter(struct tierce__cuda *cuda)
{
    if (!tierce__cuda_usable())
        return TIERCE_E_CLOSED;
    int rc =
        tierce__cuda_required(cuda, "cuCtxPushCurrent", cuda->api->context_push(cuda->context));
    if (rc < 0)
        return rc;
    callers_mode = TIERCE__CU_CAPTURE_RELAXED;
    rc = exchange_mode(cuda);
    return rc < 0 ? pop_context(cuda, rc) : 0;
}

int tierce__cuda_enter_good(struct tierce__cuda *cuda)
{
    if (!tierce__cuda_usable())
        return TIERCE_E_CLOSED;
    if (atomic_load_explicit(&cuda->failed, memory_order_relaxed))
        return -EIO;
    return tierce__cuda_enter(cuda);
}

int tierce__cuda_leave(struct tierce__cuda *cuda, int rc)
{
    int restored = exchange_mode(cuda);
    return pop_context(cuda, rc < 0 ? rc : restored < 0 ? restored : rc);
}

void tierce__cuda_pause(unsigned polls)
{
    enum { EAGER = 32, SHORT_NS = 20000, LONG_NS = 200000 };
    struct timespec pause = {.tv_nsec = polls < 4 * EAGER ? SHORT_NS : LONG_NS};
    if (polls >= EAGER)
        (void)nanosleep(&pause, NULL); /* after a signal, the next poll is only earlier */
}

/* ---- open ------------------------------------------------------------------------------------ */

static int refuse(const void *address, const char *why)
{
    tierce__log(TIERCE_LOG_WARN, "cuda_unusable", "address=%p why=\"%s\"", address, why);
    return TIERCE_E_ARGUMENT;
}

/* Which device has the memory, and whether its primary context is in use. */
static int find_device(struct tierce__cuda *cuda, const void *address)
{
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_ADDRESS at = (uintptr_t)address;
    unsigned int type = 0, flags;
    int ordinal = 0, active = 0;
    TIERCE__CU_RESULT code = api->pointer_attribute(&type, TIERCE__CU_ATTRIBUTE_MEMORY_TYPE, at);
    if (code == TIERCE__CU_INVALID_VALUE ||
        (code == TIERCE__CU_SUCCESS && type != TIERCE__CU_MEMORY_DEVICE))
        return refuse(address, "not memory of a GPU; describe memory of the host without a device");
    int rc = tierce__cuda_check(cuda, "cuPointerGetAttribute", code);
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuPointerGetAttribute",
                                api->pointer_attribute(&ordinal, TIERCE__CU_ATTRIBUTE_ORDINAL, at));
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuDeviceGet", api->device_get(&cuda->device, ordinal));
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuDevicePrimaryCtxGetState",
                                api->primary_state(cuda->device, &flags, &active));
    if (rc == 0 && !active)
        return refuse(address, "not memory of the device's primary context; other contexts are not "
                               "supported");
    return rc;
}

static void destroy_streams(struct tierce__cuda *cuda)
{
    for (size_t i = 0; i < 2; i++) {
        if (cuda->streams[i] != NULL)
            (void)tierce__cuda_check(cuda, "cuStreamDestroy",
                                     cuda->api->stream_destroy(cuda->streams[i]));
        cuda->streams[i] = NULL;
    }
}

static int create_streams(struct tierce__cuda *cuda)
{
    int rc = tierce__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < 2 && rc == 0; i++)
        rc = tierce__cuda_check(
            cuda, "cuStreamCreate",
            cuda->api->stream_create(&cuda->streams[i], TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc < 0)
        destroy_streams(cuda);
    rc = tierce__cuda_leave(cuda, rc);
    if (rc < 0)
        destroy_streams(cuda); /* the caller's context could not be restored */
    return rc;
}

static void release_context(struct tierce__cuda *cuda)
{
    (void)tierce__cuda_check(cuda, "cuDevicePrimaryCtxRelease",
                             cuda->api->primary_release(cuda->device));
}

static int start(struct tierce__cuda *cuda, const void *address)
{
    int rc = find_device(cuda, address);
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuDevicePrimaryCtxRetain",
                                cuda->api->primary_retain(&cuda->context, cuda->device));
    if (rc < 0)
        return rc;
    rc = create_streams(cuda);
    if (rc < 0)
        release_context(cuda);
    return rc;
}

static void free_cuda(struct tierce__cuda *cuda)
{
    tierce__pinned_fini(&cuda->pinned);
    tierce__pinned_fini(&cuda->buffers);
    tierce__lock_fini(&cuda->looks.lock);
    tierce__cuda_module_fini(&cuda->rotations.module);
    tierce__cuda_module_fini(&cuda->distances.module);
    tierce__cuda_decoder_fini(&cuda->decoder);
    tierce__cuda_bounce_fini(&cuda->bounce);
    cuda->magic = 0;
    tierce__free(cuda);
}

static int open_cuda(struct tierce__device **out, const void *address)
{
    const struct tierce__cuda_api *api;
    int rc = tierce__cuda_load(&api);
    if (rc < 0)
        return rc;
    struct tierce__cuda *cuda = tierce__calloc(1, sizeof(*cuda));
    if (cuda == NULL)
        return -ENOMEM;
    cuda->base.ops = &tierce__device_cuda_ops;
    cuda->magic = TIERCE__CUDA_MAGIC;
    cuda->api = api;
    tierce__pinned_init(&cuda->pinned);
    tierce__pinned_init(&cuda->buffers);
    tierce__lock_init(&cuda->looks.lock, TIERCE__LOCK_LOOKS);
    tierce__cuda_module_init(&cuda->rotations.module, &tierce__cuda_rotations);
    tierce__cuda_module_init(&cuda->distances.module, &tierce__cuda_distances_of);
    tierce__cuda_decoder_init(&cuda->decoder);
    tierce__cuda_bounce_init(&cuda->bounce);
    rc = start(cuda, address);
    if (rc < 0) {
        free_cuda(cuda);
        return rc;
    }
    *out = &cuda->base;
    return 0;
}

/* This call requires no context. */
static int has_cuda(struct tierce__device *device, const void *address)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_ADDRESS at = (uintptr_t)address;
    TIERCE__CU_DEVICE found = 0;
    unsigned int type = 0;
    int ordinal = 0;
    if (!tierce__cuda_usable())
        return TIERCE_E_CLOSED;
    if (atomic_load_explicit(&cuda->failed, memory_order_relaxed))
        return -EIO;
    TIERCE__CU_RESULT code = api->pointer_attribute(&type, TIERCE__CU_ATTRIBUTE_MEMORY_TYPE, at);
    if (code == TIERCE__CU_INVALID_VALUE ||
        (code == TIERCE__CU_SUCCESS && type != TIERCE__CU_MEMORY_DEVICE))
        return 0;
    if (code == TIERCE__CU_SUCCESS)
        code = api->pointer_attribute(&ordinal, TIERCE__CU_ATTRIBUTE_ORDINAL, at);
    if (code == TIERCE__CU_SUCCESS)
        code = api->device_get(&found, ordinal);
    if (code != TIERCE__CU_SUCCESS)
        log_call(cuda, "cuda_unknown_address", "cuPointerGetAttribute", code);
    return code != TIERCE__CU_SUCCESS ? -EIO : found == cuda->device;
}

/* This call requires no context. */
static int numa_node_cuda(struct tierce__device *device)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    char pci[TIERCE__PCI_BYTES] = "";
    if (!tierce__cuda_usable())
        return -1;
    TIERCE__CU_RESULT code = cuda->api->pci_bus_id(pci, sizeof(pci), cuda->device);
    if (code != TIERCE__CU_SUCCESS) {
        log_call(cuda, "cuda_no_numa_node", "cuDeviceGetPCIBusId", code);
        return -1;
    }
    int node = tierce__numa_node_of(pci);
    if (node < -1)
        tierce__log(TIERCE_LOG_WARN, "cuda_no_numa_node", "device=%d pci=%s why=\"%s\"",
                    cuda->device, pci, tierce_strerror(node));
    return node < -1 ? -1 : node;
}

/* ---- pinning --------------------------------------------------------------------------------- */

static int pin(struct tierce__cuda *cuda, void *memory, size_t bytes)
{
    int rc = tierce__cuda_register(cuda, memory, bytes);
    if (rc < 0)
        return rc;
    rc = tierce__pinned_add(&cuda->pinned, memory, bytes);
    if (rc < 0 && tierce__cuda_unregister(cuda, memory, bytes) < 0)
        return -EIO;
    return rc;
}

static int pin_cuda(struct tierce__device *device, void *memory, size_t bytes)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    if (memory == NULL || bytes == 0 || ((uintptr_t)memory | bytes) % TIERCE__PIN_ALIGN != 0)
        return TIERCE_E_ARGUMENT;
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    return tierce__cuda_leave(cuda, pin(cuda, memory, bytes));
}

/* If the driver does not release a slice, the slice stays in the table. */
static int unpin(struct tierce__cuda *cuda, void *memory, size_t bytes)
{
    if (!tierce__pinned_has(&cuda->pinned, memory, bytes))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__cuda_unregister(cuda, memory, bytes);
    if (rc == 0 && !tierce__pinned_remove(&cuda->pinned, memory, bytes))
        rc = TIERCE_E_ARGUMENT; /* unpinned twice at the same time */
    return rc;
}

static int unpin_cuda(struct tierce__device *device, void *memory, size_t bytes)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    return tierce__cuda_leave(cuda, unpin(cuda, memory, bytes));
}

static bool is_pinned_cuda(struct tierce__device *device, const void *memory, size_t bytes)
{
    return tierce__pinned_covers(&tierce__cuda_of(device)->pinned, memory, bytes);
}

/* ---- close ----------------------------------------------------------------------------------- */

TIERCE__CU_RESULT tierce__cuda_drain(struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                     uint64_t deadline_ns)
{
    for (unsigned polls = 0;; polls++) {
        TIERCE__CU_RESULT code = cuda->api->stream_query(stream);
        if (code != TIERCE__CU_NOT_READY || tierce__now_ns() >= deadline_ns)
            return code;
        tierce__cuda_pause(polls);
    }
}

/* NULL: a stream that does not exist. */
static bool drain_stream(struct tierce__cuda *cuda, TIERCE__CU_STREAM stream, uint64_t deadline_ns)
{
    if (stream == NULL)
        return true;
    TIERCE__CU_RESULT code = tierce__cuda_drain(cuda, stream, deadline_ns);
    if (code != TIERCE__CU_SUCCESS)
        log_call(cuda, "cuda_not_stopped", "cuStreamQuery", code);
    return code == TIERCE__CU_SUCCESS;
}

static int query_stream(struct tierce__cuda *cuda, TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code = cuda->api->stream_query(stream);
    return code == TIERCE__CU_NOT_READY ? -EAGAIN
                                        : tierce__cuda_required(cuda, "cuStreamQuery", code);
}

static bool drain_lanes(struct tierce__cuda *cuda, uint64_t deadline_ns)
{
    bool stopped = true;
    for (size_t i = 0; i < TIERCE__CUDA_LANES && stopped; i++)
        stopped = drain_stream(cuda, cuda->decoder.lanes[i].stream, deadline_ns);
    return stopped;
}

static int idle_cuda(struct tierce__device *device)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    int rc = tierce__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < 2 && rc == 0; i++)
        rc = query_stream(cuda, cuda->streams[i]);
    for (size_t i = 0; i < tierce__cuda_lanes(cuda) && rc == 0; i++)
        rc = query_stream(cuda, cuda->decoder.lanes[i].stream);
    return tierce__cuda_leave(cuda, rc);
}

static bool unpin_all(struct tierce__cuda *cuda)
{
    struct tierce__pinned_slice slice;
    int rc = 0;
    while (rc == 0 && tierce__pinned_last(&cuda->pinned, &slice))
        rc = unpin(cuda, (void *)slice.from, slice.to - slice.from);
    return rc == 0;
}

/* Whether no copy can access memory any more. */
static bool stop(struct tierce__cuda *cuda, uint64_t deadline_ns)
{
    if (tierce__cuda_enter(cuda) < 0)
        return false;
    bool stopped = drain_stream(cuda, cuda->streams[0], deadline_ns) &&
                   drain_stream(cuda, cuda->streams[1], deadline_ns) &&
                   drain_stream(cuda, cuda->looks.stream, deadline_ns) &&
                   drain_stream(cuda, cuda->rotations.stream, deadline_ns) &&
                   drain_stream(cuda, cuda->distances.stream, deadline_ns) &&
                   drain_lanes(cuda, deadline_ns) && unpin_all(cuda);
    if (stopped) {
        tierce__cuda_kernel_close(cuda, cuda->own_kernel);
        cuda->own_kernel = NULL;
        tierce__cuda_bounce_close(cuda);
        tierce__cuda_looks_close(cuda);
        tierce__cuda_keys_close(cuda, &cuda->rotations);
        tierce__cuda_keys_close(cuda, &cuda->distances);
        tierce__cuda_decoder_close(cuda);
        (void)tierce__cuda_trial_free(cuda); /* logged; the device's memory is lost */
        destroy_streams(cuda);
    }
    (void)tierce__cuda_leave(cuda, 0); /* logged; memory is not affected */
    return stopped;
}

static bool close_cuda(struct tierce__device *device, uint64_t deadline_ns)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    TIERCE_ASSERT(atomic_load_explicit(&cuda->alive, memory_order_relaxed) == 0);
    if (!stop(cuda, deadline_ns))
        return false;
    release_context(cuda);
    free_cuda(cuda);
    return true;
}

const struct tierce__device_ops tierce__device_cuda_ops = {.name = "cuda",
                                                           .files = &tierce__cuda_files,
                                                           .pins = true,
                                                           .open = open_cuda,
                                                           .has = has_cuda,
                                                           .numa_node = numa_node_cuda,
                                                           .tune = tierce__cuda_tune,
                                                           .close = close_cuda,
                                                           .allow_unpinned =
                                                               tierce__cuda_allow_unpinned,
                                                           .pin = pin_cuda,
                                                           .unpin = unpin_cuda,
                                                           .is_pinned = is_pinned_cuda,
                                                           .gather = tierce__cuda_gather,
                                                           .scatter = tierce__cuda_scatter,
                                                           .rotate = tierce__cuda_rotate,
                                                           .distances = tierce__cuda_distances,
                                                           .decode = tierce__cuda_decode,
                                                           .record = tierce__cuda_record,
                                                           .stream_wait = tierce__cuda_stream_wait,
                                                           .query = tierce__cuda_query,
                                                           .wait = tierce__cuda_wait,
                                                           .idle = idle_cuda,
                                                           .settle = tierce__cuda_settle,
                                                           .forget = tierce__cuda_forget};
