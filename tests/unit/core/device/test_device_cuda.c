/* SPDX-License-Identifier: Apache-2.0 */
#include "child_exit.h"
#include "device_harness.h"
#include "log_record.h"

#include <errno.h>
#include <pthread.h>

/* The device "cuda" on the driver of tests/support/cuda: the parts of the contract that do not
 * apply to memory of the host, and the calls of the driver. */

static void start(void)
{
    dh_start_engine("cuda", 0);
    dh_open();
}

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(nothing_comes_before_its_event)
{
    struct dh_transfer t;
    start();
    cuda_fake_hold(true);
    dh_compute(1, 3); /* not computed when the gather is enqueued */
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 1, 2, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->query(dh.device, t.event), -EAGAIN);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, 0), TIERCE_E_DEADLINE);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, tierce__deadline_in_ms(20)),
                     TIERCE_E_DEADLINE);
    ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 0, 1), -EAGAIN);
    ck_assert_uint_eq(t.sums[0][0], 0);
    cuda_fake_hold(false);
    ck_assert_int_eq(dh_end(&t), 0);
    cuda_fake_tell_host_access(dh.pool, 4 * dh_block_bytes[1], false, "the host");
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

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
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "a kernel writes what a copy to the host"));
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
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "a kernel writes what a copy to the device"));
    cuda_fake_forgive();
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

START_TEST(loads_do_not_queue_behind_stores)
{
    struct dh_transfer store, load;
    TIERCE__CU_STREAM other;
    start();
    dh_begin(&load);
    uint8_t *at = dh_add(&load, dh.pool, 0, 0, 1, 3);
    (void)dh_gather(&load);
    dh_begin(&store);
    (void)dh_add(&store, at, 1, 4, 1, 3);
    /* A store that cannot proceed, because its stream is stopped. */
    cuda_check(cuStreamCreate(&other, 1));
    cuda_fake_stop_stream(other, true);
    store.copy.stream = other;
    ck_assert_int_eq(dh.ops->gather(dh.device, &store.event, &store.copy), 0);
    ck_assert_int_eq(dh_scatter(&load), 0);
    ck_assert_int_eq(dh.ops->query(dh.device, store.event), -EAGAIN);
    cuda_fake_stop_stream(other, false);
    ck_assert_int_eq(dh_end(&store), 0);
    cuda_check(cuStreamSynchronize(other));
    cuda_check(cuStreamDestroy_v2(other));
    dh_close();
}
END_TEST

START_TEST(a_captured_stream_is_refused)
{
    struct dh_transfer t;
    struct tierce__device_event *event = NULL;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    (void)dh_gather(&t);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    cuda_fake_capture(dh.stream, true);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &t.copy), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &event, &t.copy), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, t.event, dh.stream), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(recorded("cuda_capture"), 1);
    ck_assert_ptr_null(event);
    cuda_fake_capture(dh.stream, false);
    ck_assert_int_eq(dh_end(&t), 0);
    ck_assert_int_eq(dh_scatter(&t), 0); /* the device has not failed */
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

/* An engine captures a graph on a stream of its own, in another thread. No call of ours may be one
 * that makes such a capture fail. */
START_TEST(a_capture_of_another_thread_goes_on)
{
    struct dh_transfer t;
    struct tierce__device_event *event;
    TIERCE__CU_STREAM captured;
    TIERCE__CU_CAPTURE_MODE mode = TIERCE__CU_CAPTURE_GLOBAL;
    start();
    cuda_check(cuStreamCreate(&captured, 1));
    cuda_fake_capture(captured, true);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(dh_gather(&t), 0);
    ck_assert_int_eq(dh_scatter(&t), 0);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), 0);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, event, dh.stream), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, event, DH_DEADLINE), 0);
    dh.ops->forget(dh.device, event);
    ck_assert_int_eq(dh.ops->idle(dh.device), 0);
    ck_assert_int_eq(dh.ops->unpin(dh.device, dh.pool, DH_SLICE), 0);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), 0);
    ck_assert(dh.ops->close(dh.device, DH_DEADLINE));
    ck_assert_str_eq(cuda_fake_report(), "");
    cuda_check(cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_int_eq(mode, TIERCE__CU_CAPTURE_GLOBAL); /* it was restored */
    cuda_fake_capture(captured, false);
    cuda_check(cuStreamDestroy_v2(captured));
    dh_stop_engine();
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

static void *use_without_context(void *arg)
{
    struct dh_transfer *t = arg;
    struct tierce__device_event *event;
    int rc = dh.ops->gather(dh.device, &t->event, &t->copy);
    rc = rc < 0 ? rc : dh.ops->wait(dh.device, t->event, DH_DEADLINE);
    rc = rc < 0 ? rc : dh.ops->record(dh.device, &event, t->copy.stream);
    if (rc == 0) {
        dh.ops->forget(dh.device, t->event);
        dh.ops->forget(dh.device, event);
    }
    return rc == 0 && cuda_fake_live().stack == 0 ? NULL : arg;
}

START_TEST(a_thread_needs_no_context)
{
    struct dh_transfer t;
    pthread_t thread;
    void *failed;
    start();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(pthread_create(&thread, NULL, use_without_context, &t), 0);
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
    dh_close();
}
END_TEST

START_TEST(another_context_stays_current)
{
    struct dh_transfer t;
    TIERCE__CU_CONTEXT other, popped;
    start();
    cuda_check(cuDevicePrimaryCtxRetain(&other, 1));
    cuda_check(cuCtxPushCurrent_v2(other));
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(dh_gather(&t), 0);
    cuda_check(cuCtxPopCurrent_v2(&popped));
    ck_assert_ptr_eq(popped, other);
    cuda_check(cuDevicePrimaryCtxRelease_v2(1));
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

/* More cells than a batch holds. */
START_TEST(a_long_row_is_several_batches)
{
    enum { CELLS = 400, BYTES = 1000 };
    static int32_t ids[CELLS];
    static uint64_t sums[CELLS];
    start();
    for (int32_t i = 0; i < CELLS; i++)
        ids[i] = i * 7 % DH_BLOCKS;
    struct tierce__device_row row = {.layer = 0, .ids = ids, .cells = {dh.pool, sums, CELLS}};
    struct tierce__device_copy copy = {
        .paged = &dh.paged, .rows = &row, .count = 1, .stream = dh.stream};
    struct tierce__device_event *event;
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, event, DH_DEADLINE), 0);
    ck_assert_int_eq(dh.ops->settle(dh.device, event, 0, 1), 0);
    dh.ops->forget(dh.device, event);
    for (size_t i = 0; i < CELLS; i++) {
        ck_assert_mem_eq(dh.pool + i * BYTES, dh.mirror + dh_at(0, ids[i]), BYTES);
        ck_assert_uint_eq(sums[i], XXH3_64bits(dh.pool + i * BYTES, BYTES));
    }
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
           .tests = {nothing_comes_before_its_event,
                     a_destination_belongs_to_the_copy_until_its_event,
                     sources_stay_in_use_until_the_event,
                     kernels_see_loaded_blocks_behind_the_event_only,
                     loads_do_not_queue_behind_stores,
                     a_captured_stream_is_refused,
                     a_capture_rules_out_the_default_stream,
                     a_capture_of_another_thread_goes_on,
                     no_call_before_the_first_open,
                     the_address_decides_the_device,
                     an_old_driver_is_refused,
                     a_driver_that_was_used_before_a_fork,
                     a_thread_needs_no_context,
                     another_context_stays_current,
                     a_child_of_fork_is_refused,
                     contiguous_blocks_are_one_copy,
                     a_long_row_is_several_batches,
                     memory_that_cannot_be_pinned,
                     a_broken_device_says_nothing_about_bytes,
                     memory_stays_in_use_until_a_failed_device_is_closed},
           .panics = {a_pending_transfer_cannot_be_forgotten})
