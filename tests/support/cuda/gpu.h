/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_GPU_H
#define TIERCE_TESTS_GPU_H

#include "bench/device/spinner.h"
#include "check_main.h"
#include "child_exit.h"
#include "cuda_fake.h"

#include <dlfcn.h>

/*
 * The inference engine's own use of a GPU, for the fixtures of the device and of Tierce's engine:
 * a context, a stream, memory, and copies. It calls the driver that the process finds as
 * libcuda.so.1. If that is the fake of this folder, its reports are checked too; a program that
 * uses nothing else of the fake also runs on a real GPU (`tools/run_tests --device`).
 */

enum {
    GPU_STAGING = 8 << 20, /* the most bytes that are written or read without a wait */
    GPU_HOLD_S = 120,      /* a hold that is never released ends */
    /* Its own objects, which cuda_fake_live counts. */
    GPU_HOST_MEMORIES = 1,
    GPU_MODULES = 1,
};

struct gpu {
    void *library;
    struct tierce__cuda_api api;
    TIERCE__CU_DEVICE device;
    TIERCE__CU_CONTEXT context;
    TIERCE__CU_STREAM stream;
    uint8_t *staging; /* pinned */
    size_t staged;
    uint32_t *release; /* of a hold; pinned */
    struct tierce__spinner spinner;
    /* NULL on a real driver. */
    const char *(*report)(void);
    struct cuda_fake_live (*live)(void);
    void (*seed)(uint64_t seed, unsigned delay_us);
    void (*pause_launches)(unsigned pause_us);
    /* Of a stream and of graphs, which Tierce does not call. */
    TIERCE__CU_RESULT (*begin_capture)(TIERCE__CU_STREAM stream, TIERCE__CU_CAPTURE_MODE mode);
    TIERCE__CU_RESULT (*end_capture)(TIERCE__CU_STREAM stream, void **graph);
    TIERCE__CU_RESULT (*graph_destroy)(void *graph);
};

static struct gpu gpu;

static inline void gpu_ok(TIERCE__CU_RESULT code)
{
    ck_assert_int_eq(code, TIERCE__CU_SUCCESS);
}

/* ---- the driver ---- */

/* POSIX allows a function pointer in a pointer to data; C does not. */
static inline bool gpu_find(void *function, const char *symbol)
{
    void *address = dlsym(gpu.library, symbol);
    memcpy(function, &address, sizeof(address));
    return address != NULL;
}

/* Tierce opens the library for itself. Returns the reason of a failure, or NULL. */
static inline const char *gpu_load(void)
{
    gpu.library = dlopen("libcuda.so.1", RTLD_NOW);
    if (gpu.library == NULL)
        return dlerror();
#define TIERCE_CUDA_NEWER(name, symbol, version, arguments)
#define TIERCE_CUDA_CALL(name, symbol, arguments)                                                  \
    if (!gpu_find(&gpu.api.name, #symbol))                                                         \
        return "libcuda.so.1 has no " #symbol;
#include "core/device/cuda/cuda_calls.def"
#undef TIERCE_CUDA_CALL
#undef TIERCE_CUDA_NEWER
    (void)gpu_find(&gpu.report, "cuda_fake_report");
    (void)gpu_find(&gpu.live, "cuda_fake_live");
    (void)gpu_find(&gpu.seed, "cuda_fake_seed");
    (void)gpu_find(&gpu.pause_launches, "cuda_fake_pause_launches");
    if (!gpu_find(&gpu.begin_capture, "cuStreamBeginCapture_v2") ||
        !gpu_find(&gpu.end_capture, "cuStreamEndCapture") ||
        !gpu_find(&gpu.graph_destroy, "cuGraphDestroy"))
        return "libcuda.so.1 cannot capture graphs";
    return NULL;
}

/* Prints why no GPU can be used. */
static inline int gpu_probe(void)
{
    const char *why = gpu_load();
    TIERCE__CU_DEVICE device;
    if (why != NULL) {
        fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    TIERCE__CU_RESULT code = gpu.api.init(0);
    if (code == TIERCE__CU_SUCCESS)
        code = gpu.api.device_get(&device, 0);
    if (code != TIERCE__CU_SUCCESS)
        fprintf(stderr, "the driver finds no GPU: CUresult %d\n", code);
    return code == TIERCE__CU_SUCCESS ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Whether to skip all tests. With TIERCE_TEST_GPU=required they fail instead. The driver is tried
 * in a process of its own, because it does not work in the child of a process that has used it, and
 * each test is such a child. */
static inline bool gpu_is_missing(void)
{
    const char *required = getenv("TIERCE_TEST_GPU");
    int status = -1;
    if (required != NULL && strcmp(required, "required") == 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        child_exit(gpu_probe());
    if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
        return false;
    fprintf(stderr, "skipped: there is no Nvidia GPU; no test has run\n");
    return true;
}

/* CHECK_MAIN for a program that needs a GPU or the fake, and is linked with neither. */
#define GPU_MAIN(...)                                                                              \
    int main(void)                                                                                 \
    {                                                                                              \
        return gpu_is_missing() ? 77 : CHECK_RUN(__VA_ARGS__);                                     \
    }

/* ---- start and stop ---- */

/* The context is current in this thread. */
static inline void gpu_start(uint64_t seed, int ordinal)
{
    void *pinned;
    gpu = (struct gpu){.device = ordinal};
    const char *why = gpu_load();
    ck_assert_msg(why == NULL, "%s", why);
    if (gpu.seed != NULL)
        gpu.seed(seed, 100);
    gpu_ok(gpu.api.init(0));
    gpu_ok(gpu.api.primary_retain(&gpu.context, ordinal));
    gpu_ok(gpu.api.context_push(gpu.context));
    gpu_ok(gpu.api.stream_create(&gpu.stream, TIERCE__CU_STREAM_NON_BLOCKING));
    gpu_ok(gpu.api.host_alloc(&pinned, GPU_STAGING + 4096, TIERCE__CU_HOST_DEVICEMAP));
    gpu.staging = pinned;
    gpu.release = (uint32_t *)(gpu.staging + GPU_STAGING);
    gpu_ok(tierce__spinner_init(&gpu.spinner, &gpu.api));
}

static inline void gpu_check_report(void)
{
    if (gpu.report != NULL)
        ck_assert_str_eq(gpu.report(), "");
}

/* Checks that no object of Tierce is left on the device, only the engine's, with so many pieces of
 * memory. */
static inline void gpu_check_left(unsigned memories)
{
    gpu_check_report();
    if (gpu.live == NULL)
        return;
    struct cuda_fake_live live = gpu.live();
    ck_assert_uint_eq(live.streams, 1);
    ck_assert_uint_eq(live.events, 0);
    ck_assert_uint_eq(live.slices, 0);
    ck_assert_uint_eq(live.contexts, 1);
    ck_assert_uint_eq(live.stack, 1);
    ck_assert_uint_eq(live.memories, memories);
    ck_assert_uint_eq(live.host_memories, GPU_HOST_MEMORIES);
    ck_assert_uint_eq(live.modules, GPU_MODULES);
}

static inline void gpu_sync_stream(TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code;
    while ((code = gpu.api.stream_query(stream)) == TIERCE__CU_NOT_READY)
        usleep(50);
    gpu_ok(code);
}

/* All work of the engine has ended. Its staged bytes are forgotten. */
static inline void gpu_sync(void)
{
    gpu_sync_stream(gpu.stream);
    gpu.staged = 0;
}

static inline void gpu_stop(void)
{
    TIERCE__CU_CONTEXT context;
    gpu_sync();
    gpu_ok(tierce__spinner_fini(&gpu.spinner));
    gpu_ok(gpu.api.host_free(gpu.staging));
    gpu_ok(gpu.api.stream_destroy(gpu.stream));
    gpu_ok(gpu.api.context_pop(&context));
    gpu_ok(gpu.api.primary_release(gpu.device));
    gpu_check_report();
}

/* ---- memory ---- */

static inline uintptr_t gpu_alloc(size_t bytes)
{
    TIERCE__CU_ADDRESS address;
    gpu_ok(gpu.api.memory_alloc(&address, bytes));
    return (uintptr_t)address;
}

static inline void gpu_free(uintptr_t address)
{
    gpu_ok(gpu.api.memory_free(address));
}

static inline uint8_t *gpu_stage(size_t n)
{
    ck_assert_uint_le(n, GPU_STAGING);
    if (gpu.staged + n > GPU_STAGING)
        gpu_sync();
    uint8_t *at = gpu.staging + gpu.staged;
    gpu.staged += n;
    return at;
}

/* Enqueues on a stream: writes these bytes, read now. */
static inline void gpu_write_on(TIERCE__CU_STREAM stream, uintptr_t to, const void *bytes, size_t n)
{
    const uint8_t *from = bytes;
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done < GPU_STAGING ? n - done : GPU_STAGING;
        uint8_t *staged = gpu_stage(part);
        memcpy(staged, from + done, part);
        gpu_ok(gpu.api.copy_to_device(to + done, staged, part, stream));
    }
}

static inline void gpu_write(uintptr_t to, const void *bytes, size_t n)
{
    gpu_write_on(gpu.stream, to, bytes, n);
}

/* Enqueues a read; the bytes are there after gpu_sync, until more is read or written. */
static inline const uint8_t *gpu_read_later(uintptr_t from, size_t n)
{
    uint8_t *staged = gpu_stage(n);
    gpu_ok(gpu.api.copy_to_host(staged, from, n, gpu.stream));
    return staged;
}

/* Waits for all work of the engine. */
static inline void gpu_read(void *out, uintptr_t from, size_t n)
{
    uint8_t *to = out;
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done < GPU_STAGING ? n - done : GPU_STAGING;
        gpu_sync();
        const uint8_t *staged = gpu_read_later(from + done, part);
        gpu_sync();
        memcpy(to + done, staged, part);
    }
}

/* ---- time ---- */

/* Work that lasts until gpu_release. Meanwhile the test must not pin, allocate or free memory of
 * the GPU, because a driver may wait for all work then. One hold at a time. */
static inline void gpu_hold_stream(TIERCE__CU_STREAM stream)
{
    __atomic_store_n(gpu.release, 0, __ATOMIC_RELEASE);
    gpu_ok(
        tierce__spinner_launch(&gpu.spinner, stream, 1, GPU_HOLD_S * 1000000000ULL, gpu.release));
}

static inline void gpu_hold(void)
{
    gpu_hold_stream(gpu.stream);
}

/* Thread: any. */
static inline void gpu_release(void)
{
    __atomic_store_n(gpu.release, 1, __ATOMIC_RELEASE);
}

/* ---- captures ---- */

static inline void gpu_begin_capture(TIERCE__CU_STREAM stream)
{
    gpu_ok(gpu.begin_capture(stream, TIERCE__CU_CAPTURE_GLOBAL));
}

/* Nothing has made the capture fail. */
static inline void gpu_end_capture(TIERCE__CU_STREAM stream)
{
    void *graph = NULL;
    gpu_ok(gpu.end_capture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    gpu_ok(gpu.graph_destroy(graph));
}

#endif
