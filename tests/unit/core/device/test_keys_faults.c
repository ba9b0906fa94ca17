/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "child_exit.h"
#include "core/blend/select.h"
#include "core/device/device.h"
#include "gpu.h"
#include "log_record.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* Rotations and distances on the driver of tests/support/cuda: a kernel that is wrong or cannot be
 * used, and calls and allocations that fail. */

/* Rows of keys, and behind them the distances of each row of the first half to one of the second.
 */
enum { TOKENS = 40, ROW = 64, HALF = TOKENS / 2, TO = TOKENS * ROW, BYTES = TO + HALF * 4 };

static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static _Alignas(float) uint8_t keys[BYTES], now[BYTES];
static struct tierce__rotation rotation;

static void start(void)
{
    gpu_start(1, 0);
    memory = gpu_alloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        keys[i] = (uint8_t)(i % 2 == 0 ? i * 7 : 0x3f);
    gpu_write(memory, keys, BYTES);
    gpu_sync();
    rotation = (struct tierce__rotation){
        .layout = {TIERCE__ROPE_GPTJ, 32, 0, 32}, .pairs = 16, .delta = 3};
    for (unsigned i = 0; i < 16; i++)
        rotation.cosine[i] = 0.6f, rotation.sine[i] = 0.8f;
    ops = tierce__device_find("cuda");
    ck_assert_int_eq(ops->open(&device, (void *)memory), 0);
    record_log(TIERCE_LOG_INFO);
}

static int rotate(void)
{
    return ops->rotate(device, &(struct tierce__device_keys){.rotation = &rotation,
                                                             .dtype = TIERCE__BLEND_BF16,
                                                             .rows = {(uint8_t *)memory, ROW, ROW},
                                                             .tokens = TOKENS,
                                                             .heads = 1,
                                                             .stream = gpu.stream});
}

static void rotate_on_host(void)
{
    struct tierce__key_rows rows = {keys, ROW, ROW};
    tierce__rotate(&rotation, TIERCE__BLEND_BF16, &rows, &rows, TOKENS, 1);
}

static int compare(void)
{
    return ops->distances(
        device, &(struct tierce__device_distances){.dtype = TIERCE__BLEND_BF16,
                                                   .a = {(uint8_t *)memory, ROW, ROW},
                                                   .b = {(uint8_t *)memory + HALF * ROW, ROW, ROW},
                                                   .to = (float *)(memory + TO),
                                                   .tokens = HALF,
                                                   .heads = 1,
                                                   .row_elements = ROW / 2,
                                                   .stream = gpu.stream});
}

static void compare_on_host(void)
{
    struct tierce__key_rows a = {keys, ROW, ROW}, b = {keys + HALF * ROW, ROW, ROW};
    tierce__key_distances((float *)(void *)(keys + TO), TIERCE__BLEND_BF16, &a, &b, HALF, 1,
                          ROW / 2);
}

/* A kernel. Each test runs with each of them. */
static const struct kernel {
    int (*run)(void);
    void (*run_on_host)(void);
    const char *usable, *refused;
} kernels[] = {{rotate, rotate_on_host, "cuda_rotation", "cuda_no_rotation"},
               {compare, compare_on_host, "cuda_distances", "cuda_no_distances"}};
enum { KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

static void expect_bytes(const struct kernel *kernel, bool has_run)
{
    if (has_run)
        kernel->run_on_host();
    gpu_read(now, memory, BYTES);
    ck_assert_mem_eq(now, keys, BYTES);
}

static void stop(void)
{
    ck_assert(ops->close(device, tierce__deadline_in_ms(120000)));
    gpu_check_left(1);
    gpu_free(memory);
    gpu_stop();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(the_first_use_is_logged)
{
    const struct kernel *kernel = &kernels[_i];
    start();
    ck_assert_int_eq(kernel->run(), 0);
    expect_bytes(kernel, true);
    ck_assert_int_eq(kernel->run(), 0);
    expect_bytes(kernel, true);
    ck_assert_uint_eq(recorded(kernel->usable), 1);
    ck_assert_uint_eq(recorded_with(kernel->usable, "never run on a GPU"), 1);
    ck_assert_uint_eq(recorded(kernel->refused), 0);
    stop();
}
END_TEST

START_TEST(a_wrong_kernel_is_not_used)
{
    const struct kernel *kernel = &kernels[_i];
    start();
    cuda_fake_flip(CUDA_FAKE_FLIP_BYTE);
    ck_assert_int_eq(kernel->run(), TIERCE_E_UNSUPPORTED);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    ck_assert_int_eq(kernel->run(), TIERCE_E_UNSUPPORTED);
    expect_bytes(kernel, false);
    ck_assert_uint_eq(recorded(kernel->refused), 1);
    ck_assert_uint_eq(recorded_with(kernel->refused, "differ from the host's"), 1);
    stop();
}
END_TEST

START_TEST(a_kernel_that_cannot_be_loaded)
{
    const struct kernel *kernel = &kernels[_i];
    start();
    (void)cuda_fake_fail_nth(3, TIERCE__CU_INVALID_IMAGE); /* after those that enter the device */
    ck_assert_int_eq(kernel->run(), TIERCE_E_UNSUPPORTED);
    (void)cuda_fake_fail_nth(0, 0);
    ck_assert_int_eq(kernel->run(), TIERCE_E_UNSUPPORTED);
    expect_bytes(kernel, false);
    ck_assert_uint_eq(recorded_with(kernel->refused, "cuModuleLoadData"), 1);
    stop();
}
END_TEST

/* An inference engine takes most of the memory of a GPU. The next use tries again. */
START_TEST(without_memory_of_the_device)
{
    const struct kernel *kernel = &kernels[_i];
    start();
    (void)cuda_fake_fail_nth(3, TIERCE__CU_OUT_OF_MEMORY); /* that which loads the kernel */
    ck_assert_int_eq(kernel->run(), -ENOMEM);
    (void)cuda_fake_fail_nth(0, 0);
    expect_bytes(kernel, false);
    ck_assert_uint_eq(recorded_with("cuda_no_memory", "cuModuleLoadData"), 1);
    ck_assert_uint_eq(recorded(kernel->refused), 0);
    ck_assert_int_eq(kernel->run(), 0);
    expect_bytes(kernel, true);
    stop();
}
END_TEST

/* The next use tries again. */
START_TEST(without_memory)
{
    const struct kernel *kernel = &kernels[_i];
    start();
    (void)tierce__alloc_fail_nth(1);
    ck_assert_int_eq(kernel->run(), -ENOMEM);
    (void)tierce__alloc_fail_nth(0);
    expect_bytes(kernel, false);
    ck_assert_int_eq(kernel->run(), 0);
    expect_bytes(kernel, true);
    stop();
}
END_TEST

struct user {
    pthread_t thread;
    const struct kernel *kernel;
    atomic_bool begins, has_ended;
    int rc;
};

static void *use_too(void *arg)
{
    struct user *user = arg;
    atomic_store(&user->begins, true);
    user->rc = user->kernel->run();
    atomic_store(&user->has_ended, true);
    return NULL;
}

/* So many calls of the driver: the first thread's alone, while its trial does not end. */
static void wait_for_calls(const struct user *first, uint64_t count)
{
    uint64_t before = cuda_fake_calls().all;
    WAIT_FOR(atomic_load(&first->has_ended) || cuda_fake_calls().all >= before + count);
}

/* The trial of one thread fails while another thread waits for its end. The other one begins no
 * trial: the stream and the memory of the first are in use until close. */
START_TEST(a_trial_that_fails_is_not_repeated)
{
    static struct user users[2];
    start();
    cuda_fake_hold(true);
    for (size_t i = 0; i < 2; i++) {
        users[i].kernel = &kernels[_i];
        ck_assert_int_eq(pthread_create(&users[i].thread, NULL, use_too, &users[i]), 0);
        WAIT_FOR(atomic_load(&users[i].begins));
        wait_for_calls(&users[0], 100);
    }
    do { /* on a busy machine, the second thread may only begin now, and make the call that fails */
        (void)cuda_fake_fail_nth(1, TIERCE__CU_UNKNOWN);
        wait_for_calls(&users[0], 100);
    } while (!atomic_load(&users[0].has_ended));
    (void)cuda_fake_fail_nth(0, 0);
    for (size_t i = 0; i < 2; i++) {
        pthread_join(users[i].thread, NULL);
        ck_assert_int_eq(users[i].rc, -EIO);
    }
    ck_assert_uint_eq(cuda_fake_live().host_memories, GPU_HOST_MEMORIES + 1);
    cuda_fake_hold(false);
    expect_bytes(&kernels[0], false);
    stop();
}
END_TEST

/* ---- each call fails once -------------------------------------------------------------------- */

enum { FINE, WRONG, BEHIND_THE_END };

/* The status states which bytes the memory has. */
static bool is_told(const struct kernel *kernel, int rc)
{
    bool is_unchanged = rc == TIERCE_E_UNSUPPORTED || rc == -ENOMEM;
    if (rc != 0 && !is_unchanged)
        return rc == -EIO || rc == -ECANCELED;
    if (rc == 0)
        kernel->run_on_host();
    gpu_read(now, memory, BYTES);
    return memcmp(now, keys, BYTES) == 0;
}

/* In a process of its own, because a failure may leave objects that cannot be freed. */
static int fail_call(const struct kernel *kernel, uint64_t nth, TIERCE__CU_RESULT code)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        start();
        cuda_fake_be_patient(true);
        (void)cuda_fake_fail_nth(nth, code);
        int rc = kernel->run();
        uint64_t made = cuda_fake_fail_nth(0, 0);
        bool is_right = is_told(kernel, rc) && (made >= nth || rc == 0);
        if (code == TIERCE__CU_OUT_OF_MEMORY) /* nothing is wrong for ever */
            is_right &= rc != TIERCE_E_UNSUPPORTED &&
                        (rc != -ENOMEM || (kernel->run() == 0 && is_told(kernel, 0)));
        is_right &= ops->close(device, tierce__deadline_in_ms(120000));
        is_right &= strcmp(cuda_fake_report(), "") == 0 && tierce__alloc_live() == 0;
        child_exit(!is_right ? WRONG : made < nth ? BEHIND_THE_END : FINE);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != WRONG, "call %llu: status %d",
                  (unsigned long long)nth, status);
    return WEXITSTATUS(status);
}

START_TEST(each_call_fails_once)
{
    static const TIERCE__CU_RESULT codes[] = {TIERCE__CU_UNKNOWN, TIERCE__CU_OUT_OF_MEMORY};
    uint64_t nth = 1;
    while (fail_call(&kernels[_i / 2], nth, codes[_i % 2]) != BEHIND_THE_END)
        nth++;
    ck_assert_uint_gt(nth, 20);
}
END_TEST

CHECK_MAIN("keys_faults", .seconds = 120,
           .loops = {{the_first_use_is_logged, 0, KERNELS},
                     {a_wrong_kernel_is_not_used, 0, KERNELS},
                     {a_kernel_that_cannot_be_loaded, 0, KERNELS},
                     {without_memory_of_the_device, 0, KERNELS},
                     {without_memory, 0, KERNELS},
                     {a_trial_that_fails_is_not_repeated, 0, KERNELS},
                     {each_call_fails_once, 0, 2 * KERNELS}})
