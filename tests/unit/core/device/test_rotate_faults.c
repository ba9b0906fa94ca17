/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "child_exit.h"
#include "core/device/device.h"
#include "gpu.h"
#include "log_record.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* Rotations on the driver of tests/support/cuda: a kernel that is wrong or cannot be used, and
 * calls and allocations that fail. */

enum { TOKENS = 40, ROW = 64, BYTES = TOKENS * ROW };

static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static uint8_t keys[BYTES], now[BYTES];
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

static void expect_bytes(bool is_rotated)
{
    struct tierce__key_rows rows = {keys, ROW, ROW};
    if (is_rotated)
        tierce__rotate(&rotation, TIERCE__BLEND_BF16, &rows, &rows, TOKENS, 1);
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

START_TEST(the_first_rotation_is_logged)
{
    start();
    ck_assert_int_eq(rotate(), 0);
    expect_bytes(true);
    ck_assert_int_eq(rotate(), 0);
    expect_bytes(true);
    ck_assert_uint_eq(recorded("cuda_rotation"), 1);
    ck_assert_uint_eq(recorded_with("cuda_rotation", "never run on a GPU"), 1);
    ck_assert_uint_eq(recorded("cuda_no_rotation"), 0);
    stop();
}
END_TEST

START_TEST(a_wrong_kernel_is_not_used)
{
    start();
    cuda_fake_flip(CUDA_FAKE_FLIP_BYTE);
    ck_assert_int_eq(rotate(), TIERCE_E_UNSUPPORTED);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    ck_assert_int_eq(rotate(), TIERCE_E_UNSUPPORTED);
    expect_bytes(false);
    ck_assert_uint_eq(recorded("cuda_no_rotation"), 1);
    ck_assert_uint_eq(recorded_with("cuda_no_rotation", "differ from the host's"), 1);
    stop();
}
END_TEST

START_TEST(a_kernel_that_cannot_be_loaded)
{
    start();
    (void)cuda_fake_fail_nth(3, TIERCE__CU_INVALID_IMAGE); /* after those that enter the device */
    ck_assert_int_eq(rotate(), TIERCE_E_UNSUPPORTED);
    (void)cuda_fake_fail_nth(0, 0);
    ck_assert_int_eq(rotate(), TIERCE_E_UNSUPPORTED);
    expect_bytes(false);
    ck_assert_uint_eq(recorded_with("cuda_no_rotation", "cuModuleLoadData"), 1);
    stop();
}
END_TEST

/* An inference engine takes most of the memory of a GPU. The next rotation tries again. */
START_TEST(without_memory_of_the_device)
{
    start();
    (void)cuda_fake_fail_nth(3, TIERCE__CU_OUT_OF_MEMORY); /* that which loads the kernel */
    ck_assert_int_eq(rotate(), -ENOMEM);
    (void)cuda_fake_fail_nth(0, 0);
    expect_bytes(false);
    ck_assert_uint_eq(recorded_with("cuda_no_memory", "cuModuleLoadData"), 1);
    ck_assert_uint_eq(recorded("cuda_no_rotation"), 0);
    ck_assert_int_eq(rotate(), 0);
    expect_bytes(true);
    stop();
}
END_TEST

/* The next rotation tries again. */
START_TEST(without_memory)
{
    start();
    (void)tierce__alloc_fail_nth(1);
    ck_assert_int_eq(rotate(), -ENOMEM);
    (void)tierce__alloc_fail_nth(0);
    expect_bytes(false);
    ck_assert_int_eq(rotate(), 0);
    expect_bytes(true);
    stop();
}
END_TEST

struct rotator {
    pthread_t thread;
    atomic_bool begins, has_ended;
    int rc;
};

static void *rotate_too(void *arg)
{
    struct rotator *rotator = arg;
    atomic_store(&rotator->begins, true);
    rotator->rc = rotate();
    atomic_store(&rotator->has_ended, true);
    return NULL;
}

/* So many calls of the driver: the first thread's alone, while its trial does not end. */
static void wait_for_calls(const struct rotator *first, uint64_t count)
{
    uint64_t before = cuda_fake_calls().all;
    WAIT_FOR(atomic_load(&first->has_ended) || cuda_fake_calls().all >= before + count);
}

/* The trial of one thread fails while another thread waits for its end. The other one begins no
 * trial: the stream and the memory of the first are in use until close. */
START_TEST(a_trial_that_fails_is_not_repeated)
{
    static struct rotator rotators[2];
    start();
    cuda_fake_hold(true);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&rotators[i].thread, NULL, rotate_too, &rotators[i]), 0);
        WAIT_FOR(atomic_load(&rotators[i].begins));
        wait_for_calls(&rotators[0], 100);
    }
    do { /* on a busy machine, the second thread may only begin now, and make the call that fails */
        (void)cuda_fake_fail_nth(1, TIERCE__CU_UNKNOWN);
        wait_for_calls(&rotators[0], 100);
    } while (!atomic_load(&rotators[0].has_ended));
    (void)cuda_fake_fail_nth(0, 0);
    for (size_t i = 0; i < 2; i++) {
        pthread_join(rotators[i].thread, NULL);
        ck_assert_int_eq(rotators[i].rc, -EIO);
    }
    ck_assert_uint_eq(cuda_fake_live().host_memories, GPU_HOST_MEMORIES + 1);
    cuda_fake_hold(false);
    expect_bytes(false);
    stop();
}
END_TEST

/* ---- each call fails once ---------------------------------------------------------------------
 */

enum { FINE, WRONG, BEHIND_THE_END };

/* The status of a rotation states which bytes the keys have. */
static bool is_told(int rc)
{
    struct tierce__key_rows rows = {keys, ROW, ROW};
    bool is_unchanged = rc == TIERCE_E_UNSUPPORTED || rc == -ENOMEM;
    if (rc != 0 && !is_unchanged)
        return rc == -EIO || rc == -ECANCELED;
    if (rc == 0)
        tierce__rotate(&rotation, TIERCE__BLEND_BF16, &rows, &rows, TOKENS, 1);
    gpu_read(now, memory, BYTES);
    return memcmp(now, keys, BYTES) == 0;
}

/* In a process of its own, because a failure may leave objects that cannot be freed. */
static int fail_call(uint64_t nth, TIERCE__CU_RESULT code)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        start();
        cuda_fake_be_patient(true);
        (void)cuda_fake_fail_nth(nth, code);
        int rc = rotate();
        uint64_t made = cuda_fake_fail_nth(0, 0);
        bool is_right = is_told(rc) && (made >= nth || rc == 0);
        if (code == TIERCE__CU_OUT_OF_MEMORY) /* nothing is wrong for ever */
            is_right &=
                rc != TIERCE_E_UNSUPPORTED && (rc != -ENOMEM || (rotate() == 0 && is_told(0)));
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
    while (fail_call(nth, codes[_i]) != BEHIND_THE_END)
        nth++;
    ck_assert_uint_gt(nth, 20);
}
END_TEST

CHECK_MAIN("rotate_faults", .seconds = 120,
           .tests = {the_first_rotation_is_logged, a_wrong_kernel_is_not_used,
                     a_kernel_that_cannot_be_loaded, without_memory_of_the_device, without_memory,
                     a_trial_that_fails_is_not_repeated},
           .loops = {{each_call_fails_once, 0, 2}})
