/* SPDX-License-Identifier: Apache-2.0 */
#include "child_exit.h"
#include "device_harness.h"
#include "log_record.h"

#include <errno.h>
#include <pthread.h>

/* The device "cuda" on the driver of tests/support/cuda: the order of accesses, failures, and the
 * calls of the driver. test_device_order.c has the parts that a real driver can run too. */

static void start(void)
{
    dh_start_engine("cuda", 0);
    dh_open();
}

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(a_destination_belongs_to_the_copy_until_its_event)
{
    struct dh_transfer t;
    start();
    cuda_fake_hold(true);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 2, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, 0), TIERCE_E_DEADLINE);
    cuda_fake_tell_host_access(dh.pool, 10, false, "a premature publication");
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "a premature publication reads what"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

START_TEST(sources_stay_in_use_until_the_event)
{
    struct dh_transfer t;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 2, 1, 4);
    cuda_fake_hold(true);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    dh_compute(0, 3);
    ck_assert_ptr_nonnull(
        strstr(cuda_fake_report(), "a copy to the device writes what a copy to the host"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    (void)dh_end(&t);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, t.event, dh.stream), 0);
    dh_compute(0, 3); /* after the gather: no violation is reported */
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

START_TEST(kernels_see_loaded_blocks_behind_the_event_only)
{
    struct dh_transfer t;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 2, 2, 1, 4);
    (void)dh_gather(&t);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    dh_compute(2, 5);
    ck_assert_ptr_nonnull(
        strstr(cuda_fake_report(), "a copy to the device writes what a copy to the device"));
    cuda_fake_forgive();
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

/* While another stream is being captured, the driver may refuse the question about the default
 * stream, whose work would end that capture. */
START_TEST(a_capture_rules_out_the_default_stream)
{
    struct dh_transfer t;
    struct tierce__device_event *event = NULL;
    start();
    record_log(TIERCE_LOG_WARN);
    cuda_fake_fail_nth(3, TIERCE__CU_STREAM_CAPTURE_IMPLICIT); /* after the context and the mode */
    ck_assert_int_eq(dh.ops->record(dh.device, &event, NULL), TIERCE_E_UNSUPPORTED);
    cuda_fake_fail_nth(0, 0);
    ck_assert_ptr_null(event);
    ck_assert_uint_eq(recorded("cuda_capture"), 1);
    ck_assert_uint_eq(recorded("cuda_failed"), 0);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(dh_gather(&t), 0); /* the device has not failed */
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

/* ---- opening ----------------------------------------------------------------------------------
 */

START_TEST(no_call_before_the_first_open)
{
    struct tierce__device *host;
    int number;
    ck_assert_int_eq(tierce__device_find("host")->open(&host, &number), 0);
    ck_assert_ptr_nonnull(tierce__device_find("cuda"));
    ck_assert_uint_eq(cuda_fake_calls().all, 0);
    ck_assert(tierce__device_find("host")->close(host, 0));
}
END_TEST

START_TEST(the_address_decides_the_device)
{
    struct tierce__device *device;
    int number;
    dh_start_engine("cuda", 1);
    dh_open();
    struct cuda_fake_live live = cuda_fake_live();
    ck_assert_uint_eq(live.contexts, 2); /* of device 1: the engine's and ours */
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(dh.ops->open(&device, &number), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->open(&device, NULL), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(recorded_with("cuda_unusable", "not memory of a GPU"), 2);
    dh_close();
}
END_TEST

START_TEST(an_old_driver_is_refused)
{
    struct tierce__device *device;
    cuda_fake_set_version(10020);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(tierce__device_find("cuda")->open(&device, &device), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(recorded_with("cuda_unusable", "has version 10020; at least 11000"), 1);
    cuda_fake_set_version(12040);
    start(); /* the next call tries again */
    dh_close();
}
END_TEST

START_TEST(a_driver_that_was_used_before_a_fork)
{
    struct tierce__device *device;
    record_log(TIERCE_LOG_WARN);
    cuda_fake_fail_nth(1, TIERCE__CU_NOT_INITIALIZED);
    ck_assert_int_eq(tierce__device_find("cuda")->open(&device, &device), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(recorded_with("cuda_unusable", "before a fork"), 1);
}
END_TEST

/* ---- threads, processes and contexts ----------------------------------------------------------
 */

START_TEST(another_context_stays_current)
{
    struct dh_transfer t;
    TIERCE__CU_CONTEXT other, popped;
    start();
    gpu_ok(cuDevicePrimaryCtxRetain(&other, 1));
    gpu_ok(cuCtxPushCurrent_v2(other));
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(dh_gather(&t), 0);
    gpu_ok(cuCtxPopCurrent_v2(&popped));
    ck_assert_ptr_eq(popped, other);
    gpu_ok(cuDevicePrimaryCtxRelease_v2(1));
    dh_close();
}
END_TEST

static int child_of_fork(struct dh_transfer *t)
{
    struct tierce__device_event *event;
    struct tierce__device *device;
    uint64_t before = cuda_fake_calls().all;
    bool refused = dh.ops->gather(dh.device, &event, &t->copy) == TIERCE_E_CLOSED &&
                   dh.ops->scatter(dh.device, &event, &t->copy) == TIERCE_E_CLOSED &&
                   dh.ops->record(dh.device, &event, dh.stream) == TIERCE_E_CLOSED &&
                   dh.ops->stream_wait(dh.device, t->event, dh.stream) == TIERCE_E_CLOSED &&
                   dh.ops->query(dh.device, t->event) == TIERCE_E_CLOSED &&
                   dh.ops->wait(dh.device, t->event, DH_DEADLINE) == TIERCE_E_CLOSED &&
                   dh.ops->pin(dh.device, dh.pool, DH_SLICE) == TIERCE_E_CLOSED &&
                   dh.ops->unpin(dh.device, dh.pool, DH_SLICE) == TIERCE_E_CLOSED &&
                   dh.ops->open(&device, (void *)dh.memory) == TIERCE_E_UNSUPPORTED;
    dh.ops->forget(dh.device, t->event);
    refused = refused && !dh.ops->close(dh.device, DH_DEADLINE);
    return refused && cuda_fake_calls().all == before ? 0 : 1;
}

START_TEST(a_child_of_fork_is_refused)
{
    struct dh_transfer t;
    int status;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, DH_DEADLINE), 0);
    pid_t pid = fork();
    if (pid == 0)
        child_exit(child_of_fork(&t));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

/* ---- calls of the driver ----------------------------------------------------------------------
 */

/* Calls for 12 blocks that are not contiguous. */
static const struct {
    int version;
    uint64_t batches, copies;
} forms[] = {{13000, 1, 0}, {12080, 1, 0}, {12070, 0, 12}, {11000, 0, 12}};

START_TEST(many_cells_are_one_call_if_the_driver_can)
{
    struct dh_transfer t;
    cuda_fake_set_version(forms[_i].version);
    start();
    struct cuda_fake_calls before = cuda_fake_calls();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 2, 12);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    struct cuda_fake_calls after = cuda_fake_calls();
    ck_assert_uint_eq(after.batches - before.batches, forms[_i].batches);
    ck_assert_uint_eq(after.copies - before.copies, forms[_i].copies);
    ck_assert_int_eq(dh_scatter(&t), 0);
    dh_check_memory();
    dh_close();
}
END_TEST

START_TEST(contiguous_blocks_are_one_copy)
{
    struct dh_transfer t;
    start();
    struct cuda_fake_calls before = cuda_fake_calls();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 2, 3, 1, 8);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    struct cuda_fake_calls after = cuda_fake_calls();
    ck_assert_uint_eq(after.batches - before.batches, 0);
    ck_assert_uint_eq(after.copies - before.copies, 1);
    dh_close();
}
END_TEST

/* ---- failures ---------------------------------------------------------------------------------
 */

START_TEST(memory_that_cannot_be_pinned)
{
    start();
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool + 1, DH_SLICE), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE + 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->unpin(dh.device, dh.pool, DH_POOL), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->unpin(dh.device, dh.pool, DH_SLICE), 0);
    cuda_fake_fail_nth(3, TIERCE__CU_OUT_OF_MEMORY); /* after the context and the capture mode */
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), -ENOMEM);
    ck_assert(!dh.ops->is_pinned(dh.device, dh.pool, 1));
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), 0);
    dh_close();
}
END_TEST

START_TEST(a_broken_device_says_nothing_about_bytes)
{
    struct dh_transfer t;
    struct tierce__device_event *event;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    (void)dh_gather(&t);
    cuda_fake_hold(true);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    record_log(TIERCE_LOG_WARN);
    cuda_fake_break();
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, DH_DEADLINE), -EIO);
    ck_assert_uint_eq(recorded_with("cuda_failed", "cuEventQuery"), 1);
    ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 0, 1), -EAGAIN);
    for (size_t c = 0; c < 3; c++)
        ck_assert_uint_eq(t.good[0][c], 1);
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &t.copy), -EIO);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), -EIO);
    dh.ops->forget(dh.device, t.event);
    ck_assert(!dh.ops->close(dh.device, DH_DEADLINE)); /* the copies may continue */
    ck_assert_str_eq(cuda_fake_report(), "");
}
END_TEST

/* The copies are in progress, but they have no event. */
START_TEST(memory_stays_in_use_until_a_failed_device_is_closed)
{
    struct dh_transfer t;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 2, 3);
    cuda_fake_fail_nth(0, 0);
    (void)dh_gather(&t);
    cuda_fake_hold(true);
    /* Push, mode, create; capturing, create, record, wait, destroy; copies, record. */
    uint64_t calls = 10;
    cuda_fake_fail_nth(calls, TIERCE__CU_UNKNOWN);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -EIO);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -EIO);
    ck_assert(!dh.ops->close(dh.device, tierce__deadline_in_ms(20)));
    cuda_fake_tell_host_access(dh.pool, 1, true, "the next chunk");
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "the next chunk writes what a copy"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    ck_assert(dh.ops->close(dh.device, DH_DEADLINE));
    cuda_fake_tell_host_access(dh.pool, 1, true, "the next chunk");
    dh_stop_engine();
}
END_TEST

static const TIERCE__CU_RESULT refusals[] = {TIERCE__CU_INVALID_VALUE, TIERCE__CU_OUT_OF_MEMORY,
                                             TIERCE__CU_INVALID_HANDLE, TIERCE__CU_NOT_SUPPORTED,
                                             TIERCE__CU_LAUNCH_OUT_OF_RESOURCES};
enum { REFUSALS = sizeof(refusals) / sizeof(refusals[0]) };

/* Ends a transfer whose call `nth` was refused. Returns whether it has an event. */
static bool end_refused(struct dh_transfer *t, int rc)
{
    ck_assert(rc == -ECANCELED || (rc == -ENOMEM && t->event == NULL));
    if (t->event == NULL)
        return false;
    ck_assert_int_eq(dh.ops->wait(dh.device, t->event, DH_DEADLINE), 0);
    dh.ops->forget(dh.device, t->event);
    t->event = NULL;
    return true;
}

/* Each call of a transfer is refused once: copies that were enqueued before it have an event, and
 * the next transfer works. The calls are push, mode; create; capturing, create, record, wait,
 * destroy; two rows, each of two batches; record; mode, pop. */
START_TEST(a_refused_call_is_the_end_of_a_transfer)
{
    enum { FIRST = 3, DESTROY = 8, FIRST_COPY = 9, LAST = 10 };
    struct dh_transfer t;
    dh_start_engine("cuda", 0);
    dh_open();
    record_log(TIERCE_LOG_WARN);
    for (uint64_t nth = FIRST; nth <= LAST; nth++) {
        if (nth == DESTROY) /* the event would remain */
            continue;
        dh_begin(&t);
        (void)dh_add(&t, dh.pool, 0, 0, 2, 12);
        uint64_t batches = cuda_fake_calls().batches;
        for (size_t r = 1; r < DH_ROWS_MAX; r++)
            (void)dh_add(&t, dh.pool + r * 12 * 1000, 0, 0, 2, 12);
        ck_assert_int_eq(dh_gather(&t), 0);
        ck_assert_uint_eq(cuda_fake_calls().batches - batches, 2); /* 72 copies */
        cuda_fake_fail_nth(nth, refusals[_i]);
        int rc = dh.ops->gather(dh.device, &t.event, &t.copy);
        cuda_fake_fail_nth(0, 0);
        ck_assert(end_refused(&t, rc) == (nth >= FIRST_COPY));
        cuda_fake_fail_nth(nth, refusals[_i]);
        rc = dh.ops->scatter(dh.device, &t.event, &t.copy);
        cuda_fake_fail_nth(0, 0);
        ck_assert(end_refused(&t, rc) == (nth >= FIRST_COPY));
        ck_assert_int_eq(dh_scatter(&t), 0);
        dh_check_memory();
    }
    ck_assert_uint_eq(recorded("cuda_failed"), 0);
    ck_assert_uint_gt(recorded("cuda_refused"), 0);
    dh_close();
}
END_TEST

/* After other errors the context cannot be used any more. */
START_TEST(other_errors_are_the_end_of_the_device)
{
    static const TIERCE__CU_RESULT codes[] = {TIERCE__CU_ILLEGAL_ADDRESS, TIERCE__CU_LAUNCH_FAILED,
                                              TIERCE__CU_INVALID_CONTEXT, TIERCE__CU_UNKNOWN};
    struct dh_transfer t;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 2, 3);
    cuda_fake_fail_nth(9, codes[_i]);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -EIO);
    ck_assert_ptr_null(t.event);
    cuda_fake_fail_nth(0, 0);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -EIO);
    dh_close();
}
END_TEST

START_TEST(a_pending_transfer_cannot_be_forgotten)
{
    struct dh_transfer t;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    cuda_fake_hold(true);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    dh.ops->forget(dh.device, t.event);
}
END_TEST

CHECK_MAIN("device_cuda", .seconds = 120,
           .loops = {{many_cells_are_one_call_if_the_driver_can, 0, 4},
                     {a_refused_call_is_the_end_of_a_transfer, 0, REFUSALS},
                     {other_errors_are_the_end_of_the_device, 0, 4}},
           .tests = {a_destination_belongs_to_the_copy_until_its_event,
                     sources_stay_in_use_until_the_event,
                     kernels_see_loaded_blocks_behind_the_event_only,
                     a_capture_rules_out_the_default_stream, no_call_before_the_first_open,
                     the_address_decides_the_device, an_old_driver_is_refused,
                     a_driver_that_was_used_before_a_fork, another_context_stays_current,
                     a_child_of_fork_is_refused, contiguous_blocks_are_one_copy,
                     memory_that_cannot_be_pinned, a_broken_device_says_nothing_about_bytes,
                     memory_stays_in_use_until_a_failed_device_is_closed},
           .panics = {a_pending_transfer_cannot_be_forgotten})
