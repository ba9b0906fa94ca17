/* SPDX-License-Identifier: Apache-2.0 */
#define DH_BLOCK_COUNT 20
#include "device_harness.h"
#include "log_record.h"

#include "base/clock.h"
#include "core/device/cuda/cuda_sums.h"
#include "core/device/cuda/cuda_trial.h"

#include <errno.h>

/* The kernel of "cuda" on the driver of tests/support/cuda: when it is used, and the behaviour if
 * it is wrong, cannot be loaded, or lacks memory. test_device_cells.c has the parts that a real
 * driver can run too. */

/* Stores and loads some cells; returns the launches that this took. */
static uint64_t store_and_load(void)
{
    struct dh_transfer t;
    uint64_t before = cuda_fake_calls().launches;
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool + 48, 1, 0, 2, 10);
    (void)dh_add(&t, at, 2, 3, 1, 5);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    t.sums[1][4] ^= 1;
    ck_assert_int_eq(dh_scatter(&t), 1);
    ck_assert_uint_eq(t.good[1][4], 0);
    dh_check_memory();
    return cuda_fake_calls().launches - before;
}

static void start(const char *kind)
{
    dh_start_engine(kind, 0);
    record_log(TIERCE_LOG_INFO);
    dh_open();
}

/* Copies work without the kernel, and the log has the reason. */
static void expect_no_kernel(const char *why)
{
    ck_assert_uint_eq(recorded_with("cuda_no_kernel", why), 1);
    ck_assert_uint_eq(recorded("device_ways"), 0);
    ck_assert_uint_eq(store_and_load(), 0);
    dh_close();
}

START_TEST(a_working_kernel_is_used)
{
    start(_i == 0 ? "cuda direct" : "cuda staged");
    ck_assert_uint_eq(recorded("cuda_no_kernel"), 0);
    ck_assert_uint_eq(recorded_with("device_ways", _i == 0 ? "more:direct" : "more:staged"), 1);
    ck_assert_uint_eq(recorded_with("device_ways", "thread_blocks=2"), 1);
    ck_assert_uint_eq(store_and_load(), 4); /* two sizes of cells, there and back */
    dh_close();
}
END_TEST

START_TEST(a_wrong_kernel_is_not_used)
{
    cuda_fake_flip(_i == 0 ? CUDA_FAKE_FLIP_SUM : CUDA_FAKE_FLIP_BYTE);
    start("cuda direct");
    expect_no_kernel("differ from the host's");
}
END_TEST

/* A kernel that becomes wrong after its trial: its sums are compared with those of the chunk. */
START_TEST(a_wrong_sum_is_a_bad_cell)
{
    struct dh_transfer t;
    start(_i == 0 ? "cuda direct" : "cuda staged");
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 1, 0, 2, 10);
    ck_assert_int_eq(dh_gather(&t), 0);
    cuda_fake_flip(CUDA_FAKE_FLIP_SUM);
    ck_assert_int_eq(dh_scatter(&t), 1);
    for (size_t c = 0; c < 10; c++)
        ck_assert_uint_eq(t.good[0][c], c < 9);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    dh_close();
}
END_TEST

static const struct {
    uint64_t call; /* of tune */
    TIERCE__CU_RESULT code;
    const char *why;
} failures[] = {
    {3, TIERCE__CU_INVALID_IMAGE, "cuModuleLoadData: CUDA_ERROR_OF_THE_FAKE (200)"},
    {4, TIERCE__CU_NOT_FOUND, "cuModuleGetFunction"},
    {5, TIERCE__CU_INVALID_VALUE, "cuDeviceGetAttribute"},
    {6, TIERCE__CU_INVALID_VALUE, "cuDeviceGetAttribute"},
    {7, TIERCE__CU_LAUNCH_FAILED, "cuLaunchKernel"},
    {8, TIERCE__CU_LAUNCH_FAILED, "cuStreamQuery"},
};
enum { FAILURES = sizeof(failures) / sizeof(failures[0]) };

START_TEST(a_kernel_that_cannot_be_loaded)
{
    dh_start_engine("cuda direct", 0);
    record_log(TIERCE_LOG_INFO);
    ck_assert_int_eq(dh.ops->open(&dh.device, (void *)dh.memory), 0);
    cuda_fake_fail_nth(failures[_i].call, failures[_i].code);
    dh.ops->tune(dh.device);
    cuda_fake_fail_nth(0, 0);
    dh.ops->tune(dh.device); /* no second report is required */
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_POOL), 0);
    expect_no_kernel(failures[_i].why);
}
END_TEST

START_TEST(a_device_that_cannot_use_the_hosts_addresses)
{
    cuda_fake_set_host_pointers(false);
    start(_i == 0 ? "cuda direct" : "cuda staged");
    ck_assert_uint_eq(recorded_with("device_ways", _i == 0 ? "more:copies" : "more:staged"), 1);
    ck_assert_uint_eq(store_and_load(), _i == 0 ? 0 : 4);
    dh_close();
}
END_TEST

/* The measured times, if a test makes them up: of store and load, by way and class. */
static int64_t (*made_up_ns)(bool is_load, enum tierce__cuda_way way, unsigned class_);
static bool is_quick; /* the copies are made, and take a thousandth of their time */

int64_t __real_tierce__cuda_trial_run(struct tierce__cuda_trial *trial,
                                      enum tierce__direction direction, enum tierce__cuda_way way,
                                      uint32_t cell_bytes);
int64_t __wrap_tierce__cuda_trial_run(struct tierce__cuda_trial *trial,
                                      enum tierce__direction direction, enum tierce__cuda_way way,
                                      uint32_t cell_bytes);

int64_t __wrap_tierce__cuda_trial_run(struct tierce__cuda_trial *trial,
                                      enum tierce__direction direction, enum tierce__cuda_way way,
                                      uint32_t cell_bytes)
{
    if (made_up_ns == NULL) {
        int64_t ns = __real_tierce__cuda_trial_run(trial, direction, way, cell_bytes);
        return is_quick && ns > 0 ? ns / 1000 : ns;
    }
    return made_up_ns(direction == TIERCE__DIRECTION_SCATTER, way, tierce__cuda_class(cell_bytes));
}

/* Every class is measured. A busy machine may make the copies of this driver slower than the limit.
 */
START_TEST(ways_are_measured)
{
    dh_start_engine("cuda fastest", 0);
    record_log(TIERCE_LOG_INFO);
    cuda_fake_seed(1, 0); /* without delays */
    is_quick = true;
    dh_open();
    is_quick = false;
    ck_assert_uint_eq(recorded("device_ways"), 1);
    ck_assert_uint_eq(recorded_with("device_ways", "store=\"4KiB:"), 1);
    ck_assert_uint_eq(recorded("device_not_measured"), 0);
    (void)store_and_load();
    dh_close();
}
END_TEST

/* Another way is the fastest in each class, and loads are the other way round. */
static int64_t in_turn(bool is_load, enum tierce__cuda_way way, unsigned class_)
{
    unsigned fastest = is_load ? 2 - class_ % 3 : class_ % 3;
    return (unsigned)way == fastest ? 1000 : 1001;
}

static int64_t direct_is_fast(bool is_load, enum tierce__cuda_way way, unsigned class_)
{
    (void)is_load, (void)class_;
    return way == TIERCE__CUDA_DIRECT ? 1 : 2;
}

static int64_t staged_is_fast(bool is_load, enum tierce__cuda_way way, unsigned class_)
{
    (void)is_load, (void)class_;
    return way == TIERCE__CUDA_STAGED ? 1 : 2;
}

/* As in_turn, but the smallest cells take a second by the other ways. */
static int64_t slow_at_first(bool is_load, enum tierce__cuda_way way, unsigned class_)
{
    int64_t ns = in_turn(is_load, way, class_);
    return class_ == 0 && ns > 1000 ? 400 * (int64_t)TIERCE__MS_NS : ns;
}

static int64_t a_second(bool is_load, enum tierce__cuda_way way, unsigned class_)
{
    (void)is_load, (void)way, (void)class_;
    return 1000 * (int64_t)TIERCE__MS_NS;
}

/* A slow class takes no time from the others. */
START_TEST(the_fastest_way_is_chosen)
{
    made_up_ns = _i == 0 ? in_turn : slow_at_first;
    start("cuda fastest");
    ck_assert_uint_eq(recorded("device_not_measured"), 0);
    ck_assert_uint_eq(recorded_with("device_ways", "store=\"4KiB:copies 16KiB:direct 64KiB:staged "
                                                   "256KiB:copies more:direct\""),
                      1);
    ck_assert_uint_eq(recorded_with("device_ways", "load=\"4KiB:staged 16KiB:direct 64KiB:copies "
                                                   "256KiB:staged more:direct\""),
                      1);
    (void)store_and_load();
    dh_close();
}
END_TEST

/* The time of all measurements has a limit, and the log says that it was reached. */
START_TEST(a_class_that_was_not_measured_is_reported)
{
    made_up_ns = a_second;
    start("cuda fastest");
    ck_assert_uint_eq(recorded_with("device_not_measured", "classes=1 of=10 "), 1);
    ck_assert_uint_eq(recorded_with("device_ways", "more:copies"), 1);
    (void)store_and_load();
    dh_close();
}
END_TEST

/* The kernel would move cells that are not aligned byte by byte. */
START_TEST(cells_that_are_not_aligned_are_copied)
{
    static const struct {
        size_t base, stride, bytes, cell;
        bool is_aligned;
    } cases[] = {{0, 0, 0, 0, true},  {16, 16, 16, 16, true}, {8, 0, 0, 0, false},
                 {0, 8, 0, 0, false}, {0, 0, 8, 0, false},    {0, 0, 0, 8, false}};
    made_up_ns = direct_is_fast;
    start("cuda fastest");
    ck_assert_uint_eq(cuda_fake_live().memories, 1); /* the engine's: no buffers are needed */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce_paged_layer layer = {.base = (uint8_t *)dh.memory + cases[i].base,
                                           .block_stride = 8192 + cases[i].stride,
                                           .block_bytes = 4096 + (uint32_t)cases[i].bytes};
        struct tierce_paged paged = {
            .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = 8};
        struct dh_transfer t;
        dh_begin(&t);
        (void)dh_add(&t, dh.pool + cases[i].cell, 0, 1, 2, 3);
        t.copy.paged = &paged;
        uint64_t before = cuda_fake_calls().launches;
        ck_assert_int_eq(dh_gather(&t), 0);
        ck_assert_uint_eq(cuda_fake_calls().launches - before, cases[i].is_aligned);
        for (size_t c = 0; c < 3; c++) {
            const uint8_t *want =
                dh.mirror + cases[i].base + (1 + 2 * c) * (size_t)layer.block_stride;
            ck_assert_mem_eq(dh.pool + cases[i].cell + c * layer.block_bytes, want,
                             layer.block_bytes);
            ck_assert_uint_eq(t.sums[0][c], XXH3_64bits(want, layer.block_bytes));
        }
    }
    dh_close();
}
END_TEST

START_TEST(a_cell_larger_than_the_buffer_is_copied)
{
    enum { MOST = 16 << 20, POOL = 2 * MOST };
    uint8_t *pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct tierce_paged_layer layer = {.block_stride = POOL};
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = 1};
    TIERCE__CU_ADDRESS memory;
    ck_assert(pool != MAP_FAILED);
    made_up_ns = staged_is_fast;
    start("cuda fastest");
    ck_assert_uint_eq(cuda_fake_live().memories, 3);
    memory = gpu_alloc(POOL);
    ck_assert_int_eq(dh.ops->pin(dh.device, pool, POOL), 0);
    layer.base = (void *)(uintptr_t)memory;
    for (int more = 0; more <= 16; more += 16) {
        struct dh_transfer t;
        layer.block_bytes = MOST + (uint32_t)more;
        memset(pool, 1 + more, POOL);
        gpu_write(memory, pool, layer.block_bytes);
        gpu_sync();
        memset(pool, 0, POOL);
        dh_begin(&t);
        t.ids[0][0] = 0;
        t.rows[0] = (struct tierce__device_row){.ids = t.ids[0], .cells = {pool, t.sums[0], 1}};
        t.copy.count = 1;
        t.copy.paged = &paged;
        uint64_t before = cuda_fake_calls().launches;
        ck_assert_int_eq(dh_gather(&t), 0);
        ck_assert_uint_eq(cuda_fake_calls().launches - before, more == 0);
        ck_assert_uint_eq(pool[0], 1 + more);
        ck_assert_uint_eq(t.sums[0][0], XXH3_64bits(pool, layer.block_bytes));
    }
    gpu_free(memory);
    dh_close();
    munmap(pool, POOL);
}
END_TEST

/* An engine captures its graphs after it has described its memory. */
START_TEST(a_capture_of_another_thread_is_not_disturbed)
{
    TIERCE__CU_CAPTURE_MODE mode = TIERCE__CU_CAPTURE_GLOBAL;
    dh_start_engine(_i == 0 ? "cuda direct" : "cuda fastest", 0);
    ck_assert_int_eq(dh.ops->open(&dh.device, (void *)dh.memory), 0);
    cuda_fake_capture(dh.stream, true);
    dh.ops->tune(dh.device);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, DH_POOL), 0);
    ck_assert_str_eq(cuda_fake_report(), "");
    gpu_ok(cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_int_eq(mode, TIERCE__CU_CAPTURE_GLOBAL); /* it was restored */
    cuda_fake_capture(dh.stream, false);
    (void)store_and_load();
    dh_close();
}
END_TEST

/* More cells than the memory for sums can hold: the copy engine copies all of them. */
START_TEST(more_cells_than_sums)
{
    enum { CELLS = TIERCE__SUMS_SLOTS * TIERCE__LAUNCH_CELLS + 1, BYTES = 8 };
    struct tierce_paged_layer layer = {.block_stride = BYTES, .block_bytes = BYTES};
    int32_t *ids = calloc(CELLS, sizeof(*ids));
    uint64_t *sums = calloc(CELLS, sizeof(*sums));
    ck_assert(ids != NULL && sums != NULL);
    start("cuda direct");
    layer.base = (void *)dh.memory;
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = CELLS};
    struct tierce__device_row row = {.ids = ids, .cells = {dh.pool, sums, CELLS}};
    struct tierce__device_copy copy = {
        .paged = &paged, .rows = &row, .count = 1, .stream = dh.stream};
    struct tierce__device_event *event;
    for (int32_t i = 0; i < CELLS; i++)
        ids[i] = i; /* contiguous: one copy */
    uint64_t before = cuda_fake_calls().launches;
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, event, DH_DEADLINE), 0);
    ck_assert_int_eq(dh.ops->settle(dh.device, event, 0, 1), 0);
    dh.ops->forget(dh.device, event);
    ck_assert_uint_eq(cuda_fake_calls().launches, before);
    for (size_t i = 0; i < CELLS; i += 1000)
        ck_assert_uint_eq(sums[i], XXH3_64bits(dh.mirror + i * BYTES, BYTES));
    dh_close();
    free(sums);
    free(ids);
}
END_TEST

/* The slots of transfers that have not been forgotten are not free. */
START_TEST(no_free_slots)
{
    enum { EVENTS = TIERCE__SUMS_SLOTS + 1 };
    static struct tierce__device_event *events[EVENTS];
    struct dh_transfer t;
    start("cuda direct");
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 2, 3);
    uint64_t before = cuda_fake_calls().launches;
    for (size_t i = 0; i < EVENTS; i++) {
        ck_assert_int_eq(dh.ops->gather(dh.device, &events[i], &t.copy), 0);
        ck_assert_int_eq(dh.ops->wait(dh.device, events[i], DH_DEADLINE), 0);
    }
    ck_assert_uint_eq(cuda_fake_calls().launches - before, TIERCE__SUMS_SLOTS);
    for (size_t i = 0; i < EVENTS; i++) {
        memset(t.sums, 0, sizeof(t.sums));
        ck_assert_int_eq(dh.ops->settle(dh.device, events[i], 0, 1), 0);
        dh_check_gathered(&t);
        dh.ops->forget(dh.device, events[i]);
    }
    before = cuda_fake_calls().launches;
    ck_assert_int_eq(dh_gather(&t), 0);
    ck_assert_uint_eq(cuda_fake_calls().launches - before, 1);
    dh_close();
}
END_TEST

CHECK_MAIN("device_kernel", .seconds = 120,
           .loops = {{a_working_kernel_is_used, 0, 2},
                     {a_wrong_kernel_is_not_used, 0, 2},
                     {a_wrong_sum_is_a_bad_cell, 0, 2},
                     {a_device_that_cannot_use_the_hosts_addresses, 0, 2},
                     {a_capture_of_another_thread_is_not_disturbed, 0, 2},
                     {a_kernel_that_cannot_be_loaded, 0, FAILURES},
                     {the_fastest_way_is_chosen, 0, 2}},
           .tests = {ways_are_measured, a_class_that_was_not_measured_is_reported,
                     cells_that_are_not_aligned_are_copied, a_cell_larger_than_the_buffer_is_copied,
                     more_cells_than_sums, no_free_slots})
