/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers on the device into which cuFile reads files:
 *
 *     file ─cuFile─► buffer ─kernel, which computes the sums─► blocks
 *                      └─copy engine─► pinned memory ─► a chunk's header on the host
 */
#include "core/device/cuda/cuda_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "core/device/cuda/cufile.h"

#define LOOK_BYTES ((size_t)64 << 10) /* of pinned memory: most headers are smaller */

struct tierce__device_file {
    const struct tierce__cufile_api *api;
    TIERCE__CU_FILE_HANDLE handle;
    uint8_t *base; /* of the buffer */
};

static int refuse(const struct tierce__cuda *cuda, const char *why)
{
    tierce__log(TIERCE_LOG_WARN, "gpu_direct_refused", "device=%d why=\"%s\"", cuda->device, why);
    return TIERCE_E_UNSUPPORTED;
}

static int refuse_call(const struct tierce__cuda *cuda, const char *call,
                       TIERCE__CU_FILE_ERROR error)
{
    char text[TIERCE__CUFILE_WHY_BYTES];
    return refuse(cuda, tierce__cufile_text(call, error, text));
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Memory and stream of looks, with the first buffer. */
static int open_looks(struct tierce__cuda *cuda)
{
    struct tierce__cuda_looks *looks = &cuda->looks;
    void *memory = looks->memory;
    int rc = 0;
    tierce__lock_take(&looks->lock);
    if (looks->stream == NULL)
        rc = tierce__cuda_check(
            cuda, "cuStreamCreate",
            cuda->api->stream_create(&looks->stream, TIERCE__CU_STREAM_NON_BLOCKING));
    if (rc == 0 && looks->memory == NULL)
        rc = tierce__cuda_check(
            cuda, "cuMemHostAlloc",
            cuda->api->host_alloc(&memory, LOOK_BYTES, TIERCE__CU_HOST_PORTABLE));
    if (rc == 0)
        looks->memory = memory;
    tierce__lock_drop(&looks->lock);
    return rc;
}

void tierce__cuda_looks_close(struct tierce__cuda *cuda)
{
    struct tierce__cuda_looks *looks = &cuda->looks;
    if (looks->memory != NULL)
        (void)tierce__cuda_check(cuda, "cuMemFreeHost", cuda->api->host_free(looks->memory));
    if (looks->stream != NULL)
        (void)tierce__cuda_check(cuda, "cuStreamDestroy", cuda->api->stream_destroy(looks->stream));
    looks->memory = NULL;
    looks->stream = NULL;
}

static int register_buffer(struct tierce__cuda *cuda, const struct tierce__cufile_api *api,
                           uint8_t *base, size_t bytes)
{
    if ((uintptr_t)base % TIERCE__PIN_ALIGN != 0)
        return refuse(cuda, "cuMemAlloc: the address is not a multiple of 4096");
    TIERCE__CU_FILE_ERROR error = api->buffer_register(base, bytes, 0);
    if (error.code != TIERCE__CU_FILE_SUCCESS)
        return refuse_call(cuda, "cuFileBufRegister", error);
    int rc = tierce__pinned_add(&cuda->buffers, base, bytes);
    if (rc < 0)
        (void)api->buffer_deregister(base);
    return rc;
}

/* Between enter and leave. */
static int alloc_buffer(struct tierce__cuda *cuda, uint8_t **out, size_t bytes)
{
    const struct tierce__cufile_api *api;
    char why[TIERCE__CUFILE_WHY_BYTES];
    TIERCE__CU_ADDRESS address = 0;
    if (tierce__cufile_load(&api, why) < 0)
        return refuse(cuda, why);
    int rc = open_looks(cuda);
    if (rc == 0)
        rc = tierce__cuda_check(cuda, "cuMemAlloc", cuda->api->memory_alloc(&address, bytes));
    if (rc < 0)
        return rc;
    uint8_t *base = (uint8_t *)(uintptr_t)address;
    rc = register_buffer(cuda, api, base, bytes);
    if (rc < 0)
        (void)tierce__cuda_check(cuda, "cuMemFree", cuda->api->memory_free(address));
    else
        *out = base;
    return rc;
}

static int alloc_cuda(struct tierce__device *device, uint8_t **out, size_t bytes)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    if (atomic_load_explicit(&cuda->kernel, memory_order_acquire) == NULL)
        return refuse(cuda, "the kernel that computes checksums on the device cannot be used");
    int rc = tierce__cuda_enter_good(cuda);
    return rc < 0 ? rc : tierce__cuda_leave(cuda, alloc_buffer(cuda, out, bytes));
}

static bool free_buffer(struct tierce__cuda *cuda, uint8_t *base, size_t bytes)
{
    const struct tierce__cufile_api *api;
    char why[TIERCE__CUFILE_WHY_BYTES];
    int rc = tierce__cufile_load(&api, why);
    TIERCE_ASSERT(rc == 0); /* since alloc */
    TIERCE__CU_FILE_ERROR error = api->buffer_deregister(base);
    if (error.code != TIERCE__CU_FILE_SUCCESS) {
        (void)refuse_call(cuda, "cuFileBufDeregister", error);
        return false;
    }
    if (tierce__cuda_check(cuda, "cuMemFree", cuda->api->memory_free((uintptr_t)base)) < 0)
        return false;
    return tierce__pinned_remove(&cuda->buffers, base, bytes);
}

static bool free_cuda_buffer(struct tierce__device *device, uint8_t *base, size_t bytes)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    bool failed = atomic_load_explicit(&cuda->failed, memory_order_relaxed);
    /* Work of a failed call may still write to the buffer. */
    if ((failed && device->ops->idle(device) != 0) || tierce__cuda_enter(cuda) < 0)
        return false;
    bool freed = free_buffer(cuda, base, bytes);
    (void)tierce__cuda_leave(cuda, 0); /* logged */
    return freed;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int register_file(struct tierce__cuda *cuda, struct tierce__device_file *file, int fd)
{
    TIERCE__CU_FILE_DESCRIPTION what = {.type = TIERCE__CU_FILE_TYPE_FD, .of.fd = fd};
    char why[TIERCE__CUFILE_WHY_BYTES];
    if (tierce__cufile_load(&file->api, why) < 0)
        return refuse(cuda, why);
    TIERCE__CU_FILE_ERROR error = file->api->handle_register(&file->handle, &what);
    return error.code == TIERCE__CU_FILE_SUCCESS ? 0
                                                 : refuse_call(cuda, "cuFileHandleRegister", error);
}

static int open_file(struct tierce__device *device, struct tierce__device_file **out, uint8_t *base,
                     int fd)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    struct tierce__device_file *file = tierce__calloc(1, sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    file->base = base;
    int rc = tierce__cuda_enter_good(cuda);
    if (rc == 0)
        rc = tierce__cuda_leave(cuda, register_file(cuda, file, fd));
    if (rc < 0) {
        tierce__free(file);
        return rc == -ENOMEM ? rc : TIERCE_E_UNSUPPORTED;
    }
    *out = file;
    return 0;
}

static void close_file(struct tierce__device *device, struct tierce__device_file *file)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    if (file == NULL)
        return;
    if (tierce__cuda_enter(cuda) == 0) {
        file->api->handle_deregister(file->handle);
        (void)tierce__cuda_leave(cuda, 0); /* logged */
    }
    tierce__free(file);
}

/* The library returns bytes, -1 with errno, or the negative number of one of its errors. */
static int status_of(const struct tierce__cuda *cuda, ssize_t got, int error)
{
    char text[TIERCE__CUFILE_WHY_BYTES];
    if (got >= 0)
        return got > 0 ? 0 : -ENODATA;
    if (got == -1 && error > 0)
        return -error;
    TIERCE__CU_FILE_ERROR code = {.code = (int)-got};
    tierce__log_repeated(TIERCE_LOG_WARN, "gpu_direct_failed", "device=%d why=\"%s\"", cuda->device,
                         tierce__cufile_text("cuFileRead", code, text));
    return TIERCE_E_UNSUPPORTED;
}

static int read_all(const struct tierce__cuda *cuda, const struct tierce__device_file *file,
                    uint8_t *to, size_t bytes, uint64_t offset)
{
    off_t at = to - file->base;
    int rc = 0;
    for (size_t done = 0; done < bytes && rc == 0;) {
        errno = 0;
        ssize_t got = file->api->read(file->handle, file->base, bytes - done,
                                      (off_t)(offset + done), at + (off_t)done);
        rc = status_of(cuda, got, errno);
        TIERCE_ASSERT(rc < 0 || (size_t)got <= bytes - done);
        done += rc == 0 ? (size_t)got : 0;
    }
    return rc;
}

static int read_file(struct tierce__device *device, struct tierce__device_file *file, uint8_t *to,
                     size_t bytes, uint64_t offset)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    TIERCE_DASSERT((bytes | offset) % TIERCE__PIN_ALIGN == 0);
    TIERCE_DASSERT(tierce__pinned_covers(&cuda->buffers, to, bytes));
    if (tierce__cuda_enter_good(cuda) < 0)
        return TIERCE_E_UNSUPPORTED;
    int rc = read_all(cuda, file, to, bytes, offset);
    return tierce__cuda_leave(cuda, 0) < 0 && rc == 0 ? TIERCE_E_UNSUPPORTED : rc;
}

/* ---- looks ----------------------------------------------------------------------------------- */

/* Waits for the work on the stream: also that of an earlier look that has missed its deadline. */
static int wait_stream(struct tierce__cuda *cuda, uint64_t deadline_ns)
{
    TIERCE__CU_RESULT code = tierce__cuda_drain(cuda, cuda->looks.stream, deadline_ns);
    if (code == TIERCE__CU_NOT_READY)
        return TIERCE_E_DEADLINE;
    return tierce__cuda_required(cuda, "cuStreamQuery", code);
}

static int look_part(struct tierce__cuda *cuda, uint8_t *to, const uint8_t *from, size_t bytes,
                     uint64_t deadline_ns)
{
    struct tierce__cuda_looks *looks = &cuda->looks;
    tierce__lock_assert_held(&looks->lock);
    int rc = wait_stream(cuda, deadline_ns);
    if (rc == 0)
        rc = tierce__cuda_enqueued(
            cuda, "cuMemcpyDtoHAsync",
            cuda->api->copy_to_host(looks->memory, (uintptr_t)from, bytes, looks->stream));
    if (rc == 0)
        rc = wait_stream(cuda, deadline_ns);
    if (rc == 0)
        memcpy(to, looks->memory, bytes);
    return rc;
}

static int look_cuda(struct tierce__device *device, uint8_t *to, const uint8_t *from, size_t bytes,
                     uint64_t deadline_ns)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    TIERCE_DASSERT(tierce__pinned_covers(&cuda->buffers, from, bytes));
    int rc = tierce__cuda_enter_good(cuda);
    if (rc < 0)
        return rc;
    tierce__lock_take(&cuda->looks.lock);
    for (size_t done = 0; done < bytes && rc == 0; done += LOOK_BYTES) {
        size_t part = bytes - done < LOOK_BYTES ? bytes - done : LOOK_BYTES;
        rc = look_part(cuda, to + done, from + done, part, deadline_ns);
    }
    tierce__lock_drop(&cuda->looks.lock);
    return tierce__cuda_leave(cuda, rc);
}

const struct tierce__device_files tierce__cuda_files = {.alloc = alloc_cuda,
                                                        .free = free_cuda_buffer,
                                                        .open = open_file,
                                                        .close = close_file,
                                                        .read = read_file,
                                                        .look = look_cuda};
