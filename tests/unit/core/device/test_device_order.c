/* SPDX-License-Identifier: Apache-2.0 */
#define DH_BLOCK_COUNT 16
#include "device_harness.h"
#include "log_record.h"

#include <errno.h>
#include <pthread.h>

/* The device "cuda" on a GPU, or on the driver of tests/support/cuda: the parts of the contract
 * that do not apply to memory of the host. Each test runs for each copy method. */

static const char *const kinds[] = {"cuda", "cuda direct", "cuda staged"};
enum { KINDS = 3 };

static void start(int kind)
{
    dh_start_engine(kinds[kind], 0);
    dh_open();
    dh_check_way();
}

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(nothing_comes_before_its_event)
{
    struct dh_transfer t;
    start(_i);
    gpu_hold();
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
    gpu_release();
    ck_assert_int_eq(dh_end(&t), 0);
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

START_TEST(loads_do_not_queue_behind_stores)
{
    struct dh_transfer store, load;
    TIERCE__CU_STREAM other;
    start(_i);
    dh_begin(&load);
    uint8_t *at = dh_add(&load, dh.pool, 0, 0, 1, 3);
    (void)dh_gather(&load);
    dh_begin(&store);
    (void)dh_add(&store, at, 1, 4, 1, 3);
    /* A store that cannot proceed, because the work on its stream goes on. */
    gpu_ok(gpu.api.stream_create(&other, TIERCE__CU_STREAM_NON_BLOCKING));
    gpu_hold_stream(other);
    store.copy.stream = other;
    ck_assert_int_eq(dh.ops->gather(dh.device, &store.event, &store.copy), 0);
    ck_assert_int_eq(dh_scatter(&load), 0);
    ck_assert_int_eq(dh.ops->query(dh.device, store.event), -EAGAIN);
    gpu_release();
    ck_assert_int_eq(dh_end(&store), 0);
    gpu_sync_stream(other);
    gpu_ok(gpu.api.stream_destroy(other));
    dh_close();
}
END_TEST

/* The engine reads the blocks of each layer after its scatter, without waiting for the host. */
START_TEST(work_follows_a_load)
{
    struct dh_transfer t;
    start(_i);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 1, 0, 1, 4);
    ck_assert_int_eq(dh_gather(&t), 0);
    for (size_t c = 0; c < 4; c++)
        t.ids[0][c] += 10;
    gpu_hold(); /* so that nothing has been copied when the read is enqueued */
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, t.event, dh.stream), 0);
    dh_expect_scattered(&t);
    const uint8_t *read = gpu_read_later(dh.memory + dh_at(1, 10), 3 * DH_STRIDE);
    gpu_release();
    gpu_sync();
    ck_assert_mem_eq(read, dh.mirror + dh_at(1, 10), 3 * DH_STRIDE);
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

/* More cells than a batch holds. */
START_TEST(a_long_row_is_several_batches)
{
    enum { CELLS = 400, BYTES = 1000 };
    static int32_t ids[CELLS];
    static uint64_t sums[CELLS];
    start(_i);
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

/* ---- captures ---------------------------------------------------------------------------------
 */

START_TEST(a_captured_stream_is_refused)
{
    struct dh_transfer t;
    struct tierce__device_event *event = NULL;
    start(_i);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    (void)dh_gather(&t);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    gpu_begin_capture(dh.stream);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &t.copy), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &event, &t.copy), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, t.event, dh.stream), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_le(recorded("cuda_capture"), 1); /* once in a process */
    ck_assert_ptr_null(event);
    gpu_end_capture(dh.stream);
    ck_assert_int_eq(dh_end(&t), 0);
    ck_assert_int_eq(dh_scatter(&t), 0); /* the device has not failed */
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
    start(_i);
    gpu_ok(gpu.api.stream_create(&captured, TIERCE__CU_STREAM_NON_BLOCKING));
    gpu_begin_capture(captured);
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
    gpu_check_report();
    gpu_ok(gpu.api.capture_mode(&mode));
    ck_assert_int_eq(mode, TIERCE__CU_CAPTURE_GLOBAL); /* it was restored */
    gpu_end_capture(captured);
    gpu_ok(gpu.api.stream_destroy(captured));
    dh_stop_engine();
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------
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
    bool is_clean = gpu.live == NULL || gpu.live().stack == 0;
    return rc == 0 && is_clean ? NULL : arg;
}

START_TEST(a_thread_needs_no_context)
{
    struct dh_transfer t;
    pthread_t thread;
    void *failed;
    start(_i);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 3);
    ck_assert_int_eq(pthread_create(&thread, NULL, use_without_context, &t), 0);
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
    dh_close();
}
END_TEST

GPU_MAIN("device_order", .seconds = 120,
         .loops = {{nothing_comes_before_its_event, 0, KINDS},
                   {loads_do_not_queue_behind_stores, 0, KINDS},
                   {work_follows_a_load, 0, KINDS},
                   {a_long_row_is_several_batches, 0, KINDS},
                   {a_captured_stream_is_refused, 0, KINDS},
                   {a_capture_of_another_thread_goes_on, 0, KINDS},
                   {a_thread_needs_no_context, 0, KINDS}})
