/* SPDX-License-Identifier: Apache-2.0 */
#include "device_harness.h"
#include "log_record.h"

#include "core/device/cuda/cuda_bounce.h"

#include <errno.h>
#include <pthread.h>

/* Cells in memory that is not pinned, on the device "cuda" and the driver of tests/support/cuda. */

static const char *const kinds[] = {"cuda", "cuda direct", "cuda staged"};
enum { KINDS = 3 };

/* No slice of the pool is pinned. */
static void start(const char *kind)
{
    dh_start_engine(kind, 0);
    ck_assert_int_eq(dh.ops->open(&dh.device, (void *)dh.memory), 0);
    dh.ops->tune(dh.device);
    ck_assert_int_eq(dh.ops->allow_unpinned(dh.device), 0);
}

static uint64_t host_functions(void)
{
    return cuda_fake_calls().host_functions;
}

START_TEST(cells_need_not_be_pinned)
{
    struct dh_transfer t;
    start(kinds[_i]);
    uint64_t launches = cuda_fake_calls().launches;
    ck_assert(!dh.ops->is_pinned(dh.device, dh.pool, 1));
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool + 17, 0, 20, -1, 12);
    at = dh_add(&t, at, 1, 0, 2, 12);
    at = dh_add(&t, at, 2, 3, 1, 8);
    at = dh_add(&t, at, 3, 7, 0, 1);
    (void)dh_add(&t, at, 2, 1, 1, 0);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    for (size_t r = 0; r < 4; r++)
        for (size_t c = 0; c < t.rows[r].cells.count; c++)
            t.ids[r][c] = DH_BLOCKS - 1 - t.ids[r][c];
    t.sums[1][3] ^= 1;
    ck_assert_int_eq(dh_scatter(&t), 1);
    dh_expect_scattered(&t);
    dh_check_memory();
    for (size_t r = 0; r < DH_ROWS_MAX; r++)
        for (size_t c = 0; c < DH_CELLS_MAX; c++)
            ck_assert_uint_eq(t.good[r][c], r != 1 || c != 3);
    ck_assert_uint_eq(host_functions(), 2);
    ck_assert_uint_eq(cuda_fake_calls().launches, launches);
    dh_close();
}
END_TEST

/* Each row is copied in the way of its own memory. */
START_TEST(a_part_of_the_memory_is_pinned)
{
    static const struct {
        size_t at;
        uint64_t host_functions;
    } rows[] = {{0, 0}, {DH_SLICE - 3000, 0}, {DH_SLICE - 2999, 1}, {DH_SLICE, 1}};
    struct dh_transfer t;
    start("cuda");
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_SLICE), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t before = host_functions();
        dh_begin(&t);
        (void)dh_add(&t, dh.pool + 8192, 1, 3, 1, 5);
        (void)dh_add(&t, dh.pool + rows[i].at, 0, 1, 2, 3);
        ck_assert_int_eq(dh_gather(&t), 0);
        dh_check_gathered(&t);
        ck_assert_int_eq(dh_scatter(&t), 0);
        dh_check_memory();
        ck_assert_uint_eq(host_functions() - before, 2 * rows[i].host_functions);
    }
    dh_close();
}
END_TEST

/* More than the buffer holds: cells are cut where a part ends. */
START_TEST(a_copy_larger_than_the_buffer)
{
    enum { CELLS = 200, LAYER = 2, BYTES = CELLS * DH_STRIDE, ROWS = 2 };
    static int32_t ids[CELLS];
    static uint64_t sums[ROWS][CELLS];
    static uint8_t good[ROWS][CELLS];
    uint8_t *pool = malloc(ROWS * BYTES + 1);
    struct tierce__device_row rows[ROWS];
    struct dh_transfer t = {.copy = {.paged = &dh.paged, .rows = rows, .count = ROWS}};
    ck_assert_ptr_nonnull(pool);
    start("cuda");
    t.copy.stream = dh.stream;
    for (int32_t i = 0; i < CELLS; i++)
        ids[i] = i / 3 * 7 % (DH_BLOCKS - 3) + i % 3; /* some are contiguous */
    memset(good, 1, sizeof(good));
    for (size_t r = 0; r < ROWS; r++)
        rows[r] = (struct tierce__device_row){.layer = LAYER,
                                              .ids = ids,
                                              .cells = {pool + 1 + r * BYTES, sums[r], CELLS},
                                              .good = good[r]};
    uint64_t parts = (ROWS * BYTES + TIERCE__BOUNCE_BYTES - 1) / TIERCE__BOUNCE_BYTES;
    ck_assert_int_eq(dh_gather(&t), 0);
    ck_assert_uint_eq(host_functions(), parts);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < CELLS; i++) {
            const uint8_t *want = dh.mirror + dh_at(LAYER, ids[i]);
            ck_assert_mem_eq(rows[r].cells.bytes + i * DH_STRIDE, want, DH_STRIDE);
            ck_assert_uint_eq(sums[r][i], XXH3_64bits(want, DH_STRIDE));
        }
    }
    for (int32_t id = 0; id < DH_BLOCKS; id++)
        dh_compute(LAYER, id);
    for (size_t i = 0; i < CELLS; i++)
        memcpy(dh.mirror + dh_at(LAYER, ids[i]), rows[1].cells.bytes + i * DH_STRIDE, DH_STRIDE);
    ck_assert_int_eq(dh_scatter(&t), 0);
    ck_assert_uint_eq(host_functions(), 2 * parts);
    dh_check_memory();
    dh_close();
    free(pool);
}
END_TEST

START_TEST(a_cell_larger_than_the_buffer)
{
    enum { BYTES = 9 << 20 };
    uint8_t *pool = malloc(2 * BYTES), *want = malloc(2 * BYTES);
    TIERCE__CU_ADDRESS memory;
    ck_assert(pool != NULL && want != NULL);
    start("cuda");
    gpu_ok(cuMemAlloc_v2(&memory, 2 * BYTES));
    for (size_t i = 0; i < 2 * BYTES; i++)
        want[i] = (uint8_t)(i * 2654435761u >> 13);
    cuda_fake_kernel_write(dh.stream, memory, want, 2 * BYTES, "a kernel");
    struct tierce_paged_layer layer = {
        .base = (void *)(uintptr_t)memory, .block_stride = BYTES, .block_bytes = BYTES};
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = 2};
    struct dh_transfer t;
    dh_begin(&t);
    t.copy.paged = &paged;
    t.copy.count = 1;
    t.ids[0][0] = 1;
    t.rows[0] = (struct tierce__device_row){
        .ids = t.ids[0], .cells = {pool, t.sums[0], 2}, .good = t.good[0]};
    ck_assert_int_eq(dh_gather(&t), 0);
    ck_assert_mem_eq(pool, want + BYTES, BYTES);
    ck_assert_mem_eq(pool + BYTES, want, BYTES);
    ck_assert_uint_eq(t.sums[0][0], XXH3_64bits(want + BYTES, BYTES));
    t.ids[0][0] = 0, t.ids[0][1] = 1;
    ck_assert_int_eq(dh_scatter(&t), 0);
    cuda_fake_kernel_read(dh.stream, want, memory, 2 * BYTES, "the test");
    gpu_ok(cuStreamSynchronize(dh.stream));
    ck_assert_mem_eq(pool, want, 2 * BYTES);
    gpu_ok(cuMemFree_v2(memory));
    dh_close();
    free(pool);
    free(want);
}
END_TEST

/* ---- order ------------------------------------------------------------------------------------
 */

START_TEST(cells_belong_to_the_copy_until_its_event)
{
    struct dh_transfer t;
    start("cuda");
    cuda_fake_hold(true);
    dh_compute(0, 3); /* not computed when the gather is enqueued */
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 2, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, 0), TIERCE_E_DEADLINE);
    cuda_fake_tell_host_access(dh.pool, 10, false, "a premature publication");
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "a premature publication reads what"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    ck_assert_int_eq(dh_end(&t), 0);
    cuda_fake_tell_host_access(dh.pool, 10, false, "a publication");
    dh_check_gathered(&t);
    cuda_fake_hold(true);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    cuda_fake_tell_host_access(dh.pool, 10, true, "the next chunk");
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "the next chunk writes what"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    ck_assert_int_eq(dh_end(&t), 0);
    dh_close();
}
END_TEST

/* Copies that were enqueued before and after the slice was pinned are in progress together. */
START_TEST(a_slice_is_pinned_meanwhile)
{
    struct dh_transfer before, after;
    start("cuda");
    cuda_fake_hold(true);
    dh_begin(&before);
    (void)dh_add(&before, dh_add(&before, dh.pool, 1, 2, 1, 4), 0, 9, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &before.event, &before.copy), 0);
    ck_assert_uint_eq(host_functions(), 1);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_POOL), 0);
    dh_begin(&after);
    (void)dh_add(&after, dh.pool + DH_SLICE, 1, 3, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &after.event, &after.copy), 0);
    ck_assert_uint_eq(host_functions(), 1);
    cuda_fake_hold(false);
    ck_assert_int_eq(dh_end(&after), 0);
    ck_assert_int_eq(dh_end(&before), 0);
    dh_check_gathered(&before);
    dh_check_gathered(&after);
    ck_assert_int_eq(dh_scatter(&before), 0);
    ck_assert_uint_eq(host_functions(), 1);
    dh_check_memory();
    dh_close();
}
END_TEST

enum { THREADS = 4 };

static void *gather_often(void *arg)
{
    struct dh_transfer *t = arg;
    bool fine = true;
    for (unsigned i = 0; i < 100 && fine; i++) {
        memset(t->rows[0].cells.bytes, 0, t->rows[0].cells.count * dh_block_bytes[1]);
        fine = dh.ops->gather(dh.device, &t->event, &t->copy) == 0;
        fine = fine && dh.ops->wait(dh.device, t->event, DH_DEADLINE) == 0;
        fine = fine && dh.ops->settle(dh.device, t->event, 0, 1) == 0;
        dh.ops->forget(dh.device, fine ? t->event : NULL);
        for (size_t c = 0; fine && c < t->rows[0].cells.count; c++)
            fine = memcmp(t->rows[0].cells.bytes + c * dh_block_bytes[1],
                          dh.mirror + dh_at(1, t->ids[0][c]), dh_block_bytes[1]) == 0;
    }
    return fine ? NULL : t;
}

/* They share the buffer. */
START_TEST(several_threads_copy)
{
    static struct dh_transfer t[THREADS];
    pthread_t threads[THREADS];
    start("cuda");
    cuda_fake_seed(1, 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        dh_begin(&t[i]);
        (void)dh_add(&t[i], dh.pool + i * (DH_POOL / THREADS), 1, (int32_t)i, 1, 3);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, gather_often, &t[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    dh_close();
}
END_TEST

/* ---- failures ---------------------------------------------------------------------------------
 */

/* The first and the second buffer. */
START_TEST(no_memory_for_a_buffer)
{
    struct dh_transfer t;
    dh_start_engine("cuda", 0);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(dh.ops->open(&dh.device, (void *)dh.memory), 0);
    cuda_fake_fail_nth(3 + (uint64_t)_i, TIERCE__CU_OUT_OF_MEMORY); /* after context and mode */
    ck_assert_int_eq(dh.ops->allow_unpinned(dh.device), -ENOMEM);
    cuda_fake_fail_nth(0, 0);
    ck_assert_uint_eq(recorded_with("cuda_no_memory", "cuMemHostAlloc"), 1);
    ck_assert_uint_eq(cuda_fake_live().host_memories, GPU_HOST_MEMORIES);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 2, 1, 4);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->allow_unpinned(dh.device), 0);
    ck_assert_int_eq(dh.ops->allow_unpinned(dh.device), 0);
    ck_assert_uint_eq(cuda_fake_live().host_memories, 2 + GPU_HOST_MEMORIES);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

/* Nothing is in progress after the failure. */
START_TEST(no_memory_for_the_list)
{
    struct dh_transfer t;
    enum { ALLOCATIONS = 2 }; /* the event and the list */
    start("cuda");
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 1, 2, 1, 4);
    for (uint64_t nth = 1; nth <= ALLOCATIONS; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_fail_nth(0), nth);
        ck_assert_int_eq(dh.ops->idle(dh.device), 0);
    }
    tierce__alloc_fail_nth(ALLOCATIONS + 1);
    ck_assert_int_eq(dh_gather(&t), 0);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), ALLOCATIONS);
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

/* The host function may run after the transfer was forgotten. */
START_TEST(a_failed_device_keeps_the_list)
{
    struct dh_transfer t;
    start("cuda");
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 2, 3);
    cuda_fake_fail_nth(0, 0);
    (void)dh_gather(&t);
    /* Push, mode, create; capturing, create, record, wait, destroy; copies, host function, record.
     */
    cuda_fake_hold(true);
    cuda_fake_fail_nth(11, TIERCE__CU_UNKNOWN);
    ck_assert_int_eq(dh.ops->gather(dh.device, &t.event, &t.copy), -EIO);
    ck_assert(!dh.ops->close(dh.device, tierce__deadline_in_ms(20)));
    cuda_fake_tell_host_access(dh.pool, 1, true, "the next chunk");
    ck_assert_ptr_nonnull(strstr(cuda_fake_report(), "the next chunk writes what a host function"));
    cuda_fake_forgive();
    cuda_fake_hold(false);
    ck_assert(dh.ops->close(dh.device, DH_DEADLINE));
    cuda_fake_tell_host_access(dh.pool, 1, true, "the next chunk");
    dh_stop_engine();
}
END_TEST

CHECK_MAIN("device_bounce", .seconds = 120,
           .loops = {{cells_need_not_be_pinned, 0, KINDS}, {no_memory_for_a_buffer, 0, 2}},
           .tests = {a_part_of_the_memory_is_pinned, a_copy_larger_than_the_buffer,
                     a_cell_larger_than_the_buffer, cells_belong_to_the_copy_until_its_event,
                     a_slice_is_pinned_meanwhile, several_threads_copy, no_memory_for_the_list,
                     a_failed_device_keeps_the_list})
