/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_check.h"
#include "test_random.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "core/device/cuda/cuda_register.h"
#include "core/device/cuda/cuda_ways.h"
#include "core/device/device.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <xxhash.h>

/* Two devices "cuda" of a process that use the same memory of the host, on the driver of
 * tests/support/cuda. */

enum { SIDES = 2, BLOCKS = 32, BLOCK = 48 << 10, MEMORY = BLOCKS * BLOCK, MIB = 1 << 20 };
enum { POOL = 8 * MIB };

#define DEADLINE tierce__deadline_in_ms(120000)

struct side {
    TIERCE__CU_CONTEXT context;
    TIERCE__CU_STREAM stream;
    TIERCE__CU_ADDRESS memory;
    struct tierce__device *device;
    struct tierce_paged_layer layer;
    struct tierce_paged paged;
    uint8_t *bytes; /* [MEMORY] expected */
    unsigned rounds;
};

static struct side sides[SIDES];
static const struct tierce__device_ops *ops;
static uint8_t *pool;

static void enter(const struct side *side)
{
    cuda_check(cuCtxPushCurrent_v2(side->context));
}

static void leave(void)
{
    TIERCE__CU_CONTEXT popped;
    cuda_check(cuCtxPopCurrent_v2(&popped));
}

static void start_side(struct side *side, int ordinal, struct test_random *random)
{
    side->stream = cuda_check_start(&side->context, test_random_u64(random), ordinal);
    cuda_check(cuMemAlloc_v2(&side->memory, MEMORY));
    side->bytes = malloc(MEMORY);
    ck_assert_ptr_nonnull(side->bytes);
    for (size_t i = 0; i < MEMORY; i++)
        side->bytes[i] = (uint8_t)((i + (size_t)ordinal) * 2654435761u >> 11);
    cuda_fake_kernel_write(side->stream, side->memory, side->bytes, MEMORY, "a kernel");
    leave();
    side->layer = (struct tierce_paged_layer){
        .base = (void *)(uintptr_t)side->memory, .block_stride = BLOCK, .block_bytes = BLOCK};
    side->paged = (struct tierce_paged){.size = sizeof(side->paged),
                                        .layers = &side->layer,
                                        .layer_count = 1,
                                        .block_count = BLOCKS,
                                        .device = TIERCE_DEVICE_CUDA};
    ck_assert_int_eq(ops->open(&side->device, side->layer.base), 0);
    ops->tune(side->device);
}

static void start(enum tierce__cuda_way way)
{
    struct test_random random = test_random_start("several");
    tierce__cuda_force(way);
    ops = tierce__device_find("cuda");
    pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(pool != MAP_FAILED);
    for (int i = 0; i < SIDES; i++)
        start_side(&sides[i], i, &random);
}

static void close_side(struct side *side)
{
    ck_assert(ops->close(side->device, DEADLINE));
    side->device = NULL;
}

static void stop(void)
{
    for (size_t i = 0; i < SIDES; i++) {
        if (sides[i].device != NULL)
            close_side(&sides[i]);
        enter(&sides[i]);
        cuda_check(cuStreamSynchronize(sides[i].stream));
        cuda_check(cuMemFree_v2(sides[i].memory));
        cuda_check(cuStreamDestroy_v2(sides[i].stream));
        leave();
        free(sides[i].bytes);
    }
    munmap(pool, POOL);
    struct cuda_fake_live live = cuda_fake_live();
    ck_assert_str_eq(cuda_fake_report(), "");
    ck_assert_uint_eq(live.slices + live.streams + live.events + live.memories, 0);
    ck_assert_uint_eq(live.host_memories + live.modules, 0);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int pin(const struct side *side, size_t from, size_t to)
{
    return ops->pin(side->device, pool + from, to - from);
}

static int unpin(const struct side *side, size_t from, size_t to)
{
    return ops->unpin(side->device, pool + from, to - from);
}

/* Stores some blocks at `at`, and loads them into other blocks; there are no other users of the
 * side. Returns whether all bytes and sums were right. */
static bool copy_there_and_back(struct side *side, size_t at, int32_t first)
{
    enum { COUNT = 8 };
    int32_t ids[COUNT];
    uint64_t sums[COUNT];
    uint8_t good[COUNT];
    struct tierce__device_event *event;
    struct tierce__device_row row = {.ids = ids, .cells = {pool + at, sums, COUNT}, .good = good};
    struct tierce__device_copy copy = {
        .paged = &side->paged, .rows = &row, .count = 1, .stream = side->stream};
    for (int32_t i = 0; i < COUNT; i++)
        ids[i] = (first + i * 3) % BLOCKS;
    memset(good, 1, sizeof(good));
    bool fine = ops->gather(side->device, &event, &copy) == 0 &&
                ops->wait(side->device, event, DEADLINE) == 0 &&
                ops->settle(side->device, event, 0, 1) == 0;
    if (!fine)
        return false;
    ops->forget(side->device, event);
    for (size_t i = 0; i < COUNT; i++) {
        const uint8_t *want = side->bytes + (size_t)ids[i] * BLOCK;
        fine = fine && memcmp(pool + at + i * BLOCK, want, BLOCK) == 0 &&
               sums[i] == XXH3_64bits(want, BLOCK);
        ids[i] = (ids[i] + 1) % BLOCKS;
    }
    fine = fine && ops->scatter(side->device, &event, &copy) == 0 &&
           ops->stream_wait(side->device, event, side->stream) == 0 &&
           ops->wait(side->device, event, DEADLINE) == 0 &&
           ops->settle(side->device, event, 0, 1) == 0;
    if (!fine)
        return false;
    ops->forget(side->device, event);
    for (size_t i = 0; i < COUNT; i++)
        memcpy(side->bytes + (size_t)ids[i] * BLOCK, pool + at + i * BLOCK, BLOCK);
    return true;
}

static void check_memory(const struct side *side)
{
    uint8_t *now = malloc(MEMORY);
    ck_assert_ptr_nonnull(now);
    enter(side);
    cuda_fake_kernel_read(side->stream, now, side->memory, MEMORY, "the test");
    cuda_check(cuStreamSynchronize(side->stream));
    leave();
    ck_assert_mem_eq(now, side->bytes, MEMORY);
    free(now);
}

static void check_both(size_t at)
{
    for (size_t i = 0; i < SIDES; i++) {
        ck_assert(copy_there_and_back(&sides[i], at, (int32_t)i * 5));
        check_memory(&sides[i]);
    }
}

START_TEST(both_pin_the_same_memory)
{
    start(TIERCE__CUDA_COPIES);
    for (size_t i = 0; i < SIDES; i++)
        ck_assert_int_eq(pin(&sides[i], 0, POOL), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 1);
    ck_assert_int_eq(pin(&sides[1], 0, POOL), TIERCE_E_ARGUMENT); /* twice by a device */
    check_both(MIB);
    ck_assert_int_eq(unpin(&sides[0], 0, POOL), 0);
    ck_assert(!ops->is_pinned(sides[0].device, pool, 1));
    ck_assert_uint_eq(cuda_fake_live().slices, 1);
    ck_assert(copy_there_and_back(&sides[1], 2 * MIB, 3));
    close_side(&sides[0]);
    ck_assert(copy_there_and_back(&sides[1], 2 * MIB, 3));
    ck_assert_int_eq(unpin(&sides[1], 0, POOL), 0); /* in the context that registered it */
    ck_assert_uint_eq(cuda_fake_live().slices, 0);
    stop();
}
END_TEST

/* The slices of the two differ: cells cross registrations. */
START_TEST(slices_overlap)
{
    start(_i == 0 ? TIERCE__CUDA_COPIES : TIERCE__CUDA_STAGED);
    ck_assert_int_eq(pin(&sides[0], MIB, 2 * MIB), 0);
    ck_assert_int_eq(pin(&sides[0], 3 * MIB, 4 * MIB), 0);
    ck_assert_int_eq(pin(&sides[1], 0, 5 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 5);
    ck_assert_int_eq(pin(&sides[0], 2 * MIB, 3 * MIB), 0);
    ck_assert_int_eq(pin(&sides[0], 4 * MIB, 6 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 6);
    for (size_t at = 2 * MIB; at <= 4 * MIB; at += MIB)
        check_both(at - 100000);
    ck_assert_int_eq(unpin(&sides[1], 0, 5 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 5); /* [0, 1 MiB) is free */
    ck_assert(copy_there_and_back(&sides[0], 3 * MIB - 7, 1));
    ck_assert_int_eq(unpin(&sides[0], 2 * MIB, 3 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 4);
    ck_assert_int_eq(pin(&sides[1], 2 * MIB, 3 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 5);
    stop(); /* close unpins */
}
END_TEST

/* The second part of a range cannot be registered: the first is as before. */
START_TEST(a_failed_slice_is_undone)
{
    start(TIERCE__CUDA_COPIES);
    ck_assert_int_eq(pin(&sides[0], MIB, 2 * MIB), 0);
    cuda_fake_limit_locked(2 * MIB);
    ck_assert_int_eq(pin(&sides[1], 0, 3 * MIB), -ENOMEM);
    ck_assert_uint_eq(cuda_fake_live().slices, 1);
    ck_assert_int_eq(pin(&sides[1], MIB, 3 * MIB), 0);
    ck_assert_int_eq(unpin(&sides[0], MIB, 2 * MIB), 0);
    ck_assert_uint_eq(cuda_fake_live().slices, 2);
    ck_assert(copy_there_and_back(&sides[1], 2 * MIB - 1000, 3));
    stop();
}
END_TEST

/* A call that failed is repeated when the device is closed. */
START_TEST(a_slice_that_is_not_released)
{
    start(TIERCE__CUDA_COPIES);
    ck_assert_int_eq(pin(&sides[0], 0, MIB), 0);
    ck_assert_int_eq(pin(&sides[1], 0, 3 * MIB), 0);
    ck_assert_int_eq(unpin(&sides[0], 0, MIB), 0);
    cuda_fake_fail_nth(4, TIERCE__CU_INVALID_VALUE); /* push, mode; push, unregister */
    ck_assert_int_eq(unpin(&sides[1], 0, 3 * MIB), -ECANCELED);
    cuda_fake_fail_nth(0, 0);
    ck_assert(ops->is_pinned(sides[1].device, pool, 3 * MIB));
    ck_assert_uint_eq(cuda_fake_live().slices, 2);
    stop();
}
END_TEST

static void *copy_often(void *arg)
{
    struct side *side = arg;
    size_t own = (size_t)(side - sides) * (POOL / 2);
    bool fine = true;
    for (unsigned i = 0; fine && i < side->rounds; i++)
        fine = copy_there_and_back(side, own + i * 4096 % MIB, (int32_t)i % BLOCKS);
    return fine ? NULL : side;
}

static void *pin_in_slices(void *arg)
{
    const struct side *side = arg;
    int rc = 0;
    size_t step = side == sides ? MIB : MIB / 2;
    for (size_t at = 0; at < POOL && rc == 0; at += step)
        rc = pin(side, at, at + step);
    return rc == 0 ? NULL : arg;
}

/* Both devices pin all of the pool and copy at the same time. */
START_TEST(both_work_at_the_same_time)
{
    static const enum tierce__cuda_way ways[] = {TIERCE__CUDA_COPIES, TIERCE__CUDA_DIRECT,
                                                 TIERCE__CUDA_STAGED};
    pthread_t threads[2 * SIDES];
    start(ways[_i]);
    for (size_t i = 0; i < SIDES; i++) {
        sides[i].rounds = TEST_ROUNDS(20) * test_scale();
        ck_assert_int_eq(ops->allow_unpinned(sides[i].device), 0);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, copy_often, &sides[i]), 0);
        ck_assert_int_eq(pthread_create(&threads[SIDES + i], NULL, pin_in_slices, &sides[i]), 0);
    }
    for (size_t i = 0; i < 2 * SIDES; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_ge(cuda_fake_live().slices, POOL / MIB);
    check_both(MIB);
    stop();
}
END_TEST

CHECK_MAIN("device_several", .seconds = 120,
           .loops = {{slices_overlap, 0, 2}, {both_work_at_the_same_time, 0, 3}},
           .tests = {both_pin_the_same_memory, a_failed_slice_is_undone,
                     a_slice_that_is_not_released})
