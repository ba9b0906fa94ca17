/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "child_exit.h"
#include "core/codec/codec.h"
#include "core/device/cuda/cuda_private.h"
#include "core/device/device.h"
#include "gpu.h"
#include "kv_values.h"
#include "log_record.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* Runs that are decoded on the driver of tests/support/cuda: a kernel that is wrong or cannot be
 * used, and calls and allocations that fail. */

enum { BYTES = 30000 };

static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static uint8_t expected[BYTES], now[BYTES], coded[2 * BYTES];
static struct tierce__device_run run;

static void start(void)
{
    struct tierce__codec_shape shape = {.element = TIERCE__ELEMENT_BF16};
    gpu_start(1, 0);
    memory = gpu_alloc(BYTES);
    kv_fill(expected, BYTES, TIERCE__ELEMENT_BF16, 3, 9, 128);
    int64_t length = tierce__codec_find("lossless")
                         ->encode(coded, tierce__codec_bound(BYTES), expected, BYTES, &shape);
    ck_assert(length > 0 && length < BYTES);
    run = (struct tierce__device_run){
        .to = (uint8_t *)memory, .bytes = BYTES, .from = coded, .coded = (size_t)length};
    gpu_write(memory, now, BYTES);
    gpu_sync();
    ops = tierce__device_find("cuda");
    ck_assert_int_eq(ops->open(&device, (void *)memory), 0);
    record_log(TIERCE_LOG_INFO);
}

static int decode(void)
{
    return ops->decode(device, &run, 1, tierce__deadline_in_ms(120000));
}

static bool is_decoded(void)
{
    gpu_read(now, memory, BYTES);
    return memcmp(now, expected, BYTES) == 0;
}

static void stop(void)
{
    ck_assert(ops->close(device, tierce__deadline_in_ms(120000)));
    gpu_check_left(1);
    gpu_free(memory);
    gpu_stop();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(the_first_run_is_logged)
{
    start();
    ck_assert_int_eq(decode(), 0);
    ck_assert(is_decoded());
    ck_assert_int_eq(decode(), 0);
    ck_assert_uint_eq(recorded("cuda_decoder"), 1);
    ck_assert_uint_eq(recorded_with("cuda_decoder", "never run on a GPU"), 1);
    ck_assert_uint_eq(recorded("cuda_no_decoder"), 0);
    stop();
}
END_TEST

/* Wrong bytes, or a verdict that is wrong. */
START_TEST(a_wrong_kernel_is_not_used)
{
    start();
    struct cuda_fake_live before = cuda_fake_live();
    cuda_fake_flip(_i == 0 ? CUDA_FAKE_FLIP_DECODED : CUDA_FAKE_FLIP_VERDICT);
    ck_assert_int_eq(decode(), TIERCE_E_UNSUPPORTED);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    ck_assert_int_eq(decode(), TIERCE_E_UNSUPPORTED);
    ck_assert(!is_decoded());
    struct cuda_fake_live after = cuda_fake_live(); /* it keeps no memory */
    ck_assert_uint_eq(after.streams, before.streams);
    ck_assert_uint_eq(after.memories, before.memories);
    ck_assert_uint_eq(after.host_memories, before.host_memories);
    ck_assert_uint_eq(recorded("cuda_no_decoder"), 1);
    ck_assert_uint_eq(recorded_with("cuda_no_decoder", "differ from the host's"), 1);
    stop();
}
END_TEST

START_TEST(a_kernel_that_cannot_be_loaded)
{
    start();
    (void)cuda_fake_fail_nth(3, TIERCE__CU_INVALID_IMAGE); /* after those that enter the device */
    ck_assert_int_eq(decode(), TIERCE_E_UNSUPPORTED);
    (void)cuda_fake_fail_nth(0, 0);
    ck_assert_int_eq(decode(), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(recorded_with("cuda_no_decoder", "cuModuleLoadData"), 1);
    stop();
}
END_TEST

/* Each allocation fails once: the next call tries again. */
START_TEST(without_memory)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        start();
        (void)tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(decode(), -ENOMEM);
        (void)tierce__alloc_fail_nth(0);
        ck_assert_int_eq(decode(), 0);
        ck_assert(is_decoded());
        stop();
    }
}
END_TEST

/* After the first call, none allocates. */
START_TEST(a_call_allocates_nothing)
{
    start();
    ck_assert_int_eq(decode(), 0);
    (void)tierce__alloc_fail_nth(1);
    ck_assert_int_eq(decode(), 0);
    (void)tierce__alloc_fail_nth(0);
    stop();
}
END_TEST

/* ---- calls that wait ------------------------------------------------------------------------- */

/* A call on another thread: plain bytes at a place that no other caller uses. */
struct caller {
    pthread_t thread;
    struct tierce__device_run run;
    uint64_t deadline_ns;
    int rc;
    atomic_bool begun, ended;
};

static void *call(void *arg)
{
    struct caller *caller = arg;
    atomic_store(&caller->begun, true);
    caller->rc = ops->decode(device, &caller->run, 1, caller->deadline_ns);
    atomic_store(&caller->ended, true);
    return NULL;
}

static void begin_call(struct caller *caller, size_t place, uint64_t deadline_ns)
{
    enum { PLACE = 4096 };
    uint64_t launches = cuda_fake_calls().launches;
    *caller = (struct caller){.run = {.to = (uint8_t *)memory + place * PLACE,
                                      .bytes = 64,
                                      .from = expected + place * PLACE,
                                      .coded = 64,
                                      .is_plain = true},
                              .deadline_ns = deadline_ns};
    ck_assert_int_eq(pthread_create(&caller->thread, NULL, call, caller), 0);
    WAIT_FOR(atomic_load(&caller->begun));
    if (place < TIERCE__CUDA_LANES)
        WAIT_FOR(cuda_fake_calls().launches > launches);
}

/* Blocks that are decoded when the deadline passes are not late. */
START_TEST(the_last_piece_ends_after_the_deadline)
{
    struct caller caller;
    uint64_t deadline_ns;
    start();
    ck_assert_int_eq(decode(), 0);
    cuda_fake_hold(true);
    deadline_ns = tierce__deadline_in_ms(1000);
    begin_call(&caller, 0, deadline_ns);
    WAIT_FOR(tierce__now_ns() >= deadline_ns);
    cuda_fake_hold(false);
    ck_assert_int_eq(pthread_join(caller.thread, NULL), 0);
    ck_assert_int_eq(caller.rc, 0);
    stop();
}
END_TEST

/* While one lane waits for the device, all calls use the other. */
START_TEST(a_lane_that_is_free_is_used)
{
    struct caller caller;
    struct tierce__device_run other = {.bytes = 64, .from = expected, .coded = 64};
    start();
    ck_assert_int_eq(decode(), 0);
    TIERCE__CU_STREAM stream = tierce__cuda_of(device)->decoder.lanes[0].stream;
    atomic_store(&tierce__cuda_of(device)->decoder.calls, 0); /* the next one tries lane 0 first */
    cuda_fake_stop_stream(stream, true);
    begin_call(&caller, 0, TIERCE__DEADLINE_NEVER);
    other.to = (uint8_t *)memory + 8192;
    other.is_plain = true;
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(ops->decode(device, &other, 1, TIERCE__DEADLINE_NEVER), 0);
    cuda_fake_stop_stream(stream, false);
    ck_assert_int_eq(pthread_join(caller.thread, NULL), 0);
    ck_assert_int_eq(caller.rc, 0);
    stop();
}
END_TEST

/* Two calls wait for the device, and a third one for a lane. The device fails, and may still use
 * the memory of the lane that is free then. */
START_TEST(a_call_that_waits_for_a_lane_sees_the_failure)
{
    enum { CALLERS = 3 };
    static struct caller callers[CALLERS];
    uint64_t polls;
    start();
    ck_assert_int_eq(decode(), 0);
    cuda_fake_hold(true);
    for (size_t i = 0; i < CALLERS; i++)
        begin_call(&callers[i], i, TIERCE__DEADLINE_NEVER);
    polls = cuda_fake_calls().all;
    WAIT_FOR(cuda_fake_calls().all > polls + 200); /* of the first two */
    (void)cuda_fake_fail_nth(1, TIERCE__CU_UNKNOWN);
    WAIT_FOR(atomic_load(&callers[0].ended) || atomic_load(&callers[1].ended));
    (void)cuda_fake_fail_nth(0, 0);
    polls = cuda_fake_calls().all;
    WAIT_FOR(atomic_load(&callers[2].ended) || cuda_fake_calls().all > polls + 200);
    cuda_fake_hold(false);
    for (size_t i = 0; i < CALLERS; i++)
        ck_assert_int_eq(pthread_join(callers[i].thread, NULL), 0);
    ck_assert((callers[0].rc == -EIO) != (callers[1].rc == -EIO));
    ck_assert_int_eq(callers[2].rc, -EIO);
    stop();
}
END_TEST

/* ---- each call fails once -------------------------------------------------------------------- */

enum { FINE, WRONG, BEHIND_THE_END };

/* In a process of its own, because a failure may leave objects that cannot be freed. */
static int fail_call(uint64_t nth, TIERCE__CU_RESULT code, bool is_first)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        start();
        cuda_fake_be_patient(true);
        bool is_right = is_first || decode() == 0;
        (void)cuda_fake_fail_nth(nth, code);
        int rc = decode();
        uint64_t made = cuda_fake_fail_nth(0, 0);
        is_right &= made >= nth || rc == 0;
        if (rc == 0)
            is_right &= is_decoded();
        else
            is_right &=
                rc == -EIO || rc == -ECANCELED || rc == -ENOMEM || rc == TIERCE_E_UNSUPPORTED;
        if (rc == -ENOMEM || rc == -ECANCELED) /* the device works */
            is_right &= decode() == 0 && is_decoded();
        if (code == TIERCE__CU_OUT_OF_MEMORY) /* nothing is wrong for ever */
            is_right &= rc != TIERCE_E_UNSUPPORTED;
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
    while (fail_call(nth, codes[_i % 2], _i < 2) != BEHIND_THE_END)
        nth++;
    ck_assert_uint_gt(nth, _i < 2 ? 20 : 6);
}
END_TEST

CHECK_MAIN("decode_faults", .seconds = 120,
           .tests = {the_first_run_is_logged, a_kernel_that_cannot_be_loaded, without_memory,
                     a_call_allocates_nothing, the_last_piece_ends_after_the_deadline,
                     a_lane_that_is_free_is_used, a_call_that_waits_for_a_lane_sees_the_failure},
           .loops = {{a_wrong_kernel_is_not_used, 0, 2}, {each_call_fails_once, 0, 4}})
