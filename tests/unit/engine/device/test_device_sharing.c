/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_check.h"
#include "engine_fixture.h"
#include "test_random.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "core/device/cuda/cuda_ways.h"

#include <pthread.h>

/*
 * Several inference engines of one process, each with paged memory and a stream on a GPU, on the
 * driver of tests/support/cuda: on one device, each with an engine of Tierce; and on two devices,
 * with one engine and one pool. They store and load at the same time.
 */

enum { SIDES = 2, BLOCKS = 11, LAYER_BYTES = FX_BLOCKS * 1024 };

struct side {
    struct fixture fx;    /* layers: addresses of the device */
    struct fixture image; /* layers: memory of the host */
    TIERCE__CU_CONTEXT context;
    TIERCE__CU_STREAM stream;
    uint32_t seed;
    unsigned rounds;
};

static struct side sides[SIDES];

static void leave(void)
{
    TIERCE__CU_CONTEXT popped;
    cuda_check(cuCtxPopCurrent_v2(&popped));
}

static void start_side(struct side *side, int ordinal, struct test_random *random)
{
    side->stream = cuda_check_start(&side->context, test_random_u64(random), ordinal);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        TIERCE__CU_ADDRESS address;
        cuda_check(cuMemAlloc_v2(&address, LAYER_BYTES));
        side->fx.layers[l].base = (void *)(uintptr_t)address;
        side->image.layers[l].base = calloc(1, LAYER_BYTES);
        ck_assert_ptr_nonnull(side->image.layers[l].base);
        cuda_fake_kernel_write(side->stream, address, side->image.layers[l].base, LAYER_BYTES,
                               "the engine starts");
    }
    leave();
}

static void stop_side(struct side *side)
{
    cuda_check(cuCtxPushCurrent_v2(side->context));
    cuda_check(cuStreamSynchronize(side->stream));
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        cuda_check(cuMemFree_v2((uintptr_t)side->fx.layers[l].base));
        free(side->image.layers[l].base);
    }
    cuda_check(cuStreamDestroy_v2(side->stream));
    leave();
}

/* Computes the blocks of a prompt. */
static void fill(struct side *side, const struct tierce_chain *chain, const int32_t *ids)
{
    fx_fill(&side->image, chain, 0, BLOCKS, ids);
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (size_t b = 0; b < BLOCKS; b++) {
            size_t at = (size_t)ids[b] * 1024;
            cuda_fake_kernel_write(side->stream, (uintptr_t)side->fx.layers[l].base + at,
                                   (uint8_t *)side->image.layers[l].base + at, fx_cells[l],
                                   "the engine computes");
        }
    }
}

static bool is_right(struct side *side, const struct tierce_chain *chain, const int32_t *ids)
{
    bool right = true;
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        cuda_fake_kernel_read(side->stream, side->image.layers[l].base,
                              (uintptr_t)side->fx.layers[l].base, LAYER_BYTES,
                              "the engine attends");
    cuda_check(cuStreamSynchronize(side->stream));
    for (size_t b = 0; b < BLOCKS; b++)
        right &= fx_right(&side->image, chain, b, ids[b]);
    return right;
}

static void store_and_load(struct side *side, uint32_t seed, bool is_stored)
{
    struct tierce_chain *chain = fx_chain(&side->fx, seed, BLOCKS, 0);
    const int32_t *from = fx_ids, *to = fx_ids + 20;
    struct tierce_transfer_opts what = fx_what(&side->fx, chain, 0, BLOCKS, from);
    what.stream = side->stream;
    what.tail = true;
    if (!is_stored) {
        fill(side, chain, from);
        ck_assert_int_eq(tierce_store(side->fx.view, &what), BLOCKS);
    }
    what.block_ids = to;
    ck_assert_int_eq(tierce_load(side->fx.view, &what, NULL), BLOCKS);
    ck_assert(is_right(side, chain, to));
    tierce_chain_destroy(chain);
}

static void *work(void *arg)
{
    struct side *side = arg;
    cuda_check(cuCtxPushCurrent_v2(side->context));
    for (uint32_t i = 0; i < side->rounds; i++)
        store_and_load(side, side->seed + i, false);
    leave();
    return NULL;
}

/* All sides at the same time, beginning before their memory is pinned. */
static void work_together(void)
{
    pthread_t threads[SIDES];
    for (uint32_t i = 0; i < SIDES; i++) {
        sides[i].fx.paged.device = TIERCE_DEVICE_CUDA;
        sides[i].seed = 1000 * (i + 1);
        sides[i].rounds = TEST_ROUNDS(30) * test_scale();
        WAIT_FOR(tierce_view_prepare(sides[i].fx.view, &sides[i].fx.paged) == 0);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &sides[i]), 0);
    }
    for (size_t i = 0; i < SIDES; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < SIDES; i++)
        ck_assert_int_eq(fx_stats(&sides[i].fx).checksum_failures, 0);
}

static void check_end(void)
{
    for (size_t i = 0; i < SIDES; i++)
        stop_side(&sides[i]);
    struct cuda_fake_live live = cuda_fake_live();
    ck_assert_str_eq(cuda_fake_report(), "");
    ck_assert_uint_eq(live.streams + live.events + live.slices + live.memories, 0);
    ck_assert_uint_eq(live.host_memories + live.modules + live.stack, 0);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static const enum tierce__cuda_way ways[] = {TIERCE__CUDA_COPIES, TIERCE__CUDA_DIRECT,
                                             TIERCE__CUDA_STAGED};

START_TEST(two_engines_on_one_device)
{
    static const char *const sets[SIDES][3] = {{"timeout.pin", "61s", NULL},
                                               {"timeout.pin", "62s", NULL}};
    struct test_random random = test_random_start("sharing");
    tierce__cuda_force(ways[_i]);
    for (size_t i = 0; i < SIDES; i++) {
        start_side(&sides[i], 0, &random);
        fx_open(&sides[i].fx, false, sets[i]);
    }
    ck_assert_ptr_ne(sides[0].fx.engine, sides[1].fx.engine);
    work_together();
    fx_close(&sides[0].fx);
    cuda_check(cuCtxPushCurrent_v2(sides[1].context));
    store_and_load(&sides[1], 7, false); /* the device is still open */
    leave();
    fx_close(&sides[1].fx);
    check_end();
}
END_TEST

/* Each engine loads what the other one has stored, and the pool is registered once. */
START_TEST(one_engine_on_two_devices)
{
    struct test_random random = test_random_start("sharing");
    tierce__cuda_force(ways[_i]);
    for (int i = 0; i < SIDES; i++) {
        start_side(&sides[i], i, &random);
        fx_open(&sides[i].fx, false, NULL);
    }
    ck_assert_ptr_eq(sides[0].fx.engine, sides[1].fx.engine);
    work_together();
    for (size_t i = 0; i < SIDES; i++) {
        const struct side *other = &sides[1 - i];
        cuda_check(cuCtxPushCurrent_v2(sides[i].context));
        store_and_load(&sides[i], other->seed + other->rounds - 1, true);
        leave();
    }
    WAIT_FOR(cuda_fake_live().slices == 1);
    fx_close(&sides[0].fx);
    cuda_check(cuCtxPushCurrent_v2(sides[1].context));
    store_and_load(&sides[1], 7, false);
    leave();
    fx_close(&sides[1].fx);
    check_end();
}
END_TEST

CHECK_MAIN("device_sharing", .seconds = 120,
           .loops = {{two_engines_on_one_device, 0, 3}, {one_engine_on_two_devices, 0, 3}})
